"""Indexes that keep fewer vectors: what is stored, found and refused, with the real encoder and real tables."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import MakePdf

from budgetvdr import Budget, Index, Page, Words
from budgetvdr.bundle import Manifest, Window
from budgetvdr.compress import (
    AnchorFold,
    Clustering,
    DocPruner,
    Pooling,
    RandomSelection,
    StructuralPruning,
    WardFold,
    WardPooling,
)
from budgetvdr.compress.record import Method
from budgetvdr.encoders import Encoder
from budgetvdr.errors import (
    BudgetError,
    BudgetVDRError,
    CompressionError,
    EncodingError,
    IndexFormatError,
    IndexMismatchError,
    MissingExtraError,
    SourceNotFoundError,
)
from budgetvdr.pages import EncodedPage, EncodedQuery, TokenSignals
from budgetvdr.store import FOLDED_FORMAT_VERSION, STORE_FORMAT_VERSION, IndexSettings, PageFacts, PageRow, Store

METHODS: tuple[Method, ...] = (
    AnchorFold(gamma=0.2),
    AnchorFold(gamma=0.2, steps=1, refinements=0),
    AnchorFold(cap=7, folding=False),
    WardFold(gamma=0.2),
    WardPooling(gamma=0.2),
    Clustering(gamma=0.2),
    Pooling(gamma=0.2),
    RandomSelection(gamma=0.2),
    StructuralPruning(gamma=0.2),
    DocPruner(threshold=0.3),
)
TEXTS = (
    "Annual leave is thirty days.\nUnused days expire in March.\nAsk your manager first.",
    "",
    "Travel is booked by the office.\nTrains before planes.\nHotels up to a hundred euros a night are paid.",
)


def name_of(method: Method) -> str:
    return f"{type(method).__name__}-{getattr(method, 'gamma', None) or getattr(method, 'cap', None)}"


@pytest.fixture
def handbook(make_pdf: MakePdf) -> Path:
    return make_pdf("handbook.pdf", *TEXTS)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_pages_keep_fewer_vectors_and_are_found(
    tmp_path: Path, encoder: Encoder, handbook: Path, method: Method
) -> None:
    with (
        Index.open(tmp_path / "full", encoder=encoder) as full,
        Index.open(tmp_path / "small", encoder=encoder, compression=method) as small,
    ):
        full.add_pages(handbook)
        report = small.add_pages(handbook)
        assert not report.failed
        assert report.seconds["compress"] > 0
        info = small.info()
        assert (info.pages, info.blank_pages) == (3, 1)
        assert info.tokens == full.info().tokens == full.info().vectors
        assert info.compression is not None
        assert info.compression["method"] == type(method).__name__
        assert full.info().compression is None
        per_depth = {depth: small._store.snapshot().vector_count(depth) for depth in small.depths}
        if not isinstance(method, DocPruner) and not getattr(method, "refinements", 0):
            counts = [fact.vectors for fact in facts(full)]
            kept = [min(n, method.cap) if method.cap else math.ceil(round((method.gamma or 0) * n, 9)) for n in counts]
            assert set(per_depth.values()) == {sum(kept)}
        assert all(0 < count < info.tokens for count in per_depth.values())
        assert info.vector_bytes == sum(per_depth.values()) * 2 * small.dims[-1]
        for depth, count in per_depth.items():
            hits = small.search("How many days of leave?", budget=Budget(depth=depth, dim=128))
            assert len(hits) == 2
            assert hits[0].budget.vectors == count


def facts(index: Index) -> list[PageFacts]:
    snapshot = index._store.snapshot()
    return snapshot.facts(snapshot.matching())


def test_keeping_everything_stores_what_a_full_index_does_to_the_bit(
    tmp_path: Path, encoder: Encoder, handbook: Path
) -> None:
    with (
        Index.open(tmp_path / "full", encoder=encoder) as full,
        Index.open(tmp_path / "all", encoder=encoder, compression=AnchorFold(gamma=1.0)) as small,
    ):
        full.add_pages(handbook)
        small.add_pages(handbook)
        for depth in full.depths:
            for page in (1, 3):
                given, kept = (
                    index._store.snapshot().page_vectors(f"handbook.pdf#{page}", depth, index.dims[-1])
                    for index in (full, small)
                )
                assert given is not None and kept is not None
                np.testing.assert_array_equal(given[0], kept[0])
                fold = small._store.snapshot().fold_map(f"handbook.pdf#{page}", depth)
                np.testing.assert_array_equal(fold, np.arange(len(given[0])))
        assert full._store.snapshot().fold_map("handbook.pdf#1", 6) is None
        question = "Who pays the hotel?"
        assert [(hit.id, hit.score) for hit in full.search(question)] == [
            (hit.id, hit.score) for hit in small.search(question)
        ]


def test_the_method_is_recorded_and_another_one_refused(tmp_path: Path, encoder: Encoder, handbook: Path) -> None:
    path, method = tmp_path / "index", AnchorFold(gamma=0.25)
    with Index.open(path, encoder=encoder, compression=method) as index:
        index.add_pages(handbook)
        settings = index._store.settings
        assert settings.format_version == FOLDED_FORMAT_VERSION
        assert settings.compression == {"method": "AnchorFold", "version": AnchorFold.VERSION, **asdict(method)}
        window = encoder.manifest.compression
        assert settings.windows == {d: (window[d].first, window[d].last, window[d].steps) for d in index.depths}
        assert all(last < depth for depth, (_, last, _) in settings.windows.items())
    with Index.open(path, encoder=encoder, compression=AnchorFold(gamma=0.25)) as index:
        assert index.info().compression == settings.compression
    with Index.open(path, encoder=encoder) as index:
        added = index.add_pages(Page("more", 1, words=words("trains", "before", "planes", "whenever", "possible")))
        assert not added.failed
        assert index._store.snapshot().fold_map("more#1", 6) is not None
    for other in (AnchorFold(gamma=0.2), AnchorFold(gamma=0.25, refinements=0), WardFold(gamma=0.25)):
        with pytest.raises(IndexMismatchError, match=r"made as compression=AnchorFold\(gamma=0.25.*recompress"):
            Index.open(path, encoder=encoder, compression=other)
    with pytest.raises(IndexMismatchError, match="without signals"):
        Index.open(path, encoder=encoder, signals=True)
    with Index.open(tmp_path / "full", encoder=encoder) as full:
        assert full._store.settings.format_version == STORE_FORMAT_VERSION
    with pytest.raises(IndexMismatchError, match=r"made as a full index, one vector a token"):
        Index.open(tmp_path / "full", encoder=encoder, compression=method)


def test_what_is_no_method_and_a_bundle_without_attention_are_refused(tmp_path: Path, encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"compression is None or one of AnchorFold, .*; found 'anchorfold'"):
        Index.open(tmp_path / "index", encoder=encoder, compression="anchorfold")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without compression"):
        Index.open(tmp_path / "index", encoder=encoder, compression=WardFold(gamma=0.5), signals=True)

    class Mine(WardFold):
        """Which an index could record, and nobody read."""

    for other in (Mine(gamma=0.5), WardFold):
        with pytest.raises(ValueError, match=r"compression is None or one of AnchorFold, .*WardPooling"):
            Index.open(tmp_path / "index", encoder=encoder, compression=other)  # type: ignore[arg-type]
    uncalibrated = Uncalibrated(encoder)
    for method in (AnchorFold(gamma=0.5), StructuralPruning(gamma=0.5)):
        with pytest.raises(CompressionError, match="calibration"):
            Index.open(tmp_path / "index", encoder=uncalibrated, compression=method)
    with pytest.raises(CompressionError, match="calibration"):
        Index.open(tmp_path / "index", encoder=uncalibrated, signals=True)
    assert not (tmp_path / "index").exists()
    Index.open(tmp_path / "index", encoder=uncalibrated, compression=WardFold(gamma=0.5)).close()


@pytest.mark.parametrize("method", [WardFold(gamma=0.5), WardPooling(gamma=0.5), Clustering(gamma=0.5)], ids=name_of)
def test_a_missing_package_is_found_before_pages_are_encoded(
    tmp_path: Path, encoder: Encoder, handbook: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    with Index.open(tmp_path / "index", encoder=encoder, compression=method) as index:
        index.add_pages(handbook)
    monkeypatch.setitem(sys.modules, "sklearn" if isinstance(method, Clustering) else "scipy", None)
    for path in ("new", "index"):
        with pytest.raises(MissingExtraError, match=r'which is not installed: pip install "budgetvdr\[compress\]"'):
            Index.open(tmp_path / path, encoder=Unused(encoder), compression=method).add_pages(handbook)
    assert not (tmp_path / "new").exists()
    with pytest.raises(SourceNotFoundError):
        Index.open(tmp_path / "new", encoder=encoder, compression=method, read_only=True)
    with Index.open(tmp_path / "index", encoder=encoder, compression=method) as index:
        assert index.search("How many days of leave?")[0].page_num == 1


def test_attention_that_the_graphs_do_not_give_is_refused_at_open(tmp_path: Path, encoder: Encoder) -> None:
    silent = Silent(encoder)
    with pytest.raises(CompressionError, match="tells nothing"):
        Index.open(tmp_path / "index", encoder=silent, compression=AnchorFold(gamma=0.5))
    assert not (tmp_path / "index").exists()


def test_a_page_that_cannot_be_folded_is_reported_and_the_rest_goes_on(
    tmp_path: Path, encoder: Encoder, handbook: Path
) -> None:
    with Index.open(
        tmp_path / "index", encoder=Forgetful(encoder, "travel"), compression=AnchorFold(gamma=0.5)
    ) as index:
        report = index.add_pages(handbook)
        (file,) = report.files
        assert (file.status, file.stored, len(index)) == ("partial", 2, 2)
        (problem,) = file.problems
        assert problem.page_num == 3
        assert isinstance(problem.error, CompressionError)
        assert "centrality" in str(problem.error)


def test_an_index_of_a_method_nobody_knows_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    path = tmp_path / "index"
    with Index.open(path, encoder=encoder, compression=WardFold(gamma=0.5)) as index:
        settings = index._store.settings
    other = replace(settings, compression={"method": "Distillation", "version": 1})
    Store.open(tmp_path / "other", settings_if_new=other).close()
    with pytest.raises(IndexFormatError, match=r"Distillation.*upgrade"):
        Index.open(tmp_path / "other", encoder=encoder)


SETTINGS = IndexSettings(
    FOLDED_FORMAT_VERSION, "f" * 16, "folded", (2, 6), (4, 8), compression={"method": "WardFold", "version": 1}
)


def folded(fold: list[int], stored: int, **other: object) -> PageRow:
    rng = np.random.default_rng(len(fold))
    return PageRow(
        doc_id="a",
        page_num=1,
        regions=rng.random((len(fold), 4), np.float32),
        vectors={2: rng.random((stored, 8), np.float32), 6: rng.random((1, 8), np.float32)},
        folds={2: np.array(fold, np.int32), 6: np.zeros(len(fold), np.int32)},
        **other,  # type: ignore[arg-type]
    )


def test_fold_maps_are_stored_with_what_they_number(tmp_path: Path) -> None:
    with Store.open(tmp_path / "index", settings_if_new=SETTINGS) as store:
        row = folded([1, -1, 0, 1, 1], 2)
        blank = PageRow(
            doc_id="a",
            page_num=2,
            regions=np.zeros((0, 4), np.float32),
            vectors={depth: np.zeros((0, 8), np.float32) for depth in (2, 6)},
            folds={depth: np.zeros(0, np.int32) for depth in (2, 6)},
        )
        store.upsert([row, blank])
        snapshot = store.snapshot()
        np.testing.assert_array_equal(snapshot.fold_map("a#1", 2), [1, -1, 0, 1, 1])
        np.testing.assert_array_equal(snapshot.fold_map("a#1", 6), [0, 0, 0, 0, 0])
        np.testing.assert_array_equal(snapshot.fold_map("a#2", 6), [])
        assert snapshot.fold_map("a#3", 6) is None
        assert (snapshot.vector_count(2), snapshot.vector_count(6), snapshot.vector_count()) == (2, 1, 1)
        assert (snapshot.token_count(), snapshot.blank_count()) == (5, 1)
        stats = snapshot.stats()
        assert (stats.tokens, stats.vectors, stats.vector_bytes) == (5, 1, 3 * 8 * 2)
        (slab,) = snapshot.scan(2, 8)
        np.testing.assert_array_equal(np.concatenate(slab.slices, axis=1), row.vectors[2].astype(np.float16))
        found = snapshot.page_vectors("a#1", 2, 8)
        assert found is not None
        assert (found[0].shape, found[1].shape) == ((2, 8), (5, 4))
        with pytest.raises(BudgetError, match="depth 4"):
            snapshot.fold_map("a#1", 4)
        with pytest.raises(BudgetError, match="depth 4"):
            snapshot.vector_count(4)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (replace(folded([0, 0], 1), folds={2: np.zeros(2, np.int32)}), r"depth 6: expected a fold map \(2,\).*none"),
        (replace(folded([0, 0], 1), folds={d: np.zeros(3, np.int32) for d in (2, 6)}), r"found \(3,\)"),
        (folded([0, 2], 2), "without gaps"),
        (folded([-1, -1], 0), "at least one vector"),
        (folded([-2, 0], 1), "without gaps"),
        (folded([0, 1], 1), r"expected vectors \(2, 8\), as many as its fold map numbers, found \(1, 8\)"),
        (folded(list(range(65536)), 65536), "at most 65535 vectors of a page, found 65536; compress it further"),
    ],
)
def test_fold_maps_that_do_not_fit_their_vectors_are_refused(tmp_path: Path, row: PageRow, complaint: str) -> None:
    with Store.open(tmp_path / "index", settings_if_new=SETTINGS) as store:
        for refuse in (store.check, lambda each: store.upsert([each])):
            with pytest.raises(EncodingError, match=complaint):
                refuse(row)
        assert store.snapshot().page_count() == 0


def test_signals_are_checked(tmp_path: Path) -> None:
    settings = replace(SETTINGS, compression=None, signals=True, windows={2: (0, 1, 2), 6: (2, 3, 2)})
    rng = np.random.default_rng(0)
    row = PageRow(
        doc_id="a",
        page_num=1,
        regions=rng.random((3, 4), np.float32),
        vectors={depth: rng.random((3, 8), np.float32) for depth in (2, 6)},
        signals={depth: TokenSignals(*rng.random((3, 3)).astype(np.float16).astype(np.float32)) for depth in (2, 6)},
    )
    with Store.open(tmp_path / "index", settings_if_new=settings) as store:
        store.upsert([row])
        snapshot = store.snapshot()
        assert store.settings == settings
        (found,) = snapshot.page_rows(snapshot.matching())
        for depth in (2, 6):
            for name in ("centrality", "in_degree", "from_global"):
                np.testing.assert_array_equal(getattr(found.signals[depth], name), getattr(row.signals[depth], name))
        with pytest.raises(EncodingError, match="depth 6: expected signals of every token, found none"):
            store.upsert([replace(row, signals={2: row.signals[2]})])
        short = TokenSignals(*np.ones((3, 2), np.float32))
        with pytest.raises(EncodingError, match=r"expected three signals \(3,\)"):
            store.upsert([replace(row, signals={2: short, 6: short})])
        odd = TokenSignals(*np.full((3, 3), np.nan, np.float32))
        with pytest.raises(EncodingError, match="within float16"):
            store.check(replace(row, signals={2: odd, 6: odd}))


def words(*texts: str) -> Words:
    edges = np.linspace(0, 1, len(texts) + 1, dtype=np.float32)
    boxes = [(left, 0.1, right, 0.2) for left, right in itertools.pairwise(edges)]
    return Words(texts, np.array(boxes, np.float32))


class Wrapped:
    """An encoder that lacks something."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    @property
    def manifest(self) -> Manifest:
        return self._encoder.manifest

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        return self._encoder.encode_pages(pages, depths, attention=attention, on_page=on_page)

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        return self._encoder.encode_query(text, depth)


class Uncalibrated(Wrapped):
    @property
    def manifest(self) -> Manifest:
        return replace(self._encoder.manifest, compression={})


class Silent(Wrapped):
    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        if attention:
            raise CompressionError("this one tells nothing of its attention")
        return super().encode_pages(pages, depths, on_page=on_page)


class Unused(Wrapped):
    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        raise AssertionError("no page was to be encoded")


class Forgetful(Wrapped):
    """Loses the signals of pages that hold a word."""

    def __init__(self, encoder: Encoder, word: str) -> None:
        super().__init__(encoder)
        self._word = word

    def encode_pages(
        self,
        pages: Sequence[Page],
        depths: Sequence[int],
        *,
        attention: Mapping[int, Window] | None = None,
        on_page: Callable[[], object] | None = None,
    ) -> list[EncodedPage | BudgetVDRError]:
        found = super().encode_pages(pages, depths, attention=attention, on_page=on_page)
        return [
            replace(page, signals={}) if isinstance(page, EncodedPage) and self._word in page.text.lower() else page
            for page in found
        ]
