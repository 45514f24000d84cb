"""Smaller indexes made of full ones: what adding with the same compression would have stored, and nothing lost."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from conftest import MakePdf, pdf_bytes
from test_compression_index import Wrapped

import budgetvdr.recompress
from budgetvdr import Index
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
from budgetvdr.errors import CompressionError, IndexMismatchError, MissingExtraError, StorageError
from budgetvdr.pages import MetadataValue, Page, Words
from budgetvdr.store import PageRow, Store

FROM_VECTORS: tuple[Method, ...] = (
    WardFold(gamma=0.2),
    WardPooling(gamma=0.3),
    Clustering(gamma=0.2),
    Pooling(cap=5),
    RandomSelection(gamma=0.5),
    AnchorFold(gamma=0.3, anchors="random", weights="uniform"),
)
FROM_ATTENTION: tuple[Method, ...] = (
    AnchorFold(gamma=0.2),
    AnchorFold(gamma=0.3, refinements=0),
    AnchorFold(gamma=0.3, anchors="random"),
    AnchorFold(gamma=0.3, folding=False),
    AnchorFold(gamma=0.3, weights="uniform"),
    StructuralPruning(gamma=0.2),
    DocPruner(threshold=0.0),
)
BOXES = np.array([[0, 0, 0.5, 0.1], [0.5, 0, 1, 0.1]], np.float32)
TEXTS = (
    "Annual leave is thirty days.\nUnused days expire in March.\nAsk your manager first, then the personnel office.",
    "",
    "Travel is booked by the office.\nTrains before planes.\nHotels up to a hundred euros a night are paid.",
    " ".join(f"Item {number} costs {number * 7} euros." for number in range(60)),
)


def fill(index: Index, handbook: Path, other: Path) -> None:
    metadata: dict[str, MetadataValue] = {
        "year": 2024,
        "share": 0.5,
        "open": True,
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 3, tzinfo=UTC),
    }
    index.add_pages(handbook, metadata=metadata, store_images=True)
    index.add_pages(other, metadata={"year": 2023})


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("documents")
    for name, pages in (("handbook.pdf", TEXTS), ("other.pdf", TEXTS[2:])):
        (folder / name).write_bytes(pdf_bytes(pages))
    return folder / "handbook.pdf", folder / "other.pdf"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder, documents: tuple[Path, Path]) -> Path:
    """An index with signals."""
    path = tmp_path_factory.mktemp("full") / "index"
    with Index.open(path, encoder=encoder, signals=True) as index:
        fill(index, *documents)
    return path


def table(path: Path) -> pa.Table:
    """Everything that is stored, but for the lot drawn whenever a page is stored."""
    return lancedb.connect(path).open_table("pages").to_arrow().sort_by("id").drop_columns(["_stamp"])


@pytest.mark.parametrize("method", [*FROM_VECTORS, *FROM_ATTENTION], ids=str)
def test_it_stores_what_adding_would_have_to_the_bit(
    tmp_path: Path, encoder: Encoder, documents: tuple[Path, Path], full: Path, method: Method
) -> None:
    with Index.open(tmp_path / "added", encoder=encoder, compression=method) as added:
        fill(added, *documents)
    with Index.open(full, encoder=encoder, read_only=True) as index:
        report = index.recompress(tmp_path / "made", method)
        assert (report.pages, report.unchanged) == (6, 0)
        assert report.vectors_before == 3 * index.info().vectors
    made, expected = table(tmp_path / "made"), table(tmp_path / "added")
    assert made.select(expected.schema.names).equals(expected)
    assert set(made.schema.names) == set(expected.schema.names)
    with Index.open(tmp_path / "made", encoder=encoder, compression=method) as smaller:
        info = smaller.info()
        assert report.vectors_after * 2 * smaller.dims[-1] == info.vector_bytes
        assert smaller._store.settings == Store.open(tmp_path / "added")._snapshot.settings
        again = smaller.add_pages(documents[1], metadata={"year": 2023})
        assert [file.status for file in again.files] == ["unchanged"]
        (hit,) = smaller.search("hotels", where={"year": 2024, "day": date(2024, 2, 29)}, k=1)
        assert hit.metadata["at"] == datetime(2024, 2, 3, tzinfo=UTC)
        assert hit.image(longest_side=100).size


@pytest.mark.parametrize("method", FROM_VECTORS, ids=str)
def test_methods_that_look_at_vectors_alone_need_no_signals(
    tmp_path: Path, encoder: Encoder, documents: tuple[Path, Path], full: Path, method: Method
) -> None:
    with Index.open(tmp_path / "plain", encoder=encoder) as index:
        fill(index, *documents)
        index.recompress(tmp_path / "made", method)
    with Index.open(full, encoder=encoder) as index:
        index.recompress(tmp_path / "expected", method)
    assert table(tmp_path / "made").equals(table(tmp_path / "expected"))


def test_methods_that_look_at_attention_need_the_signals_they_ask_for(
    tmp_path: Path, encoder: Encoder, documents: tuple[Path, Path], full: Path
) -> None:
    with Index.open(tmp_path / "plain", encoder=encoder) as index:
        index.add_pages(documents[1])
        for method in FROM_ATTENTION:
            with pytest.raises(CompressionError, match=r"needs signals of the attention.*signals=True"):
                index.recompress(tmp_path / "made", method)
    with Index.open(full, encoder=encoder) as index:
        with pytest.raises(CompressionError, match=r"AnchorFold\(gamma=0.2, steps=9.* in 9 steps at depth 2"):
            index.recompress(tmp_path / "made", AnchorFold(gamma=0.2, steps=9))
        for other in (0.2, None, WardFold):
            with pytest.raises(ValueError, match=r"recompress takes one of AnchorFold, .*WardFold\(gamma=0.2\); found"):
                index.recompress(tmp_path / "made", other)  # type: ignore[arg-type]
    assert not (tmp_path / "made").exists()


def test_a_smaller_index_cannot_be_the_start(tmp_path: Path, encoder: Encoder, full: Path) -> None:
    with Index.open(full, encoder=encoder) as index:
        index.recompress(tmp_path / "made", WardFold(gamma=0.5))
    with (
        Index.open(tmp_path / "made", encoder=encoder) as smaller,
        pytest.raises(CompressionError, match=r"starts from a full index.*found one made with.*WardFold\(gamma=0.5\)"),
    ):
        smaller.recompress(tmp_path / "smaller still", WardFold(gamma=0.2))


def test_an_interrupted_run_is_completed_by_the_next(
    tmp_path: Path, encoder: Encoder, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = WardFold(gamma=0.2)
    monkeypatch.setattr(budgetvdr.recompress, "_BATCH_PAGES", 2)
    upsert, calls = Store.upsert, []

    def full_disk(store: Store, rows: Sequence[PageRow]) -> None:
        calls.append(len(rows))
        if len(calls) == 2:
            raise StorageError("the disk is full")
        upsert(store, rows)

    with Index.open(full, encoder=encoder) as index:
        monkeypatch.setattr(Store, "upsert", full_disk)
        with pytest.raises(StorageError, match="full"):
            index.recompress(tmp_path / "made", method)
        monkeypatch.setattr(Store, "upsert", upsert)
        assert len(table(tmp_path / "made")) == 2
        report = index.recompress(tmp_path / "made", method)
        assert (report.pages, report.unchanged) == (4, 2)
        index.recompress(tmp_path / "expected", method)
        report = index.recompress(tmp_path / "made", method)
        assert (report.pages, report.unchanged, report.vectors_after) == (0, 6, 0)
    assert table(tmp_path / "made").equals(table(tmp_path / "expected"))


def test_pages_that_changed_in_the_full_index_are_written_anew(
    tmp_path: Path, encoder: Encoder, make_pdf: MakePdf
) -> None:
    method = Pooling(gamma=0.5)
    with Index.open(tmp_path / "index", encoder=encoder) as index:
        index.add_pages(make_pdf("a.pdf", "Trains before planes.", "Hotels are paid."))
        index.recompress(tmp_path / "made", method)
        index.add_pages(make_pdf("a.pdf", "Planes before trains.", "Hotels are paid."), if_exists="replace")
        report = index.recompress(tmp_path / "made", method)
        assert (report.pages, report.unchanged) == (2, 0)
        with Index.open(tmp_path / "made", encoder=encoder) as made:
            assert made.search("planes")[0].text.startswith("Planes before")
        index.delete(where="page_num = 2")
        says = r"holds 1 of its 2 pages that this index does not: a\.pdf#2; choose another path, or delete"
        with pytest.raises(IndexMismatchError, match=says):
            index.recompress(tmp_path / "made", method)


def test_pages_stored_anew_under_the_revision_they_had_are_written_anew(
    tmp_path: Path, encoder: Encoder, make_pdf: MakePdf
) -> None:
    """As when OCR was installed in the meantime, or a caller's own digest stayed, or a file was moved."""
    method, paths = Pooling(gamma=0.5), (tmp_path / "made", tmp_path / "anew")
    words = (Words(("Trains", "first"), BOXES), Words(("Planes", "first"), BOXES))
    before, after = (Page("own", 1, words=each, read="text_layer", content_hash="same") for each in words)
    with Index.open(tmp_path / "index", encoder=encoder) as index:
        path = make_pdf("a.pdf", "Hotels are paid.")
        index.add_pages(path)
        index.add_pages(before)
        index.recompress(paths[0], method)
        assert index.recompress(paths[0], method).pages == 0
        index.add_pages(after, if_exists="replace")
        (tmp_path / "elsewhere").mkdir()
        moved = path.rename(tmp_path / "elsewhere" / "a.pdf")
        assert index.add_pages(moved).files[0].status == "unchanged"
        assert index.recompress(paths[0], method).pages == 2
        assert index.recompress(paths[0], method).pages == 0
        index.recompress(paths[1], method)
    assert table(paths[0]).equals(table(paths[1]))
    with Index.open(paths[0], encoder=encoder) as made:
        assert made.search("planes")[0].text == "Planes first"
        assert made.search("hotels")[0].source == str(moved)


