"""What training writes is whole or not there, and on the disk before it gets its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from training_tools import OBJECTIVE, tiny_reader, write_source

from budgetvdr.training import files
from budgetvdr.training.checkpoint import save_checkpoint
from budgetvdr.training.journal import Journal, read_metrics


def test_a_journal_taken_up_again_is_replaced_in_one_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 0)
    for step in (1, 2, 3):
        journal.write({"step": step})

    def full_disk(descriptor: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(os, "fsync", full_disk)
        Journal(tmp_path, 2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    Journal(tmp_path, 2).write({"step": 2})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(files, "to_disk", lambda path: seen.append((path.name, (tmp_path / "c").exists())))
    save_checkpoint(tiny_reader(), OBJECTIVE, tmp_path / "c", source=write_source(tmp_path / "s"), name="tiny", steps=1)
    before = {name for name, named in seen if not named}
    assert before == {path.name for path in (tmp_path / "c").iterdir()} | {"c.partial"}
    assert [name for name, named in seen if named] == [tmp_path.name]
