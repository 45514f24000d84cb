"""ColModernVBERT: SigLIP's tower before ModernBERT, whose layers mostly look at what is near."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import ModernVBertConfig, ModernVBertModel

from budgetvdr.encoders.vision import TOKENIZER_NAME
from budgetvdr.encoders.vision.modernvbert import ModernVBertPreprocessor, ModernVBertSettings
from budgetvdr.encoders.vision.prompts import open_tokenizer
from budgetvdr.training.models.model import Inputs
from budgetvdr.training.models.vision.model import (
    FULL,
    Beginning,
    VisionModel,
    additive_mask,
    pixel_scale,
    place,
    text_ids,
)

_IMAGE, _END = "<image>", "<end_of_utterance>"
_PAGE_PROMPT = f"<|begin_of_text|>User:{_IMAGE}Describe the image.{_END}\nAssistant:"


class ModernVBert(VisionModel):
    """published: `ModernVBertModel` of transformers."""

    norm_path = "text_model.final_norm"
    renames = (
        (r"^vision_model\.vision_model\.", "vision_model."),
        (r"^connector\.modality_projection\.proj\.", "connector.modality_projection."),
    )

    @classmethod
    def empty(cls, config: Mapping[str, Any]) -> nn.Module:
        """Without the tower's pooling, which token vectors do not need."""
        vision = {**config["vision_config"], "vision_use_head": False}
        return ModernVBertModel(ModernVBertConfig.from_dict({**config, "vision_config": vision}))

    @classmethod
    def preprocessor_of(
        cls, config: Mapping[str, Any], processor: Mapping[str, Any], folder: Path
    ) -> ModernVBertPreprocessor:
        """Of ColModernVBERT's processor: ten marks of an end after a query, which it was trained to think with."""
        whole: Any = ModernVBertConfig.from_dict(dict(config))
        side, patch = int(whole.vision_config.image_size), int(whole.vision_config.patch_size)
        tile = int(processor["max_image_size"]["longest_edge"])
        grid, rest = divmod(side // patch, whole.pixel_shuffle_factor)
        if tile != side or rest:
            raise ValueError(f"tiles of {tile} pixels for a vision tower of {side}, patches of {patch}")
        tokenizer = open_tokenizer(folder / TOKENIZER_NAME)
        settings = ModernVBertSettings(
            tile=tile,
            grid=grid,
            longest_side=int(processor["size"]["longest_edge"]),
            split=bool(processor.get("do_image_splitting", True)),
            scale=pixel_scale(processor),
            image=_IMAGE,
            pad=str(tokenizer.id_to_token(whole.text_config.pad_token_id)),
            page_prompt=processor.get("visual_prompt_prefix", _PAGE_PROMPT),
            query_prefix=processor.get("query_prefix", ""),
            query_suffix=10 * _END,
        )
        return ModernVBertPreprocessor(settings, tokenizer)

    def attention_of(self, layer: nn.Module) -> nn.Module:
        """ModernBERT has a name of its own for it."""
        return layer.get_submodule("attn")

    def kind(self, layer: int) -> str:
        """Every third layer sees all."""
        return str(self.layers()[layer].attention_type)

    def begin(self, inputs: Inputs) -> Beginning:
        """Layers with a window look as far to the left as to the right."""
        text: Any = self.published.get_submodule("text_model")
        state = text.get_submodule("embeddings.tok_embeddings")(text_ids(inputs))
        if "pixel_values" in inputs:
            seen = self.published.get_submodule("vision_model")(inputs["pixel_values"].to(state.dtype))
            features = self.published.get_submodule("connector")(seen.last_hidden_state)
            state = place(features.flatten(0, 1), inputs["visual_slots"], state)
        embeddings = text.get_submodule("embeddings")
        state = embeddings.get_submodule("drop")(embeddings.get_submodule("norm")(state))
        positions = torch.arange(state.shape[1], device=state.device)
        near = (positions[None] - positions[:, None]).abs() <= text.config.sliding_window
        rotary = text.get_submodule("rotary_emb")
        kinds = {self.kind(layer) for layer in range(self.depths[-1])}
        mask = inputs["attention_mask"]
        return Beginning(
            state,
            {kind: additive_mask(mask, state.dtype, None if kind == FULL else near) for kind in kinds},
            {kind: rotary(state, positions[None], kind) for kind in kinds},
        )
