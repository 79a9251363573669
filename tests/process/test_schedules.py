import math

import mpmath
import pytest
import torch

from tauflow.process import SCHEDULES, Cosine, Polynomial, schedule_from

ALL = {name: schedule_from(name) for name in SCHEDULES if name != "polynomial"} | {
    "t^0.5": Polynomial(0.5),
    "t^1.5": Polynomial(1.5),
}
EXACT_SURVIVAL = {
    "linear": lambda t: 1 - t,
    "quadratic": lambda t: 1 - t**2,
    "cubic": lambda t: 1 - t**3,
    "cosine": lambda t: mpmath.cos(mpmath.pi * t / 2),
    "cosine_squared": lambda t: mpmath.cos(mpmath.pi * t / 2) ** 2,
    "beta": lambda t: 1 / (1 + 3 * (t / (1 - t)) ** mpmath.mpf(0.9)),
    "t^0.5": lambda t: 1 - mpmath.sqrt(t),
    "t^1.5": lambda t: 1 - t ** mpmath.mpf("1.5"),
}
mpmath.mp.dps = 60


def test_ends_and_growth():
    t = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for schedule in ALL.values():
        kappa = schedule.kappa(t)
        assert kappa[0] == 0
        assert kappa[-1] == 1
        assert (kappa.diff() > 0).all()
        torch.testing.assert_close(kappa + schedule.survival(t), torch.ones_like(t))
        assert schedule.rate_factor(1.0) == schedule.tau(1.0) == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_against_high_precision_at_both_ends(name, dtype):
    """Relative error of a few ulp at times whose distance to 0 or 1 goes down to the last bit: any
    cancellation would show as 1e-3."""
    eps = torch.finfo(dtype).eps
    near = torch.logspace(math.log10(4 * eps), math.log10(0.4), 20, dtype=torch.float64).to(dtype)
    schedule = ALL[name]
    for t in torch.cat([near, 1 - near]):
        exact_t = mpmath.mpf(t.item())
        survival = EXACT_SURVIVAL[name](exact_t)
        for value, exact in [
            (schedule.kappa(t), 1 - survival),
            (schedule.survival(t), survival),
            (schedule.tau(t), -mpmath.log(survival)),
            (
                schedule.rate_factor(t),
                -mpmath.diff(EXACT_SURVIVAL[name], exact_t, h=mpmath.mpf("1e-25")) / survival,
            ),
        ]:
            assert value.item() == pytest.approx(float(exact), rel=16 * eps)
            assert value.dtype == dtype


def test_tau_round_trip_up_to_30():
    """t is stored with a relative error of eps / 2, which moves tau by up to eps / 2 * rate_factor: nothing
    worse may be added."""
    tau = torch.linspace(0.01, 30, 3000, dtype=torch.float64)
    for schedule in ALL.values():
        t = schedule.t_from_tau(tau)
        error = (schedule.tau(t) - tau).abs()
        assert (error <= 2 * torch.finfo(torch.float64).eps * (schedule.rate_factor(t) * t + 1 + tau)).all()
        assert schedule.tau(schedule.t_from_tau(0.0)) == 0


def test_kappa_round_trip():
    kappa = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for schedule in ALL.values():
        again = schedule.kappa(schedule.t_from_kappa(kappa))
        torch.testing.assert_close(again, kappa, atol=1e-15, rtol=1e-14)


def test_kappa_dot_is_the_derivative():
    t = torch.linspace(0.05, 0.95, 19, dtype=torch.float64, requires_grad=True)
    for schedule in ALL.values():
        (slope,) = torch.autograd.grad(schedule.kappa(t).sum(), t)
        torch.testing.assert_close(schedule.kappa_dot(t.detach()), slope)


def test_numbers_and_tensors_agree():
    functions = (
        "kappa",
        "kappa_dot",
        "tau",
        "t_from_tau",
        "rate_factor",
        "t_from_kappa",
        "odds",
        "t_from_odds",
    )
    for schedule in ALL.values():
        for function in functions:
            number = getattr(schedule, function)(0.3)
            assert isinstance(number, float)
            assert number == getattr(schedule, function)(torch.tensor([[0.3]], dtype=torch.float64)).item()


def test_by_name_by_class_and_by_exponent():
    assert (
        schedule_from("quadratic")
        == Polynomial(2.0)
        == schedule_from(Polynomial(2))
        == schedule_from("polynomial", exponent=2)
    )
    assert schedule_from("cosine") == Cosine() == schedule_from(Cosine)
    assert schedule_from(Polynomial, exponent=3) == schedule_from("cubic")


def test_bad_exponent():
    for exponent in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="exponent m > 0"):
            Polynomial(exponent)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'quadrat'.*linear, quadratic, cubic"):
        schedule_from("quadrat")
    with pytest.raises(ValueError, match="needs exponent"):
        schedule_from("polynomial")
    with pytest.raises(ValueError, match="takes no options"):
        schedule_from("cosine", exponent=2)
