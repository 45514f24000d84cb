"""The order of pairs, the shares of processes and the measure of held-out pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from budgetvdr.training.errors import TrainingDataError
from budgetvdr.training.held_out import evaluate_pairs
from budgetvdr.training.models.model import Content, Role
from budgetvdr.training.pairs import BatchPlan, Pair, TrainingSet
from budgetvdr.training.processes import gathered_order, share
from budgetvdr.training.scores import TokenStates


def pairs(count: int, *, every: int = 1) -> list[Pair]:
    """`every` queries share a page; the negatives of a page are the pages after it."""
    return [Pair(f"q{n}", f"p{n // every}", (f"p{n // every + 1}", f"p{n // every + 2}", "same")) for n in range(count)]


def test_an_epoch_has_every_pair_once_and_epochs_differ() -> None:
    plan = BatchPlan(pairs(12), size=4)
    epochs = [[query for step in range(3 * n, 3 * n + 3) for query in plan.batch(step).queries] for n in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(f"q{n}" for n in range(12))
    assert epochs[0] != epochs[1]


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    later = BatchPlan(pairs(40), size=4, negatives=2, seed=3)
    assert later.batch(25) == BatchPlan(pairs(40), size=4, negatives=2, seed=3).batch(25)
    other = BatchPlan(pairs(40), size=4, negatives=2, seed=4)
    assert [later.batch(step) for step in range(5)] != [other.batch(step) for step in range(5)]


@pytest.mark.parametrize("negatives", [0, 1, 3])
def test_no_page_is_twice_in_a_batch(negatives: int) -> None:
    given = {pair.query: pair for pair in pairs(60, every=3)}
    plan = BatchPlan(list(given.values()), size=8, negatives=negatives)
    used = set()
    for step in range(30):
        batch = plan.batch(step)
        assert len(set(batch.pages)) == len(batch.pages)
        assert [given[query].page for query in batch.queries] == list(batch.pages[:8])
        assert len(batch.pages) <= 8 * (1 + negatives)
        assert set(batch.pages[8:]) <= {page for query in batch.queries for page in given[query].negatives}
        assert bool(batch.pages[8:]) == bool(negatives)
        used |= set(batch.queries)
    assert used == set(given)


def test_too_few_pages_for_a_batch() -> None:
    with pytest.raises(TrainingDataError, match="needs as many different pages, found 4"):
        BatchPlan(pairs(12, every=3), size=8)


def test_versions_of_a_page_are_never_in_one_batch() -> None:
    versions = [Pair(f"q{n}", f"p{n // 3}:{n % 3}", (f"p{n // 3 + 1}",), original=f"p{n // 3}") for n in range(60)]
    plan = BatchPlan(versions, size=8, negatives=1)
    for step in range(20):
        batch = plan.batch(step)
        originals = [page.partition(":")[0] for page in batch.pages]
        assert len(set(originals)) == len(originals)
    with pytest.raises(TrainingDataError, match="found 20"):
        BatchPlan(versions, size=21)


def test_a_version_of_a_right_page_is_no_negative() -> None:
    # Each page's hard negative is the other version of the page beside it.
    mixed = [Pair(f"q{n}{v}", f"p{n}:{v}", (f"p{1 - n}:{1 - v}",), original=f"p{n}") for n in (0, 1) for v in (0, 1)]
    plan = BatchPlan(mixed, size=2, negatives=1)
    assert all(len(plan.batch(step).pages) == 2 for step in range(4))


def test_pairs_of_a_group_come_together() -> None:
    grouped = [Pair(f"q{n}", f"p{n}", group=f"g{n % 10}" if n < 80 else "") for n in range(120)]
    group_of = {pair.query: pair.group for pair in grouped}
    plan = BatchPlan(grouped, size=12, together=4, seed=1)
    batches = [[group_of[query] for query in plan.batch(step).queries] for step in range(10)]
    assert sorted(group for batch in batches for group in batch) == sorted(group_of.values())
    mates = sum(batch.count(group) > 1 for batch in batches for group in set(batch) - {""})
    apart = BatchPlan(grouped, size=12, seed=1)
    by_chance = [[group_of[query] for query in apart.batch(step).queries] for step in range(10)]
    assert sum(len(set(batch) - {""}) for batch in batches) < 0.6 * sum(len(set(b) - {""}) for b in by_chance)
    assert mates >= 16
    assert [plan.batch(step) for step in range(10)] != [plan.batch(step) for step in range(10, 20)]


def test_shares_cover_the_batch_once() -> None:
    assert [list(share(7, process, 3)) for process in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert gathered_order(7, 3) == [0, 3, 6, 1, 4, 2, 5]
    assert gathered_order(4, 1) == [0, 1, 2, 3]


# Page n points along axis n; a query's components are its scores.
QUERIES = {
    "first": [3, 2, 1, 0, 0, 0],
    "third": [1, 2, 3, 0, 0, 0],
    "tied": [2, 2, 1, 0, 0, 0],
    "sixth": [0, 1, 1, 1, 1, 1],
}
PAGES = tuple(f"page{n}" for n in range(6))


def encode(contents: Sequence[Content], role: Role) -> TokenStates:
    rows = [QUERIES[str(c)] if role == "query" else [float(f"page{n}" == c) for n in range(6)] for c in contents]
    vectors = torch.tensor(rows, dtype=torch.float32)[:, None]
    return TokenStates({1: vectors}, torch.ones(len(contents), 1).bool())


def test_held_out_ndcg_by_hand() -> None:
    # The right page is page 0 for all.
    held_out = TrainingSet([Pair(query, "page0", PAGES[1:]) for query in QUERIES], lambda page: page)
    found = evaluate_pairs(encode, held_out, [(1, 1)], [6], unit_queries=False)
    expected = (1 + 1 / math.log2(4) + 1 / math.log2(3) + 0) / 4
    assert found == {"1/1/6": pytest.approx(expected)}
    with pytest.raises(TrainingDataError):
        evaluate_pairs(encode, TrainingSet([], held_out.load), [(1, 1)], [6])


def test_other_versions_of_the_right_page_are_not_wrong() -> None:
    # Pages 0 and 2 are versions of one page: each query has the other version and page 1 before its own page.
    pairs = [Pair("third", "page0", ("page1",), "scan"), Pair("first", "page2", ("page1", "scan"), "scan")]
    held_out = TrainingSet(pairs, lambda page: "page5" if page == "scan" else page)
    found = evaluate_pairs(encode, held_out, [(1, 1)], [6], unit_queries=False)
    assert found == {"1/1/6": pytest.approx(1 / math.log2(3))}


@pytest.mark.parametrize(("chunk", "most"), [(None, 32), (2, 2), (64, 32)])
def test_held_out_pages_are_encoded_a_few_at_a_time(chunk: int | None, most: int) -> None:
    sizes: dict[Role, list[int]] = {"query": [], "page": []}

    def counted(contents: Sequence[Content], role: Role) -> TokenStates:
        sizes[role].append(len(contents))
        return encode(contents, role)

    pairs = [Pair("first", f"page{n}") for n in range(40)]
    evaluate_pairs(counted, TrainingSet(pairs, lambda page: page), [(1, 1)], [6], chunk=chunk)
    for found in sizes.values():
        assert (max(found), sum(found)) == (most, 40)
