"""Text models of the flow_matching package: its example's Transformer is a DiT with separate q, k, and v.

It gets t as the time, and kappa = t^exponent. A run of the example is a folder with `.hydra/config.yaml` and
`checkpoints/checkpoint.pth`, a pickle with the weights and the optimizer's state. `from_run` writes the
weights as safetensors, with their settings, to a folder that `tauflow.pretrained` loads.
"""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from tauflow.errors import CheckpointError, shorten
from tauflow.files import check_writable
from tauflow.process.schedules import Polynomial
from tauflow.recipes.dits import GPT2_FILES, KEYS, MDLM, TRAINED_SIZES, describe
from tauflow.recipes.folders import check_new, create_folder, save_weights
from tauflow.recipes.recipe import Config
from tauflow.untrusted import check_regular, read_tensors

SETTINGS = Path(".hydra", "config.yaml")
CHECKPOINT = Path("checkpoints", "checkpoint.pth")
EMBEDDING = "vocab_embed.weight"
IS_MASKED = {"mask": True, "uniform": False}


def flow_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of a folder written by `from_run`."""
    flow = config["flow"]
    if flow["source_distribution"] not in IS_MASKED or flow["scheduler_type"] != "polynomial":
        raise CheckpointError(
            "source_distribution must be uniform or mask and scheduler_type polynomial, got "
            f"{shorten(str(flow['source_distribution']))} and {shorten(str(flow['scheduler_type']))}."
        )
    masked = IS_MASKED[flow["source_distribution"]]
    sizes = describe(config["model"], TRAINED_SIZES, config["num_states"] - masked, masked, apart=True)
    return {**sizes, "schedule": Polynomial(float(flow["exponent"]))}


FLOW_MATCHING = dataclasses.replace(
    MDLM,
    name="flow_matching",
    model_type="flow_matching",
    hub=(),
    config=flow_config,
    pickles=(),
    keys=((r"^((_orig_mod|module)\.)+", ""), *KEYS),
    time="t",
)


def from_run(run: str | Path, out: str | Path) -> None:
    """Write the model of a run of flow_matching's text example to a new folder, for `tauflow.pretrained`.

    No code of the pickle runs. The folder appears when it's complete. Add GPT-2's tokenizer.json to it unless
    the run has one.
    """
    run = Path(run)
    out = Path(out)
    check_new(out)
    settings = _read_settings(run / SETTINGS)
    weights = _read_weights(run / CHECKPOINT)
    check_writable(out.parent, "choose another folder")
    embedding = next(weight for name, weight in weights.items() if name.endswith(EMBEDDING))
    config = {"model_type": FLOW_MATCHING.model_type, "num_states": len(embedding), **settings}
    with create_folder(out) as made:
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_weights(weights, made / "model.safetensors")
        for name in itertools.chain(*GPT2_FILES):
            if (run / name).is_file():
                shutil.copyfile(run / name, made / name)


def _read_settings(path: Path) -> Config:
    """Return the settings of a run that are needed."""
    check_regular(path)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {"model": dict(found["model"]), "flow": dict(found["flow"])}
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(
            f"{path} isn't from a run of flow_matching: {type(error).__name__} {shorten(str(error))}"
        ) from None


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a pickle with plain data."""
    found = read_tensors(path, released=True)
    held: Any = found.get("model") if isinstance(found, dict) else None
    plain = isinstance(held, dict) and all(isinstance(each, Tensor) for each in held.values())
    if not plain or not any(str(name).endswith(EMBEDDING) for name in held):
        raise CheckpointError(
            f"{path} must have weights by name under 'model', such as {EMBEDDING}. Pass the folder of a run."
        )
    return {str(name): weight.detach().contiguous() for name, weight in held.items()}
