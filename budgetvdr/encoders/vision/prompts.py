"""Texts and templates -> token ids, padded on the right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from budgetvdr.errors import BundleError

Ids = npt.NDArray[np.int64]


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a bundle or checkpoint; padding, cutting and marks are decided by us.

    Raises BundleError where the file is no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # nothing narrower is raised
        raise BundleError(f"{path} is not a readable tokenizer: {error}; export the bundle again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Raises BundleError where the vocabulary lacks the token."""
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise BundleError(f"the tokenizer has no token {token!r}: it is not the one of this model")
    return number


def encode(tokenizer: Tokenizer, text: str, *, special: bool = False) -> list[int]:
    """The ids of a text in which special tokens may be written out. special: the tokenizer adds its marks as well."""
    ids: list[int] = tokenizer.encode(_clean(text), add_special_tokens=special).ids
    return ids


class QueryTexts:
    """Queries with what a family puts around them.

    prefix, suffix: special tokens are written out in them; those that somebody writes in a query are text.
    special: the tokenizer adds its marks as well.
    """

    def __init__(self, tokenizer: Tokenizer, prefix: str, suffix: str, *, special: bool = False) -> None:
        self._tokenizer, self._prefix, self._suffix, self._special = tokenizer, prefix, suffix, special
        marks = (token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
        longest_first = sorted((mark for mark in marks if len(mark) > 1), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def ids(self, text: str) -> list[int]:
        """Of the query as written."""
        return encode(self._tokenizer, f"{self._prefix}{self._plain(text)}{self._suffix}", special=self._special)

    def pieces(self, text: str) -> tuple[str, ...]:
        """For each token the part of the text that it stands for; nothing for what is put around it."""
        plain = self._plain(text)
        whole = f"{self._prefix}{plain}{self._suffix}"
        first, last = len(self._prefix), len(self._prefix) + len(plain)
        encoding = self._tokenizer.encode(whole, add_special_tokens=self._special)
        return tuple(whole[max(start, first) : min(end, last)] for start, end in encoding.offsets)

    def _plain(self, text: str) -> str:
        # A space takes a mark's meaning from it and leaves what a reader sees.
        return self._marks.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", _clean(text))


def pad(rows: Sequence[Sequence[int]], fill: int) -> tuple[Ids, Ids]:
    """(B, L) ids, filled up on the right, and the (B, L) mask of what was there."""
    longest = max((len(row) for row in rows), default=0)
    ids = np.full((len(rows), longest), fill, np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return ids, mask


def visual_slots(ids: Ids, image_token: int) -> Ids:
    """(B, L): counts the image tokens of the batch from 0, row by row; -1 for others."""
    image = ids == image_token
    return np.where(image, np.cumsum(image).reshape(ids.shape) - 1, -1)


def _clean(text: str) -> str:
    # Lone surrogates, as in arguments that are not UTF-8, are no characters a tokenizer could take.
    return text.encode("utf-8", "replace").decode("utf-8")
