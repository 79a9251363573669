"""FUDOKI: text to image on a bidirectional Llama, with image tokens of a VQ model.

The network is Llama of transformers with full attention; image tokens enter through an embedding of their
own, and leave through a head of their own. The logits of an image token come from the position before it. The
network is not told the time. Shapes: B samples, D image tokens, V codes, C columns of a prompt, W width.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.denoise import DROPPED, Model
from tauflow.denoise.model import surrogate
from tauflow.errors import CheckpointError, SamplingError
from tauflow.networks import Network
from tauflow.process import Metric, Process
from tauflow.recipes.base import Config, Loaded, Recipe
from tauflow.recipes.framing import Framing, Prompts
from tauflow.recipes.text_to_image import TextToImage
from tauflow.train import Trained

FRAMING = Framing(
    template="User: {prompt}\n\nAssistant:",
    first="<｜begin▁of▁sentence｜>",
    last="<begin_of_image>",
    after="<end_of_image>",
    null="<｜▁pad▁｜>",
    null_id=100015,
    length=500,
)
GUIDANCE = 6.0  # FUDOKI's w = 5 is the weight 1 + w
TEXT_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias"),
)
"""What is read of the settings of the language model; those that are not said are Llama's."""
VQ_16 = {"ch": 128, "ch_mult": (1, 1, 2, 2, 4), "z_channels": 256, "num_res_blocks": 2}
"""Sizes of the VQ model that its name stands for."""


