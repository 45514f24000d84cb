"""The main job through the public API, with the bundled encoder, real PDFs and a real LanceDB folder."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from conftest import MakePdf, pdf_bytes
from PIL import Image, ImageDraw

import budgetvdr
from budgetvdr import Budget, Index, Page, Words
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.open import open_encoder
from budgetvdr.encoders.reader import ReaderEncoder
from budgetvdr.errors import (
    BudgetError,
    IndexFormatError,
    IndexMismatchError,
    IndexStoreError,
    MetadataError,
    MissingExtraError,
    PasswordError,
    ProviderError,
    QueryError,
    ReadOnlyError,
    SourceError,
    SourceNotFoundError,
    StorageError,
    UnreadableFileError,
)
from budgetvdr.pages import EncodedQuery
from budgetvdr.similarity.maxsim import unit_prefix
from budgetvdr.store import Store

PAGES = (
    "Travel policy. Flights longer than six hours may be booked in premium economy.",
    "Parental leave. New parents receive twenty weeks of paid leave.",
    "Information security. Report a lost laptop within one hour.",
)


@pytest.fixture
def index(tmp_path: Path, encoder: Encoder) -> Iterator[Index]:
    with Index.open(tmp_path / "pages.bvdr", encoder=encoder) as opened:
        yield opened


def test_the_right_page_comes_first_at_every_point_of_the_grid(index: Index, make_pdf: MakePdf) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    for depth in index.depths:
        for dim in index.dims:
            hits = index.search("How many weeks of parental leave?", budget=Budget(depth=depth, dim=dim))
            assert hits[0].page_num == 2, (depth, dim)
            assert (hits[0].budget.depth, hits[0].budget.dim) == (depth, dim)
            assert len(hits) == 3


def test_scores_are_the_definition(index: Index, encoder: Encoder, make_pdf: MakePdf) -> None:
    """Eq. 3 and 4 in plain numpy, from the encoder's own vectors, at every point."""
    path = make_pdf("handbook.pdf", *PAGES)
    index.add_pages(path)
    pages = [Page("handbook.pdf", n, words=_words(text)) for n, text in enumerate(PAGES, start=1)]
    encoded = {page.page_num: encoder.encode_pages([page], index.depths)[0] for page in pages}
    for depth in index.depths:
        query = encoder.encode_query("lost laptop", depth).vectors
        for dim in index.dims:
            for hit in index.search("lost laptop", budget=Budget(depth=depth, dim=dim)):
                page = encoded[hit.page_num]
                assert isinstance(page, budgetvdr.pages.EncodedPage)
                similarities = unit_prefix(query, dim) @ unit_prefix(page.vectors[depth], dim).T
                assert hit.score == pytest.approx(similarities.max(axis=1).mean(), abs=2e-3)


def _words(text: str) -> Words:
    texts = tuple(text.split())
    return Words(texts, np.tile(np.array([[0.1, 0.1, 0.2, 0.2]], np.float32), (len(texts), 1)))


def test_one_query_gives_a_list_and_a_list_gives_lists(index: Index, make_pdf: MakePdf) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    flat = index.search("premium economy", k=2)
    nested = index.search(["premium economy", "lost laptop"], k=2)
    assert [hit.id for hit in nested[0]] == [hit.id for hit in flat] == ["handbook.pdf#1", flat[1].id]
    assert nested[1][0]["page_num"] == 3
    assert index.search([]) == []
    with pytest.raises(KeyError, match="no field 'page'"):
        flat[0]["page"]


def test_an_empty_index_answers_with_nothing(index: Index) -> None:
    assert index.search("anything") == []
    assert len(index) == 0
    assert index.info().pages == 0


def test_adding_again_changes_nothing_and_a_new_revision_replaces(index: Index, make_pdf: MakePdf) -> None:
    path = make_pdf("handbook.pdf", *PAGES)
    assert index.add_pages(path).files[0].status == "added"
    again = index.add_pages(path)
    assert (again.files[0].status, again.files[0].unchanged, again.pages) == ("unchanged", 3, 0)
    make_pdf("handbook.pdf", "Only one page about bicycles is left.")
    assert index.add_pages(path).files[0].status == "updated"
    assert [(hit.page_num, hit.page_count) for hit in index.search("bicycles")] == [(1, 1)]
    assert len(index) == 1


