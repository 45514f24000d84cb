"""Large bundles are read whole once, and again where a file has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from budgetvdr.bundle import Manifest, load_manifest, verify_files
from budgetvdr.encoders import verified
from budgetvdr.encoders.open import bundled_folder, open_encoder
from budgetvdr.encoders.verified import verify_once
from budgetvdr.errors import BundleError

DAY_NS = 24 * 3600 * 10**9


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the bundled encoder as if it had been written yesterday."""
    folder = Path(shutil.copytree(bundled_folder(), tmp_path / "bundle"))
    for path in folder.iterdir():
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - DAY_NS))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verified, "_LARGE", 1)
    return tmp_path / "cache"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, in order."""
    names: list[str] = []

    def noting(manifest: Manifest, folder: Path) -> None:
        names.extend(manifest.files)
        verify_files(manifest, folder)

    monkeypatch.setattr(verified, "verify_files", noting)
    return names


def test_a_large_bundle_is_read_once(bundle: Path, cache: Path, read: list[str]) -> None:
    manifest = load_manifest(bundle)
    verify_once(manifest, bundle)
    assert sorted(read) == sorted(manifest.files)
    read.clear()
    verify_once(manifest, bundle)
    open_encoder(bundle)
    assert read == []
    assert len(list(cache.rglob("*.json"))) == 1
    # The same files elsewhere are others.
    verify_once(manifest, Path(shutil.copytree(bundle, bundle.with_name("copy"))))
    assert sorted(read) == sorted(manifest.files)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flipped, lambda path: os.truncate(path, 1000)])
def test_damage_after_the_first_opening_is_found(
    bundle: Path, cache: Path, read: list[str], damage: Callable[[Path], None]
) -> None:
    open_encoder(bundle)
    read.clear()
    damage(bundle / "weights.bin")
    for _ in range(2):
        with pytest.raises(BundleError, match=r"weights\.bin is damaged"):
            open_encoder(bundle)
    assert read == ["weights.bin"] * 2


def test_a_manifest_of_other_files_is_not_believed(bundle: Path, cache: Path) -> None:
    open_encoder(bundle)
    raw = json.loads((bundle / "manifest.json").read_text())
    raw["files"]["weights.bin"] = "0" * 64
    (bundle / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(BundleError, match=r"weights\.bin is damaged"):
        open_encoder(bundle)


def test_a_file_that_was_just_written_is_read_again(bundle: Path, cache: Path, read: list[str]) -> None:
    (bundle / "tokenizer.json").touch()
    manifest = load_manifest(bundle)
    verify_once(manifest, bundle)
    read.clear()
    verify_once(manifest, bundle)
    assert read == ["tokenizer.json"]


def test_small_bundles_leave_no_note(bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    open_encoder(bundle)
    assert not cache.exists()


@pytest.mark.parametrize("note", [None, "{", "[]", '{"weights.bin": 7}'])
def test_a_cache_that_cannot_be_used_is_done_without(
    bundle: Path, cache: Path, read: list[str], note: str | None
) -> None:
    manifest = load_manifest(bundle)
    if note is None:
        cache.write_text("a file in the way")
    else:
        verify_once(manifest, bundle)
        (path,) = cache.rglob("*.json")
        path.write_text(note)
    read.clear()
    verify_once(manifest, bundle)
    assert sorted(read) == sorted(manifest.files)


def test_the_cache_is_where_the_system_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    expected = {"linux": ".cache", "darwin": "Library/Caches", "win32": "AppData/Local"}
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for platform, place in expected.items():
        monkeypatch.setattr(verified.sys, "platform", platform)
        assert verified._cache_folder() == tmp_path / place
