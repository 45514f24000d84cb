"""Text -> token ids, each with the part of the page, or of the query, that it stands for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from budgetvdr.errors import BundleError
from budgetvdr.pages import Boxes, Words

_CONTINUES = "##"
_MOST_REPEATS = 16


@dataclass(frozen=True, slots=True, eq=False)
class PageTokens:
    """The tokens of a page: ids (n,) int64, regions (n, 4) page fractions, and whether the page had more."""

    ids: npt.NDArray[np.int64]
    regions: Boxes
    truncated: bool


@dataclass(frozen=True, slots=True)
class QueryTokens:
    """The tokens of a query, n ids and n readable pieces; `known`: how many of them the vocabulary has."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    known: int


class WordPieces:
    """The tokenizer of a bundle of the BERT kind. Methods may be called from several threads.

    Raises BundleError where the file is not such a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # nothing narrower is raised
            raise BundleError(f"{path} is not a readable tokenizer: {error}; export the bundle again") from error
        # Tokenizer files carry the settings of whoever trained them; cutting and padding are decided here.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._start, self._end, self._unknown = (self._id(token, path) for token in ("[CLS]", "[SEP]", "[UNK]"))

    def _id(self, token: str, path: Path) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise BundleError(f"{path} has no token {token}: expected a tokenizer of the BERT kind")
        return number

    def window(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """ids (n,) -> (1, n + 2): one window as the graphs take it, between the marks of start and end."""
        return np.concatenate([[self._start], ids, [self._end]], dtype=np.int64)[None]

    def page(self, words: Words, longest: int) -> PageTokens:
        """At most `longest` tokens: those of the text in which the words are parted by spaces.

        A word's box is shared by its tokens according to their characters. A page with too many words loses further
        repetitions of a word first, and its end then: drawings repeat symbols thousands of times.
        """
        kept = words if len(words) <= longest else _with_few_repeats(words)
        # A word has at least one token, unless it consists of control characters.
        texts = kept.texts[:longest]
        encoding = self._tokenizer.encode(texts, is_pretokenized=True, add_special_tokens=False)
        owners = np.array(encoding.word_ids[:longest], dtype=np.intp)
        offsets = np.array(encoding.offsets[:longest], dtype=np.float32).reshape(-1, 2)
        ids = np.array(encoding.ids[:longest], dtype=np.int64)
        lengths = np.array([len(text) for text in texts], dtype=np.float32)
        regions = _shares(kept.boxes[owners], offsets / lengths[owners, None])
        return PageTokens(ids, regions, truncated=len(encoding.ids) > longest or len(words) > longest)

    def query(self, text: str) -> QueryTokens:
        """The tokens of a query; each piece is the query's own writing, with ## before what continues a word."""
        # Lone surrogates, as in arguments that are not UTF-8, are no characters a tokenizer could take.
        text = text.encode("utf-8", "replace").decode("utf-8")
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pieces = tuple(
            (_CONTINUES if token.startswith(_CONTINUES) else "") + text[start:end]
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
        )
        return QueryTokens(tuple(encoding.ids), pieces, sum(number != self._unknown for number in encoding.ids))


def _with_few_repeats(words: Words) -> Words:
    seen: Counter[str] = Counter()
    kept = []
    for index, text in enumerate(words.texts):
        seen[text] += 1
        if seen[text] <= _MOST_REPEATS:
            kept.append(index)
    return Words(tuple(words.texts[index] for index in kept), words.boxes[kept])


def _shares(boxes: Boxes, spans: npt.NDArray[np.float32]) -> Boxes:
    """boxes, spans: (n, 4) boxes of words, (n, 2) from where to where in its word a token goes, in 0..1."""
    width = boxes[:, 2:3] - boxes[:, :1]
    edges = boxes[:, :1] + width * spans
    return np.column_stack([edges[:, 0], boxes[:, 1], edges[:, 1], boxes[:, 3]]).astype(np.float32)
