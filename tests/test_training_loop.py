"""The loop: caching, several processes, kills, LoRA and precision leave the run what it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from torch import Tensor
from training_tools import OBJECTIVE, SETTINGS, run_of, tiny_reader, tiny_task

from budgetvdr.training import loop, optimizer
from budgetvdr.training.errors import CheckpointError, TrainingError
from budgetvdr.training.journal import read_metrics
from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.lora import Lora, add_lora, merge_lora
from budgetvdr.training.models.model import ElasticModel
from budgetvdr.training.optimizer import rate_at
from budgetvdr.training.pairs import BatchPlan, TrainingSet
from budgetvdr.training.step import Work, backward

WORKER = Path(__file__).with_name("training_tools.py")


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def run_worker(*arguments: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORKER.parent)}
    command = [sys.executable, *launcher, str(WORKER), *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            # torchrun ends its workers where it is asked to end, not where it is killed.
            process.terminate()
            raise
    return subprocess.CompletedProcess(command, process.returncode, "", errors)


def gradients(model: ElasticModel, settings: TrainSettings) -> dict[str, Tensor]:
    task = tiny_task()
    plan = BatchPlan(task.pairs, size=settings.batch, negatives=settings.negatives)

    def encode(contents, role):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return model(model.prepare(contents, role), role)

    model.zero_grad()
    model.checkpoint_activations(settings.checkpointing)
    torch.manual_seed(5)
    work = Work(encode, None, task.load, OBJECTIVE, model.unit_queries, settings.chunk, PartialState(cpu=True))
    backward(work, plan.batch(0))
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_the_loss_falls_and_the_journal_tells(tmp_path: Path) -> None:
    model = tiny_reader(token_weights=True)
    settings = replace(SETTINGS, steps=40, evaluate_every=20)
    seen: list[int] = []

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        seen.append(step)

    train(model, tiny_task(), OBJECTIVE, settings, tmp_path, held_out=tiny_task(8, seed=1), on_step=on_step)
    found = losses(tmp_path)
    assert sum(found[-5:]) < 0.6 * sum(found[:5])
    assert seen == list(range(1, 41))
    evaluations = [line["held_out"] for line in read_metrics(tmp_path) if "held_out" in line]
    assert [line["step"] for line in read_metrics(tmp_path) if "held_out" in line] == [0, 20, 40]
    assert set(evaluations[0]) == {f"{pair}/{dim}" for pair in ("1/1", "3/3", "1/3") for dim in (4, 16)}
    assert all(0 <= value <= 1 for value in evaluations[0].values())
    plot = xml.etree.ElementTree.parse(tmp_path / "loss.svg").getroot()
    lines = plot.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [40, 40]


def test_an_ablation_is_evaluated_at_points_that_it_does_not_train(tmp_path: Path) -> None:
    ablated = OBJECTIVE.without_dim_loss().without_layer_loss()
    wanted = {f"{pair}/{dim}" for pair in ("1/1", "3/3", "1/3") for dim in (4, 16)}
    held_out, grid = tiny_task(4, seed=1), {"evaluated_depths": (1, 3), "evaluated_dims": (4, 16)}
    train(tiny_reader(), tiny_task(), replace(ablated, depths=(3,)), SETTINGS, tmp_path, held_out=held_out, **grid)
    lines = [line["held_out"] for line in read_metrics(tmp_path) if "held_out" in line]
    assert [set(line) for line in lines] == [wanted, wanted]
    for wrong in ({"evaluated_depths": (2, 3)}, {"evaluated_dims": (4, 32)}, {"evaluated_dims": ()}):
        with pytest.raises(TrainingError, match="held-out pairs"):
            train(tiny_reader(), tiny_task(), ablated, SETTINGS, tmp_path, **wrong)


@pytest.mark.parametrize(
    "change", [{"chunk": 1}, {"chunk": 4}, {"checkpointing": True}, {"chunk": 5, "checkpointing": True}]
)
@pytest.mark.parametrize("token_weights", [False, True])
def test_memory_savers_change_no_gradient(change: dict[str, int], token_weights: bool) -> None:
    model = tiny_reader(token_weights=token_weights)
    plain = gradients(model, SETTINGS)
    saved = gradients(model, replace(SETTINGS, **change))
    assert plain.keys() == saved.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(saved[name], gradient, atol=5e-5, rtol=1e-4, msg=name)


def test_dropout_falls_the_same_in_both_passes_of_caching() -> None:
    model = tiny_reader()
    add_lora(model, Lora(("query", "value"), rank=2, dropout=0.5))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.train()
    plain = gradients(model, SETTINGS)
    assert any("lora" in name for name in plain)
    # One chunk draws what the plain pass draws.
    cached = gradients(model, replace(SETTINGS, chunk=100))
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, atol=5e-5, rtol=1e-4, msg=name)


def test_two_processes_are_one(tmp_path: Path) -> None:
    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path / "one")
    result = run_worker("two", str(tmp_path), processes=2)
    assert result.returncode == 0, result.stderr
    one = losses(tmp_path / "one")
    assert len(one) == SETTINGS.steps
    for run in ("plain", "cached"):
        assert losses(tmp_path / run) == pytest.approx(one, rel=1e-4)
    taught = replace(OBJECTIVE, teacher=0.5)
    train(tiny_reader(), tiny_task(), taught, SETTINGS, tmp_path / "alone", teacher=tiny_reader(depths=(3,), seed=1))
    assert losses(tmp_path / "taught") == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)


def test_a_teacher_alone_is_followed(tmp_path: Path) -> None:
    objective = replace(OBJECTIVE, depths=(3,), alpha=dict.fromkeys(OBJECTIVE.dims, 0.0), cross_depth=0.0, teacher=1.0)
    teacher = tiny_reader(depths=(3,))
    with torch.no_grad():
        for parameter in teacher.heads().parameters():
            parameter.normal_(std=0.3)
    before = {name: parameter.clone() for name, parameter in teacher.named_parameters()}
    model = tiny_reader(depths=(3,))
    train(model, tiny_task(), objective, replace(SETTINGS, steps=40, chunk=3), tmp_path, teacher=teacher)
    lines = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert [line["loss"] for line in lines] == pytest.approx([line["teacher"] for line in lines])
    assert sum(losses(tmp_path)[-5:]) < 0.5 * sum(losses(tmp_path)[:5])
    for name, parameter in teacher.named_parameters():
        assert torch.equal(parameter, before[name])


def test_a_teacher_and_its_weight_go_together(tmp_path: Path) -> None:
    taught = replace(OBJECTIVE, teacher=1.0)
    with pytest.raises(TrainingError, match="missing"):
        train(tiny_reader(), tiny_task(), taught, SETTINGS, tmp_path)
    with pytest.raises(TrainingError, match="given"):
        train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path, teacher=tiny_reader(depths=(3,)))
    with pytest.raises(TrainingError, match="one exit"):
        train(tiny_reader(), tiny_task(), taught, SETTINGS, tmp_path, teacher=tiny_reader())


@pytest.mark.parametrize("what", ["full", "lora"])
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path: Path, what: str) -> None:
    run_of(what, tmp_path / "whole")
    killed = run_worker("killed", str(tmp_path / "killed"), what)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(losses(tmp_path / "killed")) == 5
    # The state is of step 3: steps 4 and 5 are done again.
    run_of(what, tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    parts = [
        (tmp_path / run / "state/step-00000006/parameters.safetensors").read_bytes() for run in ("killed", "whole")
    ]
    assert parts[0] == parts[1]


def test_a_kill_while_saving_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path / "whole")
    calls: list[int] = []
    original = loop.save_state

    def save(folder: Path, step: int, *rest: object) -> Path:
        calls.append(step)
        if step == 6:
            monkeypatch.setattr("budgetvdr.training.state._optimizer_tensors", fail)
        return original(folder, step, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_state", save)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path / "run")
    monkeypatch.undo()
    assert calls == [3, 6]
    assert sorted(path.name for path in (tmp_path / "run/state").iterdir()) == ["partial-00000006", "step-00000003"]
    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path / "run")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert [path.name for path in (tmp_path / "run/state").iterdir()] == ["step-00000006"]


def test_other_settings_are_no_resumption(tmp_path: Path) -> None:
    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path)
    with pytest.raises(CheckpointError, match="other settings"):
        train(tiny_reader(), tiny_task(), OBJECTIVE, replace(SETTINGS, learning_rate=1.0), tmp_path)
    with pytest.raises(CheckpointError, match="other settings"):
        train(tiny_reader(), tiny_task(), replace(OBJECTIVE, distil=2.0), SETTINGS, tmp_path)
    pairs = [replace(pair, query=pair.query + "?") for pair in tiny_task().pairs]
    for other in (pairs, tiny_task().pairs[1:]):
        with pytest.raises(CheckpointError, match="other settings"):
            train(tiny_reader(), TrainingSet(other, tiny_task().load), OBJECTIVE, SETTINGS, tmp_path)
    with pytest.raises(CheckpointError, match="other settings"):
        train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path, chosen={"max_tokens": 16})
    with pytest.raises(CheckpointError, match="another model"):
        train(tiny_reader(token_weights=True), tiny_task(), OBJECTIVE, SETTINGS, tmp_path)


def test_lora_trains_adapters_and_heads_only_and_merges(tmp_path: Path) -> None:
    model = tiny_reader()
    before = {name: tensor.clone() for name, tensor in model.bert.state_dict().items()}
    add_lora(model, Lora(("query", "value"), rank=2, dropout=0.0))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or name.startswith("exits.") for name in trained)
    train(model, tiny_task(), OBJECTIVE, replace(SETTINGS, steps=20, learning_rate=1e-2), tmp_path)
    found = losses(tmp_path)
    assert sum(found[-5:]) < sum(found[:5])
    model.eval()
    inputs = model.prepare(["fish swim in cold water"], "page")
    adapted = model(inputs, "page")
    merge_lora(model)
    after = model.bert.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.endswith(("self.query.weight", "self.value.weight"))}
    for depth, vectors in model(inputs, "page").exits.items():
        torch.testing.assert_close(vectors, adapted.exits[depth], atol=1e-4, rtol=1e-4)


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path / "single")
    train(tiny_reader(), tiny_task(), OBJECTIVE, replace(SETTINGS, bf16=True), tmp_path / "half")
    single, half = losses(tmp_path / "single"), losses(tmp_path / "half")
    assert half != single
    assert half == pytest.approx(single, rel=0.1)


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    model = tiny_reader()
    with torch.no_grad():
        model.exits["3"].projection.weight[0, 0] = torch.inf  # type: ignore[union-attr,index]
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(TrainingError, match="not finite"):
        train(model, tiny_task(), OBJECTIVE, SETTINGS, tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ({"depths": (1, 2)}, {}),
        ({"dims": (4, 32)}, {}),
        ({}, {"steps": 0}),
        ({}, {"save_every": 0}),
    ],
)
def test_settings_that_do_not_fit_the_model(
    tmp_path: Path, objective: dict[str, object], settings: dict[str, int]
) -> None:
    with pytest.raises(TrainingError):
        train(tiny_reader(), tiny_task(), replace(OBJECTIVE, **objective), replace(SETTINGS, **settings), tmp_path)


def test_the_rate_rises_and_falls() -> None:
    settings = TrainSettings(steps=10, warmup=4)
    rates = [rate_at(step, settings) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == pytest.approx([1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_heads_have_their_own_rate_and_biases_do_not_decay() -> None:
    model = tiny_reader()
    adam = optimizer.make_optimizer(model, SETTINGS)
    groups = {(group["lr"], group["weight_decay"]): len(group["params"]) for group in adam.param_groups}
    assert sum(groups.values()) == len(list(model.parameters()))
    assert groups[SETTINGS.head_learning_rate, 0.01] == groups[SETTINGS.head_learning_rate, 0.0] == 2
    optimizer.set_rates(adam, 0.5)
    assert {group["lr"] for group in adam.param_groups} == {5e-3, 5e-4}


def test_a_run_killed_before_its_first_state_begins_anew(tmp_path: Path) -> None:
    def kill(step: int, metrics: Mapping[str, float]) -> None:
        raise KeyboardInterrupt

    held_out = tiny_task(4, seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path, held_out=held_out, on_step=kill)
    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path, held_out=held_out)
    assert [line["step"] for line in read_metrics(tmp_path) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in read_metrics(tmp_path) if "held_out" in line] == [0, 6]


def test_metrics_of_a_killed_write_are_left_out(tmp_path: Path) -> None:
    train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 7, "lo')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    state = json.loads((tmp_path / "state/step-00000006/run.json").read_text())
    assert state["run"]["settings"] == asdict(SETTINGS)
