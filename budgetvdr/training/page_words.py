"""What the words of a corpus tell of its pages: which are rare, which pages are alike, which a query points to."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

WORD = re.compile(r"[^\W_]{2,}|\d")
# Similarities are worked out for so many pages of a group at a time.
_BLOCK = 800


class PageWords:
    """The words of some pages, given as texts; pages are named by their place."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._words = [frozenset(word.lower() for word in WORD.findall(text)) for text in texts]
        counts = Counter(word for words in self._words for word in words)
        self.rarity = {word: math.log(len(texts) / count) for word, count in counts.items()}
        self._pages: dict[str, set[int]] = {word: set() for word in counts}
        for place, words in enumerate(self._words):
            for word in words:
                self._pages[word].add(place)

    def rivals(self, page: int, query: str) -> int:
        """How many other pages have every word of the query that this page has; all others where it has none.

        Words that are not on the page are left out: they point to no other page rather than to this one.
        """
        shared = {word.lower() for word in WORD.findall(query)} & self._words[page]
        if not shared:
            return len(self._words) - 1
        postings = sorted((self._pages[word] for word in shared), key=len)
        return len(postings[0].intersection(*postings[1:])) - 1

    def nearest(self, group: Sequence[int], count: int) -> dict[int, list[int]]:
        """For each page of a group at most `count` others of it, those first that share most of its rare words.

        Large groups are cut into blocks; a page's nearest are then of its own block.
        """
        found: dict[int, list[int]] = {}
        for start in range(0, len(group), _BLOCK):
            block = group[start : start + _BLOCK]
            column = {word: at for at, word in enumerate(sorted(set().union(*(self._words[page] for page in block))))}
            present = np.zeros((len(block), len(column)), np.float32)
            for row, page in enumerate(block):
                present[row, [column[word] for word in self._words[page]]] = 1
            shared = (present * np.array([self.rarity[word] for word in column], np.float32)) @ present.T
            np.fill_diagonal(shared, -np.inf)
            order = np.argsort(-shared, axis=1, kind="stable")[:, : min(count, len(block) - 1)]
            found |= {page: [block[at] for at in order[row]] for row, page in enumerate(block)}
        return found
