"""`where=` -> one SQL condition.

A mapping is the conjunction of its entries:

    {"lang": "en"}                        equal
    {"lang": ["en", "de"]}                one of (list, tuple or set); an empty one matches nothing
    {"year": {">=": 2020, "<": 2024}}     a range, any of <  <=  >  >=
    {"lang": None}                        not set; also inside a list

A string is a condition in DataFusion SQL: `year >= 2020 AND lang = 'en'`. Names in it match a column of exactly that
spelling first, then one that differs by case; "double quotes" or `backticks` ask for the exact spelling, and strings
stand in single quotes. Names in a mapping are always exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Final

import pyarrow as pa

from budgetvdr.errors import QueryError
from budgetvdr.store.schema import KINDS, plain_value, storable, value_type

Where = str | Mapping[str, object]

# Parentheses, and what may hold some that do not count: quoted names and strings, comments.
_MARKS: Final = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/|[()]""", re.DOTALL)
_RANGE: Final = ("<", "<=", ">", ">=")


def to_sql(where: Where | None, fields: Mapping[str, pa.DataType]) -> str | None:
    """The condition in SQL, None where everything matches.

    fields: name -> type of every column that may be named.

    Raises QueryError for an unknown name, a value of another type than its column, or a form not listed above.
    A string is returned as it is: whether it is SQL, and names known columns, shows when it is used.
    """
    if where is None:
        return None
    if isinstance(where, str):
        if not where.strip():
            raise QueryError("where is an empty string: expected an SQL condition, or None for every page")
        return where
    if not isinstance(where, Mapping):
        raise QueryError(f"where: expected an SQL string or a mapping of column to value, found {type(where).__name__}")
    conditions = [_condition(name, wanted, fields) for name, wanted in where.items()]
    return " AND ".join(conditions) or None


def enclosed(sql: str) -> str:
    """A condition that LanceDB takes whole or not at all.

    Bare, everything after it would be ignored without a word (`year = 2020; ...`), and so would everything after a
    parenthesis that closes ours. The line break ends a comment.

    Raises QueryError where parentheses do not match.
    """
    depth = 0
    for mark in _MARKS.findall(sql):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0:
            break
    if depth:
        raise QueryError(f"where: parentheses do not match in {sql!r}")
    return f"({sql}\n)"


def literal(value: object, name: str, kind: pa.DataType) -> str:
    """A value as SQL, checked against the type of the column it is compared with. Raises QueryError if they differ."""
    value = plain_value(value)
    found = value_type(value)
    fits = (
        found == kind
        or (pa.types.is_floating(kind) and found == pa.int64())
        or (pa.types.is_integer(kind) and found == pa.int64())
        or (pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer())
    )
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise QueryError(
            f"where[{name!r}]: the column holds {_kind_name(kind)}, found {type(value).__name__} {value!r:.60}"
            f"{' without time zone' if found == pa.timestamp('us') else ''}"
        )
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return repr(float(value) if pa.types.is_floating(kind) else int(value))
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return f"TIMESTAMP '{moment.isoformat()}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case _:
            return "'" + storable(str(value)).replace("'", "''") + "'"


def one_of(name: str, values: Iterable[object], kind: pa.DataType) -> str:
    """`name IN (...)`, with NULL where None is among the values and nothing matching where there are none."""
    members = list(values)
    present = [literal(value, name, kind) for value in members if value is not None]
    options = [f"`{name}` IN ({', '.join(present)})"] if present else []
    if len(present) < len(members):
        options.append(f"`{name}` IS NULL")
    return f"({' OR '.join(options)})" if options else "FALSE"


def _condition(name: str, wanted: object, fields: Mapping[str, pa.DataType]) -> str:
    if name not in fields:
        raise QueryError(f"where names an unknown column {name!r}: expected one of {', '.join(fields)}")
    kind = fields[name]
    if kind not in KINDS and not pa.types.is_integer(kind):
        raise QueryError(f"where[{name!r}]: a column of {kind} takes an SQL string, such as array_has({name}, 'blank')")
    if isinstance(wanted, Mapping):
        return _range(name, wanted, kind)
    if isinstance(wanted, list | tuple | set | frozenset):
        return one_of(name, wanted, kind)
    return one_of(name, [wanted], kind)


def _range(name: str, bounds: Mapping[object, object], kind: pa.DataType) -> str:
    if not bounds or any(operator not in _RANGE for operator in bounds):
        example = "{'>=': 2020, '<': 2024}"
        raise QueryError(f"where[{name!r}]: expected a range such as {example}, of {_RANGE}, found {dict(bounds)}")
    return " AND ".join(f"`{name}` {operator} {literal(bound, name, kind)}" for operator, bound in bounds.items())


def _kind_name(kind: pa.DataType) -> str:
    return "int" if pa.types.is_integer(kind) else KINDS.get(kind, str(kind))
