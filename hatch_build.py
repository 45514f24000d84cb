"""Compiles the kernels of budgetvdr/similarity into the wheel, also of an editable install.

Without a C compiler, or for a processor or Python that the kernels are not for, the wheel is built without them and
serves every platform: the package then computes with numkong or numpy.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "budgetvdr/similarity/_native.abi3.so"


class KernelBuildHook(BuildHookInterface[BuilderConfig]):
    """Puts the library beside its source and the platform into the wheel's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        library = Path(self.root, LIBRARY)
        library.unlink(missing_ok=True)
        if not made_for_this_machine():
            return
        try:
            compile_library(library)
        except (OSError, subprocess.CalledProcessError) as error:
            found = getattr(error, "stderr", None) or str(error)
            self.app.display_warning(f"MaxSim kernels not compiled, searches will be slower: {found}")
            return
        build_data["artifacts"].append(LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def made_for_this_machine() -> bool:
    """x86-64 with a Python that has the stable ABI (free-threaded ones have not) and a compiler of gcc's kind."""
    return (
        platform.machine().lower() in {"x86_64", "amd64"}
        and sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and os.name == "posix"
    )


def compile_library(library: Path) -> None:
    """Raises OSError or CalledProcessError where there is no working compiler."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    # A process may have the old library open, so the new one takes its place whole.
    fresh = library.with_suffix(f".{os.getpid()}")
    command = [*compiler, "-O3", "-fPIC", "-shared", f"-I{sysconfig.get_paths()['include']}"]
    if sys.platform == "darwin":
        command += ["-undefined", "dynamic_lookup"]
    try:
        subprocess.run(
            [*command, str(library.with_name("_native.c")), "-o", str(fresh)],
            check=True,
            capture_output=True,
            text=True,
        )
        fresh.replace(library)
    finally:
        fresh.unlink(missing_ok=True)
