"""Where a run stands, on disk: what is trained, the optimizer and the step. Without pickle, and whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.files import settle

_PREFIX = "step-"
_PARTIAL = "partial-"
_PARAMETERS, _OPTIMIZER, _DESCRIPTION = "parameters.safetensors", "optimizer.safetensors", "run.json"


def save_state(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, run: Mapping[str, object]
) -> Path:
    """Writes `step-N` in `folder` and then removes older ones.

    step: steps done. run: what must be the same for going on, as JSON. A kill at any moment leaves a whole state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(stale)
    partial, final = folder / f"{_PARTIAL}{step:08d}", folder / f"{_PREFIX}{step:08d}"
    partial.mkdir()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    save_file({name: parameter.detach().contiguous() for name, parameter in trained.items()}, partial / _PARAMETERS)
    save_file(_optimizer_tensors(trained, optimizer), partial / _OPTIMIZER)
    (partial / _DESCRIPTION).write_text(json.dumps({"step": step, "run": run}, indent=2) + "\n", encoding="utf-8")
    settle(partial, final)
    for older in _states(folder)[:-1]:
        shutil.rmtree(older)
    return final


def load_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Mapping[str, object]) -> int:
    """Loads the latest state into model and optimizer; returns the steps done, 0 where there is no state.

    Raises CheckpointError where the state is of a run with another `run` or of another model.
    """
    states = _states(folder)
    if not states:
        return 0
    latest = states[-1]
    description = json.loads((latest / _DESCRIPTION).read_text(encoding="utf-8"))
    found = json.dumps(description["run"], sort_keys=True)
    expected = json.dumps(run, sort_keys=True)
    if found != expected:
        raise CheckpointError(
            f"{latest} is of a run with other settings or data: expected {expected}, found {found}; "
            "go on with the same or choose another folder"
        )
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    stored = load_file(latest / _PARAMETERS)
    if {name: tuple(tensor.shape) for name, tensor in stored.items()} != {
        name: tuple(parameter.shape) for name, parameter in trained.items()
    }:
        raise CheckpointError(f"{latest} is of another model: its trained parameters are not those of this one")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(stored[name])
    _load_optimizer(trained, optimizer, load_file(latest / _OPTIMIZER))
    return int(description["step"])


def _optimizer_tensors(trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": torch.as_tensor(value).detach().contiguous()
        for name, parameter in trained.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _load_optimizer(
    trained: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor]
) -> None:
    for full_name, tensor in stored.items():
        name, _, key = full_name.rpartition("/")
        parameter = trained[name]
        # Adam keeps its count of steps on the CPU.
        place = parameter.device if tensor.shape == parameter.shape else tensor.device
        optimizer.state[parameter][key] = tensor.to(place)


def _states(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
