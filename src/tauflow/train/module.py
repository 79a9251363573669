"""DFMModule: the training loss, the validation bound, the optimizer, and the averaged weights of a denoiser.

The loss is the cross-entropy -ln p(x_1 | x_t) at stratified times t, under noise that is a pure function of
the seed and the step. So a run is the same however its batches are split, and a resumed run is exact.

Shapes: B items of a global batch (over all devices and accumulated batches), b items of this one,
D coordinates, R rows, V data tokens, C columns of a condition.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchmetrics import MeanMetric

from tauflow.denoise import DROPPED, Model
from tauflow.denoise.denoiser import NetworkDenoiser
from tauflow.errors import NonFiniteLoss, SettingsError
from tauflow.networks import Network, NetworkConfig, TransformerConfig, network_from
from tauflow.numerics import generator_for
from tauflow.process import Noise, Schedule, Source, schedule_from, source_from, stratified_times
from tauflow.process.process import LossOn, Redrawn
from tauflow.tasks.task import DataFacts, Task
from tauflow.train.boards import log_scalars
from tauflow.train.bound import Batch, Bound, Validation, batch_condition, batch_tokens, check_values
from tauflow.untrusted import check_weights, path_of

KEY = "tauflow"  # of our entry in a checkpoint
FORMAT = 2  # of that entry
Part = tuple[Tensor, Tensor, Tensor]  # loss, positions and times of a batch


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, its learning rate over time, and the averaging of weights.

    Args:
        name: adamw, or muon: Muon for the matrices of hidden layers (`Network.hidden_matrices`) and AdamW for
            the rest. Muon needs fewer steps on most tasks.
        learning_rate: peak of AdamW's schedule.
        muon_learning_rate: peak of Muon's schedule.
        warmup_steps: steps of linear warm-up; a cosine decay follows until the last step.
        final_rate: learning rate of the last step, as a share of the peak.
        weight_decay: AdamW's, on matrices only.
        betas: AdamW's.
        ema_decay: of the averaged weights that validation, sampling and reloading use; 0 keeps the raw
            weights.
    """

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 0.02
    warmup_steps: int = 200
    final_rate: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    ema_decay: float = 0.999

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        fits = all(0 < rate < math.inf for rate in (self.learning_rate, self.muon_learning_rate))
        fits = fits and self.warmup_steps >= 0 and self.weight_decay >= 0 and 0 <= self.final_rate <= 1
        if not fits or not all(0 <= decay < 1 for decay in (*self.betas, self.ema_decay)):
            raise SettingsError(
                "The optimizer needs learning rates > 0, warmup_steps >= 0, weight_decay >= 0, final_rate in "
                f"[0, 1], and betas and ema_decay in [0, 1), got {self}."
            )

    def build(self, network: Network) -> torch.optim.Optimizer:
        """Return the optimizer of a network's weights."""
        matrices = network.hidden_matrices() if self.name == "muon" else []
        chosen = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in network.parameters() if id(parameter) not in chosen]
        groups = [
            {"params": [p for p in others if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas)
        if self.name == "adamw":
            return adamw
        if not matrices:
            raise SettingsError(
                f"optimizer.name=muon needs hidden matrices, but {type(network).__name__} has none. Use "
                "--model.optimizer.name adamw."
            )
        return MuonAdamW(matrices, self.muon_learning_rate, adamw)

    def factor(self, step: int, total: float) -> float:
        """Return the learning rate of a step over its peak, for a training of `total` steps."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
        return self.final_rate + (1 - self.final_rate) / 2 * (1 + math.cos(math.pi * min(1.0, progress)))


class MuonAdamW(torch.optim.Optimizer):
    """Muon for hidden matrices and AdamW for the rest as one optimizer, as Lightning and checkpoints need it.

    The kernels of a convolution count as a matrix with one row per output channel. Group 0 is Muon's.
    """

    def __init__(self, matrices: list[Tensor], learning_rate: float, adamw: torch.optim.AdamW):
        flat = [nn.Parameter(matrix.detach().flatten(1)) for matrix in matrices]
        muon = torch.optim.Muon(flat, lr=learning_rate, weight_decay=0.0)
        muon.param_groups[0]["params"] = matrices
        self._parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step both; `closure`, where there is one, computes the loss and the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        muon, adamw = self._parts
        for part, groups in ((muon, self.param_groups[:1]), (adamw, self.param_groups[1:])):
            part.param_groups = groups  # resuming replaces groups and state
            part.state = self.state
        with _flattened(self.param_groups[0]["params"]):
            muon.step()
        adamw.step()
        return loss


@contextmanager
def _flattened(weights: list[Tensor]) -> Iterator[None]:
    """Let weights and their gradients be matrices in this block."""
    shapes = [weight.shape for weight in weights]
    for weight in weights:
        _reshape(weight, (len(weight), -1))
    yield
    for weight, shape in zip(weights, shapes, strict=True):
        _reshape(weight, shape)


def _reshape(weight: Tensor, shape: Sequence[int]) -> None:
    gradient = weight.grad
    weight.grad = None  # it must have the weight's shape
    weight.data = weight.data.view(shape)
    weight.grad = None if gradient is None else gradient.view(shape)


class LearningRates(torch.optim.lr_scheduler.LambdaLR):
    """The learning rate over steps, in a form that can change when a run is resumed.

    A checkpoint gives the step, and what the optimizer remembers. The settings of the optimizer (learning
    rates, weight decay, betas) are those of the resumed run, from its first step on.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]):
        super().__init__(optimizer, factor)
        self._settings = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().state_dict().items() if name != "_settings"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the step; Lightning restores the optimizer before."""
        super().load_state_dict(state_dict | {"base_lrs": self.base_lrs})
        groups = zip(self.optimizer.param_groups, self._settings, self.lr_lambdas, strict=True)
        for group, settings, factor in groups:
            group.update(settings)
            group["lr"] = settings["initial_lr"] * factor(self.last_epoch)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


class EMA(nn.Module):
    """Exponential moving average of a network's weights, as a second network.

    Validation, samplers, and reloaded checkpoints use it; only `update` changes it. As a submodule it's
    saved, restored, and moved with the raw weights, and no weights are ever swapped.
    """

    def __init__(self, network: Network, decay: float):
        super().__init__()
        self.decay = decay
        self.network: Network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Average in the weights after step n = 1, 2, ...; the decay rises as (1 + n) / (10 + n)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.network.parameters()), list(network.parameters()), 0)

    def train(self, mode: bool = True) -> "EMA":
        return super().train(False)


def describe(value: Any) -> Any:
    """Return plain data from which `untrusted.build` makes the same object.

    An object keeps each constructor argument as an attribute of its name, or says them all in `init_args`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    if hasattr(value, "init_args"):
        arguments = value.init_args
    else:
        names = list(inspect.signature(type(value)).parameters)
        missing = [name for name in names if not hasattr(value, name)]
        if missing:
            raise SettingsError(
                f"A checkpoint can't describe {type(value).__name__}. Keep its constructor argument "
                f"{missing[0]!r} as an attribute of that name."
            )
        arguments = {name: getattr(value, name) for name in names}
    return {
        "class_path": path_of(type(value)),
        "init_args": {name: describe(argument) for name, argument in arguments.items()},
    }


