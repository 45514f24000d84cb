"""Reports, policies and manuals of organisations that do not exist: pages that differ in names, years and numbers only.

Documentation has few pages of one template; offices have little else. A question names organisation, year or model and
asks for one value; the pages of the others are its hard negatives. The forms are in `made_up_forms.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.random import Generator

from budgetvdr.training.text_pairs import Asked, Section

_FORMS = Path(__file__).with_name("made_up_forms.toml")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def made_up_sections(count: int, random: Generator) -> Iterator[Section]:
    """`count` pages of each form, all titles different, with questions for two of their facts each."""
    data = tomllib.loads(_FORMS.read_text(encoding="utf-8"))
    names = data["names"]
    for form in data["forms"]:
        seen: set[str] = set()
        while len(seen) < count:
            organisation = f"{pick(names['first'], random)} {pick(names['second'], random)}"
            chosen = {"o": organisation, "y": str(random.integers(2004, 2027)), "m": pick(_MONTHS, random)}
            if form["name"] in {"machine manual", "study"}:
                chosen["m"] = f"{pick('ABCDEFGHKLMNPRSTVX', random)}{random.integers(2, 99)}0"
            title = form["title"].format(**chosen)
            if title not in seen:
                seen.add(title)
                yield _section(form, title, chosen, names, random)


def _section(
    form: Mapping[str, Any],
    title: str,
    chosen: Mapping[str, str],
    names: Mapping[str, Sequence[str]],
    random: Generator,
) -> Section:
    sentences, asked = [form["opening"].format(**chosen)], []
    for index in random.permutation(len(form["facts"])):
        fact = form["facts"][index]
        said = pick(fact["said"], random).format(v=_value(fact["value"], names, random), **chosen)
        sentences.append(said[0].upper() + said[1:])
        asked.append(Asked(pick(fact["asked"], random).format(t=title, **chosen), sentences[-1]))
        if random.random() < 0.4:
            sentences.append(pick(names["asides"], random))
    heading, template = f"{title}: {form['heading']}", f"made-up {form['name']}"
    return Section("made-up", title, title, heading, " ".join(sentences), template, tuple(asked[:2]))


def _value(kind: str, names: Mapping[str, Sequence[str]], random: Generator) -> str:
    number = float(random.lognormal(4, 1.5)) + 1
    return {
        "money": f"{pick(('EUR', 'USD', 'GBP', 'CHF'), random)} {number:,.1f} million",
        "count": f"{int(number * 20):,}",
        "percent": f"{random.uniform(1, 99):.1f} %",
        "person": pick(names["people"], random),
        "office": pick(names["offices"], random),
        "days": f"{random.integers(2, 60)} {pick(('days', 'working days', 'weeks', 'months'), random)}",
        "price": f"{pick('$€£', random)}{random.integers(5, 2500):,}",
        "weight": f"{random.uniform(1, 400):.1f} kg",
        "power": f"{random.uniform(0.1, 12):.1f} kW",
        "temperature": f"{random.integers(25, 60)} °C",
        "noise": f"{random.integers(30, 95)} dB",
        "date": f"{random.integers(1, 29)} {pick(_MONTHS, random)}",
    }[kind]


def pick(choices: Sequence[str], random: Generator) -> str:
    """One of the choices."""
    return choices[int(random.integers(len(choices)))]
