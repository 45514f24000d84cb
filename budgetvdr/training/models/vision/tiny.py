"""Tiny checkpoints with random weights: real Hugging Face folders, written by the real classes.

For tests, and for trying an export out without three billion parameters. The tokenizers know every byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    ColModernVBertConfig,
    ColModernVBertForRetrieval,
    ColPaliConfig,
    ColPaliForRetrieval,
    GemmaConfig,
    ModernBertConfig,
    ModernVBertConfig,
    PaliGemmaConfig,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

HIDDEN, LAYERS, DIM = 32, 6, 16


def tiny_paligemma(folder: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> None:
    """ColPali: pictures of 56 pixels in 16 patches."""
    tokens = byte_tokenizer(["<pad>", "<eos>", "<bos>", "<unk>", "<image>"])
    text = GemmaConfig(
        vocab_size=tokens.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=hidden // 4,
        pad_token_id=0,
    )
    vision = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
        vision_use_head=False,
    )
    whole = PaliGemmaConfig(
        vision_config=vision.to_dict(),
        text_config=text.to_dict(),
        image_token_index=4,
        vocab_size=tokens.get_vocab_size(),
        projection_dim=hidden,
        hidden_size=hidden,
    )
    config = ColPaliConfig(vlm_config=whole.to_dict(), embedding_dim=DIM)
    save(ColPaliForRetrieval(config), folder, seed)
    SiglipImageProcessorPil(size={"height": 56, "width": 56}, image_seq_length=16).save_pretrained(folder)
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokens, extra_special_tokens={"image_token": "<image>"}, padding_side="left", **named
    )
    fast.save_pretrained(folder)


def tiny_modernvbert(folder: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> None:
    """ColModernVBERT: tiles of 32 pixels in 4 tokens, up to 3 tiles along a side; windows of 12 tokens either way."""
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    marks = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    special = [*marks, "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *places]
    tokens = byte_tokenizer(special)
    tokens.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    text: Any = ModernBertConfig(
        vocab_size=tokens.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        local_attention=24,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    )
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    whole = ModernVBertConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), pixel_shuffle_factor=2, image_token_id=5
    )
    save(ColModernVBertForRetrieval(ColModernVBertConfig(vlm_config=whole.to_dict(), embedding_dim=DIM)), folder, seed)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})
    images.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokens, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    )
    fast.save_pretrained(folder)


def byte_tokenizer(special: Sequence[str]) -> Tokenizer:
    """Byte-level, with a few merges, so that a token has one to three letters; special tokens come first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("e", "r"), ("i", "n"), ("th", "e"), ("Ġ", "a"), ("Ġ", "the")]
    merged = [left + right for left, right in merges]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet, *merged])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def save(model: nn.Module, folder: Path, seed: int) -> None:
    """Gives a model lively weights and writes `config.json` and `model.safetensors`.

    The usual start of training has states that hardly differ from token to token, so that errors would not show.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(0.02 * noise)
    model.save_pretrained(folder)  # type: ignore[operator]
