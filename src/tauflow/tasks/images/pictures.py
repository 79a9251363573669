"""One picture: read from a file that is not trusted, and brought to a size.

A picture is uint8, (H, W) if it is grey, else (H, W, 3).
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from tauflow.errors import SettingsError, first_line

FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
EXTENSIONS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")


def opened(file: Path | bytes, name: str) -> np.ndarray:
    """Read a picture of 8 bits a channel, turned as its camera says; `name` is for messages.

    A palette is resolved, and an alpha channel dropped where every pixel is opaque. Transparent pixels, 16
    bits and other modes are refused: each could be converted in several ways.
    """
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
            return _pixels(ImageOps.exif_transpose(image), name)
    except SettingsError:
        raise
    except FileNotFoundError:
        raise SettingsError(f"there is no picture {name}") from None
    except IsADirectoryError:
        raise SettingsError(f"{name} is a folder; name a picture in it") from None
    except Exception as error:  # the library raises many kinds
        raise SettingsError(
            f"{name} is damaged, or not one of {', '.join(FORMATS)} ({first_line(error)}); replace or remove "
            "it"
        ) from None


def _pixels(image: Image.Image, name: str) -> np.ndarray:
    if image.mode in ("1", "L"):
        return np.array(image.convert("L"))
    if image.mode not in ("RGB", "P", "PA", "LA", "RGBA"):
        raise SettingsError(
            f"{name} has pixels of kind {image.mode}; save it as grey or RGB with 8 bits a channel"
        )
    image = image.convert("RGBA") if image.has_transparency_data else image
    if "A" in image.getbands() and np.array(image.getchannel("A")).min() < 255:
        raise SettingsError(f"{name} has transparent pixels; save it on a background, without alpha channel")
    return np.array(image.convert("RGB"))


def fitted(picture: np.ndarray, size: tuple[int, int], name: str) -> np.ndarray:
    """Return the middle of a picture in the proportions of `size` (H, W), reduced to it by area."""
    height, width = picture.shape[:2]
    if (height, width) == size:
        return picture
    if height < size[0] or width < size[1]:
        raise SettingsError(
            f"{name} has {height} x {width} pixels and is not enlarged to {size[0]} x {size[1]}; give a "
            "larger picture, or train with a smaller --data.size"
        )
    turned = (size[1], size[0])
    return np.array(ImageOps.fit(Image.fromarray(picture), turned, method=Image.Resampling.BOX))


def window(keep: str, height: int, width: int) -> tuple[slice, slice]:
    """Return the rows and columns of a half by its name, or of a rectangle x0,y0,x1,y1."""
    halves = {
        "left": (slice(None), slice(0, width // 2)),
        "right": (slice(None), slice(width // 2, None)),
        "top": (slice(0, height // 2), slice(None)),
        "bottom": (slice(height // 2, None), slice(None)),
    }
    if keep.strip().casefold() in halves:
        return halves[keep.strip().casefold()]
    words = [word.strip() for word in keep.split(",")]
    if len(words) == 4 and all(word.isdecimal() for word in words):
        left, top, right, bottom = (int(word) for word in words)
        if left < right <= width and top < bottom <= height:
            return slice(top, bottom), slice(left, right)
    raise SettingsError(
        f"keep {', '.join(halves)}, or x0,y0,x1,y1 within {width} x {height} pixels, got {keep!r}"
    )
