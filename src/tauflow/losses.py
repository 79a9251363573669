"""What is minimised (cross-entropy on x_1) and what is reported (the generalized-KL bound on -ln p(x_1)).

Shapes: R rows, each one coordinate of one sequence; V data tokens. `logits` (R, V) are the network's rows.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)

LossOn = Literal["corrupted", "all"]

DEFAULT_LOSS_ON: dict[str, LossOn] = {"masked": "corrupted", "uniform": "all"}
"""Where the cross-entropy is taken. Masked: on the masked coordinates, the others are known. Uniform: on all coordinates, because
the network cannot see which were redrawn; on the redrawn ones alone it learns p(x_1 | x_t, redrawn) instead of p(x_1 | x_t)."""

BOUND_CUTOFF = {"masked": 0.0, "uniform": 1e-3}
"""1 - kappa where the bound stops following the path and pays for a draw of x_1 from the posterior. A uniform source needs one: unless
1 - p(x_t) vanishes as fast as 1 - kappa, which no finite logits do, the integral up to kappa = 1 diverges."""


def cross_entropy(logits: Tensor, x_1: Tensor) -> Tensor:
    """-ln p(x_1 | x_t) of each row, in float32 at least."""
    return F.cross_entropy(logits.float() if logits.dtype in HALF else logits, x_1, reduction="none")


def bound_integrand(logits: Tensor, x_t: Tensor, x_1: Tensor) -> Tensor:
    """Generalized KL between the conditional rates and the model's, of each row, per unit of tau.

    With conditional rate 1{s = x_1} and model rate p(s) to every s != x_t (both times d tau / dt), the divergence
    sum_s [ u ln(u / v) - u + v ] is 1 - p(x_t) - 1{x_1 != x_t} (1 + ln p(x_1)). Integrated over tau and averaged over the path it
    bounds -ln p(x_1) from above; for a masked source, where p(x_t) = 0 on the mask, it is the cross-entropy of the masked rows.
    """
    logits = logits.float() if logits.dtype in HALF else logits
    total = logits.logsumexp(-1)  # (R,)
    is_token = x_t < logits.shape[-1]  # false on the mask
    p_stay = (logits.gather(1, (x_t * is_token)[:, None]).squeeze(1) - total).exp() * is_token
    log_p_1 = logits.gather(1, x_1[:, None]).squeeze(1) - total
    return 1 - p_stay - (x_t != x_1) * (1 + log_p_1)


def stratified_mean(values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and its standard error for values (N,) taken at spread points `at` (N,).

    Neighbouring points share a stratum in all but name, so half the mean squared difference of neighbours is the variance within
    strata: the spread between strata, which stratification removed from the error, is not counted.
    """
    values = values[at.argsort()].double()
    steps = values.diff().square()
    count = len(values)
    error = (steps.sum() / (2 * count * (count - 1))).sqrt() if count > 1 else values.new_tensor(float("nan"))
    return values.mean(), error
