"""What the package shows, and what it must never need."""

import subprocess
import sys
import textwrap
from pathlib import Path

from conftest import MakePdf
from PIL import Image, ImageDraw

import budgetvdr


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_public_names_are_listed_in_order_and_documented() -> None:
    assert list(budgetvdr.__all__) == sorted(budgetvdr.__all__)
    for name in budgetvdr.__all__:
        assert getattr(budgetvdr, name).__doc__


def test_add_and_search_without_torch_and_transformers(make_pdf: MakePdf, tmp_path: Path) -> None:
    make_pdf("files/a.pdf", "Gauges are calibrated every spring.", "")
    scan = Image.new("RGB", (1000, 400), "white")
    ImageDraw.Draw(scan).text((60, 120), "Zebra crossing repairs", fill="black", font_size=64)
    scan.save(tmp_path / "files/scan.png")
    result = run(
        """
        import sys

        # Python refuses to import a module whose entry is None.
        sys.modules["torch"] = sys.modules["transformers"] = None
        import budgetvdr
        with budgetvdr.Index.open(sys.argv[2]) as index:
            index.add_pages(sys.argv[1], show_progress_bar=False)
            for query in ("When are gauges calibrated?", "zebra"):
                hit = index.search(query)[0]
                hit.explain().overlay(hit.image())
                print(hit.id, *hit.notes)
        assert sys.modules["torch"] is None and sys.modules["transformers"] is None
        """,
        str(tmp_path / "files"),
        str(tmp_path / "index"),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["a.pdf#1", "scan.png#1 ocr"]
    assert result.stderr == ""


def test_importing_loads_nothing_heavy() -> None:
    result = run(
        """
        import sys, budgetvdr
        heavy = {"lancedb", "onnxruntime", "rapidocr", "cv2", "ir_measures", "pandas"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
