"""EncodedPrompts: keys and values that an encoder of transformers leaves of prompts, kept for a run.

Shapes: B samples, P tokens of the longest prompt.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tauflow.denoise import DROPPED, Model
from tauflow.errors import CheckpointError, SamplingError, SettingsError
from tauflow.networks import Network
from tauflow.process import Mixture, Uniform
from tauflow.recipes.language import Ids, Language, TextTokens, find_frame, read_tokenizer
from tauflow.recipes.masked_lms import keep_settings
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.train import Trained

HELD = 2**32  # bytes of keys and values that are kept


class Encoded(NamedTuple):
    """A batch of prompts.

    Args:
        ids: of prompts (B, P), which end in the last column.
        real: true (B, P) where they are no padding.
        cache: their keys and values.
        run: number of the last run that asked for them.
    """

    ids: Tensor
    real: Tensor
    cache: Any
    run: int

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers)


class EncodedPrompts:
    """Keys and values of the prompts of a run, encoded once; of longer ones only what is new.

    A run begins with evaluations that remember nothing, one for each part of a batch. What it does not ask
    for then, of the run before, is dropped when its second evaluation is made. Of more than HELD bytes the
    oldest are dropped too, and encoded again when they are needed.
    """

    def __init__(self, encoder: Any):
        self.encoder = encoder
        self.encoded = 0  # columns so far, for those who count
        self._home = encoder.device, encoder.dtype
        self._found: OrderedDict[bytes, Encoded] = OrderedDict()
        self._run = 0
        self._beginning = False

    def __len__(self) -> int:
        """Return how many batches of prompts are kept."""
        return len(self._found)

    def cache(self, ids: Tensor, real: Tensor, beginning: bool) -> Any:
        """Return the cache of prompts (B, P) that are real where `real` is true.

        `beginning` says that the evaluation which they are for remembers nothing.
        """
        home = self.encoder.device, self.encoder.dtype
        if home != self._home:
            self._found.clear()
            self._home = home
        self._run += beginning and not self._beginning
        self._beginning = beginning
        if not beginning:
            self._drop([key for key, each in self._found.items() if each.run < self._run])
        key = b"".join([str(ids.shape).encode(), _bytes(ids), _bytes(real)])
        if key not in self._found:
            cache, known = self._begun(ids, real)
            self._encode(ids, real, cache, known)
            self._found[key] = Encoded(ids, real, cache, self._run)
            self._drop(self._beyond())
        self._found[key] = self._found[key]._replace(run=self._run)
        self._found.move_to_end(key)
        return self._found[key].cache

    def _drop(self, keys: list[bytes]) -> None:
        for key in keys:
            del self._found[key]

    def _beyond(self) -> list[bytes]:
        """Return the oldest batches that do not fit beside later ones; the last is needed now."""
        left, keys = HELD, []
        for number, (key, each) in enumerate(reversed(self._found.items())):
            left -= each.nbytes
            if number and left < 0:
                keys.append(key)
        return keys

    def _begun(self, ids: Tensor, real: Tensor) -> tuple[Any, int]:
        """Return the cache of the longest known beginning of prompts, and its length.

        It is no longer kept for the beginning alone: it grows to be that of the prompts.
        """
        from transformers import DynamicCache

        def begins(known: Encoded) -> bool:
            width = known.ids.shape[1]
            fits = len(known.ids) == len(ids) and width < ids.shape[1]
            return (
                fits and torch.equal(known.ids, ids[:, :width]) and torch.equal(known.real, real[:, :width])
            )

        fitting = [key for key, known in self._found.items() if begins(known)]
        if not fitting:
            return DynamicCache(config=self.encoder.config), 0
        known = self._found.pop(max(fitting, key=lambda key: self._found[key].ids.shape[1]))
        return known.cache, known.ids.shape[1]

    @torch.no_grad()
    def _encode(self, ids: Tensor, real: Tensor, cache: Any, known: int) -> None:
        places = (real.cumsum(1) - 1).clamp(min=0)
        self.encoder(
            input_ids=ids[:, known:],
            attention_mask=None if bool(real.all()) else real,
            position_ids=places[:, known:],
            past_key_values=cache,
        )
        self.encoded += ids.shape[1] - known


def _bytes(values: Tensor) -> bytes:
    return values.contiguous().cpu().numpy().tobytes()


# DiffusionGemma: text from uniform noise, a canvas at a time, after a prompt that is encoded once.
#
# The encoder reads the prompt from left to right and leaves keys and values; the decoder, which has the same
# weights, reads them and the canvas in both directions. It is not told the time, but remembers: to the
# embedding of each token it adds one of the posterior of its last evaluation (self-conditioning). Pictures in
# prompts are not read.
#
# Shapes: B samples, D tokens of the canvas, V ids, C columns of a prompt, P tokens of the longest prompt, W
# width.


COLUMNS = 4096  # tokens that a prompt may have
TOGETHER = 2**25  # logits that are made at once for the memory: 128 MiB


class DiffusionGemmaNetwork(Network):
    """A canvas after a prompt.

    A condition (B, C) holds the ids of prompts, with -1 after the last one; prompts of a batch may differ in
    length. A row of -1 alone is the token that begins a text. The memory is hidden states.
    """

    attends: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def __init__(self, host: "Host", columns: int):
        super().__init__()
        text = host.settings.text_config
        self.conditions = (text.vocab_size,) * columns
        self.decoder = host.decoder
        if self.decoder.dtype == torch.float64:  # grouped products of matrices have no such type
            text._experts_implementation = "eager"
        self.encoder = host.encoder()
        self.first = text.bos_token_id
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
        ids, real = self._prompt(condition, x)
        cache = self.prompts.cache(ids, real, beginning=memory is None)
        read = torch.ones_like(x, dtype=torch.bool) if attention is None else attention
        # the canvas begins where the prompt ends, however long the others are
        places = real.sum(1, keepdim=True) + (read.cumsum(1) - 1).clamp(min=0)
        replaced = None if memory is None else self._expected(memory)
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

    def _expected(self, memory: Tensor) -> Tensor:
        """Return the expected embedding (B, D, W) under the posterior of hidden states (B, D, W)."""
        embedding = self.decoder.embed_tokens
        weight = embedding.weight
        rows = memory.flatten(0, 1).split(max(1, TOGETHER // len(weight)))
        found = [self.head(part).softmax(-1).to(weight.dtype) @ weight for part in rows]
        return torch.cat(found).view_as(memory) * embedding.embed_scale.to(weight.dtype)

    def _prompt(self, condition: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return prompts (B, P) that end in the last column, and where they are real."""
        if condition is None:
            condition = torch.full((len(x), 1), DROPPED, device=x.device)
        given = condition != DROPPED
        if bool((given[:, 1:] > given[:, :-1]).any()):
            raise SamplingError("a prompt has -1 after its last id only; make it with task.condition(text)")
        lengths = given.sum(1, keepdim=True).clamp(min=1)
        width = int(lengths.max())
        columns = torch.arange(-width, 0, device=x.device) + lengths
        ids = condition.where(given.any(1, keepdim=True), self.first).gather(1, columns.clamp(min=0))
        return ids, columns >= 0


