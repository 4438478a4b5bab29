"""Whether a module is affine in its trainable parameters, read off the operations of one run.

The module runs once, in evaluation mode, on a few rows; torch hands over every operation that touches a tensor, below
autograd and below Python. What a tensor depends on is noted for its memory, so that views and operations in place are
followed as well. See :mod:`vhat.models.affine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vhat.models.affine import Dependence, Linearity, combine
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import copy_rows

__all__ = ["is_affine"]

_MOST_OPERATIONS = 4000
"""Operations after which a module counts as not affine: 40 to 50 microseconds each, so a fifth of a second."""
_SELF = Linearity(terms=("self",))
_OTHER = Linearity(terms=("self", "other"))
_SOURCE = Linearity(terms=("self", "src", "source", "value", "values"))
_NORMALISED = Linearity(terms=("bias",), factors=("input", "weight"))
_SCALED = Linearity(terms=("weight", "bias"))
_AFTER_SELF = {
    "addmm": ("mat1", "mat2"),
    "addmv": ("mat", "vec"),
    "addr": ("vec1", "vec2"),
    "addbmm": ("batch1", "batch2"),
    "baddbmm": ("batch1", "batch2"),
    "addcmul": ("tensor1", "tensor2"),
}
"""``self`` plus a product of two."""

_LINEAR = {
    # sums and products
    **dict.fromkeys(("add", "sub", "rsub"), _OTHER),
    **dict.fromkeys(("neg", "positive", "sum", "mean", "cumsum", "trace"), _SELF),
    **dict.fromkeys(("mul", "matmul"), Linearity(factors=("self", "other"))),
    **dict.fromkeys(("mm", "bmm"), Linearity(factors=("self", "mat2"))),
    "mv": Linearity(factors=("self", "vec")),
    "dot": Linearity(factors=("self", "tensor")),
    "ger": Linearity(factors=("self", "vec2")),
    "div": _SELF,
    "addcdiv": Linearity(terms=("self", "tensor1")),
    "linear": Linearity(terms=("bias",), factors=("input", "weight")),
    "convolution": Linearity(terms=("bias",), factors=("input", "weight")),
    "_trilinear": Linearity(factors=("i1", "i2", "i3")),
    **{name: Linearity(terms=("self",), factors=factors) for name, factors in _AFTER_SELF.items()},
    # normalisation: by fixed statistics, or of something that does not depend on the parameters
    "native_batch_norm": _NORMALISED,
    "_native_batch_norm_legit_no_training": _NORMALISED,
    "native_layer_norm": _SCALED,
    "native_group_norm": _SCALED,
    # averages over places
    **dict.fromkeys(("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _SELF),
    # moves of numbers to other places; positions, masks and indices must not depend on the parameters
    **dict.fromkeys(("cat", "stack"), Linearity(terms=("tensors",))),
    **dict.fromkeys(("clone", "_to_copy", "_unsafe_view", "flip", "roll", "repeat", "tril", "triu"), _SELF),
    **dict.fromkeys(("constant_pad_nd", "im2col", "col2im", "diag_embed"), _SELF),
    **dict.fromkeys(("index", "index_select", "gather", "take", "masked_select"), _SELF),
    **dict.fromkeys(("copy", "scatter", "scatter_add", "index_add", "index_put", "index_copy", "masked_fill"), _SOURCE),
    **dict.fromkeys(("select_backward", "slice_backward"), Linearity(terms=("grad_output",))),
    "where": _OTHER,
    "embedding": Linearity(terms=("weight",)),
}
"""Operations that are linear in the arguments listed, by name; views are linear in what they show."""
_SPOILING = ("rounding_mode", "reduce", "training")
"""Options of listed operations that make them something else: a floor, a product of all, statistics of the batch."""
_SHAPE_ALONE = {
    *("zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
}
"""Operations whose result depends on the shape of ``self`` and not on its numbers."""
_READERS = ("numpy", "tolist", "__array__", "__dlpack__", "__deepcopy__", "__reduce_ex__")
"""Methods that take numbers out of tensors without an operation of torch."""
_FLOATS = (torch.float32, torch.float64)
"""Narrower floats round so coarsely that a sum of them is a staircase."""


class _NotAffineError(Exception):
    """The parameters enter an operation that is not known to be affine, or leave torch."""


class _Dependences(TorchDispatchMode):  # type: ignore[misc]
    """Follow through every operation what the tensors depend on."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Dependence] = {}
        self._alive: list[Any] = []  # a storage that is freed would give its address to another
        self._count = 0

    def note(self, tensor: Any, found: Dependence) -> None:
        """Note that the memory of a tensor holds numbers that depend so on the parameters."""
        key = tensor.untyped_storage()._cdata
        self._known[key] = max(self._known.get(key, Dependence.CONSTANT), found)
        self._alive.append(tensor)

    def of(self, tensors: Any) -> Dependence:
        """Return the dependence of tensors in any nested structure; what was never noted is a constant."""
        found = (self._known.get(each.untyped_storage()._cdata, Dependence.CONSTANT) for each in _tensors(tensors))
        return max(found, default=Dependence.CONSTANT)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > _MOST_OPERATIONS:
            raise _NotAffineError
        given = _named(func, args, kwargs)
        found = _result(func, given, {name: self.of(value) for name, value in given.items()})
        written = [given[each.name] for each in func._schema.arguments if _is_written(each) and each.name in given]
        output = func(*args, **kwargs)
        results = list(_tensors(output))
        if found >= Dependence.INPUT and not results and not written:
            raise _NotAffineError  # a number leaves for Python, which may branch on it
        if found >= Dependence.AFFINE and any(each.dtype not in _FLOATS for each in results):
            raise _NotAffineError
        for tensor in (*results, *_tensors(written)):
            self.note(tensor, found)
        return output


