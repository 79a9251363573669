"""Ids of a model as tokens of tauflow: the one adapter between them.

A model of others numbers its vocabulary in its own way: the mask stands anywhere, some ids are never drawn,
frame tokens stand around a sequence, and the logits of a token may stand at the position before it. tauflow's
tokens are 0 to V - 1, and the mask, where there is one, is V.

Shapes: B sequences, D coordinates, V data tokens, N ids, F tokens of the frame, L = D + F positions, W width.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tauflow.errors import CheckpointError
from tauflow.networks import Network


class Ids:
    """Which ids are data tokens: token s is the s-th smallest of them, the mask V is the id `mask`."""

    def __init__(self, kept: Iterable[int], num_ids: int, mask: int | None = None):
        self.num_ids = num_ids
        self.mask = mask
        self.kept = torch.tensor(sorted(set(kept)), dtype=torch.long)  # (V,)
        if not len(self.kept) or self.kept[0] < 0 or self.kept[-1] >= num_ids or mask in self.kept.tolist():
            raise CheckpointError(
                f"the data tokens of a model are some of its {num_ids} ids, and not its mask {mask}; got "
                f"{len(self.kept)} from {self.kept[:1].tolist()} to {self.kept[-1:].tolist()}"
            )
        self._tokens = torch.full((num_ids,), -1).scatter(0, self.kept, torch.arange(len(self.kept)))

    @classmethod
    def all_but(cls, mask: int | None, num_ids: int) -> "Ids":
        """Return all ids but the mask."""
        return cls((each for each in range(num_ids) if each != mask), num_ids, mask)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def table(self) -> Tensor:
        """Return the id of each state: (V + 1,) with the mask last, or (V,) without one."""
        return self.kept if self.mask is None else torch.cat([self.kept, torch.tensor([self.mask])])

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Return the data tokens as ranges (begin, end) of ids."""
        breaks = (self.kept.diff() != 1).nonzero().flatten() + 1
        parts = self.kept.tensor_split(breaks.tolist())
        return [(int(part[0]), int(part[-1]) + 1) for part in parts]

    def tokens(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of ids; -1 for an id that is no data token."""
        return [int(self._tokens[each]) if 0 <= each < self.num_ids else -1 for each in ids]

    def of(self, tokens: Sequence[int]) -> list[int]:
        """Return the ids of tokens (and of the mask V)."""
        return self.table[torch.tensor(tokens, dtype=torch.long)].tolist() if len(tokens) else []


class IdNetwork(Network):
    """A network over ids as a network over tokens.

    Coordinates that are not read (`attention`) are taken out before the network sees a sequence, so that each
    sequence of a ragged batch is framed and numbered as if it were alone.

    Args:
        host: a module with hidden(ids (B, L), t (B,), attention (B, L) or None) -> (B, L, W), where attention
            is true up to the end of each sequence, and head(rows (..., W)) -> logits (..., N) of all ids,
            which are written over.
        ids: which of them are data tokens.
        before: ids before a sequence.
        after: ids after it.
        shift: 1 where the row of a token stands at the position before it; the first row has to do for the
            first token too where nothing stands before it.
    """

    attends = True
    table: Tensor

    def __init__(
        self, host: Any, ids: Ids, before: Sequence[int] = (), after: Sequence[int] = (), shift: int = 0
    ):
        super().__init__()
        self.host = host
        self.ids = ids
        self.before = list(before)
        self.after = list(after)
        self.shift = shift
        self._first, self._moves = gathered(ids.runs)
        self.register_buffer("table", ids.table, persistent=False)

    def hidden(  # type: ignore[override]  # it has no conditions
        self, x: Tensor, t: Tensor, attention: Tensor | None = None
    ) -> Tensor:
        ids = self.table[x]
        if attention is not None and not bool(attention.all()):
            return self._ragged(ids, t, attention)
        before, after = (ids.new_tensor(part).expand(len(x), -1) for part in (self.before, self.after))
        rows = self.host.hidden(torch.cat([before, ids, after], 1), t, None)
        first = len(self.before) - self.shift
        if first < 0:
            return torch.cat([rows[:, :1], rows[:, : x.shape[1] - 1]], 1)
        return rows[:, first : first + x.shape[1]]

    def _ragged(self, ids: Tensor, t: Tensor, attention: Tensor) -> Tensor:
        """Return rows (B, D, W) of ids (B, D) that are in part not read; the rows of those mean nothing."""
        numbers = attention.cumsum(1) - 1  # of a coordinate in its sequence
        counts = attention.sum(1, keepdim=True)
        begin, frame = len(self.before), len(self.before) + len(self.after)
        width = int(counts.max()) + frame
        framed = self.table[:1].expand(len(ids), width + 1).clone()  # the last column takes what is not read
        framed[:, :begin] = ids.new_tensor(self.before)
        framed.scatter_(1, torch.where(attention, begin + numbers, width), ids)
        ends = begin + counts + torch.arange(len(self.after), device=ids.device)
        framed.scatter_(1, ends, ids.new_tensor(self.after).expand(len(ids), -1))
        real = torch.arange(width, device=ids.device) < (counts + frame).clamp(min=1)
        rows = self.host.hidden(framed[:, :width], t, real)
        places = (begin + numbers - self.shift).clamp(min=0)
        return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[2]))

    def head(self, rows: Tensor) -> Tensor:
        logits = self.host.head(rows)
        for place, begin, end in self._moves:
            logits[..., place : place + end - begin] = logits[..., begin:end].clone()
        return logits[..., self._first : self._first + len(self.ids)]


def gathered(runs: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int, int]]]:
    """Return how ranges (begin, end) of columns become one without a copy of all.

    The largest stays where it is, and the others are moved next to it: the first column of the result, and
    (place, begin, end) of the moves in order, none of which overwrites what a later one moves.
    """
    sizes = [end - begin for begin, end in runs]
    largest = sizes.index(max(sizes))
    first = runs[largest][0] - sum(sizes[:largest])
    places = [first + sum(sizes[:number]) for number in range(len(runs))]
    moves = [(place, *run) for place, run in zip(places, runs, strict=True)]
    return first, [*reversed(moves[:largest]), *moves[largest + 1 :]]
