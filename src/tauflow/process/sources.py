"""Sources: where the probability path starts at t = 0, and which coordinates may move.

V is the number of data tokens, S the number of states of a coordinate (the mask is a state, never a data
token).

A source is either a distribution over the data tokens (`Uniform`, `Marginal`, or your own), or it absorbs
nothing but masks (`Masked`). To add one, write a subclass with a `distribution` and name it in SOURCES, or
give `--model.source` its import path. `path` says how it leads to the data: as a mixture, or, for `Codebook`,
through codes that are ever closer to those of the data.
"""

import difflib
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tauflow.errors import SettingsError
from tauflow.imports import import_object
from tauflow.numerics import precise

if TYPE_CHECKING:
    from tauflow.process.process import Process
    from tauflow.process.schedules import Schedule

MAX_TOKENS = 2**24


@dataclass(frozen=True)
class Source(ABC):
    """Abstract: the distribution that each coordinate of x_0 is drawn from.

    Use `Masked` or `Uniform` unless you have a reason not to. To write your own, subclass it and define
    `distribution`.

    Args:
        num_tokens: number of data tokens, V.

    Returns:
        A source, which `tauflow.Mixture` takes. `sample(shape, generator)` draws x_0.

    Examples:
        >>> import tauflow, torch
        >>> class Sloping(tauflow.Source):
        ...     @property
        ...     def distribution(self):
        ...         weights = torch.arange(self.num_tokens, 0, -1, dtype=torch.float64)
        ...         return weights / weights.sum()
        >>> tauflow.Mixture(Sloping(4), "linear").start((2, 3)).shape
        torch.Size([2, 3])
    """

    num_tokens: int  # V

    absorbing = False  # whether x_0 is a mask that a coordinate leaves once and for all
    recommended = "renoise"  # the sampler `auto`; the evidence is in docs/choosing-a-sampler.md
    loss_on = "all"  # the network cannot see which coordinates were redrawn, so its loss is taken on all
    bound_cutoff = 1e-3
    """1 - kappa where the bound stops following the path and pays for a draw of x_1 from the posterior.
    Needed unless 1 - p(x_t) vanishes as fast as 1 - kappa, which no finite logits do: the integral up to 1
    diverges."""

    def __post_init__(self) -> None:
        try:
            number = operator.index(self.num_tokens)
        except TypeError:
            number = 0
        if not 2 <= number <= MAX_TOKENS:
            raise SettingsError(
                f"a source needs at least 2 data tokens and at most {MAX_TOKENS}, which float32 posteriors "
                f"tell apart; got {self.num_tokens!r}"
            )
        object.__setattr__(self, "num_tokens", number)

    def __init_subclass__(cls) -> None:
        # `law` is the old name of `distribution`; your own classes may still define it
        if "law" in vars(cls) and "distribution" not in vars(cls):
            cls.distribution = vars(cls)["law"]  # type: ignore[method-assign]

    @property
    @abstractmethod
    def distribution(self) -> Tensor:
        """Return the distribution of a coordinate of x_0 over the S states, float64 (S,)."""

    @property
    def law(self) -> Tensor:
        """Return `distribution`, by its old name."""
        return self.distribution

    def path(self, schedule: "Schedule | str") -> "Process":
        """Return the process that leads from this source to the data."""
        from tauflow.process.process import Mixture

        return Mixture(self, schedule)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def num_states(self) -> int:
        """Return S: how many states the network must embed."""
        return self.num_tokens

    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draw x_0 of the given shape, int64, on the generator's device."""
        device = generator.device if generator else None
        cumulative = self.distribution.cumsum(0).to(device)
        coins = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        tokens = torch.searchsorted(cumulative, coins * cumulative[-1], right=True)
        return tokens.clamp_(max=self.num_tokens - 1)

    def movable(self, x: Tensor) -> Tensor:
        """Return which coordinates of x (B, D) may still jump."""
        return torch.ones_like(x, dtype=torch.bool)

    def masks(self, x: Tensor) -> Tensor:
        """Return which coordinates of x (B, D) carry no data token."""
        return torch.zeros_like(x, dtype=torch.bool)

    def only_jumps(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Set to 0, in place, what is no jump from the tokens (R,) in rows (R, V): staying where one is."""
        return rows.scatter_(1, tokens[:, None], 0)

    @property
    def channels(self) -> int:
        """Return how many tokens a movable coordinate can jump to."""
        return self.num_tokens - 1

    def inverse_probability(self, tokens: Tensor) -> Tensor | float:
        """Return 1 / p(x_0 = token) of data tokens, in their shape, or one number for all of them."""
        return self.distribution.reciprocal().to(tokens.device, precise(tokens.device))[tokens]

    def seen(self, x: Tensor, kappa: Tensor) -> Tensor:
        """Return p(x_t^d | x_1^d = s) up to a factor without s, float64 (B, D, V), at kappa (B, 1, 1)."""
        same = x[:, :, None] == torch.arange(self.num_tokens, device=x.device)
        return kappa * same + (1 - kappa) / self.inverse_probability(x[:, :, None])


class Masked(Source):
    """Every coordinate of x_0 is a mask.

    This is the usual choice, and what masked diffusion models use. Once a coordinate has a token, it never
    moves again, so the network needs no time.

    Args:
        num_tokens: number of data tokens, V. The mask is token V (`mask_id`).

    Examples:
        >>> import tauflow
        >>> source = tauflow.Masked(5)
        >>> source.mask_id, source.num_states
        (5, 6)
        >>> source.sample((1, 4))
        tensor([[5, 5, 5, 5]])
    """

    absorbing = True
    recommended = "spaced_even"
    loss_on = "corrupted"  # the revealed coordinates are known
    bound_cutoff = 0.0

    @property
    def mask_id(self) -> int:
        return self.num_tokens

    @property
    def num_states(self) -> int:
        return self.num_tokens + 1

    @property
    def distribution(self) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(self.mask_id), self.num_states).double()

    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        return torch.full(shape, self.mask_id, device=generator.device if generator else None)

    def movable(self, x: Tensor) -> Tensor:
        return x == self.mask_id

    def masks(self, x: Tensor) -> Tensor:
        return x == self.mask_id

    def only_jumps(self, rows: Tensor, tokens: Tensor) -> Tensor:
        return rows.mul_((tokens == self.mask_id)[:, None])

    @property
    def channels(self) -> int:
        return self.num_tokens

    def seen(self, x: Tensor, kappa: Tensor) -> Tensor:
        same = x[:, :, None] == torch.arange(self.num_tokens, device=x.device)
        return (same | (x == self.mask_id)[:, :, None]).double()


class Uniform(Source):
    """Every coordinate of x_0 is a data token drawn uniformly.

    Use it if tokens should be able to change more than once, so that a sampler can correct its mistakes. The
    network must know the time (`network.time`), because it can't see which tokens are noise.

    Args:
        num_tokens: number of data tokens, V.

    Examples:
        >>> import tauflow
        >>> source = tauflow.Uniform(5)
        >>> source.num_states
        5
        >>> source.sample((2, 4)).shape
        torch.Size([2, 4])
    """

    @property
    def distribution(self) -> Tensor:
        return torch.full((self.num_tokens,), 1 / self.num_tokens, dtype=torch.float64)

    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        device = generator.device if generator else None
        return torch.randint(self.num_tokens, shape, generator=generator, device=device)

    def inverse_probability(self, tokens: Tensor) -> Tensor | float:
        return float(self.num_tokens)


@dataclass(frozen=True, init=False)
class Marginal(Source):
    """Every coordinate of x_0 is drawn from the unigram distribution of the data.

    Use it like `Uniform`, where some tokens are much more frequent than others: the noise already has the
    right frequencies. In a config, `source: marginal` measures them for you.

    Args:
        law: probability of each data token (V,), all above 0. They're normalized here.

    Examples:
        >>> import tauflow
        >>> tauflow.Marginal([3, 1]).distribution.tolist()
        [0.75, 0.25]
    """

    probabilities: tuple[float, ...] = field(repr=False)

    def __init__(self, law: Sequence[float] | Tensor):
        try:
            values = torch.as_tensor(law, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            values = torch.tensor(torch.nan)
        if values.ndim != 1 or not (values.isfinite().all() and (values > 0).all()):
            raise SettingsError(
                "a marginal source needs a probability above 0 for each token; add a little to each count"
            )
        object.__setattr__(self, "num_tokens", len(values))
        total = values.sum()
        if (total - 1).abs() > 1e-12:  # those that sum to 1 already stay the same, bit for bit
            values = values / total
        object.__setattr__(self, "probabilities", tuple(values.tolist()))
        self.__post_init__()

    @cached_property
    def distribution(self) -> Tensor:
        return torch.tensor(self.probabilities, dtype=torch.float64)


@dataclass(frozen=True, init=False)
class Codebook(Uniform):
    """Every coordinate of x_0 is a data token drawn uniformly, and tokens have vectors.

    Use it with `tauflow.Metric`, for tokens that are close to each other or far apart, such as colors or the
    codes of an image tokenizer. The path leads to the data through tokens that are ever closer.

    Args:
        vectors: one per data token (V, E). Only their directions matter. The path doesn't tell tokens with
            the same direction apart. The final draw from the posterior decides between them.

    Examples:
        >>> import tauflow
        >>> codebook = tauflow.Codebook([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> codebook.num_tokens
        3
    """

    vectors: tuple[tuple[float, ...], ...] = field(repr=False)

    recommended = "tr_cie(grid=tau)"

    def __init__(self, vectors: Sequence[Sequence[float]] | Tensor):
        try:
            values = torch.as_tensor(vectors, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            values = torch.tensor(torch.nan)
        if values.ndim != 2 or not (values.isfinite().all() and values.any(-1).all()):
            raise SettingsError(
                "a codebook needs a vector of finite numbers, not all 0, for each token: give a tensor (V, E)"
            )
        object.__setattr__(self, "num_tokens", len(values))
        object.__setattr__(self, "vectors", tuple(map(tuple, values.tolist())))
        self.__post_init__()
        if torch.allclose(self.directions, self.directions[:1]):
            raise SettingsError(
                "all codes of the codebook have the same direction, so none is closer to another; give "
                "tokens vectors of different directions, or use the uniform source"
            )

    @property
    def name(self) -> str:
        return "metric"

    @cached_property
    def directions(self) -> Tensor:
        """Return the vectors with length 1, float64 (V, E)."""
        return torch.nn.functional.normalize(torch.tensor(self.vectors, dtype=torch.float64), dim=-1)

    def path(self, schedule: "Schedule | str") -> "Process":
        from tauflow.process.metric import Metric

        return Metric(self, schedule)


SOURCES: dict[str, type[Source]] = {
    "masked": Masked,
    "uniform": Uniform,
    "marginal": Marginal,
    "metric": Codebook,
}
"""Sources by name, as `DFMModule` and `--model.source` take them."""


def source_from(
    source: Source | str,
    num_tokens: int,
    unigrams: Callable[[], Tensor] | None = None,
    codebook: Callable[[], Tensor] | None = None,
) -> Source:
    """Return a source from itself, its name, or the import path of a class of your own.

    `unigrams` gives the unigram distribution of the data (V,), which the marginal source needs, `codebook`
    the vectors (V, E) of its tokens, which the metric source needs.
    """
    if isinstance(source, Source):
        if source.num_tokens != num_tokens:
            raise SettingsError(
                f"the source {source.name} is made for {source.num_tokens} tokens, the data has {num_tokens}"
            )
        return source
    kind = SOURCES.get(source)
    if kind is None:
        if "." not in source:
            near = difflib.get_close_matches(source, SOURCES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(f"unknown source {source!r}; known sources: {', '.join(SOURCES)}{hint}")
        kind = import_object(source, Source)
    if kind is Marginal:
        if unigrams is None:
            raise SettingsError(
                "the marginal source needs the unigram distribution of the data: "
                "give tauflow.Marginal(probabilities)"
            )
        return Marginal(unigrams())
    if kind is Codebook:
        if codebook is None:
            raise SettingsError(
                "the metric source needs the vectors of the data tokens: give tauflow.Codebook(vectors)"
            )
        return source_from(Codebook(codebook()), num_tokens)
    return kind(num_tokens)
