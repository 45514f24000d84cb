"""What an interrupted export has finished, so that the next one goes on from there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from budgetvdr.bundle import UNFINISHED_NAME
from budgetvdr.durable import replace_text
from budgetvdr.export.errors import ExportError

_FORMAT = 1


class Stages:
    """The stages of one folder. A stage is finished when its files are on the disk and noted here.

    inputs: digest of all that the result depends on; a folder of other inputs is emptied. discarded: whether it was
    one.
    """

    def __init__(self, folder: Path, inputs: str) -> None:
        self.folder = folder
        self._head = {"format": _FORMAT, "inputs": inputs}
        self.discarded = False
        self._records: dict[str, Any] = self._read()
        if not self._records:
            folder.mkdir(parents=True, exist_ok=True)
            # The notes stay until there are new ones: without them the folder would be nobody's.
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != UNFINISHED_NAME:
                    path.unlink()
            self._write()

    def facts(self, stage: str) -> dict[str, Any] | None:
        """What was noted of a stage; None where it is not finished or a file of it is not what it was."""
        record = self._records.get(stage)
        if record is None:
            return None
        for name, (length, digest) in record["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size < length or sha256(path, length) != digest:
                return None
        return dict(record["facts"])

    def finish(self, stage: str, files: Sequence[str], facts: Mapping[str, Any]) -> None:
        """Notes a stage. Files may grow afterwards: what they hold now is what counts."""
        sizes = {name: (self.folder / name).stat().st_size for name in files}
        digests = {name: [size, sha256(self.folder / name, size)] for name, size in sizes.items()}
        self._records[stage] = {"files": digests, "facts": dict(facts)}
        self._write()

    def _write(self) -> None:
        replace_text(self.folder / UNFINISHED_NAME, json.dumps({**self._head, "stages": self._records}))

    def _read(self) -> dict[str, Any]:
        try:
            raw = json.loads((self.folder / UNFINISHED_NAME).read_text(encoding="utf-8"))
            if {key: raw[key] for key in self._head} != self._head:
                self.discarded = True
                return {}
            return dict(raw["stages"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def partial_of(out: Path) -> Path:
    """The folder that an export works in until it is done."""
    return out.with_name(f"{out.name}.partial")


def check_new(out: Path) -> None:
    """Raises ExportError where there is something in place of the bundle."""
    if out.exists():
        raise ExportError(f"{out} exists: choose a new folder for the bundle, or delete it")


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """The folder beside `out` that an export works in, which nobody else uses meanwhile; gone where nothing came of it.

    Raises ExportError where `out` exists, where another export is at work, and where the folder is something else.
    """
    check_new(out)
    partial = partial_of(out)
    if partial.is_dir() and any(partial.iterdir()) and not (partial / UNFINISHED_NAME).is_file():
        raise ExportError(f"{partial} is in the way and was not made by an export that got anywhere; delete it")
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out.with_name(f"{out.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ExportError(f"another export is writing {out}; wait for it or choose another folder") from error
    try:
        yield partial
    finally:
        if partial.is_dir() and [path.name for path in partial.iterdir()] == [UNFINISHED_NAME]:
            shutil.rmtree(partial)
        # While it is held: whoever takes the lock meanwhile would lose the file to this.
        with suppress(OSError):  # systems that keep open files
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def sha256(path: Path, length: int | None = None) -> str:
    """Hex digest of a file, or of its first bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if length is None else length
    with path.open("rb") as stream:
        while left > 0 and (block := stream.read(min(left, 1 << 24))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
