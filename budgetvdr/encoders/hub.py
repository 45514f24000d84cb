"""Bundles on the Hugging Face hub. The only importer of huggingface_hub at run time."""

from __future__ import annotations

import glob
import json
import re
from pathlib import Path

from budgetvdr.bundle import MANIFEST_NAME
from budgetvdr.errors import BundleError, MissingExtraError

TRAINED_NAME = "elastic.json"
CHECKPOINT_NAMES = ("config.json", "adapter_config.json", TRAINED_NAME)
"""A folder without a manifest is a checkpoint where it has one of these: a model, an adapter, or one trained here."""

# owner/name, as the hub allows them, and a revision.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


def is_hub_name(text: str) -> bool:
    """Whether a text can name a repository: "owner/name" or "owner/name@revision"."""
    return _NAME.fullmatch(text) is not None


def snapshot(name: str) -> Path:
    """The folder with a repository's bundle, the files that its manifest names; for one without, with what tells that
    it is a checkpoint.

    What was downloaded before is taken from the hub's cache, without a connection too.

    Raises MissingExtraError without huggingface_hub, BundleError where there is no such repository or it cannot be
    reached.
    """
    try:
        import huggingface_hub  # noqa: PLC0415 -- an extra: only names on the hub need it
    except ImportError as error:
        raise MissingExtraError(
            f'{name} is no folder here; to look for it on the Hugging Face hub: pip install "budgetvdr[hub]"'
        ) from error
    repository, _, revision = name.partition("@")
    small = [MANIFEST_NAME, *CHECKPOINT_NAMES]
    try:
        folder = Path(huggingface_hub.snapshot_download(repository, revision=revision or None, allow_patterns=small))
        if (folder / MANIFEST_NAME).is_file():
            # The same revision as the manifest, whatever is pushed meanwhile.
            named = _files(folder / MANIFEST_NAME)
            huggingface_hub.snapshot_download(repository, revision=folder.name, allow_patterns=named)
    # Besides its own errors the hub's client lets those of its connection through.
    except Exception as error:
        raise BundleError(
            f"{name} is neither a folder here nor can it be read from the Hugging Face hub: "
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
        ) from error
    return folder


def _files(manifest: Path) -> list[str]:
    """Patterns of the files that a manifest names; none where it cannot be read, which whoever opens it finds out."""
    try:
        names = list(json.loads(manifest.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError):
        return []
    return [glob.escape(name) for name in names if isinstance(name, str)]
