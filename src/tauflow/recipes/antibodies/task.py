"""HeavyChains: the variable domains of heavy chains, as a model of antibodies draws them.

Shapes: B samples, D residues, V = 20 amino acids.
"""

import dataclasses
from typing import Self

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from tauflow.errors import SettingsError
from tauflow.recipes.antibodies.chains import Design
from tauflow.recipes.antibodies.metrics import PairwiseIdentity, Recovery, ValidFramework
from tauflow.recipes.antibodies.sapiens import Sapiens
from tauflow.recipes.language import Language, TextTokens
from tauflow.samplers import Prompt
from tauflow.tasks.sequences.metrics import Unique
from tauflow.tasks.text.metrics import Perplexity, corpus_perplexity
from tauflow.train import Trained

RESIDUES = 119  # of a chain, unless more or fewer are asked for
JUDGE = "sapiens"


class HeavyChains(Language):
    """Heavy chains of a masked language model of antibodies, judged by Sapiens.

    Args:
        text: residues to tokens and back.
        length: residues of a sample, D.
        context: residues that a sample may have at most.
    """

    primary_metric = "valid"

    def __init__(self, text: TextTokens, length: int = RESIDUES, context: int | None = None):
        super().__init__(text, length if context is None else min(length, context), context=context)
        self.design: Design | None = None
        self._open: Tensor | None = None
        self._sapiens: Sapiens | None = None

    def sized(self, length: int) -> Self:
        result = super().sized(length)
        result.design = None
        result._open = None
        if self._sapiens is None:
            result.primary_metric = HeavyChains.primary_metric
        return result

    def knowing(self, prompt: Prompt) -> Self:
        """Return the task of chains with known residues; perplexity and identity are of the others."""
        result = super().knowing(prompt)
        rows = torch.atleast_2d(prompt.known).cpu()
        if bool((rows != rows[0]).any()) or bool(rows[0].all()):
            raise SettingsError(
                "chains that are measured together are drawn at the same places, at least one of them; "
                "evaluate others by themselves"
            )
        result._open = (~rows[0]).nonzero().flatten()
        return result

    def new_tokens(self, taken: int) -> int:
        return max(1, self.length - taken)

    def designing(self, design: Design) -> Self:
        """Return the task of chains of which a part is known; its one real item is that of the design."""
        result = self.sized(len(design.text))
        result.design = design
        result.alone = ""
        if design.regions and self._sapiens is None:
            result.primary_metric = "recovery"
        result.val_data = [{"tokens": torch.tensor(self.text.encode(design.real))}]
        return result.knowing(result.infill(design.text))

    @property
    def known(self) -> Prompt | None:
        """Return what is known of the chains of the design."""
        return None if self.design is None else self.infill(self.design.text)

    @property
    def open(self) -> Tensor:
        """Return the places (P,) whose residues are drawn: those that are not known."""
        return torch.arange(self.length) if self._open is None else self._open

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {}
        if self._sapiens is not None:
            self._sapiens.check_length(self.length)
            metrics[f"ppl_{JUDGE}"] = Perplexity(corpus_perplexity, self._judged)
        regions = {} if self.design is None else self.design.regions
        if self.design is not None and regions:
            real = torch.tensor(self.text.encode(self.design.real))
            metrics["recovery"] = Recovery(real, self.open)
            for name, places in regions.items():
                metrics[f"recovery_{name}"] = Recovery(real, torch.arange(self.length)[places])
        else:
            metrics["valid"] = ValidFramework(self.texts)
        metrics |= {"identity": PairwiseIdentity(self.open), "unique": Unique(self.texts)}
        return MetricCollection(metrics, compute_groups=False)

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure the pseudo-perplexity under Sapiens."""
        if names.strip() != JUDGE:
            raise SettingsError(f"the judge of heavy chains is {JUDGE}, got {names!r}")
        self._sapiens = Sapiens(device)
        self.primary_metric = f"ppl_{JUDGE}"

    def _judged(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        assert self._sapiens is not None
        return self._sapiens.score(self.texts(tokens), self.open.tolist())


def designed(trained: Trained, design: Design) -> Trained:
    """Return a model of antibodies whose samples are the chains of a design."""
    if not isinstance(trained.task, HeavyChains):
        raise SettingsError(f"a design is for models of antibodies, not of {type(trained.task).__name__}")
    task = trained.task.designing(design)
    return dataclasses.replace(trained, model=dataclasses.replace(trained.model, shape=task.shape), task=task)
