"""The paper's tables and figures, and our own questions: `python -m benchmarks NAME --out DIR`.

To add one, write a class in one of these modules (its docstring is the question) and name it here.
"""

from benchmarks.studies.antibodies import Antibodies
from benchmarks.studies.beyond import Dependence, Joints, Laws, Tuned, Tuning
from benchmarks.studies.bigrams import Bigrams
from benchmarks.studies.correctors import Correctors
from benchmarks.studies.forecast import Forecast
from benchmarks.studies.frontier import Frontier
from benchmarks.studies.images import ImageOrders, ImageSchedules, ImagesStudy
from benchmarks.studies.models import Ablation, CountdownStudy, Epsilon, TextStudy
from benchmarks.studies.molecules import (
    MoleculeProperties,
    MoleculeScaffolds,
    MoleculesStudy,
    MoleculeTemperatures,
    Moses,
)
from benchmarks.studies.observed import Hamming, PositivityStudy, ProxiesStudy
from benchmarks.studies.overview import Orders, Overview
from benchmarks.studies.runtime import Runtime
from benchmarks.studies.study import Study, name_of
from benchmarks.studies.text_to_image import Guidance, TextToImageStudy
from benchmarks.studies.theory import Kl, Local, Order, Schedules

STUDIES: dict[str, type[Study]] = {
    name_of(study): study
    for study in (
        *(CountdownStudy, Ablation, Epsilon, PositivityStudy, Hamming, ProxiesStudy, Runtime),
        *(Order, Local, Kl, Schedules, TextStudy, Tuning, Tuned, Joints, Laws, Dependence, Forecast),
        *(ImagesStudy, ImageSchedules, ImageOrders, Frontier, Bigrams, Correctors, Overview, Orders),
        *(Guidance, TextToImageStudy, MoleculesStudy, Moses, MoleculeTemperatures, MoleculeScaffolds),
        *(MoleculeProperties, Antibodies),
    )
}
