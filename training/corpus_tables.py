"""Tables of public figures, as the text layer of a printed table reads: heading, column names, then row by row."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus_texts import spread

from budgetvdr.training.text_pairs import Asked, Section

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    """What of a file becomes pages.

    title: of a page, with {g} for the values of the columns `group`. label: the columns that name a row. columns: key
    in the file -> name on the page and in questions. rows: most a page. words: most of the table; pages are left out
    evenly.
    """

    file: str
    title: str
    group: tuple[str, ...]
    label: tuple[str, ...]
    columns: Mapping[str, str]
    rows: int = 12
    words: int = 60_000


TABLES = (
    Table(
        "gapminder.json", "Health and population of {g}, 1955 to 2005", ("country",), ("year",),
        {"pop": "Population", "life_expect": "Life expectancy in years", "fertility": "Children per woman"},
    ),
    Table(
        "unemployment-across-industries.json", "Unemployment in the United States: {g}", ("series", "year"), ("month",),
        {"count": "Unemployed (thousands)", "rate": "Unemployment rate (%)"},
    ),
    Table(
        "birdstrikes.csv", "Wildlife strikes by aircraft, {g}", ("Origin State",), ("Airport Name", "Flight Date"),
        {"Wildlife Species": "Species", "Aircraft Make Model": "Aircraft", "Effect Amount of damage": "Damage",
         "Phase of flight": "Phase of flight", "Cost Total $": "Cost in dollars"}, 9,
    ),
    Table(
        "airports.csv", "Airports and airfields in {g}", ("state",), ("name",),
        {"iata": "Code", "city": "City", "latitude": "Latitude", "longitude": "Longitude"}, 14,
    ),
    Table(
        "budget.json", "Receipts of the federal government: {g} ($ thousands)", ("Source category name", "Agency name"),
        ("Source subcategory name", "Account name"),
        {"1980": "1980", "1990": "1990", "2000": "2000", "2005": "2005", "2010": "2010", "2015": "2015"}, 8,
    ),
)  # fmt: skip


def table_sections(source: str, folder: Path) -> Iterator[Section]:
    """The pages of all tables; the group's first page and those after it are one document."""
    for table in TABLES:
        yield from spread(list(_pages(source, table, _rows(folder / table.file))), table.words)


def _pages(source: str, table: Table, rows: Sequence[Row]) -> Iterator[Section]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(", ".join(str(row[key]) for key in table.group), []).append(row)
    for name, members in groups.items():
        for part, start in enumerate(range(0, len(members), table.rows)):
            yield _page(source, table, name, part, members[start : start + table.rows])


def _page(source: str, table: Table, name: str, part: int, rows: Sequence[Row]) -> Section:
    title = table.title.format(g=name)
    heading = title if part == 0 else f"{title} ({part + 1})"
    lines, asked = [" ".join(["Table:", *table.columns.values()])], []
    for number, row in enumerate(rows):
        label = " ".join(_shown(row[key]) for key in table.label)
        lines.append(" ".join([label, *(_shown(row[key]) for key in table.columns)]))
        said = list(table.columns.values())[number % len(table.columns)]
        asks = ("What is the {c} of {l} in the table {t}?", "{c} {l} {t}", "{t}: {l}, {c}?")[number % 3]
        asked.append(Asked(asks.format(c=said.lower(), l=label, t=title), lines[-1]))
    return Section(source, f"{table.file} {name}", title, heading, " ".join(lines), table.file, tuple(asked))


def _shown(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if number and abs(float(str(value))) >= 10_000 else " ".join(str(value).split())


def _rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream)) if path.suffix == ".csv" else list(json.load(stream))
