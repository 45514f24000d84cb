"""Questions made from sentences by rules."""

from __future__ import annotations

import numpy as np
import pytest

from budgetvdr.training.page_words import PageWords
from budgetvdr.training.questions import from_gerund, learn_verbs, question

VERBS = learn_verbs(
    ["to close can open must sign will return should set to use to store to run may change to contain to decide"] * 3
)


def asked(sentence: str) -> set[str]:
    return {question(sentence, VERBS, np.random.default_rng(seed)) for seed in range(12)}


def test_verbs_are_what_follows_their_heralds_often() -> None:
    assert {"close", "sign", "run"} <= VERBS
    assert learn_verbs(["to go to go to the to the to the"]) == frozenset()


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("To close a file early, call its close method.", "How do I close a file early?"),
        ("You can open the gate by turning your key.", "How can I open the gate?"),
        ("It is possible to change your password in the form.", "How can I change my password in the form?"),
        ("You must sign the visitors book when you leave.", "When must I sign the visitors book?"),
        ("If the tank runs dry at night, the pump stops by itself.", "What happens if the tank runs dry at night?"),
        ("The harbour is a place where ships wait.", "What is the harbour?"),
        ("Finance Director is the person in charge of money.", "Who is Finance Director?"),
        ("A demurrage means a charge for delay.", "What does a demurrage mean?"),
        ("The treaty of Kiel was signed in January 1814 by three kings.", "When was the treaty of Kiel signed?"),
        ("The old quay was designed by two engineers from Leith.", "What was the old quay designed by?"),
        ("The winch is closed because salt has eaten the gears.", ""),
        ("The lower lock is not safe at night because the lamps fail.", "Why is the lower lock not safe at night?"),
        ("The parser returns a tree.", "What does the parser return?"),
        ("The harbour committee decides the dues of all ships.", "Who decides the dues of all ships?"),
        ("The line manager must sign the request of each clerk.", "Who must sign the request of each clerk?"),
        ("The upper gate can open without help from the crew.", "Can the upper gate open without help from the crew?"),
    ],
)  # fmt: skip
def test_a_sentence_is_turned_round(sentence: str, expected: str) -> None:
    assert expected in asked(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "It is a list of names.",
        "Note that the gate is a door.",
        "Following the war, the town was a ruin.",
        "Typically, messages are sent at night.",
        "If it is not there, the pump stops by itself.",
        "The following table is a list.",
        "Ships wait.",
    ],
)
def test_what_makes_no_sense_alone_asks_nothing(sentence: str) -> None:
    assert asked(sentence) == {""}


def test_headings_that_begin_with_a_deed() -> None:
    assert from_gerund("Setting your clock", VERBS) == "How do I set my clock?"
    assert from_gerund("Closing files", VERBS) == "How do I close files?"
    assert from_gerund("Using the crane", VERBS) == "How do I use the crane?"
    assert from_gerund("String methods", VERBS) == ""
    assert from_gerund("Opening", VERBS) == ""


def test_rivals_are_pages_with_all_that_a_query_shares_with_its_page() -> None:
    words = PageWords(["red boat oar", "red boat sail", "red cart", "blue boat oar"])
    assert words.rivals(0, "the red thing") == 2
    assert words.rivals(0, "red boats: boat") == 1
    assert words.rivals(0, "red boat oar") == 0
    assert words.rivals(0, "nothing shared") == 3


def test_the_nearest_share_the_rarest_words() -> None:
    texts = ["aa bb cc", "aa bb dd", "aa cc ee", "aa ff gg", "aa hh"]
    words = PageWords([*texts, "bb ii", "bb jj"])
    # "cc" is on two pages, "bb" on four, "aa" on five.
    assert words.nearest([0, 1, 2, 3], 2)[0] == [2, 1]
    assert words.nearest([0, 4], 3) == {0: [4], 4: [0]}
