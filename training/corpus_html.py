"""Sections of documentation in HTML: headings and the text below them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from budgetvdr.training.text_pairs import Section

_HEADINGS = {"h1", "h2", "h3", "h4", "h5"}
_SKIPPED = {"script", "style", "nav", "footer", "head"}
_SKIPPED_CLASSES = {"navheader", "navfooter", "sphinxsidebar", "related", "toc", "headerlink", "contents", "footer"}
# Elements without an end tag.
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Elements that do not part words.
_INLINE = {"a", "abbr", "b", "cite", "code", "em", "i", "kbd", "samp", "span", "strong", "sub", "sup", "tt", "u", "var"}
_NUMBER = re.compile(r"^\d+(\.\d+)*\.?\s+")


class SectionParser(HTMLParser):
    """Collects (heading, text) of an HTML page, in order; what stands before the first heading is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[tuple[list[str], list[str]]] = []
        self._open: list[str] = []
        self._skip_from: int | None = None
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opens a section, or begins to skip."""
        self._part(tag)
        if tag in _VOID:
            return
        self._open.append(tag)
        classes = set((dict(attrs).get("class") or "").split())
        if self._skip_from is None and (tag in _SKIPPED or classes & _SKIPPED_CLASSES):
            self._skip_from = len(self._open)
        if self._skip_from is None and tag in _HEADINGS:
            self.sections.append(([], []))
            self._heading = True

    def handle_endtag(self, tag: str) -> None:
        """Closes the element, with those inside it that were left open."""
        self._part(tag)
        if tag not in self._open:
            return
        while self._open.pop() != tag:
            pass
        if self._skip_from is not None and len(self._open) < self._skip_from:
            self._skip_from = None
        if tag in _HEADINGS:
            self._heading = False

    def handle_data(self, data: str) -> None:
        """Adds text to the heading or to the section."""
        if self._skip_from is None and self.sections:
            self.sections[-1][0 if self._heading else 1].append(data)

    def _part(self, tag: str) -> None:
        if tag not in _INLINE:
            self.handle_data(" ")


def html_sections(source: str, document: str, html: str) -> Iterator[Section]:
    """The sections of one HTML page that have a heading."""
    parser = SectionParser()
    parser.feed(html)
    title = ""
    for heading_parts, text_parts in parser.sections:
        heading = _NUMBER.sub("", " ".join("".join(heading_parts).replace("¶", "").split()))
        # The first heading of some sites is the site's own.
        title = title or ("" if heading.endswith("documentation") else heading)
        if heading:
            yield Section(
                source, document, title or heading, heading, " ".join("".join(text_parts).replace("¶", "").split())
            )
