"""Tiny MDLM, Duo, SEDD and flow_matching models in the files of the originals.

tests/data/dits.npz holds what the public definitions of the four networks answered once: names and shapes of
their weights, inputs and outputs, at V = 11, width 8, two blocks and two heads. They were run in float32 on a
CPU with plain attention in the place of flash-attn (kuleshov-group/mdlm c112c52 models/dit.py, s-sahoo/duo
7c9b498 models/dit.py, louaaron/Score-Entropy-Discrete-Diffusion 0605786 model/transformer.py,
facebookresearch/flow_matching 11568d3 examples/text/model/transformer.py). The names of MDLM and Duo have the
`backbone.` of their folders on the hub. Weights are not stored: `weight` computes them from their names.
"""

import json
import math
import zlib

import numpy as np
import torch
from conftest import ROOT
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

V, W, D = 11, 8, 5
STORED = np.load(ROOT / "tests" / "data" / "dits.npz")
T = torch.from_numpy(STORED["kappa"])
HUB = {"hidden_dim": W, "n_blocks": 2, "n_heads": 2, "cond_dim": 4, "model_length": D, "dropout": 0.1}
PARTS = {"hidden_size": W, "n_blocks": 2, "n_heads": 2, "cond_dim": 4, "length": D, "scale_by_sigma": True}
FLOW = {"source_distribution": "uniform", "exponent": 2.0, "scheduler_type": "polynomial"}
CODE = {"AutoModelForMaskedLM": "model.Nothing"}  # is never run
CONFIGS = {
    "mdlm": {**HUB, "model_type": "mdlm", "vocab_size": V + 1, "time_conditioning": False, "auto_map": CODE},
    "duo": {**HUB, "model_type": "duo", "vocab_size": V, "causal": False, "auto_map": CODE},
    "sedd": {"tokens": V, "model": PARTS, "graph": {"type": "absorb"}, "noise": {"type": "loglinear"}},
    "fm_uniform": {"model_type": "flow_matching", "num_states": V, "model": PARTS, "flow": FLOW},
    "fm_masked": {
        "model_type": "flow_matching",
        "num_states": V + 1,
        "model": PARTS,
        "flow": {**FLOW, "source_distribution": "mask"},
    },
}
MASKED = ("mdlm", "sedd", "fm_masked")
WORDS = ["<|endoftext|>", *"abcdefghi", "Ġ"]  # a space of byte-level BPE


def weight(name, shape):
    """Return a weight as the original had it: waves, around 1 for the norms."""
    places = np.arange(math.prod(shape), dtype=np.float64)
    waves = np.sin(1.7 * places + zlib.crc32(name.encode()) % 1000)
    middle = 1.0 if "norm" in name and name.endswith("weight") else 0.0
    return torch.tensor((middle + 0.6 * waves).reshape(shape)).float()


def weights(kind):
    shapes = json.loads(str(STORED[f"{kind}_names"]))
    return {name: weight(name, shape) for name, shape in shapes.items()}


def save_tokenizer(path, words=WORDS):
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def write(folder, kind, **changes):
    """Write a folder as the hub has it, with the files of a tokenizer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind] | changes))
    save_file(weights(kind), folder / "model.safetensors")
    save_tokenizer(folder / "tokenizer.json")
    return folder