def test_another_file_of_the_same_name_is_not_taken_for_the_same_document(index: Index, make_pdf: MakePdf) -> None:
    first, second = make_pdf("a/report.pdf", PAGES[0]), make_pdf("b/report.pdf", PAGES[1])
    index.add_pages(first)
    with pytest.raises(SourceError, match=r"already stands for .*doc_id="):
        index.add_pages(second)
    assert index.search("travel")[0].source == str(first)
    index.add_pages(second, doc_id="second")
    assert {document.doc_id for document in index.documents()} == {"report.pdf", "second"}
    index.add_pages(second, if_exists="replace")
    assert len(index) == 2


def test_if_exists_skip_and_error(index: Index, make_pdf: MakePdf) -> None:
    path = make_pdf("handbook.pdf", *PAGES)
    index.add_pages(path)
    make_pdf("handbook.pdf", "changed")
    assert index.add_pages(path, if_exists="skip").files[0].status == "skipped"
    with pytest.raises(SourceError, match="in the index already"):
        index.add_pages(path, if_exists="error")
    assert len(index) == 3


def test_changed_metadata_is_stored_without_being_asked_twice(index: Index, make_pdf: MakePdf) -> None:
    path = make_pdf("handbook.pdf", *PAGES)
    index.add_pages(path, metadata={"year": 2023})
    index.add_pages(path, metadata={"year": 2024})
    assert [hit.metadata for hit in index.search("leave", k=1)] == [{"year": 2024}]


def test_filters_apply_before_ranking(index: Index, make_pdf: MakePdf) -> None:
    for year in range(2019, 2025):
        path = make_pdf(f"{year}.pdf", "Capital spending is approved by the board.")
        index.add_pages(path, metadata={"year": year, "Lang": "en" if year % 2 else "de", "day": date(year, 1, 31)})
    question = "Who approves capital spending?"

    def found(where: object) -> list[str]:
        return sorted(hit.doc_id for hit in index.search(question, where=where))  # type: ignore[arg-type]

    assert found({"year": 2020}) == ["2020.pdf"]
    assert found({"year": [2019, 2024]}) == ["2019.pdf", "2024.pdf"]
    assert found({"year": {">=": 2022, "<": 2024}}) == ["2022.pdf", "2023.pdf"]
    assert found({"Lang": "de", "year": {">": 2021}}) == ["2022.pdf", "2024.pdf"]
    assert found({"day": date(2021, 1, 31)}) == ["2021.pdf"]
    assert found({"year": []}) == []
    assert found("year = 2021 OR doc_id = '2019.pdf'") == ["2019.pdf", "2021.pdf"]
    with pytest.raises(QueryError, match="month"):
        found({"month": 1})
    with pytest.raises(QueryError):
        found("year ==== 3")


def test_metadata_of_another_type_is_refused_and_nothing_is_stored(index: Index, make_pdf: MakePdf) -> None:
    index.add_pages(make_pdf("a.pdf", PAGES[0]), metadata={"year": 2024})
    with pytest.raises(MetadataError, match="year"):
        index.add_pages(make_pdf("b.pdf", PAGES[1]), metadata={"year": "twenty"})
    assert len(index) == 1


def test_delete_by_document_and_by_filter(index: Index, make_pdf: MakePdf) -> None:
    for name in ("a.pdf", "b.pdf", "c.pdf"):
        index.add_pages(make_pdf(name, *PAGES), metadata={"name": name})
    assert index.delete(doc_id="a.pdf") == 3
    assert index.delete(where={"name": "b.pdf", "page_num": {"<=": 2}}) == 2
    assert index.delete(doc_id=["nobody", "none"]) == 0
    assert sorted({hit.id for hit in index.search("travel")}) == ["b.pdf#3", "c.pdf#1", "c.pdf#2", "c.pdf#3"]
    with pytest.raises(QueryError, match="exactly one"):
        index.delete()
    with pytest.raises(QueryError, match="at least one condition"):
        index.delete(where={})