class DFMModule(LightningModule):
    """A discrete-flow-matching denoiser in training, for Lightning's Trainer.

    Use it to train with your own Trainer or DataLoader; `train.py` does the rest for you. A batch is
    {"tokens": (b, D) or (b, *shape), "condition"?: (b, C)}. `TaskData` adds "position" or "index"; without
    them the module counts where a batch is in the run, so any DataLoader will do.

    Args:
        facts: sizes of the data, from the task.
        source: where the path starts: masked, uniform, marginal (the unigram distribution of the data),
            metric (uniform, then through ever closer codes, by the codebook of the data), your own class by
            import path, or a Source.
        schedule: kappa(t) by name (linear, quadratic, cubic, cosine, cosine_squared, beta) or class
            (tauflow.process.schedules.Polynomial with exponent 1.5).
        network: the network and its sizes.
        loss_on: coordinates that the cross-entropy is taken on; by default the corrupted ones for a masked
            source, all for any other.
        condition_dropout: share of the training items whose condition is dropped, so that the network also
            learns the data without it, as guidance needs.
        optimizer: the optimizer, and the averaging of weights.
        compile_network: torch.compile the parts of the network that are worth it.
        seed: of the training noise.

    Returns:
        A LightningModule. `module.model()` is the `tauflow.Model` to sample from.

    Examples:
        ```python
        from tauflow.tasks.data import TaskData

        task = tauflow.Countdown()
        module = tauflow.DFMModule(task.facts, source="uniform")
        trainer = lightning.Trainer(max_steps=1000)
        trainer.fit(module, TaskData(task))
        tauflow.sample(module.model(), "tr_cie", nfe=16, count=4)
        ```
    """

    step_metrics = ("train/loss",)  # logged at every step, so a monitor may name them

    def __init__(
        self,
        facts: DataFacts,
        source: str | Source = "masked",
        schedule: Schedule | str = "quadratic",
        network: NetworkConfig = TransformerConfig(),  # noqa: B008 - frozen
        loss_on: LossOn | None = None,
        condition_dropout: float = 0.1,
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008 - frozen
        compile_network: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        if not 0 <= condition_dropout < 1:
            raise SettingsError(f"condition_dropout must be in [0, 1), got {condition_dropout}.")
        self.facts = facts
        self.source = source_from(source, facts.num_tokens, facts.unigrams, facts.codebook)
        self.schedule = schedule_from(schedule)
        self.process = self.source.path(self.schedule)
        self.loss_on = loss_on or self.process.loss_on
        self.condition_dropout = condition_dropout
        self.optimizer_config = optimizer
        self.compile_network = compile_network
        self.seed = seed
        if self.loss_on == "corrupted" and not self.process.redraws:
            raise SettingsError(
                f"A {self.process.name} source moves every coordinate a little and redraws none, so there is "
                "no loss on corrupted ones. Use loss_on=all."
            )
        if self.loss_on == "corrupted" and not self.process.absorbing:
            rank_zero_warn(
                f"loss_on=corrupted with a {self.process.name} source learns p(x_1 | x_t, redrawn), not the "
                "p(x_1 | x_t) that the bound and the samplers need. Use loss_on=all unless that is what you "
                "study."
            )
        if isinstance(network, TransformerConfig) and network.places is None:
            network = replace(network, places=facts.positional)
        self.network_config = network
        self.network: Network = network_from(
            network, facts.shape, self.process.num_states, facts.num_tokens, facts.conditions
        )
        self.ema = EMA(self.network, optimizer.ema_decay)
        self.validation = Validation(self.process, facts.length)

    def model(self) -> Model:
        """Return what is sampled: the averaged weights with their process and shape."""
        facts = self.facts
        return Model(self.ema.network, self.process, facts.shape, channels=facts.channels)

    def load_weights(self, model: Model) -> None:
        """Start from the weights of a trained model, for the raw weights and the averaged ones.

        Use it to fine-tune on other data: `module.load_weights(tauflow.load(path).model)`. The sizes of the
        data and the network must be the model's.
        """
        denoiser = model.denoiser
        if not isinstance(denoiser, NetworkDenoiser) or not isinstance(denoiser.network, Network):
            raise SettingsError(
                "The model to start from must have a tauflow.Network. Pass one of tauflow.load."
            )
        network = denoiser.network
        sizes = {
            "shape": (model.shape, self.facts.shape),
            "tokens": (model.process.num_tokens, self.facts.num_tokens),
            "conditions": (network.conditions, self.facts.conditions),
            "states of the source": (model.process.num_states, self.process.num_states),
        }
        wrong = [
            f"{name} {there} there, {here} here" for name, (there, here) in sizes.items() if there != here
        ]
        if wrong:
            raise SettingsError(
                f"The data must have the sizes of the model to start from, got others ({'; '.join(wrong)}). "
                "Use such data, or train from scratch."
            )
        weights = network.state_dict()
        try:
            check_weights(self.network.state_dict(), weights)
        except ValueError as error:
            raise SettingsError(f"The network must be that of the model to start from: {error}.") from None
        self.network.load_state_dict(weights)
        self.ema.network.load_state_dict(weights)

    # Checkpoints

    @property
    def init_args(self) -> dict[str, Any]:
        """Return the constructor arguments from which a checkpoint rebuilds the module."""
        return {
            "facts": self.facts,
            "source": self.source,
            "schedule": self.schedule,
            "network": self.network_config,
            "loss_on": self.loss_on,
            "condition_dropout": self.condition_dropout,
            "optimizer": self.optimizer_config,
            "compile_network": self.compile_network,
            "seed": self.seed,
        }

    @property
    def task(self) -> Task | None:
        """Return the task of the run; None if it trains from a plain DataLoader."""
        return getattr(getattr(self.trainer, "datamodule", None), "task", None)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[KEY] = {
            "format": FORMAT,
            "model": describe(self),
            "task": None if self.task is None else describe(self.task),
            "accumulate_grad_batches": self.trainer.accumulate_grad_batches,
        }

    def setup(self, stage: str) -> None:
        if self.task is not None:
            describe(self.task)  # raises before any work if a checkpoint couldn't describe it
            if self.task.facts != self.facts:
                raise SettingsError(
                    f"The model is made for {self.facts}, the task has {self.task.facts}. Pass task.facts to "
                    "DFMModule."
                )
        timeless = getattr(self.network_config, "time", None) is False
        if stage == "fit" and timeless and not self.process.absorbing:
            rank_zero_warn(
                f"The network doesn't get the time, but p(x_1 | x_t) of a {self.process.name} source depends "
                "on it. Train with --model.network.time true unless that is what you study."
            )
        if stage == "fit" and self.compile_network:
            self.network.compile_parts()

    # Training

    def training_noise(self, step: int, batch_size: int) -> Noise:
        """Draw the noise of the global batch of a step, the same on every rank: t (B,), x_0 (B, D), ..."""
        generator = generator_for("training noise", self.seed, step)
        return self.process.noise(stratified_times(batch_size, generator), self.facts.length, generator)

    def dropped(self, step: int, batch_size: int) -> Tensor:
        """Draw which items (B,) of the global batch of a step lose their condition."""
        generator = generator_for("condition dropout", self.seed, step)
        return torch.rand(batch_size, generator=generator) < self.condition_dropout

    def _position(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the positions (b,) of a batch; without any, batches are taken to follow each other."""
        if "position" in batch:
            return batch["position"].cpu()
        trainer = self.trainer
        count = len(batch["tokens"])
        parts = trainer.accumulate_grad_batches
        number = trainer.global_step * parts + batch_idx % parts
        return (number * count + torch.arange(count)) * trainer.world_size + trainer.global_rank

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        x_1 = batch_tokens(batch, self.facts)
        condition = batch_condition(batch, self.facts)
        if batch_idx == 0 or x_1.device.type == "cpu":  # elsewhere the check would wait for the device
            check_values(batch, self.facts)
        shares = self.trainer.world_size * self.trainer.accumulate_grad_batches
        batch_size = len(x_1) * shares
        position = self._position(batch, batch_idx)
        rows = position % batch_size
        step = int(position[0]) // batch_size
        noise = self.training_noise(step, batch_size)
        if condition is not None:
            lost = self.dropped(step, batch_size)[rows].to(condition.device)
            condition = condition.masked_fill(lost[:, None], DROPPED)
        loss = self.loss(x_1, noise, rows, condition) * shares
        self._parts.append((loss.detach(), position, noise.t[rows]))
        return loss

    def loss(self, x_1: Tensor, noise: Noise, rows: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return this part's share of the mean cross-entropy over the counted coordinates of a global batch.

        `noise` is of the global batch, `rows` (b,) says which of its items x_1 (b, D) are. The sum over any
        split of the batch is the loss of all of it: the number it is divided by is the global one.
        """
        count = len(noise.t) * x_1.shape[1]
        if self.loss_on == "corrupted":
            assert isinstance(noise, Redrawn)
            count = int(noise.corrupted.sum())
        mine = noise.rows(rows).to(x_1.device)
        losses = self.process.losses(self.network, x_1, mine, condition, self.loss_on)  # (R,)
        return losses.sum() / max(1, count)

    def on_train_start(self) -> None:
        self._parts: list[Part] = []  # of what is accumulated

    @property
    def is_inside_step(self) -> bool:
        """Return whether gradients of a part of the next optimizer step are accumulated."""
        return bool(self._parts)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        loss = torch.stack([part[0] for part in self._parts]).mean()
        loss = self.trainer.strategy.reduce(loss, reduce_op="mean")  # not finite on one rank is so on all
        self._check_finite("loss", loss)
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is None:  # a gradient scaler skips such steps itself
            self._check_finite("gradient norm", norm)
        self._parts.clear()
        self.log("train/loss", loss, prog_bar=True, logger=False)
        step = self.trainer.global_step + 1  # from 1: step n and the validation after n steps stand together
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it in a connector
        if every and (step == 1 or step % every == 0):
            metrics = {"train/loss": loss, "train/gradient_norm": norm}
            metrics["train/learning_rate"] = optimizer.param_groups[-1]["lr"]
            if self.optimizer_config.name == "muon":
                metrics["train/muon_learning_rate"] = optimizer.param_groups[0]["lr"]
            self.record(step, metrics)

    def record(self, step: int, metrics: dict[str, Any]) -> None:
        """Write metrics to the loggers now: a checkpoint is never ahead of its log."""
        log_scalars(self.trainer.loggers, {name: float(value) for name, value in metrics.items()}, step)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.ema.update(self.network, self.trainer.global_step + 1)

    def _check_finite(self, name: str, value: Tensor) -> None:
        """Raise, before the weights are touched, if a loss or gradient isn't finite."""
        if torch.isfinite(value):
            return
        own, position, t = next(
            (part for part in self._parts if not torch.isfinite(part[0])), self._parts[-1]
        )
        rates = "--model.optimizer.learning_rate"
        if self.optimizer_config.name == "muon":
            rates += " and --model.optimizer.muon_learning_rate"
        raise NonFiniteLoss(
            f"The {name} is {value.item()} at step {self.trainer.global_step + 1} (loss {own.item()} on rank "
            f"{self.trainer.global_rank} for items {position.min()} to {position.max()}, t from "
            f"{t.min():.4f} to {t.max():.4f}). Training stopped before the weights were changed. Resume from "
            f"the last checkpoint with a lower {rates}, a smaller --trainer.gradient_clip_val, or "
            "--trainer.precision 32-true."
        )

    def configure_optimizers(self) -> Any:
        config = self.optimizer_config
        total = self.trainer.estimated_stepping_batches
        optimizer = config.build(self.network)
        scheduler = LearningRates(optimizer, lambda step: config.factor(step, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # Validation: fixed items, fixed noise, averaged weights

    def on_validation_epoch_start(self) -> None:
        self.bound = Bound().to(self.device)
        self.loss_by_quarter = [MeanMetric().to(self.device) for _ in range(4)]
        self._validated = 0  # items of this rank so far

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        x_1 = batch_tokens(batch, self.facts)
        mine = torch.arange(self._validated, self._validated + len(x_1))
        index = mine * self.trainer.world_size + self.trainer.global_rank
        if "index" in batch:
            index = batch["index"].cpu()
        self._validated += len(x_1)
        seen = self.validation(self.ema.network, x_1, index, batch_condition(batch, self.facts))
        self.bound.update(seen.bound, seen.kappa)
        for number, metric in enumerate(self.loss_by_quarter):
            metric.update(seen.losses[seen.quarters == number])

    def on_validation_epoch_end(self) -> None:
        mean, error = self.bound.compute()
        metrics = {"val/bound": mean, "val/bound_standard_error": error}
        if self.task is not None:
            metrics |= {f"val/{name}": mean * factor for name, factor in self.task.units.items()}
        for number, metric in enumerate(self.loss_by_quarter, start=1):
            metrics[f"val/loss_kappa_quarter_{number}"] = metric.compute()
        metrics = {name: value.float() for name, value in metrics.items()}
        for name, value in metrics.items():
            self.log(name, value, prog_bar=name == "val/bound", logger=False)
        if not self.trainer.sanity_checking:
            self.record(self.trainer.global_step, metrics)
