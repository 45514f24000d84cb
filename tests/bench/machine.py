"""What a bench ran on, for the JSON object that it prints last."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version


def machine(*packages: str) -> dict[str, str | int | None]:
    """Date, processor, cores and Python, with the versions of some installed packages."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
