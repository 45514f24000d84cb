"""(query, page) pairs from plain documents, without a model.

A document's sections are cut into pages. Its headings, sentences taken out of a page (inverse cloze), questions that
definitions answer, and the rare words of a sentence become queries. The hard negatives of a page are those that share
most of its rare words, of its document and of its template: the same chapter of another report.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from budgetvdr.training.corruption import corrupt

_WORD = re.compile(r"[^\W_]{2,}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_DEFINITION = re.compile(
    r"^(?P<subject>(?:The |An? )?[\w ,'-]{3,50}?) (?P<verb>is|are|was|were|means|returns|has|have|can) "
)
_LABEL = re.compile(r"^(?P<label>[A-Z][\w ()/-]{3,40}): \S")
_POINTERS = {"this", "it", "that", "there", "these", "those", "you", "if", "they", "we", "he", "she", "here", "what"}
_GERUND = re.compile(r"^[A-Z]?[a-z]+ing\b")
_FEWEST_WORDS, _MOST_WORDS = 30, 180
_LONGEST_QUERY = 40


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its text, of one document of one source.

    document: an id. title: what a person calls it. template: the same for sections of several documents that have the
    same form; empty where there is none.
    """

    source: str
    document: str
    title: str
    heading: str
    text: str
    template: str = ""


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page made from a document; `clean` is its text before any damage."""

    id: str
    document: str
    title: str
    template: str
    heading: str
    text: str
    clean: str


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query of one of the kinds heading, cloze, question, words; the page's id and the ids of hard negatives."""

    kind: str
    query: str
    page: str
    negatives: tuple[str, ...]


def make_pairs(
    sections: Iterable[Section], *, seed: int = 0, corrupted: float = 0.3, negatives: int = 4
) -> tuple[list[TextPage], list[TextPair]]:
    """Pages and pairs of a corpus; the same for the same sections and seed.

    corrupted: share of pages with damages (`budgetvdr.training.corruption`). negatives: at most so many a pair from its
    document, and from its template.
    """
    random = np.random.default_rng(seed)
    pages = [page for section in sections for page in _pages(section)]
    rarity = _rarity(pages)
    near = _near(pages, rarity, negatives)
    made: dict[str, TextPage] = {}
    pairs: list[TextPair] = []
    for page in pages:
        for kind, query, text in _queries(page, rarity, random):
            seen = corrupt(text, random) if random.random() < corrupted else text
            # A page with a sentence taken out is another page than the whole one.
            number = f"{page.id}:{kind}"
            made[number] = replace(page, id=number, text=seen, clean=text)
            pairs.append(TextPair(kind, query, number, near[page.id]))
    for page in pages:
        made[page.id] = page
    return list(made.values()), pairs


def _pages(section: Section) -> list[TextPage]:
    words = section.text.split()
    if len(words) < _FEWEST_WORDS:
        return []
    count = math.ceil(len(words) / _MOST_WORDS)
    size = math.ceil(len(words) / count)
    pages = []
    for number in range(count):
        text = " ".join(words[number * size : (number + 1) * size])
        # Every printed page shows under which heading it stands.
        text = f"{section.heading}. {text}"
        name = f"{section.source}/{section.document}#{section.heading}#{number}"
        pages.append(TextPage(name, section.document, section.title, section.template, section.heading, text, text))
    return pages


def _queries(page: TextPage, rarity: dict[str, float], random: Generator) -> list[tuple[str, str, str]]:
    """(kind, query, the page's text as it then is), at most one of each kind."""
    found = []
    if page.id.endswith("#0") and len(_WORD.findall(page.heading)) >= 1:
        # One time in three the heading stands on the page only in the query's words.
        shown = page.text if random.random() < 2 / 3 else page.text.removeprefix(f"{page.heading}. ")
        found.append(("heading", _heading_query(page, random), shown))
    sentences = [sentence for sentence in _SENTENCE.split(page.text) if 6 <= len(sentence.split()) <= _LONGEST_QUERY]
    if len(sentences) < 3:
        return found
    order = random.permutation(len(sentences))
    cloze = sentences[order[0]]
    # A tenth stays in, so that exact matches keep their worth.
    rest = page.text if random.random() < 0.1 else page.text.replace(cloze, " ", 1)
    found.append(("cloze", cloze, " ".join(rest.split())))
    found.append(("words", _rare_words(sentences[order[1]], rarity, random), page.text))
    question = next((asked for index in order if (asked := _question(sentences[index], page, random))), None)
    if question is not None:
        found.append(("question", question, page.text))
    return found


