"""Budgets beyond one evaluation for each token, and whether correctors repair the errors of a model."""

from typing import ClassVar

from torch import Tensor

from benchmarks.studies.laws import exact, laws
from benchmarks.studies.subjects import ITEMS, OnLawsAndModels
from tauflow.evaluation.results import REAL, Factors
from tauflow.train import Trained

SWEEPS = 4  # evaluations for each token, at most
CONSTANT = 0.02  # share of what the context says that is any token, at all times
EARLY = 0.2  # the same at first; it falls to 0 with time


def constant(t: Tensor) -> Tensor:
    """Return an error that does not depend on what is known."""
    return CONSTANT + 0 * t


def early(t: Tensor) -> Tensor:
    """Return an error of a model that is worse the less it knows."""
    return EARLY * (1 - t)


class Correctors(OnLawsAndModels):
    """What evaluations beyond one for each token buy: quality at budgets from 8 to 4 D, from masks and from
    noise, for samplers that move a token once and for those that take tokens back. On laws with an exact
    denoiser, and on the same with errors: 2 % of what the context says is any token alike, or 20 % of it at
    first, falling to nothing; or on the models of --ckpt."""

    nfes = (8, 16, 32, 64, 128, 256, 512, 1024)
    samples = 64
    samplers = ("tr_cie", "spaced_even", "bridge_systematic", "correctors")
    laws = ("markov", "countdown")
    errors: ClassVar = {"": None, " with errors": constant, " with early errors": early}

    def exact_laws(self) -> list[tuple[Factors, Trained]]:
        found: list[tuple[Factors, Trained]] = []
        tasks = laws(items=ITEMS)
        for law in self.laws:
            for words, wrong in self.errors.items():
                for source in ("masked", "uniform"):
                    trained = exact(tasks[law], source, wrong=wrong)
                    found.append(({"data": f"{law} law{words}", "source": source}, self.law(trained)))
        return found

    def cells(self) -> list[Factors]:
        longest = {str(each.factors): SWEEPS * each.trained.model.length for each in self.subjects}
        cells = []
        for cell in super().cells():
            subject = self.subject_of(cell)
            if cell["sampler"] == REAL or int(cell["nfe"]) <= longest[str(subject.factors)]:
                cells.append(cell)
        return cells
