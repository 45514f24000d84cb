"""Bundles of tiny vision-language checkpoints, exported once a run, and what tests do with them."""

from __future__ import annotations

import atexit
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

torch.set_num_threads(1)

FAMILIES = ("paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "modernvbert")
DEPTHS, LAYERS, DIM = (1, 2), 2, 16


@cache
def recipe() -> ModuleType:
    """export/export_tiny.py, which is no part of a package."""
    path = Path(__file__).parents[1] / "export" / "export_tiny.py"
    spec = importlib.util.spec_from_file_location("export_tiny", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def folder(family: str) -> Path:
    """Has `checkpoint` and `bundle`; not to be changed."""
    made = Path(tempfile.mkdtemp(prefix=f"budgetvdr-{family}-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    recipe().make(family, made, layers=LAYERS, depths=DEPTHS, dtype="float32")
    return made


def bundle(family: str) -> Path:
    return folder(family) / "bundle"


def checkpoint(family: str) -> Path:
    return folder(family) / "checkpoint"


def copy_of(family: str, target: Path) -> Path:
    return Path(shutil.copytree(bundle(family), target / "bundle"))


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = bundle / "manifest.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
