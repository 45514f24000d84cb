"""Training sets: pictures of pages with their queries, the ColPali training set, and pairs made from text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from budgetvdr.errors import MissingExtraError
from budgetvdr.training.errors import TrainingDataError
from budgetvdr.training.models.model import Content
from budgetvdr.training.pairs import Pair, TrainingSet
from budgetvdr.training.text_pairs import TextPage, TextPair

COLPALI_SET = "vidore/colpali_train_set"


def pictures(folder: Path, pairs_file: Path) -> TrainingSet:
    """Pairs from a JSONL of {"query": ..., "page": file, "negatives": [file, ...]}; files are named within `folder`.

    "negatives", "original" and "group" may be left out; see `Pair`.

    Raises TrainingDataError for a malformed line or a picture that is not there.
    """
    pairs = _read_pairs(pairs_file)
    for pair in pairs:
        for name in (pair.page, *pair.negatives):
            if not (folder / name).is_file():
                raise TrainingDataError(f"{pairs_file} names {name}, which is not in {folder}")

    def load(name: str) -> Content:
        with Image.open(folder / name) as picture:
            return picture.convert("RGB")

    return TrainingSet(pairs, load)


def colpali_set(source: str = COLPALI_SET, *, split: str = "train") -> TrainingSet:
    """The training set of ColPali, or another with its columns `query` and `image`, through `datasets`.

    source: a name on the hub or a folder that `datasets` reads. Rows without a query are left out. Rows whose
    `image_filename` is the same are one page, where there is such a column.

    Raises MissingExtraError without `datasets`, TrainingDataError where a column is missing.
    """
    try:
        from datasets import load_dataset  # noqa: PLC0415  (comes with an extra)
    except ImportError as error:
        raise MissingExtraError("reading this training set needs datasets: pip install budgetvdr[train]") from error
    return from_columns(load_dataset(source, split=split))


def from_columns(rows: Any) -> TrainingSet:
    """Pairs from a `datasets.Dataset` with the columns of the ColPali training set."""
    missing = {"query", "image"} - set(rows.column_names)
    if missing:
        raise TrainingDataError(f"expected columns query and image, found {rows.column_names}")
    queries: Sequence[str | None] = rows["query"]
    names = rows["image_filename"] if "image_filename" in rows.column_names else [str(n) for n in range(len(queries))]
    row_of: dict[str, int] = {}
    pairs = []
    for row, (query, name) in enumerate(zip(queries, names, strict=True)):
        if query:
            row_of.setdefault(name, row)
            pairs.append(Pair(query, name))

    def load(name: str) -> Content:
        picture: Image.Image = rows[row_of[name]]["image"]
        return picture.convert("RGB")

    return TrainingSet(pairs, load)


def write_text_set(folder: Path, pages: Sequence[TextPage], pairs: Sequence[TextPair]) -> None:
    """Writes `pages.jsonl` and `pairs.jsonl`, which `text_set` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "pages.jsonl", [{"id": page.id, "text": page.text} for page in pages])
    _write(
        folder / "pairs.jsonl",
        [asdict(pair) for pair in pairs],
    )


def text_set(folder: Path) -> TrainingSet:
    """Pairs from `pairs.jsonl` and the text of their pages from `pages.jsonl`.

    Raises TrainingDataError for a malformed line or a page that is not there.
    """
    pages = {}
    for number, line in enumerate(_lines(folder / "pages.jsonl"), start=1):
        try:
            pages[str(line["id"])] = str(line["text"])
        except (KeyError, TypeError) as error:
            raise TrainingDataError(f"{folder / 'pages.jsonl'}:{number}: expected id and text, found {line}") from error
    pairs = _read_pairs(folder / "pairs.jsonl")
    for pair in pairs:
        for name in (pair.page, *pair.negatives):
            if name not in pages:
                raise TrainingDataError(f"{folder / 'pairs.jsonl'} names the page {name}, which pages.jsonl lacks")
    return TrainingSet(pairs, pages.__getitem__)


def _read_pairs(path: Path) -> list[Pair]:
    pairs = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            negatives = tuple(str(name) for name in line.get("negatives", ()))
            pair = Pair(
                str(line["query"]),
                str(line["page"]),
                negatives,
                str(line.get("original", "")),
                str(line.get("group", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise TrainingDataError(f"{path}:{number}: expected query and page, found {line}") from error
        pairs.append(pair)
    return pairs


def _lines(path: Path) -> list[Any]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TrainingDataError(f"{path} cannot be read: {error}") from error
    lines = []
    for number, text in enumerate(texts, start=1):
        if text.strip():
            try:
                lines.append(json.loads(text))
            except ValueError as error:
                raise TrainingDataError(f"{path}:{number} is not JSON: {error}") from error
    return lines


def _write(path: Path, lines: Sequence[object]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for line in lines:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
