"""Sections of prose that is no documentation: speeches, a novel, security controls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from budgetvdr.training.text_pairs import Section

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
_WORDS = 300
# What a control leaves to its reader: [Assignment: organization-defined frequency].
_LINK = re.compile(r"\[([^\]]*)\]\(#[^)]*\)")
_LEFT_OPEN = re.compile(r"\[(?:Assignment|Selection[^:]*): (?:organization-defined )?([^\]\[]*)\]")


def speech_sections(source: str, document: str, text: str) -> Iterator[Section]:
    """Parts of an annual message to Congress, some 300 words each."""
    speech = json.loads(text)
    title = f"State of the Union {speech['year']}, {speech['name']}"
    for part in _parts(speech["text"]):
        yield Section(source, document, title, title, part)


def chapter_sections(source: str, document: str, text: str) -> Iterator[Section]:
    """Parts of a novel's chapter, some 300 words each."""
    chapter = json.loads(text)
    heading = " ".join(str(chapter["title"]).split()).rstrip(".")
    for part in _parts(chapter["text"]):
        yield Section(source, document, f"Moby Dick, {heading}", heading, part)


def control_sections(source: str, text: str) -> Iterator[Section]:
    """A section for each control's rule, guidance and list of what an assessor looks at; each is a document."""
    for control in json.loads(text):
        document = f"nist-{control['id']}"
        title = f"{control['title']} ({control['id']})"
        for heading, content in (
            (f"{control['id']} {control['title']}", control["statement"]),
            (f"{control['id']} {control['title']}: discussion", control["guidance"]),
            (f"{control['id']} {control['title']}: assessment", " ".join(control["assessment_objectives"])),
        ):
            yield Section(source, document, title, heading, _plain(content or ""))


def spread(sections: Sequence[Section], most_words: int) -> list[Section]:
    """Every n-th section, so that all have about `most_words` words together; all where they have fewer."""
    words = sum(len(section.text.split()) for section in sections)
    if words <= most_words:
        return list(sections)
    share = most_words / words
    return [section for place, section in enumerate(sections) if int((place + 1) * share) > int(place * share)]


def _plain(text: str) -> str:
    return _LEFT_OPEN.sub(r"\1", _LINK.sub(r"\1", text))


def _parts(text: Any) -> Iterator[str]:
    part: list[str] = []
    for sentence in _SENTENCE.split(" ".join(text if isinstance(text, list) else [text])):
        part.append(sentence)
        if sum(len(said.split()) for said in part) >= _WORDS:
            yield " ".join(part)
            part = []
    if part:
        yield " ".join(part)
