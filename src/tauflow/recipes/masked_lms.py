"""Masked language models on Transformers classes: LLaDA, Dream, ESM-2, DPLM, and any other.

LLaDA is Llama, and Dream is Qwen2, with full attention and other names. Dream's logits of a token are at the
position before it, as in the model it was initialized from. ESM-2 and DPLM are the ESM class, with a frame
around each protein. ESM's `token_dropout` sets the embeddings of masks to zero and scales the others by
0.88 / (1 - share of masks), in which the frame isn't masked: without it, a fully masked input would have no
finite scale. All but ESM-2 and the plain masked language models were trained to denoise at every share of
masks under the linear schedule. The posterior of a mask doesn't depend on the schedule.

Only classes that the installed transformers package defines itself are built: a name in a folder is looked up
there and nowhere else.

Shapes: B sequences, L positions, R rows, W width, N ids.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.denoise import Model
from tauflow.errors import CheckpointError, SettingsError
from tauflow.process import Masked, Mixture
from tauflow.recipes.language import (
    LENGTH,
    IdNetwork,
    Language,
    TextTokens,
    choose_ids,
    find_frame,
    find_mask,
    read_tokenizer,
)
from tauflow.recipes.recipe import INSTALL, Config, Loaded, Recipe
from tauflow.train import Trained

CHECKED = 3  # positions of the forward pass that checks a split
FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation")
"""Settings that would fetch or choose other code, as do those whose names start with an underscore."""
AMINO_ACIDS = tuple("ACDEFGHIKLMNPQRSTVWY")
DREAM_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings"),
)
"""Settings of Dream that are read. Others are Qwen2's."""
BIDIRECTIONAL: Config = {"is_causal": False, "use_cache": False}
LLADA_SIZES = {
    "d_model": "hidden_size",
    "mlp_hidden_size": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "max_sequence_length": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "weight_tying": "tie_word_embeddings",
}
LLADA_IS: Config = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "clip_qkv": None,
}
"""What the settings of a LLaDA must be, if they are there, for it to be a Llama."""


# Transformers models as hosts


def build_native(config: Config) -> nn.Module:
    """Return the model of a config {"class": a Transformers class, "settings": those of its config}."""
    import transformers

    kind = getattr(transformers, config["class"])
    return kind(kind.config_class(**config["settings"]))


def keep_settings(config: Config) -> Config:
    """Return what a Transformers class may read of a config.json."""
    if config.get("quantization_config"):
        raise CheckpointError("The weights must not be quantized. Get those that aren't.")
    return {name: value for name, value in config.items() if name not in FOREIGN and not name.startswith("_")}


def is_native(host: nn.Module) -> bool:
    """Return whether a host is a Transformers class, which computes and ties some weights by itself."""
    return hasattr(host, "from_pretrained") and hasattr(host, "all_tied_weights_keys")


def list_unsaved(host: Any, found: set[str]) -> set[str]:
    """Return the names of weights that a folder with the names `found` doesn't need to have.

    These are the computed ones, and one of each tied pair.
    """
    if not is_native(host):
        return set()
    frequencies = {name for name in host.state_dict() if name.endswith("inv_freq")} - found
    return frequencies | {
        source if target in found - {source} else target
        for target, source in host.all_tied_weights_keys.items()
        if not {target, source} <= found
    }


