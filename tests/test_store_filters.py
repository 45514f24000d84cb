from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_pages import SETTINGS, page_row

from budgetvdr.errors import QueryError
from budgetvdr.store import Snapshot, Store, Where

METADATA = [
    {"year": 2019, "Lang": "en", "score": 0.5, "final": True, "day": date(2019, 5, 1)},
    {"year": 2020, "Lang": "de", "score": 1.0, "final": False, "day": date(2020, 5, 1)},
    {"year": 2021, "Lang": "it's", "score": -1e-7, "final": True, "at": datetime(2021, 1, 1, 12, tzinfo=UTC)},
    {"year": 2022, "Lang": 'say "hi" \\ `x` -- ; /* %_', "local": datetime(2021, 1, 1, 12, 0, 0, 7)},
    {"order": 7, "Lang": "日本語 😀"},
]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    store = Store.open(tmp_path_factory.mktemp("filters") / "index", settings_if_new=SETTINGS)
    store.upsert([page_row("doc", i + 1, metadata=metadata, notes=["odd"] * i) for i, metadata in enumerate(METADATA)])
    return store.snapshot()


def found(snapshot: Snapshot, where: Where | None) -> list[int]:
    return [page.page_num for page in snapshot.facts(snapshot.matching(snapshot.condition(where)))]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [1, 2, 3, 4, 5]),
        ({}, [1, 2, 3, 4, 5]),
        ({"year": 2020}, [2]),
        ({"year": np.int64(2020)}, [2]),
        ({"year": 2020.0}, [2]),
        ({"year": [2019, 2021, 1900]}, [1, 3]),
        ({"year": (2019,)}, [1]),
        ({"year": {2019, 2022}}, [1, 4]),
        ({"year": []}, []),
        ({"year": None}, [5]),
        ({"year": [None, 2019]}, [1, 5]),
        ({"year": {">=": 2020, "<": 2022}}, [2, 3]),
        ({"year": {">": 2020}, "Lang": {"<": "z"}}, [3, 4]),
        ({"score": 1}, [2]),
        ({"score": -1e-7}, [3]),
        ({"score": {"<=": 0.5}}, [1, 3]),
        ({"final": True}, [1, 3]),
        ({"final": False, "year": 2020}, [2]),
        ({"day": date(2020, 5, 1)}, [2]),
        ({"day": {"<": date(2020, 1, 1)}}, [1]),
        ({"at": datetime(2021, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))}, [3]),
        ({"local": {">": datetime(2021, 1, 1, 12), "<": datetime(2021, 1, 1, 12, 0, 1)}}, [4]),
        ({"Lang": "it's"}, [3]),
        ({"order": 7}, [5]),
        ({"doc_id": "doc", "page_num": [2, 3]}, [2, 3]),
        ({"id": "doc#4"}, [4]),
        ("year >= 2020 AND Lang = 'de'", [2]),
        ("lang = 'de'", [2]),  # bare names match whatever their case
        ("\"Lang\" = 'de'", [2]),
        ("`Lang` = 'de'", [2]),
        ("year = 2019 OR year = 2022 -- or so", [1, 4]),
        ("array_has(notes, 'odd')", [2, 3, 4, 5]),
        ("at < timestamp '2022-01-01T00:00:00Z'", [3]),
        ("true", [1, 2, 3, 4, 5]),
    ],
)
def test_what_a_filter_matches(snapshot: Snapshot, where: Where | None, expected: list[int]) -> None:
    assert found(snapshot, where) == expected


@pytest.mark.parametrize("metadata", METADATA)
def test_every_stored_value_is_found_by_itself(snapshot: Snapshot, metadata: dict[str, object]) -> None:
    assert found(snapshot, metadata) == [METADATA.index(metadata) + 1]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"lang": "en"}, "unknown column 'lang'.*Lang"),
        ({"_v2_0": 1}, "unknown column"),
        ({"year = 1 OR 1": 1}, "unknown column"),
        ({"year": "2020"}, "holds int, found str '2020'"),
        ({"year": True}, "holds int, found bool"),
        ({"year": 2020.5}, "holds int, found float"),
        ({"year": 2**70}, "holds int"),
        ({"final": 1}, "holds bool, found int"),
        ({"score": float("nan")}, "holds float"),
        ({"day": datetime(2020, 1, 1)}, "holds date, found datetime"),
        ({"at": datetime(2020, 1, 1)}, "holds datetime with time zone, found datetime .* without time zone"),
        ({"local": datetime(2020, 1, 1, tzinfo=UTC)}, "holds datetime without time zone"),
        ({"Lang": b"en"}, "holds str, found bytes"),
        ({"notes": "odd"}, "array_has"),
        ({"year": {}}, "range such as"),
        ({"year": {"~": 1}}, "range such as"),
        ({"year": [[2020]]}, "holds int, found list"),
        ("", "empty"),
        ("  ", "empty"),
        (["year"], "found list"),
        (7, "found int"),
    ],
)
def test_wrong_filters_say_what_is_wrong(snapshot: Snapshot, where: Where, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        snapshot.condition(where)


@pytest.mark.parametrize("where", ["Lang <> ')'", "Lang <> '(' -- )", "Lang <> 'x' /* ( */"])
def test_parentheses_in_strings_and_comments_do_not_count(snapshot: Snapshot, where: str) -> None:
    assert len(snapshot.matching(where)) == len(snapshot.matching("Lang IS NOT NULL"))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("year >", "parsing"),
        ("nope = 1", "nope.*Known columns: id, .*Lang"),
        ('Lang = "de"', "No field named de"),
        ("year = 2020; drop table pages", "parsing"),
        ("year = 2020 limit 1", "parsing"),
        ("year = 2020) Lang = 'en'", "parentheses do not match"),
        ("(year = 2020", "parentheses do not match"),
        ("year", "boolean"),
        ("year = 'abc'", "abc"),
        ("year / 0 > 1", "[Dd]ivide by zero"),
        ("cast(Lang as int) > 3", "[Cc]ast"),
        ("no_function(year) = 1", "no_function"),
    ],
)
def test_wrong_sql_is_a_query_error_with_the_reason(snapshot: Snapshot, where: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        snapshot.matching(snapshot.condition(where))
    assert ".rs:" not in str(caught.value)
    assert "_v2_0" not in str(caught.value)


@given(st.text(max_size=20) | st.sampled_from(["' OR '1'='1", "\\", "''", "a'b''c", "\x00", "\ud800"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_string_is_data_and_never_sql(snapshot: Snapshot, text: str) -> None:
    assert found(snapshot, {"Lang": text}) == [i + 1 for i, m in enumerate(METADATA) if m["Lang"] == text]


@given(st.text("abc'\\#; \n日😀\x00\ud800", min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_any_string_survives_storage_and_is_found_again(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path: Path = tmp_path_factory.mktemp("strings") / "index"
    store = Store.open(path, settings_if_new=SETTINGS)
    store.upsert([page_row(text, 1, metadata={"key": text}), page_row("other", 1, metadata={"key": "other"})])
    snapshot = store.snapshot()
    (facts,) = snapshot.facts(snapshot.matching(snapshot.condition({"key": text, "doc_id": text})))
    assert facts.metadata["key"] == facts.doc_id
    assert store.delete_documents([text]) == 1
    assert [info.doc_id for info in store.snapshot().documents()] == ["other"]
