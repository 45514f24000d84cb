"""The command line, as a person uses it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_bert
from conftest import MakePdf
from PIL import Image
from test_export_hub import HubServer

from budgetvdr import estimate
from budgetvdr.bundle import load_manifest
from budgetvdr.cli import main
from budgetvdr.encoders.open import bundled_folder

MANIFEST = load_manifest(bundled_folder())
FAST, WIDTH = MANIFEST.presets["fast"], MANIFEST.dims[-1]
SAMPLES = Path(__file__).parent / "data/samples_eval"

_BY_NAME = """
import sys
from budgetvdr import estimate
from budgetvdr.cli import main
index, source, name = sys.argv[1:]
assert main(["add", index, source, "--encoder", name]) == 0
assert main(["search", index, "cold water", "-k", "1", "--encoder", name]) == 0
assert main(["info", index, "--encoder", name]) == 0
print("estimated", estimate(10, encoder=name).disk_bytes)
"""


@pytest.fixture
def index_path(make_pdf: MakePdf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "cli.bvdr")
    first = make_pdf("first.pdf", "Lighthouse keepers paint the tower every third year.", "Nothing else matters here.")
    assert main(["add", path, str(first), "--meta", "year=2024", "--meta", "topic=sea"]) == 0
    assert "2 pages of 1 document stored" in capsys.readouterr().out
    return path


def test_search_prints_ranked_pages_and_the_cost(index_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", index_path, "How often is the lighthouse painted?", "--budget", "fast"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "1" and lines[0].endswith("first.pdf  page 1")
    assert f"depth {FAST.depth}, dim {FAST.dim}" in lines[-1] and "ms" in lines[-1]


def test_search_as_json_at_a_point_with_a_filter(index_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "search",
        index_path,
        "lighthouse",
        "--point",
        "4,64",
        "--where",
        "year = 2024 AND page_num = 1",
        "--json",
    ]
    assert main(arguments) == 0
    hits = json.loads(capsys.readouterr().out)
    assert [hit["id"] for hit in hits] == ["first.pdf#1"]
    assert hits[0]["metadata"] == {"topic": "sea", "year": 2024}
    assert (hits[0]["budget"]["depth"], hits[0]["budget"]["dim"]) == (4, 64)


def test_search_draws_the_top_page(index_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "top.png"
    assert main(["search", index_path, "lighthouse", "--picture", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    with Image.open(target) as picture:
        assert picture.size[1] == 1600


def test_info_and_delete(index_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", index_path, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["pages"], info["documents"], info["metadata"]) == (2, 1, {"topic": "str", "year": "int"})
    assert main(["info", index_path, "--documents"]) == 0
    printed = capsys.readouterr().out
    assert "first.pdf  2 pages" in printed
    for row in (
        "pages  2 of 1 documents, 0 blank",
        "topic str",
        "year int",
        f"full 6,{WIDTH}, balanced ",
        f", fast {FAST.depth},{FAST.dim}",
        "first stage  none",
    ):
        assert row in printed
    assert main(["optimize", index_path, "--keep-minutes", "0"]) == 0
    assert "kB in 1 after" in capsys.readouterr().out
    assert main(["delete", index_path, "first.pdf"]) == 0
    assert "2 pages removed" in capsys.readouterr().out
    assert main(["search", index_path, "lighthouse"]) == 0
    assert "no page matches" in capsys.readouterr().out


def test_versions_and_searching_one(index_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", index_path, "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert [entry["pages"] for entry in there][-1] == 2
    assert main(["delete", index_path, "first.pdf"]) == 0
    capsys.readouterr()
    assert main(["versions", index_path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(there) + 1
    assert lines[-1].endswith("0 pages") and " UTC " in lines[-1]
    old = ["--version", str(there[-1]["version"])]
    assert main(["search", index_path, "lighthouse", "-k", "1", *old]) == 0
    assert "first.pdf  page 1" in capsys.readouterr().out
    assert main(["info", index_path, "--json", *old]) == 0
    assert json.loads(capsys.readouterr().out)["pages"] == 2


def test_a_first_stage_and_what_it_finds(index_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", index_path, "--first-stage"]) == 0
    assert main(["info", index_path]) == 0
    assert "first stage  at depth 2, 4, 6" in capsys.readouterr().out
    assert main(["search", index_path, "lighthouse", "-k", "1", "--budget", "fast", "--candidates", "1", "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)[0]["budget"]
    assert (spent["depth"], spent["dim"], spent["pages"]) == (FAST.depth, FAST.dim, 1)
    limited = ["--point", f"2,{WIDTH}", "--candidates", "1", "--memory-limit", "0"]
    assert main(["search", index_path, "lighthouse", "-k", "1", "--json", *limited]) == 0
    spent = json.loads(capsys.readouterr().out)[0]["budget"]
    # One page of two is so much that reading it by itself does not pay.
    assert (spent["depth"], spent["dim"], spent["path"]) == (2, WIDTH, "stream")
    assert main(["recall", index_path, "-n", "3", "-k", "1", "--candidates", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["recall"], report["queries"], report["k"], report["candidates"], report["dim"]) == (
        1,
        2,
        1,
        2,
        FAST.dim,
    )
    assert main(["recall", index_path, "-k", "1", "--query", "lighthouse", "--budget", "full"]) == 0
    assert "1.000 of the exact 1 best" in capsys.readouterr().out
    assert main(["info", index_path]) == 0
    assert "recall  1.000 of the exact 1 best" in capsys.readouterr().out


def test_adding_with_compression_and_recompressing(
    make_pdf: MakePdf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(make_pdf("rules.pdf", "Lighthouse keepers paint the tower every third year.", "Fish is on Fridays."))
    small, full, made = (str(tmp_path / name) for name in ("small", "full", "made"))
    assert main(["add", small, source, "--compression", "anchorfold:0.5"]) == 0
    assert main(["add", full, source, "--signals"]) == 0
    capsys.readouterr()
    assert main(["recompress", full, made, "--compression", "AnchorFold:0.5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 pages written, 0 there already, ") and " vectors of all depths became " in said
    found = []
    for path in (full, small, made):
        assert main(["info", path, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["signals"] and found[0]["compression"] is None
    assert found[1]["compression"] == found[2]["compression"]
    assert found[1]["compression"]["method"] == "AnchorFold" and found[1]["compression"]["gamma"] == 0.5
    assert found[1]["vectors"] == found[2]["vectors"] < found[0]["vectors"]
    assert main(["search", made, "Who paints the lighthouse?", "-k", "1"]) == 0
    assert "rules.pdf  page 1" in capsys.readouterr().out
    # What is there stays; what is of another kind is refused, with what to do.
    assert main(["recompress", full, made, "--compression", "AnchorFold:0.5"]) == 0
    assert "0 pages written, 2 there already" in capsys.readouterr().out
    assert main(["recompress", full, made, "--compression", "Pooling:0.5"]) == 2
    assert "choose another path" in capsys.readouterr().err
    assert main(["add", small, source, "--compression", "Pooling:0.5"]) == 2
    assert "budgetvdr recompress" in capsys.readouterr().err
    assert main(["recompress", small, str(tmp_path / "x"), "--compression", "Pooling:0.5"]) == 2
    assert "open the full one" in capsys.readouterr().err
    assert main(["recompress", str(tmp_path / "nothing"), str(tmp_path / "x"), "--compression", "Pooling:0.5"]) == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("WardFold", "expected NAME:GAMMA"),
        ("WardFold:much", "expected a number above 0 and up to 1, found 'much'"),
        ("Zip:0.2", "found 'Zip:0.2'. Names are AnchorFold, "),
        ("WardFold:1.5", "expected above 0 and up to 1, found 1.5"),
        ("DocPruner:inf", "expected a finite number"),
    ],
)
def test_a_compression_that_is_none_is_refused(given: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["add", "index", "x.pdf"], ["recompress", "index", "other"]):
        with pytest.raises(SystemExit):
            main([*command, "--compression", given])
        assert says in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main(["add", "index", "x.pdf", "--compression", "WardFold:0.2", "--signals"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is not the one in the package."""
    folder = tmp_path_factory.mktemp("tiny")
    return tiny_bert.write_bundle(folder / "bundle", tiny_bert.write_model(folder / "model"))


