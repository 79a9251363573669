"""TauflowScheduler: tauflow's samplers in diffusers' DiffusionGemmaPipeline.

pipe.scheduler = TauflowScheduler("renoise")
pipe("Why is the sky blue?", num_inference_steps=16, confidence_threshold=None)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauflow.denoise import Model
from tauflow.errors import SamplingError, SettingsError
from tauflow.process import Mixture, Uniform
from tauflow.samplers.driven import Driven
from tauflow.samplers.registry import registered_sampler
from tauflow.samplers.run import positive_int
from tauflow.samplers.sampler import Sampler
from tauflow.untrusted import read_json

try:
    from diffusers import ConfigMixin, SchedulerMixin
    from diffusers.configuration_utils import register_to_config
    from diffusers.utils import BaseOutput
except ImportError as error:
    raise SettingsError(
        f"The scheduler needs diffusers: pip install -c constraints.txt -e '.[diffusers]' ({error})"
    ) from None


@dataclass
class TauflowSchedulerOutput(BaseOutput):
    """Output of a step: the next canvas (B, D), and the logits (B, D, V) for self-conditioning."""

    prev_sample: Tensor
    pred_logits: Tensor


class TauflowScheduler(SchedulerMixin, ConfigMixin):
    """A tauflow sampler for a canvas of uniform noise, with one evaluation of the pipeline's model per step.

    `num_inference_steps` is the budget of evaluations per canvas. With the same generator, samples equal
    those of `tauflow.sample`. The pipeline runs the loop, so this class can't call `sample`: it hands the
    logits to the same sampler (`Driven`).

    The pipeline's `temperature` is that of `Model.tempered`. 0, its default, is none: you sample the model's
    own distribution, never its mode. The pipeline sets `confidence_threshold`, which ends a canvas early with
    the most likely tokens. Pass None to sample the model's distribution.

    Args:
        sampler: a sampler, or a spec such as "renoise" or "tr_cie(grid=tau)"; "auto" is the
            recommended one. A spec may come from a scheduler_config.json, so it can only name tauflow's
            samplers. Pass an object to use your own class.
        schedule: kappa of the model's training.
    """

    order = 1

    @register_to_config
    def __init__(self, sampler: str | Sampler = "auto", schedule: str = "linear"):
        if not isinstance(sampler, str | Sampler) or not isinstance(schedule, str):
            raise SamplingError(
                f"sampler and schedule must be names, got {sampler!r:.80} and {schedule!r:.80}."
            )
        some = Model(lambda x, t: x, Mixture(Uniform(2), schedule), (1,))  # of any vocabulary
        self.sampler = sampler if isinstance(sampler, Sampler) else registered_sampler(sampler, some)
        if reason := self.sampler.unsupported_reason(some):
            raise SamplingError(reason)
        self.register_to_config(sampler=str(self.sampler))
        self.schedule = schedule
        self._driven: Driven | None = None
        self._expected = 0
        self.set_timesteps(48)

    @classmethod
    def from_pretrained(cls, name: Any = None, subfolder: str | None = None, **options: Any) -> Any:
        """Load a scheduler from the hub or a pipeline's folder, whose config is checked first."""
        folder = Path(name or ".") / (subfolder or "")
        if folder.is_dir():
            read_json(folder / "scheduler_config.json")
        return super().from_pretrained(name, subfolder=subfolder, **options)

    def set_timesteps(self, num_inference_steps: int, device: str | torch.device | None = None) -> None:
        """Set the evaluations of a canvas."""
        self.num_inference_steps = positive_int(num_inference_steps, "num_inference_steps")
        self.timesteps = torch.arange(self.num_inference_steps, device=device)
        self._driven = None

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> TauflowSchedulerOutput | tuple[Tensor, Tensor]:
        """Return the next canvas (B, D) from the logits (B, D, V) of this one; step 0 starts a new canvas.

        A sampler that doesn't use the whole budget is done before the last step and changes nothing then.
        """
        number = int(timestep)
        given = (torch.default_generator if generator is None else generator, temperature or 1.0)
        if number == 0:
            process = Mixture(Uniform(model_output.shape[-1]), self.schedule)
            self._driven = Driven(self.sampler, process, sample, self.num_inference_steps, *given)
            self._expected = 0
        if self._driven is None or number != self._expected:
            raise SamplingError(
                f"Steps of a canvas must be 0, 1, 2, ... in order, got {number} instead of {self._expected}."
            )
        self._expected += 1
        if not self._driven.done:
            sample = _answer(self._driven, model_output, sample)
        if not return_dict:
            return sample, model_output
        return TauflowSchedulerOutput(sample, model_output)


def _answer(driven: Driven, logits: Tensor, x: Tensor) -> Tensor:
    """Give a sampler the logits (B, D, V) of x (B, D), and return the states of its next evaluation.

    The pipeline's model doesn't get the time. If a sampler also evaluates the same states at an earlier time
    (`tr_cie_exact`), these are the logits already.
    """
    t = driven.t
    driven.answer(logits, x)
    while not driven.done and torch.equal(driven.x, x) and bool((driven.t < t).all()):
        driven.answer(logits)
    return driven.x.clone()  # the caller may change it in place
