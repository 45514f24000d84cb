"""Pages of the kinds that offices, researchers and pollsters print: statements with columns of numbers, slides,
charts of surveys, papers, brochures, reference entries. What they say is made up; forms are in `made_up_layouts.toml`.

A page reads as the text layer of such a PDF page does: a table is its column names and then row by row, or column by
column, and a chart leaves its categories and numbers behind.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus_made_up import pick
from numpy.random import Generator

from budgetvdr.training.text_pairs import Asked, Section

_FORMS = Path(__file__).with_name("made_up_layouts.toml")
_SLOT = re.compile(r"\{([a-z_]+?)(\d?)\}")
_DIGITS = "0123456789"
_TRIES = 20

Words = Mapping[str, Sequence[str]]


def layout_sections(count: int, random: Generator) -> Iterator[Section]:
    """`count` pages of each form at most, all titles different, with questions for three of their facts each."""
    data = tomllib.loads(_FORMS.read_text(encoding="utf-8"))
    for form in data["forms"]:
        seen: set[str] = set()
        for _ in range(_TRIES * count):
            page = _Page(data["words"], random)
            title = page.fill(form["title"])
            if title not in seen and len(seen) < count:
                seen.add(title)
                yield _section(form, title, page)


class _Page:
    """Chooses what stands in the slots of one page: {word} of a list or a kind of number, {word2} another of them."""

    def __init__(self, words: Words, random: Generator) -> None:
        self._words = words
        self.random = random
        year = int(random.integers(2006, 2027))
        self.chosen = {f"y{back or ''}": str(year - back) for back in range(6)}

    def fill(self, text: str) -> str:
        """The text with its slots filled; what was chosen for one stays so."""
        return _SLOT.sub(self._slot, text)

    def is_phrase(self, slot: str) -> bool:
        """Whether a slot holds words rather than a number."""
        return slot.rstrip(_DIGITS) in self._words

    def forget(self, kept: Mapping[str, str]) -> None:
        """Chooses anew, but for what is in `kept`."""
        self.chosen = dict(kept)

    def _slot(self, found: re.Match[str]) -> str:
        slot, kind = found[1] + found[2], found[1]
        if slot not in self.chosen:
            self.chosen[slot] = self._phrase(kind) if kind in self._words else self.number(kind)
        return self.chosen[slot]

    def _phrase(self, kind: str) -> str:
        """A word or phrase of a list; its own slots are chosen apart, or two companies would have one name."""
        outer = self.chosen
        self.chosen = {slot: said for slot, said in outer.items() if slot.rstrip(_DIGITS) == "y"}
        drawn = self.fill(pick(self._words[kind], self.random))
        self.chosen = outer
        return drawn

    def number(self, kind: str) -> str:
        """A number as the cells of such a table have it."""
        random = self.random
        size = float(random.lognormal(5, 1.8))
        return {
            "amount": f"{size:,.0f}" if random.random() < 0.75 else f"({size:,.0f})",
            "amount_point": f"{size:,.1f}",
            "count": f"{int(size * 20):,}",
            "money": f"{pick(('$', 'EUR ', '£', 'USD '), random)}{size:,.1f} {pick(('million', 'billion'), random)}",
            "share": f"{random.integers(1, 96)}%",
            "percent": f"{random.uniform(1, 40):.1f} percent",
            "score": f"{random.uniform(20, 99):.1f}",
            "small": str(random.integers(2, 60)),
            "decimal": f"{random.uniform(0, 9):.2f}",
            "price": f"{pick('$€£', random)}{random.integers(5, 2500):,}",
            "weight": f"{random.uniform(0.1, 60):.1f} kg",
            "power": f"{random.integers(1, 240) * 10} W",
            "temperature": f"{random.integers(12, 34)} °C",
            "days": f"{random.integers(2, 60)} {pick(('days', 'weeks', 'uses', 'months'), random)}",
            "date": f"{random.integers(1, 29)} {pick(self._words['month'], random)}",
            "hour": f"{random.integers(6, 22)}:{random.integers(0, 12) * 5:02d}",
            "year": str(random.integers(1780, 2015)),
        }[kind]


def _section(form: Mapping[str, Any], title: str, page: _Page) -> Section:
    page.chosen["t"] = title
    named = set(page.chosen)
    opening = [page.fill(text) for text in form.get("opening", ())]
    kept = {slot: said for slot, said in page.chosen.items() if slot in named or page.is_phrase(slot)}
    blocks: list[str] = []
    asked: list[Asked] = []
    lines = form.get("lines", ())
    for index in page.random.permutation(len(lines))[: form.get("most", len(lines))]:
        page.forget(kept)
        said = page.fill(pick(lines[index]["said"], page.random))
        blocks.append(said)
        if "asked" in lines[index]:
            asked.append(Asked(page.fill(pick(lines[index]["asked"], page.random)), said))
    page.forget(kept)
    if "rows" in form:
        said, about = _table(form, page)
        blocks.insert(int(page.random.integers(len(blocks) + 1)), said)
        asked += about
    closing = [page.fill(text) for text in form.get("closing", ())]
    chosen = [asked[place] for place in page.random.permutation(len(asked))[:3]]
    text = " ".join([*opening, *blocks, *closing])
    return Section("layouts", title, title, title, text, f"layout {form['name']}", tuple(chosen))


def _table(form: Mapping[str, Any], page: _Page) -> tuple[str, list[Asked]]:
    """The table's text, and questions for two of its rows."""
    random = page.random
    order = sorted(random.permutation(len(form["rows"]))[: random.integers(5, 1 + form.get("most_rows", 12))])
    labels = [page.fill(form["rows"][index]) for index in order]
    columns = [page.fill(name) for name in form["columns"]]
    cells = [[page.number(form["cell"]) for _ in columns] for _ in labels]
    sign = "$ " if random.random() < form.get("dollars", 0) else ""
    rows = [" ".join([label, *(f"{sign}{cell}" for cell in row)]) for label, row in zip(labels, cells, strict=True)]
    by_column = [*labels]
    for name, column in zip(columns, zip(*cells, strict=True), strict=True):
        by_column.append(" ".join([name, *column]))
    across = random.random() < 0.7
    text = " ".join([*columns, *rows] if across else by_column)
    asked = []
    for index in random.permutation(len(labels))[:2]:
        other = labels[(int(index) + 1) % len(labels)]
        names = {"row": labels[index], "other": other, "column": pick(columns, random)}
        form_of = pick(form["asked"], random)
        for name, said in names.items():
            form_of = form_of.replace(f"{{{name}}}", said)
        asked.append(Asked(page.fill(form_of), rows[index] if across else labels[index]))
    return text, asked
