"""Driven: a sampler inside a loop that is not ours, which evaluates the network and hands the logits in.

`run` asks the network whenever a step wants an evaluation. Here the step is broken off instead, and made
again from its start, with the same random numbers, when the logits have come. So every sampler can be driven,
those that evaluate twice a step included, and its samples are those of `run`. What is made again is what a
step does before its evaluation, which is little.
"""

import dataclasses

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.process import Process
from tauflow.samplers.base import Sampler, State, require
from tauflow.samplers.run import Request, finish, problem_of


class Wanted(Exception):
    """An evaluation that has not been made yet, at the states x (B, D)."""

    def __init__(self, x: Tensor):
        super().__init__()
        self.x = x


class Handed:
    """A network that answers with the logits it was handed, in order, and raises `Wanted` after the last."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []  # (B, D, V) each, of the step under way
        self.read = 0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        if self.read == len(self.logits):
            raise Wanted(x)
        self.read += 1
        return self.logits[self.read - 1]


class Driven:
    """A sampler that waits for the logits (B, D, V) of its states `x` (B, D), until it is `done`.

    Logits are its own once they are handed in: it may look back at them in the next step.

    Args:
        sampler: what makes the steps.
        process: of the model's training.
        x_0: the states at first (B, D).
        nfe: budget of evaluations.
        generator: of all randomness.
        temperature: that the logits are divided by.
    """

    def __init__(
        self,
        sampler: Sampler,
        process: Process,
        x_0: Tensor,
        nfe: int,
        generator: torch.Generator,
        temperature: float = 1.0,
    ):
        self._handed = Handed()
        model = Model(self._handed, process, tuple(x_0.shape[1:])).tempered(temperature)
        self._sampler = sampler
        self._problem = problem_of(sampler, Request(model, nfe, x_0, generator), model.denoiser)
        self._plan = sampler.plan(process, int(self._problem.movable(x_0).sum(1).max()), nfe)
        self._generator = generator
        self._state = sampler.init(self._problem, x_0, self._plan, generator)
        self._step = 0  # the one under way; after the last comes the finish
        self._before = generator.get_state()
        self.x = x_0
        self.done = False
        self._advance()

    def answer(self, logits: Tensor, x: Tensor | None = None) -> None:
        """Give it the logits (B, D, V) of `x`, or of other states where the caller has changed them."""
        require(not self.done, "the sampler is done and takes no more logits; start another one")
        if x is not None and not torch.equal(x, self.x):
            require(
                not self._handed.logits,
                f"{self._sampler} evaluates more than once a step, and the states were changed in between; "
                "change none, or use a sampler with one evaluation a step such as bridge_systematic",
            )
            self._state = dataclasses.replace(self._state, x=x)
        self._handed.logits.append(logits)
        self._advance()

    @torch.no_grad()
    def _advance(self) -> None:
        """Make steps as far as the logits reach."""
        try:
            while not self.done:
                self._handed.read = 0
                self._generator.set_state(self._before)
                self._state = self._next()
                self._step += 1
                self._handed.logits = []
                self._before = self._generator.get_state()
        except Wanted as wanted:
            self.x = wanted.x
        else:
            self.x = self._state.x

    def _next(self) -> State:
        """Return the state after the step under way, or after the finish."""
        problem, plan, state = self._problem, self._plan, self._state
        moving = self._step == 0 or bool(problem.movable(state.x).any())
        if self._step < plan.steps and moving:
            state, _ = self._sampler.step(problem, state, plan, self._step, self._generator)
            return state
        state = finish(self._sampler.finishing, problem, state, plan.end, self._generator)
        self.done = True
        return state
