"""The parts of an export that need no model: constants, the weights file, pruning, smaller weights, stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

from budgetvdr.bundle import Parity, Preset
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.export import network as network_module
from budgetvdr.export.errors import ExportError
from budgetvdr.export.linears import find_linears, find_lookups, settled
from budgetvdr.export.network import Constant, Network
from budgetvdr.export.parity import AttentionParity, refuse_other_attention, refuse_worse
from budgetvdr.export.pipeline import presets
from budgetvdr.export.prune import pruned
from budgetvdr.export.quantize import Blocks, Dtype, byte_codes, byte_scales, converted, half
from budgetvdr.export.stages import Stages, partial_folder
from budgetvdr.export.weights import WeightFile, externalised, referenced_bytes

Floats = npt.NDArray[np.float32]

RANDOM = np.random.default_rng(0)
WORDS, WIDTH, INNER, DIM = 50, 40, 300, 8


def floats(*shape: int) -> Floats:
    return RANDOM.standard_normal(shape).astype(np.float32)


def network() -> Network:
    """ids -> words -> (Gemm with bias, then MatMul by a transposed weight) -> a head; `exit_1` is before the layers."""
    constants = {
        "words": floats(WORDS, WIDTH),
        "up": floats(INNER, WIDTH),
        "down": floats(WIDTH, INNER) / 10,
        "head": floats(WIDTH, DIM),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "head"], ["exit_1"]),
        helper.make_node("Gemm", ["embedded", "up", "bias"], ["inner"], transB=1),
        helper.make_node("Relu", ["inner"], ["positive"]),
        helper.make_node("Transpose", ["down"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["positive", "turned"], ["state"]),
        helper.make_node("MatMul", ["state", "head"], ["exit_2"]),
        helper.make_node("Identity", ["unused"], ["nobody"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("unused", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info(f"exit_{depth}", TensorProto.FLOAT, ["n", DIM]) for depth in (1, 2)],
        [numpy_helper.from_array(floats(INNER), "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return Network(model, {name: Constant(array) for name, array in constants.items()})


def expected(made: Network, ids: npt.NDArray[np.int64]) -> list[Floats]:
    source = {name: constant.source for name, constant in made.constants.items()}
    bias = numpy_helper.to_array(made.proto.graph.initializer[0])
    embedded = source["words"][ids]
    state = np.maximum(embedded @ source["up"].T + bias, 0) @ source["down"].T
    return [embedded @ source["head"], state @ source["head"]]


def write(made: Network, folder: Path, outputs: Sequence[str]) -> onnx.ModelProto:
    folder.mkdir(exist_ok=True)
    weights = WeightFile(folder / "weights.bin")
    proto = pruned(externalised(made, weights, lambda size: None), outputs)
    weights.flush()
    weights.close()
    (folder / "graph.onnx").write_bytes(proto.SerializeToString())
    return proto


def cosine(one: Floats, other: Floats) -> float:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return float(((one * other).sum(-1) / lengths).mean())


def test_a_constant_converted_in_blocks_is_the_constant_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "_BLOCK_BYTES", 3 * 7 * 4)
    source = floats(7, 20).T
    constant = Constant(source, half)
    blocks = list(constant.blocks())
    assert len(blocks) > 3
    np.testing.assert_array_equal(np.concatenate(blocks), source.astype(np.float16))
    assert constant.shape() == (20, 7)


def test_equal_tensors_are_kept_once_and_others_start_at_a_page(tmp_path: Path) -> None:
    weights = WeightFile(tmp_path / "weights.bin")
    one = floats(100, 3)
    first = weights.add(Constant(one))
    other = weights.add(Constant(floats(2, 2)))
    assert weights.add(Constant(one.copy())) == first == weights.add(Constant(one))
    # The same bytes as another type or shape are another tensor.
    assert weights.add(Constant(one.view(np.int32))) != first
    assert weights.add(Constant(one.reshape(3, 100))) != first
    assert other.offset % 4096 == 0 and other.length == 16
    weights.close()
    assert (tmp_path / "weights.bin").read_bytes()[: one.nbytes] == one.tobytes()


def test_a_weights_file_goes_on_behind_what_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    weights = WeightFile(path)
    kept, lost = floats(50, 50), floats(30, 30)
    place = weights.add(Constant(kept))
    noted = dict(weights.places)
    weights.add(Constant(lost))
    weights.close()
    again = WeightFile(path, noted)
    assert path.stat().st_size == kept.nbytes
    assert again.add(Constant(kept.copy())) == place
    after = again.add(Constant(lost))
    again.close()
    assert path.read_bytes()[after.offset :] == lost.tobytes()


def test_pruning_keeps_what_leads_to_an_output_inner_graphs_included(tmp_path: Path) -> None:
    made = network()
    proto = write(made, tmp_path, ["exit_1"])
    assert [node.op_type for node in proto.graph.node] == ["Gather", "MatMul"]
    assert {tensor.name for tensor in proto.graph.initializer} == {"words", "head"}
    assert [given.name for given in proto.graph.input] == ["input_ids"]
    assert referenced_bytes(proto) == sum(made.constants[name].source.nbytes for name in ("words", "head"))

    inner = helper.make_graph(
        [helper.make_node("Identity", ["outside"], ["chosen"])],
        "inner",
        [],
        [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["outside"]),
        helper.make_node("Relu", ["x"], ["dead"]),
        helper.make_node("If", ["choice"], ["y"], then_branch=inner, else_branch=inner),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "choice", "y")]
    model = helper.make_model(helper.make_graph(nodes, "outer", values[:2], values[2:]))
    assert [node.output[0] for node in pruned(model, ["y"]).graph.node] == ["outside", "y"]


def test_linear_layers_are_found_as_products_and_as_gemm_and_heads_are_told_apart() -> None:
    made = network()
    found = {linear.output: linear for linear in find_linears(made, ["exit_1", "exit_2"])}
    assert {name: linear.weight.shape for name, linear in found.items()} == {
        "exit_1": (DIM, WIDTH),
        "inner": (INNER, WIDTH),
        "state": (WIDTH, INNER),
        "exit_2": (DIM, WIDTH),
    }
    assert [name for name, linear in found.items() if linear.head] == ["exit_1", "exit_2"]
    assert found["inner"].bias == "bias" and found["state"].bias is None
    assert [lookup.output for lookup in find_lookups(made, "input_ids")] == ["embedded"]
    assert find_lookups(made, "unused") == []


def test_constants_are_transposed_once_and_no_node_does_it(tmp_path: Path) -> None:
    made = settled(network())
    assert "Transpose" not in {node.op_type for node in made.proto.graph.node}
    assert list(made.constants) == ["words", "head", "up", "turned"]
    assert made.constants["turned"].shape() == (INNER, WIDTH)


def test_constants_that_only_an_inner_graph_takes_are_kept() -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["inside"], ["chosen"])],
        "inner",
        [],
        [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("If", ["choice"], ["y"], then_branch=inner, else_branch=inner)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("choice", "y")]
    model = helper.make_model(helper.make_graph([node], "outer", values[:1], values[1:]))
    made = settled(Network(model, {"inside": Constant(floats(3, 3)), "unused": Constant(floats(3, 3))}))
    assert list(made.constants) == ["inside"]


@pytest.mark.parametrize(
    ("dtype", "least", "share"),
    [("float32", 0.9999999, 1.0), ("float16", 0.99999, 0.6), ("int8", 0.999, 0.5), ("int4", 0.97, 0.4)],
)
def test_a_network_of_each_type_computes_nearly_the_same_from_fewer_bytes(
    tmp_path: Path, dtype: Dtype, least: float, share: float
) -> None:
    made = network()
    ids = np.arange(20, dtype=np.int64)
    changed = converted(made, dtype, ["exit_1", "exit_2"])
    write(changed, tmp_path, ["exit_1", "exit_2"])
    found = Sessions(tmp_path).run("graph.onnx", {"input_ids": ids}, ["exit_1", "exit_2"])
    for one, other in zip(found, expected(made, ids), strict=True):
        assert one.dtype == np.float32
        assert cosine(one, other) > least
    # Starts of tensors are aligned, which tiny ones feel; so count what they hold.
    stored = sum(sum(block.nbytes for block in constant.blocks()) for constant in changed.constants.values())
    assert stored <= share * sum(constant.source.nbytes for constant in made.constants.values())
    assert changed.constants["head"].head().dtype == np.float32


def test_rows_do_not_feel_their_neighbours_in_integers_either(tmp_path: Path) -> None:
    made = network()
    made.constants["words"].source[1] *= 1000
    for dtype in ("int8", "int4"):
        write(converted(made, dtype, ["exit_2"]), tmp_path, ["exit_2"])
        sessions = Sessions(tmp_path)
        alone, beside = (
            sessions.run("graph.onnx", {"input_ids": np.array(ids)}, ["exit_2"])[0][0] for ids in ([0], [0, 1])
        )
        np.testing.assert_allclose(alone, beside, rtol=1e-5, atol=1e-5)


def test_four_bits_by_hand() -> None:
    # From -3 to 12 in steps of 1: code 3 is zero. Then a block of zeros, and a row that does not fill its block.
    row = np.array([[-3, 12, 0, 1] + [0] * 12 + [0] * 16 + [4.5]], np.float32)
    codes, scales, zeros = (Blocks(4, 16, part)(row) for part in ("codes", "scales", "zeros"))
    np.testing.assert_array_equal(scales, np.array([1, 1, 0.3], np.float32))
    assert codes.shape == (1, 3, 8)
    # Two codes a byte, the first in the lower half.
    assert codes[0, 0, 0] == 0 | 15 << 4 and codes[0, 0, 1] == 3 | 4 << 4 and codes[0, 2, 0] == 15
    assert zeros.tolist() == [3 | 0 << 4, 0]


def test_eight_bits_by_hand() -> None:
    row = np.array([[-127, 63.4, 0]], np.float32)
    assert Blocks(8, 16, "codes")(row)[0, 0, :4].tolist() == [1, 191, 128, 128]
    assert Blocks(8, 16, "scales")(row).tolist() == [1]
    np.testing.assert_array_equal(byte_codes(row), [[-127, 63, 0]])
    np.testing.assert_array_equal(byte_scales(np.zeros((1, 3), np.float32)), [[1]])


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_are_at_most_half_a_step_from_the_weights(bits: int) -> None:
    rows = floats(6, 70)
    size = 32
    codes, scales = (Blocks(bits, size, part)(rows) for part in ("codes", "scales"))
    scale = scales.reshape(6, -1, 1)
    if bits == 4:
        pairs = Blocks(4, size, "zeros")(rows).reshape(6, -1)
        zero = np.stack([pairs & 15, pairs >> 4], -1).reshape(6, -1)[:, : scale.shape[1], None].astype(np.float32)
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(6, scale.shape[1], size)
    else:
        zero = np.float32(128)
    back = ((codes - zero) * scale).reshape(6, -1)[:, :70]
    assert (
        np.abs(back - rows) <= 0.501 * np.repeat(scale[..., 0], size, axis=1)[:, :70] * (2 if bits == 4 else 1)
    ).all()


def test_presets_use_exits_that_were_trained() -> None:
    assert presets((4, 9, 18), (4, 9, 18), (32, 64, 128)) == {
        "full": Preset(18, 128),
        "balanced": Preset(9, 64),
        "fast": Preset(4, 64),
    }
    assert set(presets((4, 9, 18), (18,), (64, 128)).values()) == {Preset(18, 128), Preset(18, 64)}
    assert set(presets((4,), (), (128,)).values()) == {Preset(4, 128)}


@pytest.mark.parametrize("cosine", [0.97, math.nan])
def test_one_exit_below_the_threshold_is_refused_by_name(cosine: float) -> None:
    rows = [Parity("page", 4, 4, 0.0, 1.0, 1.0), Parity("query", 9, 9, 0.1, cosine, 0.5)]
    with pytest.raises(ExportError, match=r"query graph of depth 9"):
        refuse_worse(rows, 0.98, Path("out.partial"))
    refuse_worse(rows[:1], 0.98, Path("out.partial"))


@pytest.mark.parametrize("cosine", [0.97, math.nan])
def test_attention_that_is_not_the_models_is_refused_by_name(cosine: float) -> None:
    rows = [AttentionParity("support", 1.0), AttentionParity("from_start", cosine)]
    with pytest.raises(ExportError, match="for from_start, found"):
        refuse_other_attention(rows, 0.98, Path("out.partial"))
    refuse_other_attention(rows[:1], 0.98, Path("out.partial"))


def noted(stages: Stages, data: bytes = b"abc") -> None:
    (stages.folder / "file").write_bytes(data)
    stages.finish("one", ["file"], {"answer": 42})


def test_a_finished_stage_is_known_again_and_its_file_may_have_grown(tmp_path: Path) -> None:
    noted(Stages(tmp_path / "work", "inputs"))
    with (tmp_path / "work" / "file").open("ab") as stream:
        stream.write(b"more")
    again = Stages(tmp_path / "work", "inputs")
    assert again.facts("one") == {"answer": 42}
    assert again.facts("two") is None


@pytest.mark.parametrize("damage", [b"abX", b"ab", None])
def test_a_stage_whose_file_is_damaged_is_not_finished(tmp_path: Path, damage: bytes | None) -> None:
    noted(Stages(tmp_path / "work", "inputs"))
    path = tmp_path / "work" / "file"
    path.unlink() if damage is None else path.write_bytes(damage)
    assert Stages(tmp_path / "work", "inputs").facts("one") is None


@pytest.mark.parametrize("state", [None, "", '{"format": 1}', '{"format": 99, "inputs": "inputs", "stages": {}}'])
def test_other_inputs_and_notes_that_cannot_be_read_begin_anew(tmp_path: Path, state: str | None) -> None:
    noted(Stages(tmp_path / "work", "inputs"))
    if state is not None:
        (tmp_path / "work" / "stages.json").write_text(state)
    again = Stages(tmp_path / "work", "other" if state is None else "inputs")
    assert again.facts("one") is None
    assert not (tmp_path / "work" / "file").exists()


def test_a_folder_that_is_stopped_while_it_is_emptied_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted(Stages(tmp_path / "bundle.partial", "inputs"))

    def stops(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", stops)
        Stages(tmp_path / "bundle.partial", "others")
    with partial_folder(tmp_path / "bundle") as partial:
        assert Stages(partial, "others").facts("one") is None
        assert [path.name for path in partial.iterdir()] == ["stages.json"]


def test_a_folder_that_is_there_or_in_use_or_somebody_elses_is_not_touched(tmp_path: Path) -> None:
    out: Any = tmp_path / "bundle"
    with pytest.raises(ExportError, match="another export"), FileLock(tmp_path / "bundle.lock"), partial_folder(out):
        pass
    mine = tmp_path / "bundle.partial" / "thesis.doc"
    mine.parent.mkdir()
    mine.write_text("words")
    with pytest.raises(ExportError, match="in the way"), partial_folder(out):
        pass
    assert mine.read_text() == "words"
    out.mkdir()
    with pytest.raises(ExportError, match="exists"), partial_folder(out):
        pass
    with partial_folder(tmp_path / "new" / "bundle") as partial:
        assert partial == tmp_path / "new" / "bundle.partial"
    assert list((tmp_path / "new").iterdir()) == []
