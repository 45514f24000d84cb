"""Keeping an index quick: its files and versions, and the first stage, which has to follow its pages."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from budgetvdr.errors import StorageError
from budgetvdr.first_stage import LEAST_VECTORS, MANY_NEW
from budgetvdr.latest import on_latest
from budgetvdr.searcher import Searcher
from budgetvdr.store import OptimizeReport, Snapshot, Store

_log = logging.getLogger(__name__)


class Upkeep:
    """Decides when the first stage of one index is made, brought up to date, and removed."""

    def __init__(self, store: Store, searcher: Searcher) -> None:
        self._store = store
        self._searcher = searcher
        self._unrouted = 0

    def after_adding(self, pages: int) -> None:
        """Counts pages; once they are many, a first stage that is there learns them. Never fails what was stored."""
        self._unrouted += pages
        if self._unrouted < MANY_NEW:
            return
        new, self._unrouted = self._unrouted, 0
        try:
            self._searcher.refresh_first_stage(self._store, make=False)
        except StorageError as error:
            # Every search looks at the pages that its lists do not know.
            _log.warning("the first stage of %s does not know %d new pages: %s", self._store.uri, new, error)

    def optimize(self, keep: timedelta, first_stage: bool | None) -> OptimizeReport:
        """See `Index.optimize`."""
        report = self._store.optimize(keep)
        if first_stage is False:
            for depth in self._store.settings.depths:
                self._store.drop_routes(depth)
        large = first_stage is None and on_latest(self._store, Snapshot.vector_count) >= LEAST_VECTORS
        self._searcher.refresh_first_stage(self._store, make=first_stage or large)
        self._unrouted = 0
        return replace(report, bytes_after=self._store.bytes_on_disk())
