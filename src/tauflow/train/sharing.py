"""Share a model: a folder with its averaged weights, all that describes it, and a model card; the Hub.

model.safetensors   averaged weights
config.json         the model and its task as plain data, and the digests of the weights and the tokenizer
tokenizer.json      of a text model
model.order.json, model.counts.json, model.influence.json    what was learned from the model, if anything
statistics.npz      what samples of text and strings are measured against: it contains validation items
README.md           the model card

`tauflow.load` reads all of it through the same reader as a checkpoint. config.json is written last and
removed first, so that a folder without it is never taken for a model.
"""

import inspect
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save as serialize
from torch import Tensor

from tauflow.denoise import Model
from tauflow.errors import CheckpointError, SettingsError, TauflowError, WriteError, first_line, join_names
from tauflow.files import digest, digest_json, write
from tauflow.samplers.learned import save_counts, save_influence, save_order
from tauflow.tasks import Images
from tauflow.train.callbacks import in_words
from tauflow.train.checkpoint import (
    CONFIG,
    FILES,
    HUB_NAME,
    PREFIX,
    TOKENIZER,
    WEIGHTS,
    Trained,
    find_checkpoint,
    load,
    read,
    save,
)
from tauflow.train.counts import budget_of, learn_within
from tauflow.train.module import KEY
from tauflow.untrusted import read_json

CARD = "README.md"
RESULTS = Path("evaluation", "results.md")  # in the folder of a run


def export(
    path: str | Path,
    target: str | Path,
    *,
    half: bool = False,
    license: str | None = None,
    learn: bool = True,
    classes: Iterable[type] = (),
    progress: bool = False,
) -> Path:
    """Write a model to a folder that you can share: weights, description, tokenizer, and a model card.

    Use it to share a model, or to keep one for good. The averaged weights have about a quarter of the size of
    the checkpoint. You can't resume training from them. `tauflow.load` takes the folder, and `tauflow.push`
    uploads it to the Hugging Face Hub.

    Args:
        path: a run, a checkpoint, or a shipped model, as in `tauflow.load`.
        target: the folder to write. An earlier export there is replaced. With the suffix .ckpt it's a single
            file instead.
        half: round the weights to 16 bits, which halves the size. `tauflow.load` gives float32 again.
        license: for the model card, as the Hub names it, such as apache-2.0.
        learn: for a masked model without learned counts, learn them if that takes less than 5 % of the time
            that its training took.
        classes: your own classes that the checkpoint may name, as in `tauflow.load`.
        progress: show a progress bar while counts are learned.

    Returns:
        The folder or file.

    Examples:
        >>> folder = tauflow.export("countdown_masked", "my-model")  # doctest: +SKIP
        >>> trained = tauflow.load("my-model")  # doctest: +SKIP
    """
    source, target = find_checkpoint(path), Path(target)
    checkpoint = read(source)
    weights = _averaged_weights(checkpoint, source, half)
    if target.suffix == ".ckpt":
        step = checkpoint["global_step"]
        save({"state_dict": weights, "global_step": step, KEY: checkpoint[KEY]}, target)
        return target
    check_target(target)
    trained = load(source, classes=classes)
    if learn and trained.model.process.absorbing and not trained.model.counts:
        seconds = checkpoint.get("callbacks", {}).get("TrainingTime", {}).get("seconds", 0.0)
        counts = learn_within(trained.model, budget_of(seconds), progress=progress)
        trained = replace(trained, model=replace(trained.model, counts=counts))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
            made = Path(temporary)
            _write_model(checkpoint, weights, trained, made)
            _write_learned(trained.model, made / WEIGHTS)
            for name in trained.task.shared_files if trained.task else ():
                if (source.parent / name).exists():
                    shutil.copyfile(source.parent / name, made / name)
            write(made / CARD, model_card(trained, checkpoint, source, target.resolve().name, license))
            _move_files(made, target)
    except OSError as error:
        raise WriteError(f"Can't write {target} ({error.strerror or error}).", error.errno) from None
    return target


def _averaged_weights(checkpoint: dict[str, Any], path: Path, half: bool) -> dict[str, Tensor]:
    weights = {
        name: value.half() if half and value.dtype == torch.float32 else value.clone()
        for name, value in checkpoint["state_dict"].items()
        if name.startswith("ema.")
    }
    large = [name for name, value in weights.items() if half and not value.isfinite().all()]
    if large:
        raise CheckpointError(
            f"{join_names(large)} of {path} has numbers beyond 65504, which 16 bits do not hold. Export it "
            "without half."
        )
    return weights


