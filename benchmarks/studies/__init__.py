"""The paper's tables and figures, and our own questions: `python -m benchmarks NAME --out DIR`.

To add one, write a class in one of these modules (its docstring is the question) and name it here.
"""

from benchmarks.studies.antibodies import Antibodies
from benchmarks.studies.base import Study, name_of
from benchmarks.studies.beyond import Dependence, Joints, Laws, Tuned, Tuning
from benchmarks.studies.bigrams import Bigrams
from benchmarks.studies.correctors import Correctors
from benchmarks.studies.forecast import Forecast
from benchmarks.studies.frontier import Frontier
from benchmarks.studies.image_orders import ImageOrders
from benchmarks.studies.image_schedules import ImageSchedules
from benchmarks.studies.images import Images
from benchmarks.studies.models import Ablation, Countdown, Epsilon, Text
from benchmarks.studies.molecules import (
    MoleculeProperties,
    Molecules,
    MoleculeScaffolds,
    MoleculeTemperatures,
    Moses,
)
from benchmarks.studies.observed import Hamming, Positivity, Proxies
from benchmarks.studies.overview import Orders, Overview
from benchmarks.studies.runtime import Runtime
from benchmarks.studies.text_to_image import Guidance, TextToImage
from benchmarks.studies.theory import Kl, Local, Order, Schedules

STUDIES: dict[str, type[Study]] = {
    name_of(study): study
    for study in (
        *(Countdown, Ablation, Epsilon, Positivity, Hamming, Proxies, Runtime, Order, Local, Kl, Schedules),
        *(Text, Tuning, Tuned, Joints, Laws, Dependence, Forecast, Images, ImageSchedules, ImageOrders),
        *(Frontier, Bigrams, Correctors, Overview, Orders, Guidance, TextToImage),
        *(Molecules, Moses, MoleculeTemperatures, MoleculeScaffolds, MoleculeProperties),
        Antibodies,
    )
}