def test_blank_pages_are_stored_and_never_found(index: Index, make_pdf: MakePdf) -> None:
    report = index.add_pages(make_pdf("gaps.pdf", "", PAGES[0], ""))
    assert "blank" in report.files[0].notes[1]
    assert (len(index), index.info().blank_pages) == (3, 2)
    assert [hit.page_num for hit in index.search("travel")] == [2]


def test_pictures_arrays_bytes_and_pages_are_sources_too(index: Index) -> None:
    picture = Image.new("RGB", (1000, 400), "white")
    ImageDraw.Draw(picture).text((60, 120), "Zebra crossing repairs", fill="black", font_size=64)
    array, made = np.asarray(picture.crop((0, 0, 1000, 300))), Page("made", 7, words=_words(PAGES[1]))
    report = index.add_pages([picture, array, pdf_bytes([PAGES[0]]), made])
    assert report.failed == []
    assert index.search("zebra", k=1)[0].notes == ("ocr",)
    assert index.search("parental leave", k=1)[0].id == "made#7"


def test_pages_stream_from_a_generator_and_are_let_go(index: Index) -> None:
    alive = most = 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def pages() -> Iterator[Page]:
        nonlocal alive, most
        for number in range(1, 101):
            words = _words(f"number {number} of many")
            weakref.finalize(words.boxes, gone)
            alive += 1
            most = max(most, alive)
            yield Page("stream", number, words=words)

    assert index.add_pages(pages(), batch_size=8).pages == 100
    # One batch is being read while one is encoded and one is written.
    assert most <= 3 * 8 + 1
    assert index.search("number 77 of many", k=1)[0].page_num == 77


def test_what_a_broken_generator_gave_is_kept(index: Index) -> None:
    def pages() -> Iterator[Page]:
        for number in range(1, 6):
            yield Page("stream", number, words=_words(f"number {number}"))
        raise RuntimeError("the feed broke")

    with pytest.raises(RuntimeError, match="the feed broke"):
        index.add_pages(pages(), batch_size=2)
    assert len(index) == 5
    assert index.add_pages(Page("after", 1, words=_words("still working"))).pages == 1


def test_a_page_with_the_same_digest_is_not_stored_again(index: Index) -> None:
    pages = [Page("made", number, words=_words(f"page {number}"), content_hash=f"v1-{number}") for number in (1, 2)]
    assert index.add_pages(pages).pages == 2
    again = [pages[0], Page("made", 2, words=_words("changed"), content_hash="v2-2")]
    report = index.add_pages(again)
    assert (report.pages, report.files[0].unchanged) == (1, 1)
    assert index.search("changed", k=1)[0].id == "made#2"


def test_a_moved_file_is_found_where_it_is(index: Index, make_pdf: MakePdf, tmp_path: Path) -> None:
    path = make_pdf("old/handbook.pdf", *PAGES)
    index.add_pages(path)
    (tmp_path / "new").mkdir()
    moved = path.rename(tmp_path / "new/handbook.pdf")
    assert index.add_pages(moved).files[0].status == "unchanged"
    hit = index.search("laptop", k=1)[0]
    assert hit.source == str(moved)
    assert hit.image(longest_side=200).size[1] == 200


def test_pages_that_waited_for_ocr_are_read_once_it_is_there(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: Encoder
) -> None:
    picture = Image.new("RGB", (1000, 400), "white")
    ImageDraw.Draw(picture).text((60, 120), "Zebra crossing repairs", fill="black", font_size=64)
    picture.save(tmp_path / "scan.png")
    without = open_encoder(None, threads=1)
    assert isinstance(without, ReaderEncoder)
    monkeypatch.setattr(without._reader, "_ocr", MissingExtraError("not here"))
    with Index.open(tmp_path / "pages.bvdr", encoder=without) as poor:
        assert "ocr_missing" in poor.add_pages(tmp_path / "scan.png").files[0].notes[1]
    assert index.add_pages(tmp_path / "scan.png").pages == 1
    assert index.search("zebra", k=1)[0].doc_id == "scan.png"
    assert index.add_pages(tmp_path / "scan.png").files[0].status == "unchanged"


