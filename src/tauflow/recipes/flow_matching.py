"""Text models of the flow_matching package: its example's Transformer is a DiT with q, k and v apart.

It is told t, and kappa = t^exponent. A run of the example is a folder with `.hydra/config.yaml` and
`checkpoints/checkpoint.pth`, a pickle in which the optimizer's numbers lie beside the weights. `from_run`
writes the weights alone as safetensors, with what config.yaml says of them: a folder that
`tauflow.pretrained` loads.
"""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml
from torch import Tensor

from tauflow.errors import CheckpointError, shorten
from tauflow.files import check_writable
from tauflow.process.schedules import Polynomial
from tauflow.recipes.dits import GPT2_FILES, KEYS, MDLM, TRAINED_SIZES, described
from tauflow.recipes.folders import check_new, create_folder, save_weights
from tauflow.recipes.recipe import Config
from tauflow.untrusted import check_regular, read_tensors

SETTINGS = Path(".hydra", "config.yaml")
CHECKPOINT = Path("checkpoints", "checkpoint.pth")
LARGEST = 2**20  # bytes of the settings
EMBEDDING = "vocab_embed.weight"
SOURCES = {"mask": True, "uniform": False}


def flow_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of a folder that `from_run` has written."""
    flow = config["flow"]
    if flow["source_distribution"] not in SOURCES or flow["scheduler_type"] != "polynomial":
        raise CheckpointError(
            f"the source {shorten(str(flow['source_distribution']))} on a "
            f"{shorten(str(flow['scheduler_type']))} schedule is not known; the recipe is for uniform or "
            "mask, and polynomial"
        )
    masked = SOURCES[flow["source_distribution"]]
    sizes = described(config["model"], TRAINED_SIZES, config["num_states"] - masked, masked, apart=True)
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

    No code of the pickle runs. The folder appears when it is
    complete; put GPT-2's tokenizer.json there unless it lies in the run.
    """
    run, out = Path(run), Path(out)
    check_new(out)
    settings, weights = _settings(run / SETTINGS), _weights(run / CHECKPOINT)
    check_writable(out.parent, "name another folder")
    embedding = next(weight for name, weight in weights.items() if name.endswith(EMBEDDING))
    config = {"model_type": FLOW_MATCHING.model_type, "num_states": len(embedding), **settings}
    with create_folder(out) as made:
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_weights(weights, made / "model.safetensors")
        for name in itertools.chain(*GPT2_FILES):
            if (run / name).is_file():
                shutil.copyfile(run / name, made / name)


def _settings(path: Path) -> Config:
    """Return what is needed of the settings of a run."""
    check_regular(path)
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError("it is too large")
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {"model": dict(found["model"]), "flow": dict(found["flow"])}
    except OSError:
        raise CheckpointError(
            f"{path} cannot be read; name the folder of a run of flow_matching's text example"
        ) from None
    except (ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(
            f"{path} is not that of a run of flow_matching: {type(error).__name__} {shorten(str(error))}"
        ) from None


def _weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a pickle, which may hold plain data only."""
    found = read_tensors(path, released=True)
    held = found.get("model") if isinstance(found, dict) else None
    if not isinstance(held, dict) or not all(isinstance(each, Tensor) for each in held.values()):
        raise CheckpointError(f"{path} has no weights by their names as its model; name the folder of a run")
    weights = {str(name): weight.detach().contiguous() for name, weight in held.items()}
    if not any(name.endswith(EMBEDDING) and weight.ndim == 2 for name, weight in weights.items()):
        raise CheckpointError(f"{path} has no {EMBEDDING} among its weights; it is of another model")
    return weights
