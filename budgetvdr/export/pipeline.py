"""The export, stage by stage: reference vectors, traced graphs over one weights file, a graph a depth, parity."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image
from tqdm import tqdm

from budgetvdr.bundle import FORMAT_VERSION, MANIFEST_NAME, SLOTS_NAME, UNFINISHED_NAME, Manifest, Parity, Preset
from budgetvdr.encoders.common import exit_name
from budgetvdr.encoders.vision import SETTINGS_NAME, TOKENIZER_NAME, open_preprocessor, write_preprocessor
from budgetvdr.encoders.vision.slots import SEED, SlotPreprocessor, draw, with_slots
from budgetvdr.export import parity
from budgetvdr.export.checkpoints import Plan
from budgetvdr.export.errors import ExportError
from budgetvdr.export.graph import attention_name, trace
from budgetvdr.export.prune import pruned
from budgetvdr.export.quantize import Dtype, converted
from budgetvdr.export.stages import Stages, partial_folder, sha256
from budgetvdr.export.statistics import with_statistics
from budgetvdr.export.weights import WEIGHTS_NAME, WeightFile, externalised
from budgetvdr.training.models.model import Role
from budgetvdr.training.models.vision.model import VisionModel

Report = Callable[[str], object]

ROLES: tuple[Role, ...] = ("page", "query")
DIMS = (32, 64, 128)
THRESHOLDS: Mapping[Dtype, float] = {"float32": 0.99999, "float16": 0.999, "int8": 0.98, "int4": 0.85}
"""The lowest mean cosine with the model's vectors that an exit may have."""

_REFERENCE_NAME = "reference.npz"
_PACKAGES = ("budgetvdr", "torch", "transformers", "onnx", "onnxscript")
_MAX_QUERY_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Wanted:
    """threshold: None for that of the dtype. images: a folder of pages to compare on, None for those in the package.

    slots: vectors a page and a query, read out at slots (see `encoders.vision.slots`); 0 to keep those of the tokens.
    slot_seed: what the slots are drawn with. Raises ExportError for numbers below 0, and a threshold that is no cosine.
    """

    dtype: Dtype = "float32"
    threshold: float | None = None
    images: Path | None = None
    slots: int = 0
    slot_seed: int = SEED

    def __post_init__(self) -> None:
        for option, number in (("--slots", self.slots), ("--slot-seed", self.slot_seed)):
            if number < 0:
                raise ExportError(f"{option} must be a whole number from 0 on, found {number}")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise ExportError(f"--threshold must be a cosine, from -1 to 1, found {self.threshold}")