def test_pages_of_one_document_can_come_in_several_calls(index: Index) -> None:
    index.add_pages(Page("deck", 1, words=_words("apples")))
    index.add_pages(Page("deck", 2, words=_words("pears")))
    index.add_pages([Page("deck", 2, words=_words("plums")), Page("deck", 3, words=_words("figs"))])
    assert [index.search(fruit, k=1)[0].page_num for fruit in ("apples", "plums", "figs")] == [1, 2, 3]
    report = index.add_pages([Page("deck", n, words=_words("kiwis")) for n in (3, 4)], if_exists="skip")
    assert (report.pages, report.files[0].unchanged, len(index)) == (1, 1, 4)


def test_one_bad_page_is_one_bad_page(index: Index) -> None:
    def broken(longest_side: int) -> Image.Image:
        raise ZeroDivisionError("a renderer of the caller's")

    words = _words("sound page")
    nowhere = Words(words.texts, np.full_like(words.boxes, np.nan))
    report = index.add_pages(
        [
            Page("doc", 1, words=words),
            Page("doc", 2, words=nowhere),
            Page("doc", 3, words=words, render=broken),
            Page("doc", 2**40, words=words),
            Page("doc", 5, words=words, label=5),  # type: ignore[arg-type]
            Page("doc", 6, words=words, metadata=None),  # type: ignore[arg-type]
            Page("doc", 7, words=words),
        ],
        store_images=True,
    )
    (file,) = report.files
    assert (file.status, file.stored) == ("partial", 2)
    assert [problem.page_num for problem in file.problems] == [2, 3, 5, 6, 2**40]
    assert [hit.page_num for hit in index.search("sound page")] == [1, 7]
    copied = pickle.loads(pickle.dumps(report))
    assert [str(problem.error) for problem in copied.files[0].problems] == [str(p.error) for p in file.problems]


def test_an_index_made_anew_under_an_open_reader(
    index: Index, make_pdf: MakePdf, encoder: Encoder, tmp_path: Path
) -> None:
    index.add_pages(make_pdf("a.pdf", *PAGES))
    with Index.open(tmp_path / "pages.bvdr", encoder=encoder, read_only=True) as reader:
        assert reader.search("laptop", k=1)[0].page_num == 3
        shutil.rmtree(tmp_path / "pages.bvdr")
        with Index.open(tmp_path / "pages.bvdr", encoder=encoder) as fresh:
            fresh.add_pages(make_pdf("b.pdf", *reversed(PAGES)))
            fresh.add_pages(make_pdf("c.pdf", "Something else."))
            expected = [(hit.id, hit.score) for hit in fresh.search("laptop")]
        assert [(hit.id, hit.score) for hit in reader.search("laptop")] == expected


def test_a_forked_process_is_told_to_open_its_own(index: Index, make_pdf: MakePdf) -> None:
    index.add_pages(make_pdf("a.pdf", *PAGES))
    index.search("laptop")
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        try:
            index.search("laptop")
        except IndexStoreError as error:
            os.write(theirs, str(error).encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours, "rb") as pipe:
        assert b"open it in each process" in pipe.read()


def test_a_closed_index_says_so(index: Index) -> None:
    index.close()
    for use in (
        lambda: index.search("x"),
        lambda: len(index),
        lambda: index.add_pages(Page("a", 1, words=_words("x"))),
    ):
        with pytest.raises(IndexStoreError, match="closed"):
            use()
    index.close()


def test_one_bad_file_does_not_stop_a_folder(index: Index, make_pdf: MakePdf, tmp_path: Path) -> None:
    make_pdf("pile/good.pdf", PAGES[0])
    (tmp_path / "pile/bad.pdf").write_bytes(b"not a pdf")
    report = index.add_pages(tmp_path / "pile")
    assert [(file.doc_id, file.status) for file in report.files] == [("bad.pdf", "failed"), ("good.pdf", "added")]
    assert isinstance(report.failed[0].error, UnreadableFileError)
    assert "bad.pdf" in str(report)


