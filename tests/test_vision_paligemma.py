"""ColPali against transformers' own ColPaliForRetrieval, on tiny random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ColPaliForRetrieval, PreTrainedTokenizerFast
from transformers.models.colpali import ColPaliProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from vision_tools import MIXES, QUERIES, SIZES, close, pictures, reference_vectors, vectors

from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.models.vision.model import VisionModel
from budgetvdr.training.models.vision.tiny import tiny_paligemma


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


@pytest.fixture(scope="module", params=[2, 4, 6])
def cut(request: pytest.FixtureRequest, folder: Path) -> tuple[int, ColPaliForRetrieval]:
    depth = request.param
    model = ColPaliForRetrieval.from_pretrained(folder).eval()
    model.vlm.language_model.layers = model.vlm.language_model.layers[:depth]
    model.vlm.language_model.config.num_hidden_layers = depth
    return depth, model


@pytest.mark.parametrize("names", MIXES.values(), ids=MIXES)
def test_pages_are_those_of_the_reference_with_its_layers_cut(
    cut: tuple[int, ColPaliForRetrieval], model: VisionModel, processor: ColPaliProcessor, names: list[str]
) -> None:
    depth, reference = cut
    images = pictures(names)
    close(
        vectors(model, images, "page", depth),
        reference_vectors(reference, processor.process_images(images, do_convert_rgb=True)),
    )


@pytest.mark.parametrize("texts", [*([text] for text in QUERIES), QUERIES], ids=["plain", "short", "long", "mixed"])
def test_queries_are_those_of_the_reference_with_its_layers_cut(
    cut: tuple[int, ColPaliForRetrieval], model: VisionModel, processor: ColPaliProcessor, texts: list[str]
) -> None:
    depth, reference = cut
    close(vectors(model, texts, "query", depth), reference_vectors(reference, processor.process_queries(texts)))


def test_inputs_are_the_processors(model: VisionModel, processor: ColPaliProcessor) -> None:
    images = pictures([name for name in SIZES if name != "line"])
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


def test_pieces_are_those_of_the_query_and_nothing_of_what_is_around_it(model: VisionModel) -> None:
    for text in [*QUERIES, "né à Köln 你好"]:
        assert len(model.preprocessor.pieces(text)) == model.preprocessor.queries([text]).counts.sum()
    pieces = model.preprocessor.pieces("the plan")
    assert "".join(pieces) == "the plan"
    # <bos>Question: before it, ten <pad> and a line break behind.
    assert pieces[0] == "" and pieces[-11:] == ("",) * 11
    assert "the" in pieces


def test_a_special_token_in_a_query_is_text(model: VisionModel) -> None:
    """The picture's token has no embedding in some vocabularies."""
    text = "what is <image> and <pad>?"
    ids = model.preprocessor.queries([text]).arrays["input_ids"][0]
    assert (ids == 4).sum() == 0
    assert (ids == 0).sum() == 10
    assert "".join(model.preprocessor.pieces(text)) == "what is < image> and < pad>?"
