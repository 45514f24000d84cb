"""What an index makes of a page's vectors before it stores them: nothing, or fewer of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import thread_time
from typing import Any, Final, Self, cast, get_args

from budgetvdr.bundle import Manifest, Window
from budgetvdr.compress import AnchorFold, Compressed, DocPruner, Signals, attention_for
from budgetvdr.compress.extras import missing_extra
from budgetvdr.compress.record import Method, from_record, to_record
from budgetvdr.errors import CompressionError, IndexMismatchError, SourceNotFoundError
from budgetvdr.store import FOLDED_FORMAT_VERSION, IndexSettings, PageRow, Store

FULL: Final = "a full index, one vector a token"


@dataclass(frozen=True, slots=True)
class Folding:
    """How the pages of one index are stored.

    method: None where every token keeps its own vector. windows: depth -> the attention an encoder is asked for.
    """

    method: Method | None
    windows: Mapping[int, Window]

    @classmethod
    def of(cls, settings: IndexSettings) -> Self:
        """As recorded. Raises IndexFormatError for a method that this package does not know."""
        method = None if settings.compression is None else from_record(settings.compression)
        return cls(method, {depth: Window(*window) for depth, window in settings.windows.items()})

    def stored(self, row: PageRow) -> PageRow:
        """What is stored of a page with all its vectors and, where they were asked for, signals.

        Raises CompressionError where those are missing, EncodingError for vectors that are not finite,
        MissingExtraError for a method whose package is not installed.
        """
        return self.stored_timed(row)[0]

    def stored_timed(self, row: PageRow) -> tuple[PageRow, dict[int, float]]:
        """The same, and for every depth the CPU seconds of this thread that folding took; none where nothing folds."""
        if self.method is None:
            return row, {}
        folded: dict[int, Compressed] = {}
        seconds: dict[int, float] = {}
        for depth, full in row.vectors.items():
            start = thread_time()
            signals = row.signals.get(depth) if depth in self.windows else None
            folded[depth] = self.method.compress(Signals.of(full, signals))
            seconds[depth] = thread_time() - start
        vectors = {depth: found.vectors for depth, found in folded.items()}
        folds = {depth: found.groups for depth, found in folded.items()}
        return replace(row, vectors=vectors, folds=folds, signals={}), seconds


def folded_settings(plain: IndexSettings, manifest: Manifest, compression: object, *, signals: bool) -> IndexSettings:
    """The settings of an index that folds, or that keeps signals for folding later; plain ones where neither is asked.

    Raises CompressionError where the bundle lacks what is asked for, ValueError for what is no method, and for both.
    """
    if compression is None and not signals:
        return plain
    if compression is not None and signals:
        raise ValueError("signals=True is for an index to compress later: expected it without compression")
    if compression is None:
        method: Method = AnchorFold(gamma=1.0)  # whose attention serves every method that asks for the same
        record = None
    else:
        method = checked(compression, "compression is None or one of")
        record = to_record(method)
    windows = _windows(method, manifest, plain.depths)
    return replace(plain, format_version=FOLDED_FORMAT_VERSION, compression=record, signals=signals, windows=windows)


def recompressed_settings(full: IndexSettings, manifest: Manifest, compression: object) -> IndexSettings:
    """The settings of the index that a method makes of a full one.

    Signals that the index keeps count as they were recorded, whatever the bundle has been calibrated to since.

    Raises CompressionError where that one is not full, or was not made with the signals that the method asks for,
    ValueError for what is no method, MissingExtraError for one whose package is not installed.
    """
    if full.compression is not None:
        raise CompressionError(
            f"recompress starts from {FULL}; found one made with compression={described(full.compression)}; "
            "open the full one, or add the documents to a new index"
        )
    method = checked(compression, "recompress takes one of")
    _require(method)
    if full.signals:
        manifest = replace(manifest, compression=Folding.of(full).windows)
    windows = _windows(method, manifest, full.depths)
    for depth, asked in windows.items():
        if not full.signals:
            raise CompressionError(
                f"{described(to_record(method))} needs signals of the attention, which this index does not keep; make "
                "it with Index.open(path, signals=True) (budgetvdr add --signals), or use a method that looks at "
                "vectors alone (WardFold, Clustering, Pooling)"
            )
        if not _serves(full.windows[depth], asked, method):
            raise CompressionError(
                f"{described(to_record(method))} looks at layers {asked[0]} to {asked[1]} in {asked[2]} steps at depth "
                f"{depth}; this index keeps signals of layers {full.windows[depth][0]} to {full.windows[depth][1]} in "
                f"{full.windows[depth][2]} steps; add the documents to an index made with this compression"
            )
    version = FOLDED_FORMAT_VERSION
    record = to_record(method)
    return replace(full, format_version=version, compression=record, signals=False, windows=windows)


def open_store(
    path: str | Path,
    settings_if_new: IndexSettings | None,
    *,
    read_only: bool,
    version: int | None,
    storage_options: Mapping[str, str] | None,
) -> Store:
    """As `Store.open`. An index whose method cannot run here is opened, as searching needs no method, and none is made.

    Raises what that raises, and MissingExtraError in place of making one.
    """
    method = None if settings_if_new is None else Folding.of(settings_if_new).method
    missing = None if read_only or version is not None else missing_extra(method)
    new = settings_if_new if missing is None else None
    try:
        return Store.open(
            path, settings_if_new=new, read_only=read_only, version=version, storage_options=storage_options
        )
    except SourceNotFoundError:
        if missing is not None:
            raise missing from None
        raise


def check_extra(settings: IndexSettings) -> None:
    """Raises MissingExtraError for an index whose method needs a package that is not installed."""
    _require(Folding.of(settings).method)


def check_folding(stored: IndexSettings, asked: IndexSettings, path: str) -> None:
    """Raises IndexMismatchError where compression or signals were asked for and an index has others; None takes its.

    Raises IndexFormatError for a recorded method that this package does not know.
    """
    Folding.of(stored)
    if asked.compression is not None and asked.compression != stored.compression:
        found = FULL if stored.compression is None else f"compression={described(stored.compression)}"
        raise IndexMismatchError(
            f"{path} was made as {found}, and that is fixed at creation; found "
            f"compression={described(asked.compression)}; leave compression out, or make another index of it with "
            "Index.recompress (budgetvdr recompress)"
        )
    if asked.signals and not stored.signals:
        raise IndexMismatchError(
            f"{path} was made without signals, and they cannot be added later; leave signals out, or make a new index "
            "that keeps all vectors"
        )


def checked(compression: object, expected: str) -> Method:
    """A method of `budgetvdr.compress`. Raises ValueError for anything else, naming them after what was expected.

    Subclasses are none: an index records a method by name, and could not be opened again.
    """
    if type(compression) not in get_args(Method):
        names = ", ".join(kind.__name__ for kind in get_args(Method))
        raise ValueError(f"{expected} {names}, such as WardFold(gamma=0.2); found {compression!r}")
    return cast("Method", compression)


def _require(method: Method | None) -> None:
    missing = missing_extra(method)
    if missing is not None:
        raise missing


def described(record: Mapping[str, Any]) -> str:
    """A recorded method as a person would write it, without settings that are None."""
    given = {name: value for name, value in record.items() if name not in ("method", "version") and value is not None}
    return f"{record['method']}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _windows(method: Method, manifest: Manifest, depths: Iterable[int]) -> dict[int, tuple[int, int, int]]:
    asked = attention_for(method, manifest, depths)
    return {depth: (window.first, window.last, window.steps) for depth, window in asked.items()}


def _serves(kept: tuple[int, int, int], asked: tuple[int, int, int], method: Method) -> bool:
    # What DocPruner looks at is of the last layer executed, wherever the window lies.
    if isinstance(method, DocPruner):
        return True
    # Steps are those of propagated centrality, which no other method looks at.
    return kept == asked or (kept[:2] == asked[:2] and not isinstance(method, AnchorFold))
