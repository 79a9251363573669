"""Recipe: how weights that others have trained become a model and a task of tauflow.

A recipe is data: how its folders are recognised, how the names of its weights are translated, which of them
are not needed, what its network must be told, and two functions, one that builds the modules that hold the
weights and one that makes a `Trained` of them. What a folder says of itself is not trusted: weights come from
safetensors alone.
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
"""Files of tokenizers, as patterns; a folder has some of them."""
INSTALL = "pip install -c constraints.txt -e '.[pretrained]'"


@dataclass(frozen=True)
class Recipe:
    """How one kind of pretrained model is loaded.

    Fields up to `rates` are read for every recipe. Those from `mask` on are there for `assemble`, which reads
    what its kind of model needs: that of masked language models all but `time`, that of DiffusionGemma
    `schedule`, `framing`, `ends` and `tokenizer`, that of the DiTs `time`, `schedule` and `tokenizer`.

    Args:
        name: of the recipe.
        model_type: in config.json, by which a folder is recognised; "*" is any.
        host: builds, from the config, the modules that hold the weights. It is called where tensors have no
            memory (the device meta).
        assemble: makes model and task of what was loaded.
        architecture: pattern of an entry of `architectures` in config.json, where the model_type says less.
        hub: patterns of names on the hub, such as "*/FUDOKI*".
        package: gives the folder of the model inside an installed Python package; it is asked for by the name
            of the recipe.
        marks: {file: {key: value}} that a folder of this kind also has, where several share a model_type.
        config: translates config.json, and the files of `marks` by their names, to what `host` reads.
        keys: (pattern, replacement) of regular expressions that translate the names of weights, in order.
        unused: patterns of the names of weights that are not needed.
        pickles: names of files of plain weights that are read, with `weights_only`, where there are no
            safetensors.
        embeddings: {file: name} of pickled nn.Embedding whose weight is wanted under a name.
        optional: names of weights that may be missing.
        any_width: names of matrices of the host itself that are as wide as in the file.
        precise: beginnings of the names of weights that stay in float32 whatever dtype is asked for.
        rates: names of the rates that the model can be sampled with, the default first.
        mask: id of the mask where config.json does not say it; None: it is that of the tokenizer, or there is
            no mask.
        shift: 1 where the logits of a token stand at the position before it, else 0.
        allowed: what is drawn: "all" ids but the mask, the "plain" ones that are not special, or names of
            tokens.
        time: what the network is told of the time: t, sigma = -ln kappa, or nothing.
        schedule: of its training.
        context: positions of its training, where config.json says more.
        block: tokens that are sampled together, where the network was trained so.
        framing: (before, after) of the names of tokens around a sequence, or "tokenizer": what that puts
            around a text.
        ends: names of tokens that end a text; what follows one is no part of it.
        tokenizer: class of transformers that reads a folder without tokenizer.json.
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
    block: int | None = None
    framing: Literal["tokenizer"] | tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    ends: tuple[str, ...] = ()
    tokenizer: str = "AutoTokenizer"

    @property
    def files(self) -> list[str]:
        """Return patterns of the files that are needed of a folder of the hub."""
        return ["config.json", *TOKENIZER_FILES, "*.safetensors*", *self.marks, *self.embeddings]


@dataclass(frozen=True)
class Loaded:
    """What `Recipe.assemble` makes a model and a task of.

    Args:
        host: the modules with their weights.
        folder: of the model.
        config: what config.json says in the words of the recipe.
        rates: that were asked for.
        recipe: by which it was loaded.
    """

    host: Any
    folder: Path
    config: Config
    rates: str
    recipe: Recipe
