"""Hosts: classes of transformers that hold weights, and a language model as hidden() and head() apart.

Only classes that the installed transformers package defines itself are built; a name that a folder gives is
looked up there and nowhere else.

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
    frame_of,
    ids_of,
    mask_of,
    read_tokenizer,
)
from tauflow.recipes.recipe import INSTALL, Config, Loaded, Recipe
from tauflow.train import Trained

CHECKED = 3  # positions of the forward by which a split is checked
FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation")
"""Settings that would fetch or choose other code, besides those whose names begin with an underscore."""


def native(config: Config) -> nn.Module:
    """Return the model of a config {"class": a class of transformers, "settings": those of its config}."""
    import transformers

    kind = getattr(transformers, config["class"])
    return kind(kind.config_class(**config["settings"]))


def own_settings(config: Config) -> Config:
    """Return what a class of transformers may read of a config.json; refuse weights that are quantised."""
    if config.get("quantization_config"):
        raise CheckpointError("the weights are quantised; take those that are not")
    return {name: value for name, value in config.items() if name not in FOREIGN and not name.startswith("_")}


def is_native(host: nn.Module) -> bool:
    """Return whether a host is a class of transformers, which computes and ties some weights by itself."""
    return hasattr(host, "from_pretrained") and hasattr(host, "all_tied_weights_keys")


def unsaved(host: Any, found: set[str]) -> set[str]:
    """Return the names of weights that a folder with the names `found` need not have.

    Those that are computed, and one of each pair that is one matrix.
    """
    if not is_native(host):
        return set()
    frequencies = {name for name in host.state_dict() if name.endswith("inv_freq")} - found
    ties = host.all_tied_weights_keys.items()
    return frequencies | {
        source if target in found - {source} else target
        for target, source in ties
        if not {target, source} <= found
    }


def filled(host: Any, state: dict[str, Tensor], dtype: torch.dtype, folder: Path) -> nn.Module:
    """Return a model of transformers with weights; what is no weight, such as frequencies, is computed."""
    for target, source in host.all_tied_weights_keys.items():
        if source in state and target in state and not torch.equal(state[source], state[target]):
            raise CheckpointError(
                f"{target} in {folder} differs from {source}, which config.json says it is; set "
                "tie_word_embeddings there if the model was trained so"
            )
        if target in state:
            state.setdefault(source, state.pop(target))
    with _quiet():
        return type(host).from_pretrained(None, config=host.config, state_dict=state, dtype=dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """Stop transformers from telling of its progress, and of weights that it computes."""
    from transformers.utils import logging

    bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


class Body(nn.Module):
    """The part of a language model below its head; it answers with rows that it was given, if any."""

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
    """A language model of transformers as hidden() and head() of an `IdNetwork`.

    Its head is its own forward, in which the rows stand for what the part below the head would answer: so it
    is the model's own, whatever its class is.
    """

    def __init__(self, model: Any):
        super().__init__()
        prefix = model.base_model_prefix
        if not isinstance(getattr(model, prefix, None), nn.Module):
            raise CheckpointError(f"{type(model).__name__} has no part below its head; it cannot be split")
        setattr(model, prefix, Body(getattr(model, prefix)))
        self.model = model

    @property
    def body(self) -> Body:
        """Return the part below the head."""
        return getattr(self.model, self.model.base_model_prefix)

    def hidden(self, ids: Tensor, t: Tensor, attention: Tensor | None = None) -> Tensor:
        """Return rows (B, L, W) of ids (B, L); the time is not told."""
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
    def refuse_unsplit(self, known: Tensor) -> None:
        """Raise unless the two parts give what the model gives as a whole for ids of data tokens (V,)."""
        ids = known[None, :CHECKED].to(self.model.device)
        try:
            logits = self.head(self.hidden(ids, ids.new_zeros(1)))
            same = torch.allclose(logits, self.model(input_ids=ids).logits, atol=1e-3, rtol=1e-3)
        except Exception as error:  # transformers raises many kinds
            raise CheckpointError(f"{type(self.model).__name__} cannot be split: {error}") from None
        if not same:
            raise CheckpointError(
                f"{type(self.model).__name__} reads more than rows in its head, so it cannot be split; take "
                "tauflow.denoise.from_masked_lm"
            )


# Recipes of masked language models on classes of transformers: LLaDA, Dream, ESM-2, DPLM, and any other.
#
# LLaDA is Llama, and Dream is Qwen2, with full attention and other names; Dream's logits of a token stand at
# the position before it, as those of the model that it began as. ESM-2 and DPLM are the class of
# transformers,
# with a frame around each protein. `token_dropout` of ESM sets the embeddings of masks to zero and scales the
# others by 0.88 / (1 - share of masks), in which the frame counts as no mask: without one, an input of masks
# alone would have no finite scale. All but ESM-2 and the plain masked language models were trained to denoise
# at every share of masks under the linear schedule; on the posterior of a mask, the schedule has no
# influence.


AMINO_ACIDS = tuple("ACDEFGHIKLMNPQRSTVWY")
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings"),
)
"""What is read of the settings of Dream; those that are not said are Qwen2's."""
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
"""What the settings of a LLaDA must say, if they say it, for it to be a Llama."""


