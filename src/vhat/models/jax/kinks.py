"""The kinked operations of a traced JAX program: see :mod:`vhat.models.kinks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from vhat.models.kinks import UNKNOWN_KINKS, KinkedOperations

__all__ = ["kinked_operations"]

_KINKED = {
    *("max", "min", "abs", "sign", "clamp", "reduce_max", "reduce_min", "cummax", "cummin", "argmax", "argmin"),
    *("reduce_window_max", "reduce_window_min", "reduce_window", "select_and_gather_add", "sort", "top_k"),
    *("gt", "ge", "lt", "le", "eq", "ne", "floor", "ceil", "round", "rem", "nextafter"),
}
"""Operations whose derivative jumps somewhere. ``select_n`` is not listed: the comparison that it uses has the kink."""
_SMOOTH = {
    # sums, products and rearrangements
    *("add", "add_any", "sub", "mul", "div", "neg", "dot_general", "conv_general_dilated", "reduce_sum", "reduce_prod"),
    *("reduce_window_sum", "cumsum", "cumprod", "triangular_solve", "reshape", "transpose", "broadcast_in_dim"),
    *("squeeze", "expand_dims", "rev", "slice", "split", "concatenate", "stack", "unstack", "pad", "select_n"),
    *("gather", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "copy", "copy_p"),
    *("convert_element_type", "real", "imag", "optimization_barrier"),
    # elementwise
    *("tanh", "logistic", "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "sinh", "cosh", "asin"),
    *("acos", "atan", "atan2", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv", "lgamma", "digamma"),
    *("pow", "integer_pow", "square", "sqrt", "rsqrt", "cbrt", "is_finite", "cumlogsumexp"),
}
"""Operations whose derivative has no jump inside their domain."""
_SMOOTH_RULES = ("logaddexp", "logaddexp2")
"""Functions with a custom derivative that are smooth although their programs use ``max``, such as softplus."""
_PROGRAM = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The parameter of a call that holds its program is one of these."""
_UNNAMED = ("", "<lambda>", "_where", "clip")
"""Names of calls that are less informative than the operation inside."""

Label = tuple[str, ...] | None
"""The kinked operations applied in the computation of a value; None if it does not depend on the parameters."""


class _Labeller:
    """Propagate labels through a program.

    Attributes:
        complete: Whether all operations so far are listed as kinked or as smooth.
    """

    def __init__(self) -> None:
        self.complete = True

    def results(self, jaxpr: Any, arguments: Sequence[Label], caller: str = "") -> list[Label]:
        """Return the labels of the results of a program.

        Args:
            jaxpr: The program.
            arguments: The labels of its arguments.
            caller: The name of the function that the program belongs to, such as "relu"; empty if unknown. A kinked
                operation is reported under this name.
        """
        labels: dict[Any, Label] = dict.fromkeys(jaxpr.constvars)
        labels.update(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Label:
            return None if isinstance(variable, Literal) else labels[variable]

        for equation in jaxpr.eqns:
            found = self._equation(equation, [read(variable) for variable in equation.invars], caller)
            labels.update(zip(equation.outvars, found, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Label], caller: str) -> list[Label]:
        """Return the labels of the results of one operation."""
        name = equation.primitive.name
        params = equation.params
        outputs = len(equation.outvars)
        before = _union(inputs)
        if before is None or name == "stop_gradient":
            return [None] * outputs
        if name == "scan":
            return self._scan(params, inputs, caller)
        if name == "cond":
            return self._cond(params["branches"], inputs, caller)
        program = next((params[key] for key in _PROGRAM if key in params), None)
        if program is not None:
            return self._call(equation, getattr(program, "jaxpr", program), inputs, caller)
        if name in _KINKED:
            return [_union([before, (caller or name,)])] * outputs
        if name not in _SMOOTH:
            self.complete = False
        return [before] * outputs

    def _call(self, equation: Any, program: Any, inputs: list[Label], caller: str) -> list[Label]:
        """Return the labels of the results of a called program."""
        called = equation.params.get("name") or _source_name(program)
        if equation.primitive.name.startswith("custom") and called in _SMOOTH_RULES:
            return [_union(inputs)] * len(equation.outvars)
        if len(program.invars) != len(inputs):
            self.complete = False
            return [_union(inputs)] * len(equation.outvars)
        return self.results(program, inputs, caller if called in _UNNAMED else called)

    def _cond(self, branches: Sequence[Any], inputs: list[Label], caller: str) -> list[Label]:
        """Return the union over the branches. Where the parameters select the branch, the selection is a kink."""
        found = [self.results(branch.jaxpr, inputs[1:], caller) for branch in branches]
        selection: Label = None if inputs[0] is None else (*inputs[0], caller or "cond")
        return [_union([selection, *each]) for each in zip(*found, strict=True)]

    def _scan(self, params: Any, inputs: list[Label], caller: str) -> list[Label]:
        """Propagate labels through the body of a loop until those of the carried values no longer change."""
        consts = params["num_consts"]
        carries = params["num_carry"]
        fixed = inputs[:consts]
        carried = inputs[consts : consts + carries]
        rows = inputs[consts + carries :]
        while True:
            found = self.results(params["jaxpr"].jaxpr, [*fixed, *carried, *rows], caller)
            grown = [_union(pair) for pair in zip(carried, found[:carries], strict=True)]
            if grown == carried:
                return [*carried, *found[carries:]]
            carried = grown


def kinked_operations(f: Callable[[Any, Any, Any], Any], fixed: Any, theta: Any, X: Any) -> KinkedOperations:
    """Return the kinked operations that ``f(fixed, theta, X)`` applies to values which depend on ``theta``.

    Args:
        f: A function that JAX can trace.
        fixed: Arrays, or their shapes and types.
        theta: The parameters, an array or a tree of arrays, or their shapes and types.
        X: Inputs of a few rows, or their shapes and types.
    """
    traced = jax.make_jaxpr(f)(fixed, theta, X)
    parts: tuple[tuple[Label, Any], ...] = ((None, fixed), ((), theta), (None, X))
    arguments = [label for label, tree in parts for _ in jax.tree.leaves(tree)]
    labeller = _Labeller()
    found = _union(labeller.results(traced.jaxpr, arguments))
    if found is None:  # no result depends on the parameters
        return UNKNOWN_KINKS
    return KinkedOperations(found, labeller.complete)


def _source_name(jaxpr: Any) -> str:
    """Return the name of the traced function from the program's debug information, ``"relu at file:line"``."""
    source = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return str(source).split(" at ")[0]


def _union(labels: Sequence[Label]) -> Label:
    """Return every name once, in order of first occurrence; None if no value depends on the parameters."""
    dependent = [label for label in labels if label is not None]
    if not dependent:
        return None
    return tuple(dict.fromkeys(name for label in dependent for name in label))
