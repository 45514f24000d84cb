"""The heads' start: nothing that the plain model can do is lost to the projection."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from training_tools import tiny_reader, tiny_task

from budgetvdr.training.models.heads import start_heads


def pages() -> list[str]:
    task = tiny_task(60)
    return [str(task.load(pair.page)) for pair in task.pairs]


def test_heads_are_deterministic_and_leave_the_transformer_alone() -> None:
    first, second = tiny_reader(seed=1), tiny_reader(seed=1)
    before = {name: tensor.clone() for name, tensor in first.bert.state_dict().items()}
    start_heads(first, pages())
    start_heads(second, pages())
    for name, tensor in first.heads().state_dict().items():
        assert torch.equal(tensor, second.heads().state_dict()[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.bert.state_dict().items())
    assert all(parameter.requires_grad for parameter in first.parameters())


def test_the_last_head_gives_the_first_components() -> None:
    model = tiny_reader()
    start_heads(model, pages())
    inputs = model.prepare(pages()[:4], "page")
    with torch.no_grad():
        hidden = model.bert(inputs["ids"], inputs["attention"], (3,))[3]
        assert torch.equal(model(inputs, "page").exits[3], hidden[..., : model.dim])


def test_shallow_heads_come_nearest_to_the_deep_vectors() -> None:
    model = tiny_reader()
    start_heads(model, pages())
    inputs = model.prepare(pages(), "page")
    mask = inputs["counts"]
    with torch.no_grad():
        exits = model(inputs, "page").exits
        hidden = F.normalize(model.bert(inputs["ids"], inputs["attention"], (1,))[1][mask], dim=-1)
        deep = F.normalize(model.bert(inputs["ids"], inputs["attention"], (3,))[3][mask], dim=-1)
        target = deep[:, : model.dim]
        found = hidden @ model.exits["1"].projection.weight.T
        best = hidden @ torch.linalg.lstsq(hidden, target).solution
    assert float((found - target).norm()) == pytest.approx(float((best - target).norm()), rel=0.01)
    similar = F.cosine_similarity(exits[1][mask], exits[3][mask])
    assert float(similar.mean()) > 0.7
