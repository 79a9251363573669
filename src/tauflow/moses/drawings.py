"""Pictures of molecules."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tauflow.errors import printable
from tauflow.moses.chemistry import parsed
from tauflow.moses.package import needed

CROSS, TEXT = (230, 170, 170), (90, 90, 90)
LETTER = (6, 12)  # pixels that a letter takes


def draw(smiles: Sequence[str | None], size: tuple[int, int] = (160, 240)) -> np.ndarray:
    """Return pictures, uint8 (B, H, W, 3), of molecules; what is none is crossed out, with its text on it."""
    pictures = np.zeros((len(smiles), *size, 3), np.uint8)
    for number, text in enumerate(smiles):
        molecule = None if text is None else parsed(text)
        picture = _crossed(text or "", size) if molecule is None else _drawn(molecule, size)
        pictures[number] = np.asarray(picture.convert("RGB"))
    return pictures


def _drawn(molecule: Any, size: tuple[int, int]) -> Image.Image:
    height, width = size
    canvas = needed("rdkit.Chem.Draw.rdMolDraw2D").MolDraw2DCairo(width, height)
    with needed("rdkit.rdBase").BlockLogs():
        canvas.DrawMolecule(molecule)
    canvas.FinishDrawing()
    return Image.open(io.BytesIO(canvas.GetDrawingText()))


def _crossed(text: str, size: tuple[int, int]) -> Image.Image:
    height, width = size
    picture = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(picture)
    pen.line((0, 0, width, height), fill=CROSS, width=2)
    pen.line((0, height, width, 0), fill=CROSS, width=2)
    lines = textwrap.wrap(printable(text), max(1, width // LETTER[0] - 1))[: height // LETTER[1]]
    pen.multiline_text((LETTER[0] // 2, 0), "\n".join(lines), fill=TEXT)
    return picture
