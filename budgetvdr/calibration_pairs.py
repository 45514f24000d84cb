"""Pairs of a query and a page to calibrate page compression with.

    a file      JSON lines: {"query": "...", "pdf": "report.pdf", "page": 3}, or "image" in place of "pdf", "page" then
                being its frame, 1 where left out; paths are relative to the file's own folder
    a folder    an evaluation set (`budgetvdr.evaluate.benchmark`): every question with its best page

Which page answers a query is all that is taken; grades of other pages are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from budgetvdr.errors import CompressionError
from budgetvdr.evaluate.benchmark import load_benchmark


@dataclass(frozen=True, slots=True)
class QueryPage:
    """A query and page `page_num`, from 1, of the PDF or picture at `path`."""

    query: str
    path: Path
    page_num: int


def load_pairs(source: str | Path) -> list[QueryPage]:
    """Reads a file of pairs or an evaluation folder.

    Raises CompressionError for a missing file or a line that is no pair (the message names it), BenchmarkError for a
    folder that is no evaluation set.
    """
    path = Path(source)
    if path.is_dir():
        benchmark = load_benchmark(path)
        best = ((query.text, max(query.relevant, key=lambda page: query.relevant[page])) for query in benchmark.queries)
        return [QueryPage(text, benchmark.pdfs / doc_id, page_num) for text, (doc_id, page_num) in best]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CompressionError(
            f"{path}: expected a file of pairs as JSON lines, or an evaluation folder ({error})"
        ) from error
    lines = enumerate(text.split("\n"), start=1)
    return [_pair(line, path.parent, f"{path}, line {number}") for number, line in lines if line.strip()]


def draw(pairs: Sequence[QueryPage], most: int) -> list[QueryPage]:
    """At most so many pairs, by lot, the same ones each time and in their order. Raises CompressionError below 1."""
    if most < 1:
        raise CompressionError(f"calibration takes at least one pair, found {most}")
    if len(pairs) <= most:
        return list(pairs)
    chosen = np.random.default_rng(0).choice(len(pairs), most, replace=False)
    return [pairs[place] for place in sorted(chosen.tolist())]


def _pair(line: str, folder: Path, where: str) -> QueryPage:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CompressionError(f"{where}: expected a JSON object, found {line[:60]!r} ({error})") from error
    if not isinstance(raw, dict):
        raise CompressionError(f"{where}: expected a JSON object with query, pdf and page, found {type(raw).__name__}")
    query, files = raw.get("query"), [raw[key] for key in ("pdf", "image") if key in raw]
    if not isinstance(query, str) or not query.strip():
        raise CompressionError(f"{where}: expected 'query' to be a non-empty string, found {query!r}")
    if len(files) != 1 or not isinstance(files[0], str):
        raise CompressionError(f"{where}: expected a path under 'pdf' or under 'image', found {files}")
    page = raw.get("page", 1 if "image" in raw else None)
    if not isinstance(page, int) or isinstance(page, bool) or page < 1:
        raise CompressionError(f"{where}: expected 'page' to be a whole number of at least 1, found {page!r}")
    return QueryPage(query, folder / files[0], page)