class Host(nn.Module):
    """The decoder, and the scales of the encoder's layers, the only weights that are not the decoder's."""

    def __init__(self, config: Config):
        super().__init__()
        self.settings = _settings(config)
        self.decoder = _decoder(self.settings)
        layers = self.settings.text_config.num_hidden_layers
        self.scales = nn.ParameterList(torch.empty(1) for _ in range(layers))

    def encoder(self) -> nn.Module:
        """Return the encoder, which is made of the decoder's modules."""
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


def _settings(config: Config) -> Any:
    """Return the settings as those of transformers."""
    from transformers import DiffusionGemmaConfig

    settings: Any = DiffusionGemmaConfig(**config)
    text = settings.text_config
    text._attn_implementation = settings._attn_implementation = "sdpa"
    return settings


def _decoder(settings: Any) -> Any:
    """Return the decoder; what of it is computed and not loaded has its numbers."""
    from transformers.models.diffusion_gemma import modeling_diffusion_gemma as modules

    decoder: Any = modules.DiffusionGemmaDecoderModel(settings)
    text = settings.text_config
    with torch.device("cpu"):
        decoder.rotary_emb = modules.DiffusionGemmaTextRotaryEmbedding(text)
        decoder.embed_tokens.register_buffer("embed_scale", torch.tensor(text.hidden_size**0.5), False)
    return decoder


