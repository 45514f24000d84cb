"""The command: `python -m budgetvdr.export CHECKPOINT --depths 4,9,18 --dtype float16 --out DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from budgetvdr.bundle import Manifest
from budgetvdr.errors import BudgetVDRError, MissingExtraError

_NEEDED = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "onnxruntime")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit status: 0 done, 2 refused, 130 interrupted."""
    options = None
    try:
        require_packages()
        options = _parser().parse_args(argv)
        return _run(options)
    except BudgetVDRError as error:
        print(f"budgetvdr.export: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"budgetvdr.export: interrupted{_goes_on(options)}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"budgetvdr.export: {error}{_goes_on(options)}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        # torch has no class of its own for it.
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        print(
            "budgetvdr.export: not enough memory: the model is loaded in float32, 4 bytes a weight, whatever the "
            f"--dtype; fewer --depths take less{_goes_on(options)}",
            file=sys.stderr,
        )
        return 2


def require_packages() -> None:
    """Raises MissingExtraError where the packages of the extras are not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f'exporting needs {", ".join(missing)}: pip install "budgetvdr[export,cpu]"')


def _goes_on(options: argparse.Namespace | None) -> str:
    """What to do about an export that stopped, where it has got so far that something of it is left."""
    from budgetvdr.export.stages import partial_of  # noqa: PLC0415

    left = options is not None and partial_of(options.out).is_dir()
    return "; the same command goes on from here" if left else ""


def _parser() -> argparse.ArgumentParser:
    # What follows imports torch.
    from budgetvdr.encoders.vision.slots import SEED  # noqa: PLC0415
    from budgetvdr.export.quantize import Dtype  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m budgetvdr.export", description=__doc__)
    parser.add_argument("checkpoint", help="folder, or owner/name[@revision] on the Hugging Face hub; safetensors only")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the bundle to; must not exist")
    parser.add_argument(
        "--depths", type=_numbers, help="exits in layers, such as 4,9,18; by default a quarter, half and all"
    )
    parser.add_argument(
        "--dims",
        type=_numbers,
        help="prefix widths to offer, such as 32,64,128; vectors end at the last. By default up to all they have",
    )
    parser.add_argument(
        "--image-tokens",
        type=int,
        help="most image tokens of a page, for families that keep a page's size; by default what the checkpoint says",
    )
    parser.add_argument(
        "--query-prefix",
        help='what a query begins with, such as "Query: "; by default as published checkpoints were trained',
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=0,
        help="vectors a page and a query, read out at random vectors behind it (RandSlot); for models trained so",
    )
    parser.add_argument("--slot-seed", type=int, default=SEED, help="of those random vectors")
    parser.add_argument("--dtype", choices=get_args(Dtype), default="float32", help="of the weights")
    parser.add_argument(
        "--threshold", type=float, help="lowest mean cosine with the model that an exit may have; by default per dtype"
    )
    parser.add_argument("--images", type=Path, help="folder of pages to compare on instead of the samples")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that the checkpoint brings; read it first"
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    from budgetvdr.export.checkpoints import plan  # noqa: PLC0415
    from budgetvdr.export.pipeline import Wanted, export_bundle  # noqa: PLC0415
    from budgetvdr.export.stages import check_new  # noqa: PLC0415

    # Before anything is fetched.
    check_new(options.out)
    wanted = Wanted(options.dtype, options.threshold, options.images, options.slots, options.slot_seed)
    manifest = export_bundle(
        plan(
            options.checkpoint,
            options.depths,
            options.dims,
            image_tokens=options.image_tokens,
            query_prefix=options.query_prefix,
            trust_remote_code=options.trust_remote_code,
        ),
        options.out,
        wanted,
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    _print_summary(manifest, options.out)
    return 0


def _print_summary(manifest: Manifest, out: Path) -> None:
    print(f"{'graph':<12}{'exit':>5}{'cosine':>10}{'lowest':>10}{'difference':>12}")
    for row in manifest.parity:
        graph = f"{row.role}_{row.depth}"
        print(f"{graph:<12}{row.exit:>5}{row.cosine:>10.6f}{row.lowest:>10.6f}{row.difference:>12.2e}")
    size = sum((out / name).stat().st_size for name in manifest.files)
    print(f"{out}: {manifest.name}, {size / 1e6:.1f} MB, fingerprint {manifest.fingerprint}")
    untrained = [depth for depth in manifest.depths if depth not in manifest.trained_exits]
    if untrained:
        print(f"exits {untrained} were not trained for retrieval: they work, and find less")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas between, found {text!r}") from error


if __name__ == "__main__":
    sys.exit(main())
