"""Explanations, by hand: which region answers which token when several regions share a vector, or have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import MakePdf
from PIL import Image

from budgetvdr import Index
from budgetvdr.compress import AnchorFold, RandomSelection
from budgetvdr.compress.record import Method
from budgetvdr.encoders import Encoder
from budgetvdr.explain import explain
from budgetvdr.pages import EncodedQuery

# Four tokens side by side, each a fifth of the page high.
REGIONS = np.array([[x, 0.4, x + 0.2, 0.6] for x in (0.0, 0.25, 0.5, 0.75)], np.float32)
# Two query tokens and a comma, of unit length.
QUERY = EncodedQuery(np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32), ("east", "north", ","))
EAST, NORTH = np.array([3, 0], np.float32), np.array([0, 2], np.float32)


def tuples(*tokens: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(edge) for edge in REGIONS[token]) for token in tokens)


def test_each_token_has_its_own_vector() -> None:
    found = explain(QUERY, np.stack([NORTH, EAST, -EAST, -NORTH]), REGIONS)
    assert [match.vector for match in found.matches] == [1, 0, 0]
    assert [match.regions for match in found.matches] == [tuples(1), tuples(0), tuples(0)]
    assert found.matches[0].region == tuples(1)[0]
    assert [match.score for match in found.matches] == pytest.approx([1, 1, 0.8])
    assert found.score == pytest.approx(2.8 / 3)
    np.testing.assert_array_equal(found.folds, [0, 1, 2, 3])


def test_the_regions_of_a_vector_are_those_of_all_its_tokens() -> None:
    found = explain(QUERY, np.stack([NORTH, EAST]), REGIONS, np.array([1, 0, -1, 1], np.int32))
    assert [match.vector for match in found.matches] == [1, 0, 0]
    assert [match.regions for match in found.matches] == [tuples(0, 3), tuples(1), tuples(1)]
    assert found.matches[0].region == tuples(0)[0]


def at(picture: Image.Image, token: int) -> tuple[int, ...]:
    """The colour in the middle of a token's region."""
    x0, y0, x1, y1 = REGIONS[token]
    pixel = picture.getpixel((int((x0 + x1) / 2 * picture.width), int((y0 + y1) / 2 * picture.height)))
    assert isinstance(pixel, tuple)
    return pixel


def test_overlay_marks_every_region_of_an_answering_vector() -> None:
    white = Image.new("RGB", (400, 100), "white")
    found = explain(QUERY, np.stack([NORTH, EAST]), REGIONS, np.array([1, -1, -1, 1], np.int32))
    marked = found.overlay(white)
    assert at(marked, 0) == at(marked, 3) == (255, 215, 40), "a perfect match is the darkest yellow"
    assert at(marked, 1) == at(marked, 2) == (255, 255, 255)
    assert white.getpixel((10, 50)) == (255, 255, 255), "the picture given is left alone"


def test_what_stands_for_all_of_a_page_or_around_a_query_marks_nothing() -> None:
    # Two tokens of a prompt around the picture's four; what the encoder writes before the query has no text.
    whole = np.array([[0, 0, 1, 1]], np.float32)
    regions = np.concatenate([whole, REGIONS, whole])
    rows = np.stack([-EAST, NORTH, -EAST, -NORTH, -NORTH, EAST])
    found = explain(EncodedQuery(QUERY.vectors[[1, 0, 0]], ("north", "east", "")), rows, regions)
    assert [match.vector for match in found.matches] == [1, 5, 5]
    assert found.matches[1].region == (0, 0, 1, 1)
    white = Image.new("RGB", (400, 100), "white")
    marked = found.overlay(white)
    assert [at(marked, token) == (255, 255, 255) for token in range(4)] == [False, True, True, True]
    shown = found.kept(white)
    assert shown.getpixel((200, 5)) == (255, 255, 255)
    assert len({at(shown, token) for token in range(4)}) == 4
    # Around the query: what answers best there is a part of the page.
    around = explain(EncodedQuery(QUERY.vectors[:1], ("",)), np.stack([EAST, -EAST, -EAST, -EAST]), REGIONS)
    assert around.overlay(white).tobytes() == white.tobytes()
    # A page that has nothing smaller is marked as a whole.
    all_of_it = explain(QUERY, np.stack([EAST, NORTH]), np.concatenate([whole, whole]))
    assert all_of_it.overlay(white).getpixel((200, 50)) != (255, 255, 255)


def test_kept_shows_what_became_of_each_token() -> None:
    found = explain(QUERY, np.stack([NORTH, EAST]), REGIONS, np.array([1, 0, -1, 1], np.int32))
    shown = found.kept(Image.new("RGB", (400, 100), "white"))
    assert at(shown, 0) == at(shown, 3) != at(shown, 1)
    assert at(shown, 2) == (200, 200, 200)
    assert len({at(shown, token) for token in range(4)}) == 3
    assert shown.getpixel((200, 5)) == (255, 255, 255)


@pytest.mark.parametrize("method", [None, AnchorFold(gamma=0.2), RandomSelection(gamma=0.3)])
def test_hits_explain_themselves(tmp_path: Path, make_pdf: MakePdf, encoder: Encoder, method: Method | None) -> None:
    pdf = make_pdf("a.pdf", "Annual leave is thirty days.\n\n\nTravel is booked by the office at any time.")
    with Index.open(tmp_path / "index", encoder=encoder, compression=method) as index:
        index.add_pages(pdf)
        (hit,) = index.search("travel office", budget="fast")
        found = hit.explain()
        assert found.score == pytest.approx(hit.score, abs=1e-5)
        assert hit.budget.vectors == found.folds.max() + 1
        assert len(found.regions) == len(found.folds) == index.info().tokens
        assert ((found.folds < 0).any()) == isinstance(method, RandomSelection)
        for match in found.matches:
            assert len(match.regions) == (found.folds == match.vector).sum()
        picture = hit.image(longest_side=400)
        assert found.overlay(picture).size == found.kept(picture).size == picture.size
        assert found.kept(picture).tobytes() != picture.tobytes()