def _heading_query(page: TextPage, random: Generator) -> str:
    heading = re.sub(r"^[\d.]+\s+", "", page.heading)
    about = heading if len(heading.split()) > 3 or page.title in heading else f"{page.title} {heading}"
    if _GERUND.match(heading) and random.random() < 0.5:
        return f"How does {page.title} handle {heading[0].lower() + heading[1:]}?"
    forms = ("{}", "{}", "What does it say about {}?", "where is {} described", "What is {}?", "Explain {}")
    return forms[int(random.integers(len(forms)))].format(about)


def _question(sentence: str, page: TextPage, random: Generator) -> str:
    """What the sentence answers, if it has the form of a definition or of "Label: value"; else an empty string."""
    if labelled := _LABEL.match(sentence):
        return f"What is the {labelled['label'].lower()} of {page.title}?"
    found = _DEFINITION.match(sentence)
    if found is None or found["subject"].split()[0].lower() in _POINTERS:
        return ""
    subject, verb = found["subject"], found["verb"]
    article, _, rest = subject.partition(" ")
    if article in {"The", "A", "An"}:
        subject = f"{article.lower()} {rest}"
    # A short subject alone says little about where to look.
    context = f" in {page.title}" if random.random() < (0.8 if len(subject.split()) < 4 else 0.3) else ""
    if verb in {"is", "are", "was", "were"}:
        return f"What {verb} {subject}{context}?"
    forms = {"means": ("does", "mean"), "returns": ("does", "return"), "can": ("can", "do"), "have": ("do", "have")}
    auxiliary, infinitive = forms.get(verb, ("does", "have"))
    return f"What {auxiliary} {subject} {infinitive}{context}?"


def _rare_words(sentence: str, rarity: dict[str, float], random: Generator) -> str:
    words = list(dict.fromkeys(_WORD.findall(sentence)))
    count = min(len(words), int(random.integers(3, 8)))
    chosen = sorted(range(len(words)), key=lambda at: -rarity.get(words[at].lower(), 0.0))[:count]
    return " ".join(words[at] for at in sorted(chosen))


def _rarity(pages: Sequence[TextPage]) -> dict[str, float]:
    """word -> log of pages / pages with it."""
    counts: Counter[str] = Counter()
    for page in pages:
        counts.update(_words(page))
    return {word: math.log(len(pages) / count) for word, count in counts.items()}


def _near(pages: Sequence[TextPage], rarity: dict[str, float], count: int) -> dict[str, tuple[str, ...]]:
    """page id -> ids of the nearest pages of its document and, as many, of its template."""
    words = {page.id: _words(page) for page in pages}
    near: dict[str, tuple[str, ...]] = {page.id: () for page in pages}
    for group in (_groups(pages, "document"), _groups(pages, "template")):
        for members in group:
            for page in members:
                others = [other for other in members if other.id != page.id and other.id not in near[page.id]]
                shared = [(sum(rarity[w] for w in words[page.id] & words[o.id]), o.id) for o in others]
                near[page.id] += tuple(name for _, name in sorted(shared, reverse=True)[:count])
    return near


def _groups(pages: Sequence[TextPage], by: Literal["document", "template"]) -> list[list[TextPage]]:
    groups: dict[str, list[TextPage]] = {}
    for page in pages:
        key = page.document if by == "document" else page.template
        if key:
            groups.setdefault(key, []).append(page)
    return list(groups.values())


def _words(page: TextPage) -> set[str]:
    return {word.lower() for word in _WORD.findall(page.text)}
