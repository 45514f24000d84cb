"""How far exported graphs are from the model in torch, on page pictures and queries: vectors, and what is told of
attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from budgetvdr.bundle import Parity, Window
from budgetvdr.encoders.attention import INPUTS, OUTPUTS, Ask
from budgetvdr.encoders.common import exit_name
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.encoders.vision import Preprocessor, VisionBatch
from budgetvdr.encoders.vision.encoder import page_picture
from budgetvdr.encoders.vision.slots import INPUT as SLOTS
from budgetvdr.errors import EncodingError, PageError
from budgetvdr.export.errors import ExportError
from budgetvdr.sources import FailedSource, draw_page, open_documents
from budgetvdr.training.models.model import Content, Role
from budgetvdr.training.models.vision.attention import Watch
from budgetvdr.training.models.vision.model import VisionModel

Reference = Mapping[str, npt.NDArray[np.float32]]
Samples = Mapping[Role, Sequence[Content]]

QUERIES = (
    "How many customers are there in the Alpine region?",
    "delivery",
    "Which item was damaged, who reported it, and what did the supplier offer to do about it in the end?",
    "Wie viele Tage Urlaub?",
)
STEPS = 3
"""Of propagation, in what is compared of the attention."""

# Pictures larger than this cost memory and time and show nothing more.
_LONGEST_SIDE = 560
_BATCH = 2
# Shares of attention; a page's tokens get 1e-4 and more.
_NOTHING = 1e-7


def samples(images: Path | None) -> Samples:
    """Pictures and queries to compare on.

    images: a folder of pages to use, at their own size; None for pages of the documents in the package and a crop of
    one, so that batches mix sizes. Raises ExportError where it has no page.
    """
    return {"page": _pictures(images) if images is not None else _own_pictures(), "query": QUERIES}


@dataclass(frozen=True, slots=True)
class AttentionParity:
    """How far what a page graph tells of its attention is from what the model does.

    statistic: one of `encoders.attention.OUTPUTS`. cosine: over the tokens of a page, the mean of its layers and steps,
    the lowest of all pages.
    """

    statistic: str
    cosine: float


def reference(model: VisionModel, chosen: Samples) -> dict[str, npt.NDArray[np.float32]]:
    """As the model gives them, by name: (B, L, D) of every exit, role and batch, and the attention of all layers.

    The latter, as graphs give it, is of pages whose tokens' vectors are kept. Raises ExportError where the model cannot
    be run.
    """
    found: dict[str, npt.NDArray[np.float32]] = {}
    for role, contents in chosen.items():
        for number, batch in enumerate(_batches(contents)):
            inputs = model.prepare(batch, role)
            watch = Watch(tuple(range(model.depths[-1])), STEPS) if role == "page" and SLOTS not in inputs else None
            try:
                with torch.no_grad():
                    exits, seen = model.run(inputs, watch)
            except RuntimeError as error:
                raise ExportError(f"{model.family}: the model cannot be run on a {role}: {error}") from error
            found |= {_named(role, number, depth): exits[depth].float().numpy() for depth in model.depths}
            if seen is not None:
                found |= {_told(name, number): getattr(seen, name).float().numpy() for name in OUTPUTS}
    return found


def compare(
    folder: Path,
    preprocessor: Preprocessor,
    graphs: Mapping[Role, Mapping[int, str]],
    chosen: Samples,
    exact: Reference,
    *,
    map_weights: bool,
) -> list[Parity]:
    """One row for every exit of every graph. Raises ExportError where a graph gives no numbers.

    map_weights: see `Sessions`; integers are multiplied in another way then.
    """
    rows = []
    for role, by_depth in graphs.items():
        prepared = [_prepare(preprocessor, batch, role) for batch in _batches(chosen[role])]
        for depth, graph in by_depth.items():
            exits = [exit_ for exit_ in by_depth if exit_ <= depth] if role == "page" else [depth]
            # One graph in memory at a time.
            sessions = Sessions(folder, map_weights=map_weights)
            outputs = [_run(sessions, graph, batch.arrays, [*map(exit_name, exits)]) for batch in prepared]
            for place, exit_ in enumerate(exits):
                pairs = [
                    (found[place][row][kept], exact[_named(role, number, exit_)][row][kept])
                    for number, (batch, found) in enumerate(zip(prepared, outputs, strict=True))
                    for row, kept in enumerate(batch.counts)
                ]
                rows.append(_parity(role, depth, exit_, pairs))
    return rows


def compare_attention(
    folder: Path, preprocessor: Preprocessor, graph: str, chosen: Samples, exact: Reference, *, map_weights: bool
) -> list[AttentionParity]:
    """One row a statistic of the deepest page graph; none for a graph that tells nothing of its attention."""
    sessions = Sessions(folder, map_weights=map_weights)
    if not set(INPUTS) <= sessions.inputs(graph):
        return []
    cosines: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    for number, contents in enumerate(_batches(chosen["page"])):
        batch = _prepare(preprocessor, contents, "page")
        depth = len(exact[_told(OUTPUTS[0], number)])
        ask = Ask.of({depth: Window(0, depth - 1, STEPS)}, [depth])
        told = _run(sessions, graph, {**batch.arrays, **ask.inputs(depth)}, OUTPUTS)
        for name, found in zip(OUTPUTS, told, strict=True):
            for row, kept in enumerate(batch.counts):
                one, other = (
                    each[..., row, kept].reshape(-1, kept.sum()) for each in (found, exact[_told(name, number)])
                )
                # A layer with a window may pay the picture nothing, or what rounding makes of it.
                nothing = np.maximum(np.abs(one).max(axis=1), np.abs(other).max(axis=1)) < _NOTHING
                cosines[name].append(float(np.where(nothing, 1, _cosines(one, other)).mean()))
    return [AttentionParity(name, min(each)) for name, each in cosines.items()]


def refuse_other_attention(rows: Sequence[AttentionParity], threshold: float, folder: Path) -> None:
    """Raises ExportError where a statistic is not the model's. folder: what is there so far."""
    for row in rows:
        if not row.cosine >= threshold:
            raise ExportError(
                f"what the page graphs tell of their attention is not what the model does: expected a mean cosine of "
                f"at least {threshold} for {row.statistic}, found {row.cosine:.6f}; allow this with --threshold. "
                f"{_stays(folder)}"
            )