def test_what_is_at_the_path_must_have_been_made_alike(tmp_path: Path, encoder: Encoder, full: Path) -> None:
    with Index.open(full, encoder=encoder) as index:
        index.recompress(tmp_path / "made", WardFold(gamma=0.5))
        for path, method, found in (
            (tmp_path / "made", WardFold(gamma=0.2), r"compression=WardFold\(gamma=0.5\)"),
            (full, WardFold(gamma=0.2), "a full index, one vector a token"),
        ):
            says = rf"ask: expected compression=WardFold\(gamma=0.2\), found {found}; choose another path$"
            with pytest.raises(IndexMismatchError, match=says):
                index.recompress(path, method)
    with Index.open(tmp_path / "shallow", encoder=encoder, depths=[2]) as index:
        says = r"ask: expected depths \(2,\), found \(2, 4, 6\); choose another path$"
        with pytest.raises(IndexMismatchError, match=says):
            index.recompress(tmp_path / "made", WardFold(gamma=0.5))
    Index.open(tmp_path / "plain", encoder=encoder).close()
    with Index.open(full, encoder=encoder) as index, pytest.raises(IndexMismatchError, match="another path"):
        index.recompress(tmp_path / "plain", WardFold(gamma=0.5))


def test_signals_are_those_of_the_encoder(
    tmp_path: Path, encoder: Encoder, documents: tuple[Path, Path], full: Path
) -> None:
    windows = encoder.manifest.compression
    with Index.open(full, encoder=encoder) as index:
        info = index.info()
        assert (info.signals, info.compression, info.tokens) == (True, None, info.vectors)
        settings = index._store.settings
        assert settings.windows == {depth: (w.first, w.last, w.steps) for depth, w in windows.items()}
        snapshot = index._store.snapshot()
        (row,) = snapshot.page_rows(snapshot.matching("id = 'other.pdf#1'"))
    for depth in windows:
        assert row.signals[depth].centrality.mean() == pytest.approx(1, abs=1e-2)
        assert (row.signals[depth].in_degree > 0).any()
        assert (row.signals[depth].from_global > 0).any()
    plain = replace(settings, signals=False, windows={}, format_version=2)
    assert plain.token_bytes == 8
    assert settings.token_bytes == 8 + 6 * len(settings.depths)


