"""Samplers on models of pictures."""

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.studies.models import OnModels
from benchmarks.studies.pictured import PICTURED, PICTURES, write_pictures
from tauflow import tasks
from tauflow.errors import SettingsError
from tauflow.evaluation.evaluate import Sampling, real_items, task_of
from tauflow.evaluation.results import Cell, Factors, Results, Shown
from tauflow.train import Trained

FEATURES = "lite0"  # the network in whose features pictures are compared, unless --data features=... says
METRIC = "nll_bits_per_dim"
NEEDS = "a checkpoint of pictures, as `python train.py -c configs/fashion.yaml` makes them"


def image_task(trained: Trained, study: str) -> tasks.Images:
    """Return the task of a model of pictures; refuse another model."""
    task = task_of(trained)
    if not isinstance(task, tasks.Images):
        raise SettingsError(f"the study {study} needs {NEEDS}; this one is of {type(task).__name__}")
    return task


class OnImages(OnModels):
    """Abstract: samplers on models of pictures, by exact likelihood and by features of their samples."""

    samples = 256
    seeds = (0,)
    nll_items = 32
    needs = NEEDS
    ignores = ("judge",)
    smoke: ClassVar[dict[str, Any]] = OnModels.smoke | {"samples": 4, "nfes": (4, 8), "nll_items": 2}

    @cached_property
    def loaded(self) -> list[Trained]:
        found = super().loaded
        for trained in found:
            task = image_task(trained, self.name)
            if "features" not in self.settings.data:
                task.features = FEATURES
            task.sample_metrics()  # a network that is not there is refused now
        return found


class ImagesStudy(OnImages):
    """Samplers at few evaluations on models of pictures: exact likelihood in bits per dimension (of a masked
    source), distances in the features of a network, accuracy of the class asked for, noise in quiet areas and
    spread of the brightness; real data is the floor. pictures.png shows samples of 8 evaluations. Needs
    --ckpt; --data features=... names another network than lite0, features=null does without."""

    nfes = (4, 8, 16, 32, 64)
    samplers = ("paper", "beyond")
    shown = (
        *(METRIC, "kid_*", "fd16_*", "fid_*", "label_accuracy_*", "class_entropy_bits_*"),
        *("brightness_sd", "quiet_*", "unigram_tv"),
    )
    drawn = (METRIC, f"{METRIC} *", "kid_*", "fd16_*")

    def sampling(self, factors: Factors) -> Sampling:
        return dataclasses.replace(super().sampling(factors), show=PICTURES * self.pictured(factors))

    def pictured(self, factors: Factors) -> bool:
        """Return whether pictures of a cell are kept: of real data, and of samples at one budget."""
        return factors["seed"] == self.settings.seeds[0] and factors.get("nfe", PICTURED) == PICTURED

    def real(self, trained: Trained, factors: Factors) -> Cell:
        cell, task = super().real(trained, factors), task_of(trained)
        if not self.pictured(factors):
            return cell
        tokens, condition = real_items(task, range(min(PICTURES, len(task.val_data))))
        return dataclasses.replace(
            cell, shown=Shown(tokens.tolist(), None if condition is None else condition.tolist())
        )

    def illustrate(self, results: Results, folder: Path) -> list[str]:
        return write_pictures(results, self.subjects, self.view, folder)
