"""FUDOKI: text to image with a bidirectional Llama and the image tokens of a VQ model.

The network is Transformers' Llama with full attention. Image tokens have their own embedding and head. The
logits of an image token come from the position before it. The network doesn't get the time.

Shapes: B samples, D image tokens, V codes, C columns of a prompt, H x W pixels. A prompt is a row of token
ids with -1 after the last one.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from tokenizers import Tokenizer
from torch import Tensor, nn
from torchmetrics import MetricCollection

from tauflow.denoise import DROPPED, Model
from tauflow.denoise.model import surrogate
from tauflow.errors import CheckpointError, SettingsError
from tauflow.networks import Network
from tauflow.process import Metric, Process
from tauflow.recipes.language import OTHER_TOKENIZER, align_prompts
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.tasks import Task
from tauflow.tasks.images.metrics import BrightnessSpread, QuietNoise, chroma, luma
from tauflow.tasks.images.tokens import UNKNOWN
from tauflow.tasks.scenes.clip import CaptionScore, ClipScore, check_distinct_labels
from tauflow.tasks.scenes.rules import records
from tauflow.train import Trained
from tauflow.untrusted import blame_tokenizer, check_tokenizer

BATCH = 8  # images decoded together
MAX_KEPT = 512  # decoded images kept, since metrics, tables, and figures decode the same ones


# Prompts


@dataclass(frozen=True)
class Framing:
    """How to write a prompt: first, template with the prompt, last; then the sample; then after.

    Args:
        template: text around the prompt, with {prompt} in it.
        first: the token that starts a sequence.
        last: the token before the sample.
        after: the token after it.
        null: the token that replaces all between first and last in a prompt that says nothing.
        null_id: its id, checked if the vocabulary is that large; None isn't checked.
        length: maximum number of tokens of a prompt with its frame.
    """

    template: str
    first: str
    last: str
    after: str
    null: str
    null_id: int | None = None
    length: int = 500


class Prompts:
    """Prompts as rows of token ids, and back."""

    def __init__(self, tokenizer: Tokenizer, framing: Framing, num_ids: int):
        self.tokenizer = tokenizer
        self.framing = framing
        self.num_ids = num_ids
        self.first, self.last, self.after, self.null = (
            self._look_up(token) for token in (framing.first, framing.last, framing.after, framing.null)
        )
        if framing.null_id is not None and num_ids > framing.null_id != self.null:
            raise CheckpointError(
                f"The tokenizer has the id {self.null} for {framing.null}, but the model has "
                f"{framing.null_id}. {OTHER_TOKENIZER}"
            )
        self.nothing = self.empty(self._pad(self._frame("")))

    @classmethod
    def read(cls, path: Path, framing: Framing, num_ids: int) -> "Prompts":
        with blame_tokenizer(f"{path} can't be read"):
            text = path.read_text(encoding="utf-8")
            check_tokenizer(text)
            tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # "<begin_of_image>" in a prompt is text
        return cls(tokenizer, framing, num_ids)

    @property
    def conditions(self) -> tuple[int, ...]:
        """Return how many values each column has."""
        return (self.num_ids,) * self.framing.length

    def encode(self, text: str) -> Tensor:
        """Return the row (C,) of a prompt."""
        if not text.strip():
            raise SettingsError("The prompt must not be empty. Describe the image, such as: a red cube.")
        with blame_tokenizer("The model's tokenizer can't encode the prompt"):
            ids = self._frame(text.strip())
        if len(ids) > self.framing.length:
            raise SettingsError(
                f"The prompt must have at most {self.framing.length} tokens with its frame, got {len(ids)}. "
                "Shorten it."
            )
        return self._pad(ids)

    def decode(self, row: Tensor) -> str:
        """Return the text of a prompt (C,), empty if it says nothing."""
        inner = [each for each in row.tolist() if each != DROPPED][1:-1]
        text = self.tokenizer.decode([each for each in inner if each != self.null], skip_special_tokens=False)
        before, after = self.framing.template.split("{prompt}")
        return text.removeprefix(before).removesuffix(after)

    def empty(self, rows: Tensor) -> Tensor:
        """Return rows (..., C) of the same lengths with the null token between first and last."""
        given = rows != DROPPED
        place = torch.arange(rows.shape[-1], device=rows.device)
        inner = given & (place > 0) & (place < given.sum(-1, keepdim=True) - 1)
        return torch.where(inner, self.null, rows)

    def _pad(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids + [DROPPED] * (self.framing.length - len(ids)))

    def _frame(self, prompt: str) -> list[int]:
        text = self.framing.template.format(prompt=prompt)
        return [self.first, *self.tokenizer.encode(text, add_special_tokens=False).ids, self.last]

    def _look_up(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None or found >= self.num_ids:
            raise CheckpointError(
                f"The tokenizer has no token {token} among the model's {self.num_ids}. {OTHER_TOKENIZER}"
            )
        return found


# The task


class TextToImage(Task):
    """Images of prompts from a pretrained model, which comes without its data.

    Args:
        decoder: a Transformers VQ model, whose `decode` makes images (B, 3, H, W) in -1 to 1 of codes (B, D).
        prompts: the tokens of prompts.
        shape: of the grid of image tokens.
        guidance: the recommended weight.
        texts: prompts of samples without a condition; by default those of GenEval.
    """

    primary_metric = "quiet_luma"
    alone = "real data: none, because a pretrained model comes without its data"

    def __init__(
        self,
        decoder: Any,
        prompts: Prompts,
        shape: tuple[int, int],
        guidance: float | None = None,
        texts: Sequence[str] = (),
    ):
        self.decoder = decoder
        self.prompts = prompts
        self.shape = shape
        self.guidance = guidance
        self.texts = list(texts)
        self.num_tokens = decoder.quantize.num_embeddings
        self.conditions = prompts.conditions
        self.scores: list[ClipScore] = []
        self._images: dict[bytes, np.ndarray] = {}

    @property
    def tokenizer(self) -> Any:
        return self.prompts.tokenizer

    def setup(self, stage: str | None = None) -> None:
        raise SettingsError("A pretrained text-to-image model comes without data to train or validate on.")

    def condition(self, text: str) -> Tensor:
        return self.prompts.encode(text)

    def caption(self, condition: Tensor) -> str:
        return self.prompts.decode(condition)

    def sample_conditions(self, count: int, first: int = 0) -> Tensor:
        """Return the prompts (count, C) of the texts from number `first` on."""
        if not self.texts:
            self.texts = [record["prompt"] for record in records()]
        numbers = range(first, first + count)
        return torch.stack([self.condition(self.texts[number % len(self.texts)]) for number in numbers])

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, torchmetrics.Metric] = {
            "quiet_luma": QuietNoise(self.decode, luma),
            "quiet_chroma": QuietNoise(self.decode, chroma),
            "brightness_sd": BrightnessSpread(self.decode),
        }
        clip = {score.tag: CaptionScore(score, self.decode, self.caption) for score in self.scores}
        return MetricCollection({**clip, **metrics}, compute_groups=False)

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure the CLIP score under Transformers models, which are folders or names on the hub."""
        asked = dict.fromkeys(name.strip() for name in names.split(","))
        check_distinct_labels(asked)
        self.scores = [ClipScore(name, device) for name in asked]
        self.primary_metric = self.scores[0].tag

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        return self.decode(tokens).cpu().numpy()

    def decode(self, tokens: Tensor) -> Tensor:
        """Return images uint8 (B, H, W, 3) of tokens (B, D); a token that isn't a code is gray."""
        keys = [row.tobytes() for row in tokens.long().cpu().numpy()]
        new = {key: row for row, key in enumerate(keys) if key not in self._images}
        images = dict(self._images)
        for part in torch.tensor(list(new.values()), dtype=torch.long).split(BATCH):
            decoded = self._decode_batch(tokens[part.to(tokens.device)].long())
            images |= zip((keys[row] for row in part.tolist()), decoded, strict=True)
        self._images = dict(list(images.items())[-MAX_KEPT:])
        if not keys:
            return torch.zeros(0, 1, 1, 3, dtype=torch.uint8, device=tokens.device)
        return torch.from_numpy(np.stack([images[key] for key in keys])).to(tokens.device)

    @torch.no_grad()
    def _decode_batch(self, tokens: Tensor) -> np.ndarray:
        device = self.decoder.device
        tokens = tokens.to(device)
        data = (tokens >= 0) & (tokens < self.num_tokens)
        with torch.autocast(device.type, enabled=False):  # samples may be drawn in another precision
            levels = self.decoder.decode(tokens * data)
        images = ((levels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        grid = data.view(-1, 1, *self.shape).repeat_interleave(images.shape[2] // self.shape[0], 2)
        grid = grid.repeat_interleave(images.shape[3] // self.shape[1], 3)
        return torch.where(grid, images, UNKNOWN).permute(0, 2, 3, 1).cpu().numpy()


# The model


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
"""Settings of the language model that are read. Others are Llama's."""
VQ_16 = {"ch": 128, "ch_mult": (1, 1, 2, 2, 4), "z_channels": 256, "num_res_blocks": 2}
"""Sizes of the VQ model of this name."""


class FudokiNetwork(Network):
    """Prompt, image tokens, end: one sequence under full attention.

    A condition (B, C) has the tokens of framed prompts, with -1 after the last one. Prompts of a batch may
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
        ids, real = align_prompts(condition, self.prompts.nothing, x)
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
        return None if condition is None else self.prompts.empty(condition)


class FudokiHost(nn.Module):
    """The modules that hold the weights, under the names of Janus in Transformers."""

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
        del self.vqmodel.encoder, self.vqmodel.quant_conv  # images are only decoded
        self.register_buffer("codebook", torch.empty(image.num_embeddings, image.embed_dim))


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task."""
    host = loaded.host
    config = loaded.config
    side = config["vq_config"]["num_patches"]
    prompts = Prompts.read(loaded.folder / "tokenizer.json", FRAMING, config["text_config"]["vocab_size"])
    task = TextToImage(host.vqmodel, prompts, (side, side), guidance=GUIDANCE)
    process: Process
    if loaded.rates == "mixture":  # needs no code vectors
        process = surrogate(host.generation_embeddings.num_embeddings)
    elif host.codebook is None:
        raise CheckpointError(
            f"{loaded.folder} has no image_embedding.pt, the code vectors that metric rates need. Add it, or "
            "use rates='mixture'."
        )
    else:
        process = Metric(host.codebook.cpu())
    return Trained(Model(FudokiNetwork(host, prompts), process, task.shape), task)


def released_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of the released checkpoint as `FudokiHost` reads them."""
    image = config["gen_vision_config"]["params"]
    sizes = VQ_16 | image
    side = math.isqrt(int(files["processor_config.json"].get("num_image_tokens", 576)))
    aligner = config["gen_aligner_config"]["params"]
    head = config["gen_head_config"]["params"]
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
    host=FudokiHost,
    assemble=assemble,
    optional=("codebook",),
    precise=("vqmodel.", "codebook"),
    any_width=("codebook",),
    rates=("metric", "mixture"),
)
"""A folder written by `python -m tauflow.recipes convert`."""

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
"""The folder on the hub, with the names of the original code."""
