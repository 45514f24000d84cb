"""Where an index lies: finding it, making it, taking turns in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from filelock import FileLock, Timeout

from budgetvdr.errors import IndexFormatError, StorageError
from budgetvdr.store.engine import storage_failures
from budgetvdr.store.schema import TABLE

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import LanceTable

LOCK_NAME: Final = ".budgetvdr.lock"
LOCK_SECONDS: Final = 600


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


def open_table(database: DBConnection) -> LanceTable | None:
    """A new handle on the latest version, None where there is no table."""
    try:
        return database.open_table(TABLE)
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


def sweep(folder: Path) -> None:
    """Removes files that killed writers had begun and LanceDB does not clean up. Only for the holder of the lock."""
    for file in (folder / f"{TABLE}.lance").rglob(".tmp*"):
        file.unlink(missing_ok=True)
