"""ONNX graphs of a bundle, run by onnxruntime. The only importer of onnxruntime."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from budgetvdr.errors import BundleError, EncodingError, MissingExtraError, ProviderError

CPU = "CPUExecutionProvider"
_FATAL_ONLY = 4


class Sessions:
    """The graphs of one folder, each opened when it is first run. Methods may be called from several threads.

    threads: threads inside one operator. 1, the default, suits callers that run several inputs side by side.
    providers: onnxruntime execution providers, best first. They are used as given: nothing is added or left out.
    map_weights: takes the weights as they lie in the file instead of copying them into the order that multiplies
    fastest: less memory, slower.

    Raises MissingExtraError where onnxruntime is not installed, ProviderError where it lacks a provider asked for.
    """

    def __init__(
        self, folder: Path, *, threads: int = 1, providers: Sequence[str] = (CPU,), map_weights: bool = False
    ) -> None:
        self._folder = folder
        self._threads = threads
        self._map_weights = map_weights
        self._providers = tuple(providers)
        self._ort = _onnxruntime()
        self._opened: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        _check_providers(self._providers, self._ort.get_available_providers())

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers the graphs really run on."""
        return self._providers

    def run(
        self, graph: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]
    ) -> list[npt.NDArray[np.float32]]:
        """Runs a graph and returns the named outputs, in that order.

        Raises BundleError where the graph or its weights cannot be loaded or do not take these inputs, EncodingError
        where a value of an output is not finite.
        """
        session = self.open(graph)
        try:
            results: list[npt.NDArray[np.float32]] = session.run(list(outputs), dict(inputs))
        except _failures() as error:
            raise BundleError(f"{self._folder / graph} failed to run: {error}") from error
        for name, result in zip(outputs, results, strict=True):
            if not np.isfinite(result).all():
                elsewhere = "" if self._providers == (CPU,) else f"try providers=({CPU!r},), or "
                raise EncodingError(
                    f"{self._folder / graph}: output {name} has values that are not finite on "
                    f"{', '.join(self._providers)}; expected numbers only: {elsewhere}export it with a wider --dtype"
                )
        return results

    def inputs(self, graph: str) -> frozenset[str]:
        """Names of a graph's inputs, those included that may be left out. Raises as `run` does."""
        session = self.open(graph)
        return frozenset(given.name for given in (*session.get_inputs(), *session.get_overridable_initializers()))

    def taken(self, graph: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The arrays that a graph has inputs for: a shallow one may not need all. Raises as `run` does."""
        names = self.inputs(graph)
        return {name: array for name, array in arrays.items() if name in names}

    def open(self, graph: str) -> Any:
        """The onnxruntime session of a graph, made at the first call. Raises as `run` does."""
        with self._lock:
            lock = self._locks.setdefault(graph, threading.Lock())
        # A large graph takes seconds, which others need not wait for.
        with lock:
            if graph not in self._opened:
                self._opened[graph] = self._load(self._folder / graph)
            return self._opened[graph]

    def _load(self, path: Path) -> Any:
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # What goes wrong is raised.
        options.log_severity_level = _FATAL_ONLY
        # Idle threads that spin take the processor from the page next to them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._map_weights:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if CPU not in self._providers:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            # With the fallback, a provider that fails is replaced by another one without an error.
            session = self._ort.InferenceSession(path, options, providers=list(self._providers), enable_fallback=0)
        except _failures() as error:
            alone = CPU not in self._providers
            raise BundleError(
                f"{path} cannot be loaded on {', '.join(self._providers)}: {error}; "
                + (f"add {CPU} behind them for what they cannot run; " if alone else "")
                + "if it or the weights beside it are damaged, install or export the bundle again"
            ) from error
        # A build for GPUs claims its provider on any machine, and runs without it where the driver is missing.
        _check_providers(self._providers, session.get_providers())
        return session


def check_names(providers: object) -> None:
    """Raises ValueError for what is no sequence of names; a text is one name, not many."""
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError(f'providers is a sequence of names, such as ("CPUExecutionProvider",); found {providers!r}')


def _check_providers(wanted: Sequence[str], available: Sequence[str]) -> None:
    if not wanted:
        raise ProviderError(f"providers is empty: expected at least one of {', '.join(available)}")
    for name in wanted:
        if name not in available:
            raise ProviderError(
                f"onnxruntime cannot use {name} on this machine: available are {', '.join(available)}; "
                'choose among them, or install the build that has it (pip install "budgetvdr[gpu]" for CUDA)'
            )


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # noqa: PLC0415 -- an extra: only those who encode need it
    except ImportError as error:
        raise MissingExtraError(
            "encoding needs onnxruntime, which is not installed: "
            'pip install "budgetvdr[cpu]", or "budgetvdr[gpu]" for a CUDA machine'
        ) from error
    return onnxruntime


def _failures() -> tuple[type[Exception], ...]:
    """What onnxruntime raises for a graph it cannot load or run; its own classes share no base but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415 -- as above

    own = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (RuntimeError, ValueError, *own)
