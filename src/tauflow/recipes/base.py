"""Recipe: how weights that others have trained become a model and a task of tauflow.

A recipe is data: how its folders are recognised, how the names of its weights are translated, which of them
are not needed, and two functions, one that builds the modules that hold the weights and one that makes a
`Trained` of them. What a folder says of itself is not trusted: weights come from safetensors alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from tauflow.train import Trained

Config = dict[str, Any]

INSTALL = "pip install -c constraints.txt -e '.[pretrained]'"


@dataclass(frozen=True)
class Recipe:
    """How one kind of pretrained model is loaded.

    Args:
        name: of the recipe.
        model_type: in config.json, by which a folder is recognised.
        host: builds, from the config, the modules that hold the weights. It is called where tensors have no
            memory (the device meta).
        assemble: makes model and task of the host with its weights, the folder, the config and the rates.
        hub: patterns of names on the hub, such as "*/FUDOKI*".
        marks: {file: {key: value}} that a folder of this kind also has, where several share a model_type.
        config: translates config.json, and the files of `marks` by their names, to what `host` reads.
        keys: (pattern, replacement) of regular expressions that translate the names of weights, in order.
        unused: patterns of the names of weights that are not needed.
        embeddings: {file: name} of pickled nn.Embedding whose weight is wanted under a name.
        optional: names of weights that may be missing.
        any_width: names of matrices of the host itself that are as wide as in the file.
        precise: beginnings of the names of weights that stay in float32 whatever dtype is asked for.
        rates: names of the rates that the model can be sampled with, the default first.
    """

    name: str
    model_type: str
    host: Callable[[Config], nn.Module]
    assemble: Callable[[nn.Module, Path, Config, str], Trained]
    hub: tuple[str, ...] = ()
    marks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Callable[[Config, Mapping[str, Config]], Config] = lambda config, files: config
    keys: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    embeddings: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    any_width: tuple[str, ...] = ()
    precise: tuple[str, ...] = ()
    rates: tuple[str, ...] = ("mixture",)

    @property
    def files(self) -> list[str]:
        """Return patterns of the files that are needed of a folder of the hub."""
        return ["config.json", "tokenizer.json", "*.safetensors*", *self.marks, *self.embeddings]
