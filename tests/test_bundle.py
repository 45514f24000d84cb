"""The manifest, and the bundle that comes with the package."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from budgetvdr.bundle import FORMAT_VERSION, MANIFEST_NAME, Window, load_manifest, verify_files
from budgetvdr.encoders.open import bundled_folder, open_encoder
from budgetvdr.errors import BundleError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the bundled encoder that a test may damage."""
    return Path(shutil.copytree(bundled_folder(), tmp_path / "bundle"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = bundle / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_the_bundled_manifest_promises_what_the_documentation_says() -> None:
    manifest = load_manifest(bundled_folder())
    assert manifest.depths == (2, 4, 6)
    assert manifest.dims == (32, 64, 128, 256, 384)
    assert manifest.trained_exits == (2, 4, 6)
    assert manifest.query_depths == {2: (2,), 4: (4,), 6: (6,)}
    presets = {name: (preset.depth, preset.dim) for name, preset in manifest.presets.items()}
    assert presets == {"full": (6, 384), "balanced": (6, 128), "fast": (6, 64)}


def test_the_bundled_files_are_whole_small_and_licensed() -> None:
    folder = bundled_folder()
    manifest = load_manifest(folder)
    verify_files(manifest, folder)
    assert sum((folder / name).stat().st_size for name in manifest.files) < 30e6
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db" in (folder / "README.md").read_text()


def test_cards_do_not_decide_the_fingerprint() -> None:
    files = load_manifest(bundled_folder()).files
    assert set(files) == {"depth_2.onnx", "depth_4.onnx", "depth_6.onnx", "weights.bin", "tokenizer.json"}


def test_a_manifest_survives_being_written_and_read(bundle: Path) -> None:
    manifest = load_manifest(bundle)
    (bundle / MANIFEST_NAME).write_text(manifest.to_json())
    assert load_manifest(bundle) == manifest


def test_the_fingerprint_changes_with_what_decides_the_vectors_and_with_nothing_else(bundle: Path) -> None:
    before = load_manifest(bundle).fingerprint
    edit(bundle, lambda m: m.update(name="another name"))
    edit(bundle, lambda m: m["presets"].update(tiny={"depth": 2, "dim": 32}))
    edit(bundle, lambda m: m["compression"]["6"].update(steps=9))
    edit(bundle, lambda m: m["compression"].pop("2"))
    edit(bundle, lambda m: m.update(query_depths={"6": [2, 6]}))
    assert load_manifest(bundle).fingerprint == before
    edit(bundle, lambda m: m.update(max_tokens=128))
    assert load_manifest(bundle).fingerprint != before


def test_windows_for_compression_are_read_and_may_be_missing(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(compression={"6": {"first": 1, "last": 5, "steps": 4}}))
    assert load_manifest(bundle).compression == {6: Window(1, 5, 4)}
    # As bundles were written before they had any.
    edit(bundle, lambda m: m.pop("compression"))
    assert load_manifest(bundle).compression == {}


def test_query_depths_are_read_and_each_depth_searches_its_own(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(query_depths={"6": [2, 4, 6]}))
    assert load_manifest(bundle).query_depths == {2: (2,), 4: (4,), 6: (2, 4, 6)}
    # As bundles were written before they had any.
    edit(bundle, lambda m: m.pop("query_depths"))
    assert load_manifest(bundle).query_depths == {2: (2,), 4: (4,), 6: (6,)}


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"not an encoder bundle: expected manifest\.json"):
        load_manifest(tmp_path)
    with pytest.raises(BundleError, match="nowhere"):
        open_encoder(tmp_path / "nowhere")


def test_a_newer_format_asks_for_an_upgrade(bundle: Path) -> None:
    edit(bundle, lambda m: m.update(format_version=FORMAT_VERSION + 1))
    with pytest.raises(BundleError, match=r"newer than this budgetvdr reads.*upgrade"):
        load_manifest(bundle)


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "family": lambda m: m.update(family="telepathy"),
    "depths": lambda m: m.update(depths=[6, 4, 2]),
    "dims": lambda m: m.update(dims=[]),
    "page graph": lambda m: m["page_graphs"].pop("4"),
    "query graph": lambda m: m["query_graphs"].update({"8": "depth_6.onnx"}),
    "recorded hash": lambda m: m["files"].pop("depth_2.onnx"),
    "preset 'fast'": lambda m: m["presets"]["fast"].update(depth=3),
    "leaves the bundle folder": lambda m: m["files"].update({"../secret": "0" * 64}),
    "extra.bin is missing": lambda m: m["files"].update({"extra.bin": "0" * 64}),
    "not a readable manifest": lambda m: m.pop("depths"),
    "window of depth 4 is to lie in the layers": lambda m: m["compression"]["4"].update(last=4),
    "window of depth 3 is to lie in the layers": lambda m: m["compression"].update({"3": m["compression"]["2"]}),
    "query_depths of page depth 6 must be .*found .2, 4.": lambda m: m.update(query_depths={"6": [2, 4]}),
    "query_depths of page depth 6 must be .*found .6, 2.": lambda m: m.update(query_depths={"6": [6, 2]}),
    "query_depths of page depth 6 must be .*found .3, 6.": lambda m: m.update(query_depths={"6": [3, 6]}),
    "query_depths of page depth 5 must be ascending, some of .2, 4, 6.": lambda m: m.update(query_depths={"5": [5]}),
    "window of depth 6: .*first <= last.*take 'compression' out": lambda m: m["compression"]["6"].update(first=4),
    "window of depth 6: .*found .*steps=0": lambda m: m["compression"]["6"].update(steps=0),
    "window of depth 6: .*found .*steps=1001": lambda m: m["compression"]["6"].update(steps=1001),
    "window of depth 6: .*whole numbers, found .*True": lambda m: m["compression"]["6"].update(steps=True),
    "window of depth 6: .*whole numbers, found .*'2'": lambda m: m["compression"]["6"].update(first="2"),
    "window of depth 6: .*whole numbers, found .*inf": lambda m: m["compression"]["6"].update(last=math.inf),
    "format_version must be .*found True": lambda m: m.update(format_version=True),
    "max_query_tokens must be .*found 0": lambda m: m.update(max_query_tokens=0),
    "max_tokens must be .*found '256'": lambda m: m.update(max_tokens="256"),
    "window of depth 6: expected first, last and steps": lambda m: m["compression"]["6"].pop("steps"),
}


