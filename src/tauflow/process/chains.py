"""The chain of a coordinate on the metric path towards a known x_1: its law, and draws of it.

From z it jumps to s with the rate p(s) max(0, d(z, x_1) - d(s, x_1)) per unit of beta, where p is the law of
x_1 at beta: it only ever comes closer. Shapes: V codes, R rows.
"""

import math

import torch
from torch import Tensor

from tauflow.devices import precise
from tauflow.process.codes import Codes

EXACT = 1e-10  # largest change of a probability when the steps of a chain are halved


def chain_laws(codes: Codes, beta: float, beta_next: float, origin: float) -> Tensor:
    """Return the laws (V, V, V) of [x_1, z, y]: at y at beta_next from z at beta, on the way to x_1.

    Fourth-order Magnus steps on ln(1 + beta / origin), twice as many until no probability changes by EXACT.
    """
    begin, end = (math.log1p(each / origin) for each in (beta, beta_next))
    table, own = codes.table, torch.arange(len(codes))
    downhill = (table[:, :, None] - table[:, None, :]).relu_()  # [x_1, z, y]

    def generator(clock: float) -> Tensor:
        now = torch.tensor(origin * math.expm1(clock), dtype=torch.float64)
        rates = (now + origin) * codes.law(own, now)[:, None, :] * downhill
        rates.diagonal(dim1=1, dim2=2).sub_(rates.sum(-1))
        return rates

    def chain(steps: int) -> Tensor:
        h, law = (end - begin) / steps, torch.eye(len(codes), dtype=torch.float64)
        for step in range(steps):
            middle = begin + (step + 0.5) * h
            first, last = generator(middle - h * 3**0.5 / 6), generator(middle + h * 3**0.5 / 6)
            commutator = first @ last - last @ first
            law = law @ torch.linalg.matrix_exp(h / 2 * (first + last) + h**2 * 3**0.5 / 12 * commutator)
        return law

    steps, before = 2, chain(1)
    while ((laws := chain(steps)) - before).abs().max() > EXACT:
        steps, before = 2 * steps, laws
    return laws


def thinned(
    codes: Codes, tokens: Tensor, x_1: Tensor, betas: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Draw tokens (R,) at the last of two betas from those at the first, on the way to x_1 (R,)."""
    dtype = precise(tokens.device)

    def coins(count: int) -> Tensor:
        device = generator.device
        return torch.rand(count, generator=generator, dtype=dtype, device=device).to(tokens.device)

    result = tokens.clone()
    live = torch.arange(len(tokens), device=tokens.device)
    beta = torch.full(tokens.shape, betas[0], dtype=dtype, device=tokens.device)  # of the last candidate
    while len(live):
        here = codes.between(result[live], x_1[live], dtype)
        beta[live] -= torch.log1p(-coins(len(live))) / here  # infinite where x_1 is reached
        comes = beta[live] < betas[1]
        live, here = live[comes], here[comes]
        candidates = codes.draw(x_1[live], beta[live], coins(len(live)))
        closer = here - codes.between(candidates, x_1[live], dtype)
        jumps = coins(len(live)) * here < closer
        result[live[jumps]] = candidates[jumps]
    return result
