"""Where an index lies: finding it, making it, taking turns in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from filelock import FileLock, Timeout

from budgetvdr.errors import IndexFormatError, SourceNotFoundError, StorageError
from budgetvdr.store.engine import is_refused, storage_failures
from budgetvdr.store.records import VersionInfo
from budgetvdr.store.schema import TABLE

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import LanceTable

LOCK_NAME: Final = ".budgetvdr.lock"
LOCK_SECONDS: Final = 600
_HIGHEST: Final = 2**64 - 1
_MANIFEST_END: Final = b"LANC"
_LISTING_ATTEMPTS: Final = 10


def holds_index(folder: Path) -> bool:
    """Whether a folder holds an index; False where one may be created.

    Raises IndexFormatError where the path holds something else. A creation that was interrupted counts as nothing.
    """
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise IndexFormatError(f"{folder} is a file: expected the folder of an index, or a new path")
    table = folder / f"{TABLE}.lance"
    if any((table / "_versions").glob("*.manifest")):
        return True
    if any((table / "data").glob("*")):
        raise IndexFormatError(f"{folder} is a damaged index: it holds data files but no version that names them")
    others = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".") and entry != table]
    if others:
        raise IndexFormatError(
            f"{folder} is not an index and not empty (it holds {', '.join(sorted(others)[:3])}); choose another folder"
        )
    return False


def open_table(database: DBConnection, name: str = TABLE) -> LanceTable | None:
    """A new handle on the latest version, None where there is no table."""
    try:
        return database.open_table(name)
    except ValueError as error:
        if "was not found" not in str(error):
            raise
        return None


def existing(database: DBConnection, uri: str) -> LanceTable:
    """A new handle on the latest version; it stays there. Raises StorageError where the table is gone."""
    with storage_failures(f"open {uri}"):
        table = open_table(database)
    if table is None:
        raise StorageError(f"the index at {uri} is gone: its table was deleted while it was open")
    return table


def check_out(table: LanceTable, version: int, uri: str) -> None:
    """Moves a handle to a version, for good. Raises SourceNotFoundError where that version is not there."""
    with storage_failures(f"open {uri}"):
        try:
            table.checkout(version)
        except (RuntimeError, ValueError, TypeError) as error:  # TypeError: below 0 or beyond 64 bits
            there = [info.version for info in versions(table)]
            if version in there:
                raise
            raise SourceNotFoundError(
                f"no version {version} of the index at {uri}: expected one of {ranges(there)}; older ones are removed "
                "by optimize, by itself after many writes too"
            ) from error


def versions(table: LanceTable) -> list[VersionInfo]:
    """Versions that can still be read, oldest first; about 0.3 ms for each on a local disk."""
    for attempt in range(_LISTING_ATTEMPTS - 1):
        try:
            return _versions(table)
        except RuntimeError as error:
            # Another process is removing old versions: one was named here and gone when it was to be read.
            if "Not found:" not in str(error):
                raise
        time.sleep(0.02 * 2**attempt)
    return _versions(table)


def version_count(table: LanceTable, folder: Path | None) -> int:
    """How many versions there are; in a folder they are counted and not read, so that one may be damaged."""
    return len(versions(table)) if folder is None else len(_manifests(folder))


@contextmanager
def failures(action: str, folder: Path | None) -> Iterator[None]:
    """As `storage_failures`; where a version's file in a folder is cut short, as by a crash, it says what to do."""
    try:
        with storage_failures(action):
            yield
    except StorageError as error:
        there = {} if folder is None or is_refused(error.__cause__ or error) else _manifests(folder)
        cut = max((version for version, file in there.items() if not _is_whole(file)), default=None)
        if cut is None:
            raise
        remedy = f"move {there[cut]} away, which no other version needs"
        if cut == max(there):
            remedy = f"move {there[cut]} away to have the index as the commit before left it, and add the rest again"
        if len(there) == 1:
            remedy = "restore the index from a copy, or add the documents to a new one"
        raise StorageError(f"{error}; the file of version {cut} is damaged: {remedy}") from error


def fragments(table: LanceTable) -> int:
    """Data fragments of the version a handle is on."""
    return int(table.stats()["fragment_stats"]["num_fragments"])


def bytes_on_disk(table: LanceTable, folder: Path | None) -> int:
    """Bytes of all files, old versions included; on an object store those of this version's data."""
    if folder is None:
        return int(table.stats()["total_bytes"])
    return sum(_size(file) for file in folder.rglob("*"))


def create_table(database: DBConnection, schema: pa.Schema) -> LanceTable:
    """Creates the table, or opens the one another process has created in the meantime."""
    try:
        return database.create_table(TABLE, schema=schema)
    except ValueError as error:
        table = open_table(database) if "already exists" in str(error) else None
        if table is None:
            raise
        return table


@contextmanager
def lock(folder: Path | None) -> Iterator[None]:
    """Holds the lock file of a local index; nothing for an object store."""
    if folder is None:
        yield
        return
    try:
        with FileLock(folder / LOCK_NAME, timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise StorageError(
            f"{folder} is being written by another process for more than {LOCK_SECONDS} s; try again when it has ended"
        ) from error


def sweep(folder: Path, tables: Iterable[str]) -> None:
    """Removes files that killed writers had begun and LanceDB does not clean up. Only for the holder of the lock."""
    for table in tables:
        for file in (folder / f"{table}.lance").rglob(".tmp*"):
            file.unlink(missing_ok=True)


def _manifests(folder: Path) -> dict[int, Path]:
    """Version -> its file. Names count down from 2**64 - 1, or up in tables of early LanceDB."""
    files = (folder / f"{TABLE}.lance" / "_versions").glob("*.manifest")
    numbers = {int(file.stem): file for file in files if file.stem.isdigit()}
    return {min(number, _HIGHEST - number): file for number, file in numbers.items()}


def _is_whole(manifest: Path) -> bool:
    try:
        return manifest.read_bytes().endswith(_MANIFEST_END)
    except OSError:
        return True


def _versions(table: LanceTable) -> list[VersionInfo]:
    return [
        # LanceDB gives local time without saying so.
        VersionInfo(int(entry["version"]), entry["timestamp"].astimezone(UTC), int(entry["metadata"]["total_rows"]))
        for entry in table.list_versions()
    ]


def ranges(versions: Sequence[int]) -> str:
    """Ascending numbers as text, those in a row as first-last."""
    there = set(versions)
    starts = [version for version in versions if version - 1 not in there]
    ends = [version for version in versions if version + 1 not in there]
    return ", ".join(
        str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True)
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # removed by another process while we walk
        return 0
