"""Calibrating a bundle for page compression: K and the layer window of every exit, chosen on pairs without labels.

The rules are those of `budgetvdr.compress.calibrate` (AnchorFold, section 4.6 and appendix D). Here a bundle encodes
the pairs, and what was found goes into its manifest and, beside it, into `calibration.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np

from budgetvdr.bundle import MANIFEST_NAME, load_manifest
from budgetvdr.calibration_pairs import QueryPage, draw, load_pairs
from budgetvdr.compress.calibrate import STEPS, Calibration, Pair, calibrate
from budgetvdr.compress.score_ratio import maxsim
from budgetvdr.durable import replace_text
from budgetvdr.encoders import CalibratedEncoder, LayerSupport
from budgetvdr.encoders.open import open_encoder
from budgetvdr.errors import BudgetVDRError, BundleError, CompressionError, PageError, QueryError, SourceNotFoundError
from budgetvdr.pages import ReadMode
from budgetvdr.sources import FailedSource, open_documents
from budgetvdr.unit import unit_rows

REPORT_NAME: Final = "calibration.json"
MOST_PAIRS: Final = 500
_FEW_PAIRS: Final = 20


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A pair that said nothing, and why: its page or query cannot be read, or they share no similarity."""

    query: str
    page: str
    why: str


@dataclass(frozen=True, slots=True)
class BundleCalibration:
    """What was found.

    bundle, fingerprint: of the encoder. read: how pages were read. exits: one an exit, the deepest first. left_out:
    pairs that were of no use.
    """

    bundle: str
    fingerprint: str
    read: ReadMode
    exits: tuple[Calibration, ...]
    left_out: tuple[LeftOut, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "bundle": self.bundle,
            "fingerprint": self.fingerprint,
            "read": self.read,
            "exits": [found.to_dict() for found in self.exits],
            "left_out": [{"query": pair.query, "page": pair.page, "why": pair.why} for pair in self.left_out],
        }

    def lines(self) -> Iterator[str]:
        """Tables for people, an exit each: SR by K (the paper's Table 17) with gaps, then SR of every single layer."""
        for found in self.exits:
            yield f"{self.bundle}, depth {found.depth}: {found.pairs} pairs, gamma {found.gamma:g}; SR in per cent"
            yield f"{'K':>4} {'layers':>7} {'SR':>16} {'gap to the best':>18}"
            for trial in found.trials:
                window = trial.window
                mark = "  chosen" if window == found.chosen else "" if trial.eligible else "  too far"
                yield (
                    f"{window.steps:>4} {f'{window.first}-{window.last}':>7} {_with_error(trial.sr, trial.error):>16} "
                    f"{_with_error(trial.gap, trial.gap_error):>18}{mark}"
                )
            yield "SR by layer"
            yield "   K " + "".join(f"{layer:>9}" for layer in range(found.depth))
            for trial in found.trials:
                yield f"{trial.window.steps:>4} " + "".join(f"{100 * sr:>9.3f}" for sr in trial.profile)
        if min(found.pairs for found in self.exits) < _FEW_PAIRS:
            yield "few pairs: other ones may choose other layers and steps; the paper takes 500"
        for pair in self.left_out:
            yield f"left out: {pair.query[:60]!r} with {pair.page}: {pair.why}"


def calibrate_bundle(
    bundle: str | Path,
    pairs: str | Path | Sequence[QueryPage],
    *,
    most: int = MOST_PAIRS,
    read: ReadMode = "auto",
    on_pair: Callable[[], object] | None = None,
) -> BundleCalibration:
    """Chooses K and window for every exit and records them in the bundle.

    bundle: its folder, which is written to. pairs: a file or folder (`load_pairs`), or the pairs themselves; of pages
    that no evaluation uses; one that comes twice counts once. most: how many are taken, by lot; the paper takes 500.
    read: how pages are read. on_pair: called as each pair is encoded.

    Memory: of every pair its page's vectors at every exit, in float16, and of every page what each layer's tokens are
    supported by after each of max(STEPS) steps, in float32.

    Raises BundleError for a folder that is no bundle or cannot be written to, CompressionError for a bundle whose
    graphs tell nothing of their attention and where fewer than two pairs are of use.
    """
    folder = Path(bundle)
    encoder = open_encoder(folder)
    if not os.access(folder, os.W_OK):
        raise BundleError(f"{folder} cannot be written to: calibrate a copy of it, and open the index with that")
    if not isinstance(encoder, CalibratedEncoder):
        raise CompressionError(f"{encoder.manifest.name} has no support to calibrate with; export the bundle again")
    wanted = draw(list(dict.fromkeys(load_pairs(pairs) if isinstance(pairs, (str, Path)) else pairs)), most)
    found, left_out = _encoded(encoder, wanted, read, on_pair)
    exits = tuple(calibrate(found[depth]) for depth in reversed(encoder.manifest.depths))
    report = BundleCalibration(encoder.manifest.name, encoder.manifest.fingerprint, read, exits, tuple(left_out))
    _record(folder, report)
    return report


