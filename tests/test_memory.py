"""Amounts of memory, as users write them."""

import numpy as np
import pytest

from budgetvdr.memory import parse_bytes, quarter_of_machine


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("256MB", 256_000_000),
        ("256 mb", 256_000_000),
        ("1.5GiB", 3 << 29),
        ("64k", 64_000),
        ("64Ki", 65_536),
        ("2T", 2 * 10**12),
        (" 7 B ", 7),
        (np.int64(1 << 40), 1 << 40),
    ],
)
def test_reads_amounts(amount: int | str, expected: int) -> None:
    assert parse_bytes(amount) == expected


@pytest.mark.parametrize(
    "amount", [-1, np.int8(-1), True, np.True_, 1.5, np.float32(8), None, "", "MB", "-1MB", "256XB", "1e9", "1 2"]
)
def test_refuses_what_is_no_amount(amount: object) -> None:
    with pytest.raises(ValueError, match="expected bytes"):
        parse_bytes(amount)  # type: ignore[arg-type]


def test_a_machine_has_memory() -> None:
    assert quarter_of_machine() > 1 << 26
