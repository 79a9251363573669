"""DiffusionGemma: text from uniform noise, one canvas at a time, after a prompt that is encoded once.

The encoder reads the prompt from left to right and leaves keys and values. The decoder, which has the same
weights, reads them and the canvas in both directions. It doesn't get the time, but it has a memory: it adds
an embedding of the posterior of its last evaluation to the embedding of each token (self-conditioning).
Images in prompts aren't supported.

Shapes: B samples, D tokens of the canvas, V ids, C columns of a prompt, P tokens of the longest prompt, W
width.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from tauflow.denoise import DROPPED, Model
from tauflow.errors import CheckpointError, SettingsError
from tauflow.networks import Network
from tauflow.process import Mixture, Uniform
from tauflow.recipes.language import Ids, Language, TextTokens, align_prompts, find_frame, read_tokenizer
from tauflow.recipes.masked_lms import keep_settings
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.train import Trained

MAX_COLUMNS = 4096  # tokens of a prompt
MAX_LOGITS = 2**25  # logits made together for the memory: 128 MiB
MAX_CACHE = 2**32  # bytes of keys and values that are kept


# Encoded prompts


class Encoded(NamedTuple):
    """A batch of encoded prompts.

    Args:
        ids: prompts (B, P), which end in the last column.
        real: true (B, P) where they aren't padding.
        cache: their keys and values.
        run: number of the last run that used them.
    """

    ids: Tensor
    real: Tensor
    cache: Any
    run: int

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)

    def starts(self, ids: Tensor, real: Tensor) -> bool:
        """Return whether longer prompts (B, P) start with these."""
        width = self.ids.shape[1]
        if len(self.ids) != len(ids) or width >= ids.shape[1]:
            return False
        return torch.equal(self.ids, ids[:, :width]) and torch.equal(self.real, real[:, :width])


class EncodedPrompts:
    """Keys and values of the prompts of a run, encoded once; of longer prompts only the new part is encoded.

    A run starts with evaluations without a memory, one per part of a batch. Prompts of the run before that it
    doesn't use then are dropped at its second evaluation. If the cache has more than MAX_CACHE bytes, the
    oldest are dropped too, and encoded again when they're needed.
    """

    def __init__(self, encoder: Any):
        self.encoder = encoder
        self.encoded = 0  # columns so far
        self._home = encoder.device, encoder.dtype
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()
        self._run = 0
        self._starting = False

    def __len__(self) -> int:
        return len(self._kept)

    def get_cache(self, ids: Tensor, real: Tensor, starting: bool) -> Any:
        """Return the cache of prompts (B, P); `starting` is for an evaluation without a memory."""
        home = self.encoder.device, self.encoder.dtype
        if home != self._home:
            self._kept.clear()
            self._home = home
        self._run += starting and not self._starting
        self._starting = starting
        if not starting:
            for old in [key for key, each in self._kept.items() if each.run < self._run]:
                del self._kept[old]
        key = b"".join([str(ids.shape).encode(), _to_bytes(ids), _to_bytes(real)])
        if key not in self._kept:
            self._kept[key] = Encoded(ids, real, self._encode(ids, real), self._run)
            while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > MAX_CACHE:
                self._kept.popitem(last=False)
        self._kept[key] = self._kept[key]._replace(run=self._run)
        self._kept.move_to_end(key)
        return self._kept[key].cache

    @torch.no_grad()
    def _encode(self, ids: Tensor, real: Tensor) -> Any:
        """Return the cache of prompts; it grows from that of their longest known start, which is given up."""
        from transformers import DynamicCache

        cache: Any = DynamicCache(config=self.encoder.config)
        known = 0
        starts = [key for key, each in self._kept.items() if each.starts(ids, real)]
        if starts:
            longest = self._kept.pop(max(starts, key=lambda key: self._kept[key].ids.shape[1]))
            cache = longest.cache
            known = longest.ids.shape[1]
        places = (real.cumsum(1) - 1).clamp(min=0)
        self.encoder(
            input_ids=ids[:, known:],
            attention_mask=None if bool(real.all()) else real,
            position_ids=places[:, known:],
            past_key_values=cache,
        )
        self.encoded += ids.shape[1] - known
        return cache


def _to_bytes(values: Tensor) -> bytes:
    return values.contiguous().cpu().numpy().tobytes()


# The model


class DiffusionGemmaNetwork(Network):
    """A canvas after a prompt.

    A condition (B, C) has the ids of prompts, with -1 after the last one. Prompts of a batch may differ in
    length. A row of -1 alone is the token that starts a text. The memory is hidden states.
    """

    attends: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def __init__(self, host: "DiffusionGemmaHost", columns: int):
        super().__init__()
        text = host.settings.text_config
        self.conditions = (text.vocab_size,) * columns
        self.decoder = host.decoder
        if self.decoder.dtype == torch.float64:  # grouped matrix products don't support it
            text._experts_implementation = "eager"
        self.encoder = host.encoder()
        self.nothing = torch.tensor([text.bos_token_id] + [DROPPED] * (columns - 1))
        self.cap = text.final_logit_softcapping
        self.prompts = EncodedPrompts(self.encoder)

    def hidden(
        self,
        x: Tensor,
        t: Tensor,
        condition: Tensor | None = None,
        attention: Tensor | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        ids, real = align_prompts(condition, self.nothing, x)
        cache = self.prompts.get_cache(ids, real, starting=memory is None)
        read = torch.ones_like(x, dtype=torch.bool) if attention is None else attention
        # the canvas starts where the prompt ends, however long the others are
        places = real.sum(1, keepdim=True) + (read.cumsum(1) - 1).clamp(min=0)
        replaced = None if memory is None else self._expected_embedding(memory)
        hook = self.decoder.self_conditioning.register_forward_pre_hook(
            lambda module, inputs: inputs if replaced is None else (inputs[0], replaced)
        )
        try:
            found = self.decoder(
                decoder_input_ids=x,
                past_key_values=cache,
                decoder_attention_mask=torch.cat([real, read], 1),
                decoder_position_ids=places,
            )
        finally:
            hook.remove()
        return found.last_hidden_state

    def head(self, rows: Tensor) -> Tensor:
        logits = nn.functional.linear(rows, self.decoder.embed_tokens.weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def _expected_embedding(self, memory: Tensor) -> Tensor:
        """Return the expected embedding (B, D, W) under the posterior of hidden states (B, D, W)."""
        embedding = self.decoder.embed_tokens
        weight = embedding.weight
        rows = memory.flatten(0, 1).split(max(1, MAX_LOGITS // len(weight)))
        found = [self.head(part).softmax(-1).to(weight.dtype) @ weight for part in rows]
        return torch.cat(found).view_as(memory) * embedding.embed_scale.to(weight.dtype)


class DiffusionGemmaHost(nn.Module):
    """The decoder, and the scales of the encoder's layers, the only weights that aren't the decoder's."""

    def __init__(self, config: Config):
        super().__init__()
        from transformers import DiffusionGemmaConfig
        from transformers.models.diffusion_gemma import modeling_diffusion_gemma as modules

        self.settings = cast(Any, DiffusionGemmaConfig(**config))
        text = self.settings.text_config
        text._attn_implementation = self.settings._attn_implementation = "sdpa"
        self.decoder: Any = modules.DiffusionGemmaDecoderModel(self.settings)
        with torch.device("cpu"):  # their numbers are computed, not loaded
            self.decoder.rotary_emb = modules.DiffusionGemmaTextRotaryEmbedding(text)
            scale = torch.tensor(text.hidden_size**0.5)
            self.decoder.embed_tokens.register_buffer("embed_scale", scale, False)
        self.scales = nn.ParameterList(torch.empty(1) for _ in range(text.num_hidden_layers))

    def encoder(self) -> nn.Module:
        """Return the encoder, which consists of the decoder's modules."""
        from transformers import DiffusionGemmaEncoderTextModel

        with torch.device("meta"):
            encoder: Any = DiffusionGemmaEncoderTextModel(self.settings.text_config)
        for name in ("embed_tokens", "norm", "rotary_emb"):
            setattr(encoder, name, getattr(self.decoder, name))
        for own, layer, scale in zip(encoder.layers, self.decoder.layers, self.scales, strict=True):
            for name, module in layer.named_children():
                if name != "self_attn":
                    setattr(own, name, module)
            for name, module in layer.self_attn.named_children():
                setattr(own.self_attn, name, module)
            own.layer_scalar = scale
        return encoder.eval()