def _encoded(
    encoder: CalibratedEncoder, pairs: Sequence[QueryPage], read: ReadMode, on_pair: Callable[[], object] | None
) -> tuple[dict[int, list[Pair]], list[LeftOut]]:
    """Depth -> pairs there, and those left out. Every page is read once, every document opened once."""
    depths = encoder.manifest.depths
    found: dict[int, list[Pair]] = {depth: [] for depth in depths}
    left_out: list[LeftOut] = []
    for path, group in groupby(sorted(pairs, key=lambda pair: (str(pair.path), pair.page_num)), lambda pair: pair.path):
        of_document = list(group)
        pages = _supports(encoder, path, {pair.page_num for pair in of_document}, read)
        for pair in of_document:
            made = _pairs(encoder, pair.query, pages[pair.page_num])
            if isinstance(made, str):
                left_out.append(LeftOut(pair.query, f"{path.name}, page {pair.page_num}", made))
            else:
                for depth in depths:
                    found[depth].append(made[depth])
            if on_pair is not None:
                on_pair()
    if not found[depths[-1]]:
        reason = f"; the first was left out because {left_out[0].why}" if left_out else ""
        raise CompressionError(f"calibration needs pairs of a query and a page, found none of use{reason}")
    return found, left_out


def _pairs(encoder: CalibratedEncoder, text: str, page: LayerSupport | BudgetVDRError) -> dict[int, Pair] | str:
    """Depth -> the pair there, or why it is of no use."""
    if isinstance(page, BudgetVDRError):
        return str(page)
    made = {}
    for depth, vectors in page.vectors.items():
        if not len(vectors):
            return "there is nothing to read on the page"
        try:
            query = encoder.encode_query(text, depth)
        except QueryError as error:
            return str(error)
        if not maxsim(query.vectors, unit_rows(vectors)) > 0:
            return f"the page scores nothing at depth {depth}, so that no ratio to it says anything"
        made[depth] = Pair(query.vectors, vectors.astype(np.float16), page.support[:depth])
    return made


def _supports(
    encoder: CalibratedEncoder, path: Path, numbers: set[int], read: ReadMode
) -> dict[int, LayerSupport | BudgetVDRError]:
    """Page number -> what was found there, or why nothing was."""
    if not path.is_file():
        return dict.fromkeys(numbers, SourceNotFoundError(f"{path}: expected a PDF or picture, found no file"))
    found: dict[int, LayerSupport | BudgetVDRError] = {}
    for document in open_documents(path, read=read):
        if isinstance(document, FailedSource):
            return dict.fromkeys(numbers, document.error)
        for number, page in enumerate(document.pages(), start=1):
            if number in numbers:
                try:
                    found[number] = page if isinstance(page, PageError) else encoder.encode_support(page, max(STEPS))
                except CompressionError:
                    raise
                except BudgetVDRError as error:
                    found[number] = error
            if number >= max(numbers):
                break
        document.close()
        for number in numbers - found.keys():
            found[number] = PageError(f"{path} has {document.page_count} pages, no page {number}", page_num=number)
        return found
    return dict.fromkeys(numbers, SourceNotFoundError(f"{path}: expected a PDF or picture, found neither"))


def _record(folder: Path, report: BundleCalibration) -> None:
    """The report first: a manifest names no window without one."""
    manifest = load_manifest(folder)
    windows = {found.depth: found.chosen for found in sorted(report.exits, key=lambda found: found.depth)}
    replace_text(folder / REPORT_NAME, json.dumps(report.to_dict(), indent=2) + "\n")
    replace_text(folder / MANIFEST_NAME, replace(manifest, compression=windows).to_json())


def _with_error(value: float, error: float) -> str:
    return f"{100 * value:.3f} ± {100 * error:.3f}"
