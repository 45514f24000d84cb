"""ColModernVBERT against transformers' own ColModernVBertForRetrieval, on tiny random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ColModernVBertForRetrieval, PreTrainedTokenizerFast
from transformers.models.colmodernvbert import ColModernVBertProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)
from vision_tools import MIXES, QUERIES, SIZES, close, pictures, reference_vectors, vectors

from budgetvdr.encoders.vision.modernvbert import ModernVBertPreprocessor, ModernVBertSettings, _fit
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.tiny import tiny_modernvbert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_modernvbert(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> VisionModel:
    return load_vision(folder, depths=(2, 4, 6))


@pytest.fixture(scope="module")
def processor(folder: Path) -> ColModernVBertProcessor:
    images = Idefics3ImageProcessorPil.from_pretrained(folder)
    return ColModernVBertProcessor(images, PreTrainedTokenizerFast.from_pretrained(folder), image_seq_len=4)


@pytest.fixture(scope="module", params=[2, 4, 6])
def cut(request: pytest.FixtureRequest, folder: Path) -> tuple[int, ColModernVBertForRetrieval]:
    depth = request.param
    model = ColModernVBertForRetrieval.from_pretrained(folder).eval()
    model.vlm.text_model.layers = model.vlm.text_model.layers[:depth]
    return depth, model


@pytest.mark.parametrize("names", MIXES.values(), ids=MIXES)
def test_pages_are_those_of_the_reference_with_its_layers_cut(
    cut: tuple[int, ColModernVBertForRetrieval],
    model: VisionModel,
    processor: ColModernVBertProcessor,
    names: list[str],
) -> None:
    depth, reference = cut
    images = pictures(names)
    found = vectors(model, images, "page", depth)
    assert max(map(len, found)) > 2 * 12  # longer than a window, or it would not show
    close(found, reference_vectors(reference, processor.process_images(images)))


@pytest.mark.parametrize("texts", [*([text] for text in QUERIES), QUERIES], ids=["plain", "short", "long", "mixed"])
def test_queries_are_those_of_the_reference_with_its_layers_cut(
    cut: tuple[int, ColModernVBertForRetrieval],
    model: VisionModel,
    processor: ColModernVBertProcessor,
    texts: list[str],
) -> None:
    depth, reference = cut
    close(vectors(model, texts, "query", depth), reference_vectors(reference, processor.process_queries(texts)))


def test_inputs_are_the_processors_for_all_kinds_of_sizes(
    model: VisionModel, processor: ColModernVBertProcessor
) -> None:
    rng = np.random.default_rng(0)
    sizes = [*SIZES.values(), *(tuple(rng.integers(1, 300, 2).tolist()) for _ in range(40))]
    for image in [pictures(["portrait"])[0].resize((width, height)) for height, width in sizes]:
        inputs, expected = model.prepare([image], "page"), processor.process_images([image])
        torch.testing.assert_close(inputs["pixel_values"], expected["pixel_values"][0], atol=1e-6, rtol=0)
        assert torch.equal(inputs["input_ids"], expected["input_ids"])
        assert model.preprocessor.pixels(image) == inputs["pixel_values"].shape[0] * 32**2


def test_a_page_that_is_not_split_is_one_tile(model: VisionModel, processor: ColModernVBertProcessor) -> None:
    settings = model.preprocessor.to_json()
    whole = ModernVBertPreprocessor(
        ModernVBertSettings.from_json({**settings, "split": False}), model.preprocessor._tokenizer
    )
    images = pictures(["portrait", "landscape"])
    batch = whole.pages(images)
    expected = processor.process_images(images, images_kwargs={"do_image_splitting": False})
    np.testing.assert_allclose(batch.arrays["pixel_values"][:, None], expected["pixel_values"], atol=1e-6)
    assert (batch.arrays["input_ids"] == expected["input_ids"].numpy()).all()


@pytest.mark.parametrize("longest", [96, 97, 5000])
def test_pages_are_sized_as_the_processor_does(longest: int) -> None:
    rng = np.random.default_rng(0)
    for width, height in [(1, 1), (1, 5000), (5000, 1), *(rng.integers(1, 6000, 2).tolist() for _ in range(300))]:
        expected = get_resize_output_image_size(np.empty((3, height, width)), longest)
        assert _fit(width, height, longest)[::-1] == expected


def test_neighbours_in_a_batch_change_nothing(model: VisionModel) -> None:
    close(vectors(model, QUERIES, "query", 6), [vectors(model, [text], "query", 6)[0] for text in QUERIES])
    images = pictures(list(SIZES))
    close(vectors(model, images, "page", 6), [vectors(model, [image], "page", 6)[0] for image in images])


def test_regions_follow_the_tiles(model: VisionModel) -> None:
    batch = model.preprocessor.pages(pictures(["landscape", "tiny"]))  # 120 by 40: 3 tiles, 1 line
    assert [len(regions) for regions in batch.regions] == batch.counts.sum(axis=1).tolist()
    image = batch.arrays["visual_slots"][0][batch.counts[0]] >= 0
    boxes = batch.regions[0][image]
    assert len(boxes) == 4 * (3 + 1)
    np.testing.assert_allclose(boxes[0], [0, 0, 1 / 6, 1 / 2], atol=1e-6)
    np.testing.assert_allclose(boxes[1], [1 / 6, 0, 1 / 3, 1 / 2], atol=1e-6)
    np.testing.assert_allclose(boxes[2], [0, 1 / 2, 1 / 6, 1], atol=1e-6)
    np.testing.assert_allclose(boxes[4], [1 / 3, 0, 1 / 2, 1 / 2], atol=1e-6)
    np.testing.assert_allclose(boxes[-1], [1 / 2, 1 / 2, 1, 1])
    assert (batch.regions[0][~image] == [0, 0, 1, 1]).all()


def test_pieces_are_those_of_the_query_and_nothing_of_what_is_around_it(model: VisionModel) -> None:
    pieces = model.preprocessor.pieces("the plan")
    assert "".join(pieces) == "the plan"
    # [CLS] before it, ten marks of an end and [SEP] behind.
    assert pieces[0] == "" and pieces[-11:] == ("",) * 11
    assert len(pieces) == model.preprocessor.queries(["the plan"]).counts.sum()
