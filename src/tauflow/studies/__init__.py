"""The paper's tables and figures, and our own questions: `python -m tauflow.studies NAME --out DIR`.

To add one, write a class in one of these modules (its docstring is the question) and name it here.
"""

from tauflow.studies.antibodies import Antibodies
from tauflow.studies.base import Study, name_of
from tauflow.studies.beyond import Dependence, Joints, Laws, Tuned, Tuning
from tauflow.studies.bigrams import Bigrams
from tauflow.studies.correctors import Correctors
from tauflow.studies.forecast import Forecast
from tauflow.studies.frontier import Frontier
from tauflow.studies.image_orders import ImageOrders
from tauflow.studies.image_schedules import ImageSchedules
from tauflow.studies.images import Images
from tauflow.studies.models import Ablation, Countdown, Epsilon, Text
from tauflow.studies.molecules import (
    MoleculeProperties,
    Molecules,
    MoleculeScaffolds,
    MoleculeTemperatures,
    Moses,
)
from tauflow.studies.observed import Hamming, Positivity, Proxies
from tauflow.studies.overview import Orders, Overview
from tauflow.studies.runtime import Runtime
from tauflow.studies.text_to_image import Guidance, TextToImage
from tauflow.studies.theory import Kl, Local, Order, Schedules

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
