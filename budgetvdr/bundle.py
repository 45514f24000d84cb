"""The bundle: a folder that holds one encoder, and the manifest that says what is in it.

    manifest.json     this file's `Manifest`, as JSON
    tokenizer.json    the `tokenizers` file
    preprocess.json   how pages and queries are prepared; not for the reader
    slots.npy         what is appended to pages and queries; of encoders with slots alone
    *.onnx            one small graph per (role, depth)
    weights.bin       the tensors of every graph, as ONNX external data

The manifest is the contract between whoever exports a bundle and the runtime: nothing about an encoder is
guessed that the manifest can say.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from budgetvdr.errors import BundleError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
SLOTS_NAME = "slots.npy"
UNFINISHED_NAME = "stages.json"
"""In a folder that an export still works in."""
READER = "reader"
FAMILIES = (READER, "paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "modernvbert")

_CALIBRATE = "take 'compression' out of the manifest and run `budgetvdr calibrate` again"
MOST_STEPS = 1000
"""Propagation has long settled by then, and every step costs as much as the first."""


@dataclass(frozen=True, slots=True)
class Window:
    """The layers whose attention is looked at, first to last, zero-based and inclusive, and the steps K taken in it.

    Raises ValueError for one without layers or steps, or with more than `MOST_STEPS`.
    """

    first: int
    last: int
    steps: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last or not 1 <= self.steps <= MOST_STEPS:
            raise ValueError(f"expected 0 <= first <= last and steps from 1 to {MOST_STEPS}; found {self}")

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Preset:
    """A named point of the grid, chosen by whoever measured the bundle."""

    depth: int
    dim: int


@dataclass(frozen=True, slots=True)
class Parity:
    """How far an exported graph's vectors were from the model's, over some pages or queries.

    role: "page" or "query". depth: the graph. exit: one of its exits. difference: the largest of any component.
    cosine: of the vectors of one page or query, their mean, the lowest found. lowest: of any one vector.
    """

    role: str
    depth: int
    exit: int
    difference: float
    cosine: float
    lowest: float


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle promises.

    format_version: layout of the bundle; this package reads versions up to `FORMAT_VERSION`.
    name: a human name, with the version of the weights.
    family: which preprocessing the graphs expect (one of `FAMILIES`).
    depths: exits, in transformer layers executed, ascending.
    dims: prefix widths that may be searched, ascending; the last is the full width.
    trained_exits: exits whose vectors were trained for retrieval; the others are merely available.
    unit_queries: whether query vectors are to be scaled to unit length; False where their length carries meaning.
    max_tokens: longest window the page graph takes, special tokens included.
    max_query_tokens: longest query, special tokens included.
    page_graphs, query_graphs: depth -> file name. The page graph of a depth outputs every exit up to that depth.
    presets: name -> point of the grid; has at least "full", "balanced" and "fast".
    files: file name -> sha256 of every file but the manifest and what only informs.
    compression: depth -> the calibrated window for page compression there; none for a bundle that was not calibrated.
    query_depths: page depth -> query depths trained to search pages of that depth, its own among them; a depth left
    out has its own alone.
    dtype: of the weights, where the export says so. parity: as measured at the export.
    slots: vectors a page and a query, read out at slots (RandSlot); 0 where tokens have vectors of their own.
    """

    format_version: int
    name: str
    family: str
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    trained_exits: tuple[int, ...]
    unit_queries: bool
    max_tokens: int
    max_query_tokens: int
    page_graphs: Mapping[int, str]
    query_graphs: Mapping[int, str]
    presets: Mapping[str, Preset]
    files: Mapping[str, str]
    compression: Mapping[int, Window] = field(default_factory=dict)
    query_depths: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    dtype: str = ""
    parity: tuple[Parity, ...] = ()
    slots: int = 0

    def __post_init__(self) -> None:
        own = {depth: (depth,) for depth in self.depths}
        object.__setattr__(self, "query_depths", own | dict(self.query_depths))

    @property
    def fingerprint(self) -> str:
        """16 hex digits over everything that decides the vectors: files, family and lengths.

        Windows for compression are no part of it: what a compressed index was made with is recorded there. Neither are
        query depths, which say what the vectors are good for.
        """
        decides = {
            "family": self.family,
            "files": dict(sorted(self.files.items())),
            "max_tokens": self.max_tokens,
            "max_query_tokens": self.max_query_tokens,
            "unit_queries": self.unit_queries,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        return json.dumps(asdict(self), indent=2, sort_keys=False) + "\n"


def load_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a bundle folder; file contents are checked by `verify_files`.

    Raises BundleError where the folder, the manifest or a file it names is missing, where the format is newer
    than this package reads, or where its parts contradict each other.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file() and (folder / UNFINISHED_NAME).is_file():
        raise BundleError(
            f"{folder} is an export that is not finished: run the command that began it again, and open the folder "
            "that makes"
        )
    if not path.is_file():
        raise BundleError(f"{folder} is not an encoder bundle: expected {MANIFEST_NAME} in it, found none")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        manifest = _parse(raw)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BundleError(
            f"{path} is not a readable manifest ({type(error).__name__}: {error}); export it again"
        ) from error
    _check(manifest, folder)
    return manifest


def verify_files(manifest: Manifest, folder: Path) -> None:
    """Compares every file with its recorded hash. Raises BundleError naming the first that differs."""
    for name, expected in manifest.files.items():
        with (folder / name).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != expected:
            raise BundleError(
                f"{folder / name} is damaged: expected sha256 {expected}, found {found}; "
                "install or export the bundle again"
            )


def _parse(raw: Mapping[str, Any]) -> Manifest:
    version = _count(raw, "format_version")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"bundle format {version} is newer than this budgetvdr reads (up to {FORMAT_VERSION}); upgrade budgetvdr"
        )
    return Manifest(
        format_version=version,
        name=str(raw["name"]),
        family=str(raw["family"]),
        depths=tuple(int(d) for d in raw["depths"]),
        dims=tuple(int(d) for d in raw["dims"]),
        trained_exits=tuple(int(d) for d in raw["trained_exits"]),
        unit_queries=bool(raw["unit_queries"]),
        max_tokens=_count(raw, "max_tokens"),
        max_query_tokens=_count(raw, "max_query_tokens"),
        page_graphs={int(depth): str(name) for depth, name in raw["page_graphs"].items()},
        query_graphs={int(depth): str(name) for depth, name in raw["query_graphs"].items()},
        presets={str(name): Preset(int(p["depth"]), int(p["dim"])) for name, p in raw["presets"].items()},
        files={str(name): str(digest) for name, digest in raw["files"].items()},
        compression={int(depth): _window(depth, window) for depth, window in raw.get("compression", {}).items()},
        query_depths={int(page): tuple(int(d) for d in asked) for page, asked in raw.get("query_depths", {}).items()},
        dtype=str(raw.get("dtype", "")),
        parity=tuple(Parity(**row) for row in raw.get("parity", [])),
        slots=int(raw.get("slots", 0)),
    )


