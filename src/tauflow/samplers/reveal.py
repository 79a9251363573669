"""Reveal samplers, for masks only: an order of the coordinates x counts of reveals x extrapolation.

A sequence with F free coordinates is revealed in N evaluations; evaluation n draws the next k_n coordinates
of the order from its rows.

    order     random    uniformly chosen, at first-hitting times (Zheng et al. 2025): with j coordinates still
                        masked and a = 1 - kappa, the next one is revealed at a <- u^(1/j) a, u uniform
              spaced    neighbors far apart (geometry.py), shifted round by a random offset per sequence
              even      chosen again in every step: every (M / k_n)-th of the M coordinates that are still
                        masked, from a random offset on; on a grid always the cell farthest from all that
                        came before (geometry.py), shifted as `spaced` is
              learned   the order that came with the model (tauflow.learn_order)
    counts    equal     k_n = floor((n + 1) F / N) - floor(n F / N)
              power     increments of round(F (n / N)^power), at least 1 each: few tokens at first
              arccos    of round(F (1 - 2 / pi arccos(n / N))), as the Halton scheduler (Besnier et al. 2025)
              doubling  of round(F 2^(n - N)), so that half of the tokens come last: with N = log2 F those of
                        dilated unmasking (Luxembourg et al. 2025)
              learned   those that came with the model (tauflow.learn_counts), the best for its order; with a
                        prompt in proportion
              entropy   as many as fit into the budget b = rho_n sum_d H_d, H_d the entropy of row d and rho_n
                        the share of the masked coordinates that `power` would reveal: first the most certain,
                        up to b / 10, then along the order; at least 1
    extrapolation of a row p_n with that of the evaluation before, clamped at 0
              pairs     p_n + w_n (p_n - p_{n-1}), w_n = (k_{n-1} - 1) / (2 k_n), in the last step plus
                        (k_n - 1) / (2 k_{n-1}), at most `weight`: k (k - 1) / 2 pairs of tokens were drawn
                        together as if independent, which the k_{n-1} k_n pairs of the next step make up for
              hitting   p_n + (t - t_n) / (t_n - t_{n-1}) (p_n - p_{n-1}), t the hitting time of the token and
                        t_n that of the first one of the step, which is not extrapolated: the evaluation
                        belongs to it (HO-FHS of Zheng et al. 2025)
              learned   p_n min(p_n / p_{n-1}, 10)^w_n, which needs no clamp, w_n learned with the counts:
                        by how much the dependence that is lost is made up for (learned.py)

Without drawn hitting times t is their mean, kappa = k / (F + 1) after k reveals. Order and counts, except
`entropy`, never look at tokens or rows. With k_n = 1 throughout (N = F) each token is drawn from its
posterior given all that are revealed: exact, whatever the order and the extrapolation, and with `entropy`
too, since what is revealed next then follows from what is revealed already.

Shapes: B sequences, D coordinates, V data tokens, R rows.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from tauflow.denoise import LearnedCounts, Model, Posterior
from tauflow.errors import SamplingError
from tauflow.process import Process
from tauflow.samplers.geometry import farthest_ranks, is_grid, shifted, spaced_ranks
from tauflow.samplers.random import chunks, index_of, uniforms
from tauflow.samplers.sampler import Problem, Sampler, State, StepInfo, check, fixed, option

OrderName = Literal["random", "spaced", "even", "learned"]
CountName = Literal["equal", "power", "arccos", "doubling", "learned", "entropy"]
ExtrapolationName = Literal["pairs", "hitting", "learned"]
MAX_RATIO = 10.0  # of two rows
TINY = 1e-30
SURE = 0.1  # share of an entropy budget for the most certain coordinates
CPU = torch.device("cpu")


def extrapolated(probs: Tensor, before: Tensor, weight: Tensor, how: ExtrapolationName) -> Tensor:
    """Return probs (R, V) extrapolated with weights (R, 1): along a line, or, if `learned`, by a power."""
    if how != "learned":
        return probs + weight * (probs - before)
    ratio = torch.where(before > 0, probs / before.clamp(min=TINY), 1.0)  # a token may be cut in one of them
    return probs * ratio.clamp(max=MAX_RATIO) ** weight


def needs_masks(model: Model, order: OrderName) -> str:
    """Return why a model cannot be revealed in this order, empty if it can."""
    if not model.process.absorbing:
        return (
            f"reveal samplers need a masked source, this model has a {model.process.name} one; "
            f"try {model.process.recommended} or tr_cie"
        )
    if order == "learned" and model.order is None:
        return (
            "there is no learned order: make one with tauflow.learn_order(model), or sample.py "
            "--learn_order; or use spaced"
        )
    return ""


def drawn_keys(order: OrderName, problem: Problem, batch: int, generator: torch.Generator) -> Tensor:
    """Draw keys (B, D) or (1, D): coordinates are revealed from the lowest on."""
    length = torch.Size(problem.shape).numel()
    if order == "random":
        return uniforms(batch * length, generator, CPU).view(batch, length)
    if order == "learned" and problem.order is not None:
        return problem.order.expand(batch, length)
    if order == "spaced" or is_grid(problem.shape):
        return _keys_on_grid(order, problem, batch, generator)
    return torch.arange(length).expand(batch, length)


def _keys_on_grid(order: OrderName, problem: Problem, batch: int, generator: torch.Generator) -> Tensor:
    """Draw keys (B, D): of space, or of pixels, whose channels have one order or each its own."""
    shape = problem.shape
    if problem.channels is None:
        return _ranks(order, shape, batch, generator)
    grid, count = shape[:-1], shape[-1]
    if problem.channels == "together":
        ranks = _ranks(order, grid, batch, generator)[:, :, None]  # (B, pixels, 1)
    else:
        ranks = _ranks(order, grid, batch * count, generator).view(batch, count, -1).transpose(1, 2)
    return (count * ranks + torch.arange(count)).flatten(1)


def _ranks(order: OrderName, grid: tuple[int, ...], batch: int, generator: torch.Generator) -> Tensor:
    """Draw a shift for each sequence, and return the ranks (B, cells) of a grid that is moved round by it."""
    ranks = spaced_ranks(grid) if order == "spaced" else farthest_ranks(grid)
    shift = uniforms(batch * len(grid), generator, CPU).view(batch, -1)
    return shifted(ranks, grid, (shift * torch.tensor(grid)).long())


def drawn_times(
    order: OrderName, process: Process, free: Tensor, length: int, generator: torch.Generator
) -> Tensor:
    """Draw the times (B, D + 1) of evaluations before the k-th reveal, float64; the first is 0."""
    batch = len(free)
    if order != "random":
        kappa = (torch.arange(length + 1, dtype=torch.float64) / (free[:, None] + 1)).clamp(max=1)
        return process.t_from_share(kappa)
    remaining = (free[:, None] - torch.arange(length)).clamp(min=1)  # (B, D): masked before the k-th reveal
    logs = uniforms(batch * length, generator, CPU).view(batch, length).clamp(min=1e-300).log()
    survival = torch.cat([torch.zeros(batch, 1), logs.double() / remaining], dim=1).cumsum(1).exp()
    return process.t_from_share(1 - survival)


def entropies(posterior: Posterior, movable: Tensor, num_tokens: int) -> Tensor:
    """Return entropies (B, D) of the rows that may still be drawn, in nats; infinite elsewhere."""
    entropy = torch.full((movable.numel(),), torch.inf, dtype=torch.float64)
    for index in chunks(index_of(movable), num_tokens):
        entropy[index.cpu()] = torch.special.entr(posterior.probs(index)).sum(-1).cpu().double()
    return entropy.view(movable.shape)


def share_of(counts: CountName, n: int, steps: int, exponent: float) -> float:
    """Return the share of the coordinates that a rule has revealed after n of so many evaluations."""
    if counts == "arccos":
        return 1 - 2 / math.pi * math.acos(n / steps)
    if counts == "doubling":
        return 2.0 ** (n - steps) if n else 0.0
    return (n / steps) ** exponent


def rounded(free: Tensor, share: float, n: int, steps: int) -> Tensor:
    """Return a share of the free (B,) coordinates after n steps, so that every step has one to reveal."""
    wanted = (free.double() * share + 0.5).floor().long()
    within = torch.minimum(wanted.clamp(min=n), free - (steps - n))
    return torch.where(free < steps, free * n // steps, within)


def order_of_counts(order: OrderName, shape: tuple[int, ...]) -> OrderName:
    """Return the order whose counts an order takes: `even` of a sequence those of `random`, others their own.

    What `even` reveals next depends on the counts themselves, so it has no matrix of its own to learn from.
    """
    return "random" if order == "even" and not is_grid(shape) else order


def learned_for(order: OrderName, counts: Sequence[LearnedCounts], shape: tuple[int, ...]) -> LearnedCounts:
    """Return the learned counts that an order takes; raise if there are none."""
    wanted = order_of_counts(order, shape)
    for each in counts:
        if each.order == wanted:
            return each
    raise SamplingError(
        f"there are no learned counts for the order {order}: make them with tauflow.learn_counts(model, "
        f"{order!r}), or sample.py --learn_counts; or use spaced_even"
    )


def no_counts(order: OrderName, model: Model) -> str:
    """Return why a model cannot be revealed with learned counts, empty if it can."""
    try:
        learned_for(order, model.counts, model.shape)
    except SamplingError as error:
        return str(error)
    return ""


def no_weights(order: OrderName, model: Model) -> str:
    """Return why an order has no learned weights of extrapolation, empty if it has."""
    along = order_of_counts(order, model.shape)
    if along == order:
        return ""
    return (
        f"the order {order} takes the counts of the order {along}, whose weights are not its own; use "
        "extrapolation=pairs"
    )


@dataclass(frozen=True)
class RevealPlan:
    """N evaluations, whose times every sequence has of its own."""

    steps: int

    @property
    def end(self) -> float:
        return 1.0


@dataclass(frozen=True)
class RevealState(State):
    """Order, times and offsets are drawn before the first evaluation: nothing of them depends on tokens."""

    _: KW_ONLY
    order: Tensor  # (B, D): when each is revealed, 0 .. F - 1; F or more if not free
    free: Tensor  # (B,) number of free coordinates F
    times: Tensor  # (B, D + 1) float64: t of the evaluation before the k-th reveal
    offsets: Tensor  # (B, N) in [0, 1): where each step of the order `even` begins
    done: Tensor  # (B,) reveals so far
    count_before: Tensor  # (B,) reveals of the step before
    t_before: Tensor | None = None  # (B,) time of the evaluation before this one


@dataclass(frozen=True)
class Reveal(Sampler[RevealPlan, RevealState]):
    order: OrderName = option("random", "in which order the coordinates are revealed")
    counts: CountName = option("equal", "how many coordinates an evaluation reveals")
    power: float | None = option(
        None, "exponent of the counts power and entropy, 2 by default: more is fewer at first", above=0
    )
    extrapolation: ExtrapolationName = option("pairs", "what weighs the extrapolation of rows")
    weight: float = option(0.0, "largest weight of the extrapolation pairs; 0 is none", low=0, high=1)

    clones_history = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.power is None or self.counts in ("power", "entropy"),
            f"power belongs to counts=power or entropy, {self.counts} counts have none; name counts, or drop "
            "power",
        )
        check(
            self.order != "even" or self.counts != "entropy",
            "counts=entropy goes along an order that is fixed before; use it with order=spaced or random",
        )
        check(
            not self.weight or self.extrapolation == "pairs",
            f"weight belongs to extrapolation=pairs, {self.extrapolation} has weights of its own; drop it",
        )
        check(
            self.extrapolation != "learned" or self.counts == "learned",
            f"extrapolation=learned has weights for learned counts, these are {self.counts}; add "
            "counts=learned, or use extrapolation=pairs",
        )

    @property
    def exponent(self) -> float:
        return 2.0 if self.power is None else self.power

    @property
    def extrapolates(self) -> bool:
        """Return whether the rows of the evaluation before are read."""
        return self.extrapolation != "pairs" or self.weight > 0

    def unsupported_reason(self, model: Model) -> str:
        missing = no_counts(self.order, model) if self.counts == "learned" else ""
        if self.extrapolation == "learned" and not missing:
            missing = no_weights(self.order, model)
        return needs_masks(model, self.order) or missing

    def plan(self, process: Process, free: int, nfe: int) -> RevealPlan:
        return RevealPlan(min(nfe, free))

    def init(
        self, problem: Problem, x_0: Tensor, plan: RevealPlan, generator: torch.Generator
    ) -> RevealState:
        movable = problem.movable(x_0).cpu()
        batch, length = x_0.shape
        keys = drawn_keys(self.order, problem, batch, generator)
        order = (keys + length * ~movable).argsort(1).argsort(1)  # free coordinates first
        free = movable.sum(1)
        times = drawn_times(self.order, problem.process, free, length, generator)
        offsets = torch.zeros(batch, 0)
        if self.order == "even" and not is_grid(problem.shape):
            offsets = uniforms(batch * plan.steps, generator, CPU).view(batch, plan.steps)
        none = torch.zeros_like(free)
        return RevealState(
            x_0, order=order, free=free, times=times, offsets=offsets, done=none, count_before=none
        )

    def step(
        self, problem: Problem, state: RevealState, plan: RevealPlan, n: int, generator: torch.Generator
    ) -> tuple[RevealState, StepInfo]:
        t = self.time(state.times, state.done)
        posterior, before, rank, count = self.look(problem, state, t, n, plan.steps)
        revealed = revealing(rank, count)
        x = state.x.clone()
        learned = self.learned_weight(problem, n, plan.steps)
        clamped = channels = 0
        for index in chunks(revealed, problem.process.num_tokens):
            weight = self.weights(state, t, rank, count, index, learned)  # (R,)
            index = index.to(x.device)
            probs = posterior.probs(index)
            if weight is not None and before is not None:
                probs = extrapolated(
                    probs, before.probs(index), weight.to(probs)[:, None], self.extrapolation
                )
                clamped += int((probs < 0).sum())
                channels += probs.numel()
                probs = probs.clamp(min=0)
            x.view(-1)[index] = problem.draw(probs, index, generator)
        done = state.done + count
        t_next = self.time(state.times, done).mean().item()
        moved = len(revealed) / max(1, int(problem.movable(state.x).sum()))
        info = StepInfo(n, t.mean().item(), t_next, moved, clamped / max(1, channels))
        state = dataclasses.replace(
            state, x=x, posterior=posterior, done=done, count_before=count, t_before=t
        )
        return state, info

    def time(self, times: Tensor, done: Tensor) -> Tensor:
        """Return the time (B,) of an evaluation after so many reveals: of the last, or hitting the next."""
        first = done + 1 if self.extrapolation == "hitting" else done
        return times.gather(1, first.clamp(max=times.shape[1] - 1)[:, None]).squeeze(1)

    def revealed(self, free: Tensor, n: int, steps: int) -> Tensor:
        """Return how many of the free (B,) coordinates are revealed after n of so many steps."""
        if self.counts == "equal":
            return free * n // steps
        return rounded(free, share_of(self.counts, n, steps, self.exponent), n, steps)

    def after(self, problem: Problem, free: Tensor, n: int, steps: int) -> Tensor:
        """Return how many of the free (B,) coordinates are revealed after n steps, by learned counts too."""
        if self.counts != "learned":
            return self.revealed(free, n, steps)
        learned = learned_for(self.order, problem.counts, problem.shape)
        return rounded(free, learned.share(n, steps), n, steps)

    def look(
        self, problem: Problem, state: RevealState, t: Tensor, n: int, steps: int
    ) -> tuple[Posterior, Posterior | None, Tensor, Tensor]:
        """Evaluate at t (B,) and choose what to reveal.

        Returns the posterior, what is read of the posterior before, when each coordinate is revealed (B, D),
        and how many are (B,).
        """
        before = state.posterior if self.extrapolates else None
        if self.counts == "entropy":  # the new rows say which are revealed, so all may be
            before = before.clone(index_of(problem.movable(state.x))) if before else None
            posterior = problem.evaluate(state.x, t)
            return posterior, before, *self._ranks_by_entropy(problem, state, posterior, n, steps)
        rank, count = self.ranks(problem, state, n, steps)
        before = before.clone(revealing(rank, count).to(state.x.device)) if before else None
        return problem.evaluate(state.x, t), before, rank, count

    def ranks(self, problem: Problem, state: RevealState, n: int, steps: int) -> tuple[Tensor, Tensor]:
        """Return when in this step each coordinate is revealed (B, D), and how many are (B,)."""
        count = self.after(problem, state.free, n + 1, steps) - state.done
        if self.order != "even" or is_grid(problem.shape):
            return state.order - state.done[:, None], count
        movable, length = problem.movable(state.x).cpu(), state.x.shape[1]
        number = movable.cumsum(1).double()
        left = (state.free - state.done).clamp(min=1)[:, None]
        after = (state.offsets[:, n, None] + number * count[:, None] / left).floor()
        before = (state.offsets[:, n, None] + (number - 1) * count[:, None] / left).floor()
        picked = movable & (after > before)
        return (picked.cumsum(1) - 1).masked_fill(~picked, length), count

    def _ranks_by_entropy(
        self, problem: Problem, state: RevealState, posterior: Posterior, n: int, steps: int
    ) -> tuple[Tensor, Tensor]:
        movable, length = problem.movable(state.x), state.x.shape[1]
        entropy = entropies(posterior, movable, problem.process.num_tokens)
        movable = movable.cpu()
        survival = [1 - (i / steps) ** self.exponent for i in (n, n + 1)]
        budget = (1 - survival[1] / survival[0]) * entropy.masked_fill(~movable, 0).sum(1, keepdim=True)
        low, by_entropy = entropy.sort(1)
        sure = torch.zeros_like(movable).scatter_(1, by_entropy, low.cumsum(1) <= SURE * budget)
        key = torch.where(sure, by_entropy.argsort(1), length + state.order)
        rank = key.masked_fill(~movable, 3 * length).argsort(1).argsort(1)
        within = (entropy.gather(1, rank.argsort(1)).cumsum(1) <= budget).sum(1)
        left = state.free - state.done
        most = (left - (steps - 1 - n)).clamp(min=1)  # so that every later evaluation has something to reveal
        count = within.clamp(min=1) if n < steps - 1 else left
        return rank, torch.minimum(torch.minimum(count, most), left)

    def learned_weight(self, problem: Problem, n: int, steps: int) -> float:
        """Return the learned weight of step n; 0 for another extrapolation."""
        if self.extrapolation != "learned":
            return 0.0
        return learned_for(self.order, problem.counts, problem.shape).weight(n, steps)

    def weights(
        self,
        state: RevealState,
        t: Tensor,
        rank: Tensor,
        count: Tensor,
        index: Tensor,
        learned: float = 0.0,
    ) -> Tensor | None:
        """Return the extrapolation weights (R,) of the coordinates index (R,), or None if there are none."""
        if state.t_before is None or not self.extrapolates:
            return None
        sequence = index // rank.shape[1]
        if self.extrapolation == "learned":  # one token after another loses nothing
            several = (count > 1) | (state.count_before > 1)
            return (learned * several).double()[sequence]
        if self.extrapolation == "hitting":
            own_time = state.times[sequence, state.done[sequence] + rank.flatten()[index] + 1]
            gap = (t - state.t_before)[sequence]  # 0 for a sequence that revealed nothing in the step before
            return torch.where(gap > 0, (own_time - t[sequence]) / gap, 0.0)
        before = state.count_before
        weight = (before - 1) / (2 * count.clamp(min=1))
        ends = state.done + count == state.free
        weight = weight + torch.where(ends, (count - 1) / (2 * before.clamp(min=1)), 0.0)
        return torch.where(before > 0, weight, 0.0).clamp(0, self.weight).double()[sequence]


def revealing(rank: Tensor, count: Tensor) -> Tensor:
    """Return the index (R,) of coordinates whose rank (B, D) is among the first so many (B,)."""
    return index_of((rank >= 0) & (rank < count[:, None]))


@dataclass(frozen=True)
class Best(Reveal):
    """Reveals along the order whose learned counts lose least with the budget."""

    order: OrderName = fixed("random")  # the one that `chosen` takes stands in its place
    counts: CountName = fixed("learned")
    power: float | None = fixed(None)
    extrapolation: ExtrapolationName = fixed("learned")
    weight: float = fixed(0.0)

    def unsupported_reason(self, model: Model) -> str:
        missing = (
            "there are no learned counts for an order of this model: make them with "
            "tauflow.learn_counts(model), or sample.py --learn_counts; or use spaced_even"
        )
        return needs_masks(model, "random") or ("" if usable(model) else missing)

    def chosen(self, problem: Problem, nfe: int) -> Reveal:
        """Return the sampler of the order that loses least with so many evaluations."""
        best = min(usable(problem), key=lambda each: each.forecast(nfe))
        return Reveal(best.order, "learned", extrapolation="learned")  # type: ignore[arg-type]

    def init(
        self, problem: Problem, x_0: Tensor, plan: RevealPlan, generator: torch.Generator
    ) -> RevealState:
        return self.chosen(problem, plan.steps).init(problem, x_0, plan, generator)

    def step(
        self, problem: Problem, state: RevealState, plan: RevealPlan, n: int, generator: torch.Generator
    ) -> tuple[RevealState, StepInfo]:
        return self.chosen(problem, plan.steps).step(problem, state, plan, n, generator)


def usable(model: Model | Problem) -> list[LearnedCounts]:
    """Return the counts whose order a model has."""
    found = [each for each in model.counts if each.order in get_args(OrderName)]
    own = [each for each in found if order_of_counts(cast(Any, each.order), model.shape) == each.order]
    return [each for each in own if each.order != "learned" or model.order is not None]
