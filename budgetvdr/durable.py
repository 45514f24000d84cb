"""Writing that outlasts a crash: what is there afterwards is the old or the new, whole."""

from __future__ import annotations

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Returns when a file's contents, or the names in a folder, would outlast a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Writes a file anew; whenever it is stopped, the old text or the new one is there."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    # Windows opens no folder, and keeps names without being asked.
    if os.name == "posix":
        to_disk(path.parent)
