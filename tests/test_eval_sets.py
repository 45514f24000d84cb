"""Retrieval on real questions about real pages. The sets are not part of the project: BUDGETVDR_EVAL_DIR names them.

What is asked for here is what a change must not lose; docs/results.md has what was measured.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from budgetvdr.cli import main

FOLDER = os.environ.get("BUDGETVDR_EVAL_DIR", "")
pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="BUDGETVDR_EVAL_DIR is not set"),
    pytest.mark.timeout(1800),
]


@pytest.mark.parametrize(("name", "pages", "ndcg"), [("azure_northwind", 263, 0.75), ("uda_sample", 626, 0.72)])
def test_full_budget(name: str, pages: int, ndcg: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(Path(FOLDER) / name), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["set"], report["pages"]) == (name, pages)
    assert report["rows"][0]["ndcg@5"] >= ndcg
