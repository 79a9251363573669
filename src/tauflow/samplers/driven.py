"""Driven: a sampler inside a loop that isn't ours, such as a diffusers pipeline.

`run` asks the network whenever a step wants an evaluation. Here the step is broken off instead, and made
again from its start, with the same random numbers, when the logits have come. So every sampler can be
driven, including those that evaluate twice per step, and its samples are those of `run`. What is made again
is what a step does before its evaluation, which is little.
"""

import dataclasses

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.process import Process
from tauflow.samplers.run import Request, finish, problem_of
from tauflow.samplers.sampler import Sampler, State, check


class Wanted(Exception):
    """An evaluation that has not been made yet, at the states x (B, D) and the times t (B,)."""

    def __init__(self, x: Tensor, t: Tensor):
        super().__init__()
        self.x = x
        self.t = t


class Handed:
    """A network that answers with the logits it was handed, in order, and raises `Wanted` after the last.

    A step that is made again takes, after each evaluation, the generator as it was when the logits came: what
    others have drawn from it while the step waited does not come again.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.read = 0
        self._answers: list[tuple[Tensor, Tensor]] = []  # logits (B, D, V) and the generator's state
        self._before = generator.get_state()

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        if self.read == len(self._answers):
            raise Wanted(x, t)
        logits, state = self._answers[self.read]
        self.generator.set_state(state)
        self.read += 1
        return logits

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, logits: Tensor) -> None:
        """Add the logits of the evaluation that is wanted, and start the step again."""
        self._answers.append((logits, self.generator.get_state()))
        self.generator.set_state(self._before)
        self.read = 0

    def clear(self) -> None:
        """Drop the logits of a step that is made; the next one begins with the generator as it is."""
        self._answers = []
        self._before = self.generator.get_state()
        self.read = 0


class Driven:
    """A sampler that waits for the logits (B, D, V) of its states `x` (B, D) at `t` (B,), until it is `done`.

    Logits are its own once they are handed in: it may look back at them in the next step.

    Args:
        sampler: what makes the steps.
        process: of the model's training.
        x_0: the states at first (B, D).
        nfe: budget of evaluations.
        generator: of all randomness; others may draw from it between evaluations.
        temperature: as `Model.tempered` takes it.
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
        self._handed = Handed(generator)
        model = Model(self._handed, process, tuple(x_0.shape[1:])).tempered(temperature)
        self._sampler = sampler
        self._problem = problem_of(sampler, Request(model, nfe, x_0, generator))
        self._plan = sampler.plan(process, int(self._problem.movable(x_0).sum(1).max()), nfe)
        self._state = sampler.init(self._problem, x_0.contiguous().clone(), self._plan, generator)
        self._handed.clear()
        self._step = 0  # the one under way; after the last comes the finish
        self._changes: list[tuple[Tensor, Tensor]] = []  # true (B, D), and tokens, of the step under way
        self.x, self.t = x_0, torch.zeros(len(x_0), device=x_0.device)
        self.done = False
        self._advance()

    def answer(self, logits: Tensor, x: Tensor | None = None) -> None:
        """Give it the logits (B, D, V) of `x`, or of other states where the caller has changed them.

        Before the first evaluation of a step the changed states are those that the step starts from. Tokens
        that are changed between two evaluations of a step stay as they are given until the step is made.
        """
        check(not self.done, "the sampler is done and takes no more logits; start another one")
        if x is not None and not torch.equal(x, self.x):
            self._change(x)
        if not self.done:
            self._handed.add(logits)
            self._advance()

    def _change(self, x: Tensor) -> None:
        check(
            x.shape == self.x.shape,
            f"the sampler has states of shape {tuple(self.x.shape)}, got {tuple(x.shape)}; start another one",
        )
        if len(self._handed):
            changed = x != self.x
            self._changes.append((changed, x[changed]))
        else:
            self._state = dataclasses.replace(self._state, x=x.contiguous().clone())
            self._handed.clear()  # the step starts again with other random numbers, as many as it takes now
            self._advance()

    def _changed(self, x: Tensor) -> Tensor:
        """Return states with what the caller has changed during the step."""
        for changed, tokens in self._changes:
            x = x.masked_scatter(changed, tokens)
        return x

    @torch.no_grad()
    def _advance(self) -> None:
        """Make steps as far as the logits reach."""
        try:
            while not self.done:
                state = self._next()
                self._state = dataclasses.replace(state, x=self._changed(state.x))
                self._step += 1
                self._changes = []
                self._handed.clear()
        except Wanted as wanted:
            self.x, self.t = self._changed(wanted.x), wanted.t
        else:
            self.x = self._state.x
            self._state = State(self.x)  # without the logits of the last evaluation

    def _next(self) -> State:
        """Return the state after the step under way, or after the finish."""
        problem, plan, state, generator = self._problem, self._plan, self._state, self._handed.generator
        moving = self._step == 0 or bool(problem.movable(state.x).any())
        if self._step < plan.steps and moving:
            state, _ = self._sampler.step(problem, state, plan, self._step, generator)
            return state
        state = finish(self._sampler.finishing, problem, state, plan.end, generator)
        self.done = True
        return state
