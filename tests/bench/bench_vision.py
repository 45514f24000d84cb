"""What exported vision-language bundles hold and cost: by family, type of weights, role and depth.

    python tests/bench/bench_vision.py [--families qwen2_vl,...] [--dtypes float32,int8] [--json]
    python tests/bench/bench_vision.py --half-billion --dtypes float32,float16,int8,int4
    python tests/bench/bench_vision.py --bundles BUNDLE ...

The first makes tiny random checkpoints of the families. The second makes one of 0.5 billion parameters in the shape of
Qwen2-VL: 24 layers of 896, 12 tower blocks of 768; it needs 6 GB of disk under --work and reports the export's peak
memory too. The third takes bundles that are there. For every graph: parity with torch as the export measured it, bytes
of the graph and of the weights it takes, and in a process of its own with one thread CPU milliseconds to open and to
run it (best of three) and the memory that it then has beside files, with weights copied and mapped.

Prints a table, then one JSON object; with --json the object alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import onnx
import psutil
from machine import machine

from budgetvdr.bundle import Manifest, load_manifest
from budgetvdr.encoders.onnx import Sessions
from budgetvdr.encoders.vision import open_preprocessor
from budgetvdr.export.weights import referenced_bytes
from budgetvdr.sources import draw_page

ROUNDS = 3
FAMILIES = ("paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "modernvbert")
QUERY = "How many customers are there in the Alpine region?"
RECIPE = Path(__file__).parents[2] / "export" / "export_tiny.py"
# Random weights lose more than trained ones; what is lost is in the table.
_ALL_PARITIES = ["--threshold", "0"]
# Visual tokens of a page of the large model; ColQwen2 takes up to 768.
_TOKENS = 256


def write_half_billion(folder: Path) -> None:
    """A ColQwen2 checkpoint with random weights, 2.3 GB."""
    from transformers import ColQwen2Config, ColQwen2ForRetrieval, Qwen2VLConfig

    from budgetvdr.training.models.vision.tiny import save
    from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_vl

    folder.mkdir(parents=True)
    tiny_qwen2_vl(folder)
    raw = json.loads((folder / "config.json").read_text())["vlm_config"]
    raw["text_config"] |= {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "layer_types": ["full_attention"] * 24,
    }
    raw["text_config"]["rope_parameters"]["mrope_section"] = [8, 12, 12]
    raw["vision_config"] |= {"embed_dim": 768, "num_heads": 12, "hidden_size": 896, "mlp_ratio": 4, "depth": 12}
    config = ColQwen2Config(vlm_config=Qwen2VLConfig(**raw).to_dict(), embedding_dim=128)
    save(ColQwen2ForRetrieval(config), folder, 0)
    settings = folder / "preprocessor_config.json"
    image = json.loads(settings.read_text())
    image["size"] = {"shortest_edge": 4 * 28 * 28, "longest_edge": _TOKENS * 28 * 28}
    settings.write_text(json.dumps(image))


def export_tiny(family: str, dtype: str, out: Path) -> None:
    """OUT/bundle of a tiny checkpoint."""
    options = ["--family", family, "--dtype", dtype, "--out", str(out), "--layers", "3", "--depths", "1,2,3"]
    _run([str(RECIPE), *options, *_ALL_PARITIES])


def export_large(checkpoint: Path, dtype: str, out: Path) -> dict[str, Any]:
    """OUT/bundle; the peak memory of the process and its wall seconds."""
    start = perf_counter()
    command = ["--depths", "6,12,24", "--dtype", dtype, "--out", str(out / "bundle")]
    command += _ALL_PARITIES
    child = subprocess.Popen([sys.executable, "-m", "budgetvdr.export", str(checkpoint), *command], stdout=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit("the export failed")
    peak = usage.ru_maxrss * 1024
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    return {
        "dtype": dtype,
        "checkpoint_mb": round(weights / 1e6),
        "peak_mb": round(peak / 1e6),
        "seconds": round(perf_counter() - start),
    }


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """One row a graph."""
    manifest = load_manifest(folder)
    weights = (folder / "weights.bin").stat().st_size
    for role, graphs in (("page", manifest.page_graphs), ("query", manifest.query_graphs)):
        for depth, name in graphs.items():
            proto = onnx.load(folder / name, load_external_data=False)
            yield {
                "family": manifest.family,
                "dtype": manifest.dtype,
                "role": role,
                "depth": depth,
                **_parity(manifest, role, depth),
                "graph_kb": round((folder / name).stat().st_size / 1e3, 1),
                "weights_mb": round(referenced_bytes(proto) / 1e6, 3),
                "of_mb": round(weights / 1e6, 3),
                **_measured(folder, role, depth, mapped=False),
                **{f"mapped_{key}": value for key, value in _measured(folder, role, depth, mapped=True).items()},
            }


def measure(folder: Path, role: str, depth: int, *, mapped: bool) -> dict[str, float]:
    """In a process of its own: to open and to run one graph."""
    manifest = load_manifest(folder)
    preprocessor = open_preprocessor(folder)
    if role == "page":
        page = draw_page(str(files("budgetvdr") / "samples" / "annual-report.pdf"), 1, 2048)
        batch, graph = preprocessor.pages([page]), manifest.page_graphs[depth]
    else:
        batch, graph = preprocessor.queries([QUERY]), manifest.query_graphs[depth]
    sessions = Sessions(folder, map_weights=mapped)
    before, start = own_bytes(), thread_time()
    sessions.open(graph)
    opened = (thread_time() - start) * 1e3
    inputs = {name: array for name, array in batch.arrays.items() if name in sessions.inputs(graph)}
    times = []
    for _ in range(ROUNDS):
        start = thread_time()
        sessions.run(graph, inputs, [f"exit_{depth}"])
        times.append((thread_time() - start) * 1e3)
    return {
        "tokens": int(batch.counts.sum()),
        "open_ms": round(opened, 1),
        "own_mb": round((own_bytes() - before) / 1e6, 1),
        "run_ms": round(min(times), 2),
    }


def own_bytes() -> int:
    """Memory that is no part of a file, which the system could not take back."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--dtypes", default="float32,float16,int8,int4")
    parser.add_argument("--half-billion", action="store_true")
    parser.add_argument("--bundles", type=Path, nargs="+", help="folders to measure as they are")
    parser.add_argument("--work", type=Path, help="folder to work in; emptied of what was made there")
    parser.add_argument("--json", action="store_true", help="no table")
    parser.add_argument("--measure", nargs=4, metavar=("BUNDLE", "ROLE", "DEPTH", "MAPPED"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        folder, role, depth, mapped = options.measure
        print(json.dumps(measure(Path(folder), role, int(depth), mapped=mapped == "True")))
        return
    result: dict[str, Any] = {"machine": machine("budgetvdr", "onnxruntime", "onnx", "torch", "transformers")}
    result["rows"], result["exports"] = [], []
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for folder in _bundles(Path(work), options, result["exports"]):
            for row in rows_of(folder):
                # A run takes long, and may be stopped.
                print(json.dumps(row), file=sys.stderr, flush=True)
                result["rows"].append(row)
    if not options.json:
        _print_table(result["rows"])
    print(json.dumps(result))


def _bundles(work: Path, options: argparse.Namespace, exports: list[dict[str, Any]]) -> Iterator[Path]:
    """Makes them one after another; each is gone when the next is asked for."""
    if options.bundles:
        yield from options.bundles
        return
    names = ["qwen2_vl"] if options.half_billion else options.families.split(",")
    for name in names:
        checkpoint = work / "large"
        if options.half_billion:
            write_half_billion(checkpoint)
        for dtype in options.dtypes.split(","):
            out = work / f"{name}-{dtype}"
            if options.half_billion:
                exports.append(export_large(checkpoint, dtype, out))
                print(json.dumps(exports[-1]), file=sys.stderr, flush=True)
            else:
                export_tiny(name, dtype, out)
            yield out / "bundle"
            shutil.rmtree(out)


def _parity(manifest: Manifest, role: str, depth: int) -> dict[str, float]:
    (row,) = (row for row in manifest.parity if (row.role, row.depth, row.exit) == (role, depth, depth))
    return {
        "cosine": round(row.cosine, 6),
        "lowest": round(row.lowest, 6),
        "difference": float(f"{row.difference:.2g}"),
    }


def _measured(folder: Path, role: str, depth: int, *, mapped: bool) -> dict[str, Any]:
    done = _run([__file__, "--measure", str(folder), role, str(depth), str(mapped)])
    measured: dict[str, Any] = json.loads(done)
    if mapped:
        del measured["tokens"]
    return measured


def _run(command: Sequence[str]) -> str:
    return subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    names = list(rows[0])
    print("  ".join(f"{name:>{max(len(name), 8)}}" for name in names))
    for row in rows:
        print("  ".join(f"{row[name]!s:>{max(len(name), 8)}}" for name in names))


if __name__ == "__main__":
    main()
