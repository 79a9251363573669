"""TauflowScheduler in the real DiffusionGemmaPipeline, on a tiny random DiffusionGemma."""

import importlib
import sys
import weakref

import pytest
import torch
from tiny_gemma import D, V
from torch.nn.utils.rnn import pad_sequence

import tauflow
from tauflow.errors import SamplingError, SettingsError
from tauflow.samplers import sampler_from

diffusers = pytest.importorskip("diffusers", reason="needs the extra [diffusers]")
scheduling = importlib.import_module("tauflow.integrations.diffusers")
TauflowScheduler = scheduling.TauflowScheduler

PROMPTS = ["w9 w4 w7", "w1 w2 w3 w5 w6 w8 w2 w9"]


class Processor:
    """Stands for the processor and its chat template; it pads on the left."""

    eos_token_id = None

    def __init__(self, task):
        self.task = task

    def apply_chat_template(self, messages, **options):
        rows = [torch.tensor(self.task.text.encode(each[0]["content"])) for each in messages]
        ids = pad_sequence(rows, batch_first=True, padding_value=-1, padding_side="left")
        return {"input_ids": ids.clamp(min=0), "attention_mask": ids >= 0}


@pytest.fixture(scope="module")
def trained(saved_gemma):
    """The model as tauflow loads it; its texts have no end, as those of the pipeline here."""
    found = tauflow.pretrained(saved_gemma[1])
    found.task.ends = ()
    return found


@pytest.fixture(scope="module")
def pipe(saved_gemma, trained):
    """The model of transformers in the pipeline."""
    scheduler, processor = diffusers.DiscreteDDIMScheduler(), Processor(trained.task)
    pipe = diffusers.DiffusionGemmaPipeline(saved_gemma[0], scheduler, processor)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def by_pipeline(pipe, nfe, canvases=1, **options):
    generator = torch.Generator().manual_seed(3)
    options = {"confidence_threshold": None, "generator": generator, "output_type": "seq", **options}
    return pipe(PROMPTS, gen_length=canvases * D, num_inference_steps=nfe, **options).sequences


def generated(trained, sampler, nfe, canvases=1, **options):
    seed = torch.Generator().manual_seed(3)
    found = tauflow.generate(trained, PROMPTS, canvases * D, sampler, canvases * nfe, seed=seed, **options)
    return torch.stack(found.tokens)


@pytest.mark.parametrize(
    "sampler", ["bridge_systematic", "tr_cie(grid=tau)", "tweedie_d3pm", "theta_trapezoidal", "tr_cie_exact"]
)
def test_samples_are_those_of_tauflow(pipe, trained, sampler):
    """In two canvases, so that the second starts anew; theta evaluates twice a step, and may end early."""
    pipe.scheduler = TauflowScheduler(sampler)
    assert torch.equal(by_pipeline(pipe, 6, canvases=2), generated(trained, sampler, 6, canvases=2))


def test_temperature_is_that_of_the_call(pipe, trained):
    pipe.scheduler = TauflowScheduler("bridge")
    cold = by_pipeline(pipe, 5, temperature=0.3)
    assert torch.equal(cold, generated(trained, "bridge", 5, temperature=0.3))
    assert not torch.equal(cold, by_pipeline(pipe, 5))


def test_without_a_generator_the_global_one_is_used(pipe, trained):
    pipe.scheduler = TauflowScheduler()
    torch.manual_seed(3)
    tokens = by_pipeline(pipe, 4, generator=None)
    condition = torch.stack([trained.task.condition(prompt) for prompt in PROMPTS])
    wanted = tauflow.sample(trained.model, "renoise", 4, count=2, seed=3, condition=condition)
    assert torch.equal(tokens, wanted.tokens)


def test_the_pipeline_may_end_samples_early(pipe):
    """Samples that it has ended are changed under the scheduler's hands."""
    pipe.scheduler = TauflowScheduler("tweedie")
    tokens = by_pipeline(pipe, 8, confidence_threshold=1e3)
    assert tokens.shape == (2, D)


def test_a_changed_canvas_is_taken_over():
    scheduler = TauflowScheduler("tweedie")
    scheduler.set_timesteps(50)
    sure = torch.zeros(1, 100, V)
    sure[..., 0] = 50.0
    canvas = torch.full((1, 100), 1)
    for number in range(10):
        canvas = scheduler.step(sure, number, canvas).prev_sample
        canvas[canvas != 0] = number + 2
    assert set(scheduler.step(sure, 10, canvas).prev_sample.unique().tolist()) == {0, 11}


def test_a_canvas_that_is_changed_in_the_middle_of_a_step_keeps_it():
    """Other tokens move as they would have moved."""
    logits = torch.randn(1, 100, V, generator=torch.Generator().manual_seed(0))
    ends = []
    for change in (0, 1):
        scheduler, generator = TauflowScheduler("theta_rk2"), torch.Generator().manual_seed(1)
        scheduler.set_timesteps(8)
        canvas = torch.full((1, 100), 1)
        for number in range(2):
            canvas = scheduler.step(logits, number, canvas, generator=generator).prev_sample
            if number == 0:
                canvas[:, :10] = (canvas[:, :10] + change) % V
                given = canvas[:, :10].clone()
        ends.append(canvas)
    assert torch.equal(ends[1][:, :10], given)
    assert torch.equal(ends[0][:, 10:], ends[1][:, 10:])
    assert (ends[0] != 1).any()


def test_no_logits_are_kept_after_the_last_step():
    scheduler, canvas = TauflowScheduler("tr_cie"), torch.zeros(1, 4, dtype=torch.long)
    scheduler.set_timesteps(3)
    alive = []
    for number in range(3):
        logits = torch.zeros(1, 4, V)
        alive.append(weakref.ref(logits))
        canvas = scheduler.step(logits, number, canvas, return_dict=False)[0]
        del logits
    assert [each() is None for each in alive] == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bridg",), "did you mean bridge"),
        (("bridge(gain=-1)",), "gain must be"),
        (("spaced_even",), "mask"),
        (("bridge", "linaer"), "linear"),
    ],
)
def test_refuses_what_cannot_be_sampled(arguments, said):
    with pytest.raises(ValueError, match=said):
        TauflowScheduler(*arguments)


def test_refuses_steps_out_of_order():
    scheduler = TauflowScheduler()
    with pytest.raises(SamplingError, match="in order"):
        scheduler.step(torch.zeros(1, 4, V), 1, torch.zeros(1, 4, dtype=torch.long))


def test_saves_its_settings(tmp_path):
    for sampler in ("tr_cie(grid=tau)", sampler_from("tr_cie(grid=tau)")):
        TauflowScheduler(sampler, "quadratic").save_pretrained(tmp_path)
        scheduler = TauflowScheduler.from_pretrained(tmp_path)
        assert (str(scheduler.sampler), scheduler.schedule) == ("tr_cie(grid=tau)", "quadratic")


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.delitem(sys.modules, "tauflow.integrations.diffusers")
    with pytest.raises(SettingsError, match=r"\[diffusers\]"):
        importlib.import_module("tauflow.integrations.diffusers")
