"""nll: what a few-step sampler's own distribution says about data, by teacher forcing.

A sampler of a masked process chooses in every step a set of coordinates and draws their tokens from rows that
were made before. Data goes through the same steps: the sets are chosen as always, the tokens are those of the
data, and each costs -ln of its share of its row. The sum is -ln p(x | sets), exactly, where the sets do not
look at tokens; where they do (clamped intensities, budgets of entropy), or where a method throws tokens away
(theta_rk2), it is -ln of p(x, sets) over the probability with which these sets were chosen. Its mean over the
sets is at least -ln p(x) in either case (Jensen), and exp(-nll) has the mean p(x).

A row that was extrapolated and clamped may give the true token no weight. A coin that may still say `stay`
then does, at the cost of -ln of the probability of that; else the nll is infinite: this sampler cannot make
this item on this path.

Shapes: B items, D coordinates, V data tokens, R rows.
"""

from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.errors import SamplingError
from tauflow.numerics import precise
from tauflow.samplers.random import Drawing
from tauflow.samplers.registry import sampler_from
from tauflow.samplers.run import Request, check_condition, make_generator, model_from, positive_int, run
from tauflow.samplers.sampler import Sampler, check

ROUNDING = 1e-6  # probability of staying below which it is 0 but for rounding


class Forced(Drawing):
    """Tokens of data (B, D) instead of drawn ones; `nats` (B, D) is what they cost."""

    def __init__(self, data: Tensor):
        self.data = data
        self.nats = torch.zeros(data.shape, dtype=precise(data.device), device=data.device)

    def tokens(self, weights: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        tokens = self.data.flatten()[index]
        weights = weights.to(self.nats.dtype)
        share = weights.gather(1, tokens[:, None]).squeeze(1) / weights.sum(-1)
        self.nats.view(-1)[index] -= share.log()
        return tokens

    def moves(self, moves: Tensor, probability: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        stuck = weights.gather(1, self.data.flatten()[index][:, None]).squeeze(1) == 0
        stay = 1 - probability
        cost = torch.where(stay > ROUNDING, stay, 0.0).log().to(self.nats.dtype)  # -inf where it must move
        self.nats.view(-1)[index] -= torch.where(stuck, cost, 0.0)
        return moves & ~stuck


def no_likelihood(sampler: Sampler, model: Model) -> str:
    """Return why a sampler has no likelihood on a model, or nothing if it has one."""
    if not model.process.absorbing:
        return f"the likelihood needs a masked source, this model has a {model.process.name} one"
    if sampler.no_likelihood:
        return sampler.no_likelihood
    if getattr(sampler, "dense", False):
        return (
            "the dense algorithm doesn't say how probable its tokens were. Remove dense: the distribution is "
            "the same."
        )
    if getattr(sampler, "finish", "draw") == "none":
        return "finish=none leaves masks, which data has not; use finish=draw or reuse"
    return ""


def nll(
    model: Model,
    sampler: Sampler | str,
    nfe: int,
    data: Tensor,
    *,
    condition: Tensor | None = None,
    known: Tensor | None = None,
    seed: int | torch.Generator = 0,
    batch_size: int | None = None,
) -> Tensor:
    """Return the negative log-likelihood of data under a few-step sampler, in nats per item.

    Use it to compare samplers and budgets without a sample metric. It's exact for the sets of coordinates
    that the sampler chose with this seed. Averaged over seeds, it bounds -ln p(x) from above.

    Args:
        model: the model to sample, with a masked source.
        sampler: a spec such as "spaced(power=3)", a Sampler, or "auto".
        nfe: budget of evaluations.
        data: tokens of items (B, D), or in the shape of a sample (B, ...).
        condition: of the items, integers (B, C), or (C,) for all of them.
        known: true (B, D), (D,), or in the shape of a sample, where a token is given and costs nothing.
            Padding (`Model.with_attention_mask`) is always given.
        seed: of the sets, or a torch.Generator.
        batch_size: how many items the denoiser gets together. None is all of them.

    Returns:
        Nats per item, float64 (B,).

    Examples:
        >>> import math, tauflow, torch
        >>> process = tauflow.Mixture(tauflow.Masked(5), "linear")
        >>> model = tauflow.Model(lambda x, t: torch.zeros(*x.shape, 5), process, (8,))
        >>> nats = tauflow.nll(model, "tr_cie", 4, torch.zeros(2, 8).long())
        >>> torch.allclose(nats, torch.full((2,), 8 * math.log(5)).double())  # all tokens are equally likely
        True
    """
    model = model_from(model)
    sampler = sampler_from(sampler, model)
    if reason := no_likelihood(sampler, model):
        raise SamplingError(reason)
    device = model.denoiser.device
    tokens = check_items(data, model).to(device)
    known_at = check_known(known, tokens)
    read = model.denoiser.attention
    if read is not None and read.shape == tokens.shape:  # what stands in the padding is given too
        known_at = ~read.to(device) if known_at is None else known_at | ~read.to(device)
    generator = make_generator(seed)
    x_0 = model.process.start(tuple(tokens.shape), generator).to(device)
    forced = Forced(tokens)
    request = Request(
        model,
        positive_int(nfe, "nfe"),
        x_0 if known_at is None else torch.where(known_at, tokens, x_0),
        generator,
        known=known_at,
        condition=check_condition(condition, len(tokens), model),
        batch_size=None if batch_size is None else positive_int(batch_size, "batch_size"),
        drawing=forced,
    )
    if not torch.equal(run(sampler, request).tokens, tokens):
        raise SamplingError(
            f"{sampler} draws tokens itself, so nothing says how probable data is; let it draw them with "
            "problem.draw(weights, index, generator)"
        )
    return forced.nats.sum(1).double().cpu()


def check_items(data: Any, model: Model) -> Tensor:
    """Return items of data (B, D) of a model, checked."""
    check(isinstance(data, Tensor), f"data must be a tensor of tokens, got {type(data).__name__}")
    shapes = f"(B, {model.length})" + (
        f" or (B, {', '.join(map(str, model.shape))})" * (len(model.shape) > 1)
    )
    fits = data.ndim > 1 and len(data) > 0 and tuple(data.shape[1:]) in ((model.length,), model.shape)
    check(fits, f"data must have the shape {shapes}, got {tuple(data.shape)}")
    whole_numbers = not (data.is_floating_point() or data.dtype == torch.bool)
    check(whole_numbers, f"data must hold integer tokens, got {data.dtype}")
    last = model.process.num_tokens - 1
    inside = int(data.min()) >= 0 and int(data.max()) <= last
    check(inside, f"data holds tokens outside 0 .. {last}; give items of the model's own data")
    return data.flatten(1).long()


def check_known(known: Any, tokens: Tensor) -> Tensor | None:
    """Return where tokens (B, D) are given, on their device."""
    if known is None:
        return None
    fits = isinstance(known, Tensor) and known.numel() in (tokens.numel(), tokens.shape[1])
    check(
        fits and known.dtype == torch.bool,
        f"known must be boolean, of the shape {tuple(tokens.shape)} or {tuple(tokens.shape[1:])}",
    )
    return known.reshape(-1, tokens.shape[1]).expand_as(tokens).to(tokens.device)
