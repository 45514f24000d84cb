"""ColPali against transformers' own ColPaliForRetrieval, on tiny random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize
from transformers import ColPaliForRetrieval, PreTrainedTokenizerFast
from transformers.models.colpali import ColPaliProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.tiny import tiny_paligemma

SIZES = {"portrait": (90, 60), "landscape": (40, 120), "square": (56, 56), "tiny": (3, 2)}
QUERIES = ["what is the revenue?", "x", "a question that is a good deal longer than the others are"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_paligemma(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> VisionModel:
    return load_vision(folder, depths=(2, 4, 6))


@pytest.fixture(scope="module")
def processor(folder: Path) -> ColPaliProcessor:
    return ColPaliProcessor(
        SiglipImageProcessorPil.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    )


def reference(folder: Path, depth: int) -> ColPaliForRetrieval:
    model = ColPaliForRetrieval.from_pretrained(folder).eval()
    model.vlm.language_model.layers = model.vlm.language_model.layers[:depth]
    model.vlm.language_model.config.num_hidden_layers = depth
    return model


def pictures(names: Sequence[str]) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (*SIZES[name], 3), dtype=np.uint8)) for name in names]


def vectors(model: VisionModel, contents: Sequence[str | Image.Image], role: str, depth: int) -> list[Tensor]:
    with torch.no_grad():
        states = model(model.prepare(contents, role), role)  # type: ignore[arg-type]
    return [normalize(rows[mask], dim=-1) for rows, mask in zip(states.exits[depth], states.mask, strict=True)]


def reference_vectors(model: ColPaliForRetrieval, batch: dict[str, Tensor]) -> list[Tensor]:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        found = model(**inputs).embeddings
    return [rows[mask.bool()] for rows, mask in zip(found, batch["attention_mask"], strict=True)]


def close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("depth", [2, 4, 6])
@pytest.mark.parametrize("names", [[name] for name in SIZES] + [list(SIZES)], ids=[*SIZES, "mixed"])
def test_pages_are_those_of_the_reference_with_its_layers_cut(
    folder: Path, model: VisionModel, processor: ColPaliProcessor, names: list[str], depth: int
) -> None:
    images = pictures(names)
    expected = reference_vectors(reference(folder, depth), processor.process_images(images))
    close(vectors(model, images, "page", depth), expected)


@pytest.mark.parametrize("depth", [2, 6])
@pytest.mark.parametrize("texts", [[text] for text in QUERIES] + [QUERIES], ids=["plain", "short", "long", "mixed"])
def test_queries_are_those_of_the_reference(
    folder: Path, model: VisionModel, processor: ColPaliProcessor, texts: list[str], depth: int
) -> None:
    expected = reference_vectors(reference(folder, depth), processor.process_queries(texts))
    close(vectors(model, texts, "query", depth), expected)


def test_inputs_are_the_processors(model: VisionModel, processor: ColPaliProcessor) -> None:
    images = pictures(list(SIZES))
    inputs, expected = model.prepare(images, "page"), processor.process_images(images)
    torch.testing.assert_close(inputs["pixel_values"], expected["pixel_values"], atol=1e-6, rtol=0)
    assert torch.equal(inputs["input_ids"], expected["input_ids"])


def test_neighbours_in_a_batch_change_nothing(model: VisionModel) -> None:
    close(vectors(model, QUERIES, "query", 6), [vectors(model, [text], "query", 6)[0] for text in QUERIES])
    images = pictures(list(SIZES))
    close(vectors(model, images, "page", 6), [vectors(model, [image], "page", 6)[0] for image in images])


def test_regions_are_the_patches_then_the_whole_page(model: VisionModel) -> None:
    batch = model.preprocessor.pages(pictures(["portrait", "tiny"]))
    assert [len(regions) for regions in batch.regions] == batch.counts.sum(axis=1).tolist()
    image = batch.arrays["visual_slots"][0] >= 0
    np.testing.assert_allclose(batch.regions[0][image][:5, :2], [[0, 0], [0.25, 0], [0.5, 0], [0.75, 0], [0, 0.25]])
    np.testing.assert_allclose(batch.regions[0][image][-1], [0.75, 0.75, 1, 1])
    assert (batch.regions[0][~image] == [0, 0, 1, 1]).all()


def test_pieces_are_the_written_query(model: VisionModel) -> None:
    for text in [*QUERIES, "né à Köln 你好"]:
        pieces = model.preprocessor.pieces(text)
        assert len(pieces) == model.preprocessor.queries([text]).counts.sum()
    pieces = model.preprocessor.pieces("the plan")
    assert "".join(pieces) == f"<bos>Question: the plan{10 * '<pad>'}\n"


def test_only_the_layers_needed_are_there(folder: Path, model: VisionModel) -> None:
    shallow = load_vision(folder, depths=(2,))
    assert len(shallow.layers()) == 2
    assert shallow.trained_exits == ()
    assert model.trained_exits == (6,)
    images = pictures(["portrait"])
    close(vectors(shallow, images, "page", 2), vectors(model, images, "page", 2))
