"""Models of transformers by name: a folder, or a name of the hub that is in its cache or can be loaded."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tauflow.geneval.rules import GenEvalError


@cache
def loaded(what: str, name: str, model: str, processor: str) -> tuple[Any, Any]:
    """Load a model and its processor, once, by the names of their classes; `what` is for messages."""
    try:
        import transformers

        network, found = getattr(transformers, model).from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
        prepared = getattr(transformers, processor).from_pretrained(name, trust_remote_code=False)
    except ImportError:
        raise GenEvalError(
            f"{what} needs more packages: pip install -c constraints.txt -e '.[geneval]'"
        ) from None
    except Exception as error:  # the library raises many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise GenEvalError(
            f"cannot load {what} {name!r}: {reason}; name a folder with a {model} of transformers, or one of "
            "the hub that is in its cache or can be downloaded"
        ) from None
    if found["missing_keys"]:
        raise GenEvalError(
            f"cannot load {what} {name!r}: it has no weights of a {model}, or not all; name another"
        )
    return network.eval(), prepared


def label_of(name: str) -> str:
    """Return what stands for a model in tags: the last part of its name, without dots."""
    return re.sub(r"[^\w-]", "_", Path(name).name)


def refuse_same_labels(names: Iterable[str]) -> None:
    """Raise if two models would have one tag."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(label_of(name), name)
        if other != name:
            raise GenEvalError(
                f"{other} and {name} are both called {label_of(name)}; use one of them, or rename its folder"
            )


def own_device() -> torch.device:
    """Return the GPU of this process, if there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