def check_target(folder: Path) -> None:
    """Raise if a folder to write has files of something else than an exported model."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file. Choose a folder, or a name that ends with .ckpt.")
    ours = (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("library_name") == KEY
    others = [] if ours or not folder.exists() else sorted(path.name for path in folder.iterdir())
    if others:
        raise SettingsError(
            f"{folder} has other files ({join_names(others)}). Choose an empty folder, or one with an "
            "exported model, which is replaced."
        )


def _write_model(
    checkpoint: dict[str, Any], weights: dict[str, Tensor], trained: Trained, folder: Path
) -> None:
    """Write the weights, the tokenizer, and config.json, without settings that say where the data was."""
    named = {name.removeprefix(PREFIX): weight for name, weight in weights.items()}
    write(folder / WEIGHTS, serialize(named, {"format": "pt"}))
    entry = checkpoint[KEY]
    task = entry["task"]
    if trained.task is not None:
        local = trained.task.local
        arguments = {name: value for name, value in task["init_args"].items() if name not in local}
        tokenizer = arguments.pop("tokenizer_json", None)
        if tokenizer is not None:
            write(folder / TOKENIZER, tokenizer)
        task = task | {"init_args": arguments}
    config = {
        "format": entry["format"],
        "step": checkpoint["global_step"],
        "files": {name: digest(folder / name) for name in (WEIGHTS, TOKENIZER) if (folder / name).exists()},
        "model": entry["model"],
        "task": task,
    }
    head = {"library_name": KEY, "sha256": digest_json(config)}
    write(folder / CONFIG, json.dumps(head | config, indent=2) + "\n")


def _write_learned(model: Model, weights: Path) -> None:
    """Write what was learned from a model next to its weights, with their digest."""
    if model.order is not None:
        save_order(weights, model.order)
    if model.counts:
        save_counts(weights, tuple(model.counts))
    if model.influence is not None:
        save_influence(weights, model.influence)


def _move_files(made: Path, folder: Path) -> None:
    """Move the files of an exported model to its folder, and remove those of an earlier one there."""
    folder.mkdir(exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for path in sorted(made.iterdir(), key=lambda path: path.name == CONFIG):
        os.replace(path, folder / path.name)


# Model card


def model_card(
    trained: Trained, checkpoint: dict[str, Any], source: Path, name: str, license: str | None
) -> str:
    """Return the README.md of an exported model: what it is, how it was trained, and how to use it."""
    model, task = trained.model, trained.task
    entry = checkpoint[KEY]["task"]
    settings = {} if entry is None else entry["init_args"]
    parameters = sum(
        value.numel() for key, value in checkpoint["state_dict"].items() if key.startswith(PREFIX)
    )
    network = re.sub("Config$", "", _class_name(checkpoint[KEY]["model"]["init_args"].get("network")))
    saved = checkpoint.get("callbacks", {}).get("Checkpoints", {})
    score = f", {saved['monitor']} {saved['best_score']:.4g}" if saved.get("best_score") is not None else ""
    where = [
        Path(place.strip()).name
        for key in ("files", "pictures", "npz", "idx")
        for place in str(settings.get(key) or "").split(",")
        if place.strip()
    ]
    where += [settings["hub"]] if settings.get("hub") else []
    about = f"{type(task).__name__}: {inspect.getdoc(task)}".splitlines()[0].rstrip(":")
    facts = {
        **({"Task": about} if task is not None else {}),
        **({"Data": ", ".join(where)} if where else {}),
        "Samples": f"shape {model.shape} of {model.process.num_tokens} tokens",
        "Process": str(model.process),
        "Network": f"{network or 'Transformer'}, {in_words(parameters)} parameters",
        "Training": f"{trained.step} steps{score}",
    }
    front = {
        "library_name": KEY,
        **({"license": license} if license else {}),
        **({"datasets": [settings["hub"]]} if settings.get("hub") else {}),
        "tags": ["discrete-flow-matching", "discrete-diffusion", model.process.name],
    }
    show = (
        ""
        if task is None or isinstance(task, Images)
        else '\nprint(*trained.task.show(result.tokens), sep="\\n")'
    )
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n",
        f"# {name}\n\nA discrete-flow-matching model, trained with tauflow.\n",
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items())]) + "\n",
        "## Use\n\n```python\nimport tauflow\n\n"
        f'trained = tauflow.load("{name}")  # this folder, or user/name on the Hugging Face Hub\n'
        f'result = tauflow.sample(trained, "auto", nfe=16, count=4, seed=0){show}\n```\n',
    ]
    if (source.parent / RESULTS).is_file():
        table = "\n\n".join((source.parent / RESULTS).read_text().strip().split("\n\n")[:2])
        parts.append(f"## Samplers\n\nMeasured while it was trained, at the last evaluation.\n\n{table}\n")
    return "\n".join(parts)


def _class_name(spec: Any) -> str:
    return "" if spec is None else str(spec["class_path"]).rpartition(".")[2]


# The Hugging Face Hub


def push(folder: str | Path, name: str, *, private: bool | None = None) -> str:
    """Upload an exported folder to the Hugging Face Hub, from where `tauflow.load(name)` takes it.

    Use it after `tauflow.export`. Log in first, with `hf auth login` or the variable HF_TOKEN. Only the files
    of an exported model are uploaded; those of an earlier upload are replaced.

    Args:
        folder: what `tauflow.export` wrote.
        name: user/name or organization/name. The repository is made if there is none.
        private: whether a new repository is private; None is the default of its owner, mostly public.

    Returns:
        The address of the model on the Hub.

    Examples:
        >>> folder = tauflow.export("checkpoints/text/version_0", "my-model")  # doctest: +SKIP
        >>> tauflow.push(folder, "user/my-model", private=True)  # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    folder = Path(folder)
    if not re.fullmatch(HUB_NAME, name):
        raise SettingsError(f"The name on the Hub must be user/name, got {name!r}.")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}. Write the folder with tauflow.export first.")
    read(folder / WEIGHTS)  # complete, undamaged, and ours
    files = [file for file in (*FILES, CARD) if (folder / file).exists()]
    linked = [file for file in files if (folder / file).is_symlink()]
    if linked:
        raise CheckpointError(
            f"{folder} has links ({join_names(linked)}), which could point to other files of yours. Export "
            "the model to a folder, and upload that."
        )
    try:
        api = HfApi()
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id,
            folder_path=folder,
            allow_patterns=files,
            delete_patterns=list(FILES),
            commit_message="Upload a tauflow model",
        )
    except Exception as error:  # the library raises many kinds
        raise TauflowError(
            f"{folder} can't be uploaded to {name}: {first_line(error).rstrip('.')}. Log in with "
            "`hf auth login`, and check that the name is yours."
        ) from error
    return str(made)
