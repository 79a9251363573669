"""Settings of pictures that do not go together."""

from collections import Counter
from typing import TYPE_CHECKING

from tauflow.errors import SettingsError

if TYPE_CHECKING:
    from tauflow.tasks.images.task import Images

SOURCES = ("hub", "pictures", "npz", "idx")


def refuse_unfit(task: "Images") -> None:
    """Refuse settings that are wrong whatever the pictures are."""
    named = [name for name in SOURCES if getattr(task, name) is not None]
    if len(named) > 1:
        raise SettingsError(f"give one source of pictures, not {' and '.join(f'--data.{n}' for n in named)}")
    given = [task.size] * 2 if isinstance(task.size, int) else task.size or [1, 1]
    if len(given) != 2 or min(given) < 1:
        raise SettingsError(
            f"--data.size must be the pixels of a side or [height, width], at least 1, got {task.size}."
        )
    if task.batch_size < 1 or task.val_items < 2 or not 0 < task.val_share < 1:
        raise SettingsError(
            "images need batch_size >= 1, val_items >= 2 and val_share in (0, 1), got "
            f"{task.batch_size}, {task.val_items} and {task.val_share}"
        )
    if task.palette_colours is not None and (
        task.tokens != "palette" or len(task.palette_colours) != task.levels
    ):
        raise SettingsError(
            f"--data.palette_colours needs --data.tokens palette and --data.levels "
            f"{len(task.palette_colours)}, got {task.tokens} and {task.levels}"
        )


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
