"""The packages antiberty and sapiens, with tiny random weights in their published layout."""

import argparse
import json
import math

import torch
from language_models import drawn
from torch.nn.functional import gelu, layer_norm

WIDTH, INNER, HEADS, LAYERS, IDS = 16, 24, 2, 2, 25
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACDEFGHIKLMNPQRSTVWY"]
BERT = {
    **{"words": "bert.embeddings.word_embeddings", "places": "bert.embeddings.position_embeddings"},
    **{"first": "bert.embeddings.LayerNorm", "layer": "bert.encoder.layer.{}."},
    **{each[0]: f"attention.self.{each}" for each in ("query", "key", "value")},
    **{"o": "attention.output.dense", "between": "attention.output.LayerNorm"},
    **{"up": "intermediate.dense", "down": "output.dense", "after": "output.LayerNorm"},
    **{"dense": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"},
    "bias": "cls.predictions.bias",
}
FAIRSEQ = {
    **{
        "words": "decoder.sentence_encoder.embed_tokens",
        "places": "decoder.sentence_encoder.embed_positions",
    },
    **{"first": "decoder.sentence_encoder.emb_layer_norm", "layer": "decoder.sentence_encoder.layers.{}."},
    **{each: f"self_attn.{each}_proj" for each in "qkv"},
    **{"o": "self_attn.out_proj", "between": "self_attn_layer_norm"},
    **{"up": "fc1", "down": "fc2", "after": "final_layer_norm"},
    **{
        "dense": "decoder.lm_head.dense",
        "norm": "decoder.lm_head.layer_norm",
        "bias": "decoder.lm_head.bias",
    },
}


def weights_of(names, positions, seed):
    """Draw the weights of an encoder with a head, under the names of a package."""
    square, shapes = (WIDTH, WIDTH), {}
    linears = {names["dense"]: square}
    norms = [names["first"], names["norm"]]
    for layer in map(names["layer"].format, range(LAYERS)):
        linears |= {layer + names[each]: square for each in "qkvo"}
        linears |= {layer + names["up"]: (INNER, WIDTH), layer + names["down"]: (WIDTH, INNER)}
        norms += [layer + names["between"], layer + names["after"]]
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes |= {f"{name}.{part}": (WIDTH,) for name in norms for part in ("weight", "bias")}
    shapes |= {f"{names['words']}.weight": (IDS, WIDTH), f"{names['places']}.weight": (positions, WIDTH)}
    return drawn(shapes | {names["bias"]: (IDS,)}, seed)


def logits_by_hand(weights, names, ids, first_place, epsilon):
    """Return logits (L, N) of ids (L,): norms stand after the sums, as in BERT."""

    def linear(rows, name):
        return rows @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(rows, name):
        return layer_norm(rows, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)

    table = weights[f"{names['words']}.weight"]
    places = weights[f"{names['places']}.weight"][first_place : first_place + len(ids)]
    kinds = weights.get("bert.embeddings.token_type_embeddings.weight", torch.zeros(1, WIDTH))
    h = norm(table[ids] + places + kinds[0], names["first"])
    for layer in map(names["layer"].format, range(LAYERS)):
        q, k, v = (linear(h, layer + names[each]).unflatten(1, (HEADS, -1)).transpose(0, 1) for each in "qkv")
        taken = (q @ k.mT / math.sqrt(WIDTH // HEADS)).softmax(-1) @ v
        h = norm(h + linear(taken.transpose(0, 1).flatten(1), layer + names["o"]), layer + names["between"])
        inner = gelu(linear(h, layer + names["up"]))
        h = norm(h + linear(inner, layer + names["down"]), layer + names["after"])
    return norm(gelu(linear(h, names["dense"])), names["norm"]) @ table.T + weights[names["bias"]]


def write_antiberty(root):
    """Write the package as it is published, and return its weights; importing it is an error."""
    folder = root / "antiberty" / "trained_models" / "AntiBERTy_md_smooth"
    folder.mkdir(parents=True)
    (root / "antiberty" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    (folder.parent / "vocab.txt").write_text("\n".join(VOCABULARY))
    config = {
        **{"_name_or_path": "/home/x/checkpoint-1160000/", "architectures": ["AntiBERTy"]},
        **{"model_type": "bert", "position_embedding_type": "absolute", "gradient_checkpointing": False},
        **{"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS},
        **{"num_hidden_layers": LAYERS, "max_position_embeddings": 130, "vocab_size": IDS},
        **{"layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0, "use_cache": True},
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = weights_of(BERT, 130, seed=0)
    heads = {"bert.pooler.dense": WIDTH, "cls.species": 6, "cls.chain": 2, "cls.graft": 2}
    more = {f"{name}.weight": (size, WIDTH) for name, size in heads.items()}
    more |= {f"{name}.bias": (size,) for name, size in heads.items()}
    weights |= drawn(more | {"bert.embeddings.token_type_embeddings.weight": (2, WIDTH)}, seed=1)
    weights["bert.embeddings.position_ids"] = torch.arange(130)[None]
    weights["cls.predictions.decoder.weight"] = weights[f"{BERT['words']}.weight"].clone()
    weights["cls.predictions.decoder.bias"] = weights[BERT["bias"]].clone()
    torch.save(weights, folder / "pytorch_model.bin")
    return weights


def write_sapiens(root):
    folder = root / "sapiens" / "models" / "v1"
    folder.mkdir(parents=True)
    (root / "sapiens" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    weights = weights_of(FAIRSEQ, 146, seed=2)
    weights["decoder.lm_head.weight"] = weights[f"{FAIRSEQ['words']}.weight"].clone()
    args = argparse.Namespace(arch="roberta_small", encoder_attention_heads=HEADS)
    torch.save({"args": args, "model": weights, "extra_state": {"epoch": 3}}, folder / "checkpoint_vh.pt")
    return weights
