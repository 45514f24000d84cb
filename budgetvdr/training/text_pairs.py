"""(query, page) pairs from plain documents, without a model.

A document's sections are cut into pages. Queries are a document's headings, sentences taken out of a page (inverse
cloze), questions that its sentences answer, the rare words of a sentence, and questions that the source itself has. A
query that other pages answer as well gets its document's title added, and is dropped where that does not help. The
hard negatives of a page are those that share most of its rare words, of its document and of its template: the same
chapter of another report.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from budgetvdr.training.corruption import corrupt
from budgetvdr.training.page_words import WORD, PageWords
from budgetvdr.training.questions import Verbs, from_gerund, learn_verbs, question

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_FEWEST_WORDS = 30
_LONGEST_QUERY = 24
# Among more pages than these a query does not tell which is meant.
_MOST_RIVALS = 2
_QUESTIONS_A_PAGE = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that a source has itself. anchor: words of the section's text that answer it, as they stand there."""

    query: str
    anchor: str


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
    asked: tuple[Asked, ...] = ()


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
    asked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query of one of the kinds heading, cloze, question, words; the page's id and the ids of hard negatives.

    original: id of the page as it was. group: its template. Not its document: there the page beside often answers too.
    """

    kind: str
    query: str
    page: str
    negatives: tuple[str, ...]
    original: str
    group: str


@dataclass(frozen=True, slots=True)
class _Corpus:
    words: PageWords
    verbs: Verbs
    random: Generator


def make_pairs(
    sections: Iterable[Section], *, seed: int = 0, corrupted: float = 0.3, negatives: int = 4, most_words: int = 120
) -> tuple[list[TextPage], list[TextPair]]:
    """Pages and pairs of a corpus; the same for the same sections and seed.

    corrupted: share of pages with damages (`budgetvdr.training.corruption`). negatives: at most so many a pair from its
    document, and from its template. most_words: longest page before its heading; whoever cuts pages off in training
    must cut none of these, or questions stand beside pages whose answer is gone.
    """
    random = np.random.default_rng(seed)
    pages = list(_all_pages(sections, most_words))
    words = PageWords([f"{page.title} {page.heading} {page.text}" for page in pages])
    corpus = _Corpus(words, learn_verbs(page.text for page in pages), random)
    near = _near(pages, words, negatives)
    made: dict[str, TextPage] = {}
    pairs: list[TextPair] = []
    for place, page in enumerate(pages):
        for number, (kind, query, text) in enumerate(_queries(page, corpus)):
            if (clear := _unmistakable(query, place, page, words)) or kind == "cloze":
                seen = corrupt(text, random) if random.random() < corrupted else text
                # A page with a sentence taken out is another page than the whole one.
                name = f"{page.id}:{kind}{number}"
                made[name] = replace(page, id=name, text=seen, clean=text)
                asked = query if kind == "cloze" else clear
                pairs.append(TextPair(kind, asked, name, near[page.id], page.id, page.template))
    made |= {page.id: page for page in pages}
    return list(made.values()), pairs


def _all_pages(sections: Iterable[Section], most_words: int) -> Iterator[TextPage]:
    """The pages of all sections; a heading that a document has again is told apart by its count."""
    times: Counter[tuple[str, str, str]] = Counter()
    for section in sections:
        key = (section.source, section.document, section.heading)
        times[key] += 1
        yield from _pages(section, f"~{times[key]}" if times[key] > 1 else "", most_words)


def _pages(section: Section, again: str, most_words: int) -> list[TextPage]:
    words = section.text.split()
    if len(words) < _FEWEST_WORDS:
        return []
    count = math.ceil(len(words) / most_words)
    size = math.ceil(len(words) / count)
    pages = []
    for number in range(count):
        text = " ".join(words[number * size : (number + 1) * size])
        asked = tuple(asked.query for asked in section.asked if " ".join(asked.anchor.split()) in text)
        # Every printed page shows under which heading it stands.
        text = f"{section.heading}. {text}"
        name = f"{section.source}/{section.document}#{section.heading}{again}#{number}"
        shown = (section.document, section.title, section.template, section.heading, text, text, asked)
        pages.append(TextPage(name, *shown))
    return pages


def _queries(page: TextPage, corpus: _Corpus) -> Iterator[tuple[str, str, str]]:
    """(kind, query, the page's text as it then is)."""
    random = corpus.random
    if page.id.endswith("#0") and WORD.search(page.heading) and not page.asked:
        # One time in three the heading stands on the page only in the query's words; that of an answer always.
        bare = page.heading.endswith("?") or random.random() < 1 / 3
        shown = page.text.removeprefix(f"{page.heading}. ") if bare else page.text
        yield "heading", _heading_query(page, corpus), shown
    for index in random.permutation(len(page.asked))[:_QUESTIONS_A_PAGE]:
        yield "question", page.asked[index], page.text
    prose = page.text.removeprefix(f"{page.heading}. ")
    sentences = [sentence for sentence in _SENTENCE.split(prose) if _is_whole(sentence)]
    if len(sentences) < 3 or page.asked:
        return
    order = random.permutation(len(sentences))
    # One of the two a page: people ask rather than quote. A sentence from a form does not tell of which page it is.
    if random.random() < 0.5 and not page.template:
        cloze = sentences[order[0]]
        # A tenth stays in, so that exact matches keep their worth.
        rest = page.text if random.random() < 0.1 else page.text.replace(cloze, " ", 1)
        yield "cloze", cloze, " ".join(rest.split())
    else:
        yield "words", _rare_words(sentences[order[1]], corpus), page.text
    found = (asked for index in order if (asked := question(sentences[index], corpus.verbs, random)))
    for asked, _ in zip(found, range(_QUESTIONS_A_PAGE), strict=False):
        yield "question", asked, page.text


def _is_whole(sentence: str) -> bool:
    """Whether it can stand alone: pages begin and end in the midst of sentences."""
    return (
        6 <= len(sentence.split()) <= _LONGEST_QUERY
        and not sentence[0].islower()
        and sentence.rstrip("\"')")[-1:] in {".", "!", "?"}
    )


def _heading_query(page: TextPage, corpus: _Corpus) -> str:
    heading, random = page.heading, corpus.random
    if heading.endswith("?"):
        return heading
    if random.random() < 0.6 and (asked := from_gerund(heading, corpus.verbs)):
        return asked
    forms = ("{}", "{}", "What does it say about {}?", "where is {} described", "Tell me about {}", "Explain {}")
    return forms[int(random.integers(len(forms)))].format(heading)


def _unmistakable(query: str, place: int, page: TextPage, words: PageWords) -> str:
    """The query, with the document's title where it is needed; an empty string where that is not enough."""
    if words.rivals(place, query) <= _MOST_RIVALS:
        return query
    longer = f"{query.removesuffix('?')} in {page.title}?" if query.endswith("?") else f"{query}, {page.title}"
    return longer if words.rivals(place, longer) <= _MOST_RIVALS else ""


def _rare_words(sentence: str, corpus: _Corpus) -> str:
    words = list(dict.fromkeys(WORD.findall(sentence)))
    count = min(len(words), int(corpus.random.integers(3, 8)))
    rarity = corpus.words.rarity
    chosen = sorted(range(len(words)), key=lambda at: -rarity.get(words[at].lower(), 0.0))[:count]
    return " ".join(words[at] for at in sorted(chosen))


def _near(pages: Sequence[TextPage], words: PageWords, count: int) -> dict[str, tuple[str, ...]]:
    """page id -> ids of the nearest pages of its document and, as many, of its template."""
    near: dict[str, tuple[str, ...]] = {page.id: () for page in pages}
    for group in (*_groups(pages, "document"), *_groups(pages, "template")):
        for place, others in words.nearest(group, count).items():
            fresh = [name for other in others if (name := pages[other].id) not in near[pages[place].id]]
            near[pages[place].id] += tuple(fresh)
    return near


def _groups(pages: Sequence[TextPage], by: Literal["document", "template"]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for place, page in enumerate(pages):
        key = page.document if by == "document" else page.template
        if key:
            groups.setdefault(key, []).append(place)
    return [group for group in groups.values() if len(group) > 1]
