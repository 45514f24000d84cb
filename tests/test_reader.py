"""The reader: pages and queries into vectors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_bert
from PIL import Image

from budgetvdr.bundle import load_manifest
from budgetvdr.encoders import reading
from budgetvdr.encoders.open import bundled_folder
from budgetvdr.encoders.reader import MOST_TOKENS, ReaderEncoder
from budgetvdr.errors import BudgetError, BudgetVDRError, BundleError, MissingExtraError, PageError, QueryError
from budgetvdr.pages import EncodedPage, Page, Words

TEXT = (
    "Capital spending above one million dollars is signed off by the board. Smaller sums need the signature of the "
    "finance director. Travel is booked through the agency; economy class is the rule on short flights. "
)
WIDTH = load_manifest(bundled_folder()).dims[-1]
OTHER = "Trout and salmon live in cold rivers. They feed on insects and swim upstream to spawn. "


@pytest.fixture(scope="module")
def reader() -> ReaderEncoder:
    return ReaderEncoder(bundled_folder(), threads=2)


def words_of(text: str) -> Words:
    texts = tuple(text.split())
    place = np.arange(len(texts), dtype=np.float32)
    x, y = place % 10 / 10, place // 10 / 1000
    return Words(texts, np.stack([x, y, x + 0.08, y + 0.0008], axis=1))


def page(number: int, text: str) -> Page:
    return Page("doc", number, words=words_of(text))


def encoded(results: list[EncodedPage | BudgetVDRError]) -> list[EncodedPage]:
    pages = [result for result in results if isinstance(result, EncodedPage)]
    assert len(pages) == len(results), results
    return pages


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def maxsim(query: np.ndarray, vectors: np.ndarray) -> float:
    return float((query @ unit(vectors).T).max(axis=1).mean())


def test_one_vector_and_one_region_a_token_at_every_depth(reader: ReaderEncoder) -> None:
    (result,) = encoded(reader.encode_pages([page(1, TEXT * 12)], (2, 4, 6)))
    count = len(result.regions)
    assert count > 400
    assert {depth: vectors.shape for depth, vectors in result.vectors.items()} == dict.fromkeys(
        (2, 4, 6), (count, WIDTH)
    )
    for vectors in result.vectors.values():
        assert vectors.dtype == np.float32
        # As the model gives them: folding needs their lengths.
        assert np.ptp(np.linalg.norm(vectors, axis=1)) > 0.1
    assert result.regions.min() >= 0 and result.regions.max() <= 1
    assert result.reader == "text_layer"
    assert result.text.split() == (TEXT * 12).split()
    assert result.seconds["transformer"] > 0


def test_vectors_do_not_depend_on_the_batch_the_threads_or_the_other_depths(reader: ReaderEncoder) -> None:
    pages = [page(1, TEXT * 9), page(2, "one"), page(3, OTHER * 20), page(4, ""), page(5, TEXT)]
    together = encoded(reader.encode_pages(pages, (2, 6)))
    alone = [encoded(ReaderEncoder(bundled_folder(), threads=1).encode_pages([one], (6,)))[0] for one in pages]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.vectors[6], other.vectors[6])
        np.testing.assert_array_equal(one.regions, other.regions)


def test_a_shallow_exit_is_the_same_from_every_graph(reader: ReaderEncoder) -> None:
    (deep,) = encoded(reader.encode_pages([page(1, TEXT)], (2, 4, 6)))
    (shallow,) = encoded(reader.encode_pages([page(1, TEXT)], (2,)))
    np.testing.assert_array_equal(deep.vectors[2], shallow.vectors[2])


def test_a_query_is_encoded_as_the_same_text_on_a_page(reader: ReaderEncoder) -> None:
    query = reader.encode_query("who signs off capital spending", 4)
    (same,) = encoded(reader.encode_pages([page(1, "who signs off capital spending")], (4,)))
    np.testing.assert_array_equal(query.vectors, unit(same.vectors[4]))
    assert query.tokens == ("who", "signs", "off", "capital", "spending")


def test_queries_find_the_page_that_answers(reader: ReaderEncoder) -> None:
    about_money, about_fish = encoded(reader.encode_pages([page(1, TEXT), page(2, OTHER)], (6,)))
    for question, right, wrong in (
        ("Who approves large investments?", about_money, about_fish),
        ("Where do trout live?", about_fish, about_money),
    ):
        query = reader.encode_query(question, 6).vectors
        assert maxsim(query, right.vectors[6]) > maxsim(query, wrong.vectors[6]) + 0.05


def test_the_bundled_integers_stay_close_to_the_float_model(reader: ReaderEncoder, tmp_path: Path) -> None:
    """Against BERT in plain numpy, over the weights as they are stored in the bundle."""
    graph = onnx.load(bundled_folder() / "depth_6.onnx").graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    source = tmp_path / "model"
    source.mkdir()
    tiny_bert.save_dequantised(source, tensors, heads=12)
    ids = np.array([101, *reader._pieces.page(words_of(TEXT), 100).ids, 102])
    (result,) = encoded(reader.encode_pages([page(1, TEXT)], (2, 4, 6)))
    states = tiny_bert.forward(source, ids)
    for depth, least in ((2, 0.995), (4, 0.99), (6, 0.98)):
        exact, head = states[depth - 1][1:-1], f"exits.{depth}.projection."
        if head + "weight" in tensors:
            exact = exact @ tensors[head + "weight"] + tensors[head + "bias"]
        assert (unit(exact) * unit(result.vectors[depth])).sum(axis=1).min() > least


def test_long_pages_are_cut_into_windows_and_lose_no_token(reader: ReaderEncoder) -> None:
    text = TEXT * 30
    (result,) = encoded(reader.encode_pages([page(1, text)], (2,)))
    assert len(result.regions) == len(reader._pieces.page(words_of(text), MOST_TOKENS).ids) > 254 * 4
    assert "truncated" not in result.notes


def test_a_page_of_many_words_is_cut_and_flagged(reader: ReaderEncoder) -> None:
    (result,) = encoded(reader.encode_pages([page(1, " ".join(f"label-{n}" for n in range(9000)))], (2,)))
    assert result.vectors[2].shape == (MOST_TOKENS, WIDTH)
    assert result.notes == ("truncated",)


def test_a_page_of_one_endless_word_is_encoded(reader: ReaderEncoder) -> None:
    (result,) = encoded(reader.encode_pages([page(1, "x" * 200_000)], (2,)))
    assert len(result.regions) == 1


def test_an_empty_page_has_no_vectors(reader: ReaderEncoder) -> None:
    blank = Page("doc", 1, image=Image.new("RGB", (600, 800), "white"), notes=("xfa_placeholder",))
    (result,) = encoded(reader.encode_pages([blank], (2, 6)))
    assert {depth: vectors.shape for depth, vectors in result.vectors.items()} == {2: (0, WIDTH), 6: (0, WIDTH)}
    assert result.regions.shape == (0, 4)
    assert (result.text, result.reader, result.notes) == ("", "none", ("xfa_placeholder", "blank"))


def broken_render(longest_side: int) -> Image.Image:
    raise RuntimeError(f"no ink for {longest_side} pixels")


def closed_file(longest_side: int) -> Image.Image:
    raise PageError("report.pdf: page 2 was asked for after the file was closed", page_num=2)


@pytest.mark.parametrize(
    ("render", "message"),
    [(broken_render, "doc: page 2 cannot be encoded: RuntimeError: no ink"), (closed_file, "report.pdf: page 2")],
)
def test_a_page_that_fails_gives_its_error_and_the_others_go_on(
    reader: ReaderEncoder, render: Callable[[int], Image.Image], message: str
) -> None:
    ended: list[None] = []
    pages = [page(1, TEXT), Page("doc", 2, render=render), page(3, OTHER)]
    first, failed, third = reader.encode_pages(pages, (2,), on_page=lambda: ended.append(None))
    assert isinstance(first, EncodedPage) and isinstance(third, EncodedPage)
    assert isinstance(failed, PageError) and failed.page_num == 2
    assert message in str(failed)
    assert len(ended) == 3


def test_forced_ocr_that_is_missing_ends_the_batch_before_it_begins(
    reader: ReaderEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtraError('pip install "budgetvdr[ocr]"')

    monkeypatch.setattr(reading, "OcrReader", missing)
    fresh = ReaderEncoder(bundled_folder())
    picture = Image.new("RGB", (600, 800), "white")
    with pytest.raises(MissingExtraError):
        fresh.encode_pages([Page("doc", 1, image=picture, read="ocr")], (2,))


def test_no_pages_give_no_results(reader: ReaderEncoder) -> None:
    assert reader.encode_pages([], (2,)) == []


@pytest.mark.parametrize("text", ["", "   \n\t", "\x00\x01", "\u200b"])
def test_an_empty_query_is_refused(reader: ReaderEncoder, text: str) -> None:
    with pytest.raises(QueryError, match="nothing to search for"):
        reader.encode_query(text, 6)


def test_a_query_of_ten_thousand_words_is_refused_with_both_numbers(reader: ReaderEncoder) -> None:
    with pytest.raises(QueryError, match=r"10000 tokens.*254"):
        reader.encode_query("spending " * 10_000, 6)
    assert len(reader.encode_query("spending " * 254, 2).tokens) == 254


def test_a_query_in_characters_the_model_does_not_know_is_refused(reader: ReaderEncoder) -> None:
    with pytest.raises(QueryError, match="knows none"):
        reader.encode_query("➜ ✓", 6)


@pytest.mark.parametrize("depth", [0, 3, 7])
def test_a_depth_the_bundle_lacks_is_refused_with_those_it_has(reader: ReaderEncoder, depth: int) -> None:
    with pytest.raises(BudgetError, match=r"2, 4, 6"):
        reader.encode_query("spending", depth)
    with pytest.raises(BudgetError, match=r"2, 4, 6"):
        reader.encode_pages([page(1, TEXT)], (2, depth))


def test_a_depth_loads_only_its_own_graph(tmp_path: Path) -> None:
    bundle = tiny_bert.write_bundle(tmp_path / "bundle", tiny_bert.write_model(tmp_path / "model"))
    encoder = ReaderEncoder(bundle)
    os.truncate(bundle / "depth_3.onnx", 100)
    assert encoder.encode_query("the board", 1).vectors.shape == (2, tiny_bert.HIDDEN)
    with pytest.raises(BundleError, match=r"depth_3\.onnx"):
        encoder.encode_query("the board", 3)
    with pytest.raises(BundleError, match=r"depth_3\.onnx"):
        encoder.encode_pages([page(1, "the board")], (1, 3))


def test_query_vectors_keep_their_length_where_the_bundle_says_so(tmp_path: Path) -> None:
    bundle = tiny_bert.write_bundle(tmp_path / "bundle", tiny_bert.write_model(tmp_path / "model"))
    path = bundle / "manifest.json"
    unit = ReaderEncoder(bundle).encode_query("fish swim", 2).vectors
    path.write_text(path.read_text().replace('"unit_queries": true', '"unit_queries": false'))
    raw = ReaderEncoder(bundle).encode_query("fish swim", 2).vectors
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    assert np.linalg.norm(raw, axis=1).min() > 2
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), unit, atol=1e-6)
