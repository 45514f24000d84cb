"""nDCG@5, Recall@1, Recall@5 and mAP of a run, computed by trec_eval's code through `ir_measures`.

    nDCG@5     gain is the grade itself (linear, as trec_eval and MTEB have it), not 2^grade - 1; the discount of rank
               i is log2(i + 1); the ideal ranking is over all pages graded for the question
    Recall@k   share of the question's relevant pages (grade 1 or more) among its first k hits, so that a question
               with two relevant pages reaches at most 0.5 at k=1
    mAP        mean over the relevant pages of the precision at each one's rank; a page not retrieved adds 0

Each is averaged over all questions of the qrels; a question without hits counts 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budgetvdr.errors import MissingExtraError
from budgetvdr.evaluate.benchmark import PageKey


@dataclass(frozen=True, slots=True)
class Metrics:
    """Means over questions, each in 0..1. `average_precision` is mAP."""

    ndcg_5: float
    recall_1: float
    recall_5: float
    average_precision: float


def require_metrics_library() -> None:
    """Raises MissingExtraError where `ir_measures` is not installed, so that a long run can fail before it starts."""
    try:
        import ir_measures  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtraError(
            f'evaluation needs ir_measures ({error}); install it with: pip install "budgetvdr[eval]"'
        ) from error


def score_run(qrels: Mapping[str, Mapping[PageKey, int]], run: Mapping[str, Sequence[PageKey]]) -> Metrics:
    """Scores a run against the qrels.

    qrels: question id -> page -> grade; must not be empty.
    run: question id -> pages, best first. The order given is what is scored: trec_eval would break equal scores by
        name and compare them in single precision, so ranks are handed to it instead. Of a page that comes twice the
        first rank counts. Questions without qrels are ignored.

    Raises MissingExtraError where `ir_measures` is not installed, ValueError for empty qrels.
    """
    if not qrels:
        raise ValueError("expected at least one question in the qrels, found none")
    require_metrics_library()
    import ir_measures  # noqa: PLC0415

    ndcg_5, recall_1, recall_5, ap = ir_measures.nDCG @ 5, ir_measures.R @ 1, ir_measures.R @ 5, ir_measures.AP
    graded = {query: {_trec_id(page): grade for page, grade in pages.items()} for query, pages in qrels.items()}
    ranked = {query: _by_rank(run.get(query, ())) for query in qrels}
    means = ir_measures.pytrec_eval.calc_aggregate([ndcg_5, recall_1, recall_5, ap], graded, ranked)
    return Metrics(*(float(means[measure]) for measure in (ndcg_5, recall_1, recall_5, ap)))


def ndcg_by_question(
    qrels: Mapping[str, Mapping[PageKey, int]], run: Mapping[str, Sequence[PageKey]]
) -> dict[str, float]:
    """nDCG@5 of every question of the qrels, in their order; arguments and errors as of `score_run`."""
    if not qrels:
        raise ValueError("expected at least one question in the qrels, found none")
    require_metrics_library()
    import ir_measures  # noqa: PLC0415

    graded = {query: {_trec_id(page): grade for page, grade in pages.items()} for query, pages in qrels.items()}
    ranked = {query: _by_rank(run.get(query, ())) for query in qrels}
    found = ir_measures.pytrec_eval.iter_calc([ir_measures.nDCG @ 5], graded, ranked)
    scores = {each.query_id: float(each.value) for each in found}
    return {query: scores.get(query, 0.0) for query in qrels}


def _by_rank(pages: Sequence[PageKey]) -> dict[str, float]:
    ranked: dict[str, float] = {}
    for rank, page in enumerate(pages, start=1):
        ranked.setdefault(_trec_id(page), -float(rank))
    return ranked


def _trec_id(page: PageKey) -> str:
    return f"{page[0]}#{page[1]}"
