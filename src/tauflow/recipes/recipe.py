"""Recipe: how weights trained by others become a tauflow model and task.

A recipe is data: how to recognize its folders, how to translate the names of weights, which weights aren't
needed, and what to tell the network. Two functions complete it: one builds the modules that hold the weights,
and one turns them into a `Trained`. Folders aren't trusted: weights come from safetensors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from tauflow.train import Trained

Config = dict[str, Any]

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model", "chat_template.jinja"),
)
"""Tokenizer files, as patterns. A folder has some of them."""
INSTALL = "pip install -c constraints.txt -e '.[pretrained]'"


@dataclass(frozen=True)
class Recipe:
    """How to load one kind of pretrained model.

    Every recipe uses the fields up to `rates`. The fields from `mask` on are for `assemble`, which reads what
    its kind of model needs: masked language models all but `time`, DiffusionGemma `schedule`, `framing`,
    `ends`, and `tokenizer`, and the DiTs `time`, `schedule`, and `tokenizer`.

    Args:
        name: name of the recipe.
        model_type: `model_type` in the folder's config.json; "*" matches any.
        host: builds the modules that hold the weights, from the config. It runs on the meta device, where
            tensors take no memory.
        assemble: makes the model and the task from what was loaded.
        architecture: pattern of an entry of `architectures` in config.json, if model_type isn't enough.
        hub: patterns of names on the hub, such as "*/FUDOKI*".
        package: returns the model's folder in an installed Python package. Users ask for it by the name of
            the recipe.
        marks: {file: {key: value}} that a folder also has, if several kinds share a model_type.
        config: translates config.json, and the files of `marks` by name, to what `host` reads.
        keys: (pattern, replacement) regular expressions that translate the names of weights, in order.
        unused: patterns of the names of weights that aren't needed.
        pickles: names of files with plain weights to read, with `weights_only`, if there are no safetensors.
        embeddings: {file: name} of pickled nn.Embedding modules, and the names of their weights in the host.
        optional: names of weights that may be missing.
        any_width: names of the host's own matrices that are as wide as in the file.
        precise: prefixes of the names of weights that stay in float32, whatever dtype is asked for.
        rates: names of the rates to sample with, the default first.
        mask: id of the mask if config.json doesn't have it. None: the tokenizer's, or there is no mask.
        shift: 1 if the logits of a token are at the position before it, else 0.
        allowed: tokens to draw: "all" ids but the mask, "plain" ones that aren't special, or their names.
        time: what the network gets as the time: t, sigma = -ln kappa, or nothing.
        schedule: schedule of its training.
        context: positions of its training, if config.json has more.
        framing: (before, after) names of tokens around a sequence, or "tokenizer": what the tokenizer adds.
        ends: names of tokens that end a text.
        tokenizer: Transformers class that reads a folder without tokenizer.json.
    """

    name: str
    model_type: str
    host: Callable[[Config], nn.Module]
    assemble: Callable[["Loaded"], Trained]
    architecture: str = "*"
    hub: tuple[str, ...] = ()
    package: Callable[[], Path] | None = None
    marks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Callable[[Config, Mapping[str, Config]], Config] = lambda config, files: config
    keys: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    pickles: tuple[str, ...] = ()
    embeddings: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    any_width: tuple[str, ...] = ()
    precise: tuple[str, ...] = ()
    rates: tuple[str, ...] = ("mixture",)
    mask: int | None = None
    shift: Literal[0, 1] = 0
    allowed: Literal["all", "plain"] | tuple[str, ...] = "all"
    time: Literal["t", "sigma"] | None = None
    schedule: str = "linear"
    context: int | None = None
    framing: Literal["tokenizer"] | tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    ends: tuple[str, ...] = ()
    tokenizer: str = "AutoTokenizer"

    @property
    def files(self) -> list[str]:
        """Return patterns of the files to download."""
        return ["config.json", *TOKENIZER_FILES, "*.safetensors*", *self.marks, *self.embeddings]

    @property
    def kind(self) -> str:
        """Return what config.json says in its folders, in words."""
        said = {"model_type": self.model_type, "architectures": self.architecture}
        return ", ".join(f"{name} {value}" for name, value in said.items() if value != "*") or "no model_type"


@dataclass(frozen=True)
class Loaded:
    """What `Recipe.assemble` gets.

    Args:
        host: the modules with their weights.
        folder: folder of the model.
        config: config.json, translated by the recipe.
        rates: rates asked for.
        recipe: the recipe.
    """

    host: Any
    folder: Path
    config: Config
    rates: str
    recipe: Recipe