def test_hits_show_and_explain_themselves(index: Index, make_pdf: MakePdf) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    hit = index.search("lost laptop", k=1, budget="balanced")[0]
    picture, explanation = hit.image(longest_side=800), hit.explain()
    assert max(picture.size) == 800
    assert [match.token for match in explanation.matches] == ["lost", "laptop"]
    assert explanation.score == pytest.approx(hit.score, abs=1e-3)
    for match in explanation.matches:
        x0, y0, x1, y1 = match.region
        assert 0 <= x0 < x1 <= 1
        # The sentence is drawn 92 points under the top of a page of 792.
        assert 0.09 < y0 < y1 < 0.13
    marked = np.asarray(explanation.overlay(picture), np.int16)
    changed = np.abs(marked - np.asarray(picture, np.int16)).sum(axis=2) > 0
    assert 0 < changed[: round(0.2 * 800)].sum() == changed.sum()


def test_stored_pictures_outlive_their_source(index: Index, make_pdf: MakePdf) -> None:
    kept, lost = make_pdf("kept.pdf", PAGES[0]), make_pdf("lost.pdf", PAGES[1])
    index.add_pages(kept, store_images=True)
    index.add_pages(lost)
    kept.unlink(), lost.unlink()
    assert index.search("travel", k=1)[0].image().size[0] > 1000
    with pytest.raises(SourceNotFoundError, match=r"lost\.pdf"):
        index.search("parental", k=1)[0].image()


def test_read_only_reads_and_refuses_to_write(
    index: Index, make_pdf: MakePdf, encoder: Encoder, tmp_path: Path
) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    with Index.open(tmp_path / "pages.bvdr", encoder=encoder, read_only=True) as reader:
        assert reader.search("laptop", k=1)[0].page_num == 3
        for write in (lambda: reader.add_pages("x.pdf"), lambda: reader.delete(doc_id="x"), reader.optimize):
            with pytest.raises(ReadOnlyError, match="read-only"):
                write()
        index.add_pages(make_pdf("new.pdf", "Fresh news about pineapples."))
        assert reader.search("pineapples", k=1)[0].doc_id == "new.pdf"
    with pytest.raises(SourceNotFoundError, match=r"missing\.bvdr"):
        Index.open(tmp_path / "missing.bvdr", encoder=encoder, read_only=True)
    assert not (tmp_path / "missing.bvdr").exists()


def test_optimize_keeps_every_answer(index: Index, make_pdf: MakePdf) -> None:
    for number in range(6):
        index.add_pages(make_pdf(f"{number}.pdf", f"{PAGES[number % 3]} Copy {number}."))
    before = [(hit.id, hit.score) for hit in index.search("travel")]
    index.optimize()
    assert [(hit.id, hit.score) for hit in index.search("travel")] == before


class OptimizesFirst:
    """The bundled encoder, whose queries come when the version just chosen is on its way out."""

    def __init__(self, encoder: Encoder) -> None:
        self.manifest = encoder.manifest
        self.encode_pages = encoder.encode_pages
        self.remove_versions: list[Callable[[], object]] = []
        self._encoder = encoder

    def encode_query(self, text: str, depth: int) -> EncodedQuery:
        if self.remove_versions:
            self.remove_versions.pop()()
        return self._encoder.encode_query(text, depth)


def test_a_search_survives_the_removal_of_its_version(tmp_path: Path, encoder: Encoder, make_pdf: MakePdf) -> None:
    own = OptimizesFirst(encoder)
    with Index.open(tmp_path / "busy.bvdr", encoder=own) as index:
        for number in range(3):
            index.add_pages(make_pdf(f"{number}.pdf", f"{PAGES[number]} Copy {number}."))
        stale = index._store.snapshot()

        def remove() -> None:
            index.delete(doc_id="0.pdf")
            index.optimize(keep=timedelta(0))

        own.remove_versions = [remove]
        assert [hit.doc_id for hit in index.search("lost laptop", k=1)] == ["2.pdf"]
        assert own.remove_versions == []
        with pytest.raises(StorageError, match="compacted away"):
            stale.facts(stale.matching())
        # Where nothing newer is there the error shows.
        shutil.rmtree(tmp_path / "busy.bvdr" / "pages.lance" / "data")
        with pytest.raises(StorageError):
            index.search("lost laptop", budget=Budget(depth=2))


