"""A bundle -> the encoder that runs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from budgetvdr.budget import is_count
from budgetvdr.bundle import MANIFEST_NAME, READER, load_manifest
from budgetvdr.encoders import CalibratedEncoder
from budgetvdr.encoders.hub import CHECKPOINT_NAMES, TRAINED_NAME, is_hub_name, snapshot
from budgetvdr.encoders.onnx import CPU, check_names
from budgetvdr.encoders.reader import ReaderEncoder
from budgetvdr.encoders.verified import verify_once
from budgetvdr.encoders.vision.encoder import VisionEncoder
from budgetvdr.errors import BundleError

BUNDLED = "reader"


def open_encoder(
    bundle: str | Path | None = None,
    *,
    threads: int | None = None,
    providers: Sequence[str] = (CPU,),
    batch_pixels: int | None = None,
    map_weights: bool = False,
) -> CalibratedEncoder:
    """Opens a bundle, after comparing its files with the digests in its manifest; those of large bundles once.

    bundle: the folder, or the name of a repository on the Hugging Face hub that holds one ("owner/name", with a
    revision "owner/name@revision"); None for the reader that comes with the package. threads: cores to use, all where
    left out. providers: onnxruntime execution providers, best first. batch_pixels, map_weights: see `VisionEncoder`;
    the reader takes neither.

    Raises BundleError where the bundle is missing, damaged or too new, or is a checkpoint that has to be exported
    first, MissingExtraError without onnxruntime, and without huggingface_hub for a name on the hub, ProviderError for
    a provider that cannot be used, ValueError for threads and batch_pixels that are no whole numbers from 1 on and for
    providers that are no sequence of names.
    """
    check_names(providers)
    for name, value in (("threads", threads), ("batch_pixels", batch_pixels)):
        if value is not None and not is_count(value):
            raise ValueError(f"{name} must be a whole number, at least 1; found {value!r}")
    folder = bundle_folder(bundle)
    manifest = load_manifest(folder)
    verify_once(manifest, folder)
    if manifest.family == READER:
        return ReaderEncoder(folder, threads=threads, providers=providers)
    return VisionEncoder(
        folder, threads=threads, providers=providers, batch_pixels=batch_pixels, map_weights=map_weights
    )


def bundled_folder() -> Path:
    """The folder of the bundle that comes with the package."""
    return Path(str(files("budgetvdr.bundles") / BUNDLED))


def usual_depths(layers: int) -> tuple[int, ...]:
    """Exits for a checkpoint that says of none: after a quarter, half and all of its layers."""
    return tuple(sorted({max(1, round(layers / 4)), max(1, round(layers / 2)), layers}))


def bundle_folder(bundle: str | Path | None) -> Path:
    """The folder of a bundle, named as for `open_encoder`; downloaded where need be.

    Raises BundleError for a checkpoint, MissingExtraError without huggingface_hub for a name on the hub.
    """
    if bundle is None:
        return bundled_folder()
    folder = Path(bundle)
    named = isinstance(bundle, str) and not folder.exists() and is_hub_name(bundle)
    if named:
        folder = snapshot(str(bundle))
    elif not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise BundleError(
            f"{bundle} {found}: expected the folder of an encoder bundle, or owner/name of one on the Hugging Face hub"
        )
    if not (folder / MANIFEST_NAME).is_file() and any((folder / name).is_file() for name in CHECKPOINT_NAMES):
        name = Path(str(bundle).partition("@")[0] if named else bundle).name
        raise BundleError(_export_first(str(bundle), name, folder))
    return folder


def _export_first(bundle: str, name: str, folder: Path) -> str:
    command = f"python -m budgetvdr.export {bundle} --dtype int8 --out {name}-bundle"
    if _trained_family(folder) == READER:
        command = f"python export/convert_reader.py --weights {bundle} --out {name}-bundle"
    return (
        f"{bundle} is a checkpoint, not an encoder bundle: it has no {MANIFEST_NAME}. Export it once, where "
        f'"budgetvdr[export,cpu]" is installed, and open the folder that makes (int8 for a CPU, float16 for a GPU):\n'
        f"    {command}"
    )


def _trained_family(checkpoint: Path) -> object:
    """Of a checkpoint that was trained here; None for others."""
    try:
        return json.loads((checkpoint / TRAINED_NAME).read_text(encoding="utf-8"))["family"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
