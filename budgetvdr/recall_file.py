"""The last recall report of a local index, in a small file beside its table, for `info` of later processes.

It is worth no failure: what cannot be written is logged, and what cannot be read, or is of another index, is none.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from budgetvdr.errors import ReadOnlyError
from budgetvdr.recall import RecallReport
from budgetvdr.store import Snapshot, Store

_log = logging.getLogger(__name__)

# With a dot, so that a folder which holds nothing else still counts as empty.
_NAME: Final = ".budgetvdr.recall.json"


def save(report: RecallReport, store: Store, snapshot: Snapshot) -> None:
    """Keeps a report where the index is in a folder and may be written."""
    file = _file(store)
    if file is None:
        return
    try:
        store.check_writable("keep a recall report")
        text = json.dumps({"identity": snapshot.identity.hex(), "report": asdict(report)})
        unfinished = file.with_name(f"{_NAME}.{os.getpid()}-{threading.get_ident()}")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
    except ReadOnlyError:
        return
    except OSError as error:
        _log.info("the recall report of %s is not kept: %s", store.uri, error)


def load(store: Store, snapshot: Snapshot) -> RecallReport | None:
    """The report kept last, None where there is none."""
    file = _file(store)
    if file is None:
        return None
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return RecallReport(**kept["report"]) if kept["identity"] == snapshot.identity.hex() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _file(store: Store) -> Path | None:
    return None if "://" in store.uri else Path(store.uri) / _NAME
