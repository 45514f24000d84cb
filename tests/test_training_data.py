"""Training sets from pictures, from the columns of the ColPali set and from text; how text becomes pairs."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from dataclasses import replace
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
from budgetvdr.training.text_pairs import Asked, Section, make_pairs

PROSE = (
    "The harbour is a place where ships wait for the tide. Lanterns were lit along the quay every evening at dusk. "
    "Fishermen mended their nets beside the old customs house. A pilot means a sailor who knows the channel well. "
    "Coal and timber came by barge from the upper river. The tide table hangs in the office of the harbour master."
)


def sections(count: int = 6) -> list[Section]:
    """Documents of three sections, some nearer to each other than others; each has a word of its own."""
    made = []
    for number in range(count):
        topic, own = ("anchor", "rope", "sail")[number % 3], f"mark{number}"
        text = (
            f"{PROSE} The {topic} of {own} is a tool that sailors keep. To mend the {own} {topic}, call the carpenter. "
            f"Nobody forgets the {topic} chest of {own} or its lock. "
            f"If the {own} {topic} breaks apart, the pilot waits."
        )
        made.append(Section("harbour", f"book{number // 3}.html", f"Book {number // 3}", f"On the {own} {topic}", text))
    return made


def recipe(name: str) -> ModuleType:
    """A module of the recipes, which import one another as scripts do."""
    folder = str(Path(__file__).parents[1] / "training")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


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
    BatchPlan(found.pairs, size=6, negatives=2).batch(0)
    assert [(pair.original, pair.group) for pair in found.pairs] == [(pair.original, pair.group) for pair in pairs]
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
    assert len(kinds["heading"]) == 30
    # What all pages say alike asks for none of them.
    assert not any("tide" in pair.query for pair in kinds["question"])
    assert len(kinds["question"]) >= 25
    assert len(kinds["cloze"]) + len(kinds["words"]) == 30
    assert min(len(kinds["cloze"]), len(kinds["words"])) > 5
    hidden = sum(pair.query not in page_of[pair.page].text for pair in kinds["cloze"])
    assert len(kinds["cloze"]) / 2 < hidden < len(kinds["cloze"])
    for pair in kinds["cloze"]:
        whole = page_of[pair.page.rpartition(":")[0]].text
        assert pair.query in whole
        assert page_of[pair.page].text in {whole, " ".join(whole.replace(pair.query, " ", 1).split())}
    assert all("anchor" in pair.query.lower() for pair in kinds["heading"] if "anchor" in pair.page)
    for pair in kinds["words"]:
        assert set(re.findall(r"\w+", pair.query.partition(", Book")[0])) <= set(
            re.findall(r"\w+", page_of[pair.page].text)
        )
    forms = {re.sub(r"mark\d+|anchor|rope|sail", "_", pair.query) for pair in kinds["question"]}
    assert forms >= {"What is the _ of _?", "What happens if the _ _ breaks apart?"}


def test_what_a_source_asks_itself_goes_to_the_page_with_the_answer() -> None:
    text = " ".join(f"filler{n}" for n in range(200)) + " The capital: Buenos   Aires."
    asked = (Asked("What is the capital of Argentina?", "The capital: Buenos Aires."), Asked("Who?", "not there"))
    pages, pairs = make_pairs([Section("atlas", "ar", "Argentina", "Argentina", text, "", asked)], corrupted=0.0)
    (pair,) = [pair for pair in pairs if pair.kind == "question"]
    assert pair.query == "What is the capital of Argentina?"
    assert "Buenos Aires" in next(page.text for page in pages if page.id == pair.page)


def test_a_query_that_other_pages_answer_gets_a_title_or_goes() -> None:
    alike = [
        Section("s", f"d{n}", f"Book {n}", "The winch", PROSE, "", (Asked("Who lit lanterns?", PROSE),))
        for n in range(5)
    ]
    _, pairs = make_pairs(alike, corrupted=0.0)
    assert [pair.query for pair in pairs] == [f"Who lit lanterns in Book {n}?" for n in range(5)]
    nameless = [replace(section, title="Book") for section in alike]
    assert make_pairs(nameless, corrupted=0.0)[1] == []


def test_headings_that_a_document_repeats_are_different_pages() -> None:
    texts = [f"{PROSE} Here is part{n}." for n in range(3)]
    pages, _ = make_pairs([Section("s", "d", "Title", "Notes", text) for text in texts], corrupted=0.0)
    assert {page.text for page in pages if ":" not in page.id} == {f"Notes. {text}" for text in texts}
    assert len({page.id for page in pages}) == len(pages)


def test_negatives_are_the_nearest_pages_of_the_document() -> None:
    made = sections()
    near = Section(
        "harbour",
        "book0.html",
        "Book 0",
        "More on the anchor",
        made[0].text.replace("mark0 anchor breaks", "anchor breaks"),
    )
    pages, pairs = make_pairs([*made, near], negatives=2)
    first = next(pair for pair in pairs if pair.page.startswith("harbour/book0.html#On the mark0 anchor#0"))
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
    pages, _ = make_pairs([section, Section("s", "d", "Title", "Short", "too little text")], most_words=180)
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
    found = [(s.title, s.heading, s.text) for s in recipe("corpus_html").html_sections("src", "doc", html)]
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
    found = list(recipe("corpus_facts").factbook_sections("factbook", "u.json", json.dumps(profile)))
    assert [(s.title, s.heading) for s in found] == [("Utopia", "Utopia Introduction"), ("Utopia", "Utopia Government")]
    assert found[0].text == "Background: Old and small."
    assert [s.template for s in found] == ["factbook Introduction", "factbook Government"]
    assert found[1].text == "Country name - conventional short form: Utopia. Capital - name: Amaurot."
    assert list(recipe("corpus_facts").factbook_sections("factbook", "x.json", "{}")) == []


def test_pages_of_a_dictionary(tmp_path: Path) -> None:
    lines = [
        "  1 licence",
        "00000001 06 n 01 fastener 0 000 | holds things together  ",
        '00000002 06 n 02 nail 0 brad 0 001 @ 00000001 n 0000 | a thin metal spike; "he hammered a nail into it"  ',
        "00000003 06 n 01 screw 0 001 @ 00000001 n 0000 | a threaded spike  ",
        "00000004 06 n 01 rivet 0 001 @ 00000001 n 0000 | a soft metal pin  ",
        "00000005 06 n 02 paper_clip 0 Gem_clip 0 001 @ 00000001 n 0000 | a bent wire for sheets  ",
        "00000006 05 n 01 barnacle 0 001 @ 00000001 n 0000 | a beast that clings  ",
    ]
    (tmp_path / "data.noun").write_text("\n".join(lines) + "\n")
    (page,) = recipe("corpus_facts").wordnet_sections("wordnet", tmp_path)
    assert page.heading == "Kinds of fastener"
    assert page.text.startswith("fastener: holds things together. nail: a thin metal spike. screw: a threaded spike.")
    assert "barnacle" not in page.text
    assert [asked.query for asked in page.asked] == [
        "What is meant by brad?",
        "he hammered a nail into it",
        "What is meant by Gem clip?",
    ]
    assert all(asked.anchor in page.text for asked in page.asked)


def test_made_up_pages_answer_their_questions_and_differ() -> None:
    made = list(recipe("corpus_made_up").made_up_sections(20, np.random.default_rng(0)))
    forms = {section.template for section in made}
    assert len(made) == 20 * len(forms) == len({section.title for section in made})
    for section in made:
        assert len(section.asked) == 2
        for asked in section.asked:
            assert asked.anchor in section.text
            assert "{" not in asked.query + asked.anchor
    _, pairs = make_pairs(made, corrupted=0.0)
    assert len(pairs) > 1.5 * len(made)
    assert all(pair.negatives for pair in pairs)
