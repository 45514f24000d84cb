"""Tiny ColQwen checkpoints with random weights, as their own libraries write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    ColQwen2Config,
    ColQwen2ForRetrieval,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLModel,
    Qwen2VLConfig,
    Qwen3VLConfig,
    Qwen3VLModel,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from budgetvdr.training.models.vision.tiny import DIM, HIDDEN, LAYERS, byte_tokenizer, save

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_PATCH = 14


def tiny_qwen2_vl(folder: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> None:
    """ColQwen2 as transformers writes it."""
    vision = {"embed_dim": 16, "hidden_size": hidden, "mlp_ratio": 2, "depth": 2}
    whole = Qwen2VLConfig(text_config=_text(layers, hidden), vision_config=vision | _tower(_PATCH), **_tokens())
    config = ColQwen2Config(vlm_config=whole.to_dict(), embedding_dim=DIM)
    save(ColQwen2ForRetrieval(config), folder, seed)
    _save_processor(folder, _PATCH)
    written = {"processor_class": "ColQwen2Processor", "query_prefix": "Query: "}
    (folder / "processor_config.json").write_text(json.dumps(written), encoding="utf-8")


def tiny_qwen2_5_vl(folder: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> None:
    """ColQwen2.5 as colpali-engine writes it: windows of 4 * 4 tokens in every other block."""
    vision = {
        "hidden_size": 16,
        "out_hidden_size": hidden,
        "intermediate_size": 32,
        "depth": 4,
        "window_size": 8 * _PATCH,
        "fullatt_block_indexes": [1, 3],
    }
    config = Qwen2_5_VLConfig(text_config=_text(layers, hidden), vision_config=vision | _tower(_PATCH), **_tokens())
    _save_engine(Qwen2_5_VLModel(config), folder, hidden, seed)
    _save_processor(folder, _PATCH)


def tiny_qwen3_vl(folder: Path, *, layers: int = LAYERS, hidden: int = HIDDEN, seed: int = 0) -> None:
    """ColQwen3 as colpali-engine writes it: features of three blocks for the first three layers of the decoder."""
    patch = 16
    vision = {
        "hidden_size": 16,
        "out_hidden_size": hidden,
        "intermediate_size": 32,
        "depth": 4,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1, 2],
    }
    text = _text(layers, hidden) | {"head_dim": hidden // 4}
    config = Qwen3VLConfig(text_config=text, vision_config=vision | _tower(patch), **_tokens())
    _save_engine(Qwen3VLModel(config), folder, hidden, seed)
    _save_processor(folder, patch, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def _tokens() -> dict[str, Any]:
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {name: _SPECIAL.index(token) for name, token in names.items()}


def _text(layers: int, hidden: int) -> dict[str, Any]:
    half = hidden // 8
    wide = half * 3 // 8
    return {
        "vocab_size": byte_tokenizer(_SPECIAL).get_vocab_size(),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [half - 2 * wide, wide, wide],
        },
    }


def _tower(patch: int) -> dict[str, Any]:
    return {"num_heads": 2, "patch_size": patch, "spatial_merge_size": 2, "temporal_patch_size": 2}


def _save_engine(model: nn.Module, folder: Path, hidden: int, seed: int) -> None:
    model.custom_text_proj = nn.Linear(hidden, DIM)
    save(model, folder, seed)


def _save_processor(folder: Path, patch: int, **scale: Any) -> None:
    """Pages of 4 to 60 tokens, so that small pictures show both bounds."""
    token = (2 * patch) ** 2
    size = {"shortest_edge": 4 * token, "longest_edge": 60 * token}
    Qwen2VLImageProcessorPil(size=size, patch_size=patch, **scale).save_pretrained(folder)
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=byte_tokenizer(_SPECIAL),
        extra_special_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    ).save_pretrained(folder)