def _count(raw: Mapping[str, Any], name: str) -> int:
    value = raw[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 on, found {value!r}")
    return value


def _window(depth: str, raw: Mapping[str, Any]) -> Window:
    numbers: list[Any] = [raw.get(name) for name in ("first", "last", "steps")]
    try:
        if any(type(number) is not int for number in numbers):
            raise ValueError("expected first, last and steps as whole numbers")
        return Window(*numbers)
    except ValueError as error:
        raise BundleError(
            f"the manifest's compression window of depth {depth}: {error}, found {raw}; {_CALIBRATE}"
        ) from error


def _check(manifest: Manifest, folder: Path) -> None:
    if manifest.family not in FAMILIES:
        raise BundleError(
            f"{folder}: family {manifest.family!r} is not one this budgetvdr runs ({', '.join(FAMILIES)})"
        )
    for what, values in (("depths", manifest.depths), ("dims", manifest.dims)):
        if not values or list(values) != sorted(set(values)) or values[0] < 1:
            raise BundleError(f"{folder}: {what} must be ascending positive numbers, found {values}")
    if not set(manifest.trained_exits) <= set(manifest.depths):
        raise BundleError(f"{folder}: trained_exits {manifest.trained_exits} are not among depths {manifest.depths}")
    missing = {"full", "balanced", "fast"} - set(manifest.presets)
    if missing:
        raise BundleError(
            f"{folder}: expected presets full, balanced and fast; {', '.join(sorted(missing))} is missing"
        )
    for name, preset in manifest.presets.items():
        if preset.depth not in manifest.depths or preset.dim not in manifest.dims:
            raise BundleError(f"{folder}: preset {name!r} names a depth or dim the bundle lacks: {preset}")
    for depth, window in manifest.compression.items():
        if depth not in manifest.depths or window.last >= depth:
            raise BundleError(
                f"{folder}: the compression window of depth {depth} is to lie in the layers that depth executes, "
                f"found {window} in a bundle with depths {manifest.depths}; {_CALIBRATE}"
            )
    _check_query_depths(manifest, folder)
    _check_slots(manifest, folder)
    _check_files(manifest, folder)


def _check_query_depths(manifest: Manifest, folder: Path) -> None:
    for page_depth, asked in manifest.query_depths.items():
        among = page_depth in asked and set(asked) <= set(manifest.depths)
        if not among or list(asked) != sorted(set(asked)):
            raise BundleError(
                f"{folder}: query_depths of page depth {page_depth} must be ascending, some of {manifest.depths} with "
                f"{page_depth} itself, found {asked}"
            )


def _check_slots(manifest: Manifest, folder: Path) -> None:
    given = SLOTS_NAME in manifest.files
    if manifest.slots < 0 or given != bool(manifest.slots) or (given and manifest.family == READER):
        raise BundleError(
            f"{folder}: slots must be the number of vectors a page where there is a {SLOTS_NAME}, and 0 elsewhere and "
            f"for the reader; found {manifest.slots} in a bundle of family {manifest.family!r} "
            f"{'with' if given else 'without'} that file. Export it again"
        )


def _check_files(manifest: Manifest, folder: Path) -> None:
    for role, graphs in (("page", manifest.page_graphs), ("query", manifest.query_graphs)):
        if set(graphs) != set(manifest.depths):
            raise BundleError(
                f"{folder}: expected a {role} graph for each of {manifest.depths}, found {sorted(graphs)}"
            )
        for name in graphs.values():
            if name not in manifest.files:
                raise BundleError(f"{folder}: {role} graph {name} has no recorded hash")
    needed = ("tokenizer.json",) if manifest.family == READER else ("tokenizer.json", "preprocess.json")
    for name in needed:
        if name not in manifest.files:
            raise BundleError(f"{folder}: {name} has no recorded hash")
    for name in manifest.files:
        if Path(name).name != name:
            raise BundleError(f"{folder}: file name {name!r} leaves the bundle folder")
        if not (folder / name).is_file():
            raise BundleError(f"{folder}: {name} is missing; install or export the bundle again")
