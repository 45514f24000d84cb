"""A tiny reader and a tiny task for the tests of training; as a program, one run of them in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import tiny_bert
import torch

from budgetvdr.training.loop import TrainSettings, train
from budgetvdr.training.lora import Lora, add_lora
from budgetvdr.training.mm_matryoshka import Objective
from budgetvdr.training.models.reader import ReaderModel, load_published
from budgetvdr.training.pairs import Pair, TrainingSet
from budgetvdr.training.processes import join_processes

# Threads cost more than they save on tensors this small, most of all on a busy machine.
torch.set_num_threads(1)

OBJECTIVE = Objective(depths=(1, 3), dims=(4, 16), cross_depth=0.5, temperature=0.1)
SETTINGS = TrainSettings(
    steps=6, batch=6, negatives=1, learning_rate=1e-3, head_learning_rate=1e-2, warmup=2, save_every=3, cpu=True
)
WORDS = tiny_bert.WORDS.replace("##s ##ing ##ed ? . ,", "").split()


def write_source(folder: Path, seed: int = 0) -> Path:
    """A folder as published: the tiny BERT, with the whole config that training reads."""
    source = tiny_bert.write_model(folder, seed)
    path = source / "config.json"
    sizes = {
        "vocab_size": len(tiny_bert.VOCABULARY),
        "hidden_size": tiny_bert.HIDDEN,
        "num_hidden_layers": tiny_bert.LAYERS,
        "intermediate_size": tiny_bert.INNER,
        "max_position_embeddings": tiny_bert.POSITIONS,
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    return source


def tiny_reader(*, token_weights: bool = False, depths: tuple[int, ...] = (1, 3), seed: int = 0) -> ReaderModel:
    with tempfile.TemporaryDirectory() as folder:
        source = write_source(Path(folder), seed)
        torch.manual_seed(seed)
        return load_published(source, depths=depths, dim=16, token_weights=token_weights, max_tokens=32)


def tiny_task(count: int = 20, seed: int = 0) -> TrainingSet:
    """Pages of six words; a query is one to four words of its page, a negative shares half of the page."""
    random = torch.Generator().manual_seed(seed)
    pages, pairs = {}, []
    for number in range(count):
        words = [WORDS[index] for index in torch.randint(len(WORDS), (6,), generator=random)]
        pages[f"p{number}"] = " ".join(words)
        pages[f"n{number}"] = " ".join(words[:3] + WORDS[number % 5 : number % 5 + number % 7])
        pairs.append(Pair(" ".join(words[1 : 2 + number % 4]), f"p{number}", (f"n{number}",)))
    return TrainingSet(pairs, pages.__getitem__)


def run_of(what: str, folder: Path, on_step: Callable[[int, Mapping[str, float]], object] | None = None) -> None:
    """A run of all weights, or of adapters with dropout."""
    model = tiny_reader()
    if what == "lora":
        add_lora(model, Lora(("query", "value"), rank=2, dropout=0.5))
    train(model, tiny_task(), OBJECTIVE, SETTINGS, folder, on_step=on_step)


def kill_at_five(step: int, metrics: Mapping[str, float]) -> None:
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)


def main(kind: str, folder: str, what: str = "full") -> None:
    if kind == "killed":
        run_of(what, Path(folder), kill_at_five)
    else:
        # Also where nobody asks for the CPU and there is nothing else.
        assert torch.cuda.is_available() or join_processes().num_processes == 2
        train(tiny_reader(), tiny_task(), OBJECTIVE, SETTINGS, Path(folder) / "plain")
        train(tiny_reader(), tiny_task(), OBJECTIVE, replace(SETTINGS, chunk=2), Path(folder) / "cached")
        taught, teacher = replace(OBJECTIVE, teacher=0.5), tiny_reader(depths=(3,), seed=1)
        train(tiny_reader(), tiny_task(), taught, SETTINGS, Path(folder) / "taught", teacher=teacher)


if __name__ == "__main__":
    main(*sys.argv[1:])
