"""Texts and templates -> token ids, padded on the right."""

from __future__ import annotations

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


def written_pieces(tokenizer: Tokenizer, text: str, *, special: bool = False) -> tuple[str, ...]:
    """The part of the text that each of its tokens stands for; a mark stands for itself."""
    text = _clean(text)
    encoding = tokenizer.encode(text, add_special_tokens=special)
    return tuple(
        text[start:end] or token for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
    )


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
