"""Calibrating a bundle: reading pairs, encoding them, and what is recorded."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny_bert
from conftest import MakePdf

from budgetvdr.bundle import MANIFEST_NAME, Window, load_manifest
from budgetvdr.calibration import REPORT_NAME, calibrate_bundle
from budgetvdr.calibration_pairs import QueryPage, draw, load_pairs
from budgetvdr.cli import main
from budgetvdr.compress.calibrate import Pair, calibrate, window_before_decline
from budgetvdr.encoders.open import bundled_folder, open_encoder
from budgetvdr.errors import BenchmarkError, BundleError, CompressionError
from budgetvdr.sources import Document, open_documents

SAMPLES = Path(__file__).parent / "data" / "samples_eval"
TEXTS = (
    "the board signs off all capital spending above a limit. fish swim in cold water.",
    "page of fish. the board swim above water. all spending signs off cold capital.",
    "a limit of cold water. the page signs all fish off.",
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tiny_bert.write_bundle(tmp_path / "bundle", tiny_bert.write_model(tmp_path / "model"))


@pytest.fixture
def pairs(make_pdf: MakePdf, tmp_path: Path) -> Path:
    make_pdf("deep/report.pdf", *TEXTS)
    lines = [
        {"query": "who signs off capital spending", "pdf": "deep/report.pdf", "page": 1},
        {"query": "where do fish swim", "pdf": "deep/report.pdf", "page": 2},
        {"query": "cold water", "pdf": "deep/report.pdf", "page": 3},
        {"query": "fish", "pdf": "deep/report.pdf", "page": 1},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


def test_a_bundle_is_calibrated_and_says_so(bundle: Path, pairs: Path) -> None:
    before = load_manifest(bundle)
    ended: list[None] = []
    report = calibrate_bundle(bundle, pairs, read="text_layer", on_pair=lambda: ended.append(None))
    after = load_manifest(bundle)
    assert len(ended) == 4 and not report.left_out
    assert [found.depth for found in report.exits] == [3, 2, 1]
    assert after.compression == {found.depth: found.chosen for found in report.exits}
    assert after.fingerprint == before.fingerprint == report.fingerprint
    assert json.loads((bundle / REPORT_NAME).read_text()) == json.loads(json.dumps(report.to_dict()))
    open_encoder(bundle)
    assert not [path.name for path in bundle.iterdir() if path.name.startswith(".")]


def test_the_choice_is_that_of_the_rules_on_the_pairs_encoded_one_by_one(bundle: Path, pairs: Path) -> None:
    report = calibrate_bundle(bundle, pairs, read="text_layer")
    encoder = open_encoder(bundle)
    (document,) = open_documents(pairs.parent / "deep", read="text_layer")
    assert isinstance(document, Document)
    pages = list(document.pages())
    made = []
    for query, page in [(pair.query, pair.page_num) for pair in load_pairs(pairs)]:
        found = encoder.encode_support(pages[page - 1], 12)  # type: ignore[attr-defined]
        made.append(
            Pair(encoder.encode_query(query, 2).vectors, found.vectors[2].astype(np.float16), found.support[:2])
        )
    # In the order of the pages, as they are encoded.
    expected = calibrate([made[0], made[3], made[1], made[2]])
    assert report.exits[1] == expected


def test_tables_for_people(bundle: Path, pairs: Path) -> None:
    lines = list(calibrate_bundle(bundle, pairs, read="text_layer").lines())
    assert lines[0] == "tiny (int8), depth 3: 4 pairs, gamma 0.2; SR in per cent"
    assert [line.split()[0] for line in lines[2:9]] == ["2", "3", "4", "6", "8", "10", "12"]
    assert sum(line.endswith("chosen") for line in lines[:9]) == 1 and "±" in lines[2]
    assert lines[9:11] == ["SR by layer", "   K " + "".join(f"{layer:>9}" for layer in range(3))]
    assert len(lines) == 3 * 18 + 1
    assert lines[-1].startswith("few pairs: ")


def test_pairs_of_no_use_are_left_out_and_named(bundle: Path, pairs: Path, tmp_path: Path, make_pdf: MakePdf) -> None:
    make_pdf("empty.pdf", "")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    lines = [
        {"query": "fish", "pdf": "empty.pdf", "page": 1},
        {"query": "fish", "pdf": "broken.pdf", "page": 1},
        {"query": "fish", "pdf": "deep/report.pdf", "page": 9},
        {"query": "fish", "pdf": "nowhere.pdf", "page": 1},
        {"query": "fish", "pdf": "deep", "page": 1},
        {"query": "fish", "pdf": "deep/*.pdf", "page": 1},
        # The first once more, which counts once.
        json.loads(pairs.read_text().splitlines()[0]),
        {"query": "fish " * 300, "pdf": "deep/report.pdf", "page": 1},
    ]
    pairs.write_text(pairs.read_text() + "\n".join(map(json.dumps, lines)))
    report = calibrate_bundle(bundle, pairs, read="text_layer")
    assert report.exits[0].pairs == 4
    reasons = {pair.page: pair.why for pair in report.left_out}
    assert "nothing to read" in reasons["empty.pdf, page 1"]
    assert reasons["report.pdf, page 9"].endswith("report.pdf has 3 pages, no page 9")
    for name in ("nowhere.pdf", "deep", "*.pdf"):
        assert reasons[f"{name}, page 1"].endswith("expected a PDF or picture, found no file")
    assert "broken.pdf" in reasons["broken.pdf, page 1"]
    assert "300 tokens" in reasons["report.pdf, page 1"]
    assert list(report.lines())[-1].startswith("left out: ")
    pairs.write_text("\n".join(map(json.dumps, lines[:2])))
    with pytest.raises(CompressionError, match=r"none of use; the first was left out because"):
        calibrate_bundle(bundle, pairs, read="text_layer")


def test_a_bundle_that_tells_nothing_is_refused_and_left_as_it_was(bundle: Path, pairs: Path) -> None:
    strip_attention(bundle)
    before = (bundle / MANIFEST_NAME).read_bytes()
    with pytest.raises(CompressionError, match="tells nothing of its attention"):
        calibrate_bundle(bundle, pairs, read="text_layer")
    assert (bundle / MANIFEST_NAME).read_bytes() == before and not (bundle / REPORT_NAME).exists()


def test_a_crash_while_writing_leaves_the_old_manifest(
    bundle: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (bundle / MANIFEST_NAME).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        calibrate_bundle(bundle, pairs, read="text_layer")
    assert (bundle / MANIFEST_NAME).read_bytes() == before
    assert sorted(path.name for path in bundle.iterdir()) == sorted([*load_manifest(bundle).files, MANIFEST_NAME])


def test_a_bundle_that_cannot_be_written_to_is_refused_first(
    bundle: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BundleError, match="calibrate a copy"):
        calibrate_bundle(bundle, pairs)


def strip_attention(bundle: Path) -> None:
    """Graphs as bundles had them before they told of their attention."""
    manifest = json.loads((bundle / MANIFEST_NAME).read_text())
    for name in manifest["page_graphs"].values():
        model = onnx.load(bundle / name, load_external_data=False)
        graph = model.graph
        for part, keep in ((graph.output, lambda n: n.startswith("exit_")), (graph.input, lambda n: n == "ids")):
            kept = [value for value in part if keep(value.name)]
            del part[:]
            part.extend(kept)
        onnx.save(model, bundle / name)
        manifest["files"][name] = tiny_bert.converter().sha256(bundle / name)
    (bundle / MANIFEST_NAME).write_text(json.dumps(manifest))


def test_pairs_of_a_file(pairs: Path) -> None:
    pairs.write_text('\n{"query": "q", "pdf": "a.pdf", "page": 2}\n{"query": "r", "image": "/b.png"}\n')
    assert load_pairs(pairs) == [QueryPage("q", pairs.parent / "a.pdf", 2), QueryPage("r", Path("/b.png"), 1)]


BAD: dict[str, Any] = {
    "recursion": "[" * 100_000,
    "expected a JSON object, found": "{",
    "found list": "[]",
    "'query' to be a non-empty": '{"query": " ", "pdf": "a.pdf", "page": 1}',
    "under 'pdf' or under 'image'": '{"query": "q", "pdf": "a.pdf", "image": "b.png", "page": 1}',
    r"found \[\]": '{"query": "q", "page": 1}',
    "at least 1, found None": '{"query": "q", "pdf": "a.pdf"}',
    "at least 1, found 0": '{"query": "q", "pdf": "a.pdf", "page": 0}',
    "at least 1, found True": '{"query": "q", "pdf": "a.pdf", "page": true}',
}


@pytest.mark.parametrize("says", BAD)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, says: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "q", "pdf": "a.pdf", "page": 1}\n' + BAD[says])
    with pytest.raises(CompressionError, match=rf"pairs\.jsonl, line 2: .*{says}"):
        load_pairs(path)


def test_what_is_no_file_of_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompressionError, match="expected a file of pairs"):
        load_pairs(tmp_path / "missing.jsonl")
    with pytest.raises(BenchmarkError):
        load_pairs(tmp_path)


def test_an_evaluation_folder_gives_each_question_with_its_best_page(tmp_path: Path, make_pdf: MakePdf) -> None:
    make_pdf("set/pdfs/a.pdf", *TEXTS)
    (tmp_path / "set" / "queries.jsonl").write_text('{"id": "1", "text": "one"}\n{"id": "2", "text": "two"}\n')
    rows = ["query\tdoc\tpage_num\trelevance", "1\ta\t1\t1", "1\ta\t3\t2", "2\ta\t2\t1", "2\ta\t1\t0"]
    (tmp_path / "set" / "qrels.tsv").write_text("\n".join(rows))
    path = tmp_path / "set" / "pdfs" / "a.pdf"
    assert load_pairs(tmp_path / "set") == [QueryPage("one", path, 3), QueryPage("two", path, 2)]


def test_the_command(bundle: Path, pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", str(bundle), "--pairs", str(pairs), "--read", "text_layer", "--most", "3"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("tiny (int8), depth 3: 3 pairs")
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((bundle / REPORT_NAME).read_text()) and printed["exits"][0]["pairs"] == 3
    pairs.write_text(pairs.read_text() + '{"query": "fish", "pdf": "nowhere.pdf", "page": 1}')
    assert main(command[:-2]) == 1
    assert "left out: 'fish' with nowhere.pdf, page 1" in capsys.readouterr().out
    assert main([*command[:-1], "0"]) == 2
    assert "at least one pair" in capsys.readouterr().err


def test_pairs_are_drawn_by_lot_and_alike_each_time() -> None:
    many = [QueryPage(str(number), Path("a.pdf"), 1) for number in range(50)]
    drawn = draw(many, 10)
    assert drawn == draw(many, 10) != many[:10] and len(drawn) == 10
    assert drawn == sorted(drawn, key=lambda pair: int(pair.query))
    assert draw(many, 50) == many


def test_the_windows_shipped_are_those_of_the_report_shipped() -> None:
    folder = bundled_folder()
    manifest, report = load_manifest(folder), json.loads((folder / REPORT_NAME).read_text())
    assert report["fingerprint"] == manifest.fingerprint
    chosen = {found["depth"]: Window(**found["chosen"]) for found in report["exits"]}
    assert chosen == manifest.compression and set(chosen) == set(manifest.depths)
    for found in report["exits"]:
        # By the rules, of what the report says itself.
        row = next(row for row in found["rows"] if row["gap"] <= row["gap_error"])
        assert chosen[found["depth"]] == Window(*window_before_decline(row["profile"]), row["K"])


def test_the_shipped_report_comes_from_the_samples(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(bundled_folder(), tmp_path / "bundle"))
    report = calibrate_bundle(bundle, SAMPLES, read="text_layer").to_dict()
    shipped = json.loads((bundled_folder() / REPORT_NAME).read_text())
    for found, expected in zip(report["exits"], shipped["exits"], strict=True):
        assert (found["depth"], found["pairs"]) == (expected["depth"], expected["pairs"])
        # Other processors round otherwise, which may move a window whose neighbours are as good.
        for row, known in zip(found["rows"], expected["rows"], strict=True):
            assert row["K"] == known["K"] and row["profile"] == pytest.approx(known["profile"], abs=1)
