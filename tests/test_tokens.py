"""Tokens of pages and queries: the ids of the plain text, and the place of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from budgetvdr.encoders.open import bundled_folder
from budgetvdr.encoders.tokens import WordPieces
from budgetvdr.errors import BundleError
from budgetvdr.pages import Words

TEXT = (
    "Q3 revenue (in €m): 1,234.50 — up 12% y/y; see §4.2's café naïve ﬁnance e-mail: a.b@c.org "
    "$9.99 don't 你好 ➜ unbelievably antidisestablishmentarianism x\u0301 \u200b U.S.A. ##weird [SEP] [MASK]"
)


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return WordPieces(bundled_folder() / "tokenizer.json")


def words_of(text: str) -> Words:
    texts = tuple(text.split())
    left = np.arange(len(texts), dtype=np.float32)
    return Words(texts, np.stack([left, left * 0, left + 0.5, left * 0 + 1], axis=1))


def test_page_ids_are_those_of_the_whole_text(pieces: WordPieces) -> None:
    plain = Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))
    plain.no_truncation()
    plain.no_padding()
    expected = plain.encode(TEXT, add_special_tokens=False).ids
    page = pieces.page(words_of(TEXT), 8192)
    assert page.ids.tolist() == expected
    assert not page.truncated


def test_the_files_own_truncation_and_padding_are_off(pieces: WordPieces) -> None:
    assert len(pieces.page(words_of("word " * 600), 8192).ids) == 600
    assert len(pieces.query("word").ids) == 1


def test_a_words_box_is_shared_by_its_tokens(pieces: WordPieces) -> None:
    words = Words(("unbelievably", "so"), np.array([[0.1, 0.2, 0.7, 0.3], [0.75, 0.2, 0.8, 0.3]], np.float32))
    regions = pieces.page(words, 100).regions
    assert len(regions) > 2
    first, last = regions[:-1], regions[-1]
    np.testing.assert_allclose(last, [0.75, 0.2, 0.8, 0.3])
    np.testing.assert_allclose(first[0, 0], 0.1)
    np.testing.assert_allclose(first[-1, 2], 0.7)
    np.testing.assert_allclose(first[1:, 0], first[:-1, 2], atol=1e-6)
    assert (first[:, 2] > first[:, 0]).all()
    np.testing.assert_allclose(first[:, [1, 3]], [[0.2, 0.3]] * len(first))


def test_every_token_lies_in_the_box_of_its_word(pieces: WordPieces) -> None:
    words = words_of(TEXT)
    regions = pieces.page(words, 8192).regions
    inside = np.floor(regions[:, 0]) == np.floor((regions[:, 0] + regions[:, 2]) / 2)
    assert inside.all()
    assert (np.diff(regions[:, 0]) >= 0).all()


def test_words_of_control_characters_are_skipped(pieces: WordPieces) -> None:
    page = pieces.page(words_of("a \x00\x01 b"), 10)
    assert page.ids.tolist() == pieces.page(words_of("a b"), 10).ids.tolist()
    np.testing.assert_allclose(page.regions[:, 0], [0, 2])


def test_nothing_gives_nothing(pieces: WordPieces) -> None:
    page = pieces.page(Words((), np.zeros((0, 4), np.float32)), 10)
    assert page.ids.shape == (0,) and page.regions.shape == (0, 4) and not page.truncated


def test_repeated_symbols_make_room_for_words(pieces: WordPieces) -> None:
    page = pieces.page(words_of("L " * 500 + "WESTGATE PARK " + "D " * 500), 100)
    assert page.truncated
    letter, *name = pieces.query("L WESTGATE PARK").ids
    assert page.ids.tolist().count(letter) == 16
    assert page.ids.tolist()[16 : 16 + len(name)] == name


@pytest.mark.parametrize(
    "text",
    ["different words everywhere in this text and not one of them is here twice", "antidisestablishmentarianism " * 5],
)
def test_a_page_is_cut_at_its_longest(pieces: WordPieces, text: str) -> None:
    page = pieces.page(words_of(text), 10)
    assert len(page.ids) == len(page.regions) == 10
    assert page.truncated


def test_a_window_stands_between_its_marks(pieces: WordPieces) -> None:
    window = pieces.window(np.array([7592, 2088], np.int64))
    assert window.tolist() == [[101, 7592, 2088, 102]]
    assert window.dtype == np.int64


def test_query_pieces_show_the_querys_own_writing(pieces: WordPieces) -> None:
    query = pieces.query("Unbelievably  Café ➜?")
    assert query.pieces[0] == "Un"
    assert all(piece.startswith("##") for piece in query.pieces[1:-3])
    assert query.pieces[-3:] == ("Café", "➜", "?")
    assert query.known == len(query.ids) - 1


def test_damage_is_a_bundle_error(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(BundleError, match="not a readable tokenizer"):
        WordPieces(path)
    with pytest.raises(BundleError, match="not a readable tokenizer"):
        WordPieces(tmp_path / "missing.json")


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BundleError, match=r"\[CLS\]"):
        WordPieces(tmp_path / "tokenizer.json")