class _Reads(TorchFunctionMode):  # type: ignore[misc]
    """Refuse methods that take out of torch what depends on inputs or parameters."""

    def __init__(self, dependences: _Dependences) -> None:
        super().__init__()
        self._dependences = dependences

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READERS and self._dependences.of((args, kwargs)) >= Dependence.INPUT:
            raise _NotAffineError
        return func(*args, **(kwargs or {}))


def is_affine(function: Callable[[Any, Rows], Any], theta: Any, rows: Rows) -> bool:
    """Return whether a result is an affine function of the trainable parameters, whatever their values.

    Args:
        function: Of parameters and inputs: a module's predictions, or a functional without inputs.
        theta: Flat parameters, (p,).
        rows: A few rows of inputs.
    """
    own = theta.detach().clone()
    given = copy_rows(rows)
    dependences = _Dependences()
    dependences.note(own, Dependence.AFFINE)
    for value in given:
        dependences.note(value, Dependence.INPUT)
    try:
        with torch.inference_mode(False), torch.no_grad(), _Reads(dependences), dependences:
            output = function(own, given)
    except Exception:  # found not to be affine, or a module that does not let itself be watched
        return False
    return dependences.of(output) == Dependence.AFFINE


def _result(func: Any, given: dict[str, Any], found: dict[str, Dependence]) -> Dependence:
    """Return the dependence of what an operation returns or writes.

    Raises:
        _NotAffineError: When it is not known to be affine.
    """
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name in _SHAPE_ALONE:
        return Dependence.CONSTANT
    linearity = _LINEAR.get(name)
    if _is_view(func):
        linearity = _SELF
    if any(given.get(option) for option in _SPOILING):
        linearity = None
    result = combine(found, linearity)
    if result > Dependence.AFFINE:
        raise _NotAffineError
    return result


def _is_view(func: Any) -> bool:
    """Whether an operation returns views of ``self``; one of another dtype reads the same bits as other numbers."""
    returned = [each.alias_info for each in func._schema.returns]
    shown = bool(returned) and all(each is not None and not each.is_write for each in returned)
    return shown and func._overloadname != "dtype"


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of an operation by their names."""
    names = [each.name for each in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _tensors(values: Any) -> Iterator[Any]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
