"""A tiny task of pictures; as a program, a run of it that is killed on the way."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.vision.load import load_vision
from budgetvdr.training.pairs import Pair, TrainingSet

# Threads cost more than they save on tensors this small, most of all on a busy machine.
torch.set_num_threads(1)

OBJECTIVE = Objective(depths=(1, 3), dims=(4, 16), cross_depth=0.5, temperature=0.1)
SETTINGS = TrainSettings(
    steps=20, batch=4, learning_rate=1e-3, head_learning_rate=1e-2, warmup=2, save_every=5, cpu=True
)
COLOURS = ["red", "green", "blue", "white", "black", "yellow"]


def tiny_task() -> TrainingSet:
    """Pages of two colours; the question names them."""
    pages, pairs = {}, []
    for top in COLOURS:
        for bottom in COLOURS:
            if top == bottom:
                continue
            page = Image.new("RGB", (40, 56), bottom)
            ImageDraw.Draw(page).rectangle((0, 0, 40, 28), fill=top)
            pages[f"{top}/{bottom}"] = page
            pairs.append(Pair(f"{top} over {bottom}", f"{top}/{bottom}"))
    return TrainingSet(pairs, pages.__getitem__)


def run(source: Path, folder: Path, on_step: Callable[[int, Mapping[str, float]], object] | None = None) -> None:
    """source: a tiny checkpoint."""
    train(load_vision(source, depths=(1, 3)), tiny_task(), OBJECTIVE, SETTINGS, folder, on_step=on_step)


def kill_at_13(step: int, metrics: Mapping[str, float]) -> None:
    if step == 13:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), kill_at_13)
