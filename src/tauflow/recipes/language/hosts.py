"""Hosts: classes of transformers that hold weights, and a language model as hidden() and head() apart.

Only classes that the installed transformers package defines itself are built; a name that a folder gives is
looked up there and nowhere else.

Shapes: B sequences, L positions, R rows, W width, N ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tauflow.errors import CheckpointError
from tauflow.recipes.base import Config

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
