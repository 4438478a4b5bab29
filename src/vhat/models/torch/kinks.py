"""The kinked operations of a module, from the operations of one forward pass: see :mod:`vhat.models.kinks`.

The module runs once, in evaluation mode, on a few rows, as for :mod:`vhat.models.torch.affine`. Labels of tensors are
stored by their memory, so that views and in-place operations are included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vhat.models.kinks import UNKNOWN_KINKS, KinkedOperations
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import copy_rows
from vhat.models.torch.operations import Call, memory_of, results_of

__all__ = ["kinked_operations"]

_MAX_OPERATIONS = 20_000
"""Number of operations after which the kinks of a module count as unknown. One takes about 30 microseconds, so this
limits the time to about half a second."""

_KINKED = {
    # activations
    *("relu", "relu6", "leaky_relu", "prelu", "_prelu_kernel", "rrelu_with_noise", "threshold"),
    *("hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink"),
    # absolute values, extremes, order
    *("abs", "sign", "sgn", "heaviside", "max", "min", "amax", "amin", "aminmax"),
    *("maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min", "clamp_max", "clip"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "adaptive_max_pool1d"),
    *("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"),
    *("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin", "argmax", "argmin", "argsort"),
    # comparisons, which masks and torch.where are made of
    *("gt", "ge", "lt", "le", "eq", "ne", "bucketize", "searchsorted", "signbit"),
    # steps
    *("floor", "ceil", "round", "trunc", "frac", "fmod", "remainder", "floor_divide"),
}
"""Operations whose derivative jumps somewhere, by name."""
_SMOOTH = {
    # sums, products and rearrangements
    *("add", "sub", "rsub", "mul", "div", "neg", "positive", "sum", "mean", "cumsum", "trace", "prod", "cumprod"),
    *("mm", "bmm", "mv", "dot", "matmul", "addmm", "addmv", "addbmm", "baddbmm", "addr", "addcmul", "addcdiv", "ger"),
    *("linear", "convolution", "_trilinear", "embedding", "cat", "stack", "clone", "copy", "_to_copy", "_unsafe_view"),
    *("flip", "roll", "repeat", "tril", "triu", "constant_pad_nd", "im2col", "col2im", "diag_embed", "index"),
    *("index_select", "gather", "take", "masked_select", "masked_fill", "scatter", "scatter_add", "index_add"),
    *("index_put", "index_copy", "where", "select_backward", "slice_backward", "avg_pool2d", "avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "fill", "zero", "lift_fresh"),
    # normalisation and attention
    *("native_batch_norm", "_native_batch_norm_legit_no_training", "native_layer_norm", "native_group_norm"),
    *("_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "var", "std", "var_mean", "std_mean"),
    # elementwise
    *("tanh", "sigmoid", "softplus", "gelu", "silu", "mish", "log_sigmoid_forward", "exp", "exp2", "expm1"),
    *("log", "log2", "log10", "log1p", "logaddexp", "logaddexp2", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos"),
    *("atan", "atan2", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "sinc", "xlogy"),
    *("pow", "square", "sqrt", "rsqrt", "reciprocal"),
    # constant where the argument is finite
    *("isnan", "isinf", "isfinite", "nan_to_num"),
}
"""Operations whose derivative has no jump inside their domain, by name. Views are smooth as well."""
_SHAPE_ONLY = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
}
"""Operations whose result depends on the shape of ``self`` only, not on its values."""
_EUCLIDEAN = (2, 2.0, None)
"""Orders of norms that are smooth away from zero."""

Label = tuple[str, ...]
"""The kinked operations applied in the computation of a tensor that depends on the parameters."""


class _TooManyError(Exception):
    """The module runs more than ``_MAX_OPERATIONS`` operations."""


class _Labels(TorchDispatchMode):  # type: ignore[misc]
    """Propagate labels through every operation. Only tensors that depend on the parameters have one.

    Attributes:
        complete: Whether all operations so far are listed as kinked or as smooth.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Label] = {}
        self._alive: list[Any] = []  # keeps the memory of all tensors, so that no address is used twice
        self._count = 0
        self.complete = True

    def record(self, tensors: Sequence[Any], memory: Sequence[int], label: Label) -> None:
        """Add a label to the memory of tensors."""
        for key in memory:
            self._known[key] = _union([self._known.get(key, ()), label])
        self._alive.extend(tensors)

    def of(self, memory: Iterable[int]) -> Label | None:
        """Return the union of the labels of tensors in this memory; None if none depends on the parameters."""
        found = [self._known[key] for key in memory if key in self._known]
        return _union(found) if found else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > _MAX_OPERATIONS:
            raise _TooManyError
        call = Call.of(func, args, kwargs)
        before = self.of(chain.from_iterable(call.memory.values()))
        output = func(*args, **kwargs)
        if before is None or call.name in _SHAPE_ONLY:
            return output
        after = before
        if _is_kinked(call.name, call.arguments):
            after = _union([before, (call.name.lstrip("_"),)])
        elif call.name not in _SMOOTH and not call.views and not _is_smooth_call(call.name, args, kwargs):
            self.complete = False
        results, changed, memory = results_of(call, output)
        if not results and output is not None:
            self.complete = False  # the result is a Python number, on which the module may branch
        self.record(changed, memory, after)
        return output


def kinked_operations(function: Callable[[Any, Rows], Any], theta: Any, rows: Rows) -> KinkedOperations:
    """Return the kinked operations that a function applies to values which depend on the parameters.

    Args:
        function: A module's predictions as a function of flat parameters and inputs.
        theta: Flat parameters, (p,).
        rows: A few rows of inputs.
    """
    # Copies, because the function may write to its arguments.
    parameters = theta.detach().clone()
    inputs = copy_rows(rows)
    labels = _Labels()
    labels.record([parameters], memory_of(parameters), ())
    try:
        with torch.inference_mode(False), torch.no_grad(), labels:
            output = function(parameters, inputs)
    except Exception:  # a module that does not run under a dispatch mode
        return UNKNOWN_KINKS
    names = labels.of(memory_of(output))
    if names is None:  # the values left torch on the way
        return UNKNOWN_KINKS
    return KinkedOperations(names, labels.complete)


def _is_kinked(name: str, given: dict[str, Any]) -> bool:
    """Return whether a call, with its arguments by name, has a kink."""
    if name == "elu":  # elu(x, alpha, scale, input_scale): the slopes at zero are scale alpha input_scale and scale
        return bool(given.get("alpha", 1) * given.get("input_scale", 1) != 1)
    return name in _KINKED


def _is_smooth_call(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call of an operation that is smooth for some arguments is smooth."""
    if name in ("elu", "celu"):
        return True
    if name in ("linalg_vector_norm", "norm"):
        order = kwargs.get("ord", args[1] if len(args) > 1 else None)
        return order in _EUCLIDEAN
    return False


def _union(labels: list[Label]) -> Label:
    """Return every name once, in order of first occurrence."""
    return tuple(dict.fromkeys(name for label in labels for name in label))
