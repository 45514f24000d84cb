"""Paths, folders and patterns -> files that may be documents, with the names their documents get."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from budgetvdr.errors import SourceError, SourceNotFoundError, UnreadableFileError
from budgetvdr.sources.pictures import SUFFIXES

_READABLE = SUFFIXES | {".pdf"}
_WANTED = "PDFs or pictures (" + ", ".join(sorted(_READABLE)) + ")"
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file, and the doc_id it gives its document: its name, or its path under the folder or pattern given."""

    path: Path
    doc_id: str


def names_several(where: str | Path) -> bool:
    """Whether a path is a folder or a pattern, so that any number of files may be behind it."""
    path = Path(where).expanduser()
    try:
        return path.is_dir() or (not path.exists() and _PATTERN.search(str(where)) is not None)
    except (OSError, ValueError):
        return False


def find_files(where: str | Path) -> Iterator[FoundFile | SourceError]:
    """The file itself, the readable files of a folder and its subfolders, or those a glob pattern matches.

    Numbers in names count as numbers ("page 2" before "page 10"). Hidden files and folders and index folders (*.bvdr)
    are left out of folders. A folder that may not be listed gives its error among the files; where there is nothing
    at all, SourceNotFoundError is the only thing that comes.
    """
    path = Path(where).expanduser()
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        yield SourceNotFoundError(f"{where!r} is no usable path: {error}")
        return
    if not str(where).strip():
        yield SourceNotFoundError("the path is empty: expected a file, a folder or a pattern such as reports/*.pdf")
    elif is_folder:
        yield from _or_nothing(_in_folder(path), f"the folder {where}")
    elif exists:
        yield FoundFile(path, doc_id_of(path.name))
    elif _PATTERN.search(str(where)):
        yield from _or_nothing(_matching(path), f"the pattern {where}")
    else:
        yield SourceNotFoundError(
            f"{where} does not exist (looked in {Path.cwd()}): expected a file, a folder or a pattern (*.pdf)"
        )


def _or_nothing(found: Iterable[FoundFile | SourceError], what: str) -> Iterator[FoundFile | SourceError]:
    nothing = True
    for item in found:
        nothing = False
        yield item
    if nothing:
        yield SourceNotFoundError(f"{what} holds nothing to index: looked for {_WANTED}, hidden ones left out")


def _in_folder(folder: Path) -> Iterator[FoundFile | SourceError]:
    names: list[str] = []
    errors: list[OSError] = []
    for here, folders, files in os.walk(folder, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".") and not name.endswith(".bvdr")]
        inside = Path(here).relative_to(folder)
        names += [(inside / name).as_posix() for name in files if _is_readable(name)]
    for error in errors:
        yield UnreadableFileError(f"{error.filename} cannot be listed: {error.strerror}")
    for name in sorted(names, key=_natural):
        yield FoundFile(folder / name, doc_id_of(name))


def _matching(pattern: Path) -> Iterator[FoundFile]:
    fixed = 0
    while not _PATTERN.search(pattern.parts[fixed]):
        fixed += 1
    root = Path(*pattern.parts[:fixed])
    found = [Path(name) for name in glob.iglob(str(pattern), recursive=True)]
    names = {path.relative_to(root).as_posix() for path in found if _is_readable(path.name) and path.is_file()}
    for name in sorted(names, key=_natural):
        yield FoundFile(root / name, doc_id_of(name))


def _is_readable(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in _READABLE


def _natural(name: str) -> list[tuple[str, int, str]]:
    """Sorts by text and numbers in turn; the name itself decides between those alike but for case or zeros."""
    parts = re.split(r"([0-9]+)", name)
    pairs = zip(parts[::2], [*parts[1::2], "0"], strict=True)
    return [*((text.lower(), int(number), "") for text, number in pairs), ("", 0, name)]


def doc_id_of(name: str) -> str:
    """The doc_id of a file name: in UTF-8, and with %23 for #, because a page's id is doc_id#page_num."""
    return os.fsencode(name).decode("utf-8", "replace").replace("#", "%23")
