"""A method and its settings as an index records them or a person writes them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, get_args

from budgetvdr.compress.anchorfold import AnchorFold
from budgetvdr.compress.chance import RandomSelection
from budgetvdr.compress.clustering import Clustering
from budgetvdr.compress.docpruner import DocPruner
from budgetvdr.compress.pooling import Pooling
from budgetvdr.compress.sap import StructuralPruning
from budgetvdr.compress.ward import WardPooling
from budgetvdr.compress.wardfold import WardFold
from budgetvdr.errors import BudgetError, BudgetVDRError, IndexFormatError

Method = AnchorFold | Clustering | DocPruner | Pooling | RandomSelection | StructuralPruning | WardFold | WardPooling
_METHODS: Mapping[str, type[Method]] = {kind.__name__: kind for kind in get_args(Method)}


def from_text(text: str) -> Method:
    """The method of "NAME:GAMMA", such as "WardFold:0.2", of "DocPruner:THRESHOLD", or of settings by name, such as
    "AnchorFold:cap=64,refinements=0"; names of methods in any case.

    Raises BudgetError for anything else, and for a value that the method does not take.
    """
    name, _, value = text.partition(":")
    kinds = {known.lower(): kind for known, kind in _METHODS.items()}
    kind = kinds.get(name.strip().lower())
    if kind is not None and "=" not in value:
        value = f"{'threshold' if kind is DocPruner else 'gamma'}={value}"
    settings: dict[str, Any] = {}
    for part in value.split(","):
        key, _, plain = part.partition("=")
        settings[key.strip()] = _value(plain.strip())
    if kind is None or "" in settings.values() or not settings.keys() <= {each.name for each in fields(kind)}:
        names = ", ".join(_METHODS) if kind is None else ", ".join(each.name for each in fields(kind))
        raise BudgetError(
            "expected NAME:GAMMA, GAMMA being the share of vectors kept, such as WardFold:0.2, DocPruner:THRESHOLD, or "
            f"settings by name, such as AnchorFold:cap=64,refinements=0; found {text!r}. "
            f"{'Names' if kind is None else f'Settings of {kind.__name__}'} are {names}"
        )
    return kind(**settings)


def _value(text: str) -> Any:
    """A number, true or false, or a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def to_record(method: Method) -> dict[str, Any]:
    """Plain JSON values: `method`, `version` and every setting. Two methods that do the same have equal records."""
    return {"method": type(method).__name__, "version": method.VERSION, **asdict(method)}


def from_record(record: Mapping[str, Any]) -> Method:
    """The method of a record. Raises IndexFormatError for one that this package does not know, or a later version."""
    settings = dict(record)
    name, version = settings.pop("method", None), settings.pop("version", None)
    kind = _METHODS.get(name) if isinstance(name, str) else None
    if kind is None or type(version) is not int or not 1 <= version <= kind.VERSION:
        raise IndexFormatError(
            f"compression {name!r} of version {version!r} is not one this budgetvdr knows; upgrade budgetvdr"
        )
    try:
        return kind(**settings)
    except (TypeError, BudgetVDRError) as error:
        raise IndexFormatError(f"the recorded settings of {name} are damaged: {error}") from error
