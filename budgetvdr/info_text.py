"""What an index tells of itself, as people read it."""

from __future__ import annotations

from collections.abc import Mapping

from budgetvdr.demo import depth_text
from budgetvdr.folding import described
from budgetvdr.info import IndexInfo
from budgetvdr.recall import RecallReport


def info_rows(found: IndexInfo) -> dict[str, str]:
    """What `info` tells: name -> text, without what there is nothing to tell of."""
    of_which = {
        "vectors": found.vector_bytes,
        "pictures": found.image_bytes,
        "old versions and first stage": found.old_bytes,
    }
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in of_which.items() if size)
    rows = {
        "path": found.path,
        "version": f"{found.version}; {found.versions} can be read",
        "pages": f"{found.pages} of {found.documents} documents, {found.blank_pages} blank",
        "read by": _pairs(found.readers),
        "notes": _pairs(found.notes),
        "metadata": _pairs(found.metadata),
        "vectors": _vectors_text(found),
        "compression": "" if found.compression is None else described(found.compression),
        "signals": "kept, for recompressing" if found.signals else "",
        "depths": ", ".join(map(str, found.depths)),
        "searched by": _query_depths_text(found.query_depths),
        "dims": ", ".join(map(str, found.dims)),
        "budgets": ", ".join(f"{name} {point.depth},{point.dim}" for name, point in found.presets.items()),
        "encoder": f"{found.encoder} ({found.fingerprint})",
        "on disk": f"{size_text(found.bytes_on_disk)} in {found.fragments} data files; {parts}",
        "first stage": f"at depth {', '.join(map(str, found.first_stage))}" if found.first_stage else "none",
        "recall": "" if found.recall is None else f"{recall_text(found.recall)}, at version {found.recall.version}",
    }
    return {name: text for name, text in rows.items() if text}


def _vectors_text(found: IndexInfo) -> str:
    if found.compression is None:
        return f"{found.vectors} at each depth"
    return f"{found.vectors} at depth {found.depths[-1]}, of {found.tokens} tokens"


def _query_depths_text(query_depths: Mapping[int, tuple[int, ...]]) -> str:
    """Nothing where each depth is searched by its own alone."""
    crossed = {page: asked for page, asked in query_depths.items() if len(asked) > 1}
    return "; ".join(f"pages of {page} by queries of {', '.join(map(str, asked))}" for page, asked in crossed.items())


def recall_text(report: RecallReport) -> str:
    """A report of `Index.check_recall`, in one line."""
    proposed = "every page" if report.candidates is None else f"{report.candidates} candidates"
    return (
        f"{report.recall:.3f} of the exact {report.k} best, {report.worst:.3f} at worst, over {report.queries} queries "
        f"at {depth_text(report.depth, report.page_depth)}, dim {report.dim}, {proposed}; {report.pages} pages looked "
        f"at, {report.ms:.1f} ms"
    )


def _pairs(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counts.items())


def size_text(count: int) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"
