"""Windows cover every token once."""

from __future__ import annotations

import pytest

from budgetvdr.encoders.windows import windows


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 19, 20, 21, 1000, 1001])
def test_every_token_is_in_one_window_in_order(count: int) -> None:
    cut = windows(count, 10)
    assert [token for window in cut for token in range(count)[window]] == list(range(count))
    assert len(cut) == -(-count // 10)
    assert all(window.stop - window.start == 10 for window in cut[:-1])
