"""RememberingDenoiser: evaluations of one run, each of which is given what the one before it left.

That is self-conditioning: a network that says `remembers` reads what it answered last. A network of a guided
denoiser, and a part of a batch, has a memory of its own, and what it remembers is its own answer: neither
guided nor tempered nor restricted to allowed tokens.
"""

from torch import Tensor

from tauflow.denoise.context import Context, Memory
from tauflow.denoise.denoiser import Denoiser, Wrapper
from tauflow.denoise.evaluation import Evaluation


class RememberingDenoiser(Wrapper):
    """Gives every evaluation what the one before it left, and the first nothing.

    Stages of a step follow one another like steps: in a method with two, the first stage leaves its memory to
    the second, and that to the first of the next step. Only an evaluation at an earlier time than the last
    one is no part of this chain (`tr_cie_exact` evaluates the new state at the old time): it is given what
    the last one was given, so that both differ in time alone, and leaves nothing. An evaluation that fails
    changes nothing.
    """

    def __init__(self, denoiser: Denoiser):
        super().__init__(denoiser)
        self._last: Evaluation | None = None
        self._t: Tensor | None = None  # (B,) of the last one
        self._given: Memory = None  # what the last one was given
        self._left: Memory = None  # what it left, once that was asked for

    def evaluate(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Evaluation:
        if not self.remembers:
            return self.denoiser.evaluate(x, t, condition)
        if self._last is not None:
            self._left, self._last = self._last.memory, None  # read before the network writes over it
        back = self._t is not None and len(t) == len(self._t) and bool((t < self._t).any())
        given = self._given if back else self._left
        evaluation = self.denoiser.within(Context(memory=given)).evaluate(x, t, condition)
        if not back:
            self._last, self._t, self._given = evaluation, t, given
        return evaluation