def export_bundle(plan: Plan, out: Path, wanted: Wanted, report: Report) -> Manifest:
    """Writes a bundle. report: called with a line for a person as stages begin.

    Works in `out`.partial, which becomes `out` at the end. An export that was interrupted, or refused for its parity,
    goes on from there.

    Raises ExportError where `out` exists, the graphs cannot be made or differ too much, CheckpointError for a
    checkpoint that cannot be loaded.
    """
    with partial_folder(out) as partial:
        report(f"reading {plan.folders[0]}")
        stages = Stages(partial, _digest(plan, wanted))
        if stages.discarded:
            report(f"{partial} was of an export with other options, files or packages: it is emptied and begun anew")
        chosen = parity.samples(wanted.images)
        facts = _model_stages(plan, wanted, stages, chosen, report)
        graphs = _write_graphs(partial, plan.depths, statistics=not wanted.slots)
        report("comparing the graphs with the model")
        with np.load(partial / _REFERENCE_NAME) as exact:
            whole = wanted.dtype in ("int8", "int4")
            preprocessor = with_slots(open_preprocessor(partial), wanted.slots, partial)
            rows = parity.compare(partial, preprocessor, graphs, chosen, exact, map_weights=not whole)
            deepest = graphs["page"][plan.depths[-1]]
            told = parity.compare_attention(partial, preprocessor, deepest, chosen, exact, map_weights=not whole)
        threshold = THRESHOLDS[wanted.dtype] if wanted.threshold is None else wanted.threshold
        parity.refuse_worse(rows, threshold, partial)
        # That of whole numbers is near enough where the vectors are.
        parity.refuse_other_attention([] if whole else told, threshold, partial)
        for row in told:
            report(f"attention: {row.statistic} has a cosine of {row.cosine:.6f} with the model's")
        manifest = _manifest(plan, facts, wanted, graphs=graphs, rows=rows, folder=partial)
        (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        for path in partial.iterdir():
            if path.name not in (MANIFEST_NAME, UNFINISHED_NAME, *manifest.files):
                path.unlink()
        partial.rename(out)
        # Last, so that an export that is stopped before goes on from there.
        (out / UNFINISHED_NAME).unlink()
    return manifest


def presets(depths: Sequence[int], trained: Sequence[int], dims: Sequence[int]) -> dict[str, Preset]:
    """Points of the grid by name: the most, the least that is no loss in kind, and one between.

    Of the exits that were trained, where any was. The narrowest of three or more widths costs more quality than it
    saves time, so that "fast" takes the second.
    """
    exits = [depth for depth in depths if depth in trained] or [depths[-1]]
    return {
        "full": Preset(exits[-1], dims[-1]),
        "balanced": Preset(exits[len(exits) // 2], dims[len(dims) // 2]),
        "fast": Preset(exits[0], dims[min(1, len(dims) - 2)] if len(dims) > 1 else dims[0]),
    }


def _digest(plan: Plan, wanted: Wanted) -> str:
    versions = {name: version(name) for name in _PACKAGES}
    slots = [wanted.slots, wanted.slot_seed] if wanted.slots else []
    decides = [plan.digest(), wanted.dtype, versions, slots]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _model_stages(plan: Plan, wanted: Wanted, stages: Stages, chosen: parity.Samples, report: Report) -> dict[str, Any]:
    """Everything that needs the model in torch, which is in memory only here; what is known of it."""
    pictures = _pictures_digest(chosen)
    compared = stages.facts("reference")
    roles = {role: stages.facts(role) for role in ROLES}
    # A stage builds on the one before it.
    if roles["page"] is None:
        roles["query"] = None
    known = stages.facts("model")
    if known is None or compared != {"pictures": pictures} or None in roles.values():
        report("loading the model")
        model = plan.load().eval()
        if wanted.slots:
            tables = draw(wanted.slots, model.hidden, wanted.slot_seed)
            model.preprocessor = SlotPreprocessor(model.preprocessor, tables)
            np.save(stages.folder / SLOTS_NAME, tables)
        if known is None:
            known = _describe(model, stages, [SLOTS_NAME] if wanted.slots else [])
        if compared != {"pictures": pictures}:
            report("computing what the model gives, for comparison")
            np.savez(stages.folder / _REFERENCE_NAME, **parity.reference(model, chosen))  # type: ignore[arg-type]
            stages.finish("reference", [_REFERENCE_NAME], {"pictures": pictures})
        if None in roles.values():
            _trace_roles(model, wanted.dtype, stages, roles, report)
    else:
        report("the graphs of an earlier run are there")
    return known


def _describe(model: VisionModel, stages: Stages, written: Sequence[str]) -> dict[str, Any]:
    """written: files of the stage that are there."""
    write_preprocessor(model.preprocessor, stages.folder)
    assert model.tokenizer_file is not None
    shutil.copyfile(model.tokenizer_file, stages.folder / TOKENIZER_NAME)
    config: Any = model.backbone().config
    facts = {
        "family": model.family,
        "dims": list(model.dims),
        "query_depths": {str(page): list(depths) for page, depths in model.query_depths.items()},
        "trained_exits": list(model.trained_exits),
        "unit_queries": model.unit_queries,
        "max_tokens": int(config.get_text_config().max_position_embeddings),
    }
    stages.finish("model", [SETTINGS_NAME, TOKENIZER_NAME, *written], facts)
    return facts


def _trace_roles(
    model: VisionModel, dtype: Dtype, stages: Stages, done: Mapping[Role, dict[str, Any] | None], report: Report
) -> None:
    """Writes the whole graph of each role that is not there yet; its tensors go to the weights file, page's first."""
    page = done["page"]
    weights = WeightFile(stages.folder / WEIGHTS_NAME, page["places"] if page else None)
    exits = [exit_name(depth) for depth in model.depths]
    try:
        for role in ROLES:
            if done[role] is not None:
                continue
            report(f"tracing the {role} graph")
            network = converted(trace(model, role), dtype, exits)
            total = sum(constant.source.nbytes for constant in network.constants.values())
            with tqdm(total=total, unit="B", unit_scale=True, desc=f"{role} weights", leave=False) as bar:
                proto = externalised(network, weights, bar.update)
            weights.flush()
            name = _whole(role)
            (stages.folder / name).write_bytes(proto.SerializeToString(deterministic=True))
            stages.finish(role, [name, WEIGHTS_NAME], {"places": weights.places})
    finally:
        weights.close()


def _write_graphs(folder: Path, depths: Sequence[int], *, statistics: bool) -> dict[Role, dict[int, str]]:
    """The graph of each role and depth; their names. statistics: whether those of pages tell of their attention."""
    graphs: dict[Role, dict[int, str]] = {}
    for role in ROLES:
        whole = onnx.load(folder / _whole(role), load_external_data=False)
        graphs[role] = {depth: f"{role}_{depth}.onnx" for depth in depths}
        for depth, name in graphs[role].items():
            if role == "page":
                exits = [exit_name(exit_) for exit_ in depths if exit_ <= depth]
                attention = [attention_name(layer) for layer in range(depth)] if statistics else []
                graph = pruned(whole, [*exits, *attention])
                graph = with_statistics(graph, depth) if statistics else graph
            else:
                graph = pruned(whole, [exit_name(depth)])
            (folder / name).write_bytes(graph.SerializeToString(deterministic=True))
    return graphs


def _manifest(
    plan: Plan,
    facts: Mapping[str, Any],
    wanted: Wanted,
    *,
    graphs: Mapping[Role, Mapping[int, str]],
    rows: Sequence[Parity],
    folder: Path,
) -> Manifest:
    dims = _dims(plan.dims, facts["dims"])
    trained = tuple(facts["trained_exits"])
    names = [*graphs["page"].values(), *graphs["query"].values(), WEIGHTS_NAME, TOKENIZER_NAME, SETTINGS_NAME]
    names += [SLOTS_NAME] if wanted.slots else []
    notes = f"{wanted.dtype}, {wanted.slots} slots" if wanted.slots else wanted.dtype
    return Manifest(
        format_version=FORMAT_VERSION,
        name=f"{plan.name} ({notes})",
        family=str(facts["family"]),
        depths=plan.depths,
        dims=dims,
        trained_exits=trained,
        unit_queries=bool(facts["unit_queries"]),
        max_tokens=int(facts["max_tokens"]),
        max_query_tokens=min(_MAX_QUERY_TOKENS, int(facts["max_tokens"])),
        page_graphs=graphs["page"],
        query_graphs=graphs["query"],
        presets=presets(plan.depths, trained, dims),
        files={name: sha256(folder / name) for name in names},
        query_depths={int(page): tuple(asked) for page, asked in facts["query_depths"].items()},
        dtype=wanted.dtype,
        parity=tuple(rows),
        slots=wanted.slots,
    )


def _dims(asked: Sequence[int] | None, trained: Sequence[int]) -> tuple[int, ...]:
    """Those asked for, those trained, or the usual ones; the last is the width of the vectors."""
    full = trained[-1]
    return (*(dim for dim in asked or (trained if len(trained) > 1 else DIMS) if dim < full), full)


def _pictures_digest(chosen: parity.Samples) -> str:
    digest = hashlib.sha256()
    for content in (*chosen["page"], *chosen["query"]):
        digest.update(
            repr(content.size).encode() + content.tobytes() if isinstance(content, Image.Image) else content.encode()
        )
    return digest.hexdigest()


def _whole(role: Role) -> str:
    return f"{role}_whole.onnx"
