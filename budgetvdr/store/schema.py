"""Columns of the page table, and the settings recorded in its schema.

Vectors of a depth are cut at every searchable width and each slice is its own column, so that a narrow search
reads only narrow columns. The table's own columns that a filter may use have plain names; all others begin with
an underscore, as no metadata key may.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from budgetvdr.errors import BudgetError, IndexFormatError, MetadataError
from budgetvdr.pages import MetadataValue

STORE_FORMAT_VERSION: Final = 2
"""Of an index that holds one vector a token and nothing beside it; packages that know no other still read it."""
FOLDED_FORMAT_VERSION: Final = 3
"""Of an index with fewer vectors than tokens, or with signals."""
TABLE: Final = "pages"
_SETTINGS_KEY: Final = b"budgetvdr"
_IDENTITY_KEY: Final = b"budgetvdr.identity"
_KEY_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LARGEST_INT: Final = 2**63 - 1

SIGNALS: Final = 3
"""Signals of a token: centrality, in-degree, attention of the global token."""

# Lance then refuses a second writer's insert of an id that the first has inserted; without it both rows stay.
_PRIMARY_KEY: Final = {"lance-schema:unenforced-primary-key": "true"}
# Pictures are compressed already.
_STORED_AS_IS: Final = {"lance-encoding:compression": "none"}

OWN_FIELDS: Final = (
    pa.field("id", pa.string(), nullable=False, metadata=_PRIMARY_KEY),
    pa.field("doc_id", pa.string(), nullable=False),
    pa.field("page_num", pa.int32(), nullable=False),
    pa.field("page_count", pa.int32(), nullable=False),
    pa.field("label", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("revision", pa.string(), nullable=False),
    pa.field("reader", pa.string(), nullable=False),
    pa.field("text", pa.string(), nullable=False),
    pa.field("notes", pa.list_(pa.string()), nullable=False),
    pa.field("_width", pa.float64(), nullable=False),
    pa.field("_height", pa.float64(), nullable=False),
    # Drawn by lot whenever the page is stored, and kept when it moves on disk: equal only for a page as it was.
    pa.field("_stamp", pa.uint64(), nullable=False),
    pa.field("_vectors", pa.int32(), nullable=False),
    pa.field("_regions", pa.list_(pa.list_(pa.uint16(), 4)), nullable=False),
    pa.field("_image", pa.large_binary(), metadata=_STORED_AS_IS),
    pa.field("_image_bytes", pa.int64(), nullable=False),
)
_OWN_NAMES: Final = frozenset(field.name for field in OWN_FIELDS)

KINDS: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "str",
    pa.bool_(): "bool",
    pa.int64(): "int",
    pa.float64(): "float",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "datetime with time zone",
    pa.timestamp("us"): "datetime without time zone",
}
"""Types of metadata columns, and their names in messages."""

_PLAIN_TYPES: Final[Mapping[type, pa.DataType]] = {float: pa.float64(), str: pa.string(), date: pa.date32()}


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What an index was made with; recorded when it is created and never changed.

    format_version: layout of the table, `STORE_FORMAT_VERSION` or `FOLDED_FORMAT_VERSION`.
    fingerprint: of the encoder bundle.
    encoder_name: its human name.
    depths: exits whose vectors are stored, ascending.
    dims: widths that can be read, ascending; the last is the full width.
    compression: plain values that tell how tokens were folded into fewer vectors; None where each has its own.
    signals: whether the table keeps what the attention says of each token, for folding later.
    windows: depth -> (first layer, last layer, steps) of the attention that folding or signals looked at.
    """

    format_version: int
    fingerprint: str
    encoder_name: str
    depths: tuple[int, ...]
    dims: tuple[int, ...]
    compression: Mapping[str, Any] | None = None
    signals: bool = False
    windows: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)

    def slices(self, dim: int | None = None) -> list[tuple[int, int]]:
        """(start, end) of every stored slice up to a width, default all. Raises BudgetError for a width not stored."""
        if dim is not None and dim not in self.dims:
            raise BudgetError(f"dim {dim} is not a width of this index: expected one of {list(self.dims)}")
        return [(start, end) for start, end in pairwise((0, *self.dims)) if dim is None or end <= dim]

    def columns(self, depth: int, dim: int) -> list[str]:
        """Names of the columns that hold the first `dim` components at a depth. Raises BudgetError for others."""
        if depth not in self.depths:
            raise BudgetError(f"depth {depth} is not in this index: expected one of {list(self.depths)}")
        return [vector_column(depth, start) for start, _ in self.slices(dim)]

    def count_column(self, depth: int) -> str:
        """Name of the column that holds how many vectors a page has at a depth."""
        return "_vectors" if self.compression is None else f"_stored_{depth}"

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes beside the vectors: its region, and at every depth its fold and signals."""
        return 8 + len(self.depths) * (2 * (self.compression is not None) + 2 * SIGNALS * self.signals)


def fold_column(depth: int) -> str:
    """Name of the column that holds, for every token of a page, the number of its vector at a depth."""
    return f"_fold_{depth}"


def signals_column(depth: int) -> str:
    """Name of the column that holds three signals of every token at a depth."""
    return f"_signals_{depth}"


def vector_column(depth: int, start: int) -> str:
    """Name of the column that holds the slice of a depth beginning at a component."""
    return f"_v{depth}_{start}"


def vector_type(width: int) -> pa.DataType:
    """A page's vectors of one slice: any number of rows of `width` float16."""
    return pa.list_(pa.list_(pa.float16(), width))


