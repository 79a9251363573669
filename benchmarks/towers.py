"""Train the two towers of the caption score of scenes, a few minutes on one core:

    python -m benchmarks towers --out src/tauflow/tasks/scenes/towers.npz

InfoNCE: in a batch of scenes with different captions, each scene must find its caption and each caption its
scene.

Shapes: B pairs, D codes of a scene, C words of a caption.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tauflow import files
from tauflow.tasks.scenes.data import SceneItems
from tauflow.tasks.scenes.towers import SIZE, Towers, load_towers
from tauflow.tasks.task import ENDLESS

STEPS = 2000
BATCH = 128
RATE = 3e-3


def fit_towers(steps: int = STEPS, seed: int = 0) -> Towers:
    """Train towers on real scenes; a seed gives the same ones."""
    torch.manual_seed(seed)
    towers = Towers()
    optimizer = torch.optim.AdamW(towers.parameters(), RATE, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    items = SceneItems(SIZE, seed, "towers", ENDLESS)
    for step in range(steps):
        loss = _loss(towers, *pairs(items, step * BATCH, BATCH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    return towers.eval()


def pairs(items: SceneItems, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the scenes (B, D) and captions (B, C) of items from number `first` on, each caption once."""
    drawn = [items[number] for number in range(first, first + count)]
    once = {tuple(item["condition"].tolist()): item for item in drawn}.values()
    tokens = torch.stack([item["tokens"].flatten() for item in once])
    return tokens, torch.stack([item["condition"] for item in once])


def _loss(towers: Towers, tokens: Tensor, condition: Tensor) -> Tensor:
    cosines = towers.scenes(tokens) @ towers.captions(condition).T  # (B, B)
    logits = towers.logit_scale.clamp(max=4.0).exp() * cosines
    own = torch.arange(len(tokens))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


@torch.inference_mode()
def validate_towers(towers: Towers, batches: int = 20, count: int = 64) -> dict[str, float]:
    """Measure towers on new scenes, in batches of different captions."""
    items = SceneItems(towers.size, 0, "towers validation", batches * count)
    matching = 0.0
    others = 0.0
    right = 0
    total = 0
    for batch in range(batches):
        tokens, condition = pairs(items, batch * count, count)
        cosines = towers.scenes(tokens) @ towers.captions(condition).T
        matching += float(cosines.diagonal().mean()) / batches
        others += float(cosines[~torch.eye(len(tokens), dtype=torch.bool)].mean()) / batches
        right += int((cosines.argmax(1) == torch.arange(len(tokens))).sum())
        total += len(tokens)
    return {"matching": matching, "others": others, "retrieval": right / total, "captions": total / batches}


def save_towers(towers: Towers, path: Path) -> None:
    """Write the weights in half precision, atomically."""
    with files.atomic(path) as file:
        np.savez(file, **{name: weight.half().numpy() for name, weight in towers.state_dict().items()})


def main() -> None:
    """Train the towers, print how good they are and write their weights."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, towers.npz")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training, {STEPS} by default")
    arguments = parser.parse_args()
    save_towers(fit_towers(arguments.steps), arguments.out)
    found = validate_towers(load_towers(arguments.out))
    print(
        f"cosine {found['matching']:.3f} of scenes with their captions, {found['others']:.3f} with others; "
        f"{found['retrieval']:.1%} of the scenes find theirs among {found['captions']:.0f}"
    )


if __name__ == "__main__":
    main()