@pytest.mark.parametrize("says", CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused(bundle: Path, says: str) -> None:
    edit(bundle, CONTRADICTIONS[says])
    with pytest.raises(BundleError, match=says):
        load_manifest(bundle)


def test_text_that_is_no_json_is_refused(bundle: Path) -> None:
    (bundle / MANIFEST_NAME).write_text("{")
    with pytest.raises(BundleError, match="not a readable manifest"):
        load_manifest(bundle)


@pytest.mark.parametrize("name", ["weights.bin", "depth_6.onnx", "tokenizer.json"])
def test_one_changed_byte_is_found_when_the_bundle_is_opened(bundle: Path, name: str) -> None:
    path = bundle / name
    middle = path.stat().st_size // 2
    with path.open("r+b") as stream:
        stream.seek(middle)
        byte = stream.read(1)
        stream.seek(middle)
        stream.write(bytes([byte[0] ^ 1]))
    with pytest.raises(BundleError, match=f"{name} is damaged"):
        open_encoder(bundle)


def test_a_hash_that_differs_at_its_end_alone_is_shown_as_a_whole(bundle: Path) -> None:
    digest = load_manifest(bundle).files["weights.bin"]
    wrong = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    edit(bundle, lambda m: m["files"].update({"weights.bin": wrong}))
    with pytest.raises(BundleError, match=f"expected sha256 {wrong}, found {digest};"):
        open_encoder(bundle)


def test_a_cut_file_is_found_when_the_bundle_is_opened(bundle: Path) -> None:
    os.truncate(bundle / "weights.bin", 1000)
    with pytest.raises(BundleError, match=r"weights\.bin is damaged"):
        open_encoder(bundle)


def test_a_bundle_opens_from_any_folder_as_str_or_path(bundle: Path) -> None:
    bundled = open_encoder()
    for folder in (bundle, str(bundle)):
        encoder = open_encoder(folder)
        assert encoder.manifest == bundled.manifest
        expected = bundled.encode_query("capital spending", 2).vectors
        np.testing.assert_array_equal(encoder.encode_query("capital spending", 2).vectors, expected)
