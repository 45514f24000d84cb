"""ColPali: PaliGemma's tower and projector before Gemma's layers, which look in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PaliGemmaConfig, PaliGemmaModel

from budgetvdr.encoders.vision import TOKENIZER_NAME
from budgetvdr.encoders.vision.paligemma import PaliGemmaPreprocessor, PaliGemmaSettings
from budgetvdr.encoders.vision.prompts import open_tokenizer
from budgetvdr.training.errors import CheckpointError
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


class PaliGemma(VisionModel):
    """published: `PaliGemmaModel` of transformers."""

    norm_path = "language_model.norm"
    renames = (
        (r"^language_model\.model\.", "language_model."),
        (r"^vision_tower\.vision_model\.", "vision_tower."),
    )

    @classmethod
    def empty(cls, config: Mapping[str, Any]) -> nn.Module:
        """`PaliGemmaModel`. Raises CheckpointError for a decoder other than Gemma's first."""
        kind = config["text_config"].get("model_type", "gemma")
        if kind != "gemma":
            raise CheckpointError(f"PaliGemma over {kind} is not supported: expected gemma (ColPali 1.x)")
        vision = {**config["vision_config"], "vision_use_head": False}
        return PaliGemmaModel(PaliGemmaConfig.from_dict({**config, "vision_config": vision}))

    @classmethod
    def preprocessor_of(
        cls, config: Mapping[str, Any], processor: Mapping[str, Any], folder: Path
    ) -> PaliGemmaPreprocessor:
        """Of ColPali's processor: ten padding tokens after a query, which the model was trained to think with.

        The texts are those that ColPali was trained with up to 1.3, by colpali-engine up to 0.3.3; transformers' class
        has the same. Later engines write others.
        """
        vision = config["vision_config"]
        side = int(vision["image_size"])
        if (processor["size"]["height"], processor["size"]["width"]) != (side, side):
            raise ValueError(f"pictures of {processor['size']} for a vision tower of {side} pixels")
        prompt = processor.get("visual_prompt_prefix", "Describe the image.")
        settings = PaliGemmaSettings(
            side=side,
            patch=int(vision["patch_size"]),
            scale=pixel_scale(processor),
            image="<image>",
            pad="<pad>",
            page_prompt=f"<bos>{prompt}\n",
            query_prefix=f"<bos>{processor.get('query_prefix', 'Question: ')}",
            query_suffix=10 * "<pad>" + "\n",
        )
        return PaliGemmaPreprocessor(settings, open_tokenizer(folder / TOKENIZER_NAME))

    def begin(self, inputs: Inputs) -> Beginning:
        """Prompt and picture see each other whole; positions count from 1."""
        text = self.published.get_submodule("language_model")
        state = text.get_submodule("embed_tokens")(text_ids(inputs))
        if "pixel_values" in inputs:
            seen = self.published.get_submodule("vision_tower")(
                inputs["pixel_values"].to(state.dtype)
            ).last_hidden_state
            features = self.published.get_submodule("multi_modal_projector")(seen)
            state = place(features.flatten(0, 1), inputs["visual_slots"], state)
        positions = torch.arange(1, state.shape[1] + 1, device=state.device)[None]
        return Beginning(
            state,
            {FULL: additive_mask(inputs["attention_mask"], state.dtype)},
            {FULL: text.get_submodule("rotary_emb")(state, positions)},
        )
