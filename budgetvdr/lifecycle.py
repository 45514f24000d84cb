"""Keeping an index quick: its files and versions, and the first stage, which has to follow its pages."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

from budgetvdr.errors import StorageError
from budgetvdr.first_stage import LEAST_VECTORS, MANY_NEW
from budgetvdr.searcher import Searcher
from budgetvdr.store import OptimizeReport, Snapshot, Store

_log = logging.getLogger(__name__)


class Lifecycle:
    """Decides when the first stage of one index is made, brought up to date, and removed."""

    def __init__(self, store: Store, searcher: Searcher) -> None:
        self._store = store
        self._searcher = searcher
        self._added = 0
        # How far behind it was when it could not follow: then it is tried again after as many pages more.
        self._gave_up = 0

    def after_adding(self, pages: int) -> None:
        """Has a first stage that is there learn the pages it lacks, once they are many. Never fails what was stored."""
        self._added += pages
        if not pages:
            return
        behind = self._added
        try:
            behind = max(behind, self._come_since())
            if behind - self._gave_up < MANY_NEW:
                return
            self._searcher.refresh_first_stage(self._store, make=False)
        except StorageError as error:
            # Every search looks at the pages that its lists do not know.
            _log.warning("the first stage of %s does not know %d new pages: %s", self._store.uri, behind, error)
            self._gave_up = behind
            return
        self._added = self._gave_up = 0

    def optimize(self, keep: timedelta, first_stage: bool | None) -> OptimizeReport:
        """See `Index.optimize`."""
        report = self._store.optimize(keep)
        if first_stage is False:
            for depth in self._store.settings.depths:
                self._store.drop_routes(depth)
        large = first_stage is None and self._store.on_latest(Snapshot.vector_count) >= LEAST_VECTORS
        self._searcher.refresh_first_stage(self._store, make=first_stage or large)
        self._added = self._gave_up = 0
        return replace(report, bytes_after=self._store.bytes_on_disk())

    def _come_since(self) -> int:
        """Pages beyond those that a first stage has looked at, whoever added them; 0 where there is none.

        Pages that took the place of others are not among them: those added here are counted by themselves.
        """
        routed = [
            known for depth in self._store.settings.depths if (known := self._store.routed_pages(depth)) is not None
        ]
        pages = self._store.on_latest(Snapshot.page_count) if routed else 0
        return pages - min(routed, default=0)
