"""Text as bad scans and text layers have it: misread letters, broken lines, running heads, bits of tables.

A reader trained on clean prose alone fails on what OCR gives it.
"""

from __future__ import annotations

import re

from numpy.random import Generator

_MISREAD = {
    "rn": "m", "m": "rn", "l": "1", "1": "l", "O": "0", "0": "O", "I": "l", "e": "c", "c": "e", "h": "b", "S": "5",
    "5": "S", "B": "8", "8": "B", "cl": "d", "d": "cl", "u": "ii", "fi": "ﬁ", ",": ".", "g": "q", "a": "o", "t": "f",
}  # fmt: skip
_PLACES = re.compile("|".join(sorted(map(re.escape, _MISREAD), key=len, reverse=True)))
_UNITS = ("%", "", "", "", " kg", " m", " EUR", "k", ".00")


def corrupt(text: str, random: Generator) -> str:
    """One page's text with one to all of the damages, strong or slight. The words' order stays."""
    damages = (misread, break_lines, run_together, add_table, add_running_head)
    count = int(random.integers(1, len(damages) + 1))
    for index in sorted(random.permutation(len(damages))[:count]):
        text = damages[index](text, random)
    return text


def misread(text: str, random: Generator) -> str:
    """Up to a twelfth of the letters that scanners confuse are confused."""
    rate = random.uniform(0.005, 0.08)
    return _PLACES.sub(lambda found: _MISREAD[found[0]] if random.random() < rate else found[0], text)


def break_lines(text: str, random: Generator) -> str:
    """Long words are cut with a hyphen, as at the end of a line whose word was not joined again."""
    rate = random.uniform(0.01, 0.06)

    def cut(word: str) -> str:
        if len(word) < 6 or not word.isalpha() or random.random() >= rate:
            return word
        place = int(random.integers(2, len(word) - 2))
        return f"{word[:place]}- {word[place:]}"

    return " ".join(cut(word) for word in text.split())


def run_together(text: str, random: Generator) -> str:
    """Some spaces are lost."""
    rate = random.uniform(0.005, 0.03)
    words = text.split()
    return "".join(word + ("" if random.random() < rate else " ") for word in words).strip()


def add_table(text: str, random: Generator) -> str:
    """A few rows of numbers stand somewhere in the text, under words of it."""
    words = text.split()
    rows = int(random.integers(2, 6))
    cells = []
    for _ in range(rows):
        cells.append(words[int(random.integers(len(words)))].strip(".,;:()"))
        for _ in range(int(random.integers(2, 5))):
            number = round(float(random.lognormal(4, 2)), int(random.integers(0, 3)))
            cells.append(f"{number:,}{_UNITS[int(random.integers(len(_UNITS)))]}")
    place = int(random.integers(len(words) + 1))
    return " ".join([*words[:place], *cells, *words[place:]])


def add_running_head(text: str, random: Generator) -> str:
    """A page number, and words of the page as a head above or below it."""
    words = text.split()
    start = int(random.integers(max(1, len(words) - 4)))
    head = " ".join([*words[start : start + 4], str(int(random.integers(1, 400)))])
    return f"{head} {text}" if random.random() < 0.5 else f"{text} {head}"
