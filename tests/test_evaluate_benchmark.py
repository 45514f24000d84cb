"""The evaluation layout: what is read, and what each malformed file is told."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from budgetvdr.errors import BenchmarkError
from budgetvdr.evaluate import load_benchmark

HEADER = "query\tdoc\tpage_num\trelevance"


def write_set(
    root: Path,
    *,
    documents: Sequence[str] = ("a.pdf", "b c.pdf"),
    queries: Sequence[Mapping[str, object] | str] = ({"id": "q1", "text": "Who?"},),
    qrels: Sequence[str] = (HEADER, "q1\ta.pdf\t3\t2"),
) -> Path:
    (root / "pdfs").mkdir(parents=True)
    for name in documents:
        (root / "pdfs" / name).write_bytes(b"%PDF-1.4")
    lines = [query if isinstance(query, str) else json.dumps(query) for query in queries]
    (root / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "qrels.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    return root


def test_reads_questions_scopes_and_grades(tmp_path: Path) -> None:
    root = write_set(
        tmp_path / "tiny",
        queries=[{"id": "q1", "text": "Who?"}, {"id": "q2", "text": "Where?", "doc": "b c.pdf"}],
        qrels=[HEADER, "q2\tb c.pdf\t1\t1", "q1\ta.pdf\t3\t2", "q2\tb c.pdf\t2\t2"],
    )
    benchmark = load_benchmark(root)
    assert benchmark.name == "tiny"
    assert benchmark.documents == ("a.pdf", "b c.pdf")
    first, second = benchmark.queries
    assert (first.id, first.text, first.doc, first.relevant) == ("q1", "Who?", None, {("a.pdf", 3): 2})
    assert (second.doc, second.relevant) == ("b c.pdf", {("b c.pdf", 1): 1, ("b c.pdf", 2): 2})
    assert benchmark.unanswered == ()


def test_documents_may_be_named_without_extension_and_in_another_normalisation(tmp_path: Path) -> None:
    stored = unicodedata.normalize("NFD", "Übersicht 2031.pdf")
    asked = unicodedata.normalize("NFC", "Übersicht 2031")
    root = write_set(
        tmp_path,
        documents=[stored],
        queries=[{"id": "q1", "text": "Who?", "doc": asked}],
        qrels=[HEADER, f"q1\t{asked}\t3\t2"],
    )
    (query,) = load_benchmark(root).queries
    assert query.doc == stored
    assert query.relevant == {(stored, 3): 2}


def test_a_name_that_fits_two_documents_is_refused(tmp_path: Path) -> None:
    root = write_set(tmp_path, documents=["a.pdf", "a.png"], qrels=[HEADER, "q1\ta\t3\t2"])
    with pytest.raises(BenchmarkError, match=r"qrels.tsv, line 2: document 'a' may be any of a.pdf, a.png"):
        load_benchmark(root)


def test_reads_windows_files(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    for name in ("queries.jsonl", "qrels.tsv"):
        text = (root / name).read_text(encoding="utf-8")
        (root / name).write_bytes(("\ufeff" + text.replace("\n", "\r\n") + "\r\n").encode())
    assert load_benchmark(root).queries[0].relevant == {("a.pdf", 3): 2}


def test_a_line_separator_inside_a_question_does_not_end_its_line(tmp_path: Path) -> None:
    root = write_set(tmp_path, queries=['{"id": "q1", "text": "one\u2028two"}'])
    assert load_benchmark(root).queries[0].text == "one\u2028two"


def test_quotes_are_ordinary_characters_in_qrels(tmp_path: Path) -> None:
    root = write_set(tmp_path, documents=['"a.pdf'], qrels=[HEADER, 'q1\t"a.pdf\t3\t2'])
    assert load_benchmark(root).queries[0].relevant == {('"a.pdf', 3): 2}


def test_columns_may_be_in_any_order_and_more(tmp_path: Path) -> None:
    root = write_set(tmp_path, qrels=["doc\tnote\tquery\trelevance\tpage_num", "a.pdf\tx\tq1\t2\t7"])
    assert load_benchmark(root).queries[0].relevant == {("a.pdf", 7): 2}


def test_questions_no_page_answers_are_set_apart(tmp_path: Path) -> None:
    root = write_set(
        tmp_path,
        queries=[{"id": "q1", "text": "Who?"}, {"id": "q2", "text": "Why?"}, {"id": "q3", "text": "When?"}],
        qrels=[HEADER, "q1\ta.pdf\t3\t2", "q3\ta.pdf\t1\t0"],
    )
    benchmark = load_benchmark(root)
    assert [query.id for query in benchmark.queries] == ["q1"]
    assert benchmark.unanswered == ("q2", "q3")


def test_only_keeps_the_questions_answered_inside_the_documents(tmp_path: Path) -> None:
    root = write_set(
        tmp_path / "tiny",
        queries=[{"id": name, "text": "Who?"} for name in ("in_a", "in_b", "in_both", "graded_0_in_b")],
        qrels=[
            HEADER,
            "in_a\ta.pdf\t3\t2",
            "in_b\tb c.pdf\t1\t1",
            "in_both\ta.pdf\t3\t2",
            "in_both\tb c.pdf\t2\t2",
            "graded_0_in_b\ta.pdf\t1\t1",
            "graded_0_in_b\tb c.pdf\t1\t0",
        ],
    )
    benchmark = load_benchmark(root)
    part = benchmark.only({"a.pdf"})
    assert [query.id for query in part.queries] == ["in_a", "graded_0_in_b"]
    assert part.name == "tiny (1 of 2 documents)"
    assert benchmark.only(benchmark.documents).queries == benchmark.queries
    with pytest.raises(BenchmarkError, match=r"'c\.pdf' is not in"):
        benchmark.only({"c.pdf"})


def test_only_refuses_to_leave_no_question(tmp_path: Path) -> None:
    benchmark = load_benchmark(write_set(tmp_path))
    with pytest.raises(BenchmarkError, match=r"no question of .* is answered by b c\.pdf alone"):
        benchmark.only({"b c.pdf"})


@pytest.mark.parametrize("missing", ["pdfs", "queries.jsonl", "qrels.tsv", ""])
def test_a_missing_part_is_named(tmp_path: Path, missing: str) -> None:
    root = write_set(tmp_path / "set")
    (root / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(BenchmarkError, match="does not exist: expected a folder with pdfs/") as raised:
        load_benchmark(root)
    assert str(root / missing) in str(raised.value)


def test_an_empty_document_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="is empty"):
        load_benchmark(write_set(tmp_path, documents=[".DS_Store"]))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "expected a JSON object, found '{not json'"),
        ('["q2", "Who?"]', "expected a JSON object with id and text, found list"),
        ('{"id": "q2"}', "expected 'text' to be a non-empty string, found None"),
        ('{"id": "q2", "text": "  "}', "expected 'text' to be a non-empty string, found '  '"),
        ('{"id": 2, "text": "Who?"}', "expected 'id' to be a non-empty string, found 2"),
        ('{"id": "q1", "text": "Who?"}', "question id 'q1' is used twice"),
        ('{"id": "q2", "text": "Who?", "doc": 5}', "expected 'doc' to be a document's file name, found 5"),
        ('{"id": "q2", "text": "Who?", "doc": "z.pdf"}', "document 'z.pdf' is not in"),
    ],
)
def test_a_malformed_question_is_told_with_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    root = write_set(tmp_path, queries=[{"id": "q1", "text": "Who?"}, "", line])
    with pytest.raises(BenchmarkError) as raised:
        load_benchmark(root)
    assert str(raised.value).startswith(f"{root / 'queries.jsonl'}, line 3: {complaint}")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("q1\ta.pdf\t3", "expected 4 tab-separated values, found 3"),
        ("q1 a.pdf 3 2", "expected 4 tab-separated values, found 1"),
        ("q9\ta.pdf\t3\t2", "question 'q9' is not in"),
        ("q1\tz.pdf\t3\t2", "document 'z.pdf' is not in"),
        ("q1\ta.pdf\t0\t2", "expected page_num to be a whole number of at least 1, found '0'"),
        ("q1\ta.pdf\tiv\t2", "expected page_num to be a whole number of at least 1, found 'iv'"),
        ("q1\ta.pdf\t3\t-1", "expected relevance to be a whole number of at least 0, found '-1'"),
        ("q1\ta.pdf\t3\t0.5", "expected relevance to be a whole number of at least 0, found '0.5'"),
        ("q1\ta.pdf\t1\t1", "page 1 of a.pdf is graded 2 and 1 for 'q1'"),
    ],
)
def test_a_malformed_answer_is_told_with_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    root = write_set(tmp_path, qrels=[HEADER, "q1\ta.pdf\t1\t2", "", line])
    with pytest.raises(BenchmarkError) as raised:
        load_benchmark(root)
    assert str(raised.value).startswith(f"{root / 'qrels.tsv'}, line 4: {complaint}")


@pytest.mark.parametrize("header", ["q1\ta.pdf\t3\t2", "query,doc,page_num,relevance", ""])
def test_a_missing_header_is_told(tmp_path: Path, header: str) -> None:
    root = write_set(tmp_path, qrels=[header, "q1\ta.pdf\t3\t2"])
    with pytest.raises(BenchmarkError, match="line 1: expected tab-separated columns query, doc, page_num, relevance"):
        load_benchmark(root)


def test_files_without_content_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"queries.jsonl holds no questions"):
        load_benchmark(write_set(tmp_path / "a", queries=[]))
    with pytest.raises(BenchmarkError, match=r"gives no question .* a relevant page"):
        load_benchmark(write_set(tmp_path / "b", qrels=[HEADER, "q1\ta.pdf\t3\t0"]))


@pytest.mark.parametrize("name", ["queries.jsonl", "qrels.tsv"])
def test_a_file_in_another_encoding_is_refused(tmp_path: Path, name: str) -> None:
    root = write_set(tmp_path)
    (root / name).write_bytes("q1\tÜbersicht.pdf".encode("latin-1"))
    with pytest.raises(BenchmarkError, match=f"{name} is not UTF-8 text"):
        load_benchmark(root)
