"""What an export refuses, how it goes on after being stopped, and bundles that are not what they claim."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exported
import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from budgetvdr.bundle import load_manifest
from budgetvdr.encoders.open import open_encoder
from budgetvdr.errors import BundleError, MissingExtraError
from budgetvdr.export import __main__ as command
from budgetvdr.export import pipeline
from budgetvdr.export.checkpoints import Plan, plan
from budgetvdr.export.errors import ExportError
from budgetvdr.export.graph import trace
from budgetvdr.export.network import Network
from budgetvdr.export.pipeline import Wanted, export_bundle
from budgetvdr.export.stages import sha256
from budgetvdr.export.statistics import with_statistics
from budgetvdr.index import Index
from budgetvdr.training.errors import CheckpointError

FAMILY = "modernvbert"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(exported.checkpoint(FAMILY), tmp_path / "checkpoint"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return exported.copy_of(FAMILY, tmp_path)


def silent(line: str) -> None:
    pass


def export(checkpoint: Path, out: Path, **wanted: Any) -> None:
    export_bundle(plan(str(checkpoint), (1,)), out, Wanted(**wanted), silent)


def test_below_the_threshold_there_is_no_bundle_and_a_lower_one_takes_up_the_work(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bundle"
    with monkeypatch.context() as patched, pytest.raises(ExportError, match=r"too far .*--threshold.*partial stays"):
        patched.setattr(pipeline, "THRESHOLDS", {"float32": 1.5})
        export(checkpoint, out)
    assert not out.exists()

    def never(self: Plan) -> None:
        raise AssertionError("the model is loaded again")

    monkeypatch.setattr(Plan, "load", never)
    export(checkpoint, out)
    load_manifest(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "checkpoint"]
    with pytest.raises(ExportError, match="exists"):
        export(checkpoint, out)


def test_stopped_after_the_page_graph_it_goes_on_with_the_query_graph(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, traced = tmp_path / "bundle", []

    def stops(model: Any, role: Any) -> Network:
        traced.append(role)
        if role == "query":
            raise KeyboardInterrupt
        return trace(model, role)

    monkeypatch.setattr(pipeline, "trace", stops)
    with pytest.raises(KeyboardInterrupt):
        export(checkpoint, out)
    partial = tmp_path / "bundle.partial"
    written = (partial / "weights.bin").stat().st_size
    # What a write under way leaves.
    with (partial / "weights.bin").open("ab") as stream:
        stream.write(b"half a tensor")

    def counts(model: Any, role: Any) -> Network:
        traced.append(role)
        return trace(model, role)

    monkeypatch.setattr(pipeline, "trace", counts)
    export(checkpoint, out)
    assert traced == ["page", "query", "query"]
    # The queries' tensors are the pages'.
    assert (out / "weights.bin").stat().st_size == written
    open_encoder(out, threads=1).encode_query("who?", 1)


def test_another_checkpoint_begins_anew(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(model: Any, role: Any) -> Network:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "trace", stops)
    with pytest.raises(KeyboardInterrupt):
        export(checkpoint, tmp_path / "bundle")
    state = tmp_path / "bundle.partial" / "stages.json"
    before = json.loads(state.read_text())
    assert set(before["stages"]) == {"model", "reference"}
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "note": "trained further"}))

    def loads(self: Plan) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "load", loads)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        export_bundle(plan(str(checkpoint), (1,)), tmp_path / "bundle", Wanted(), said.append)
    # What was there is of no use any more.
    assert not state.exists()
    assert any("bundle.partial was of an export with other options" in line for line in said)


def test_an_export_that_is_stopped_at_its_very_end_goes_on(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, partial = tmp_path / "bundle", tmp_path / "bundle.partial"
    rename, unlink = Path.rename, Path.unlink

    def stops_before(path: Path, target: Path) -> Path:
        if path == partial:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", stops_before)
        export(checkpoint, out)
    assert not out.exists() and (partial / "manifest.json").is_file()

    def stops_after(path: Path, missing_ok: bool = False) -> None:
        if path.parent == out:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", stops_after)
        export(checkpoint, out)
    assert not partial.exists()
    open_encoder(out, threads=1).encode_query("who?", 1)


def test_a_graph_that_tells_something_else_of_its_attention_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"in_degree": "from_start", "from_start": "in_degree"}

    def swapped(model: onnx.ModelProto, depth: int) -> onnx.ModelProto:
        made = with_statistics(model, depth)
        for node in made.graph.node:
            node.output[0] = names.get(node.output[0], node.output[0])
        return made

    with monkeypatch.context() as patched, pytest.raises(ExportError, match="attention is not what the model does"):
        patched.setattr(pipeline, "with_statistics", swapped)
        export(checkpoint, tmp_path / "bundle")
    said: list[str] = []
    export_bundle(plan(str(checkpoint), (1,)), tmp_path / "bundle", Wanted(), said.append)
    told = [line for line in said if line.startswith("attention: ")]
    assert [line.split()[1] for line in told] == ["support", "in_degree", "from_start"]
    assert all("cosine of 1.000000" in line or "cosine of 0.99999" in line for line in told)


def test_running_out_of_memory_is_told_and_other_errors_are_not_hidden(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(checkpoint), "--depths", "1", "--out", str(tmp_path / "bundle")]

    def failing(error: Exception) -> None:
        def load(self: Plan) -> None:
            raise error

        monkeypatch.setattr(Plan, "load", load)

    goes_on = "the same command goes on from here"
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")):
        failing(error)
        assert command.main(arguments) == 2
        said = capsys.readouterr().err
        # Nothing of it is left.
        assert "not enough memory" in said and goes_on not in said

    def interrupted(self: Plan) -> None:
        (tmp_path / "bundle.partial" / "begun").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "load", interrupted)
        assert command.main(arguments) == 130
        assert goes_on in capsys.readouterr().err
    failing(RuntimeError("a mistake of ours"))
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        command.main(arguments)


def test_numbers_that_are_none_are_refused_with_what_was_expected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["checkpoint", "--out", "bundle", "--depths", "4,a"])
    assert stopped.value.code == 2
    assert "expected whole numbers with commas between, found '4,a'" in capsys.readouterr().err


def pickled(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    torch.save({}, folder / "pytorch_model.bin")


def truncated(folder: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    os.truncate(path, path.stat().st_size // 2)


def strange(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))


def impossible(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["vlm_config"]["text_config"]["num_attention_heads"] = 5
    path.write_text(json.dumps(config))


def not_finite(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.0.mlp" in name)
    tensors[name].fill_(torch.nan)
    save_file(tensors, path)


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (pickled, "pickled"),
        (truncated, "is damaged"),
        (strange, "llama"),
        (no_config, "config.json"),
        (not_finite, "has values that are not finite"),
        (impossible, "can be made of its config"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_and_nothing_is_written(
    checkpoint: Path, tmp_path: Path, damage: Callable[[Path], None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(checkpoint)
    out = tmp_path / "bundle"
    assert command.main([str(checkpoint), "--depths", "1", "--out", str(out)]) == 2
    assert says in capsys.readouterr().err
    with pytest.raises((CheckpointError, ExportError)):
        export(checkpoint, out)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--depths", "9"], "2 layers"),
        (["--dims", "8,99"], "have 16 components"),
        (["--threshold", "1.01"], "from -1 to 1, found 1.01"),
        (["--threshold", "nan"], "from -1 to 1, found nan"),
        (["--depths", "0"], "from 1 on"),
        (["--dims", "-3"], "from 1 on"),
        (["--image-tokens", "9"], "have a size of their own"),
        (["--images", "/nowhere"], "--images"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    checkpoint: Path, tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(checkpoint), "--out", str(tmp_path / "bundle"), *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("option", ["--depths=9", "--dims=99", "--threshold=2"])
def test_what_the_config_tells_is_refused_before_weights_are_read(
    checkpoint: Path, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "digest", lambda self: pytest.fail("weights are read"))
    assert command.main([str(checkpoint), "--out", str(tmp_path / "bundle"), option]) == 2


def test_a_bundle_is_not_exported_and_a_folder_that_is_there_is_refused_before_anything_is_fetched(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(bundle), "--out", str(tmp_path / "new")]) == 2
    assert "is an encoder bundle already" in capsys.readouterr().err
    assert command.main(["nobody/nothing", "--out", str(bundle)]) == 2
    assert "bundle exists: choose a new folder" in capsys.readouterr().err


def test_an_unfinished_export_is_no_bundle(bundle: Path) -> None:
    (bundle / "manifest.json").rename(bundle / "stages.json")
    with pytest.raises(BundleError, match="an export that is not finished: run the command"):
        open_encoder(bundle)


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"threads": 2.5}, {"batch_pixels": -1}, {"batch_pixels": True}, {"providers": "CPU"}]
)
def test_arguments_that_are_none_are_refused(bundle: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*found {next(iter(options.values()))!r}"):
        open_encoder(bundle, **options)


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "onnxscript" else object())
    assert command.main(["checkpoint", "--out", "bundle"]) == 2
    assert 'onnxscript: pip install "budgetvdr[export,cpu]"' in capsys.readouterr().err
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "onnxruntime" else object())
    assert command.main(["checkpoint", "--out", "bundle"]) == 2
    assert "onnxruntime: pip install" in capsys.readouterr().err


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: flip(folder / "weights.bin"), r"weights\.bin is damaged"),
        (lambda folder: os.truncate(folder / "weights.bin", 5000), r"weights\.bin is damaged"),
        (lambda folder: (folder / "weights.bin").unlink(), r"weights\.bin is missing"),
        (lambda folder: (folder / "page_1.onnx").unlink(), r"page_1\.onnx is missing"),
        (lambda folder: flip(folder / "preprocess.json"), r"preprocess\.json is damaged"),
        (lambda folder: exported.edit_manifest(folder, lambda m: m.update(format_version=2)), "newer.*upgrade"),
        (lambda folder: exported.edit_manifest(folder, lambda m: m.update(family="clip")), "family 'clip'"),
        (lambda folder: exported.edit_manifest(folder, lambda m: m.update(family="qwen3_vl")), "qwen3_vl.*modernvbert"),
        (
            lambda folder: exported.edit_manifest(folder, lambda m: m["files"].pop("preprocess.json")),
            "no recorded hash",
        ),
        (lambda folder: exported.edit_manifest(folder, lambda m: m["page_graphs"].pop("1")), "a page graph for each"),
    ],
)
def test_a_bundle_that_is_damaged_or_not_for_this_version_is_refused_when_it_is_opened(
    bundle: Path, tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    damage(bundle)
    with pytest.raises(BundleError, match=says):
        Index.open(tmp_path / "index.bvdr", encoder=bundle)
    assert not (tmp_path / "index.bvdr").exists()


def test_a_graph_newer_than_the_runtime_reads_is_refused(bundle: Path) -> None:
    path = bundle / "query_2.onnx"
    graph = onnx.load(path, load_external_data=False)
    graph.ir_version = 99
    path.write_bytes(graph.SerializeToString())
    exported.edit_manifest(bundle, lambda m: m["files"].update({"query_2.onnx": sha256(path)}))
    encoder = open_encoder(bundle, threads=1)
    with pytest.raises(BundleError, match=r"query_2\.onnx cannot be loaded"):
        encoder.encode_query("who?", 2)


def test_weights_that_are_cut_after_opening_are_refused_by_the_graph(bundle: Path) -> None:
    encoder = open_encoder(bundle, threads=1)
    os.truncate(bundle / "weights.bin", 5000)
    with pytest.raises(BundleError, match=r"query_2\.onnx cannot be loaded"):
        encoder.encode_query("who?", 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        # A width that the graphs do not have.
        (lambda m: m.update(dims=[8, 32], presets={n: {"depth": 2, "dim": 8} for n in m["presets"]}), "found 16"),
        # The graph of one depth under the name of another, and of the other role.
        (lambda m: m["page_graphs"].update({"2": "page_1.onnx"}), "found no such exit"),
        (lambda m: m["page_graphs"].update({"1": "page_2.onnx"}), "found an exit after layer 2"),
        (lambda m: m["page_graphs"].update({"1": "query_1.onnx"}), "take input_ids and pixel_values; found"),
        (lambda m: m["query_graphs"].update({"1": "page_1.onnx"}), "take input_ids and no pixel_values; found"),
    ],
)
def test_a_manifest_that_disagrees_with_the_graphs_is_refused_before_there_is_an_index(
    bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    exported.edit_manifest(bundle, change)
    with pytest.raises(BundleError, match=says):
        Index.open(tmp_path / "index.bvdr", encoder=bundle, threads=1)
    assert not (tmp_path / "index.bvdr").exists()


def test_a_checkpoint_in_place_of_a_bundle_gives_the_command_that_makes_one(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("adapter", "trained@home"):
        (tmp_path / name).mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "trained@home" / "elastic.json").write_text("{}")
    for encoder in (checkpoint, str(checkpoint), tmp_path / "adapter", str(tmp_path / "trained@home")):
        with pytest.raises(BundleError) as error:
            Index.open(tmp_path / "index.bvdr", encoder=encoder)
        command_line = f"python -m budgetvdr.export {encoder} --dtype int8 --out {Path(encoder).name}-bundle"
        assert command_line in str(error.value)
    (tmp_path / "adapter" / "elastic.json").write_text('{"family": "reader"}')
    with pytest.raises(BundleError, match=r"python export/convert_reader\.py --weights"):
        open_encoder(tmp_path / "adapter")
    assert not (tmp_path / "index.bvdr").exists()


def test_a_name_on_the_hub_needs_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "huggingface_hub":
            raise ModuleNotFoundError("No module named 'huggingface_hub'")
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"budgetvdr\[hub\]"):
        open_encoder("vidore/colqwen2-v1.0")


@pytest.mark.parametrize("name", ["nowhere", "./a/b/c", "/nowhere/at/all", Path("owner/name")])
def test_what_is_no_folder_and_no_name_on_the_hub_is_no_bundle(name: str | Path) -> None:
    with pytest.raises(BundleError, match="does not exist: expected the folder"):
        open_encoder(name)


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle.zip").write_bytes(b"")
    with pytest.raises(BundleError, match="is a file: expected the folder"):
        open_encoder(tmp_path / "bundle.zip")
