"""An evaluation set on disk: documents, questions, and which pages answer them.

    pdfs/            the documents; a file's name is its doc_id
    queries.jsonl    one object a line: id, text and, for a question asked inside one document, doc
    qrels.tsv        header and columns query, doc, page_num (1-based), relevance (0 = no, higher = better)

A document may be named with or without its file extension, and in any Unicode normalisation.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from budgetvdr.errors import BenchmarkError

PDF_FOLDER = "pdfs"
QUERIES_FILE = "queries.jsonl"
QRELS_FILE = "qrels.tsv"
QRELS_COLUMNS = ("query", "doc", "page_num", "relevance")

PageKey = tuple[str, int]
"""(doc_id, page_num), page_num 1-based."""


@dataclass(frozen=True, slots=True)
class BenchmarkQuery:
    """One question.

    doc: doc_id the search is restricted to, None for a search over everything.
    relevant: page -> grade. At least one grade is above 0; pages not named count as 0.
    """

    id: str
    text: str
    doc: str | None
    relevant: Mapping[PageKey, int]

    @property
    def answer_documents(self) -> set[str]:
        """Documents with a page graded above 0."""
        return {doc for (doc, _), grade in self.relevant.items() if grade > 0}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A set of documents and the questions asked of them.

    name: the folder's name.
    pdfs: the folder to index.
    documents: doc_id of every file in it, sorted.
    queries: the questions that some page answers, in file order.
    unanswered: ids of the questions for which the qrels name no relevant page; no metric is defined for those.
    """

    name: str
    pdfs: Path
    documents: tuple[str, ...]
    queries: tuple[BenchmarkQuery, ...]
    unanswered: tuple[str, ...] = ()

    def only(self, doc_ids: Collection[str]) -> Benchmark:
        """The questions whose relevant pages all lie in these documents, such as the scanned ones.

        Unscoped questions are still searched over the whole index. Raises BenchmarkError for a document that is not
        in the set and where no question is left.
        """
        unknown = sorted(set(doc_ids) - set(self.documents))
        if unknown:
            raise BenchmarkError(f"{unknown[0]!r} is not in {self.pdfs}: expected one of {', '.join(self.documents)}")
        queries = tuple(query for query in self.queries if query.answer_documents <= set(doc_ids))
        if not queries:
            raise BenchmarkError(f"no question of {self.name} is answered by {', '.join(sorted(doc_ids))} alone")
        name = f"{self.name} ({len(set(doc_ids))} of {len(self.documents)} documents)"
        return replace(self, name=name, queries=queries, unanswered=())


def load_benchmark(folder: str | Path) -> Benchmark:
    """Reads an evaluation set.

    Raises BenchmarkError where a file is missing or not UTF-8, where a line is malformed or names an unknown document
    or question (the message has file and line), and where no question has a relevant page.
    """
    root = Path(folder)
    pdfs = root / PDF_FOLDER
    for path, is_there in (
        (root, root.is_dir()),
        (pdfs, pdfs.is_dir()),
        (root / QUERIES_FILE, (root / QUERIES_FILE).is_file()),
        (root / QRELS_FILE, (root / QRELS_FILE).is_file()),
    ):
        if not is_there:
            raise BenchmarkError(
                f"{path} does not exist: expected a folder with {PDF_FOLDER}/, {QUERIES_FILE} and {QRELS_FILE}"
            )
    documents = tuple(sorted(path.name for path in pdfs.iterdir() if path.is_file() and not path.name.startswith(".")))
    if not documents:
        raise BenchmarkError(f"{pdfs} is empty: expected the documents of the set in it")
    names = _DocumentNames(documents, pdfs)
    asked = _read_queries(root / QUERIES_FILE, names)
    relevant = _read_qrels(root / QRELS_FILE, names, {query.id for query in asked})
    judged = [replace(query, relevant=relevant.get(query.id, {})) for query in asked]
    queries = tuple(query for query in judged if query.answer_documents)
    if not queries:
        raise BenchmarkError(f"{root / QRELS_FILE} gives no question of {root / QUERIES_FILE} a relevant page")
    unanswered = tuple(query.id for query in judged if not query.answer_documents)
    return Benchmark(root.resolve().name, pdfs, documents, queries, unanswered)