class Canvases(Language):
    """Texts that follow a prompt, one canvas of them."""

    def __init__(self, columns: int, *facts: Any):
        super().__init__(*facts)
        self.conditions = (self.num_tokens,) * columns

    def condition(self, text: str) -> Tensor:
        """Return a prompt as a condition (C,)."""
        return self.row(self.text.add_begin(self.text.encode(text)))

    def row(self, tokens: list[int]) -> Tensor:
        """Return the tokens of a prompt as a condition (C,)."""
        columns = len(self.conditions)
        if not 1 <= len(tokens) <= columns:
            raise SettingsError(f"a prompt has 1 to {columns} tokens, this one {len(tokens)}; give another")
        return torch.tensor(tokens + [DROPPED] * (columns - len(tokens)))

    def caption(self, condition: Tensor) -> str:
        tokens, begin = condition[condition != DROPPED].tolist(), self.text.begin
        return self.text.decode(tokens[len(begin) :] if tokens[: len(begin)] == begin else tokens)

    def sample_conditions(self, count: int, first: int = 0) -> Tensor:
        """Return prompts (count, C) that say nothing."""
        return torch.full((count, len(self.conditions)), DROPPED)


def released_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings; refuse an encoder and an output that have weights of their own, and no BOS."""
    for part in (config, config["text_config"]):
        if not part.get("tie_word_embeddings", True):
            raise CheckpointError("tie_word_embeddings is false; the recipe is for weights that are shared")
    if config["text_config"].get("bos_token_id", 2) is None:
        raise CheckpointError("bos_token_id is null; it must be the id that an empty prompt consists of")
    if int(config["canvas_length"]) < 1:
        raise CheckpointError(f"canvas_length is {config['canvas_length']}; it must be at least 1")
    return keep_settings(config)


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task."""
    settings = loaded.host.settings
    text, canvas = settings.text_config, settings.canvas_length
    tokenizer = read_tokenizer(loaded.folder, loaded.recipe.tokenizer)
    columns = min(COLUMNS, text.max_position_embeddings - canvas)
    if columns < 1:
        raise CheckpointError(
            f"max_position_embeddings {text.max_position_embeddings} leave no place for a prompt before a "
            f"canvas of {canvas}; take the config.json that belongs to the model"
        )
    ends = [tokenizer.eos_token_id, text.eos_token_id, getattr(settings, "eos_token_id", None)]
    flat = [each for one in ends for each in (one if isinstance(one, list) else [one])]
    vocabulary = tokenizer.get_vocab()
    flat += [vocabulary[name] for name in loaded.recipe.ends if name in vocabulary]
    known = tuple(dict.fromkeys(each for each in flat if each is not None and 0 <= each < text.vocab_size))
    begin, _ = find_frame(loaded, tokenizer)
    texts = TextTokens(tokenizer, Ids.all_but(None, text.vocab_size), begin=begin)
    task = Canvases(columns, texts, canvas, known, canvas, canvas)
    process = Mixture(Uniform(text.vocab_size), loaded.recipe.schedule)
    return Trained(Model(DiffusionGemmaNetwork(loaded.host, columns), process, task.shape), task)


DIFFUSION_GEMMA = Recipe(
    name="diffusion_gemma",
    model_type="diffusion_gemma",
    host=Host,
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
