"""What is minimised, the cross-entropy on x_1, and the mean of what is reported.

Shapes: R rows, V data tokens.
"""

import torch.nn.functional as F
from torch import Tensor

from tauflow.denoise.denoiser import single


def cross_entropy(logits: Tensor, x_1: Tensor) -> Tensor:
    """Return -ln p(x_1 | x_t) of each row (R,) with logits (R, V), in float32 at least."""
    return F.cross_entropy(single(logits), x_1, reduction="none")


def stratified_mean(values: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and its standard error for values (N,) taken at spread points `at` (N,).

    Neighbouring points share a stratum in all but name, so half the mean squared difference of neighbours is
    the variance within strata: the spread between strata, which stratification removed from the error, is not
    counted.
    """
    values = values[at.argsort()].double()
    steps = values.diff().square()
    count = len(values)
    error = (steps.sum() / (2 * count * (count - 1))).sqrt() if count > 1 else values.new_tensor(float("nan"))
    return values.mean(), error
