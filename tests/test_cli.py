"""The command line, as a person uses it."""

import json
from pathlib import Path

import pytest
from conftest import MakePdf
from PIL import Image

from budgetvdr.cli import main


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
    assert "depth 6, dim 64" in lines[-1] and "ms" in lines[-1]


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
    assert "first.pdf  2 pages" in capsys.readouterr().out
    assert main(["optimize", index_path, "--keep-minutes", "0"]) == 0
    assert "MB" in capsys.readouterr().out
    assert main(["delete", index_path, "first.pdf"]) == 0
    assert "2 pages removed" in capsys.readouterr().out
    assert main(["search", index_path, "lighthouse"]) == 0
    assert "no page matches" in capsys.readouterr().out


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
        (["delete", "{index}"], "exactly one"),
        (["delete", "{missing}", "a.pdf"], "no index at"),
        (["search", "{index}", "x", "--picture", "top.foo"], "such as top.png"),
        (["search", "{index}", "x", "--picture", "{missing}/top.png"], "does not exist"),
        (["info", "{index}", "--encoder", "{missing}"], "not an encoder bundle"),
        (["add", "{index}", "{missing}.pdf", "--meta", "year"], "KEY=VALUE"),
        (["eval", "{missing}"], "missing"),
    ],
)
def test_refusals_say_what_to_do(
    index_path: str, tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [text.format(index=index_path, missing=tmp_path / "missing") for text in arguments]
    assert main(filled) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.out == ""
    assert "Traceback" not in captured.err


def test_eval_prints_the_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = Path(__file__).parent / "data/samples_eval"
    assert (
        main(["eval", str(folder), "--json", "--grid", "--read", "text_layer", "--index", str(tmp_path / "e.bvdr")])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"set", "queries", "pages", "rows"}
    assert report["pages"] == 34
    rows = report["rows"]
    assert len(rows) == 15
    assert (rows[0]["depth"], rows[0]["dim"], rows[0]["retention"]) == (6, 384, 1.0)
    quality, cost = {"ndcg@5", "recall@1", "recall@5", "map", "retention"}, {"bytes_per_page", "ms_per_query"}
    assert set(rows[0]) == {"depth", "dim", "vectors"} | quality | cost
    # Without OCR the scan's questions have no answer, the digital documents' mostly do.
    assert 0.6 < rows[0]["ndcg@5"] < 0.95
    assert rows[0]["bytes_per_page"] == round(rows[0]["vectors"] * 384 * 2)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["add"], ["search"], ["info"], ["delete"], ["eval"], ["demo"]):
        with pytest.raises(SystemExit) as stopped:
            main([*arguments, "--help"])
        assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text and "--where" in text and "--grid" in text
