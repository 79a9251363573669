"""Sapiens: a masked language model of human antibodies as a judge, by pseudo-perplexity.

Its weights lie inside the package `sapiens` (MIT) as fairseq writes a RoBERTa; here the class of transformers
holds them. The checkpoint is a pickle of tensors and of the settings of its training, a plain
argparse.Namespace: torch reads it with `weights_only` and that one class more.

Shapes: B chains, P judged places of a chain, R = B * P rows, L positions, N ids.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tauflow.errors import CheckpointError, SettingsError, shorten
from tauflow.recipes.antibodies.package import install_command, packaged
from tauflow.recipes.recipe import INSTALL

FILE = "models/v1/checkpoint_vh.pt"  # of heavy chains
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
BEGIN, PAD, END, FIRST, MASK = 0, 1, 2, 4, 24  # ids; FIRST is that of the first residue
ROWS = 256  # that the model reads together
HEADS = "encoder_attention_heads"  # the one size that the weights do not show
KEYS = (
    (r"^decoder\.sentence_encoder\.embed_tokens\.", "roberta.embeddings.word_embeddings."),
    (r"^decoder\.sentence_encoder\.embed_positions\.", "roberta.embeddings.position_embeddings."),
    (r"^decoder\.sentence_encoder\.emb_layer_norm\.", "roberta.embeddings.LayerNorm."),
    (r"^decoder\.sentence_encoder\.layers\.", "roberta.encoder.layer."),
    (r"\.self_attn\.q_proj\.", ".attention.self.query."),
    (r"\.self_attn\.k_proj\.", ".attention.self.key."),
    (r"\.self_attn\.v_proj\.", ".attention.self.value."),
    (r"\.self_attn\.out_proj\.", ".attention.output.dense."),
    (r"\.self_attn_layer_norm\.", ".attention.output.LayerNorm."),
    (r"\.fc1\.", ".intermediate.dense."),
    (r"\.fc2\.", ".output.dense."),
    (r"\.final_layer_norm\.", ".output.LayerNorm."),
    (r"^decoder\.lm_head\.weight$", "lm_head.decoder.weight"),
    (r"^decoder\.lm_head\.", "lm_head."),
)
"""Names of fairseq, as regular expressions, to those of transformers."""


class Sapiens:
    """The judge of heavy chains, read from the installed package."""

    def __init__(self, device: torch.device | None = None):
        self.model = _host(packaged("sapiens", FILE)).to(device or "cpu")
        positions = self.model.roberta.embeddings.position_embeddings
        self.longest = positions.num_embeddings - PAD - 1 - 2  # positions count from PAD + 1; the frame is 2

    @torch.no_grad()
    def score(self, chains: Sequence[str], places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return -ln p (B,) of the residues at some places of chains of one length, and their number (B,).

        Each residue is masked alone and judged given all others of its chain.
        """
        count = torch.full((len(chains),), len(places))
        if not chains:
            return torch.zeros(0, dtype=torch.float64), count
        self.check_length(len(chains[0]))
        ids = torch.tensor([[BEGIN, *map(_id, chain), END] for chain in chains])  # (B, L)
        rows = torch.arange(len(chains)).repeat_interleave(len(places))  # (R,)
        columns = (torch.tensor(places) + 1).repeat(len(chains))
        parts = zip(rows.split(ROWS), columns.split(ROWS), strict=True)
        nll = torch.cat([self._nll(ids[row], column) for row, column in parts])
        return nll.view(len(chains), -1).sum(1), count

    def check_length(self, length: int) -> None:
        """Refuse chains that are longer than the model reads."""
        if length > self.longest:
            raise SettingsError(
                f"Sapiens reads at most {self.longest} residues, got {length}; draw fewer, or drop the judge"
            )

    def _nll(self, ids: Tensor, columns: Tensor) -> Tensor:
        """Return -ln p (R,) of one id in each row of ids (R, L)."""
        numbers = torch.arange(len(ids))
        true = ids[numbers, columns]
        masked = ids.index_put((numbers, columns), torch.tensor(MASK))
        device = self.model.device
        with torch.autocast(device.type, enabled=False):  # samples may be drawn in another precision
            hidden = self.model.roberta(input_ids=masked.to(device)).last_hidden_state
            logits = self.model.lm_head(hidden[numbers, columns]).double().cpu()
        return -logits.log_softmax(-1)[numbers, true]


def _id(residue: str) -> int:
    if residue not in RESIDUES:
        raise SettingsError(f"Sapiens judges the residues {RESIDUES}, got {residue!r}")
    return FIRST + RESIDUES.index(residue)


def _host(path: Path) -> Any:
    """Return the RobertaForMaskedLM that holds the weights of a checkpoint."""
    try:
        from transformers import RobertaConfig, RobertaForMaskedLM
    except ImportError:
        raise SettingsError(f"Sapiens needs more packages: {INSTALL}") from None
    again = f"{install_command('sapiens')} --force-reinstall"
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
        state = {_name(key): weight for key, weight in found["model"].items()}
        words = state["roberta.embeddings.word_embeddings.weight"]
        layers = [
            int(number[1]) for key in state if (number := re.match(r"roberta\.encoder\.layer\.(\d+)\.", key))
        ]
        config = RobertaConfig(
            vocab_size=len(words),
            hidden_size=words.shape[1],
            num_hidden_layers=1 + max(layers),
            num_attention_heads=getattr(found["args"], HEADS),
            intermediate_size=len(state["roberta.encoder.layer.0.intermediate.dense.weight"]),
            max_position_embeddings=len(state["roberta.embeddings.position_embeddings.weight"]),
            type_vocab_size=1,
            pad_token_id=PAD,
            layer_norm_eps=1e-5,
        )
        state["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, words.shape[1])
        state["lm_head.decoder.bias"] = state["lm_head.bias"]  # one vector
        model = RobertaForMaskedLM(config)
        model.load_state_dict(state)
    except Exception as error:  # torch and transformers raise many kinds
        reason = shorten(" ".join(str(error).split()) or type(error).__name__, 400)
        raise CheckpointError(f"{path} is damaged or another model ({reason}): {again}") from None
    return model.eval().requires_grad_(False)


def _name(key: str) -> str:
    for pattern, replacement in KEYS:
        key = re.sub(pattern, replacement, key)
    return key
