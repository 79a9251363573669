"""TruncatedDenoiser: top-k and top-p, rows of their likeliest tokens alone.

Where the source is noise over tokens, the row that is cut is the leave-one-out row (leave_one_out.py): what
the other coordinates say. The own token, which may be noise, would else be the likeliest and freeze.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import torch
from torch import Tensor

from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation, Wrapped, single, take
from tauflow.denoise.leave_one_out import TemperedContextDenoiser
from tauflow.errors import SamplingError
from tauflow.process import Mixture, Process


class TruncatedDenoiser(Wrapper):
    """Gives all but the likeliest tokens of a row the probability 0.

    `top_k` keeps so many; then `top_p` keeps the fewest that have this probability together (nucleus
    sampling, Holtzman et al. 2020). Tokens as likely as the last one of top_k are kept too.
    """

    def __init__(
        self, denoiser: Denoiser, process: Process, top_k: int | None = None, top_p: float | None = None
    ):
        super().__init__(denoiser)
        if top_k is not None and top_k < 1:
            raise SamplingError(f"top_k must be at least 1, got {top_k!r}; 50 is usual")
        if top_p is not None and not 0 < top_p <= 1:
            raise SamplingError(f"top_p must be above 0 and at most 1, got {top_p!r}; 0.9 is usual")
        self.top_k = top_k
        self.top_p = top_p
        self._own: TemperedContextDenoiser | None = None
        if isinstance(process, Mixture) and not process.absorbing:
            self._own = TemperedContextDenoiser(denoiser, 1.0, process)

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        evaluation = self.denoiser.evaluate(x, t, condition)
        log_odds = None if self._own is None else self._own.log_odds(x, t)
        return TruncatedEvaluation(evaluation, self.top_k, self.top_p, x, log_odds)


class TruncatedEvaluation(Wrapped):
    """Logits that are -inf for all but the likeliest tokens, apart from what own tokens say, ln o (B, D)."""

    def __init__(
        self,
        evaluation: Evaluation,
        top_k: int | None,
        top_p: float | None,
        x: Tensor,
        log_odds: Tensor | None,
    ):
        super().__init__(evaluation)
        self._top_k = top_k
        self._top_p = top_p
        self._x = x.flatten()
        self._log_odds = None if log_odds is None else log_odds.flatten()

    def logits(self, index: Tensor | slice) -> Tensor:
        logits = single(self._evaluations[0].logits(index))
        context = logits
        if self._log_odds is not None:
            said = take(self._log_odds, index).to(logits)[:, None]
            context = logits.scatter_add(1, take(self._x, index)[:, None], -said)
        return logits.masked_fill(cut(context, self._top_k, self._top_p), -torch.inf)


def cut(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Return true (R, V) on all but the likeliest tokens of rows."""
    gone = torch.zeros_like(logits, dtype=torch.bool)
    if top_k is not None and top_k < logits.shape[-1]:
        gone = logits < logits.topk(top_k, dim=-1).values[..., -1:]
    if top_p is None or top_p == 1:
        return gone
    ordered, tokens = logits.masked_fill(gone, -torch.inf).sort(dim=-1, descending=True, stable=True)
    rows = ordered.softmax(-1)
    likelier = rows.cumsum(-1) - rows  # 0 at the first, which is always kept
    return gone | torch.zeros_like(gone).scatter(-1, tokens, likelier >= top_p)
