"""TauflowScheduler in the real DiffusionGemmaPipeline, on a tiny random DiffusionGemma."""

import importlib
import sys

import pytest
import torch

import tauflow
from tauflow.errors import SamplingError, SettingsError

diffusers = pytest.importorskip("diffusers", reason="needs the extra [diffusers]")
scheduling = importlib.import_module("tauflow.integrations.diffusers")
TauflowScheduler = scheduling.TauflowScheduler

V, LENGTH = 24, 12
PROMPT = torch.tensor([[0, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
READ = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])  # the first prompt is shorter
UNIFORM = tauflow.Mixture(tauflow.Uniform(V), "linear")


class Processor:
    """Stands for the tokenizer and its chat template."""

    eos_token_id = None

    def apply_chat_template(self, messages, **options):
        return {"input_ids": PROMPT, "attention_mask": READ}


@pytest.fixture(scope="module")
def pipe():
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    text = {
        **heads,
        **{"vocab_size": V, "hidden_size": 16, "intermediate_size": 16, "global_head_dim": 8},
        **{"num_hidden_layers": 1, "layer_types": ["full_attention"], "max_position_embeddings": 64},
        **{"num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 8},
    }
    vision = {**heads, "model_type": "gemma4_vision", "hidden_size": 8, "intermediate_size": 8}
    tokens = {"boi_token_id": 1, "eoi_token_id": 2, "image_token_id": 3}
    config = DiffusionGemmaConfig(
        text_config=text, vision_config={**vision, "num_hidden_layers": 1}, canvas_length=LENGTH, **tokens
    )
    torch.manual_seed(0)
    model = DiffusionGemmaForBlockDiffusion(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 2)  # the usual start gives nearly uniform rows
    pipe = diffusers.DiffusionGemmaPipeline(model, diffusers.DiscreteDDIMScheduler(), Processor())
    pipe.set_progress_bar_config(disable=True)
    return pipe


class Canvas:
    """The model after a context as a denoiser of tauflow, conditioned on its own last logits."""

    def __init__(self, model, context):
        from transformers import DynamicCache

        self.model = model
        grown = torch.ones(len(context), context.shape[1] - PROMPT.shape[1], dtype=torch.long)
        read = torch.cat([READ, grown], 1)
        self.cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        with torch.no_grad():
            model.model.encoder(input_ids=context, attention_mask=read, past_key_values=self.cache)
        self.read = torch.nn.functional.pad(read.bool(), (0, LENGTH), value=True)
        self.places = torch.arange(context.shape[1], context.shape[1] + LENGTH)[None]
        self.last = None

    def __call__(self, x, t):
        self.last = self.model(
            decoder_input_ids=x,
            past_key_values=self.cache,
            self_conditioning_logits=self.last,
            decoder_attention_mask=self.read,
            decoder_position_ids=self.places,
        ).logits
        return self.last


def by_pipeline(pipe, nfe, canvases=1, **options):
    length, generator = canvases * LENGTH, torch.Generator().manual_seed(3)
    options = {"confidence_threshold": None, "generator": generator, "output_type": "seq", **options}
    return pipe(["a", "b"], gen_length=length, num_inference_steps=nfe, **options).sequences


def by_tauflow(pipe, sampler, nfe, canvases=1, temperature=1.0):
    context, generator = PROMPT, torch.Generator().manual_seed(3)
    for _ in range(canvases):
        model = tauflow.Model(Canvas(pipe.model, context), UNIFORM, (LENGTH,)).tempered(temperature)
        tokens = tauflow.sample(model, sampler, nfe, count=2, seed=generator).tokens
        context = torch.cat([context, tokens], 1)
    return context[:, PROMPT.shape[1] :]


@pytest.mark.parametrize(
    "sampler", ["bridge_systematic", "tr_cie(grid=tau)", "tweedie_d3pm", "theta_trapezoidal", "tr_cie_exact"]
)
def test_samples_are_those_of_tauflow(pipe, sampler):
    """In two canvases, so that the second starts anew; theta evaluates twice a step, and may end early."""
    pipe.scheduler = TauflowScheduler(sampler)
    assert torch.equal(by_pipeline(pipe, 6, canvases=2), by_tauflow(pipe, sampler, 6, canvases=2))


def test_temperature_is_that_of_the_call(pipe):
    pipe.scheduler = TauflowScheduler("bridge")
    cold = by_pipeline(pipe, 5, temperature=0.3)
    assert torch.equal(cold, by_tauflow(pipe, "bridge", 5, temperature=0.3))
    assert not torch.equal(cold, by_pipeline(pipe, 5))


def test_without_a_generator_the_global_one_is_used(pipe):
    pipe.scheduler = TauflowScheduler()
    torch.manual_seed(3)
    tokens = by_pipeline(pipe, 4, generator=None)
    assert torch.equal(tokens, by_tauflow(pipe, "bridge_systematic", 4))


def test_the_pipeline_may_end_samples_early(pipe):
    """Samples that it has ended are changed under the scheduler's hands."""
    pipe.scheduler = TauflowScheduler("tweedie")
    tokens = by_pipeline(pipe, 8, confidence_threshold=1e3)
    assert tokens.shape == (2, LENGTH)


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
    scheduler = TauflowScheduler("theta_rk2")
    scheduler.step(sure, 0, canvas)
    with pytest.raises(SamplingError, match="use a sampler with one evaluation a step"):
        scheduler.step(sure, 1, canvas + 1)


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
    TauflowScheduler("tr_cie(grid=tau)", "quadratic").save_pretrained(tmp_path)
    scheduler = TauflowScheduler.from_pretrained(tmp_path)
    assert (str(scheduler.sampler), scheduler.schedule) == ("tr_cie(grid=tau)", "quadratic")


def test_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.delitem(sys.modules, "tauflow.integrations.diffusers")
    with pytest.raises(SettingsError, match=r"\[diffusers\]"):
        importlib.import_module("tauflow.integrations.diffusers")
