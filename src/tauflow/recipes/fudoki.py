"""Framing: the tokens around a prompt, and prompts as conditions.

Shapes: B prompts, C columns. A prompt is a row of token ids with -1 after the last one.
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
from tauflow.errors import CheckpointError, SamplingError, SettingsError
from tauflow.networks import Network
from tauflow.process import Metric, Process
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.tasks import Task
from tauflow.tasks.images.metrics import BrightnessSpread, QuietNoise, chroma, luma
from tauflow.tasks.images.tokens import UNKNOWN
from tauflow.tasks.scenes.clip import CaptionScore, ClipScore, check_distinct_labels
from tauflow.tasks.scenes.rules import records
from tauflow.train import Trained
from tauflow.untrusted import blame_tokenizer, check_tokenizer


@dataclass(frozen=True)
class Framing:
    """How a prompt is written: first, template with the prompt, last; then what is sampled; then after.

    Args:
        template: text around the prompt, with {prompt} in it.
        first: the token that begins a sequence.
        last: the token before what is sampled.
        after: the token after it.
        null: the token that replaces every one between first and last where a prompt says nothing.
        null_id: its id, checked where the vocabulary is that large; None is not checked.
        length: tokens that a prompt may have, its frame included.
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
            self._id(token) for token in (framing.first, framing.last, framing.after, framing.null)
        )
        if framing.null_id is not None and num_ids > framing.null_id != self.null:
            raise CheckpointError(
                f"the tokenizer has the id {self.null} for {framing.null}, the model {framing.null_id}; take "
                "the tokenizer.json that belongs to the model"
            )
        self.nothing = self.emptied(self.row(self._ids("")))

    @classmethod
    def read(cls, path: Path, framing: Framing, num_ids: int) -> "Prompts":
        """Read a tokenizer.json."""
        if not path.is_file():
            raise CheckpointError(f"{path.parent} has no {path.name}, which prompts need; get it again")
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
        """Return the row (C,) of a prompt; refuse one that is empty or too long."""
        if not text.strip():
            raise SettingsError("the prompt is empty; say what the picture shows, such as a red cube")
        try:
            text.encode()
        except UnicodeError:
            raise SettingsError(f"The prompt must be valid Unicode (UTF-8), got {text!a}.") from None
        with blame_tokenizer("The model's tokenizer can't encode the prompt"):
            ids = self._ids(text.strip())
        if len(ids) > self.framing.length:
            raise SettingsError(
                f"the prompt takes {len(ids)} tokens with its frame, at most {self.framing.length} are "
                "allowed; shorten it"
            )
        if max(ids) >= self.num_ids:
            raise SettingsError(
                f"the tokenizer gives the id {max(ids)}, the model has {self.num_ids}; take the "
                "tokenizer.json that belongs to the model"
            )
        return self.row(ids)

    def decode(self, row: Tensor) -> str:
        """Return the text of a prompt (C,); nothing for one that says nothing."""
        inner = [each for each in row.tolist() if each != DROPPED][1:-1]
        text = self.tokenizer.decode([each for each in inner if each != self.null], skip_special_tokens=False)
        before, after = self.framing.template.split("{prompt}")
        return text.removeprefix(before).removesuffix(after)

    def emptied(self, rows: Tensor) -> Tensor:
        """Return rows (..., C) of the same lengths with the null token between first and last."""
        given = rows != DROPPED
        place = torch.arange(rows.shape[-1], device=rows.device)
        inner = given & (place > 0) & (place < given.sum(-1, keepdim=True) - 1)
        return torch.where(inner, self.null, rows)

    def row(self, ids: list[int]) -> Tensor:
        """Return ids as a row (C,) with -1 after them."""
        return torch.tensor(ids + [DROPPED] * (self.framing.length - len(ids)))

    def _ids(self, prompt: str) -> list[int]:
        text = self.framing.template.format(prompt=prompt)
        return [self.first, *self.tokenizer.encode(text, add_special_tokens=False).ids, self.last]

    def _id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None or found >= self.num_ids:
            raise CheckpointError(
                f"the tokenizer has no token {token} among the {self.num_ids} of the model; take the "
                "tokenizer.json that belongs to the model"
            )
        return found


# TextToImage: prompts in, pictures out, of a pretrained model that comes without its data.
#
# Shapes: B samples, D image tokens, C columns of a prompt, H x W pixels.


TOGETHER = 8  # pictures that are decoded at once
KEPT = 512  # decoded pictures that are kept, since metrics, tables and figures ask for the same ones


class TextToImage(Task):
    """Pictures of prompts, decoded by a VQ model of transformers with `decode(codes)`.

    Args:
        decoder: gives pictures (B, 3, H, W) in -1 to 1 of codes (B, D).
        prompts: the tokens of prompts.
        shape: of the grid of image tokens.
        guidance: the weight that is recommended.
        texts: prompts of samples that are asked for nothing else; by default those of GenEval.
    """

    primary_metric = "quiet_luma"
    alone = "no numbers of real data: a pretrained model comes without its data"

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
        self._pictures: dict[bytes, np.ndarray] = {}

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of prompts."""
        return self.prompts.tokenizer

    def setup(self, stage: str | None = None) -> None:
        raise SettingsError("a pretrained text-to-image model comes without data to train or validate on")

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
        """Measure the CLIP score under models of transformers, folders or names of the hub."""
        asked = dict.fromkeys(name.strip() for name in names.split(","))
        check_distinct_labels(asked)
        self.scores = [ClipScore(name, device) for name in asked]
        self.primary_metric = self.scores[0].tag

    def show(self, tokens: Tensor, condition: Tensor | None = None) -> np.ndarray:
        return self.decode(tokens).cpu().numpy()

    def decode(self, tokens: Tensor) -> Tensor:
        """Return pictures uint8 (B, H, W, 3) of tokens (B, D); a token that is no code is grey."""
        keys = [row.tobytes() for row in tokens.long().cpu().numpy()]
        new = {key: row for row, key in enumerate(keys) if key not in self._pictures}
        known = dict(self._pictures)
        for part in torch.tensor(list(new.values()), dtype=torch.long).split(TOGETHER):
            decoded = self._decoded(tokens[part.to(tokens.device)].long())
            known |= zip((keys[row] for row in part.tolist()), decoded, strict=True)
        self._pictures = dict(list(known.items())[-KEPT:])
        if not keys:
            return torch.zeros(0, 1, 1, 3, dtype=torch.uint8, device=tokens.device)
        return torch.from_numpy(np.stack([known[key] for key in keys])).to(tokens.device)

    @torch.no_grad()
    def _decoded(self, tokens: Tensor) -> np.ndarray:
        home = self.decoder.device
        tokens = tokens.to(home)
        data = (tokens >= 0) & (tokens < self.num_tokens)
        with torch.autocast(home.type, enabled=False):  # samples may be drawn in another precision
            levels = self.decoder.decode(tokens * data)
        pictures = ((levels.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        grid = data.view(-1, 1, *self.shape).repeat_interleave(pictures.shape[2] // self.shape[0], 2)
        grid = grid.repeat_interleave(pictures.shape[3] // self.shape[1], 3)
        return torch.where(grid, pictures, UNKNOWN).permute(0, 2, 3, 1).cpu().numpy()


# FUDOKI: text to image on a bidirectional Llama, with image tokens of a VQ model.
#
# The network is Llama of transformers with full attention; image tokens enter through an embedding of their
# own, and leave through a head of their own. The logits of an image token come from the position before it.
# The
# network is not told the time. Shapes: B samples, D image tokens, V codes, C columns of a prompt, W width.


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
