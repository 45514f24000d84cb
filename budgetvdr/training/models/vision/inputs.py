"""Choices about what a loaded model is given, for whoever trains or exports it."""

from __future__ import annotations

import re
from typing import Any

from budgetvdr.encoders.vision import make_preprocessor
from budgetvdr.encoders.vision.prompts import open_tokenizer
from budgetvdr.encoders.vision.qwen import QwenPreprocessor
from budgetvdr.training.errors import TrainingError
from budgetvdr.training.models.vision.model import VisionModel

# Marks that a text begins with stay whatever is written behind them.
_MARKS = re.compile(r"(?:<\w+>)*")


def limit_pages(model: VisionModel, image_tokens: int) -> None:
    """Pages of the model get at most so many image tokens, in training and in what is exported later.

    Raises TrainingError for a family whose pages have a size of their own, and for a bound below the smallest page.
    """
    preprocessor = model.preprocessor
    if not isinstance(preprocessor, QwenPreprocessor):
        raise TrainingError(f"pages of {model.family} have a size of their own: leave out --image-tokens")
    settings = preprocessor.settings
    token = settings.step**2
    least = -(-settings.least_pixels // token)
    if image_tokens < least:
        raise TrainingError(f"--image-tokens {image_tokens}: the smallest page of this checkpoint has {least}")
    _change(model, most_pixels=image_tokens * token)


def prefix_queries(model: VisionModel, prefix: str) -> None:
    """Queries of the model begin with these words instead of those that its library writes."""
    before = _MARKS.match(model.preprocessor.to_json()["query_prefix"])
    assert before is not None
    _change(model, query_prefix=before[0] + prefix)


def _change(model: VisionModel, **settings: Any) -> None:
    if model.tokenizer_file is None:
        raise TrainingError("the model does not know the file of its tokenizer: load it with load_vision")
    tokenizer = open_tokenizer(model.tokenizer_file)
    model.preprocessor = make_preprocessor(model.family, {**model.preprocessor.to_json(), **settings}, tokenizer)
