"""What encoders of every family do alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from budgetvdr.bundle import READER, Manifest
from budgetvdr.encoders.graph_file import Declared, declared
from budgetvdr.errors import BudgetError, BudgetVDRError, BundleError, PageError
from budgetvdr.pages import Page

_EXIT = "exit_"


def exit_name(depth: int) -> str:
    """The output of a graph with the vectors of an exit."""
    return f"{_EXIT}{depth}"


def check_graphs(manifest: Manifest, folder: Path) -> None:
    """Raises BundleError where a graph is not what the manifest says. Opens none, however large.

    An index made with such a bundle could not be filled, nor opened with the bundle as it should be.
    """
    # The reader's pages and queries have the same graphs.
    names = {*manifest.page_graphs.values(), *manifest.query_graphs.values()}
    graphs = {name: declared(folder / name) for name in sorted(names)}
    for depth in manifest.depths:
        for role, name in (("page", manifest.page_graphs[depth]), ("query", manifest.query_graphs[depth])):
            graph = graphs[name]
            exits = [exit_ for exit_ in manifest.depths if exit_ <= depth] if role == "page" else [depth]
            fault = _exits_fault(graph, exits, manifest.dims[-1]) or _inputs_fault(graph, manifest, role)
            if fault:
                raise BundleError(
                    f"{manifest.name}: the manifest says that {name} is the {role} graph of depth {depth}, which is "
                    f"to {fault}. Export the bundle again"
                )


def _exits_fault(graph: Declared, exits: Sequence[int], width: int) -> str | None:
    """What is expected of the graph that it does not give, with what was found."""
    for exit_ in exits:
        if exit_name(exit_) not in graph.outputs:
            return f"give {width} components after layer {exit_}; found no such exit"
        found = graph.outputs[exit_name(exit_)]
        if found != width:
            return f"give {width} components after layer {exit_}; found {found}"
    depths = [name.removeprefix(_EXIT) for name in graph.outputs if name.startswith(_EXIT)]
    last = max(int(depth) for depth in depths if depth.isdecimal())
    return None if last == exits[-1] else f"end there; found an exit after layer {last}"


def _inputs_fault(graph: Declared, manifest: Manifest, role: str) -> str | None:
    if manifest.family == READER:
        return None if "ids" in graph.inputs else f"take ids; found {sorted(graph.inputs)}"
    if "input_ids" not in graph.inputs or ("pixel_values" in graph.inputs) != (role == "page"):
        return f"take input_ids and {'' if role == 'page' else 'no '}pixel_values; found {sorted(graph.inputs)}"
    if ("slots" in graph.inputs) != bool(manifest.slots):
        return f"take {'' if manifest.slots else 'no '}slots; found {sorted(graph.inputs)}"
    return None


def check_depths(manifest: Manifest, depths: Sequence[int]) -> None:
    """Raises BudgetError where none is asked for, or one that is no exit of the bundle."""
    if not depths or not set(depths) <= set(manifest.depths):
        raise BudgetError(f"{manifest.name} has exits at {manifest.depths}, asked for {tuple(depths)}")


def page_failure(page: Page, error: Exception) -> PageError:
    """What is said of a page whose encoding raised `error`."""
    if isinstance(error, PageError):
        return error
    what = str(error) if isinstance(error, BudgetVDRError) else f"{type(error).__name__}: {error}"
    failure = PageError(f"{page.doc_id}: page {page.page_num} cannot be encoded: {what}", page_num=page.page_num)
    failure.__cause__ = error
    return failure
