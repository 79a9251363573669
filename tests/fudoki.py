"""A tiny FUDOKI with random weights, in the names and files of the released checkpoint."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

WIDTH, LAYERS, HEADS, KEYS, CODES, EMBED, SIDE, IDS = 32, 2, 4, 2, 32, 8, 4, 264
EPSILON, THETA = 0.01, 500.0
SPECIAL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<begin_of_image>",
    "<end_of_image>",
)

CONFIG = {
    "model_type": "multi_modality",
    "language_config": {
        "model_type": "llama",
        "_attn_implementation": "flash_attention_2",
        "torch_dtype": "float16",
        "vocab_size": IDS,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "max_position_embeddings": 256,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
    },
    "gen_vision_config": {
        "cls": "VQ-16",
        "params": {
            "image_token_size": CODES,
            "n_embed": EMBED,
            "ch": 32,
            "ch_mult": [1, 2],
            "z_channels": 32,
        },
    },
    "gen_aligner_config": {"params": {"depth": 2, "input_dim": EMBED, "n_embed": WIDTH}},
    "gen_head_config": {"params": {"n_embed": WIDTH, "image_token_embed": WIDTH, "image_token_size": CODES}},
    "vision_config": {"cls": "CLIPVisionTower"},
}
PROCESSOR = {"sft_format": "fudoki", "num_image_tokens": SIDE * SIDE}


def vq_model() -> JanusVQVAE:
    sizes = {"num_embeddings": CODES, "embed_dim": EMBED, "num_patches": SIDE, "latent_channels": 32}
    return JanusVQVAE(JanusVQVAEConfig(base_channels=32, channel_multiplier=[1, 2], **sizes)).eval()


def vq_names() -> dict[str, str]:
    """Return {name in the class of transformers: name in the checkpoint} of the VQ model."""
    names = {}
    for name in vq_model().state_dict():
        old = name
        for part, blocks in (("encoder", "down"), ("decoder", "up")):
            old = old.replace(f"{part}.{blocks}.", f"{part}.conv_blocks.")
        old = old.replace(".block.", ".res.")
        for number, each in enumerate(("block_1", "attn_1", "block_2")):
            old = old.replace(f".mid.{each}.", f".mid.{number}.")
        names[name] = f"gen_vision_model.{old}"
    return names


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights besides those of the VQ model."""
    found: dict[str, tuple[int, ...]] = {
        "language_model.model.embed_tokens.weight": (IDS, WIDTH),
        "language_model.model.norm.weight": (WIDTH,),
        "language_model.lm_head.weight": (IDS, WIDTH),
        "gen_embed.weight": (CODES, EMBED),
        "gen_aligner.layers.0.weight": (WIDTH, EMBED),
        "gen_aligner.layers.0.bias": (WIDTH,),
        "gen_aligner.layers.2.weight": (WIDTH, WIDTH),
        "gen_aligner.layers.2.bias": (WIDTH,),
        "gen_head.output_mlp_projector.weight": (WIDTH, WIDTH),
        "gen_head.output_mlp_projector.bias": (WIDTH,),
        "gen_head.vision_head.weight": (CODES, WIDTH),
        "gen_head.vision_head.bias": (CODES,),
        "gen_vision_model.quantize.codebook_used": (64,),
        "aligner.layers.0.weight": (4, 4),
        "vision_model.vision_tower.blocks.0.attn.qkv.weight": (12, 4),
    }
    own = WIDTH // HEADS
    for layer in range(LAYERS):
        begin = f"language_model.model.layers.{layer}."
        found |= {
            f"{begin}self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{begin}self_attn.k_proj.weight": (KEYS * own, WIDTH),
            f"{begin}self_attn.v_proj.weight": (KEYS * own, WIDTH),
            f"{begin}self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{begin}self_attn.rotary_emb.inv_freq": (own // 2,),
            f"{begin}mlp.gate_proj.weight": (48, WIDTH),
            f"{begin}mlp.up_proj.weight": (48, WIDTH),
            f"{begin}mlp.down_proj.weight": (WIDTH, 48),
            f"{begin}input_layernorm.weight": (WIDTH,),
            f"{begin}post_attention_layernorm.weight": (WIDTH,),
        }
    return found


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes().items()}
    parts = vq_model().state_dict()
    for name, old in vq_names().items():
        found[old] = 0.3 * torch.randn(parts[name].shape, generator=generator)
    return found


def tokenizer() -> Tokenizer:
    """Return bytes as tokens, and the special ones after them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    return made


def write(folder: Path, found: dict[str, torch.Tensor]) -> Path:
    """Write a folder as released."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "processor_config.json").write_text(json.dumps(PROCESSOR))
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    codebook = nn.Embedding(CODES, EMBED)
    with torch.no_grad():
        codebook.weight.copy_(torch.randn(CODES, EMBED, generator=torch.Generator().manual_seed(1)))
    torch.save(codebook, folder / "image_embedding.pt")
    return folder
