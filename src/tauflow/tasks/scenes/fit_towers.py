"""Train the two towers of the caption score on real scenes, a few minutes on one core:

    python -m tauflow.tasks.scenes.fit_towers --out src/tauflow/tasks/scenes/towers.npz

InfoNCE: of a batch of scenes with different captions, each must find its caption and each caption its scene.

Shapes: B pairs, D codes of a scene, C words of a caption.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tauflow.tasks.scenes.data import SceneItems
from tauflow.tasks.scenes.towers import SIZE, Towers, loaded, save
from tauflow.tasks.task import ENDLESS

STEPS, BATCH, RATE = 2000, 128, 3e-3


def fitted(steps: int = STEPS, seed: int = 0) -> Towers:
    """Train towers on real scenes, the same ones of a seed."""
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
    logits, own = towers.logit_scale.clamp(max=4.0).exp() * cosines, torch.arange(len(tokens))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


@torch.inference_mode()
def validated(towers: Towers, batches: int = 20, count: int = 64) -> dict[str, float]:
    """Measure towers on scenes that they have not seen, in batches of different captions."""
    items = SceneItems(towers.size, 0, "towers validation", batches * count)
    matching, others, right, total = 0.0, 0.0, 0, 0
    for batch in range(batches):
        tokens, condition = pairs(items, batch * count, count)
        cosines = towers.scenes(tokens) @ towers.captions(condition).T
        matching += float(cosines.diagonal().mean()) / batches
        others += float(cosines[~torch.eye(len(tokens), dtype=torch.bool)].mean()) / batches
        right += int((cosines.argmax(1) == torch.arange(len(tokens))).sum())
        total += len(tokens)
    return {"matching": matching, "others": others, "retrieval": right / total, "captions": total / batches}


def main() -> None:
    """Train the towers, print how good they are and write their weights."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, towers.npz")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training, {STEPS} by default")
    arguments = parser.parse_args()
    save(fitted(arguments.steps), arguments.out)
    found = validated(loaded(arguments.out))
    print(
        f"cosine {found['matching']:.3f} of scenes with their captions, {found['others']:.3f} with others; "
        f"{found['retrieval']:.1%} of the scenes find theirs among {found['captions']:.0f}"
    )


if __name__ == "__main__":
    main()
