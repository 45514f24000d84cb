"""Speeches, tables and made-up pages of the corpus; which part a page belongs to."""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from budgetvdr.training.data import text_set
from budgetvdr.training.text_pairs import Section, make_pairs


def recipe(name: str) -> ModuleType:
    """A module of the recipes, which import one another as scripts do."""
    folder = str(Path(__file__).parents[1] / "training")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def test_a_speech_is_cut_between_sentences() -> None:
    said = " ".join(f"The {number}th canal was dug by hand in that year." for number in range(90))
    speech = json.dumps({"year": 1861, "name": "A. Speaker", "text": said})
    parts = list(recipe("corpus_texts").speech_sections("speeches", "1861.json", speech))
    assert " ".join(part.text for part in parts) == said
    assert [len(part.text.split()) for part in parts] == [300, 300, 300]
    assert {part.title for part in parts} == {"State of the Union 1861, A. Speaker"}


def test_a_control_says_what_it_leaves_open() -> None:
    control = {
        "id": "AC-1",
        "title": "Policy",
        "statement": "Review [Assignment: organization-defined frequency] with [AC-2](#ac-2).",
        "guidance": None,
        "assessment_objectives": ["a;", "b."],
    }
    found = list(recipe("corpus_texts").control_sections("controls", json.dumps([control])))
    assert [section.text for section in found] == ["Review frequency with AC-2.", "", "a; b."]
    assert found[0].heading == "AC-1 Policy"


def test_sections_are_left_out_evenly() -> None:
    spread = recipe("corpus_texts").spread
    sections = [Section("s", str(number), "t", "h", "one two three") for number in range(100)]
    assert spread(sections, 300) == sections
    kept = [int(section.document) for section in spread(sections, 75)]
    assert len(kept) == 25
    assert {later - earlier for earlier, later in pairwise(kept)} == {4}


def test_a_table_reads_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = recipe("corpus_tables")
    (tmp_path / "t.csv").write_text("land,year,people\nUtopia,1516,120000\nUtopia,1517,130000\nLaputa,1726,900\n")
    table = tables.Table("t.csv", "People of {g}", ("land",), ("year",), {"people": "Inhabitants"}, rows=1)
    (tmp_path / "j.json").write_text(json.dumps([{"land": "Erewhon", "year": 1872, "people": 55000}]))
    other = tables.Table("j.json", "People of {g}", ("land",), ("year",), {"people": "Inhabitants"})
    monkeypatch.setattr(tables, "TABLES", (table, other))
    pages = list(tables.table_sections("tables", tmp_path))
    assert [page.heading for page in pages] == [
        "People of Utopia", "People of Utopia (2)", "People of Laputa", "People of Erewhon",
    ]  # fmt: skip
    assert [page.text for page in pages][1:] == [
        "Table: Inhabitants 1517 130000", "Table: Inhabitants 1726 900", "Table: Inhabitants 1872 55,000",
    ]  # fmt: skip
    assert len({page.document for page in pages}) == 3
    assert pages[0].asked[0].query == "What is the inhabitants of 1516 in the table People of Utopia?"


def test_laid_out_pages_answer_their_questions_and_differ() -> None:
    layouts = recipe("corpus_layouts")
    made = list(layouts.layout_sections(5, np.random.default_rng(0)))
    forms = {section.template for section in made}
    assert len(made) == 5 * len(forms) == len({(section.template, section.title) for section in made})
    for section in made:
        assert section.asked
        assert not {"{", "}"} & set(section.title + section.text)
        for asked in section.asked:
            assert " ".join(asked.anchor.split()) in " ".join(section.text.split())
            assert not {"{", "}"} & set(asked.query)
    again = list(layouts.layout_sections(5, np.random.default_rng(0)))
    assert made == again
    _, pairs = make_pairs(made, corrupted=0.0)
    assert len(pairs) > 1.5 * len(made)


def test_two_companies_of_a_page_have_two_names() -> None:
    layouts = recipe("corpus_layouts")
    words = {"first": ["Alder", "Birch", "Calder", "Dell"], "o": ["{first} {y}"]}
    pages = [layouts._Page(words, np.random.default_rng(seed)) for seed in range(20)]
    said = [page.fill("{first} {o} {o2} {o}").split() for page in pages]
    assert all(line[1] == line[5] and line[2] == page.chosen["y"] for line, page in zip(said, pages, strict=True))
    assert any(line[1] != line[3] for line in said)
    assert any(line[0] != line[1] for line in said)


def test_no_part_has_pages_of_another(tmp_path: Path) -> None:
    build, layouts = recipe("build_corpus"), recipe("corpus_layouts")
    pages, pairs = make_pairs(layouts.layout_sections(12, np.random.default_rng(0)), corrupted=0.0)
    build.write_parts(tmp_path, pages, pairs)
    template = {pair.page: pair.group for pair in pairs}
    found = {part: text_set(tmp_path / part).pairs for part in build.PARTS}
    assert sum(len(part) for part in found.values()) == len(pairs)
    assert all(found.values())
    originals = {part: {pair.original for pair in of_part} for part, of_part in found.items()}
    assert not originals["train"] & originals["held_out"]
    kinds = {part: {template[str(pair.page)] for pair in of_part} for part, of_part in found.items()}
    assert not kinds["other_kinds"] & (kinds["train"] | kinds["held_out"])
    assert len(kinds["other_kinds"]) == 4
