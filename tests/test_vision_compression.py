"""Page compression with vision-language bundles from end to end: calibrated, stored, searched, explained, made anew."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import exported
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from test_recompress import table

from budgetvdr import Budget, Index, Page
from budgetvdr.bundle import Manifest, Window, load_manifest
from budgetvdr.calibration import REPORT_NAME, BundleCalibration, calibrate_bundle
from budgetvdr.compress import AnchorFold, DocPruner, StructuralPruning, WardFold
from budgetvdr.compress.calibrate import STEPS
from budgetvdr.compress.record import Method
from budgetvdr.encoders.open import open_encoder
from budgetvdr.encoders.vision.encoder import VisionEncoder
from budgetvdr.errors import CompressionError, IndexMismatchError
from budgetvdr.pages import EncodedPage
from budgetvdr.store import PageRow
from budgetvdr.view import query_at

Array = npt.NDArray[np.float64]

SAMPLES = Path(__file__).parent / "data" / "samples_eval"
PAIRS = 6
# (width, height): of different resolutions where a family takes them as they are.
PAGES = {"tall.png": (140, 210), "wide.png": (300, 100), "square.png": (120, 120), "small.png": (60, 90)}
SMALL = AnchorFold(gamma=0.2)
QUERY = "How many customers are there?"


@dataclass(frozen=True)
class Made:
    """A calibrated bundle, its manifest before that, pictures to index, and a full index of them with signals."""

    bundle: Path
    before: Manifest
    report: BundleCalibration
    pictures: Path
    full: Path

    def index(self, path: Path, method: Method | None = None, *, signals: bool = False) -> Index:
        return Index.open(path, encoder=self.bundle, compression=method, signals=signals, threads=1)

    def encoder(self) -> VisionEncoder:
        encoder = open_encoder(self.bundle, threads=1)
        assert isinstance(encoder, VisionEncoder)
        return encoder


@pytest.fixture(scope="module", params=["paligemma", "qwen2_5_vl"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    bundle = exported.copy_of(request.param, folder)
    before = load_manifest(bundle)
    report = calibrate_bundle(bundle, SAMPLES, most=PAIRS)
    (folder / "pictures").mkdir()
    random = np.random.default_rng(0)
    for name, (width, height) in PAGES.items():
        # No two patches are alike, so that nothing is a matter of ties.
        noise = random.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(folder / "pictures" / name)
    made = Made(bundle, before, report, folder / "pictures", folder / "full")
    with made.index(made.full, signals=True) as index:
        assert index.add_pages(made.pictures).pages == len(PAGES)
    return made


@pytest.fixture(scope="module")
def small(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index compressed when its pages were added."""
    path = tmp_path_factory.mktemp("small") / "index"
    with made.index(path, SMALL) as index:
        assert index.add_pages(made.pictures).pages == len(PAGES)
    return path


def rows_of(made: Made) -> dict[str, PageRow]:
    """Page id -> everything of it, with all its vectors and signals."""
    with made.index(made.full) as index:
        snapshot = index._store.snapshot()
        return {row.id: row for row in snapshot.page_rows(snapshot.matching())}


def stored(index: Index, page_id: str, depth: int, dim: int = exported.DIM) -> tuple[Array, npt.NDArray[np.int32]]:
    """The vectors of a page and where its tokens went."""
    snapshot = index._store.snapshot()
    found, groups = snapshot.page_vectors(page_id, depth, dim), snapshot.fold_map(page_id, depth)
    assert found is not None and groups is not None
    return found[0].astype(np.float64), groups


def units(vectors: npt.NDArray[np.floating]) -> Array:
    exact = vectors.astype(np.float64)
    scaled: Array = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    return scaled


def test_every_exit_gets_a_window_within_the_layers_it_executes(made: Made) -> None:
    after = load_manifest(made.bundle)
    assert made.before.compression == {} and after.fingerprint == made.before.fingerprint
    assert [found.depth for found in made.report.exits] == sorted(exported.DEPTHS, reverse=True)
    for found in made.report.exits:
        assert 0 < found.pairs == PAIRS - len(made.report.left_out)
        window = after.compression[found.depth]
        assert window == found.chosen and window.steps in STEPS
        assert 0 <= window.first <= window.last < found.depth
        assert all(0 < trial.sr <= 1 + 1e-6 and len(trial.profile) == found.depth for trial in found.trials)
    assert json.loads((made.bundle / REPORT_NAME).read_text()) == json.loads(json.dumps(made.report.to_dict()))


