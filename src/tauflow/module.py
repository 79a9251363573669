"""DFMModule: the training loss, the validation bound and the optimizer of a discrete-flow-matching denoiser.

Shapes: B items of a global batch (over all devices and accumulated batches), b items of this one, D coordinates, R rows, V data tokens.
"""

import math
from typing import Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from tauflow.checkpoints import FORMAT, KEY, describe
from tauflow.denoisers import Denoiser, SplitDenoiser
from tauflow.ema import EMA
from tauflow.errors import NonFiniteLoss, SettingsError
from tauflow.losses import BOUND_CUTOFF, DEFAULT_LOSS_ON, LossOn, bound_integrand, cross_entropy, stratified_mean
from tauflow.networks import Transformer, TransformerConfig
from tauflow.paths import MixturePath, Noise, spread_kappas, stratified_times
from tauflow.schedules import Schedule, schedule_from
from tauflow.seeds import generator_for
from tauflow.sources import source_from


class DFMModule(LightningModule):
    """A discrete-flow-matching denoiser in training.

    Args:
        num_tokens: data tokens V; linked from the task.
        seq_len: coordinates D; linked from the task.
        source: where the path starts: all masks, or uniform noise.
        schedule: kappa(t) by name (linear, quadratic, cubic, cosine, cosine_squared) or class (tauflow.schedules.Polynomial, exponent 1.5).
        network: sizes of the Transformer.
        loss_on: coordinates that the cross-entropy is taken on; by default the corrupted ones for a masked source, all for a uniform one.
        learning_rate: peak of the schedule.
        warmup_steps: optimizer steps of linear warm-up; a cosine decay to a tenth of the peak follows until the last step.
        weight_decay: AdamW's, on matrices only.
        betas: AdamW's.
        ema_decay: of the averaged weights that validation, sampling and reloading use.
        compile_network: torch.compile the blocks of the network.
        seed: of the training noise; which is a pure function of the seed and the step, the same however the batch is split.
    """

    def __init__(
        self,
        num_tokens: int,
        seq_len: int,
        source: Literal["masked", "uniform"] = "masked",
        schedule: Schedule | str = "quadratic",
        network: TransformerConfig = TransformerConfig(),  # noqa: B008 - frozen
        loss_on: LossOn | None = None,
        learning_rate: float = 1e-3,
        warmup_steps: int = 200,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
        ema_decay: float = 0.999,
        compile_network: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        if learning_rate <= 0 or warmup_steps < 0:
            raise ValueError(f"need learning_rate > 0 and warmup_steps >= 0, got {learning_rate} and {warmup_steps}")
        self.num_tokens = num_tokens
        self.seq_len = seq_len
        self.source = source
        self.schedule = schedule
        self.loss_on = loss_on or DEFAULT_LOSS_ON[source]
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.weight_decay = weight_decay
        self.betas = betas
        self.ema_decay = ema_decay
        self.compile_network = compile_network
        self.seed = seed

        if source == "uniform" and self.loss_on == "corrupted":
            rank_zero_warn(
                "loss_on=corrupted with a uniform source learns p(x_1 | x_t, redrawn), not the p(x_1 | x_t) that the bound and the "
                "samplers take it for; use loss_on=all unless that is what you study"
            )
        self.path = MixturePath(source_from(source, num_tokens), schedule_from(schedule))
        self.network = Transformer(network, self.path.source.num_states, num_tokens)
        self.ema = EMA(self.network, ema_decay)

    def denoiser(self) -> Denoiser:
        """The denoiser to sample from: the averaged weights."""
        return SplitDenoiser(self.ema.network, self.num_tokens)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        accumulate = self.trainer.accumulate_grad_batches
        task = describe(self.trainer.datamodule)
        checkpoint[KEY] = {"format": FORMAT, "model": describe(self), "task": task, "accumulate_grad_batches": accumulate}

    def setup(self, stage: str) -> None:
        task = self.trainer.datamodule
        if task is not None and (task.num_tokens, task.seq_len) != (self.num_tokens, self.seq_len):
            raise SettingsError(
                f"the model is made for {self.seq_len} coordinates of {self.num_tokens} tokens, the task has {task.seq_len} of "
                f"{task.num_tokens}; give DFMModule the task's num_tokens and seq_len"
            )
        if stage == "fit" and self.compile_network:
            self.network.compile_blocks()

    # Training

    def training_noise(self, step: int, batch_size: int) -> Noise:
        """Noise of the whole global batch of an optimizer step, the same on every rank: t (B,), corrupted (B, D), x_0 (B, D)."""
        generator = generator_for("training noise", self.seed, step)
        return self.path.noise(stratified_times(batch_size, generator), self.seq_len, generator)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        shares = self.trainer.world_size * self.trainer.accumulate_grad_batches
        batch_size = len(batch["tokens"]) * shares
        position = batch["position"].cpu()
        rows = position % batch_size
        noise = self.training_noise(position[0].item() // batch_size, batch_size)
        loss = self.loss(batch["tokens"], noise, rows) * shares
        self._parts.append((loss.detach(), position, noise.t[rows]))
        return loss

    def loss(self, x_1: Tensor, noise: Noise, rows: Tensor) -> Tensor:
        """This part's share of the mean cross-entropy over the counted coordinates of a global batch.

        `noise` is of the global batch, `rows` (b,) says which of its items x_1 (b, D) are. The sum over any split of the batch is
        the loss of the whole: the number it is divided by is the global one.
        """
        count = noise.corrupted.sum() if self.loss_on == "corrupted" else noise.corrupted.numel()
        mine = noise.rows(rows).to(x_1.device)
        hidden = self.network.hidden(mine.corrupt(x_1), mine.t)  # (b, D, W)
        if self.loss_on == "corrupted":
            counted = mine.corrupted.flatten().nonzero().squeeze(1)  # (R,)
            hidden, x_1 = hidden.flatten(0, 1)[counted], x_1.flatten()[counted]
        losses = cross_entropy(self.network.head(hidden.flatten(0, -2)), x_1.flatten())  # (R,)
        return losses.sum() / max(1, int(count))

    def on_train_start(self) -> None:
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []  # loss, positions and times of what is accumulated

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        loss = torch.stack([part[0] for part in self._parts]).mean()
        loss = self.trainer.strategy.reduce(loss, reduce_op="mean")  # of the global batch; not finite on one rank is so on all
        self._guard("loss", loss)
        if getattr(self.trainer.precision_plugin, "scaler", None) is None:  # a gradient scaler skips such steps by itself
            self._guard("gradient norm", norm)
        self._parts.clear()
        self.log("train/loss", loss, prog_bar=True, logger=False)
        step = self.trainer.global_step + 1  # counted from 1, so that step n and the validation after n steps stand together
        every = self.trainer.log_every_n_steps
        if every and (step == 1 or step % every == 0):
            rate = optimizer.param_groups[0]["lr"]
            self.record(step, {"train/loss": loss, "train/gradient_norm": norm, "train/learning_rate": rate})

    def record(self, step: int, metrics: dict[str, float | Tensor]) -> None:
        """Writes metrics to the loggers now, not at the end of the batch: a checkpoint is never ahead of its log."""
        for logger in self.trainer.loggers:
            logger.log_metrics({name: float(value) for name, value in metrics.items()}, step=step)

    def optimizer_step(self, *args, **kwargs) -> None:
        super().optimizer_step(*args, **kwargs)
        self.ema.update(self.network, self.trainer.global_step + 1)

    def _guard(self, name: str, value: Tensor) -> None:
        """Stops before the weights are touched if a loss or gradient is not finite, and says where."""
        if torch.isfinite(value):
            return
        own, position, t = next((part for part in self._parts if not torch.isfinite(part[0])), self._parts[-1])
        raise NonFiniteLoss(
            f"the {name} is {value.item()} at step {self.trainer.global_step + 1} (loss {own.item()} on rank {self.trainer.global_rank} "
            f"for items {position.min()} to {position.max()}, t from {t.min():.4f} to {t.max():.4f}); training stopped before the weights "
            "were changed. Resume from the last checkpoint with a lower --model.learning_rate, a smaller --trainer.gradient_clip_val, or "
            "--trainer.precision 32-true"
        )

    def configure_optimizers(self):
        parameters = list(self.network.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas)
        total = self.trainer.estimated_stepping_batches

        def factor(step: int) -> float:
            if step < self.warmup_steps:
                return (step + 1) / self.warmup_steps
            progress = (step - self.warmup_steps) / max(1, total - self.warmup_steps)
            return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # Validation: fixed items, fixed noise, averaged weights

    def validation_noise(self, index: Tensor) -> tuple[Noise, Tensor]:
        """Noise (b rows) of validation items, a pure function of their index; and their kappa (b,), spread evenly."""
        kappa = spread_kappas(index) * (1 - BOUND_CUTOFF[self.source])
        t = self.path.schedule.t_from_kappa(kappa).float()
        return self._noise_by_index(t, index, "validation noise"), kappa

    def _noise_by_index(self, t: Tensor, index: Tensor, name: str) -> Noise:
        parts = [self.path.noise(t[i : i + 1], self.seq_len, generator_for(name, n)) for i, n in enumerate(index.tolist())]
        return Noise(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def on_validation_epoch_start(self) -> None:
        self.bound = Bound().to(self.device)
        self.loss_by_quarter = nn.ModuleList(MeanMetric() for _ in range(4)).to(self.device)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        x_1, cutoff = batch["tokens"], BOUND_CUTOFF[self.source]
        noise, kappa = self.validation_noise(batch["index"].cpu())
        noise = noise.to(x_1.device)
        logits, x_t, target, rows = self._validation_rows(x_1, noise)
        terms = bound_integrand(logits, x_t, target).cpu().double()
        bound = torch.zeros(x_1.numel(), dtype=torch.float64).index_add(0, rows.cpu(), terms).view(x_1.shape).mean(1)
        bound = (1 - cutoff) * bound / (1 - kappa)  # d tau = d kappa / (1 - kappa), and kappa is uniform on [0, 1 - cutoff)
        if cutoff:
            bound = bound + self._cost_of_the_draw(x_1, batch["index"].cpu())
        self.bound.update(bound, kappa)

        losses, quarter = cross_entropy(logits, target), (kappa * 4).long().to(x_1.device)
        quarter = quarter.repeat_interleave(self.seq_len)[rows]
        on = noise.corrupted.flatten()[rows]
        for number, metric in enumerate(self.loss_by_quarter):
            metric.update(losses[on & (quarter == number)])

    def _validation_rows(self, x_1: Tensor, noise: Noise) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits (R, V), x_t, x_1 and places (R,) of the coordinates that count: a revealed one of a masked source has no rate."""
        x_t = noise.corrupt(x_1)
        counted = noise.corrupted if self.source == "masked" else torch.ones_like(noise.corrupted)
        rows = counted.flatten().nonzero().squeeze(1)
        network = self.ema.network
        logits = network.head(network.hidden(x_t, noise.t).flatten(0, 1)[rows])
        return logits, x_t.flatten()[rows], x_1.flatten()[rows], rows

    def _cost_of_the_draw(self, x_1: Tensor, index: Tensor) -> Tensor:
        """-ln p(x_1 | x_t) (b,) per coordinate at the cutoff, where the path that the bound is of ends with a draw from the posterior."""
        t = torch.full((len(index),), self.path.schedule.t_from_kappa(1 - BOUND_CUTOFF[self.source]))
        noise = self._noise_by_index(t, index, "validation draw").to(x_1.device)
        logits, _, target, _ = self._validation_rows(x_1, noise)
        return cross_entropy(logits, target).view(x_1.shape).mean(1).cpu().double()

    def on_validation_epoch_end(self) -> None:
        mean, error = self.bound.compute()
        metrics = {"val/bound": mean, "val/bound_standard_error": error}
        metrics |= {f"val/loss_kappa_quarter_{n}": metric.compute() for n, metric in enumerate(self.loss_by_quarter, start=1)}
        metrics = {name: value.float() for name, value in metrics.items()}
        for name, value in metrics.items():
            self.log(name, value, prog_bar=name == "val/bound", logger=False)
        if not self.trainer.sanity_checking:
            self.record(self.trainer.global_step, metrics)


class Bound(Metric):
    """The generalized-KL bound in nats per token, and its standard error, from the bounds of sequences at spread kappas."""

    higher_is_better = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_state("values", [], dist_reduce_fx="cat")
        self.add_state("kappas", [], dist_reduce_fx="cat")

    def update(self, values: Tensor, kappas: Tensor) -> None:
        self.values.append(values.float().to(self.device))
        self.kappas.append(kappas.float().to(self.device))

    def compute(self) -> tuple[Tensor, Tensor]:
        values, kappas = (torch.cat(part) if isinstance(part, list) else part for part in (self.values, self.kappas))
        return stratified_mean(values.cpu(), kappas.cpu())