class FudokiNetwork(Network):
    """Prompt, image tokens, end: one sequence under full attention.

    A condition (B, C) holds the tokens of framed prompts, with -1 after the last one; prompts of a batch may
    differ in length. A row of -1 alone is the prompt that says nothing.
    """

    def __init__(self, host: Any, prompts: Prompts):
        super().__init__()
        self.language_model = host.language_model
        self.generation_embeddings = host.generation_embeddings
        self.generation_aligner = host.generation_aligner
        self.generation_head = host.generation_head
        self.prompts = prompts
        self.conditions = prompts.conditions

    def hidden(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        ids, real = self._prompt(condition, x)
        embed = self.language_model.embed_tokens
        end = embed(ids.new_full((len(x), 1), self.prompts.after))
        codes = self.generation_aligner(self.generation_embeddings(x))
        real = torch.cat([real, real.new_ones(len(x), x.shape[1] + 1)], 1)
        states = self.language_model(
            inputs_embeds=torch.cat([embed(ids), codes, end], 1),
            attention_mask=None if bool(real.all()) else real,
            position_ids=(real.cumsum(1) - 1).clamp(min=0),
        ).last_hidden_state
        before = ids.shape[1] - 1  # logits of a token come from the position before it
        return states[:, before : before + x.shape[1]]

    def head(self, rows: Tensor) -> Tensor:
        return self.generation_head(rows)

    def null_condition(self, condition: Tensor | None) -> Tensor | None:
        """Return prompts (B, C) of the same lengths that say nothing."""
        return None if condition is None else self.prompts.emptied(condition)

    def _prompt(self, condition: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of prompts (B, P) with their ends in the last column, and where they are real."""
        nothing = self.prompts.nothing.to(x.device).expand(len(x), -1)
        if condition is None:
            condition = nothing
        given = condition != DROPPED
        if bool((given[:, 1:] & ~given[:, :-1]).any()):
            raise SamplingError(
                "a prompt has -1 after its last token only; make it with task.condition(text)"
            )
        condition = torch.where(given[:, :1], condition, nothing)
        lengths = (condition != DROPPED).sum(1, keepdim=True)
        width = int(lengths.max())
        columns = torch.arange(width, device=x.device) - (width - lengths)
        return condition.gather(1, columns.clamp(min=0)), columns >= 0


class Host(nn.Module):
    """The modules that hold the weights, under the names of Janus in transformers."""

    codebook: Tensor | None

    def __init__(self, config: Config):
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.janus.configuration_janus import JanusVQVAEConfig
        from transformers.models.janus.modeling_janus import JanusVQVAE, JanusVQVAEAlignerMLP, JanusVQVAEHead
        from transformers.models.llama.modeling_llama import LlamaModel, LlamaRotaryEmbedding

        full: dict[str, Any] = {"is_causal": False, "attn_implementation": "sdpa", "use_cache": False}
        text = LlamaConfig(**config["text_config"], **full)
        image = JanusVQVAEConfig(**config["vq_config"])
        self.language_model: Any = LlamaModel(text)
        with torch.device("cpu"):  # its numbers are computed, not loaded
            self.language_model.rotary_emb = LlamaRotaryEmbedding(text)
        self.generation_embeddings = nn.Embedding(image.num_embeddings, image.embed_dim)
        self.generation_aligner = JanusVQVAEAlignerMLP(image)
        self.generation_head = JanusVQVAEHead(image)
        self.vqmodel: Any = JanusVQVAE(image)
        del self.vqmodel.encoder, self.vqmodel.quant_conv  # pictures are only decoded
        self.register_buffer("codebook", torch.empty(image.num_embeddings, image.embed_dim))


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task."""
    host, config = loaded.host, loaded.config
    side = config["vq_config"]["num_patches"]
    prompts = Prompts.read(loaded.folder / "tokenizer.json", FRAMING, config["text_config"]["vocab_size"])
    task = TextToImage(host.vqmodel, prompts, (side, side), guidance=GUIDANCE)
    process = _process(host, loaded.folder, loaded.rates)
    return Trained(Model(FudokiNetwork(host, prompts), process, task.shape), task)


def _process(host: Any, folder: Path, rates: str) -> Process:
    if rates == "mixture":  # needs no vectors of the codes
        return surrogate(host.generation_embeddings.num_embeddings)
    if host.codebook is None:
        raise CheckpointError(
            f"{folder} has no image_embedding.pt, the code vectors that metric rates need; put it there, or "
            "take rates mixture"
        )
    return Metric(host.codebook.cpu())


def released_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of the released checkpoint as `Host` reads them."""
    image = config["gen_vision_config"]["params"]
    kind = config["gen_vision_config"].get("cls", "VQ-16")
    if kind != "VQ-16":
        raise CheckpointError(f"the VQ model is a {kind}; the recipe knows VQ-16")
    sizes = VQ_16 | image
    tokens = int(files["processor_config.json"].get("num_image_tokens", 576))
    side = math.isqrt(tokens)
    if side**2 != tokens:
        raise CheckpointError(f"processor_config.json says {tokens} image tokens, which fill no square grid")
    aligner, head = config["gen_aligner_config"]["params"], config["gen_head_config"]["params"]
    text = {name: value for name, value in config["language_config"].items() if name in TEXT_SIZES}
    return {
        "model_type": FUDOKI.model_type,
        "text_config": text,
        "vq_config": {
            "num_embeddings": int(image["image_token_size"]),
            "embed_dim": int(image["n_embed"]),
            "latent_channels": int(sizes["z_channels"]),
            "base_channels": int(sizes["ch"]),
            "channel_multiplier": [int(each) for each in sizes["ch_mult"]],
            "num_res_blocks": int(sizes["num_res_blocks"]),
            "num_patches": side,
            "num_hidden_layers": int(aligner["depth"]),
            "projection_dim": int(aligner["n_embed"]),
            "image_token_embed_dim": int(head["n_embed"]),
        },
    }


FUDOKI = Recipe(
    name="fudoki",
    model_type="fudoki",
    host=Host,
    assemble=assemble,
    optional=("codebook",),
    precise=("vqmodel.", "codebook"),
    any_width=("codebook",),
    rates=("metric", "mixture"),
)
"""A folder that `python -m tauflow.recipes convert` has written."""

RELEASED_FUDOKI = dataclasses.replace(
    FUDOKI,
    name="fudoki as released",
    model_type="multi_modality",
    hub=("*/FUDOKI*",),
    marks={"processor_config.json": {"sft_format": "fudoki"}},  # Janus has the same model_type
    config=released_config,
    keys=(
        (r"^language_model\.model\.", "language_model."),
        (r"^gen_embed\.", "generation_embeddings."),
        (r"^gen_aligner\.layers\.0\.", "generation_aligner.fc1."),
        (r"^gen_aligner\.layers\.2\.", "generation_aligner.hidden_layers.0."),
        (r"^gen_head\.output_mlp_projector\.", "generation_head.proj_out."),
        (r"^gen_head\.vision_head\.", "generation_head.vision_head."),
        (r"^gen_vision_model\.", "vqmodel."),
        (r"^vqmodel\.decoder\.conv_blocks\.(\d+)\.", r"vqmodel.decoder.up.\1."),
        (r"^vqmodel\.decoder\.up\.(\d+)\.res\.", r"vqmodel.decoder.up.\1.block."),
        (r"^vqmodel\.decoder\.mid\.0\.", "vqmodel.decoder.mid.block_1."),
        (r"^vqmodel\.decoder\.mid\.1\.", "vqmodel.decoder.mid.attn_1."),
        (r"^vqmodel\.decoder\.mid\.2\.", "vqmodel.decoder.mid.block_2."),
    ),
    unused=(
        r"language_model\.lm_head\.",
        r"vision_model\.",
        r"aligner\.",
        r"gen_vision_model\.(encoder|quant_conv)\.",
        r"gen_vision_model\.quantize\.codebook_used$",
        r".*\.rotary_emb\.inv_freq$",
    ),
    embeddings={"image_embedding.pt": "codebook"},
)
"""The folder of the hub, with the names of the original code."""
