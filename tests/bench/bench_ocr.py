"""How well and how fast pictures are read: pages of PDFs are drawn, read, and compared with their text layers.

    python tests/bench/bench_ocr.py FOLDER [--pages 20] [--angle 2] [--seed 0]

Recall and precision count words of at least three letters a to z or digits, in lower case, as often as they occur.
Text layers are taken for the truth, so files whose layer is wrong should not be in the folder; pages with less than
200 characters are passed over. Seconds are CPU seconds of the one thread that reads; they grow by a third and more
while the machine does something else. Prints a table, and JSON as the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pypdfium2
from PIL import Image

from budgetvdr.encoders.lines import Line, Points
from budgetvdr.encoders.ocr import OcrReader

MIN_CHARACTERS = 200
STAGES = ("render", "detect", "recognise", "rest")


class StagedReader(OcrReader):
    """Adds up CPU seconds by stage."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.seconds[name] += time.thread_time() - start

    def _detect(self, rgb: Image.Image) -> Points:
        with self.stage("detect"):
            return super()._detect(rgb)

    def _recognise(self, rgb: Image.Image, corners: Points) -> Line:
        with self.stage("recognise"):
            return super()._recognise(rgb, corners)


def layer(page: pypdfium2.PdfPage) -> str:
    """The text layer, with the halves of a word cut at a line end apart, as they are on the picture."""
    return unicodedata.normalize("NFKC", re.sub(r"[\ufffe\x02]", "- ", page.get_textpage().get_text_bounded()))


def chosen(folder: Path, count: int, seed: int) -> list[tuple[Path, int]]:
    """Pages with a text layer, drawn by lot from all files under the folder."""
    every: list[tuple[Path, int]] = []
    for path in sorted(folder.rglob("*.pdf")):
        try:
            with pypdfium2.PdfDocument(path) as document:
                every += [(path, number) for number in range(len(document))]
        except pypdfium2.PdfiumError as error:
            print(f"passed over {path.name}: {error}")
    random.Random(seed).shuffle(every)
    found = []
    for path, number in every:
        with pypdfium2.PdfDocument(path) as document:
            if len(layer(document[number])) >= MIN_CHARACTERS:
                found.append((path, number))
        if len(found) == count:
            break
    return found


def measured(reader: StagedReader, path: Path, number: int, angle: float) -> dict[str, Any]:
    """One page: words of the layer, words read, words in both, CPU seconds by stage."""
    reader.seconds.clear()
    with pypdfium2.PdfDocument(path) as document:
        page = document[number]
        true = layer(page)

        def render(longest_side: int) -> Image.Image:
            picture = page.render(scale=longest_side / max(page.get_size())).to_pil().convert("RGB")
            return picture.rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor="white") if angle else picture

        with reader.stage("render"):
            picture = reader.picture(render)
    with reader.stage("all"):
        words = reader.read(picture)
    reader.seconds["rest"] = reader.seconds["all"] - reader.seconds["detect"] - reader.seconds["recognise"]
    expected, got = (Counter(re.findall(r"[a-z0-9]{3,}", text.lower())) for text in (true, " ".join(words.texts)))
    return {
        "page": f"{path.stem[:40]}#{number + 1}",
        "words": expected.total(),
        "read": got.total(),
        "both": (expected & got).total(),
        "seconds": {stage: round(reader.seconds[stage], 3) for stage in STAGES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of PDFs with sound text layers")
    parser.add_argument("--pages", type=int, default=20, help="pages drawn by lot (20)")
    parser.add_argument("--angle", type=float, default=0.0, help="degrees by which pages are turned first (0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the lot (0)")
    given = parser.parse_args()
    reader = StagedReader()
    reader.read(Image.new("RGB", (640, 640), "white"))
    print(f"{'page':48}{'words':>7}{'recall':>8}{'precis.':>8}" + "".join(f"{stage:>11}" for stage in STAGES))
    rows = []
    for path, number in chosen(given.folder, given.pages, given.seed):
        row = measured(reader, path, number, given.angle)
        rows.append(row)
        show(row)
    if not rows:
        parser.error(f"no page with {MIN_CHARACTERS} characters of text under {given.folder}")
    total = {key: sum(row[key] for row in rows) for key in ("words", "read", "both")}
    mean = {stage: round(sum(row["seconds"][stage] for row in rows) / len(rows), 3) for stage in STAGES}
    show({"page": f"all {len(rows)}, seconds a page", **total, "seconds": mean})
    result = {
        "pages": len(rows),
        "recall": round(total["both"] / max(1, total["words"]), 4),
        "precision": round(total["both"] / max(1, total["read"]), 4),
        "angle": given.angle,
        "cpu_s_per_page": {**mean, "ocr": round(sum(mean.values()) - mean["render"], 3)},
    }
    print(json.dumps(result))


def show(row: dict[str, Any]) -> None:
    recall, precision = row["both"] / max(1, row["words"]), row["both"] / max(1, row["read"])
    seconds = "".join(f"{row['seconds'][stage]:11.2f}" for stage in STAGES)
    print(f"{row['page']:48}{row['words']:7}{recall:8.3f}{precision:8.3f}{seconds}", flush=True)


if __name__ == "__main__":
    main()
