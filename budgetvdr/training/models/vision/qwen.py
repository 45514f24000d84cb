"""ColQwen2, ColQwen2.5 and ColQwen3: Qwen's vision towers before its decoder, which looks back alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLModel,
    Qwen2VLConfig,
    Qwen2VLModel,
    Qwen3VLConfig,
    Qwen3VLModel,
)

from budgetvdr.encoders.vision import TOKENIZER_NAME
from budgetvdr.encoders.vision.prompts import open_tokenizer, token_id
from budgetvdr.encoders.vision.qwen import QwenPreprocessor, QwenSettings
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.models.model import Inputs
from budgetvdr.training.models.vision.model import (
    FULL,
    Beginning,
    VisionModel,
    additive_mask,
    is_native,
    pixel_scale,
    place,
    text_ids,
)
from budgetvdr.training.models.vision.qwen_tower import see

_CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLModel),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLModel),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLModel),
}
_SIZES = ("patch_size", "merge_size", "temporal_patch_size")
_IMAGE, _PAD = "<|image_pad|>", "<|endoftext|>"
# colpali-engine's texts. That before a query is the one that the published checkpoints were trained with: ColQwen2 and
# ColQwen2.5 by versions up to 0.3.12, which wrote "Query: "; 0.3.13 dropped it, before there was a ColQwen3.
_PAGE_PROMPT = f"<|im_start|>user\n<|vision_start|>{_IMAGE}<|vision_end|>Describe the image.<|im_end|>{_PAD}"
_QUERY_PREFIXES = {"qwen2_vl": "Query: ", "qwen2_5_vl": "Query: ", "qwen3_vl": ""}
_QUERY_SUFFIX = 10 * _PAD


class Qwen(VisionModel):
    """published: `Qwen2VLModel`, `Qwen2_5_VLModel` or `Qwen3VLModel` of transformers."""

    norm_path = "language_model.norm"
    # The first checkpoints of Qwen2-VL have the decoder beside the tower, without a name of its own.
    renames = ((r"^(embed_tokens|layers|norm)\.", r"language_model.\1."),)

    @classmethod
    def empty(cls, config: Mapping[str, Any]) -> nn.Module:
        """Raises CheckpointError for layers with sliding windows, which no known checkpoint has."""
        whole = _read_config(config)
        if "sliding_attention" in (getattr(whole.text_config, "layer_types", None) or ()):
            raise CheckpointError("decoder layers with sliding windows are not supported; expected full attention")
        model: nn.Module = _CLASSES[config["model_type"]][1](whole)
        return model

    @classmethod
    def preprocessor_of(cls, config: Mapping[str, Any], processor: Mapping[str, Any], folder: Path) -> QwenPreprocessor:
        """Of colpali-engine's processors, or of transformers' where it wrote the checkpoint.

        They differ in the line break that the latter puts after a query.
        """
        whole = _read_config(config)
        vision = whole.vision_config
        sizes = (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
        found = tuple(processor.get(name, size) for name, size in zip(_SIZES, sizes, strict=True))
        if found != sizes:
            raise ValueError(f"patches of {found} ({', '.join(_SIZES)}) for a vision tower of {sizes}")
        tokenizer = open_tokenizer(folder / TOKENIZER_NAME)
        if token_id(tokenizer, _IMAGE) != whole.image_token_id:
            raise ValueError(f"the config has image token {whole.image_token_id}, the tokenizer another")
        least, most = _bounds(processor)
        window, table = getattr(vision, "window_size", None), getattr(vision, "num_position_embeddings", None)
        settings = QwenSettings(
            patch=vision.patch_size,
            merge=vision.spatial_merge_size,
            frames=vision.temporal_patch_size,
            least_pixels=least,
            most_pixels=most,
            window=None if window is None else window // vision.spatial_merge_size // vision.patch_size,
            table=None if table is None else math.isqrt(table),
            scale=pixel_scale({"rescale_factor": 1 / 255, "resample": 3, **processor}),
            image=_IMAGE,
            pad=_PAD,
            page_prompt=processor.get("visual_prompt_prefix", _PAGE_PROMPT),
            query_prefix=processor.get("query_prefix", _QUERY_PREFIXES[config["model_type"]]),
            query_suffix=_QUERY_SUFFIX + ("\n" if is_native(folder) else ""),
        )
        return QwenPreprocessor(config["model_type"], settings, tokenizer)

    def checkpoint_activations(self, on: bool) -> None:
        """Of the decoder's layers and of the tower's blocks, which take the most memory."""
        self.checkpointing = on

    def begin(self, inputs: Inputs) -> Beginning:
        """Places the pictures' features among the tokens; Qwen3-VL has more of them for the layers that follow."""
        text = self.published.get_submodule("language_model")
        state = text.get_submodule("embed_tokens")(text_ids(inputs))
        additions = []
        if "pixel_values" in inputs:
            slots = inputs["visual_slots"]
            features, deep = see(
                self.published.get_submodule("visual"), inputs, self.depths[-1], checkpointing=self.checkpointing
            )
            state = place(features, slots, state)
            additions = [place(part, slots, torch.zeros_like(state)) for part in deep]
        length = state.shape[1]
        back = torch.ones(length, length, dtype=torch.bool, device=state.device).tril()
        return Beginning(
            state,
            {FULL: additive_mask(inputs["attention_mask"], state.dtype, back)},
            {FULL: text.get_submodule("rotary_emb")(state, inputs["position_ids"])},
            tuple(additions),
        )


def _read_config(config: Mapping[str, Any]) -> Any:
    """Early files have the decoder's sizes at the top; the classes know."""
    return _CLASSES[config["model_type"]][0].from_dict(dict(config))


def _bounds(processor: Mapping[str, Any]) -> tuple[int, int]:
    """Fewest and most pixels of a page: files of three ages say it differently."""
    size = processor.get("size") or {}
    least = processor.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels") or 56 * 56
    most = processor.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels") or 28 * 28 * 1280
    return int(least), int(most)
