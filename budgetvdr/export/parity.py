"""How far the vectors of exported graphs are from those of the model in torch, on page pictures and queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from budgetvdr.bundle import Parity
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.encoders.vision import Preprocessor, VisionBatch
from budgetvdr.encoders.vision.encoder import exit_name, page_picture
from budgetvdr.errors import EncodingError, PageError
from budgetvdr.export.errors import ExportError
from budgetvdr.sources import FailedSource, draw_page, open_documents
from budgetvdr.training.models.model import Content, Role
from budgetvdr.training.models.vision.model import VisionModel

Reference = Mapping[str, npt.NDArray[np.float32]]
Samples = Mapping[Role, Sequence[Content]]

QUERIES = (
    "How many customers are there in the Alpine region?",
    "delivery",
    "Which item was damaged, who reported it, and what did the supplier offer to do about it in the end?",
    "Wie viele Tage Urlaub?",
)
# Pictures larger than this cost memory and time and show nothing more.
_LONGEST_SIDE = 560
_BATCH = 2


def samples(images: Path | None) -> Samples:
    """Pictures and queries to compare on.

    images: a folder of pages to use, at their own size; None for pages of the documents in the package and a crop of
    one, so that batches mix sizes. Raises ExportError where it has no page.
    """
    return {"page": _pictures(images) if images is not None else _own_pictures(), "query": QUERIES}


def reference(model: VisionModel, chosen: Samples) -> dict[str, npt.NDArray[np.float32]]:
    """(B, L, D) of every exit, role and batch, by name; as the model gives them."""
    found: dict[str, npt.NDArray[np.float32]] = {}
    for role, contents in chosen.items():
        for number, batch in enumerate(_batches(contents)):
            with torch.no_grad():
                exits, _ = model.run(model.prepare(batch, role))
            found |= {_named(role, number, depth): exits[depth].float().numpy() for depth in model.depths}
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
            outputs = [_run(sessions, graph, batch, exits) for batch in prepared]
            for place, exit_ in enumerate(exits):
                pairs = [
                    (found[place][row][kept], exact[_named(role, number, exit_)][row][kept])
                    for number, (batch, found) in enumerate(zip(prepared, outputs, strict=True))
                    for row, kept in enumerate(batch.counts)
                ]
                rows.append(_parity(role, depth, exit_, pairs))
    return rows


def refuse_worse(rows: Sequence[Parity], threshold: float) -> None:
    """Raises ExportError where an exit's vectors point elsewhere more than the threshold allows."""
    # Written so that NaN fails too.
    bad = [row for row in rows if not row.cosine >= threshold]
    if bad:
        worst = min(bad, key=lambda row: row.cosine)
        raise ExportError(
            f"the {worst.role} graph of depth {worst.depth} is too far from the model: expected a mean cosine of at "
            f"least {threshold} at every exit, found {worst.cosine:.6f} at exit {worst.exit}; choose a wider --dtype, "
            "or allow this with --threshold"
        )


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


def _run(sessions: Sessions, graph: str, batch: VisionBatch, exits: Sequence[int]) -> list[npt.NDArray[np.float32]]:
    taken = sessions.inputs(graph)
    inputs = {name: array for name, array in batch.arrays.items() if name in taken}
    try:
        return sessions.run(graph, inputs, [exit_name(exit_) for exit_ in exits])
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
