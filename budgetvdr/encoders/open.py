"""A bundle folder -> the encoder that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from budgetvdr.bundle import load_manifest, verify_files
from budgetvdr.encoders import Encoder
from budgetvdr.encoders.onnx import CPU
from budgetvdr.encoders.reader import ReaderEncoder

BUNDLED = "reader"


def open_encoder(
    bundle: str | Path | None = None, *, threads: int | None = None, providers: Sequence[str] = (CPU,)
) -> Encoder:
    """Opens a bundle, after comparing its files with the digests in its manifest.

    bundle: the folder; None for the reader that comes with the package. threads: pages encoded side by side, one a
    core where left out. providers: onnxruntime execution providers, best first.

    Raises BundleError where the bundle is missing, damaged or too new, MissingExtraError without onnxruntime,
    ProviderError for a provider that cannot be used.
    """
    folder = bundled_folder() if bundle is None else Path(bundle)
    manifest = load_manifest(folder)
    verify_files(manifest, folder)
    return ReaderEncoder(folder, threads=threads, providers=providers)


def bundled_folder() -> Path:
    """The folder of the bundle that comes with the package."""
    return Path(str(files("budgetvdr.bundles") / BUNDLED))
