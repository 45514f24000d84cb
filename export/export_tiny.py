"""Makes a tiny checkpoint with random weights of one family, exports it and prints the parity report as JSON.

    python export/export_tiny.py --family qwen2_5_vl --out /tmp/tiny

Writes OUT/checkpoint and OUT/bundle. To see that an export works on a machine, and for tests; such a bundle finds
nothing. Needs the packages of the `export` extra.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from budgetvdr.bundle import Manifest
from budgetvdr.errors import BudgetVDRError
from budgetvdr.export.checkpoints import plan
from budgetvdr.export.pipeline import Wanted, export_bundle
from budgetvdr.export.quantize import Dtype
from budgetvdr.training.models.vision.tiny import DIM, tiny_modernvbert, tiny_paligemma
from budgetvdr.training.models.vision.tiny_qwen import tiny_qwen2_5_vl, tiny_qwen2_vl, tiny_qwen3_vl

FAMILIES: Mapping[str, Callable[..., None]] = {
    "paligemma": tiny_paligemma,
    "qwen2_vl": tiny_qwen2_vl,
    "qwen2_5_vl": tiny_qwen2_5_vl,
    "qwen3_vl": tiny_qwen3_vl,
    "modernvbert": tiny_modernvbert,
}


def make(
    family: str, out: Path, *, layers: int, depths: Sequence[int], dtype: Dtype, threshold: float | None = None
) -> Manifest:
    """Writes OUT/checkpoint, where it is not there yet, and OUT/bundle."""
    checkpoint = out / "checkpoint"
    if not checkpoint.is_dir():
        checkpoint.mkdir(parents=True)
        FAMILIES[family](checkpoint, layers=layers)
    return export_bundle(
        plan(str(checkpoint), depths, (DIM // 2, DIM)),
        out / "bundle",
        Wanted(dtype, threshold=threshold),
        lambda line: print(line, file=sys.stderr),
    )


def report(manifest: Manifest, bundle: Path) -> dict[str, object]:
    """What came out."""
    return {
        "name": manifest.name,
        "family": manifest.family,
        "dtype": manifest.dtype,
        "depths": manifest.depths,
        "trained_exits": manifest.trained_exits,
        "fingerprint": manifest.fingerprint,
        "bytes": {name: (bundle / name).stat().st_size for name in manifest.files},
        "parity": [asdict(row) for row in manifest.parity],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FAMILIES), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to; what is there is kept")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--depths", default="1,3", help="exits in layers")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="float32")
    parser.add_argument("--threshold", type=float, help="lowest mean cosine of an exit, as in budgetvdr.export")
    options = parser.parse_args(arguments)
    depths = tuple(int(depth) for depth in options.depths.split(","))
    try:
        manifest = make(
            options.family,
            options.out,
            layers=options.layers,
            depths=depths,
            dtype=options.dtype,
            threshold=options.threshold,
        )
    except BudgetVDRError as error:
        print(f"export_tiny: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report(manifest, options.out / "bundle"), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
