"""Tiny random detectors of transformers, of the real classes, saved to folders as published ones are."""

from pathlib import Path

import torch

WORDS = (
    "a photo of colored object person bench red orange yellow green blue purple pink brown black white two -"
)


def save_clip(folder: Path, seed: int = 0) -> str:
    """A CLIP of 32 pixels and 8 features that knows a few words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<start>", "<end>", "<unk>", *WORDS.split()]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="<unk>"
    )
    pictures = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    transformers.CLIPProcessor(pictures, fast).save_pretrained(folder)
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    torch.manual_seed(seed)
    config = transformers.CLIPConfig(
        text_config={
            **tower,
            **ends,
            "vocab_size": len(words),
            "max_position_embeddings": 16,
        },
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    model = transformers.CLIPModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)  # the usual start gives all pictures one feature
    model.save_pretrained(folder)
    return str(folder)


def save_mask2former(folder: Path, label: int | None = None, labels: int = 80) -> str:
    """A Mask2Former of 4 queries that sees a class in every picture, or nothing."""
    import transformers

    torch.manual_seed(0)
    backbone = transformers.SwinConfig(
        embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=4, drop_path_rate=0.0
    )
    backbone.out_features = ["stage1", "stage2", "stage3", "stage4"]
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 16}
    config = transformers.Mask2FormerConfig(
        backbone_config=backbone,
        **sizes,
        num_queries=4,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_labels=labels,
    )
    model = transformers.Mask2FormerForUniversalSegmentation(config)
    with torch.no_grad():
        model.class_predictor.bias.fill_(0.0)
        model.class_predictor.bias[labels if label is None else label] = 50.0  # the last is no object
    model.save_pretrained(folder)
    size = {"height": 384, "width": 384}  # the detector asks for another one
    transformers.Mask2FormerImageProcessor(size=size).save_pretrained(folder)
    return str(folder)