def test_calibrating_the_bundle_anew_strands_no_index(tmp_path: Path, encoder: Encoder, full: Path) -> None:
    with Index.open(full, encoder=encoder) as index:
        index.recompress(tmp_path / "expected", AnchorFold(gamma=0.2))
    other = {depth: Window(0, 0, 9) for depth in encoder.manifest.depths}
    for number, calibration in enumerate((other, {})):
        with Index.open(full, encoder=Recalibrated(encoder, calibration)) as index:
            index.recompress(tmp_path / str(number), AnchorFold(gamma=0.2))
            index.recompress(tmp_path / f"{number} too", StructuralPruning(gamma=0.2))
        assert table(tmp_path / str(number)).equals(table(tmp_path / "expected"))


class Recalibrated(Wrapped):
    def __init__(self, encoder: Encoder, windows: Mapping[int, Window]) -> None:
        super().__init__(encoder)
        self._windows = windows

    @property
    def manifest(self) -> Manifest:
        return replace(self._encoder.manifest, compression=dict(self._windows))


@pytest.mark.parametrize("method", [WardFold(gamma=0.5), Clustering(gamma=0.5)], ids=str)
def test_a_missing_package_is_found_before_anything_is_made(
    tmp_path: Path, encoder: Encoder, full: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn" if isinstance(method, Clustering) else "scipy", None)
    with (
        Index.open(full, encoder=encoder) as index,
        pytest.raises(MissingExtraError, match=r"budgetvdr\[compress\]"),
    ):
        index.recompress(tmp_path / "made", method)
    assert not (tmp_path / "made").exists()


def test_an_index_compacted_meanwhile_is_to_be_recompressed_again(
    tmp_path: Path, encoder: Encoder, documents: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgetvdr.recompress, "_BATCH_PAGES", 1)
    upsert, calls = Store.upsert, []

    with Index.open(tmp_path / "index", encoder=encoder) as index, Index.open(tmp_path / "index") as other:
        fill(index, *documents)

        def compacting(store: Store, rows: Sequence[PageRow]) -> None:
            upsert(store, rows)
            if not calls:
                calls.append(len(rows))
                other.delete(where="doc_id = 'other.pdf' and page_num = 2")
                other.optimize(keep=timedelta(0))

        monkeypatch.setattr(Store, "upsert", compacting)
        with pytest.raises(StorageError, match=r"was compacted while recompress read it; run recompress again"):
            index.recompress(tmp_path / "made", Pooling(gamma=0.5))
        report = index.recompress(tmp_path / "made", Pooling(gamma=0.5))
        assert report.unchanged > 0
        assert report.pages + report.unchanged == len(index) == 5