def test_every_command_takes_another_bundle(
    tiny: Path, make_pdf: MakePdf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, encoder = str(tmp_path / "tiny.bvdr"), ["--encoder", str(tiny)]
    assert main(["add", path, str(make_pdf("fish.pdf", "fish swim in cold water", "a board")), *encoder]) == 0
    small = str(tmp_path / "small.bvdr")
    commands = {
        "recompress": [path, small, "--compression", "Pooling:0.5"],
        "search": [path, "cold water"],
        "info": [path],
        "versions": [path],
        "recall": [path, "-k", "1", "--query", "cold water"],
        "optimize": [path],
        "delete": [path, "fish.pdf"],
    }
    for command, arguments in commands.items():
        assert main([command, *arguments]) == 2
        said = capsys.readouterr().err
        assert "was made with tiny (int8)" in said and "--encoder) set to that bundle" in said
        assert main([command, *arguments, *encoder]) == 0
        assert capsys.readouterr().out
    assert main(["search", small, "cold water", "-k", "1", *encoder]) == 0
    assert capsys.readouterr().out.splitlines()[-1].lstrip().startswith("depth 3, dim 32:")


def test_a_bundle_of_the_hub_is_taken_by_name(tiny: Path, make_pdf: MakePdf, tmp_path: Path) -> None:
    hub = HubServer({"someone/tiny": {path.name: path.read_bytes() for path in tiny.iterdir()}})
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    source = make_pdf("fish.pdf", "fish swim in cold water")
    command = [sys.executable, "-W", "ignore", "-c", _BY_NAME, str(tmp_path / "index"), str(source), "someone/tiny"]
    try:
        done = subprocess.run(
            command, env={**os.environ, **settings}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    finally:
        hub.shutdown()
        hub.server_close()
    assert done.returncode == 0, done.stderr
    assert "fish.pdf  page 1" in done.stdout and "tiny (int8)" in done.stdout
    assert done.stdout.splitlines()[-1] == f"estimated {estimate(10, encoder=tiny).disk_bytes}"
    assert hub.asked


def test_a_folder_with_a_bad_file_is_done_in_part(
    make_pdf: MakePdf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pdf("pile/good.pdf", "Good.")
    (tmp_path / "pile/bad.pdf").write_bytes(b"%PDF-1.7 and then nothing")
    assert main(["add", str(tmp_path / "pile.bvdr"), str(tmp_path / "pile")]) == 1
    assert "bad.pdf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["search", "{missing}", "x"], "missing"),
        (["add", "{index}", "{missing}.pdf"], "missing"),
        (["search", "{index}", "x", "--budget", "huge"], "'full', 'balanced', 'fast'"),
        (["search", "{index}", " "], "nothing to search for"),
        (["search", "{index}", "x", "-k", "0"], "at least 1"),
        (["search", "{index}", "x", "--candidates", "0"], "positive whole number"),
        (["search", "{index}", "x", "--budget", "huge", "--candidates", "1"], "'full', 'balanced', 'fast'"),
        (["search", "{index}", "x", "--version", "99"], "no version 99"),
        (["recall", "{index}", "-n", "0"], "at least 1"),
        (["recall", "{index}", "--query", " "], "nothing to search for"),
        (["versions", "{missing}"], "no index at"),
        (["delete", "{index}"], "exactly one"),
        (["delete", "{missing}", "a.pdf"], "no index at"),
        (["search", "{index}", "x", "--picture", "top.foo"], "such as top.png"),
        (["search", "{index}", "x", "--picture", "{missing}/top.png"], "does not exist"),
        (["info", "{index}", "--encoder", "{missing}"], "does not exist"),
        (["add", "{index}", "{missing}.pdf", "--meta", "year"], "KEY=VALUE"),
        (["eval", "{missing}"], "missing"),
        (["eval", "{samples}", "--plot", "x.svg"], "--plot goes with --compression-grid"),
        (["eval", "{samples}", "--dims", "32", "--grid"], "--dims goes with --compression-grid"),
        (["eval", "{samples}", "--gammas", "0.5"], "--gammas goes with --compression-grid"),
        (["eval", "{samples}", "--grid", "--compression-grid"], "--grid does not go with --compression-grid"),
        (["eval", "{samples}", "--compression-grid", "--plot", "{missing}/x.svg"], "does not exist"),
    ],
)
def test_refusals_say_what_to_do(
    index_path: str, tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [text.format(index=index_path, missing=tmp_path / "missing", samples=SAMPLES) for text in arguments]
    assert main(filled) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.out == ""
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["search", "i", "x", "--memory-limit", "lots"], "expected bytes as a whole number"),
        (["search", "i", "x", "--budget", "fast", "--point", "6,64"], "not allowed with"),
        (["optimize", "i", "--keep-minutes", "-1"], "expected minutes"),
        (["optimize", "i", "--keep-minutes", "nan"], "expected minutes"),
    ],
)
def test_wrong_arguments_show_the_usage(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert says in captured.err and "usage:" in captured.err


def test_eval_prints_the_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    index = str(tmp_path / "e.bvdr")
    assert main(["eval", str(SAMPLES), "--json", "--grid", "--read", "text_layer", "--index", index]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"set", "queries", "pages", "rows"}
    assert report["pages"] == 34
    rows = report["rows"]
    assert len(rows) == len(MANIFEST.dims) * sum(map(len, MANIFEST.query_depths.values()))
    assert (rows[0]["depth"], rows[0]["dim"], rows[0]["retention"]) == (6, WIDTH, 1.0)
    quality, cost = {"ndcg@5", "recall@1", "recall@5", "map", "retention"}, {"bytes_per_page", "ms_per_query"}
    assert set(rows[0]) == {"depth", "page_depth", "dim", "vectors"} | quality | cost
    # Without OCR the scan's questions have no answer, the digital documents' mostly do.
    assert 0.6 < rows[0]["ndcg@5"] < 0.95
    assert rows[0]["bytes_per_page"] == round(rows[0]["vectors"] * WIDTH * 2)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["add"],
        ["search"],
        ["info"],
        ["versions"],
        ["delete"],
        ["optimize"],
        ["recompress"],
        ["recall"],
        ["eval"],
        ["calibrate"],
        ["demo"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*arguments, "--help"])
        assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text and "--where" in text and "--grid" in text
