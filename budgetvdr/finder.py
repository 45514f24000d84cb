"""One query over one version of the index: encoded, ranked, and shown as hits that say what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from budgetvdr.budget import Plan
from budgetvdr.encoders import Encoder
from budgetvdr.hit import Hit
from budgetvdr.pages import Spent
from budgetvdr.searcher import Searcher
from budgetvdr.store import Snapshot
from budgetvdr.view import StoreView, query_at


@dataclass(frozen=True, slots=True, eq=False)
class Finder:
    """What answers the queries of one index. May be used from several threads."""

    encoder: Encoder
    searcher: Searcher
    view: StoreView

    def find(self, snapshot: Snapshot, text: str, plan: Plan, *, k: int, where: str | None = None) -> list[Hit]:
        """The k best pages for a text, best first, among those that meet an SQL condition."""
        start = perf_counter()
        query = query_at(self.encoder, text, plan.depth, plan.dim)
        encoded = perf_counter()
        ranking = self.searcher.rank(snapshot, query.vectors, plan, k=k, where=where)
        spent = Spent(
            depth=plan.depth,
            page_depth=plan.page_depth,
            dim=plan.dim,
            path=ranking.path,
            pages=ranking.pages,
            vectors=ranking.vectors,
            candidates=ranking.candidates,
            encode_ms=(encoded - start) * 1e3,
            load_ms=ranking.load_ms,
            scan_ms=ranking.scan_ms,
            exact_ms=ranking.exact_ms,
            ms=(perf_counter() - start) * 1e3,
        )
        return [
            Hit(
                id=fact.id,
                doc_id=fact.doc_id,
                page_num=fact.page_num,
                score=float(score),
                page_label=fact.label,
                page_count=fact.page_count,
                metadata=fact.metadata,
                source=fact.source,
                text=fact.text,
                notes=fact.notes,
                query=text,
                budget=spent,
                view=self.view,
            )
            for fact, score in zip(ranking.facts, ranking.scores, strict=True)
        ]
