"""Pictures, questions and comparisons for the tests of vision-language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

from budgetvdr.training.models.model import Content, Role
from budgetvdr.training.models.vision.model import VisionModel

SIZES = {"portrait": (90, 60), "landscape": (40, 120), "square": (56, 56), "tiny": (3, 2), "line": (1, 100)}
MIXES = {**{name: [name] for name in SIZES}, "mixed": list(SIZES)}
QUERIES = [
    "what is the revenue?",
    "x",
    "a question that is a good deal longer than the others are, with 3 numbers: 1 2 3",
]


def pictures(names: Sequence[str]) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (*SIZES[name], 3), dtype=np.uint8)) for name in names]


def vectors(model: VisionModel, contents: Sequence[Content], role: Role, depth: int) -> list[Tensor]:
    """(n, D) unit vectors of the tokens kept."""
    with torch.no_grad():
        states = model(model.prepare(contents, role), role)
    return [normalize(rows[mask], dim=-1) for rows, mask in zip(states.exits[depth], states.mask, strict=True)]


def reference_vectors(model: nn.Module, batch: Mapping[str, Tensor]) -> list[Tensor]:
    """The same of one of transformers' retrieval classes."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        found = model(**inputs).embeddings
    return [rows[mask.bool()] for rows, mask in zip(found, batch["attention_mask"], strict=True)]


def close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
