"""The kinked operations of a module, read off the operations of one run: see :mod:`vhat.models.kinks`.

The module runs once, in evaluation mode, on a few rows, as for :mod:`vhat.models.torch.affine`. What a tensor depends
on is noted for its memory, so that views and operations in place are followed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vhat.models.kinks import UNKNOWN_KINKS, KinkedOperations
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import copy_rows

__all__ = ["kinked_operations"]

_MOST_OPERATIONS = 20_000
"""Operations after which nothing is said of a module: about 30 microseconds each, so half a second."""

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
    # sums, products and moves of numbers
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
    # facts about numbers that do not change where they are finite
    *("isnan", "isinf", "isfinite", "nan_to_num"),
}
"""Operations without a jump in the derivative inside their domain, by name; views have none either."""
_SHAPE_ALONE = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
}
"""Operations whose result depends on the shape of ``self`` and not on its numbers."""
_EUCLIDEAN = (2, 2.0, None)
"""Norms that are smooth away from zero."""


class _TooManyError(Exception):
    """The module runs more operations than are followed."""


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Note for every tensor that depends on the parameters which kinked operations it has been through."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[str, ...]] = {}
        self._alive: list[Any] = []  # a storage that is freed would give its address to another
        self._count = 0
        self.understood = True

    def note(self, tensor: Any, names: tuple[str, ...]) -> None:
        """Note that the memory of a tensor depends on the parameters, through these kinked operations."""
        key = tensor.untyped_storage()._cdata
        self._known[key] = _joined([self._known.get(key, ()), names])
        self._alive.append(tensor)

    def of(self, values: Any) -> tuple[str, ...] | None:
        """Return the kinked operations behind tensors in any nested structure; None where no parameter is behind."""
        keys = [each.untyped_storage()._cdata for each in _tensors(values)]
        found = [self._known[key] for key in keys if key in self._known]
        return _joined(found) if found else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > _MOST_OPERATIONS:
            raise _TooManyError
        before = self.of((args, kwargs))
        output = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if before is None or name in _SHAPE_ALONE:
            return output
        after = before
        if _is_kinked(func, name, args, kwargs):
            after = _joined([before, (name.lstrip("_"),)])
        elif name not in _SMOOTH and not _is_view(func) and not _is_smooth_as_called(name, args, kwargs):
            self.understood = False
        results = list(_tensors(output))
        if not results and output is not None:
            self.understood = False  # a number leaves for Python, which may branch on it
        for tensor in (*results, *_tensors(_written(func, args, kwargs))):
            self.note(tensor, after)
        return output


def kinked_operations(function: Callable[[Any, Rows], Any], theta: Any, rows: Rows) -> KinkedOperations:
    """Return the kinked operations that act on what depends on the parameters.

    Args:
        function: A module's predictions, of flat parameters and inputs.
        theta: Flat parameters, (p,).
        rows: A few rows of inputs.
    """
    own = theta.detach().clone()
    given = copy_rows(rows)
    watch = _Watch()
    watch.note(own, ())
    try:
        with torch.inference_mode(False), torch.no_grad(), watch:
            output = function(own, given)
    except Exception:  # a module that does not let itself be watched
        return UNKNOWN_KINKS
    names = watch.of(output)
    if names is None:  # numbers that left torch and came back
        return UNKNOWN_KINKS
    return KinkedOperations(names, watch.understood)


def _is_kinked(func: Any, name: str, args: Any, kwargs: Any) -> bool:
    if name == "elu":  # elu(x, alpha, scale, input_scale): the slopes at zero are scale alpha input_scale and scale
        given = _named(func, args, kwargs)
        return bool(given.get("alpha", 1) * given.get("input_scale", 1) != 1)
    return name in _KINKED


def _is_smooth_as_called(name: str, args: Any, kwargs: Any) -> bool:
    if name in ("elu", "celu"):
        return True
    if name in ("linalg_vector_norm", "norm"):
        order = kwargs.get("ord", args[1] if len(args) > 1 else None)
        return order in _EUCLIDEAN
    return False


def _is_view(func: Any) -> bool:
    returned = [each.alias_info for each in func._schema.returns]
    return bool(returned) and all(each is not None and not each.is_write for each in returned)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operation writes to."""
    given = _named(func, args, kwargs)
    names = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    return [given[name] for name in names if name in given]


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [each.name for each in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _joined(parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return every name once, in the order in which they come."""
    return tuple(dict.fromkeys(name for part in parts for name in part))


def _tensors(values: Any) -> Iterator[Any]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
