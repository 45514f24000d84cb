"""Trained vision-language models as elastic checkpoints; `load_vision` reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from budgetvdr.encoders.vision import TOKENIZER_NAME, write_preprocessor
from budgetvdr.training.checkpoint import ElasticManifest, write_checkpoint
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.vision.model import VisionModel


def save_vision(model: VisionModel, objective: Objective, folder: Path, *, name: str, steps: int) -> ElasticManifest:
    """Writes the checkpoint of a model that `load_vision` made; adapters are merged into `model` first.

    Of the decoder it has the layers that were loaded. Weights keep their type.

    Raises CheckpointError where `folder` exists: a checkpoint is never written over.
    """
    tokenizer = model.tokenizer_file
    if tokenizer is None or not tokenizer.is_file():
        raise CheckpointError(f"the tokenizer that the model was loaded with is gone: {tokenizer}")
    config: Any = model.backbone().config

    def write_rest(partial: Path) -> None:
        (partial / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
        write_preprocessor(model.preprocessor, partial)
        shutil.copyfile(tokenizer, partial / TOKENIZER_NAME)

    longest = int(config.get_text_config().max_position_embeddings)
    return write_checkpoint(
        model, objective, folder, name=name, steps=steps, longest=(longest, longest), write_rest=write_rest
    )