class _DocumentNames:
    """Finds the doc_id meant by a name in the files: exact, or without extension, both up to normalisation."""

    def __init__(self, documents: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._exact = {unicodedata.normalize("NFC", name): name for name in documents}
        self._stems: dict[str, list[str]] = {}
        for name in documents:
            self._stems.setdefault(unicodedata.normalize("NFC", Path(name).stem), []).append(name)

    def resolve(self, name: str, where: str) -> str:
        key = unicodedata.normalize("NFC", name)
        if key in self._exact:
            return self._exact[key]
        candidates = self._stems.get(key, [])
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise BenchmarkError(f"{where}: document {name!r} may be any of {', '.join(candidates)}; add the extension")
        raise BenchmarkError(f"{where}: document {name!r} is not in {self._folder}")


def _read_queries(path: Path, names: _DocumentNames) -> list[BenchmarkQuery]:
    """The questions in file order, relevant pages still to be filled in."""
    queries: dict[str, BenchmarkQuery] = {}
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            raw = json.loads(line)
        except ValueError as error:
            raise BenchmarkError(f"{where}: expected a JSON object, found {line[:60]!r} ({error})") from error
        query = _parse_query(raw, names, where)
        if query.id in queries:
            raise BenchmarkError(f"{where}: question id {query.id!r} is used twice; ids must be unique")
        queries[query.id] = query
    if not queries:
        raise BenchmarkError(f"{path} holds no questions")
    return list(queries.values())


def _parse_query(raw: object, names: _DocumentNames, where: str) -> BenchmarkQuery:
    if not isinstance(raw, dict):
        raise BenchmarkError(f"{where}: expected a JSON object with id and text, found {type(raw).__name__}")
    for key in ("id", "text"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise BenchmarkError(f"{where}: expected {key!r} to be a non-empty string, found {raw.get(key)!r}")
    doc = raw.get("doc")
    if doc is not None and not isinstance(doc, str):
        raise BenchmarkError(f"{where}: expected 'doc' to be a document's file name, found {doc!r}")
    return BenchmarkQuery(raw["id"], raw["text"], None if doc is None else names.resolve(doc, where), {})


def _read_qrels(path: Path, names: _DocumentNames, known: Collection[str]) -> dict[str, dict[PageKey, int]]:
    relevant: dict[str, dict[PageKey, int]] = {}
    for where, row in _qrels_rows(path):
        query = row["query"]
        if query not in known:
            raise BenchmarkError(f"{where}: question {query!r} is not in {path.with_name(QUERIES_FILE)}")
        page = (names.resolve(row["doc"], where), _whole_number(row["page_num"], "page_num", 1, where))
        grade = _whole_number(row["relevance"], "relevance", 0, where)
        if relevant.setdefault(query, {}).setdefault(page, grade) != grade:
            raise BenchmarkError(
                f"{where}: page {page[1]} of {page[0]} is graded {relevant[query][page]} and {grade} for {query!r}"
            )
    return relevant


def _qrels_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """("file, line n", column -> text) of every row; columns beyond the four are ignored."""
    rows = csv.reader(_read_text(path).split("\n"), delimiter="\t", quoting=csv.QUOTE_NONE)
    header = next(rows, [])
    missing = [column for column in QRELS_COLUMNS if column not in header]
    if missing:
        expected = ", ".join(QRELS_COLUMNS)
        raise BenchmarkError(f"{path}, line 1: expected tab-separated columns {expected}, found {header}")
    for row in rows:
        if not row or row == [""]:
            continue
        where = f"{path}, line {rows.line_num}"
        if len(row) != len(header):
            raise BenchmarkError(f"{where}: expected {len(header)} tab-separated values, found {len(row)}")
        yield where, dict(zip(header, row, strict=True))


def _whole_number(text: str, column: str, least: int, where: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise BenchmarkError(f"{where}: expected {column} to be a whole number of at least {least}, found {text!r}")
    return int(text)


def _read_text(path: Path) -> str:
    """File contents with newlines as `\\n`, without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BenchmarkError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); convert it") from error
