"""EncodedPrompts: keys and values that an encoder of transformers leaves of prompts, kept for a run.

Shapes: B samples, P tokens of the longest prompt.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
