"""Leave-one-out rows: what the other coordinates say of one, for sources with a law over data tokens.

A posterior row of noise holds what the coordinate's own token says of it too. With pi the law of the source,

    p(s | x_t) ~ l(s) c(s),    c(s) = kappa 1{s = x} + (1 - kappa) pi(x),

and l(s) = p(x_1^d = s | x_t without coordinate d) is the row without it: p with its own entry divided by
o = 1 + kappa / ((1 - kappa) pi(x)), normalised (Gourevitch et al. 2026 for uniform noise).

A temperature belongs on l. Dividing the logits of p by it sharpens c as well, which says "keep what you
have": a token of noise then stays, the surer the lower the temperature. With ln p = ln l + ln c up to a
constant, the row of a model whose l is tempered has the logits

    ln p(s) / T + (1 - 1 / T) ln o 1{s = x},

which at T = 1 are those of the network. Masks say nothing of their token, so their rows are l already.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, TemperedDenoiser
from tauflow.denoise.evaluation import Evaluation, TemperedEvaluation, take
from tauflow.devices import precise
from tauflow.process import Mixture, Process

SMALLEST = 1e-12  # 1 - kappa


def leave_one_out(rows: Tensor, tokens: Tensor, odds: Tensor | float) -> Tensor:
    """Return rows (R, V) without what their own tokens (R,) say, whose odds o are (R, 1); overwrites rows."""
    own = tokens[:, None]
    rows.scatter_(1, own, rows.gather(1, own) / odds)
    return rows.div_(rows.sum(-1, keepdim=True))


def tempered(denoiser: Denoiser, temperature: float, process: Process) -> Denoiser:
    """Return a denoiser with a temperature, on leave-one-out rows where the source has a law over tokens."""
    if isinstance(process, Mixture) and not process.absorbing:
        return TemperedContextDenoiser(denoiser, temperature, process)
    return TemperedDenoiser(denoiser, temperature)


class TemperedContextDenoiser(TemperedDenoiser):
    """Divides the logits of leave-one-out rows by a temperature: what is surer is what the context says."""

    def __init__(self, denoiser: Denoiser, temperature: float, process: Mixture):
        super().__init__(denoiser, temperature)
        self.process = process

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        evaluation = self.denoiser.evaluate(x, t, condition)
        return TemperedContextEvaluation(evaluation, self.temperature, x, self.log_odds(x, t))

    def log_odds(self, x: Tensor, t: Tensor) -> Tensor:
        """Return ln o (B, D) of tokens x (B, D) at times t (B,)."""
        schedule, t = self.process.schedule, t.to(precise(t.device))[:, None]
        odds = schedule.kappa(t) / schedule.survival(t).clamp(min=SMALLEST)
        return torch.log1p(odds * self.process.source.inverse_law(x)).expand_as(x)


class TemperedContextEvaluation(TemperedEvaluation):
    """Logits divided by a temperature, but for what the own tokens x (B, D) say, which is ln o (B, D)."""

    def __init__(self, evaluation: Evaluation, temperature: float, x: Tensor, log_odds: Tensor):
        super().__init__(evaluation, temperature)
        self._x = x.flatten()
        self._share = (1 - 1 / temperature) * log_odds.flatten()

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = super().logits(index)
        share = take(self._share, index).to(logits)[:, None]
        return logits.scatter_add(1, take(self._x, index)[:, None], share)
