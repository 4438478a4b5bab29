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
"""Operations whose derivative jumps somewhere. ``select_n`` itself has no kink: the comparison behind it has."""
_SMOOTH = {
    # sums, products and moves of numbers
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
"""Operations without a jump in the derivative inside their domain."""
_SMOOTH_RULES = ("logaddexp", "logaddexp2")
"""Functions with a derivative of their own that are smooth although written with extremes: softplus is one."""
_PROGRAM = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Under which of these parameters a call holds its program."""
_UNNAMED = ("", "<lambda>", "_where", "clip")
"""Names of calls that say less than the operation inside."""

Behind = tuple[str, ...] | None
"""The kinked operations behind a value; None where no parameter is behind it."""


class _Walk:
    """Follow a program; ``understood`` turns False at an operation that is neither listed as kinked nor as smooth."""

    def __init__(self) -> None:
        self.understood = True

    def results(self, jaxpr: Any, arguments: Sequence[Behind], within: str = "") -> list[Behind]:
        """Return what is behind each result of a program, given what is behind its arguments."""
        known: dict[Any, Behind] = dict.fromkeys(jaxpr.constvars)
        known.update(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Behind:
            return None if isinstance(variable, Literal) else known[variable]

        for equation in jaxpr.eqns:
            found = self._equation(equation, [read(variable) for variable in equation.invars], within)
            known.update(zip(equation.outvars, found, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _equation(self, equation: Any, inputs: list[Behind], within: str) -> list[Behind]:
        name, params = equation.primitive.name, equation.params
        outputs = len(equation.outvars)
        before = _joined(inputs)
        if before is None or name == "stop_gradient":
            return [None] * outputs
        if name == "scan":
            return self._scan(params, inputs, within)
        if name == "cond":
            branches = [self.results(branch.jaxpr, inputs[1:], within) for branch in params["branches"]]
            chosen: Behind = None if inputs[0] is None else (*inputs[0], within or "cond")
            return [_joined([chosen, *each]) for each in zip(*branches, strict=True)]
        program = next((params[key] for key in _PROGRAM if key in params), None)
        if program is not None:
            inner = getattr(program, "jaxpr", program)
            called = params.get("name") or _source_name(inner)
            smooth = name.startswith("custom") and called in _SMOOTH_RULES
            return [before] * outputs if smooth else self._call(inner, inputs, outputs, called, within)
        if name in _KINKED:
            return [_joined([before, (within or name,)])] * outputs
        if name not in _SMOOTH:
            self.understood = False
        return [before] * outputs

    def _call(self, inner: Any, inputs: list[Behind], outputs: int, name: str, within: str) -> list[Behind]:
        if len(inner.invars) != len(inputs):
            self.understood = False
            return [_joined(inputs)] * outputs
        return self.results(inner, inputs, within if name in _UNNAMED else name)

    def _scan(self, params: Any, inputs: list[Behind], within: str) -> list[Behind]:
        """Follow a loop until what is behind the carried values grows no further."""
        consts, carries = params["num_consts"], params["num_carry"]
        fixed, carried, rows = inputs[:consts], inputs[consts : consts + carries], inputs[consts + carries :]
        while True:
            found = self.results(params["jaxpr"].jaxpr, [*fixed, *carried, *rows], within)
            grown = [_joined(pair) for pair in zip(carried, found[:carries], strict=True)]
            if grown == carried:
                return [*carried, *found[carries:]]
            carried = grown


def kinked_operations(f: Callable[[Any, Any, Any], Any], fixed: Any, theta: Any, X: Any) -> KinkedOperations:
    """Return the kinked operations of ``f(fixed, theta, X)`` that act on what depends on ``theta``.

    Args:
        f: A function that JAX can trace.
        fixed: Arrays, or their shapes and types.
        theta: The parameters, an array or a tree of arrays, or their shapes and types.
        X: Inputs of a few rows, or their shapes and types.
    """
    traced = jax.make_jaxpr(f)(fixed, theta, X)
    walk = _Walk()
    parts: tuple[tuple[Behind, Any], ...] = ((None, fixed), ((), theta), (None, X))
    found = _joined(walk.results(traced.jaxpr, [behind for behind, tree in parts for _ in jax.tree.leaves(tree)]))
    return UNKNOWN_KINKS if found is None else KinkedOperations(found, walk.understood)


def _source_name(jaxpr: Any) -> str:
    """Return the name of the function that was traced, where the program remembers it: ``"relu at file:line"``."""
    told = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return str(told).split(" at ")[0]


def _joined(parts: Sequence[Behind]) -> Behind:
    """Return every name once, in the order in which they come; None where no part depends on the parameters."""
    dependent = [part for part in parts if part is not None]
    if not dependent:
        return None
    return tuple(dict.fromkeys(name for part in dependent for name in part))
