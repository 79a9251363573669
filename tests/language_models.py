"""Tiny language models with random weights, in the names and files of published ones, and their logits.

The forward passes are written from the published definitions in plain tensor operations: they share no code
with transformers or tauflow. Shapes: L positions of one sequence, W width, N ids.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

WIDTH, LAYERS, HEADS, KEYS, INNER, IDS, EPSILON, THETA = 16, 2, 4, 2, 24, 272, 1e-5, 5e5
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ("<|endoftext|>", "<|mask|>", "<|start|>", "<|eot_id|>", "<|im_end|>")  # ids 256 to 260
END, MASK = 256, 257
TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|eot_id|>{% endfor %}<|start|>"
SETTINGS = {"chat_template": TEMPLATE, "eos_token": SPECIAL[0], "mask_token": SPECIAL[1]}
PROTEINS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
LLADA = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    "d_model": WIDTH,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "n_kv_heads": KEYS,
    "mlp_hidden_size": INNER,
    "vocab_size": IDS,
    "embedding_size": IDS,
    "max_sequence_length": 64,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "block_type": "llama",
    "layer_norm_type": "rms",
    "weight_tying": False,
    "mask_token_id": MASK,
    "eos_token_id": END,
}
DREAM = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "intermediate_size": INNER,
    "vocab_size": IDS,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "tie_word_embeddings": False,
    "mask_token_id": MASK,
    "eos_token_id": END,
}
ESM = {
    "model_type": "esm",
    "architectures": ["EsmForMaskedLM"],
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "vocab_size": len(PROTEINS),
    "max_position_embeddings": 66,
    "layer_norm_eps": EPSILON,
    "position_embedding_type": "rotary",
    "emb_layer_norm_before": False,
    "token_dropout": True,
    "mask_token_id": 32,
    "pad_token_id": 1,
}
LLADA_NAMES = {
    "embedding": "model.transformer.wte",
    "norm": "model.transformer.ln_f",
    "output": "model.transformer.ff_out",
    "layer": "model.transformer.blocks.{}.",
    **{each: f"{each}_proj" for each in "qkv"},
    **{"o": "attn_out", "gate": "ff_proj", "up": "up_proj", "down": "ff_out"},
    **{"before": "attn_norm", "between": "ff_norm"},
}
DREAM_NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "layer": "model.layers.{}.",
    **{each: f"self_attn.{each}_proj" for each in "qkvo"},
    **{each: f"mlp.{each}_proj" for each in ("gate", "up", "down")},
    **{"before": "input_layernorm", "between": "post_attention_layernorm"},
}


def drawn(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Draw weights; those of norms are near 1."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator) / (shape[-1] ** 0.5 if len(shape) > 1 else 4)
        norm = len(shape) == 1 and name.endswith("weight")
        found[name] = value + 1 if norm else value
    return found


def llama_weights(names: dict[str, str], bias: bool, seed: int = 0) -> dict[str, Tensor]:
    """Draw the weights of a Llama under other names."""
    shapes: dict[str, tuple[int, ...]] = {
        f"{names['embedding']}.weight": (IDS, WIDTH),
        f"{names['norm']}.weight": (WIDTH,),
        f"{names['output']}.weight": (IDS, WIDTH),
    }
    few = KEYS * WIDTH // HEADS
    outer = {"q": WIDTH, "k": few, "v": few, "o": WIDTH, "gate": INNER, "up": INNER, "down": WIDTH}
    for layer in map(names["layer"].format, range(LAYERS)):
        shapes |= {f"{layer}{names[each]}.weight": (WIDTH,) for each in ("before", "between")}
        for each, size in outer.items():
            shapes[f"{layer}{names[each]}.weight"] = (size, INNER if each == "down" else WIDTH)
            if bias and each in "qkv":
                shapes[f"{layer}{names[each]}.bias"] = (size,)
    return drawn(shapes, seed)


def rotated(rows: Tensor, theta: float) -> Tensor:
    """Turn rows (H, L, E) by their positions."""
    half = rows.shape[-1] // 2
    angles = torch.arange(rows.shape[1])[:, None] * theta ** -(torch.arange(half) / half)
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(rows[..., :half], rows[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], -1)


def attended(q: Tensor, k: Tensor, v: Tensor, theta: float) -> Tensor:
    """Return what positions (L, W) take from all others, with heads of q that share those of k and v."""
    heads = [part.unflatten(1, (-1, WIDTH // HEADS)).transpose(0, 1) for part in (q, k, v)]
    q, k, v = (part.repeat_interleave(HEADS // len(part), 0) for part in heads)
    scores = rotated(q, theta) @ rotated(k, theta).mT / math.sqrt(WIDTH // HEADS)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def llama_logits(weights: dict[str, Tensor], names: dict[str, str], ids: Tensor) -> Tensor:
    """Return logits (L, N) of ids (L,) under full attention, unshifted."""

    def norm(rows: Tensor, name: str) -> Tensor:
        return rows * (rows.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weights[f"{name}.weight"]

    def linear(rows: Tensor, name: str) -> Tensor:
        return rows @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    h = weights[f"{names['embedding']}.weight"][ids]
    for layer in map(names["layer"].format, range(LAYERS)):
        rows = norm(h, layer + names["before"])
        q, k, v = (linear(rows, layer + names[each]) for each in "qkv")
        h = h + linear(attended(q, k, v, THETA), layer + names["o"])
        rows = norm(h, layer + names["between"])
        inner = silu(linear(rows, layer + names["gate"])) * linear(rows, layer + names["up"])
        h = h + linear(inner, layer + names["down"])
    return linear(norm(h, names["norm"]), names["output"])


def esm_weights(seed: int = 0) -> dict[str, Tensor]:
    """Draw the weights of an ESM-2, with what its files hold besides."""
    linears = {"lm_head.dense": (WIDTH, WIDTH)}
    norms = ["esm.encoder.emb_layer_norm_after", "lm_head.layer_norm"]
    for layer in range(LAYERS):
        begin = f"esm.encoder.layer.{layer}."
        linears |= {f"{begin}attention.self.{each}": (WIDTH, WIDTH) for each in ("query", "key", "value")}
        linears |= {
            f"{begin}attention.output.dense": (WIDTH, WIDTH),
            f"{begin}intermediate.dense": (INNER, WIDTH),
            f"{begin}output.dense": (WIDTH, INNER),
        }
        norms += [f"{begin}attention.LayerNorm", f"{begin}LayerNorm"]
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    shapes |= {f"{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")}
    shapes |= {
        "esm.embeddings.word_embeddings.weight": (len(PROTEINS), WIDTH),
        "lm_head.bias": (len(PROTEINS),),
    }
    shapes |= {
        "esm.contact_head.regression.weight": (1, LAYERS * HEADS),
        "esm.contact_head.regression.bias": (1,),
    }
    found = drawn(shapes, seed)
    frequencies = torch.ones(WIDTH // HEADS // 2)
    more = {
        f"esm.encoder.layer.{n}.attention.self.rotary_embeddings.inv_freq": frequencies for n in range(LAYERS)
    }
    return found | {name: value.clone() for name, value in more.items()}


def esm_logits(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return logits (L, N) of framed ids (L,), the scale of masked embeddings included."""

    def linear(rows: Tensor, name: str) -> Tensor:
        return rows @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(rows: Tensor, name: str) -> Tensor:
        return layer_norm(rows, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], EPSILON)

    table = weights["esm.embeddings.word_embeddings.weight"]
    masked = ids == PROTEINS.index("<mask>")
    h = table[ids] * ~masked[:, None] * 0.88 / (1 - masked.float().mean())
    for layer in range(LAYERS):
        begin = f"esm.encoder.layer.{layer}."
        rows = norm(h, f"{begin}attention.LayerNorm")
        q, k, v = (linear(rows, f"{begin}attention.self.{each}") for each in ("query", "key", "value"))
        h = h + linear(attended(q, k, v, 1e4), f"{begin}attention.output.dense")
        inner = gelu(linear(norm(h, f"{begin}LayerNorm"), f"{begin}intermediate.dense"))
        h = h + linear(inner, f"{begin}output.dense")
    h = norm(h, "esm.encoder.emb_layer_norm_after")
    return norm(gelu(linear(h, "lm_head.dense")), "lm_head.layer_norm") @ table.T + weights["lm_head.bias"]