class Canvases(Language):
    """Texts that follow a prompt, one canvas of them."""

    def __init__(self, columns: int, *facts: Any):
        super().__init__(*facts)
        self.conditions = (self.num_tokens,) * columns

    def condition(self, text: str) -> Tensor:
        """Return a prompt as a condition (C,)."""
        return self.row(self.text.add_begin(self.text.encode(text)))

    def row(self, tokens: list[int]) -> Tensor:
        columns = len(self.conditions)
        if not 1 <= len(tokens) <= columns:
            raise SettingsError(f"A prompt must have 1 to {columns} tokens, got {len(tokens)}.")
        return torch.tensor(tokens + [DROPPED] * (columns - len(tokens)))

    def caption(self, condition: Tensor) -> str:
        tokens = condition[condition != DROPPED].tolist()
        begin = self.text.begin
        return self.text.decode(tokens[len(begin) :] if tokens[: len(begin)] == begin else tokens)

    def sample_conditions(self, count: int, first: int = 0) -> Tensor:
        """Return prompts (count, C) that say nothing."""
        return torch.full((count, len(self.conditions)), DROPPED)


# The recipe


def released_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings; encoder, decoder, and output must share their weights."""
    for part in (config, config["text_config"]):
        if not part.get("tie_word_embeddings", True):
            raise CheckpointError("tie_word_embeddings must be true for DiffusionGemma.")
    return keep_settings(config)


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task."""
    settings = loaded.host.settings
    text = settings.text_config
    canvas = settings.canvas_length
    tokenizer = read_tokenizer(loaded.folder, loaded.recipe.tokenizer)
    columns = min(MAX_COLUMNS, text.max_position_embeddings - canvas)
    if min(canvas, columns) < 1:
        raise CheckpointError(
            f"max_position_embeddings must hold a prompt and a canvas of {canvas} tokens, got "
            f"{text.max_position_embeddings}. Use the config.json that belongs to the model."
        )
    vocabulary = tokenizer.get_vocab()
    ends = [vocabulary[name] for name in loaded.recipe.ends if name in vocabulary]
    for said in (getattr(settings, "eos_token_id", None), text.eos_token_id, tokenizer.eos_token_id):
        ends = [*(said if isinstance(said, list) else [said]), *ends]
    known = dict.fromkeys(each for each in ends if each is not None and 0 <= each < text.vocab_size)
    begin, _ = find_frame(loaded, tokenizer)
    texts = TextTokens(tokenizer, Ids(range(text.vocab_size), text.vocab_size), begin=begin)
    task = Canvases(columns, texts, canvas, tuple(known), canvas, canvas)
    process = Mixture(Uniform(text.vocab_size), loaded.recipe.schedule)
    return Trained(Model(DiffusionGemmaNetwork(loaded.host, columns), process, task.shape), task)


DIFFUSION_GEMMA = Recipe(
    name="diffusion_gemma",
    model_type="diffusion_gemma",
    host=DiffusionGemmaHost,
    assemble=assemble,
    hub=("google/diffusiongemma-*",),
    config=released_config,
    keys=(
        (r"^model\.", ""),
        (r"^encoder\.language_model\.layers\.(\d+)\.layer_scalar$", r"scales.\1"),
        (r"^encoder\.language_model\.", "decoder."),
    ),
    unused=(r"model\.encoder\.(vision_tower|embed_vision)\.",),
    framing="tokenizer",
    ends=("<turn|>", "<end_of_turn>"),
)