def new_schema(settings: IndexSettings) -> pa.Schema:
    """The schema of an empty table, settings inside."""
    vectors = [
        pa.field(vector_column(depth, start), vector_type(end - start), nullable=False)
        for depth in settings.depths
        for start, end in settings.slices()
    ]
    folds, signals = settings.compression is not None, settings.signals
    beside = [
        *(pa.field(settings.count_column(d), pa.int32(), nullable=False) for d in settings.depths if folds),
        *(pa.field(fold_column(d), pa.list_(pa.uint16()), nullable=False) for d in settings.depths if folds),
        *(pa.field(signals_column(d), vector_type(SIGNALS), nullable=False) for d in settings.depths if signals),
    ]
    # A table deleted and made again is another one, whatever its version number.
    identity = uuid.uuid4().hex.encode()
    metadata = {_SETTINGS_KEY: json.dumps(asdict(settings)).encode(), _IDENTITY_KEY: identity}
    return pa.schema([*OWN_FIELDS, *vectors, *beside], metadata=metadata)


def identity_of(schema: pa.Schema) -> bytes:
    """What tells a table from one made later at the same place."""
    found: bytes = (schema.metadata or {}).get(_IDENTITY_KEY, b"")
    return found


def read_settings(schema: pa.Schema, uri: str) -> IndexSettings:
    """Settings of an existing table. Raises IndexFormatError for a foreign table or another format."""
    recorded = (schema.metadata or {}).get(_SETTINGS_KEY)
    if recorded is None:
        raise IndexFormatError(
            f"{uri} holds a LanceDB table {TABLE!r} that budgetvdr did not make; choose another folder"
        )
    try:
        raw = json.loads(recorded)
        version = int(raw["format_version"])
        if version > FOLDED_FORMAT_VERSION:
            raise IndexFormatError(
                f"{uri} has index format {version}, newer than this budgetvdr reads ({FOLDED_FORMAT_VERSION}); "
                "upgrade budgetvdr"
            )
        if version < STORE_FORMAT_VERSION:
            raise IndexFormatError(
                f"{uri} has index format {version}, older than this budgetvdr reads ({STORE_FORMAT_VERSION}); "
                "add its documents to a new index"
            )
        return IndexSettings(
            format_version=version,
            fingerprint=str(raw["fingerprint"]),
            encoder_name=str(raw["encoder_name"]),
            depths=tuple(int(depth) for depth in raw["depths"]),
            dims=tuple(int(dim) for dim in raw["dims"]),
            compression=_compression(raw.get("compression")),
            signals=bool(raw.get("signals", False)),
            windows={int(depth): _window(window) for depth, window in raw.get("windows", {}).items()},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IndexFormatError(f"{uri} has unreadable index settings ({type(error).__name__}: {error})") from error


def _compression(raw: object) -> Mapping[str, Any] | None:
    if raw is not None and not isinstance(raw, dict):
        raise ValueError(f"expected compression as an object, found {raw!r}")
    return raw


def _window(raw: Sequence[int]) -> tuple[int, int, int]:
    first, last, steps = (int(part) for part in raw)
    return first, last, steps


def filter_fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Columns a filter may name and their types: the table's own plain ones, then metadata."""
    return {field.name: field.type for field in schema if not field.name.startswith("_")}


def metadata_fields(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Metadata columns and their types."""
    return {name: kind for name, kind in filter_fields(schema).items() if name not in _OWN_NAMES}


def storable(text: str) -> str:
    """Text as UTF-8 can hold it: lone surrogates, as in undecodable file names, become backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain_value(value: object) -> object:
    """A numpy scalar or a member of an enumeration as the Python scalar it stands for, anything else as it is."""
    if isinstance(value, Enum):
        return plain_value(value.value)
    if isinstance(value, np.datetime64):
        # Nanoseconds, which pandas has, would come out as a bare number.
        return value.astype("datetime64[us]").item()
    return value.item() if isinstance(value, np.generic) else value


def value_type(value: object) -> pa.DataType | None:
    """The column type that holds a metadata value, None where there is none."""
    # bool before int and datetime before date: each is a kind of the other.
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if abs(value) <= _LARGEST_INT else None
    if isinstance(value, datetime):
        return pa.timestamp("us", None if value.utcoffset() is None else "UTC") if _in_utc(value) else None
    return next((kind for known, kind in _PLAIN_TYPES.items() if isinstance(value, known)), None)


def _in_utc(value: datetime) -> bool:
    try:
        value.astimezone(UTC) if value.utcoffset() is not None else None
    except OverflowError:
        return False
    return True


def new_metadata_fields(schema: pa.Schema, pages: Iterable[tuple[str, Mapping[str, MetadataValue]]]) -> list[pa.Field]:
    """Columns that must be added before the metadata of some pages, given as (page id, metadata), can be stored.

    Raises MetadataError for an unusable key or value, and for a value whose type differs from what is stored or
    from another page's. Whole numbers fit a column of floats, and nothing else fits anything else.
    """
    stored = metadata_fields(schema)
    spelling = {field.name.lower(): field.name for field in schema}
    new: dict[str, pa.DataType] = {}
    for page_id, metadata in pages:
        for key, raw in metadata.items():
            value = plain_value(raw)
            if value is None:
                continue
            _check_key(key, page_id, spelling)
            found = value_type(value)
            if found is None:
                raise MetadataError(
                    f"metadata {key!r} of {page_id}: expected str, int (64 bits), float, bool, date or datetime, "
                    f"found {type(value).__name__} {value!r:.60}; convert it"
                )
            if key in stored:
                _check_fits(stored[key], found, key, page_id)
            else:
                new[key] = _widened(new.get(key, found), found, key, page_id)
                spelling[key.lower()] = key
    return [pa.field(key, kind) for key, kind in new.items()]


def metadata_column(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Metadata values of one key, None where a page has none, as a column."""
    if pa.types.is_floating(kind):
        return pa.array([None if value is None else float(value) for value in values], kind)  # type: ignore[arg-type]
    if pa.types.is_string(kind):
        return pa.array([None if value is None else storable(str(value)) for value in values], kind)
    return pa.array(values, kind)


def _check_key(key: object, page_id: str, spelling: Mapping[str, str]) -> None:
    if not isinstance(key, str) or not _KEY_PATTERN.fullmatch(key):
        raise MetadataError(
            f"metadata key {key!r} of {page_id}: expected a letter followed by letters, digits and underscores, "
            "as it becomes a column name; rename it"
        )
    taken = spelling.get(key.lower())
    if taken in _OWN_NAMES:
        raise MetadataError(f"metadata key {key!r} of {page_id} is the name of a column of the index itself; rename it")
    if taken is not None and taken != key:
        raise MetadataError(
            f"metadata key {key!r} of {page_id} differs only by case from the stored {taken!r}, "
            "which a filter could not tell apart; use one spelling"
        )


def _check_fits(stored: pa.DataType, found: pa.DataType, key: str, page_id: str) -> None:
    if found == stored or (pa.types.is_floating(stored) and pa.types.is_integer(found)):
        return
    raise MetadataError(
        f"metadata {key!r} of {page_id}: expected {KINDS.get(stored, str(stored))}, as the index stores it, "
        f"found {KINDS[found]}; convert the value or use another key"
    )


def _widened(known: pa.DataType, found: pa.DataType, key: str, page_id: str) -> pa.DataType:
    if pa.types.is_integer(known) and pa.types.is_floating(found):
        return found
    _check_fits(known, found, key, page_id)
    return known
