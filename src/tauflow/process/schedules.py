"""Schedules kappa: [0, 1] -> [0, 1], how much of the data has been revealed at time t.

Symbols (t in [0, 1], data at t = 1):

    kappa(t)        share of coordinates that already carry their data token
    kappa_dot(t)    d kappa / dt
    survival(t)     1 - kappa(t), the share that does not, computed without cancellation near t = 1
    tau(t)          -ln(1 - kappa), the reparameterized time of the paper (Eq. 10)
    rate_factor(t)  kappa_dot / (1 - kappa) = d tau / dt (Eq. 9); infinite at t = 1
    odds(t)         kappa / (1 - kappa), which a metric path takes for its beta; infinite at t = 1

A schedule states `kappa`, `survival`, `kappa_dot` and how to invert the pair (kappa, survival); the rest is
derived here, once. Everything takes and returns tensors of the same shape and dtype, or Python numbers
(computed in float64).
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from tauflow.errors import SettingsError

Number = TypeVar("Number", float, Tensor)


def _elementwise(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Number], Number]:
    """Let a method that is written for tensors also take a Python number, and then return one."""

    @functools.wraps(function)
    def wrapper(self: Any, value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(self, value)
        return function(self, torch.tensor(value, dtype=torch.float64)).item()

    return wrapper


class Schedule(ABC):
    """Abstract: the function kappa(t) that says how much of the data is revealed at time t.

    Pick one by name where you can: `Mixture(source, "quadratic")`. Subclass it for a new kappa(t): write a
    frozen dataclass with the four abstract methods, which take and return tensors.

    Args:
        t: times in [0, 1], data at 1, a tensor or a number. All methods are elementwise.

    Returns:
        A schedule. `kappa`, `survival`, `kappa_dot`, `tau`, and `rate_factor` evaluate it, and
        `t_from_kappa` and `t_from_tau` invert it.

    Examples:
        >>> import tauflow
        >>> schedule = tauflow.schedule_from("quadratic")
        >>> schedule.kappa(0.5), schedule.t_from_kappa(0.25)
        (0.25, 0.5)
    """

    @abstractmethod
    def _kappa(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _survival(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _kappa_dot(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _invert(self, kappa: Tensor, survival: Tensor) -> Tensor:
        """Return t from both kappa and 1 - kappa, so that the accurate one can be used."""

    @property
    def name(self) -> str:
        """Return its name in `schedule_from`; one without a name is written as in Python."""
        named = (name for name, make in SCHEDULES.items() if name != "polynomial" and make() == self)
        return next(named, repr(self))

    @_elementwise
    def kappa(self, t: Tensor) -> Tensor:
        return self._kappa(t)

    @_elementwise
    def survival(self, t: Tensor) -> Tensor:
        return self._survival(t)

    @_elementwise
    def kappa_dot(self, t: Tensor) -> Tensor:
        return self._kappa_dot(t)

    @_elementwise
    def t_from_kappa(self, kappa: Tensor) -> Tensor:
        return self._invert(kappa, 1 - kappa)

    @_elementwise
    def tau(self, t: Tensor) -> Tensor:
        kappa = self._kappa(t)
        return torch.where(kappa < 0.5, -torch.log1p(-kappa), -torch.log(self._survival(t)))

    @_elementwise
    def t_from_tau(self, tau: Tensor) -> Tensor:
        return self._invert(-torch.expm1(-tau), torch.exp(-tau))

    @_elementwise
    def rate_factor(self, t: Tensor) -> Tensor:
        survival = self._survival(t)
        return torch.where(survival == 0, math.inf, self._kappa_dot(t) / survival)

    @_elementwise
    def odds(self, t: Tensor) -> Tensor:
        return self._kappa(t) / self._survival(t)

    @_elementwise
    def t_from_odds(self, odds: Tensor) -> Tensor:
        return self._invert(1 / (1 + 1 / odds), 1 / (1 + odds))


@dataclass(frozen=True)
class Polynomial(Schedule):
    """The schedule kappa = t^m.

    Use it for an exponent without a name: `linear`, `quadratic`, and `cubic` are m = 1, 2, 3. A larger
    exponent reveals the data later, so that more of the training is on noisy states.

    Args:
        exponent: m, above 0.

    Examples:
        >>> import tauflow
        >>> tauflow.Polynomial(1.5).kappa(0.25)
        0.125
    """

    exponent: float

    def __post_init__(self) -> None:
        if not (isinstance(self.exponent, Real) and 0 < self.exponent < math.inf):
            raise SettingsError(
                f"a polynomial schedule kappa = t^m needs a finite exponent m > 0, got {self.exponent!r}; "
                "use 1 (linear), 2 (quadratic) or 3 (cubic) if unsure"
            )

    def _kappa(self, t: Tensor) -> Tensor:
        return t**self.exponent

    def _survival(self, t: Tensor) -> Tensor:
        return -torch.expm1(self.exponent * torch.log(t))

    def _kappa_dot(self, t: Tensor) -> Tensor:
        return self.exponent * t ** (self.exponent - 1)

    def _invert(self, kappa: Tensor, survival: Tensor) -> Tensor:
        return kappa ** (1 / self.exponent)


@dataclass(frozen=True)
class Cosine(Schedule):
    """The schedule kappa = 1 - cos(pi t / 2).

    Use it for models trained with MaskGIT's cosine schedule. Few tokens are revealed early, and most of them
    late.

    Examples:
        >>> import tauflow
        >>> round(tauflow.Cosine().kappa(0.5), 4)
        0.2929
    """

    def _kappa(self, t: Tensor) -> Tensor:
        return torch.where(t < 0.5, 2 * torch.sin(math.pi / 4 * t) ** 2, 1 - self._survival(t))

    def _survival(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * (1 - t))

    def _kappa_dot(self, t: Tensor) -> Tensor:
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    def _invert(self, kappa: Tensor, survival: Tensor) -> Tensor:
        return torch.atan2(torch.sqrt(kappa * (1 + survival)), survival) * (2 / math.pi)


@dataclass(frozen=True)
class CosineSquared(Schedule):
    """The schedule kappa = sin^2(pi t / 2) = 1 - cos^2(pi t / 2).

    Use it for models trained with a squared cosine. It's slow at both ends and fast in the middle.

    Examples:
        >>> import tauflow
        >>> round(tauflow.CosineSquared().kappa(0.5), 4)
        0.5
    """

    def _kappa(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t) ** 2

    def _survival(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * (1 - t)) ** 2

    def _kappa_dot(self, t: Tensor) -> Tensor:
        return math.pi * torch.sin(math.pi / 2 * t) * torch.sin(math.pi / 2 * (1 - t))

    def _invert(self, kappa: Tensor, survival: Tensor) -> Tensor:
        return torch.atan2(torch.sqrt(kappa), torch.sqrt(survival)) * (2 / math.pi)


@dataclass(frozen=True)
class Beta(Schedule):
    """The schedule kappa / (1 - kappa) = scale (t / (1 - t))^power.

    Use it with a metric path (`tauflow.Metric`), which takes these odds as its inverse temperature beta. The
    defaults are those of FUDOKI.

    Args:
        scale: factor of the odds, above 0.
        power: exponent of the odds, above 0.

    Examples:
        >>> import tauflow
        >>> tauflow.Beta().kappa(0.5), tauflow.Beta(scale=1.0).kappa(0.5)
        (0.75, 0.5)
    """

    scale: float = 3.0
    power: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("scale", self.scale), ("power", self.power)):
            if not (isinstance(value, Real) and 0 < value < math.inf):
                raise SettingsError(
                    f"a beta schedule needs a finite {name} > 0, got {value!r}; use scale 3 and power 0.9 if "
                    "unsure"
                )

    def _kappa(self, t: Tensor) -> Tensor:
        return 1 / (1 + ((1 - t) / t) ** self.power / self.scale)

    def _survival(self, t: Tensor) -> Tensor:
        return 1 / (1 + self.scale * (t / (1 - t)) ** self.power)

    def _kappa_dot(self, t: Tensor) -> Tensor:
        """Return power kappa (1 - kappa) / (t (1 - t)), without 0 / 0 at either end."""
        first = self._survival(t) ** 2 * self.scale * t ** (self.power - 1) * (1 - t) ** (-self.power - 1)
        last = self._kappa(t) ** 2 / self.scale * (1 - t) ** (self.power - 1) * t ** (-self.power - 1)
        return self.power * torch.where(t < 0.5, first, last)

    def _invert(self, kappa: Tensor, survival: Tensor) -> Tensor:
        return 1 / (1 + (self.scale * survival / kappa) ** (1 / self.power))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "linear": lambda: Polynomial(1.0),
    "quadratic": lambda: Polynomial(2.0),
    "cubic": lambda: Polynomial(3.0),
    "polynomial": Polynomial,
    "cosine": Cosine,
    "cosine_squared": CosineSquared,
    "beta": Beta,
}
"""Schedules by name, as `schedule_from`, `Mixture`, and `--model.schedule` take them."""


def schedule_from(schedule: Schedule | type[Schedule] | str, **options: Any) -> Schedule:
    """Return a schedule from its name, its class, or itself.

    Use it to read a schedule from settings. `Mixture`, `Metric`, and `DFMModule` call it for you.

    Args:
        schedule: a name from `SCHEDULES`, a `Schedule` class, or a schedule.
        **options: arguments of the class, such as `exponent` of "polynomial".

    Returns:
        The schedule.

    Examples:
        >>> import tauflow
        >>> tauflow.schedule_from("polynomial", exponent=1.5)
        Polynomial(exponent=1.5)
        >>> tauflow.schedule_from("cosine").name
        'cosine'
    """
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, type) and issubclass(schedule, Schedule):
        return schedule(**options)
    if schedule not in SCHEDULES:
        raise SettingsError(f"unknown schedule {schedule!r}; known schedules: {', '.join(SCHEDULES)}")
    try:
        return SCHEDULES[schedule](**options)
    except TypeError:
        options_of = {"polynomial": "needs exponent=...", "beta": "takes scale=... and power=..."}
        wanted = options_of.get(schedule, "takes no options")
        raise SettingsError(f"schedule {schedule!r} {wanted}, got {options or 'none'}") from None
