"""Training sets from pictures, from the columns of the ColPali set and from text; how text becomes pairs."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from budgetvdr.errors import MissingExtraError
from budgetvdr.training import corruption
from budgetvdr.training.corruption import corrupt
from budgetvdr.training.data import colpali_set, from_columns, pictures, text_set, write_text_set
from budgetvdr.training.errors import TrainingDataError
from budgetvdr.training.pairs import BatchPlan
from budgetvdr.training.text_pairs import Section, make_pairs

PROSE = (
    "The harbour is a place where ships wait for the tide. Lanterns were lit along the quay every evening at dusk. "
    "Fishermen mended their nets beside the old customs house. A pilot means a sailor who knows the channel well. "
    "Coal and timber came by barge from the upper river. The tide table hangs in the office of the harbour master."
)


def sections(count: int = 6) -> list[Section]:
    """Two documents whose sections share words, so that some are nearer to each other than others."""
    made = []
    for number in range(count):
        topic = ("anchor", "rope", "sail")[number % 3]
        text = f"{PROSE} This part concerns the {topic} and the {topic} chest number {number}."
        made.append(Section("harbour", f"book{number // 3}.html", f"Book {number // 3}", f"On the {topic}", text))
    return made


def recipe() -> ModuleType:
    path = Path(__file__).parents[1] / "training" / "build_corpus.py"
    spec = importlib.util.spec_from_file_location("build_corpus", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def picture(path: Path, shade: int) -> None:
    Image.new("L", (4, 4), shade).save(path)


def test_pictures_with_a_list_of_queries(tmp_path: Path) -> None:
    for name, shade in (("a.png", 10), ("b.png", 200)):
        picture(tmp_path / name, shade)
    lines = [{"query": "dark", "page": "a.png", "negatives": ["b.png"]}, {"query": "light", "page": "b.png"}]
    listed = tmp_path / "pairs.jsonl"
    listed.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = pictures(tmp_path, listed)
    assert [(pair.query, pair.page, pair.negatives) for pair in found.pairs] == [
        ("dark", "a.png", ("b.png",)),
        ("light", "b.png", ()),
    ]
    page = found.load("b.png")
    assert isinstance(page, Image.Image)
    assert (page.mode, page.getpixel((0, 0))) == ("RGB", (200, 200, 200))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "q", "page": "gone.png"}', "gone.png"),
        ('{"query": "q"}', ":1: expected query and page"),
        ("[1]", ":1: expected query and page"),
        ("{", ":1 is not JSON"),
    ],
)
def test_malformed_lists_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(line + "\n")
    with pytest.raises(TrainingDataError, match=message):
        pictures(tmp_path, tmp_path / "pairs.jsonl")
    with pytest.raises(TrainingDataError, match="cannot be read"):
        pictures(tmp_path, tmp_path / "none.jsonl")


def test_the_columns_of_the_colpali_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {
        "query": ["one", "two", None, "three"],
        "image": [Image.new("L", (4, 4), shade) for shade in (0, 90, 120, 90)],
        "image_filename": ["a.jpg", "b.jpg", "c.jpg", "b.jpg"],
    }
    folder = tmp_path / "set"
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).to_parquet(folder / "train.parquet")
    found = colpali_set(str(folder))
    assert [(pair.query, pair.page) for pair in found.pairs] == [("one", "a.jpg"), ("two", "b.jpg"), ("three", "b.jpg")]
    page = found.load("b.jpg")
    assert isinstance(page, Image.Image)
    assert page.getpixel((0, 0)) == (90, 90, 90)
    with pytest.raises(TrainingDataError, match="columns query and image"):
        from_columns(datasets.Dataset.from_dict({"query": ["one"]}))


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"budgetvdr\[train\]"):
        colpali_set("anything")


def test_text_pairs_are_written_and_read(tmp_path: Path) -> None:
    pages, pairs = make_pairs(sections())
    write_text_set(tmp_path, pages, pairs)
    found = text_set(tmp_path)
    assert [pair.query for pair in found.pairs] == [pair.query for pair in pairs]
    assert {page.id: page.text for page in pages} == {page.id: found.load(page.id) for page in pages}
    BatchPlan(found.pairs, size=8, negatives=2).batch(0)
    (tmp_path / "pages.jsonl").write_text('{"id": "one", "text": "page"}\n')
    with pytest.raises(TrainingDataError, match=r"which pages.jsonl lacks"):
        text_set(tmp_path)


def test_pairs_are_the_same_for_the_same_seed() -> None:
    assert make_pairs(sections(), seed=3) == make_pairs(sections(), seed=3)
    assert make_pairs(sections(), seed=3) != make_pairs(sections(), seed=4)


def test_every_kind_of_query_fits_its_page() -> None:
    pages, pairs = make_pairs(sections(30), corrupted=0.0)
    page_of = {page.id: page for page in pages}
    kinds = {kind: [pair for pair in pairs if pair.kind == kind] for kind in ("heading", "cloze", "words", "question")}
    assert [len(found) for found in kinds.values()] == [30, 30, 30, 30]
    hidden = sum(pair.query not in page_of[pair.page].text for pair in kinds["cloze"])
    assert 20 <= hidden < 30
    for pair in kinds["cloze"]:
        whole = page_of[pair.page.removesuffix(":cloze")].text
        assert pair.query in whole
        assert page_of[pair.page].text in {whole, " ".join(whole.replace(pair.query, " ", 1).split())}
    assert all("anchor" in pair.query.lower() for pair in kinds["heading"] if "anchor" in pair.page)
    assert all(
        set(pair.query.split()) <= set(page_of[pair.page].text.replace(".", "").split()) for pair in kinds["words"]
    )
    asked = {pair.query.partition(" in Book")[0].rstrip("?") for pair in kinds["question"]}
    assert {"What is the harbour", "What does a pilot mean"} & asked
    assert all(question.startswith("What ") for question in asked)


def test_a_label_and_its_value_answer_a_question() -> None:
    text = "Population: 45,195,777 people in all of it. Area of all land: 2,736,690 square km. Capital: Buenos Aires. "
    section = Section("atlas", "ar", "Argentina", "Argentina People", text * 3)
    _, pairs = make_pairs([section], corrupted=0.0)
    (question,) = [pair.query for pair in pairs if pair.kind == "question"]
    assert question in {"What is the population of Argentina?", "What is the area of all land of Argentina?"}


def test_negatives_are_the_nearest_pages_of_the_document() -> None:
    made = sections()
    near = Section(
        "harbour", "book0.html", "Book 0", "More on the anchor", made[0].text.replace("number 0", "and anchor")
    )
    pages, pairs = make_pairs([*made, near], negatives=2)
    first = next(pair for pair in pairs if pair.page.startswith("harbour/book0.html#On the anchor#0"))
    assert len(first.negatives) == 2
    assert first.negatives[0] == "harbour/book0.html#More on the anchor#0"
    assert all(name.startswith("harbour/book0.html") for name in first.negatives)
    assert set(first.negatives) <= {page.id for page in pages}


def test_negatives_are_of_the_same_template_too() -> None:
    lands = ("Utopia", "Laputa", "Erewhon")
    made = [Section("atlas", land, land, f"{land} People", f"{land} is large. {PROSE}", "People") for land in lands]
    made += [Section("atlas", land, land, f"{land} Laws", f"{land} is just. {PROSE}", "Laws") for land in lands]
    _, pairs = make_pairs(made, negatives=2)
    negatives = next(pair.negatives for pair in pairs if pair.page.startswith("atlas/Utopia#Utopia People"))
    assert negatives[0] == "atlas/Utopia#Utopia Laws#0"
    assert set(negatives[1:]) == {"atlas/Laputa#Laputa People#0", "atlas/Erewhon#Erewhon People#0"}


def test_long_sections_become_several_pages() -> None:
    section = Section("s", "d", "Title", "Heading", " ".join(f"word{n}" for n in range(400)))
    pages, _ = make_pairs([section, Section("s", "d", "Title", "Short", "too little text")])
    texts = [page.text.split() for page in pages if ":" not in page.id]
    assert [len(text) for text in texts] == [135, 135, 133]
    assert [text[0] for text in texts] == ["Heading."] * 3
    assert [word for text in texts for word in text[1:]] == [f"word{n}" for n in range(400)]


def test_damages_are_there_and_leave_most_of_the_text() -> None:
    random = np.random.default_rng(0)
    text = " ".join([PROSE] * 2)
    misread = corruption.misread(text, random)
    assert 0 < sum(a != b for a, b in zip(text.split(), misread.split(), strict=True)) < len(text.split()) / 2
    broken = [corruption.break_lines(text, random) for _ in range(20)]
    assert all(line.replace("- ", "") == text for line in broken)
    assert sum("- " in line for line in broken) > 10
    joined = [corruption.run_together(text, random) for _ in range(20)]
    assert all(line.replace(" ", "") == text.replace(" ", "") for line in joined)
    assert sum(line != text for line in joined) > 10
    with_table = corruption.add_table(text, random)
    assert len(with_table.split()) >= len(text.split()) + 4
    assert sum(character.isdigit() for character in with_table) >= 4
    assert text in corruption.add_running_head(text, random)
    assert {corrupt("word", np.random.default_rng(seed)) != "" for seed in range(30)} == {True}


def test_a_share_of_pages_is_damaged() -> None:
    pages, pairs = make_pairs(sections(60), corrupted=0.25)
    used = {pair.page for pair in pairs}
    damaged = [page for page in pages if page.id in used and page.text != page.clean]
    assert math.isclose(len(damaged) / len(used), 0.25, abs_tol=0.08)
    clean, _ = make_pairs(sections(60), corrupted=0.0)
    assert all(page.text == page.clean for page in clean)


def test_sections_of_a_page_of_html() -> None:
    html = """<html><head><title>no</title></head><body><p>before</p><h1>Site documentation</h1>
    <div class="toc">skip <ul><li>me</ul></div>
    <h1>1.2 Title<a class="headerlink">¶</a></h1><p>Some<br>text <b>he</b>re</p>
    <h2>2014-02-03 notes</h2><script>no()</script><p>More &amp; more</p><div class="footer">gone</div></body></html>"""
    found = [(s.title, s.heading, s.text) for s in recipe().html_sections("src", "doc", html)]
    assert found == [
        ("Site documentation", "Site documentation", ""),
        ("Title", "Title", "Some text here"),
        ("Title", "2014-02-03 notes", "More & more"),
    ]


def test_sections_of_a_country_profile() -> None:
    profile = {
        "Introduction": {"Background": {"text": "Old and small."}},
        "Government": {
            "Country name": {"conventional short form": {"text": "Utopia"}},
            "capital": {"name": {"text": "Amaurot"}},
        },
    }
    found = list(recipe().factbook_sections("factbook", "u.json", json.dumps(profile)))
    assert [(s.title, s.heading) for s in found] == [("Utopia", "Utopia Introduction"), ("Utopia", "Utopia Government")]
    assert found[0].text == "Background: Old and small."
    assert [s.template for s in found] == ["factbook Introduction", "factbook Government"]
    assert found[1].text == "Conventional short form: Utopia. Name: Amaurot."
    assert list(recipe().factbook_sections("factbook", "x.json", "{}")) == []