def fill_native(host: Any, state: dict[str, Tensor], dtype: torch.dtype, folder: Path) -> nn.Module:
    """Return a Transformers model with weights; it computes the rest, such as frequencies."""
    for target, source in host.all_tied_weights_keys.items():
        if source in state and target in state and not torch.equal(state[source], state[target]):
            raise CheckpointError(
                f"{target} and {source} in {folder} must be equal, since config.json ties them. Set "
                "tie_word_embeddings to false if the model was trained so."
            )
        if target in state:
            state.setdefault(source, state.pop(target))
    with _quiet():
        return type(host).from_pretrained(None, config=host.config, state_dict=state, dtype=dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off Transformers' progress bars and warnings about computed weights."""
    from transformers.utils import logging

    bar = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


class Body(nn.Module):
    """The part of a language model below its head; if it was given rows, it returns them."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner
        self.given: Tensor | None = None

    def forward(self, *inputs: Any, **options: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as Output

        if self.given is None:
            return self.inner(*inputs, **options)
        return Output(last_hidden_state=self.given)  # type: ignore[arg-type]  # any tensor will do

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # some heads read the embeddings
            return getattr(super().__getattr__("inner"), name)


class LanguageHost(nn.Module):
    """A Transformers language model as the hidden() and head() of an `IdNetwork`.

    The head is the model's own forward pass with the part below the head replaced by given rows. So it works
    for any class.
    """

    def __init__(self, model: Any):
        super().__init__()
        prefix = model.base_model_prefix
        setattr(model, prefix, Body(getattr(model, prefix)))
        self.model = model

    @property
    def body(self) -> Body:
        return getattr(self.model, self.model.base_model_prefix)

    def hidden(self, ids: Tensor, t: Tensor, attention: Tensor | None = None) -> Tensor:
        """Return rows (B, L, W) of ids (B, L); the model doesn't get the time."""
        return self.body.inner(input_ids=ids, attention_mask=attention).last_hidden_state

    def head(self, rows: Tensor) -> Tensor:
        """Return logits (..., N) of rows (..., W)."""
        flat = rows.reshape(1, -1, rows.shape[-1])
        self.body.given = flat
        try:
            return self.model(inputs_embeds=flat).logits.view(*rows.shape[:-1], -1)
        finally:
            self.body.given = None

    @torch.no_grad()
    def check_split(self, known: Tensor) -> None:
        """Raise an error unless the two parts give the logits of the whole model for some ids (V,)."""
        ids = known[None, :CHECKED].to(self.model.device)
        logits = self.head(self.hidden(ids, ids.new_zeros(1)))
        if not torch.allclose(logits, self.model(input_ids=ids).logits, atol=1e-3, rtol=1e-3):
            raise CheckpointError(
                f"{type(self.model).__name__} can't be split: its head reads more than rows. Use "
                "tauflow.from_masked_lm."
            )


# Settings of each kind of model


def llada_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return LLaDA's settings as Llama's."""
    for name, value in LLADA_IS.items():
        if (config.get(name, value) or None) != (value or None):
            raise CheckpointError(f"{name} must be {value!r} for LLaDA, got {config[name]!r}.")
    sizes = {name: config[own] for own, name in LLADA_SIZES.items() if config.get(own) is not None}
    ids = config.get("embedding_size") or config["vocab_size"]
    defaults = {"vocab_size": ids, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    return _describe("LlamaForCausalLM", {**defaults, **sizes, **BIDIRECTIONAL}, config)


def dream_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return Dream's settings as Qwen2's."""
    settings = {name: config[name] for name in DREAM_SIZES if config.get(name) is not None}
    return _describe("Qwen2ForCausalLM", settings | BIDIRECTIONAL, config)


def esm_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return ESM's settings."""
    if config.get("position_embedding_type") != "rotary":
        raise CheckpointError("position_embedding_type must be rotary, as in ESM-2 and DPLM.")
    return _describe("EsmForMaskedLM", keep_settings(config), config)


def masked_lm_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of a masked language model, whose class Transformers chooses by its type."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as NAMES
    except ImportError:
        raise SettingsError(f"A masked language model needs more packages: {INSTALL}") from None
    kind = str(config.get("model_type"))
    if kind not in NAMES:
        raise CheckpointError(f"Transformers has no masked language model of type {kind!r}.")
    return _describe(NAMES[kind], keep_settings(config), config)


def _describe(kind: str, settings: Config, config: Config) -> Config:
    """Return what `build_native` and `assemble` read; `mask` and `ends` are ids in config.json."""
    said = config.get("eos_token_id")
    ends = said if isinstance(said, list) else [said]
    found = {"class": kind, "settings": settings, "ends": [each for each in ends if isinstance(each, int)]}
    return found if config.get("mask_token_id") is None else found | {"mask": config["mask_token_id"]}


# Model and task


def assemble(loaded: Loaded, unknown_class: bool = False) -> Trained:
    """Make the model and the task; if the class isn't known here, check that it can be split."""
    recipe = loaded.recipe
    host = LanguageHost(loaded.host)
    num_ids = loaded.host.config.vocab_size
    tokenizer = read_tokenizer(loaded.folder, recipe.tokenizer)
    mask = find_mask(loaded, tokenizer, num_ids)
    ids = choose_ids(loaded, tokenizer, num_ids, mask)
    before, after = find_frame(loaded, tokenizer)
    if unknown_class:
        host.check_split(ids.kept)
    context = find_context(host, tokenizer, recipe)
    context = None if context is None else context - len(before) - len(after)
    names = recipe.allowed if isinstance(recipe.allowed, tuple) else None
    vocabulary = tokenizer.get_vocab()
    ends = [*loaded.config["ends"], *(vocabulary[name] for name in recipe.ends if name in vocabulary)]
    task = Language(
        TextTokens(tokenizer, ids, names),
        min(LENGTH, context or LENGTH),
        tuple(token for token in dict.fromkeys(ids.to_tokens(ends)) if token >= 0),
        context,
    )
    network = IdNetwork(host, ids, before, after, recipe.shift)
    return Trained(Model(network, Mixture(Masked(len(ids)), recipe.schedule), task.shape), task)


def find_context(host: LanguageHost, tokenizer: Any, recipe: Recipe) -> int | None:
    """Return how many positions a model was trained with, or None if nothing says so."""
    said = getattr(host.model.config, "max_position_embeddings", None)
    limits = [said, tokenizer.model_max_length, recipe.context]
    for name, module in host.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            start = 0 if module.padding_idx is None else module.padding_idx + 1  # positions count from there
            limits.append(module.num_embeddings - start)
    return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < 2**31), default=None)


