"""ONNX: a file that onnxruntime runs without torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from spen import __version__
from spen.export.decompositions import decompositions
from spen.export.parts import Parts, output_shapes, trace_parts
from spen.export.predictor import Predictor, Shape, Shapes, Size, prepare, quiet, traced
from spen.model import SPEN
from spen.storage import replacing

if TYPE_CHECKING:
    import onnx_ir as ir

Table = dict[Any, Callable[..., Any]]


def export_onnx(
    model: SPEN,
    x: Any,
    path: Path | str,
    *,
    shapes: Shapes | None = None,
    descend: bool = True,
    metadata: Mapping[str, str] | None = None,
    translations: Mapping[Any, Callable[..., Any]] | None = None,
) -> Path:
    """Write the whole predictor, F, Init and every step of the descent, to an ONNX file.

    ``x`` is an example input of two or more rows; its tensors become the file's inputs under the names of its fields,
    and those the model does not read are left out. ``shapes`` says which sizes are dynamic; without it the batch alone.
    The output is called ``y``. ``descend=False`` writes Init(F(x)). ``metadata`` is stored in the file.
    ``translations`` say how custom operations of the model are written with ONNX's.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ImportError(f"ONNX needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    import onnx_ir as ir

    copied, x, inputs, each = prepare(model, x, shapes, descend)
    table = {**_translations(), **(translations or {})}
    parts = trace_parts(copied, x, each) if descend else None
    if parts is None:
        program = traced(Predictor(copied, x, descend=descend), list(inputs.values()), each)
        whole = _converted(program, table, list(inputs))
        (shape,) = output_shapes(program, each) or [()]
    else:
        whole, shape = _joined(parts, table, list(inputs)), parts.shape
    _cleaned(whole)
    named = dict(zip(inputs, each, strict=True))
    for value in whole.graph.inputs:
        _name_sizes(value, named[str(value.name)])
    (y,) = whole.graph.outputs
    y.name = "y"
    _name_sizes(y, shape)
    whole.metadata_props.update({"spen": __version__, **(metadata or {})})
    path = Path(path)
    with replacing(path) as temporary:
        ir.save(whole, temporary)
    return path


def _name_sizes(value: ir.Value, shape: Shape) -> None:
    """Dynamic sizes under the names of ``Size``; torch makes up names of its own."""
    import onnx_ir as ir

    if value.shape is not None:
        free = [*shape, *[None] * (len(value.shape) - len(shape))]
        value.shape = ir.Shape(
            [size.name if isinstance(size, Size) else n for n, size in zip(value.shape, free, strict=True)]
        )


def _joined(parts: Parts, table: Table, names: Sequence[str]) -> ir.Model:
    """Start, then T calls of Step, as one graph."""
    import onnx_ir as ir

    whole = _converted(parts.start, table, names)
    graph = whole.graph
    step, step_weights = _function(_converted(parts.step, table), "step", whole)
    features, moving = list(graph.outputs[: -parts.moving]), list(graph.outputs[-parts.moving :])
    kind, shape = moving[0].type, moving[0].shape
    y = moving[0]
    for t, rate in enumerate(parts.rates):
        given = ir.Value(name=f"rate_{t}", const_value=ir.tensor(rate.view(1).numpy()))
        graph.register_initializer(given)
        inputs = [given, *features, *moving, *step_weights]
        call = ir.node(step.name, inputs, domain=step.domain, num_outputs=1 + parts.moving)
        graph.append(call)
        y, *moving = call.outputs
    y.type, y.shape = kind, shape
    graph.outputs.clear()
    graph.outputs.append(y)
    return whole


def _function(part: ir.Model, name: str, whole: ir.Model) -> tuple[ir.Function, list[ir.Value]]:
    """A graph as an ONNX function of the model; a function cannot hold weights, so the model holds them."""
    import onnx_ir as ir

    weights = []
    for key, value in list(part.graph.initializers.items()):
        weight = ir.Value(name=f"{name}.{key}", const_value=value.const_value, type=value.type, shape=value.shape)
        whole.graph.register_initializer(weight)
        weights.append(weight)
        del part.graph.initializers[key]
        value.const_value = None
        part.graph.inputs.append(value)
    function = ir.Function("spen", name, graph=part.graph, attributes=[])
    whole.functions[function.identifier()] = function
    whole.opset_imports["spen"] = 1
    return function, weights


def _converted(program: ExportedProgram, table: Table, names: Sequence[str] = ()) -> ir.Model:
    with quiet():
        if any("backward" in str(node.target) for node in program.graph.nodes):
            program = program.run_decompositions(decompositions())
        try:
            # optimize=True takes minutes for a graph of this size; `_cleaned` runs the passes that are needed.
            found = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                input_names=list(names) or None,
                custom_translation_table=table,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ValueError(_untranslated(error)) from error
    assert found is not None
    return found.model


def _translations() -> Table:
    """Operations that torch does not translate, or translates into more operations than needed."""
    from onnxscript import opset18 as op

    def silu_backward(gradient: Any, x: Any) -> Any:
        sigmoid = op.Sigmoid(x)
        return op.Mul(gradient, op.Mul(sigmoid, op.Add(op.Mul(x, op.Sub(1.0, sigmoid)), 1.0)))

    # ONNX's softplus needs no threshold above which it is the identity: it does not overflow.
    def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
        return op.Div(op.Softplus(op.Mul(x, beta)), beta)

    return {torch.ops.aten.silu_backward.default: silu_backward, torch.ops.aten.softplus.default: softplus}


def _untranslated(error: Exception) -> str:
    operation = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(error))
    if operation is None:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"the model cannot be written as ONNX: {lines[-1] if lines else type(error).__name__}"
    return (
        f"the model cannot be written as ONNX: {operation[1]} has no translation. Write a .pt2 file, "
        "or take the layer it comes from out of the model"
    )


def _cleaned(model: ir.Model) -> None:
    """Inline functions, fold constants, remove duplicates, dead nodes and unused inputs."""
    import onnx_ir.passes.common as common
    from onnxscript.optimizer import fold_constants

    common.InlinePass()(model)
    with quiet():
        fold_constants(model)
        for one in (
            common.RemoveUnusedNodesPass(),
            common.RemoveUnusedFunctionsPass(),
            common.RemoveUnusedOpsetsPass(),
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.DeduplicateInitializersPass(),
            common.CommonSubexpressionEliminationPass(),
            common.IdentityEliminationPass(),
            common.RemoveUnusedNodesPass(),
            common.OutputFixPass(),
            common.NameFixPass(),
            common.ClearMetadataAndDocStringPass(),
        ):
            one(model)
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None  # the two graphs name sizes differently; runtimes infer them
    for value in [v for v in model.graph.inputs if not v.uses() and not v.is_graph_output()]:
        model.graph.inputs.remove(value)
