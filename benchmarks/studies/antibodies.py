"""Antibodies: samplers at few evaluations on AntiBERTy, a real pretrained model, measured by Sapiens.

The designs are chains of real antibodies of which some residues are known. `designed(trained, design)` is the
model of such chains.

Shapes: B samples, D residues, P residues that are drawn.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torchmetrics import Metric

from benchmarks.studies.models import OnModels, Subject
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling
from tauflow.evaluation.results import REAL, Cell, Factors, Results
from tauflow.evaluation.tables import Frame, View, number_text
from tauflow.recipes.antibodies import ANTIBERTY, SAPIENS, HeavyChains
from tauflow.recipes.folders import find_folder, find_weight_files
from tauflow.recipes.loading import pretrained
from tauflow.samplers import sampler_from
from tauflow.tasks.metrics import SampleMean
from tauflow.train import Trained

CEILING = "fhs"  # with one residue per evaluation
COMPARED = 8  # evaluations at which one table lists all metrics
DTYPE = torch.bfloat16  # twice as fast where processors support it; docs/antibodies.md says what it changes
START = "EVQLVESGG"  # how heavy chains of the family VH3 start

# Designs


@dataclass(frozen=True)
class Antibody:
    """The variable domain of a heavy chain.

    Args:
        name: of the antibody.
        chain: its residues.
        loops: its CDR1, CDR2 and CDR3 as IMGT delimits them (27-38, 56-65, 105-117).
    """

    name: str
    chain: str
    loops: tuple[str, str, str]

    @property
    def places(self) -> dict[str, slice]:
        """Return the places of the loops by name."""
        places = {}
        end = 0
        for number, loop in enumerate(self.loops, start=1):
            begin = self.chain.index(loop, end)
            end = begin + len(loop)
            places[f"cdr{number}"] = slice(begin, end)
        return places


TRASTUZUMAB = Antibody(
    "trastuzumab",
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS",
    ("GFNIKDTY", "IYPTNGYT", "SRWGGDGFYAMDY"),
)
ADALIMUMAB = Antibody(
    "adalimumab",
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYC"
    "AKVSYLSTASSLDYWGQGTLVTVSS",
    ("GFTFDDYA", "ITWNSGHI", "AKVSYLSTASSLDY"),
)
PERTUZUMAB = Antibody(
    "pertuzumab",
    "EVQLVESGGGLVQPGGSLRLSCAASGFTFTDYTMDWVRQAPGKGLEWVADVNPNSGGSIYNQRFKGRFTLSVDRSKNTLYLQMNSLRAEDTAVYYC"
    "ARNLGPSFYFDYWGQGTLVTVSS",
    ("GFTFTDYT", "VNPNSGGS", "ARNLGPSFYFDY"),
)


@dataclass(frozen=True)
class Design:
    """Chains of which a part is known.

    Args:
        name: in tables.
        real: a real chain that fits.
        text: the real chain with an underscore for each residue to draw.
        regions: parts of the drawn residues whose recovery is measured, by name.
    """

    name: str
    real: str
    text: str
    regions: Mapping[str, slice] = field(default_factory=dict)

    @classmethod
    def beginning(cls, antibody: Antibody, start: str = START) -> "Design":
        """Return the design of chains as long as an antibody's, of which the start is known."""
        rest = "_" * (len(antibody.chain) - len(start))
        return cls(f"chains from {start}", antibody.chain, start + rest)

    @classmethod
    def loops(cls, antibody: Antibody) -> "Design":
        """Return the design of an antibody's three loops in its framework."""
        text = list(antibody.chain)
        for places in antibody.places.values():
            text[places] = "_" * (places.stop - places.start)
        return cls(f"loops of {antibody.name}", antibody.chain, "".join(text), antibody.places)

    @property
    def open(self) -> list[int]:
        """Return the places of the residues to draw."""
        return [place for place, letter in enumerate(self.text) if letter == "_"]