def test_optimize_refreshes_a_first_stage_of_any_size_and_reports_what_is_there_after_it(
    index: Index, make_pdf: MakePdf
) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    assert index.optimize().bytes_after == index.info().bytes_on_disk
    assert index.info().first_stage == ()
    report = index.optimize(first_stage=True, keep=timedelta(0))
    assert index.info().first_stage == index.depths
    assert report.bytes_after == index.info().bytes_on_disk
    index.add_pages(make_pdf("new.pdf", "Fresh news about pineapples."))
    assert index._store.routed_pages(index.depths[0]) == len(index) - 1
    index.optimize()
    assert index._store.routed_pages(index.depths[0]) == len(index)
    index.optimize(first_stage=False)
    assert index.info().first_stage == ()
    assert index.search("pineapples", k=1, budget=Budget(candidates=1))[0].budget.pages == 4
    for wrong in ("yes", 1, 0):
        with pytest.raises(ValueError, match="first_stage must be True, False or None"):
            index.optimize(first_stage=wrong)  # type: ignore[arg-type]
    for wrong in (15, None):
        with pytest.raises(TypeError, match="timedelta"):
            index.optimize(keep=wrong)  # type: ignore[arg-type]


def test_pages_stay_where_the_first_stage_cannot_follow(
    index: Index, make_pdf: MakePdf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    index.optimize(first_stage=True)
    monkeypatch.setattr("budgetvdr.lifecycle.MANY_NEW", 2)

    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "write_routes", fails)
        assert index.add_pages(make_pdf("a.pdf", "Fresh news", "about pineapples.")).pages == 2
    assert "the disk is full" in caplog.text
    assert index.search("pineapples", k=1, budget=Budget(candidates=1))[0].id == "a.pdf#2"
    index.add_pages(make_pdf("b.pdf", "One more."))
    assert index._store.routed_pages(index.depths[0]) == len(index) - 3, "the count began anew"
    index.add_pages(make_pdf("c.pdf", "And one more."))
    assert index._store.routed_pages(index.depths[0]) == len(index)


def test_an_index_larger_than_its_memory_limit_answers_the_same(
    index: Index, make_pdf: MakePdf, encoder: Encoder, tmp_path: Path
) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    with Index.open(tmp_path / "pages.bvdr", encoder=encoder, memory_limit=0) as small:
        for where in (None, {"page_num": [2, 3]}):
            resident, streamed = index.search("leave", where=where), small.search("leave", where=where)
            assert [hit.id for hit in streamed] == [hit.id for hit in resident]
            assert [hit.score for hit in streamed] == pytest.approx([hit.score for hit in resident], abs=1e-6)


def test_searches_run_while_pages_are_added(index: Index, make_pdf: MakePdf) -> None:
    index.add_pages(make_pdf("handbook.pdf", *PAGES))
    failures: list[BaseException] = []
    done = threading.Event()

    def search() -> None:
        try:
            while not done.is_set():
                assert index.search("lost laptop within one hour", k=1)[0].id == "handbook.pdf#3"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(8):
        index.add_pages(make_pdf(f"{number}.pdf", f"Filler page {number} about gardens."))
    index.optimize()
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("query", "k", "says"),
    [
        ("", 10, "nothing to search for"),
        ("  \n", 10, "nothing to search for"),
        ("word " * 10_000, 10, "10,?000"),
        ("fine", 0, "at least 1; found 0"),
        ("fine", -3, "found -3"),
        ("fine", 2.5, "found 2.5"),
        (7, 10, "string"),
        ([1], 10, "string"),
        (["fine", 1, "fine"], 10, "found int 1 at place 1 of the list"),
        (b"fine", 10, "found bytes"),
        (b"", 10, "found bytes"),
    ],
)
def test_wrong_queries(index: Index, make_pdf: MakePdf, query: object, k: object, says: str) -> None:
    index.add_pages(make_pdf("handbook.pdf", PAGES[0]))
    with pytest.raises(QueryError, match=says):
        index.search(query, k)  # type: ignore[call-overload]


