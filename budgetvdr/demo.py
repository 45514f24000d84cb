"""The demonstration: index the sample documents, or a file of the user's, and search them at several budgets."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from budgetvdr.hit import Hit
from budgetvdr.index import Index

# One question for each sample document: the digital handbook, the report with tables and a chart, the scan.
_QUESTIONS = (
    "How much time off do parents of a newborn get?",
    "How many customers are there in the Alpine region?",
    "Which item was damaged on delivery?",
)
_BUDGETS = ("full", "balanced", "fast")


def run_demo(source: Path | None, questions: Sequence[str], index_path: Path) -> int:
    """Builds an index of the source (None: the samples), asks the questions at each preset and prints the answers.

    The top page of each question is written beside the index as `demo-<n>.png`, its answering regions highlighted.
    """
    if source is not None:
        return _show(source, questions or ["What is this document about?"], index_path)
    with as_file(files("budgetvdr") / "samples") as samples:
        return _show(samples, questions or _QUESTIONS, index_path)


def _show(source: Path, questions: Sequence[str], index_path: Path) -> int:
    with Index.open(index_path) as index:
        # One demo after another may be of different files with one name.
        report = index.add_pages(source, if_exists="replace" if source.is_file() else "update")
        print(report)
        wanted = {file.doc_id for file in report.files}
        for number, question in enumerate(questions, start=1):
            print(f"\n{question}")
            for budget in _BUDGETS:
                # The first search at a budget brings its vectors into memory; the one shown is any later one.
                index.search(question, 3, budget=budget)
                hits = index.search(question, 3, budget=budget, where={"doc_id": sorted(wanted)})
                print(f"  budget {budget!r}")
                for line in hit_lines(hits):
                    print(f"  {line}")
                if budget == "full" and hits:
                    best = hits[0]
            if hits:
                target = index_path.with_name(f"demo-{number}.png")
                best.explain().overlay(best.image()).save(target)
                print(f"  page {best.page_num} of {best.doc_id} with its answering regions: {target}")
    return 1 if report.failed else 0


def depth_text(depth: int, page_depth: int) -> str:
    """Depths of query and pages as people read them."""
    return f"depth {depth}" if depth == page_depth else f"depth {depth} on pages of depth {page_depth}"


def hit_lines(hits: Sequence[Hit]) -> list[str]:
    """Hits as a table for people, the cost in the last line."""
    if not hits:
        return ["no page matches"]
    lines = [f"{rank:>3}  {hit.score:.4f}  {hit.doc_id}  page {hit.page_num}" for rank, hit in enumerate(hits, start=1)]
    spent = hits[0].budget
    lines.append(
        f"     {depth_text(spent.depth, spent.page_depth)}, dim {spent.dim}: {spent.ms:.1f} ms "
        f"({spent.encode_ms:.1f} query, {spent.load_ms:.1f} loading, "
        f"{spent.scan_ms:.1f} choosing among {spent.pages} pages, "
        f"{spent.exact_ms:.1f} exact scores of {spent.candidates})"
    )
    return lines
