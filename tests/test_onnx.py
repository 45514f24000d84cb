"""Sessions: opened when needed, honest about providers, clear about damage."""

from __future__ import annotations

import builtins
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bert

from budgetvdr.encoders.onnx import CPU, Sessions
from budgetvdr.errors import BundleError, EncodingError, MissingExtraError, ProviderError

IDS = np.array([[2, 5, 6, 7, 3]], dtype=np.int64)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write_bundle(tmp_path_factory.mktemp("bundle"), source)


def copy_of(bundle: Path, folder: Path) -> Path:
    return Path(shutil.copytree(bundle, folder / "bundle"))


def test_outputs_come_in_the_order_asked_for(bundle: Path) -> None:
    sessions = Sessions(bundle)
    one, three = sessions.run("depth_3.onnx", {"ids": IDS}, ["exit_1", "exit_3"])
    swapped = sessions.run("depth_3.onnx", {"ids": IDS}, ["exit_3", "exit_1"])
    np.testing.assert_array_equal(swapped[0], three)
    np.testing.assert_array_equal(swapped[1], one)
    assert one.dtype == np.float32 and one.shape == (1, 5, tiny_bert.HIDDEN)


def test_a_graph_is_opened_once_and_only_when_run(bundle: Path, tmp_path: Path) -> None:
    folder = copy_of(bundle, tmp_path)
    (folder / "depth_3.onnx").unlink()
    sessions = Sessions(folder)
    sessions.run("depth_1.onnx", {"ids": IDS}, ["exit_1"])
    assert sessions.open("depth_1.onnx") is sessions.open("depth_1.onnx")
    with pytest.raises(BundleError, match=r"depth_3\.onnx"):
        sessions.run("depth_3.onnx", {"ids": IDS}, ["exit_3"])


def test_threads_share_a_session(bundle: Path) -> None:
    sessions = Sessions(bundle)
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: id(sessions.open("depth_2.onnx")), range(16)))
        results = list(pool.map(lambda _: sessions.run("depth_2.onnx", {"ids": IDS}, ["exit_2"])[0], range(32)))
    assert len(set(opened)) == 1
    assert all(np.array_equal(result, results[0]) for result in results)


def test_a_graph_that_loads_keeps_no_other_waiting(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(bundle)
    began, may_end, load = threading.Event(), threading.Event(), sessions._load

    def slow(path: Path) -> Any:
        if path.name == "depth_3.onnx":
            began.set()
            assert may_end.wait(60)
        return load(path)

    monkeypatch.setattr(sessions, "_load", slow)
    with ThreadPoolExecutor(2) as pool:
        deep = [pool.submit(sessions.open, "depth_3.onnx") for _ in range(2)]
        assert began.wait(60)
        sessions.open("depth_1.onnx")
        may_end.set()
        assert deep[0].result() is deep[1].result()


@pytest.mark.parametrize("damage", ["weights cut", "weights missing", "graph cut", "graph is something else"])
def test_damage_is_a_bundle_error_that_names_the_graph(bundle: Path, tmp_path: Path, damage: str) -> None:
    folder = copy_of(bundle, tmp_path)
    if damage == "weights cut":
        os.truncate(folder / "weights.bin", (folder / "weights.bin").stat().st_size // 2)
    elif damage == "weights missing":
        (folder / "weights.bin").unlink()
    elif damage == "graph cut":
        os.truncate(folder / "depth_2.onnx", 4000)
    else:
        (folder / "depth_2.onnx").write_text("not a graph")
    with pytest.raises(BundleError, match=r"depth_2\.onnx cannot be loaded"):
        Sessions(folder).run("depth_2.onnx", {"ids": IDS}, ["exit_2"])


def test_inputs_a_graph_does_not_take_are_a_bundle_error(bundle: Path) -> None:
    with pytest.raises(BundleError, match="failed to run"):
        Sessions(bundle).run("depth_1.onnx", {"words": IDS}, ["exit_1"])
    with pytest.raises(BundleError, match="failed to run"):
        Sessions(bundle).run("depth_1.onnx", {"ids": np.zeros((1, 999), np.int64)}, ["exit_1"])


def test_values_that_are_not_finite_are_an_encoding_error(tmp_path: Path) -> None:
    source = tiny_bert.write_model(tmp_path / "model")
    from safetensors.numpy import load_file, save_file

    tensors = load_file(source / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][3] = np.nan
    save_file(tensors, source / "model.safetensors")
    sessions = Sessions(tiny_bert.write_bundle(tmp_path / "bundle", source))
    sessions.run("depth_3.onnx", {"ids": IDS}, ["exit_1"])
    with pytest.raises(EncodingError, match="exit_2") as error:
        sessions.run("depth_3.onnx", {"ids": IDS}, ["exit_1", "exit_2"])
    assert "wider --dtype" in str(error.value) and "try providers" not in str(error.value)
    sessions._providers = ("CUDAExecutionProvider", CPU)
    with pytest.raises(EncodingError, match=r"try providers=\('CPUExecutionProvider',\), or export"):
        sessions.run("depth_3.onnx", {"ids": IDS}, ["exit_2"])


def test_providers_are_those_asked_for(bundle: Path) -> None:
    sessions = Sessions(bundle, providers=(CPU,))
    assert sessions.providers == (CPU,)
    assert sessions.open("depth_1.onnx").get_providers() == [CPU]


@pytest.mark.parametrize("providers", [(), ("ImaginaryExecutionProvider",), ("ImaginaryExecutionProvider", CPU)])
def test_a_provider_that_is_not_there_is_refused_with_those_that_are(bundle: Path, providers: tuple[str, ...]) -> None:
    with pytest.raises(ProviderError, match=CPU):
        Sessions(bundle, providers=providers)


def test_a_provider_that_is_claimed_but_not_used_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    # What a CUDA build does on a machine without a driver: the provider is listed, sessions run without it.
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", CPU])
    real = onnxruntime.InferenceSession

    def on_cpu(path: Path, options: Any, providers: list[str], enable_fallback: int) -> Any:
        return real(path, options, providers=[CPU], enable_fallback=enable_fallback)

    monkeypatch.setattr(onnxruntime, "InferenceSession", on_cpu)
    sessions = Sessions(bundle, providers=("CUDAExecutionProvider", CPU))
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        sessions.open("depth_1.onnx")


def test_a_provider_that_cannot_run_all_is_told_to_have_the_cpu_beside_it(bundle: Path) -> None:
    import onnxruntime

    others = [name for name in onnxruntime.get_available_providers() if name == "AzureExecutionProvider"]
    if not others:
        pytest.skip("this build of onnxruntime has no provider that lacks operators")
    with pytest.raises(BundleError, match=f"add {CPU} behind them"):
        Sessions(bundle, providers=others).open("depth_1.onnx")
    Sessions(bundle, providers=(*others, CPU)).open("depth_1.onnx")


def test_without_onnxruntime_the_error_says_what_to_install(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError("No module named 'onnxruntime'")
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"budgetvdr\[cpu\]"):
        Sessions(bundle)


def test_inputs_are_named_those_included_that_may_be_left_out(bundle: Path) -> None:
    assert Sessions(bundle).inputs("depth_2.onnx") >= {"ids", "layers", "steps"}