class Recovery(SampleMean):
    """Share of the residues at some places (P,) that agree with a real chain (D,), averaged over samples."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, real: Tensor, places: Tensor, **kwargs: Any):
        super().__init__(**kwargs)
        self.real = real
        self.places = places

    def of(self, tokens: Tensor) -> Tensor:
        real = self.real.to(tokens.device)
        places = self.places.to(tokens.device)
        return (tokens[:, places] == real[places]).double().mean(1)


class DesignedChains(HeavyChains):
    """Chains of a design; `known` is the prompt of their known residues."""

    alone = ""  # its one real item is the real chain

    def __init__(self, task: HeavyChains, design: Design):
        super().__init__(task.text, len(design.text), task.context)
        self.design = design
        self.known = self.infill(design.text)
        self.open = torch.tensor(design.open)
        self.real = torch.tensor(self.text.encode(design.real))
        self.val_data = [{"tokens": self.real}]
        self._sapiens = task._sapiens
        if self._sapiens is not None:
            self.primary_metric = task.primary_metric
        elif design.regions:
            self.primary_metric = "recovery"

    def _chain_metrics(self) -> dict[str, Metric]:
        if not self.design.regions:
            return super()._chain_metrics()
        metrics: dict[str, Metric] = {"recovery": Recovery(self.real, self.open)}
        for name, places in self.design.regions.items():
            metrics[f"recovery_{name}"] = Recovery(self.real, torch.arange(self.length)[places])
        return metrics


def designed(trained: Trained, design: Design) -> Trained:
    """Return a model of antibodies whose samples are the chains of a design."""
    task = DesignedChains(cast(HeavyChains, trained.task), design)
    model = dataclasses.replace(trained.model, shape=task.shape)
    return dataclasses.replace(trained, model=model, task=task)


DESIGNS = (Design.beginning(PERTUZUMAB), Design.loops(TRASTUZUMAB), Design.loops(ADALIMUMAB))

# The study


class Antibodies(OnModels):
    """Samplers at few evaluations on AntiBERTy (from masks, 26 M parameters, inside the package antiberty):
    chains of 119 residues from their first nine, and the three loops (IMGT) of trastuzumab and adalimumab in
    their frameworks. Pseudo-perplexity under Sapiens of the residues that were drawn, recovery of the true
    ones, pairwise identity of samples, valid frameworks. The same model with one residue an evaluation is the
    ceiling. --ckpt takes another folder of such a model."""

    nfes = (4, 8, 16, 32)
    samples = 64
    seeds = (0,)
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"nfes": (2, COMPARED), "samplers": ("euler", "auto")}
    view = View(row=("sampler",), panel=("design",))
    shown = (f"ppl_{SAPIENS}", "recovery", "recovery_*", "valid", "identity")
    drawn = (f"ppl_{SAPIENS}", "identity")
    ignores = ("judge", "data")

    @property
    def folder(self) -> Path:
        """Return the folder of the model: that of --ckpt, or the one in the installed package."""
        asked = self.settings.checkpoints or (ANTIBERTY.name,)
        if len(asked) > 1:
            raise SettingsError(f"the study {self.name} is of one model; give --ckpt one name")
        return find_folder(asked[0], [ANTIBERTY])

    def paths(self) -> list[str | Path]:
        return list(find_weight_files(self.folder, ANTIBERTY.pickles))

    @cached_property
    def loaded(self) -> list[Trained]:
        trained = pretrained(self.folder, recipes=[ANTIBERTY], dtype=DTYPE)
        cast(HeavyChains, trained.task).use_judges(SAPIENS)
        return [trained]

    def named_models(self) -> list[tuple[Factors, Trained]]:
        return [({"design": each.name}, designed(self.loaded[0], each)) for each in DESIGNS]

    def cells(self) -> list[Factors]:
        open_places = {each.name: len(each.open) for each in DESIGNS}
        cells = [
            cell for cell in super().cells() if int(cell.get("nfe", 0)) < open_places[str(cell["design"])]
        ]
        for subject, seed in product(self.subjects, self.settings.seeds):
            residues = open_places[str(subject.factors["design"])]
            cells.append(subject.factors | {"sampler": CEILING, "nfe": residues, "seed": seed})
        return cells

    def has_real_data(self, subject: Subject) -> bool:
        return True  # one chain, of which there is no more to say

    def measure(self, factors: Factors) -> Cell:
        subject, name = self.subject_of(factors), str(factors["sampler"])
        if name == REAL:
            return self.real(subject.trained, factors)
        return self.sampled(subject.trained, subject.samplers.get(name) or sampler_from(name), factors)

    def sampling(self, factors: Factors) -> Sampling:
        found = super().sampling(factors)
        if "design" not in factors:
            return found
        task = cast(DesignedChains, self.subject_of(factors).trained.task)
        return dataclasses.replace(found, prompt=task.known)

    @classmethod
    def findings(cls, results: Results) -> dict[str, str]:
        frame = Frame(results, cls.view)
        return {f"At {COMPARED} evaluations: {panel}": _compared(frame, panel) for panel in frame.panels}


def _compared(frame: Frame, panel: str) -> str:
    """Return all metrics of one budget in one table, with real data and the ceiling beside them."""
    metrics = [each for each in frame.metrics() if frame.rows(panel, each)]
    most = max(frame.xs(panel, metrics[0]), default=0.0)
    places = [(row, row, float(COMPARED)) for row in frame.rows(panel, metrics[0])]
    if most > COMPARED:
        places.append((f"{CEILING}, NFE {most:g}", CEILING, most))
    lines = [f"| sampler | {' | '.join(metrics)} |", "|---" * (1 + len(metrics)) + "|"]
    for name, row, x in places:
        found = [number_text(frame.measured(panel, row, x, metric)) for metric in metrics]
        if any(found):
            lines.append(f"| {name} | {' | '.join(found)} |")
    return "\n".join([*lines, ""])