def write(folder: Path, config: dict, weights: dict[str, Tensor]) -> Path:
    """Write a folder with its tokenizer; weights lie in two shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: weights[name].contiguous() for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in shards.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    {"llada": write_json_tokenizer, "Dream": write_pair, "esm": write_list}[config["model_type"]](folder)
    return folder


def write_all(root: Path) -> dict[str, tuple[Path, dict[str, Tensor]]]:
    """Write a LLaDA, a Dream and an ESM; return their folders and weights."""
    made = {
        "llada": (LLADA, llama_weights(LLADA_NAMES, bias=False)),
        "dream": (DREAM, llama_weights(DREAM_NAMES, bias=True)),
        "esm": (ESM, esm_weights()),
    }
    return {name: (write(root / name, *each), each[1]) for name, each in made.items()}


def write_json_tokenizer(folder: Path) -> None:
    """Write a tokenizer.json of bytes and special tokens, and a class that only foreign code has."""
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(ALPHABET)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = SETTINGS | {"tokenizer_class": "ForeignTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_pair(folder: Path) -> None:
    """Write vocab.json and merges.txt, with special tokens and foreign code named in the settings."""
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(ALPHABET)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(256 + number): {"content": name, **special} for number, name in enumerate(SPECIAL)}
    foreign = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    }
    settings = SETTINGS | {"added_tokens_decoder": added, "pad_token": SPECIAL[0], **foreign}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_list(folder: Path) -> None:
    """Write vocab.txt of proteins."""
    (folder / "vocab.txt").write_text("\n".join(PROTEINS))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')


class Spelling:
    """A network that attends, and wants the end after a prompt that begins with "e", else the letter x.

    `seen` are the states that it was asked about.
    """

    attends = True

    def __init__(self, task, end=SPECIAL[0]):
        self.size = task.num_tokens
        self.stop, self.end, self.x = (task.text.encode(text)[0] for text in ("e", end, "x"))
        self.seen = []

    def __call__(self, x, t, attention=None):
        self.seen.append(x)
        read = torch.ones_like(x, dtype=torch.bool) if attention is None else attention
        first = x.gather(1, read.int().argmax(1, keepdim=True))
        wanted = torch.where(first == self.stop, self.end, self.x)
        return 40.0 * torch.nn.functional.one_hot(wanted.expand_as(x), self.size).float()