def test_wrong_budgets(index: Index) -> None:
    with pytest.raises(BudgetError, match=r"unknown budget 'cheap'.*'full', 'balanced', 'fast'"):
        index.search("x", budget="cheap")
    with pytest.raises(BudgetError, match=r"depth 3 .*\[2, 4, 6\]"):
        index.search("x", budget=Budget(depth=3))


def test_wrong_sources(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nowhere\.pdf"):
        index.add_pages(tmp_path / "nowhere.pdf")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("hello")
    with pytest.raises(SourceNotFoundError, match="empty"):
        index.add_pages(tmp_path / "empty")
    for nothing in (b"neither", bytearray(b"neither")):
        with pytest.raises(UnreadableFileError):
            index.add_pages(nothing)
    for wrong in (None, 5, io.BytesIO(b"%PDF-")):
        with pytest.raises(SourceError, match="cannot index a"):
            index.add_pages(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="if_exists must be one of 'update'"):
        index.add_pages(tmp_path, if_exists="overwrite")  # type: ignore[arg-type]


def test_wrong_password(index: Index, tmp_path: Path) -> None:
    from reportlab.lib.pdfencrypt import StandardEncryption
    from reportlab.pdfgen.canvas import Canvas

    path = tmp_path / "locked.pdf"
    canvas = Canvas(str(path), encrypt=StandardEncryption("open sesame", canPrint=0))
    canvas.drawString(72, 700, PAGES[0])
    canvas.save()
    for password in (None, "wrong"):
        with pytest.raises(PasswordError, match=r"locked\.pdf"):
            index.add_pages(path, password=password)
    assert index.add_pages(path, password="open sesame").pages == 1
    hit = index.search("travel", k=1)[0]
    with pytest.raises(PasswordError):
        hit.image()
    assert hit.image(password="open sesame").size[1] > 1000


def test_only_some_depths_can_be_stored(tmp_path: Path, encoder: Encoder, make_pdf: MakePdf) -> None:
    path = tmp_path / "deep.bvdr"
    with Index.open(path, encoder=encoder, depths=[4]) as index:
        index.add_pages(make_pdf("handbook.pdf", *PAGES))
        assert index.search("laptop", k=1)[0].page_num == 3
        fast = index.search("laptop", k=1, budget="fast")[0].budget
        assert (fast.page_depth, fast.dim) == (4, encoder.manifest.presets["fast"].dim)
        with pytest.raises(BudgetError, match=r"depth 6 .*\[4\]"):
            index.search("laptop", budget=Budget(depth=6))
    with Index.open(path, encoder=encoder) as index:
        assert index.depths == (4,)
    with Index.open(tmp_path / "shallow.bvdr", encoder=encoder, depths=[2]) as index:
        index.add_pages(make_pdf("handbook.pdf", *PAGES))
        assert {index.search("laptop", k=1, budget=name)[0].budget.depth for name in index.presets} == {2}
    with pytest.raises(IndexMismatchError, match=r"\[4\].*\[2, 6\]"):
        Index.open(path, encoder=encoder, depths=[2, 6])
    with pytest.raises(BudgetError, match=r"\[2, 4, 6\]"):
        Index.open(tmp_path / "other.bvdr", encoder=encoder, depths=[5])


def test_execution_providers_reach_the_encoder(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="ImaginaryExecutionProvider"):
        Index.open(tmp_path / "index", providers=("ImaginaryExecutionProvider",))
    assert not (tmp_path / "index").exists()


def test_what_is_not_an_index_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/todo.txt").write_text("milk")
    (tmp_path / "file").write_text("milk")
    for name in ("notes", "file"):
        with pytest.raises(IndexFormatError, match=name):
            Index.open(tmp_path / name, encoder=encoder)
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == ["todo.txt"]
