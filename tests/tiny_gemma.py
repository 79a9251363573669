"""A tiny random DiffusionGemma of the class in Transformers."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

V, D = 40, 6
WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"w{number}" for number in range(V - 4))]
TEXT = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,  # a scale of a layer is felt two layers later
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 40,
    "final_logit_softcapping": 30.0,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 16,
    "patch_size": 2,
}


def save(folder):
    """Save the model and a tokenizer to a folder, and return the model."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = DiffusionGemmaConfig(text_config=TEXT, vision_config=VISION, canvas_length=D)
    model = DiffusionGemmaForBlockDiffusion(config).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.normal_(std=0.4) if weight.ndim > 1 else weight.add_(0.2 * torch.randn_like(weight))
    for layer, scale in enumerate((0.8, 1.1, 1.3)):  # all that encoder and decoder do not share
        model.model.encoder.language_model.layers[layer].layer_scalar.fill_(scale)
        model.model.decoder.layers[layer].layer_scalar.fill_(2 - scale)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": "<eos>", "bos_token": "<bos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return model
