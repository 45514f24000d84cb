"""Reading the latest version of an index that others write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from budgetvdr.errors import StorageError
from budgetvdr.store import Snapshot, Store

T = TypeVar("T")


def on_latest(store: Store, read: Callable[[Snapshot], T]) -> T:
    """What a read of the latest version gives.

    An `optimize` that keeps no old versions may remove the one being read. Then there is a newer one, on which the
    read, which changes nothing, runs once more. Raises what it raises.
    """
    snapshot = store.snapshot()
    try:
        return read(snapshot)
    except StorageError:
        newer = store.snapshot()
        if (newer.identity, newer.version) == (snapshot.identity, snapshot.version):
            raise
    return read(newer)
