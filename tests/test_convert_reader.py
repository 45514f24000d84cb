"""The converter: graphs that compute what BERT computes, over one weights file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tiny_bert
from safetensors.numpy import load_file, save_file

from budgetvdr.bundle import load_manifest, verify_files
from budgetvdr.compress.propagation import in_degree, layer_support
from budgetvdr.encoders.onnx import Sessions

EXITS = ("exit_1", "exit_2", "exit_3")
STATISTICS = ("support", "in_degree", "from_start")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def exact(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write_bundle(tmp_path_factory.mktemp("exact"), source, precision="float32")


@pytest.fixture(scope="module")
def small(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert.write_bundle(tmp_path_factory.mktemp("small"), source, precision="int8")


def layers(*selected: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(tiny_bert.LAYERS), selected)


def random_ids(length: int, seed: int = 0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, len(tiny_bert.VOCABULARY), length)


@pytest.mark.parametrize("length", [1, 2, 17, 256])
def test_every_exit_equals_the_plain_forward_pass(source: Path, exact: Path, length: int) -> None:
    ids = random_ids(length, seed=length)
    states = Sessions(exact).run("depth_3.onnx", {"ids": ids[None]}, EXITS)
    for state, expected in zip(states, tiny_bert.forward(source, ids), strict=True):
        np.testing.assert_allclose(state[0], expected, atol=1e-4)


@pytest.mark.parametrize("length", [1, 17, 256])
def test_integers_keep_the_directions(source: Path, small: Path, length: int) -> None:
    ids = random_ids(length, seed=length)
    states = Sessions(small).run("depth_3.onnx", {"ids": ids[None]}, EXITS)
    for state, expected in zip(states, tiny_bert.forward(source, ids), strict=True):
        lengths = np.linalg.norm(state[0], axis=1) * np.linalg.norm(expected, axis=1)
        assert ((state[0] * expected).sum(1) / lengths).min() > 0.99


@pytest.mark.parametrize("length", [3, 4, 17, 256])
def test_statistics_equal_those_of_the_plain_attention(source: Path, exact: Path, length: int) -> None:
    ids = random_ids(length, seed=length)
    given = {"ids": ids[None], "layers": layers(0, 2), "starts": layers(1, 2), "steps": np.array(4)}
    support, degrees, starts = Sessions(exact).run("depth_3.onnx", given, STATISTICS)
    assert support.shape == (2, 4, length - 2) and degrees.shape == starts.shape == (2, length - 2)
    for place, layer in enumerate((1, 2)):
        attention = tiny_bert.attention(source, ids)[layer]
        np.testing.assert_allclose(starts[place], attention[:, 0, 1:-1].mean(axis=0), rtol=1e-3, atol=1e-6)
    for place, layer in enumerate((0, 2)):
        attention = tiny_bert.attention(source, ids)[layer]
        among_tokens = attention[:, 1:-1, 1:-1]
        np.testing.assert_allclose(support[place], layer_support(among_tokens, 4), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(degrees[place], in_degree(among_tokens), rtol=1e-3, atol=1e-6)


def test_each_statistic_can_be_asked_for_alone(exact: Path) -> None:
    sessions, ids = Sessions(exact), random_ids(19)[None]
    every = {"layers": layers(0, 1, 2), "starts": layers(0, 1, 2), "steps": np.array(2)}
    together = sessions.run("depth_3.onnx", {"ids": ids, **every}, STATISTICS)
    for asked in ("layers", "starts"):
        given = {"ids": ids, "steps": np.array(2), asked: layers(1)}
        for name, all_layers, found in zip(
            STATISTICS, together, sessions.run("depth_3.onnx", given, STATISTICS), strict=True
        ):
            one = all_layers[1:2] if (name == "from_start") == (asked == "starts") else all_layers[:0]
            np.testing.assert_array_equal(found, one)


def test_without_selected_layers_there_are_no_statistics(small: Path) -> None:
    for given in ({}, {"layers": layers(), "steps": np.array(5)}):
        support, degrees, starts = Sessions(small).run(
            "depth_3.onnx", {"ids": random_ids(9)[None], **given}, STATISTICS
        )
        assert support.shape == (0, 5 if given else 1, 7) and degrees.shape == starts.shape == (0, 7)


def test_statistics_leave_the_vectors_as_they_are(small: Path) -> None:
    sessions, ids = Sessions(small), random_ids(60)[None]
    plain = sessions.run("depth_3.onnx", {"ids": ids}, EXITS)
    beside = sessions.run(
        "depth_3.onnx", {"ids": ids, "layers": layers(0, 1, 2), "starts": layers(2), "steps": np.array(6)}, EXITS
    )
    for expected, found in zip(plain, beside, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_shallow_graph_has_the_statistics_of_its_layers(small: Path) -> None:
    sessions, ids, steps = Sessions(small), random_ids(40)[None], np.array(3)
    asked = {"ids": ids, "layers": layers(1), "starts": layers(0), "steps": steps}
    deep = sessions.run("depth_3.onnx", asked, STATISTICS)
    asked |= {name: asked[name][:2] for name in ("layers", "starts")}
    shallow = sessions.run("depth_2.onnx", asked, STATISTICS)
    for expected, found in zip(deep, shallow, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_shallow_graph_gives_what_the_deep_one_gives_at_its_exit(small: Path) -> None:
    ids = random_ids(40)[None]
    sessions = Sessions(small)
    deep = sessions.run("depth_3.onnx", {"ids": ids}, EXITS)
    for depth in (1, 2, 3):
        (shallow,) = sessions.run(f"depth_{depth}.onnx", {"ids": ids}, [f"exit_{depth}"])
        np.testing.assert_array_equal(shallow, deep[depth - 1])


def test_a_shallow_graph_holds_its_own_layers_only(small: Path) -> None:
    graph = onnx.load(small / "depth_1.onnx", load_external_data=False).graph
    assert [output.name for output in graph.output] == ["exit_1", *STATISTICS]
    assert not any(".layer.1." in tensor.name for tensor in graph.initializer)


def test_graphs_share_every_tensor(small: Path) -> None:
    places: dict[str, set[str]] = {}
    for depth in (1, 2, 3):
        for tensor in onnx.load(small / f"depth_{depth}.onnx", load_external_data=False).graph.initializer:
            places.setdefault(tensor.name, set()).add(str(tensor.external_data))
    assert all(len(found) == 1 for found in places.values())


def test_linear_weights_stay_within_seven_bits(small: Path) -> None:
    graph = onnx.load(small / "depth_3.onnx").graph
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name.endswith(".codes")}
    linear = [codes for name, codes in tensors.items() if name.startswith("encoder.")]
    assert len(linear) == 4 * tiny_bert.LAYERS
    assert all(codes.dtype == np.int8 and np.abs(codes.astype(int)).max() == 64 for codes in linear)


def test_the_manifest_describes_what_was_written(small: Path) -> None:
    manifest = load_manifest(small)
    verify_files(manifest, small)
    assert manifest.depths == (1, 2, 3)
    assert manifest.presets["full"].dim == tiny_bert.HIDDEN
    assert set(manifest.files) == {p.name for p in small.iterdir()} - {"manifest.json"}


def test_converting_twice_gives_the_same_bytes(source: Path, small: Path, tmp_path: Path) -> None:
    again = tiny_bert.write_bundle(tmp_path, source, precision="int8")
    assert load_manifest(again).fingerprint == load_manifest(small).fingerprint


def test_a_word_of_zeros_stays_zero(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "zeros"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][3] = 0
    save_file(tensors, folder / "model.safetensors")
    bundle = tiny_bert.write_bundle(tmp_path / "bundle", folder)
    ids = np.array([2, 3, 7, 3])
    (state,) = Sessions(bundle).run("depth_3.onnx", {"ids": ids[None]}, ["exit_3"])
    expected = tiny_bert.forward(folder, ids)[2]
    lengths = np.linalg.norm(state[0], axis=1) * np.linalg.norm(expected, axis=1)
    assert ((state[0] * expected).sum(1) / lengths).min() > 0.98


@pytest.mark.parametrize("config", ["{", "[]", '{"model_type": "bert"}'])
def test_a_config_that_cannot_be_read_is_refused(source: Path, tmp_path: Path, config: str) -> None:
    folder = tmp_path / "other"
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(config)
    with pytest.raises(SystemExit, match="not the config of a BERT"):
        tiny_bert.write_bundle(tmp_path / "bundle", folder)
    assert not (tmp_path / "bundle").exists()


def test_other_weights_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="sha256"):
        tiny_bert.converter().main(["--weights", str(source), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
