"""Rounding to float16 in float32, against numpy's own conversion."""

from __future__ import annotations

import numpy as np

from budgetvdr.compress.precision import half


def test_every_kind_of_number_is_rounded_as_numpy_does() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = every[np.isfinite(every)]
    between = np.sort(finite)
    middles = ((between[1:].astype(np.float64) + between[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    values = np.concatenate([every, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf), random])
    values = np.concatenate([values, np.array([65504, 65519.99, 65520, 1e9, np.inf, -0.0, 1e-8, 2**-14], np.float32)])
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    before = values.copy()
    found = half(values)
    np.testing.assert_array_equal(found, expected)
    assert np.signbit(found[values == 0]).tolist() == np.signbit(values[values == 0]).tolist()
    np.testing.assert_array_equal(values, before)


def test_other_types_and_layouts() -> None:
    values = np.random.default_rng(0).standard_normal((6, 5))
    expected = values.astype(np.float16).astype(np.float32)
    for given in (values, values.astype(np.float16), values.astype(np.float32)[:, :], np.asfortranarray(values)):
        np.testing.assert_allclose(half(given), expected, rtol=1e-3)
    single = values.astype(np.float32)
    cut = half(single[::2, 1:4])
    assert cut.dtype == np.float32
    np.testing.assert_array_equal(cut, single[::2, 1:4].astype(np.float16).astype(np.float32))
    assert half(np.zeros((0, 4), np.float32)).shape == (0, 4)
