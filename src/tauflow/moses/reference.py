"""Statistics of a set of molecules: what MOSES compares two sets by.

Shapes: N molecules, F features of ChemNet.
"""

import pickle
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tauflow.errors import SettingsError
from tauflow.files import atomic
from tauflow.moses.chemistry import PROPERTIES, fragments_of, molecules, properties_of, scaffolds_of
from tauflow.moses.chemnet import features, moments
from tauflow.moses.fingerprints import Fingerprints
from tauflow.moses.package import INSTALL_DATA, PlainUnpickler, molsets, needed

NAMES = {"logp": "logP", "sa": "SA", "qed": "QED", "weight": "weight"}
"""What MOSES calls the properties."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Statistics of a set of molecules.

    Args:
        mean: of the features of ChemNet (F,).
        covariance: of the features (F, F).
        fingerprints: of the molecules.
        fragments: how often each BRICS fragment occurs.
        scaffolds: how often each scaffold occurs.
        properties: of each molecule, "logp", "qed", "sa" and "weight", (N,) each.
    """

    mean: np.ndarray
    covariance: np.ndarray
    fingerprints: Fingerprints
    fragments: Counter[str]
    scaffolds: Counter[str]
    properties: dict[str, np.ndarray]

    @classmethod
    def of(cls, smiles: Sequence[str], device: torch.device | str = "cpu") -> "Reference":
        """Return the statistics of valid molecules; ChemNet runs on the device and reads canonical SMILES."""
        found = molecules(smiles)
        names = [needed("rdkit.Chem").MolToSmiles(each) for each in found]
        return cls(
            *moments(features(names, device)),
            Fingerprints.of(found),
            fragments_of(found),
            scaffolds_of(found),
            properties_of(found),
        )

    @classmethod
    @cache
    def shipped(cls, split: Literal["test", "test_scaffolds"]) -> "Reference":
        """Return the statistics of a test set of MOSES, as the package `molsets` brings them along.

        They are a pickle, of which arrays, numbers, strings and counts are read and nothing else.
        """
        path = molsets(f"dataset/data/{split}_stats.npz")
        try:
            found = _unpickled(path)
        except (pickle.UnpicklingError, zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError) as error:
            again = INSTALL_DATA.replace("--no-deps", "--no-deps --force-reinstall")
            raise SettingsError(f"cannot read {path} ({error}): {again}") from None
        return cls(
            found["FCD"]["mu"].astype(np.float64),
            found["FCD"]["sigma"],
            Fingerprints(np.packbits(found["SNN"]["fps"], axis=1)),
            found["Frag"]["frag"],
            found["Scaf"]["scaf"],
            {name: np.array(found[NAMES[name]]["values"]) for name in PROPERTIES},
        )

    def save(self, path: str | Path) -> None:
        """Write an .npz file of plain arrays, atomically."""
        arrays: dict[str, Any] = {"mean": self.mean, "covariance": self.covariance, **self.properties}
        arrays["fingerprints"] = self.fingerprints.packed
        for kind, counter in (("fragments", self.fragments), ("scaffolds", self.scaffolds)):
            arrays[kind] = np.array(list(counter), np.str_)
            arrays[f"{kind}_counts"] = np.array(list(counter.values()), np.int64)
        with atomic(path) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Reference":
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            return cls(
                arrays["mean"],
                arrays["covariance"],
                Fingerprints(arrays["fingerprints"]),
                _counter(arrays, "fragments"),
                _counter(arrays, "scaffolds"),
                {name: arrays[name] for name in PROPERTIES},
            )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise SettingsError(
                f"{path} holds no statistics of molecules ({error}); write them again with Reference.save"
            ) from None


def _counter(arrays: dict[str, np.ndarray], kind: str) -> Counter[str]:
    return Counter(dict(zip(arrays[kind].tolist(), arrays[f"{kind}_counts"].tolist(), strict=True)))


def _unpickled(path: Path) -> dict[str, dict[str, Any]]:
    """Read the dictionary that is pickled inside an array of Python objects."""
    module = getattr(np, "_core", None) or np.core  # numpy before 2.0
    known = {
        ("numpy.core.multiarray", "_reconstruct"): module.multiarray._reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
        ("collections", "Counter"): Counter,
    }
    with zipfile.ZipFile(path) as archive, archive.open("stats.npy") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        return PlainUnpickler(stream, known).load().item()
