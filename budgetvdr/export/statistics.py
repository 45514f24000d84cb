"""What a page graph tells of its attention, for page compression; names and meaning as in `encoders.attention`.

In the graph and not in torch, so that a layer is looked at only where a run asks for it.
"""
# onnxscript reads the annotations of its functions when it translates them.

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxscript import opset20 as op
from onnxscript import script, values

from budgetvdr.encoders.attention import INPUTS, OUTPUTS
from budgetvdr.export.graph import attention_name

_DOMAIN = "budgetvdr"


def with_statistics(model: onnx.ModelProto, depth: int) -> onnx.ModelProto:
    """A copy whose outputs are statistics of the first `depth` layers where it had their attention (B, H, L, L).

    Inputs: `layers` (depth,) bool, which of them to look at, and `steps` () int64; left out, none is looked at.
    Outputs, of S layers looked at: `support` (S, K, B, L), `in_degree` and `from_start` (S, B, L), 0 for tokens that
    are not the picture's.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    attention = [attention_name(layer) for layer in range(depth)]
    kept = [output for output in graph.output if output.name not in attention]
    graph.ClearField("output")
    graph.output.extend(kept)
    layers, steps = INPUTS
    graph.input.append(helper.make_tensor_value_info(layers, TensorProto.BOOL, [depth]))
    graph.input.append(helper.make_tensor_value_info(steps, TensorProto.INT64, []))
    # An initializer that is an input too is that input's default.
    graph.initializer.append(numpy_helper.from_array(np.zeros(depth, np.bool_), layers))
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), steps))
    for layer, name in enumerate(attention):
        graph.initializer.append(numpy_helper.from_array(np.array(layer, np.int64), f"{name}.number"))
        selected = helper.make_node("Gather", [layers, f"{name}.number"], [f"{name}.selected"])
        inputs = [name, "visual_slots", "attention_mask", f"{name}.selected", steps]
        results = [f"{name}.{output}" for output in OUTPUTS]
        graph.node.extend([selected, helper.make_node("LayerStatistics", inputs, results, domain=_DOMAIN)])
    for output, shape in zip(OUTPUTS, (["S", "K", "B", "L"], ["S", "B", "L"], ["S", "B", "L"]), strict=True):
        graph.node.append(helper.make_node("Concat", [f"{name}.{output}" for name in attention], [output], axis=0))
        graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
    result.functions.append(LayerStatistics.to_function_proto())
    result.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return result


@script(values.Opset(_DOMAIN, 1), default_opset=op)
def LayerStatistics(attention, visual_slots, attention_mask, selected, steps):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """One layer's part of the outputs; arrays for no layer where it is not selected.

    A head's graph is its attention among the picture's tokens, rows divided by their sum (AnchorFold, section 3.2).
    """
    one = op.Constant(value_ints=[1])
    shape = op.Shape(visual_slots)
    if selected:
        image = op.Cast(visual_slots >= 0, to=1)
        smallest = op.Constant(value_float=1e-12)
        among = attention * op.Unsqueeze(image, [1, 2]) * op.Unsqueeze(image, [1, 3])
        rows = among / op.Max(op.ReduceSum(among, [-1]), smallest)
        uniform = image / op.Max(op.ReduceSum(image, [-1]), op.Constant(value_float=1.0))
        heads = op.Concat(one, op.Shape(attention, start=1, end=2), one, one, axis=0)
        state = op.MatMul(op.Expand(op.Unsqueeze(uniform, [1, 2]), heads), rows)
        in_degree = op.Unsqueeze(op.ReduceMean(state, [1, 2], keepdims=0), [0])
        support = op.Unsqueeze(op.Sqrt(op.ReduceMean(state * state, [1, 2], keepdims=0)), [0, 1])
        for _ in range(steps - 1):
            state = op.MatMul(state, rows)
            root = op.Unsqueeze(op.Sqrt(op.ReduceMean(state * state, [1, 2], keepdims=0)), [0, 1])
            support = op.Concat(support, root, axis=1)
        # The page's global token is its last one, which has seen all of the page in models that look back alone.
        order = op.Range(0, op.Squeeze(op.Shape(visual_slots, start=1, end=2)), 1)
        last = op.ArgMax(attention_mask * order, axis=1)
        paid = op.GatherND(op.ReduceMean(attention, [1], keepdims=0), last, batch_dims=1)
        from_start = op.Unsqueeze(paid * image, [0])
    else:
        none = op.Constant(value_ints=[0])
        support = op.ConstantOfShape(op.Concat(none, op.Reshape(steps, one), shape, axis=0))
        in_degree = op.ConstantOfShape(op.Concat(none, shape, axis=0))
        from_start = op.ConstantOfShape(op.Concat(none, shape, axis=0))
    return support, in_degree, from_start
