"""Files that are whole or not there, and what tells one from another."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def to_disk(path: Path) -> None:
    """Returns when a file's contents, or the names in a folder, would outlast a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Writes a file anew; whenever it is stopped, the old text or the new one is there."""
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.write_text(text, encoding="utf-8")
    to_disk(unfinished)
    unfinished.replace(path)
    to_disk(path.parent)


def settle(partial: Path, final: Path) -> None:
    """Gives a finished folder of files, next to its place, the name `final`, which must be free."""
    for file in partial.iterdir():
        to_disk(file)
    to_disk(partial)
    partial.rename(final)
    to_disk(final.parent)