def refuse_worse(rows: Sequence[Parity], threshold: float, folder: Path) -> None:
    """Raises ExportError where an exit's vectors point elsewhere more than the threshold allows.

    folder: what is there so far.
    """
    # Written so that NaN fails too.
    bad = [row for row in rows if not row.cosine >= threshold]
    if bad:
        worst = min(bad, key=lambda row: row.cosine)
        raise ExportError(
            f"the {worst.role} graph of depth {worst.depth} is too far from the model: expected a mean cosine of at "
            f"least {threshold} at every exit, found {worst.cosine:.6f} at exit {worst.exit}; choose a wider --dtype, "
            f"or allow this with --threshold. {_stays(folder)}"
        )


def _stays(folder: Path) -> str:
    return f"{folder} stays, and an export that differs in its --threshold alone goes on from there; else delete it"


def _parity(
    role: Role, depth: int, exit_: int, pairs: Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]
) -> Parity:
    """pairs: for each page or query (n, D) found and exact."""
    cosines = [_cosines(found, exact) for found, exact in pairs]
    return Parity(
        role=role,
        depth=depth,
        exit=exit_,
        difference=float(max(np.abs(found - exact).max() for found, exact in pairs)),
        cosine=float(min(each.mean() for each in cosines)),
        lowest=float(min(each.min() for each in cosines)),
    )


def _cosines(found: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = found.astype(np.float64), exact.astype(np.float64)
    lengths = np.linalg.norm(wide[0], axis=1) * np.linalg.norm(wide[1], axis=1)
    cosines: npt.NDArray[np.float64] = np.einsum("nd,nd->n", *wide) / np.maximum(lengths, 1e-30)
    return cosines


def _run(
    sessions: Sessions, graph: str, arrays: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]
) -> list[npt.NDArray[np.float32]]:
    inputs = sessions.taken(graph, arrays)
    try:
        return sessions.run(graph, inputs, outputs)
    except EncodingError as error:
        raise ExportError(f"{error}. The model's states do not fit this --dtype; choose a wider one") from error


def _prepare(preprocessor: Preprocessor, batch: Sequence[Content], role: Role) -> VisionBatch:
    if role == "page":
        return preprocessor.pages([content for content in batch if isinstance(content, Image.Image)])
    return preprocessor.queries([content for content in batch if isinstance(content, str)])


def _batches(contents: Sequence[Content]) -> Iterator[Sequence[Content]]:
    for start in range(0, len(contents), _BATCH):
        yield contents[start : start + _BATCH]


def _named(role: Role, batch: int, depth: int) -> str:
    return f"{role}_{batch}_{depth}"


def _told(statistic: str, batch: int) -> str:
    return f"{statistic}_{batch}"


def _own_pictures() -> list[Image.Image]:
    with as_file(files("budgetvdr") / "samples") as folder:
        pictures = [draw_page(str(path), 1, _LONGEST_SIDE) for path in sorted(folder.glob("*.pdf"))]
    width, height = pictures[0].size
    return [*pictures, pictures[0].crop((0, 0, width, height // 3))]


def _pictures(folder: Path) -> list[Image.Image]:
    found = []
    for document in open_documents(folder):
        if isinstance(document, FailedSource):
            raise ExportError(f"--images: {document.error}") from document.error
        for page in document.pages():
            if isinstance(page, PageError):
                raise ExportError(f"--images: {page}") from page
            found.append(page_picture(page))
    if not found:
        raise ExportError(f"--images: {folder} has no page to compare on")
    return found
