"""Sections and questions from two structured sources: country profiles and a dictionary of concepts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from budgetvdr.training.text_pairs import Asked, Section

_QUESTIONS = {
    "Capital - name": "What is the capital of {t}?|capital city of {t}",
    "Chief of state": "Who is the head of state of {t}?",
    "Executive branch - chief of state": "Who is the head of state of {t}?|Who is president or monarch of {t}?",
    "Executive branch - head of government": "Who leads the government of {t}?|Who is prime minister in {t}?",
    "Land boundaries - border countries": "Which countries does {t} border on?|neighbours of {t}",
    "Area - total": "How large is {t}?|What is the total area of {t}?",
    "Climate": "What is the weather like in {t}?|What climate does {t} have?",
    "Terrain": "What does the landscape of {t} look like?|Is {t} flat or mountainous?",
    "Natural resources": "Which minerals and raw materials does {t} have?|natural resources of {t}",
    "Natural hazards": "Which natural disasters threaten {t}?",
    "Languages": "What languages are spoken in {t}?|official language of {t}",
    "Religions": "What do people in {t} believe in?|Which faiths are common in {t}?",
    "Ethnic groups": "Which peoples live in {t}?",
    "Population": "How many people live in {t}?|population of {t}",
    "Coastline": "How long is the coast of {t}?",
    "Independence": "When did {t} become independent?|Since when is {t} a state of its own?",
    "National holiday": "When is the national day of {t}?",
    "Legal system": "On what kind of law are the courts of {t} based?",
    "Suffrage": "At what age may citizens of {t} vote?",
    "GDP - real growth rate": "How fast does the economy of {t} grow?",
    "GDP (purchasing power parity)": "How big is the economy of {t}?",
    "GDP - per capita (PPP)": "How rich is the average inhabitant of {t}?",
    "Unemployment rate": "How many people are out of work in {t}?",
    "Inflation rate (consumer prices)": "How fast do prices rise in {t}?",
    "Exports - commodities": "What does {t} sell abroad?",
    "Exports - partners": "Who buys the exports of {t}?",
    "Imports - commodities": "What does {t} buy from other countries?",
    "Agriculture - products": "What do farmers grow in {t}?",
    "Industries": "What industry is there in {t}?",
    "Airports": "How many airports are there in {t}?",
    "Railways - total": "How long is the railway network of {t}?",
    "Military branches": "Which armed forces does {t} have?",
    "Military service age and obligation": "Is there conscription in {t}?",
    "Disputes - international": "With whom does {t} quarrel about territory?",
    "Background": "What is the history of {t}?|How did {t} come about?",
    "Economy - overview": "What does {t} live on?|state of the economy in {t}",
    "Elevation extremes - highest point": "What is the highest mountain of {t}?",
    "Environment - current issues": "Which environmental problems does {t} have?",
    "Life expectancy at birth - total population": "How old do people get in {t}?",
    "Median age - total": "How old is the average person in {t}?",
    "Literacy - total population": "How many people in {t} can read and write?",
    "National anthem - name": "What is the anthem of {t} called?",
    "Flag description": "What does the flag of {t} look like?",
    "Internet country code": "Which internet domain belongs to {t}?",
}
_FEWEST, _MOST = 4, 14


def factbook_sections(source: str, document: str, text: str) -> Iterator[Section]:
    """One section for each chapter of a country's profile; "Label: value" as the printed pages have it."""
    profile = json.loads(text)
    names = dict(_flat(profile.get("Government", {}).get("Country name", {})))
    title = names.get("conventional short form", "none")
    title = names.get("conventional long form", "none") if title == "none" else title
    if title == "none":
        return
    for chapter, fields in profile.items():
        lines, asked = [], []
        for label, value in _flat(fields):
            line = f"{label[:1].upper()}{label[1:]}: {value.rstrip('.')}."
            lines.append(line)
            if label in _QUESTIONS:
                asked += [Asked(form.format(t=title), line[:60]) for form in _QUESTIONS[label].split("|")]
        template = f"{source} {chapter}"
        yield Section(source, document, title, f"{title} {chapter}", " ".join(lines), template, tuple(asked))


def _flat(fields: object, label: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(fields, str):
        yield label, fields
    elif isinstance(fields, dict):
        for key, value in fields.items():
            yield from _flat(value, label if key == "text" else f"{label} - {key}" if label else key)


@dataclass(frozen=True, slots=True)
class Concept:
    """A set of words with one meaning. above: ids of wider concepts. name: of one thing in the world."""

    words: tuple[str, ...]
    meaning: str
    example: str
    above: tuple[str, ...]
    name: bool


def wordnet_sections(source: str, folder: Path) -> Iterator[Section]:
    """A page for each concept with some narrower ones: what it means, and the first word and meaning of each of them.

    The questions use the other words of a meaning, which the page does not show, or a sentence with the word in it.
    folder: with WordNet's data.noun.
    """
    concepts = dict(_concepts((folder / "data.noun").read_text(encoding="utf-8")))
    below: dict[str, list[str]] = {}
    for number, concept in concepts.items():
        for wider in concept.above:
            below.setdefault(wider, []).append(number)
    for number, narrower in below.items():
        if len(narrower) >= _FEWEST and number in concepts:
            for part, start in enumerate(range(0, len(narrower), _MOST)):
                shown = [concepts[key] for key in narrower[start : start + _MOST]]
                yield _glossary_page(source, f"{number}.{part}", concepts[number], shown)


def _glossary_page(source: str, document: str, wider: Concept, shown: list[Concept]) -> Section:
    heading = f"Kinds of {wider.words[0]}"
    lines, asked = [f"{wider.words[0]}: {wider.meaning}."], []
    for concept in shown:
        line = f"{concept.words[0]}: {concept.meaning}."
        lines.append(line)
        for word in concept.words[1:2]:
            asks = f"Who or what is {word}?" if concept.name else f"What is meant by {word}?"
            asked.append(Asked(asks, line))
        if len(concept.example.split()) >= 5:
            asked.append(Asked(concept.example, line))
    return Section(source, document, heading, heading, " ".join(lines), "", tuple(asked))


def _concepts(data: str) -> Iterator[tuple[str, Concept]]:
    """The lines of data.noun; kinds of animals and plants, a third of all, are left out."""
    for line in data.splitlines():
        if line.startswith(" "):
            continue
        head, _, gloss = line.partition(" | ")
        fields = head.split()
        if fields[1] in {"05", "20"}:
            continue
        count = int(fields[3], 16)
        words = tuple(word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2])
        pointers = fields[5 + 2 * count :]
        wider = [(pointers[at], pointers[at + 1]) for at in range(0, len(pointers), 4)]
        meaning, example = _meaning(gloss)
        above = tuple(number for kind, number in wider if kind in {"@", "@i"})
        yield fields[0], Concept(words, meaning, example, above, any(kind == "@i" for kind, _ in wider))


def _meaning(gloss: str) -> tuple[str, str]:
    examples: Mapping[int, str] = dict(enumerate(re.findall(r'"([^"]+)"', gloss)))
    return gloss.partition('; "')[0].strip(), examples.get(0, "")
