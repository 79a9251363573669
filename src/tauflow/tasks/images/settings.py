"""Settings of pictures that do not go together."""

from collections import Counter
from typing import TYPE_CHECKING, get_args

from tauflow.errors import SettingsError
from tauflow.tasks.images.tokens import TokensName

if TYPE_CHECKING:
    from tauflow.tasks.images.task import Images

SOURCES = ("hub", "pictures", "npz", "idx")


def refuse_unfit(task: "Images") -> None:
    """Refuse settings that are wrong whatever the pictures are."""
    named = [name for name in SOURCES if getattr(task, name) is not None]
    if len(named) > 1:
        raise SettingsError(f"give one source of pictures, not {' and '.join(f'--data.{n}' for n in named)}")
    for name in ("hub_config", "hub_val_split", "image_column", "label_column"):
        if getattr(task, name) is not None and not task.hub:
            raise SettingsError(
                f"--data.{name} belongs to a data set of the hub; give --data.hub, or drop it"
            )
    if task.label_column and not task.labels:
        raise SettingsError("--data.label_column needs --data.labels true")
    if task.tokens not in get_args(TokensName):
        raise SettingsError(f"--data.tokens is one of {', '.join(get_args(TokensName))}, not {task.tokens}")
    given = task.size if isinstance(task.size, list | tuple) else [1 if task.size is None else task.size] * 2
    if len(given) != 2 or not all(isinstance(side, int) and side >= 1 for side in given):
        raise SettingsError(
            f"--data.size must be the pixels of a side or [height, width], at least 1, got {task.size}."
        )
    if task.batch_size < 1 or task.val_items < 2 or not 0 < task.val_share < 1:
        raise SettingsError(
            "images need batch_size >= 1, val_items >= 2 and val_share in (0, 1), got "
            f"{task.batch_size}, {task.val_items} and {task.val_share}"
        )
    if task.reference_items < 2:
        raise SettingsError(f"--data.reference_items must be at least 2, got {task.reference_items}")
    if task.palette_colours is not None and (
        task.tokens != "palette" or len(task.palette_colours) != task.levels
    ):
        raise SettingsError(
            f"--data.palette_colours needs --data.tokens palette and --data.levels "
            f"{len(task.palette_colours)}, got {task.tokens} and {task.levels}"
        )
    if task.class_names is not None and not task.labels:
        raise SettingsError("--data.class_names needs --data.labels true")


def refuse_repeated(names: list[str]) -> None:
    """Raise unless the names of classes are different texts, where case matters."""
    wrong = [name for name, count in Counter(names).items() if count > 1 or not isinstance(name, str)]
    if wrong or not names:
        raise SettingsError(
            f"Class names must be texts that occur only once, got {wrong[:3]}. Rename a class in the data, "
            "or pass --data.class_names."
        )


def sides(size: int | list[int]) -> tuple[int, int]:
    """Return the height and width of a setting."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width
