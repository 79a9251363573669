"""What `python sample.py` learns of a model before it samples, and keeps beside the checkpoint."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tauflow.files import check_writable

if TYPE_CHECKING:
    from tauflow.train import Trained


def with_learned(trained: "Trained", path: Path, arguments: argparse.Namespace) -> "Trained":
    """Return the model of a checkpoint with what was asked to be learned of it."""
    if arguments.learn_order or arguments.learn_influence or arguments.learn_counts:
        check_writable(
            path.parent,
            "what is learned is kept beside the checkpoint: copy it to a folder of your own first",
        )
    if arguments.learn_order:
        trained = _with_order(trained, path)
    if arguments.learn_influence:
        trained = _with_influence(trained, path)
    if arguments.learn_counts:
        trained = _with_counts(trained, path, arguments.learn_counts)
    return trained


def _with_order(trained: "Trained", path: Path) -> "Trained":
    """Learn an order, seconds on a small model, and keep it as a file beside the checkpoint."""
    from tauflow.samplers import learned

    print("learning an order from how coordinates depend on each other ...", flush=True)
    order = learned.learn_order(trained.model)
    print(f"order       {learned.save_order(path, order)}", flush=True)
    others = tuple(each for each in trained.model.counts if each.order != "learned")
    if others != trained.model.counts:  # those along the order before
        learned.save_counts(path, others)
    model = dataclasses.replace(trained.model, order=order, counts=others)
    return dataclasses.replace(trained, model=model)


def _with_counts(trained: "Trained", path: Path, order: str) -> "Trained":
    """Learn counts along an order, or along all, and keep them, with those of others, as a file."""
    from tauflow.samplers import learned

    model = trained.model
    for each in learned.orders_of(model) if order == "all" else [order]:
        learned.check_order(model, each)
        print(f"learning how many coordinates to reveal along the order {each} ...", flush=True)
        found = learned.learn_counts(model, cast(Any, each))
        others = [other for other in model.counts if other.order != found.order]
        model = dataclasses.replace(model, counts=(*others, found))
        learned.save_counts(path, model.counts)
    print(f"counts      {learned.counts_path(path)}", flush=True)
    return dataclasses.replace(trained, model=model)


def _with_influence(trained: "Trained", path: Path) -> "Trained":
    """Learn the influence of coordinates on each other, and keep it as a file beside the checkpoint."""
    from tauflow.samplers import learned

    print("learning how much coordinates influence each other ...", flush=True)
    found = learned.learn_influence(trained.model)
    print(f"influence   {learned.save_influence(path, found)}", flush=True)
    return dataclasses.replace(trained, model=dataclasses.replace(trained.model, influence=found))