def llada_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of LLaDA as those of Llama; refuse what Llama has not."""
    other = [name for name, value in LLADA_IS.items() if (config.get(name, value) or None) != (value or None)]
    if other:
        raise CheckpointError(f"{other[0]} is {config[other[0]]!r}; the recipe is for {LLADA_IS[other[0]]!r}")
    sizes = {name: config[own] for own, name in LLADA_SIZES.items() if config.get(own) is not None}
    ids = config.get("embedding_size") or config["vocab_size"]
    own = {"vocab_size": ids, "hidden_act": "silu", "rms_norm_eps": 1e-5}  # LLaDA's where nothing is said
    settings = {**own, **sizes, **BIDIRECTIONAL}
    return _described("LlamaForCausalLM", settings, config)


def dream_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of Dream as those of Qwen2."""
    if config.get("use_sliding_window"):
        raise CheckpointError("use_sliding_window is set; the recipe is for full attention")
    settings = {name: config[name] for name in SIZES if config.get(name) is not None}
    return _described("Qwen2ForCausalLM", settings | BIDIRECTIONAL, config)


def esm_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of ESM."""
    if config.get("is_folding_model"):
        raise CheckpointError("this is ESMFold, which folds proteins; the recipe is for language models")
    if config.get("position_embedding_type") != "rotary":
        raise CheckpointError("the positions are not rotary; the recipe is for ESM-2 and DPLM")
    return _described("EsmForMaskedLM", own_settings(config), config)


def masked_lm_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of a masked language model; its class is that of transformers for its type."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as NAMES
    except ImportError:
        raise SettingsError(f"a masked language model needs more packages: {INSTALL}") from None
    kind = str(config.get("model_type"))
    if kind not in NAMES:
        raise CheckpointError(f"transformers has no masked language model of type {kind!r}")
    return _described(NAMES[kind], own_settings(config), config)


def _described(kind: str, settings: Config, config: Config) -> Config:
    """Return what `native` and `assemble` read; `mask` and `ends` are ids that config.json says."""
    said = config.get("eos_token_id")
    ends = said if isinstance(said, list) else [said]
    found = {"class": kind, "settings": settings, "ends": [each for each in ends if isinstance(each, int)]}
    return found if config.get("mask_token_id") is None else found | {"mask": config["mask_token_id"]}


def assemble(loaded: Loaded, checked: bool = False) -> Trained:
    """Make the model and the task; where the class is not known here, its parts are checked."""
    recipe, host = loaded.recipe, LanguageHost(loaded.host)
    num_ids = loaded.host.config.vocab_size
    tokenizer = read_tokenizer(loaded.folder, recipe.tokenizer)
    mask = mask_of(loaded, tokenizer, num_ids)
    ids = ids_of(loaded, tokenizer, num_ids, mask)
    before, after = frame_of(loaded, tokenizer)
    if checked:
        host.refuse_unsplit(ids.kept)
    context = context_of(host, tokenizer, recipe)
    context = None if context is None else context - len(before) - len(after)
    names = recipe.allowed if isinstance(recipe.allowed, tuple) else None
    vocabulary = tokenizer.get_vocab()
    ends = [*loaded.config["ends"], *(vocabulary[name] for name in recipe.ends if name in vocabulary)]
    task = Language(
        TextTokens(tokenizer, ids, names),
        min(LENGTH, context or LENGTH),
        tuple(token for token in dict.fromkeys(ids.tokens(ends)) if token >= 0),
        context,
        recipe.block,
    )
    network = IdNetwork(host, ids, before, after, recipe.shift)
    return Trained(Model(network, Mixture(Masked(len(ids)), recipe.schedule), task.shape), task)


def context_of(host: LanguageHost, tokenizer: Any, recipe: Recipe) -> int | None:
    """Return how many positions a model was trained with; None where nothing says so."""
    said = getattr(host.model.config, "max_position_embeddings", None)
    limits = [said, tokenizer.model_max_length, recipe.context]
    for name, module in host.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            begin = 0 if module.padding_idx is None else module.padding_idx + 1  # positions count from there
            limits.append(module.num_embeddings - begin)
    return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < 2**31), default=None)


LLADA = Recipe(
    name="llada",
    model_type="llada",
    host=native,
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
    host=native,
    assemble=assemble,
    architecture="DreamModel",  # other classes of this type are neither shifted nor fully attended
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
    host=native,
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
    host=native,
    assemble=partial(assemble, checked=True),
    architecture="*ForMaskedLM",
    hub=("*/*bert*", "*/*electra*generator*", "*/mpnet*"),
    config=masked_lm_config,
    keys=((r"\.gamma$", ".weight"), (r"\.beta$", ".bias")),  # as files of the first years have it
    unused=(r".*\.position_ids$", r".*\.pooler\.", r"cls\.seq_relationship\.", r".*rotary_emb\.inv_freq$"),
    pickles=("pytorch_model.bin",),
    allowed="plain",
    framing="tokenizer",
)

LANGUAGE = (LLADA, DREAM, ESM, MASKED_LM)
