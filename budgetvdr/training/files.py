"""Files that are whole or not there, and what tells one from another."""

from __future__ import annotations

import hashlib
from pathlib import Path

from budgetvdr.durable import to_disk


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def settle(partial: Path, final: Path) -> None:
    """Gives a finished folder of files, next to its place, the name `final`, which must be free."""
    for file in partial.iterdir():
        to_disk(file)
    to_disk(partial)
    partial.rename(final)
    to_disk(final.parent)