# Recipes

LLADA = Recipe(
    name="llada",
    model_type="llada",
    host=build_native,
    assemble=assemble,
    hub=("GSAI-ML/LLaDA-8B-*", "GSAI-ML/LLaDA-1.5*"),
    config=llada_config,
    keys=(
        (r"^(model\.)?transformer\.wte\.", "model.embed_tokens."),
        (r"^(model\.)?transformer\.ln_f\.", "model.norm."),
        (r"^(model\.)?transformer\.ff_out\.", "lm_head."),
        (r"^(model\.)?transformer\.blocks\.(\d+)\.", r"model.layers.\2."),
        (r"^(model\.layers\.\d+)\.attn_norm\.", r"\1.input_layernorm."),
        (r"^(model\.layers\.\d+)\.([qkv])_proj\.", r"\1.self_attn.\2_proj."),
        (r"^(model\.layers\.\d+)\.attn_out\.", r"\1.self_attn.o_proj."),
        (r"^(model\.layers\.\d+)\.ff_norm\.", r"\1.post_attention_layernorm."),
        (r"^(model\.layers\.\d+)\.ff_proj\.", r"\1.mlp.gate_proj."),
        (r"^(model\.layers\.\d+)\.up_proj\.", r"\1.mlp.up_proj."),
        (r"^(model\.layers\.\d+)\.ff_out\.", r"\1.mlp.down_proj."),
    ),
    mask=126336,
    ends=("<|endoftext|>", "<|eot_id|>"),
    tokenizer="PreTrainedTokenizerFast",
)

DREAM = Recipe(
    name="dream",
    model_type="Dream",
    host=build_native,
    assemble=assemble,
    architecture="DreamModel",  # other classes of this type have no shift or causal attention
    hub=("Dream-org/Dream-v0-*", "Dream-org/Dream-Coder-*", "apple/DiffuCoder*"),
    config=dream_config,
    unused=(r".*rotary_emb\.inv_freq$",),
    mask=151666,
    shift=1,
    context=2048,
    ends=("<|endoftext|>", "<|im_end|>"),
    tokenizer="Qwen2Tokenizer",
)

ESM = Recipe(
    name="esm",
    model_type="esm",
    host=build_native,
    assemble=assemble,
    hub=("facebook/esm2_*", "airkingbd/dplm_*"),
    config=esm_config,
    keys=((r"^net\.", ""),),
    unused=(r".*rotary_embeddings\.inv_freq$", r".*position_ids$", r".*position_embeddings\.weight$"),
    pickles=("pytorch_model.bin",),
    optional=("esm.contact_head.regression.weight", "esm.contact_head.regression.bias"),
    allowed=AMINO_ACIDS,
    framing="tokenizer",
    tokenizer="EsmTokenizer",
)

MASKED_LM = Recipe(
    name="masked_lm",
    model_type="*",
    host=build_native,
    assemble=partial(assemble, unknown_class=True),
    architecture="*ForMaskedLM",
    hub=("*/*bert*", "*/*electra*generator*", "*/mpnet*"),
    config=masked_lm_config,
    keys=((r"\.gamma$", ".weight"), (r"\.beta$", ".bias")),  # as in old files
    unused=(r".*\.position_ids$", r".*\.pooler\.", r"cls\.seq_relationship\.", r".*rotary_emb\.inv_freq$"),
    pickles=("pytorch_model.bin",),
    allowed="plain",
    framing="tokenizer",
)

LANGUAGE = (LLADA, DREAM, ESM, MASKED_LM)