def test_an_index_that_needs_windows_is_refused_before_calibration(made: Made, tmp_path: Path) -> None:
    with pytest.raises(CompressionError, match=r"needs the window of layers that calibration finds"):
        Index.open(tmp_path / "index", encoder=exported.bundle(made.before.family), compression=SMALL)


def test_pages_keep_their_share_of_vectors(made: Made, small: Path) -> None:
    counts = {page_id: len(row.regions) for page_id, row in rows_of(made).items()}
    assert (len(set(counts.values())) == 1) == (made.before.family == "paligemma")
    with made.index(small) as index:
        for page_id, count in counts.items():
            for depth in exported.DEPTHS:
                vectors, groups = stored(index, page_id, depth)
                assert 1 < len(vectors) <= math.ceil(0.2 * count)
                assert len(groups) == count and set(groups.tolist()) == set(range(len(vectors)))


def test_scores_are_those_of_the_stored_vectors_at_every_depth_and_width(made: Made, small: Path) -> None:
    encoder = made.encoder()
    with made.index(small) as index:
        for depth in index.depths:
            for dim in index.dims:
                hits = index.search(QUERY, budget=Budget(depth=depth, dim=dim))
                pages = {hit.id: stored(index, hit.id, depth, dim)[0] for hit in hits}
                assert len(hits) == len(pages) == len(PAGES)
                assert hits[0].budget.vectors == sum(map(len, pages.values()))
                query = query_at(encoder, QUERY, depth, dim).vectors.astype(np.float64)
                expected = {page: (query @ units(found).T).max(axis=1).mean() for page, found in pages.items()}
                assert [hit.id for hit in hits] == sorted(expected, key=lambda page: -expected[page])
                assert [hit.score for hit in hits] == pytest.approx([expected[hit.id] for hit in hits], abs=1e-3)


def test_a_stored_vector_stands_for_several_parts_of_the_page(made: Made, small: Path) -> None:
    with made.index(small) as index:
        for depth in index.depths:
            hit = index.search(QUERY, k=1, budget=Budget(depth=depth))[0]
            found = hit.explain()
            groups = stored(index, hit.id, depth)[1]
            assert found.score == pytest.approx(hit.score, abs=1e-3)
            patches = set()
            for match in found.matches:
                assert match.regions == tuple(map(tuple, found.regions[groups == match.vector].tolist()))
                for x0, y0, x1, y1 in match.regions:
                    assert 0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1
                patches.add(sum(region != (0, 0, 1, 1) for region in match.regions))
            assert max(patches) > 1
            assert found.overlay(hit.image()).size == hit.image().size


def test_reopening_with_another_compression_is_refused(made: Made, small: Path) -> None:
    for other in (AnchorFold(gamma=0.3), AnchorFold(gamma=0.2, refinements=0), WardFold(gamma=0.2)):
        with pytest.raises(IndexMismatchError, match=r"was made as compression=AnchorFold\(gamma=0.2"):
            made.index(small, other)
    made.index(small, SMALL).close()


def test_compressing_later_stores_the_same_bits(made: Made, small: Path, tmp_path: Path) -> None:
    with made.index(made.full) as index:
        index.recompress(tmp_path / "later", SMALL)
    later, expected = table(tmp_path / "later"), table(small)
    assert later.select(expected.schema.names).equals(expected)


