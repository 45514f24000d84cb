"""The last recall report of an index: in memory, and of a local one in a small file for `info` of later processes.

The file is worth no failure: what cannot be written is logged, and what cannot be read, or is of another index, is
none.
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


class KeptRecall:
    """The report that a store's pages were measured with last, by this object or else by any process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._own: tuple[bytes, RecallReport] | None = None

    def keep(self, report: RecallReport, snapshot: Snapshot) -> None:
        """Keeps a report, also for others where the index is in a folder and may be written."""
        self._own = snapshot.identity, report
        file = self._file()
        if file is None:
            return
        try:
            self._store.check_writable("keep a recall report")
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
            _log.info("the recall report of %s is not kept: %s", self._store.uri, error)

    def last(self, snapshot: Snapshot) -> RecallReport | None:
        """The report kept last for the index a snapshot is of, None where there is none."""
        if self._own is not None and self._own[0] == snapshot.identity:
            return self._own[1]
        file = self._file()
        if file is None:
            return None
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            return RecallReport(**kept["report"]) if kept["identity"] == snapshot.identity.hex() else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _file(self) -> Path | None:
        return None if self._store.folder is None else self._store.folder / _NAME