def test_signals_are_literally_those_of_every_layers_support(made: Made) -> None:
    encoder, rows = made.encoder(), rows_of(made)
    calibrated, both = load_manifest(made.bundle).compression, Window(0, 1, 3)
    for name in PAGES:
        page = Page(doc_id=name, page_num=1, image=Image.open(made.pictures / name))
        found = encoder.encode_support(page, max(STEPS))
        (encoded,) = encoder.encode_pages([page], (2,), attention={2: both})
        assert isinstance(encoded, EncodedPage)
        row = rows[page.id]
        for window, signals in (
            *((calibrated[depth], row.signals[depth]) for depth in exported.DEPTHS),
            (both, encoded.signals[2]),
        ):
            layers = [found.support[layer, window.steps - 1] for layer in range(window.first, window.last + 1)]
            shares = [layer.astype(np.float64) / layer.sum(dtype=np.float64) for layer in layers]
            # In units of the mean share, at float16 precision.
            np.testing.assert_allclose(signals.centrality, len(layers[0]) * sum(shares) / len(shares), rtol=2e-3)
        for depth, vectors in found.vectors.items():
            np.testing.assert_allclose(row.vectors[depth], vectors, rtol=2e-3, atol=1e-4)


def literal_fold(vectors: Array, centrality: Array, kept: int) -> tuple[Array, list[int]]:
    """The paper's section 3.3 and 3.4, a token at a time."""
    count, directions = len(vectors), units(vectors)
    anchors = sorted(sorted(range(count), key=lambda token: (-centrality[token], token))[:kept])
    groups = [
        anchors.index(token)
        if token in anchors
        else max(range(kept), key=lambda anchor: (directions[token] @ directions[anchors[anchor]], -anchor))
        for token in range(count)
    ]
    folded = np.zeros((kept, vectors.shape[1]))
    for group in range(kept):
        members = [token for token in range(count) if groups[token] == group]
        # Tokens of the prompt have no centrality; on a small page some are anchors all the same, and count alike.
        weights = centrality[members] if centrality[members].any() else np.ones(len(members))
        for token, weight in zip(members, weights, strict=True):
            folded[group] += weight / weights.sum() * vectors[token]
    return folded, groups


def test_the_published_method_is_literally_the_formulas(made: Made, tmp_path: Path) -> None:
    with made.index(made.full) as index:
        index.recompress(tmp_path / "paper", AnchorFold(gamma=0.2, refinements=0))
    with made.index(tmp_path / "paper") as paper:
        for page_id, row in rows_of(made).items():
            for depth in exported.DEPTHS:
                kept = math.ceil(0.2 * len(row.regions))
                full, scores = (part.astype(np.float64) for part in (row.vectors[depth], row.signals[depth].centrality))
                expected, groups = literal_fold(full, scores, kept)
                vectors, found = stored(paper, page_id, depth)
                assert found.tolist() == groups
                np.testing.assert_allclose(vectors, expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    "method",
    [StructuralPruning(gamma=0.2), DocPruner(threshold=0.0), WardFold(gamma=0.2)],
    ids=lambda method: type(method).__name__,
)
def test_other_methods_keep_what_they_say(made: Made, tmp_path: Path, method: Method) -> None:
    if isinstance(method, WardFold):
        pytest.importorskip("scipy", reason="the extra compress is not installed")
    with made.index(made.full) as index:
        report = index.recompress(tmp_path / "made", method)
    assert report.pages == len(PAGES)
    with made.index(tmp_path / "made", method) as smaller:
        for page_id, row in rows_of(made).items():
            share = math.ceil(0.2 * len(row.regions))
            for depth, full in row.vectors.items():
                vectors, groups = stored(smaller, page_id, depth)
                signals = row.signals[depth]
                if isinstance(method, WardFold):
                    assert len(vectors) <= share
                    means = [full[groups == group].mean(axis=0) for group in range(len(vectors))]
                    np.testing.assert_allclose(vectors, means, rtol=2e-3, atol=1e-4)
                    continue
                if isinstance(method, StructuralPruning):
                    kept = np.sort(np.argsort(-signals.in_degree, kind="stable")[:share])
                else:
                    kept = np.flatnonzero(signals.from_global > signals.from_global.mean(dtype=np.float64))
                    assert 0 < len(kept) < len(full)
                assert np.flatnonzero(groups >= 0).tolist() == kept.tolist()
                np.testing.assert_array_equal(vectors, full[kept])
        hits = smaller.search(QUERY)
        assert len(hits) == len(PAGES)
        assert all(match.regions for match in hits[0].explain().matches)
