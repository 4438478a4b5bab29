"""Proof that a module is affine in its trainable parameters, from the operations of one forward pass.

The module runs once, in evaluation mode, on a few rows. A dispatch mode receives every operation on tensors, below
autograd and below Python. The dependence of a tensor on the parameters is stored by its memory, so that views and
in-place operations are included. See :mod:`vhat.models.affine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vhat.models.affine import Dependence, Linearity, combine
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import copy_rows
from vhat.models.torch.operations import Call, memory_of, results_of

__all__ = ["is_affine"]

_MAX_OPERATIONS = 4000
"""Number of operations after which a module counts as not affine. One takes 40 to 50 microseconds, so this limits the
time to a fifth of a second."""
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
"""Operations that return ``self`` plus a product of two other arguments."""

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
    # normalisation by fixed statistics, or of values that do not depend on the parameters
    "native_batch_norm": _NORMALISED,
    "_native_batch_norm_legit_no_training": _NORMALISED,
    "native_layer_norm": _SCALED,
    "native_group_norm": _SCALED,
    # averages over positions
    **dict.fromkeys(("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _SELF),
    # rearrangements; positions, masks and indices must not depend on the parameters
    **dict.fromkeys(("cat", "stack"), Linearity(terms=("tensors",))),
    **dict.fromkeys(("clone", "_to_copy", "_unsafe_view", "flip", "roll", "repeat", "tril", "triu"), _SELF),
    **dict.fromkeys(("constant_pad_nd", "im2col", "col2im", "diag_embed"), _SELF),
    **dict.fromkeys(("index", "index_select", "gather", "take", "masked_select"), _SELF),
    **dict.fromkeys(("copy", "scatter", "scatter_add", "index_add", "index_put", "index_copy", "masked_fill"), _SOURCE),
    **dict.fromkeys(("select_backward", "slice_backward"), Linearity(terms=("grad_output",))),
    "where": _OTHER,
    "embedding": Linearity(terms=("weight",)),
}
"""Operations with the names of the arguments in which they are linear. Views are linear in their argument as well."""
_DISQUALIFYING_OPTIONS = ("rounding_mode", "reduce", "training")
"""Options that make a listed operation nonlinear: a floor, a product of all values, statistics of the batch."""
_SHAPE_ONLY = {
    *("zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"),
}
"""Operations whose result depends on the shape of ``self`` only, not on its values."""
_READERS = ("numpy", "tolist", "__array__", "__dlpack__", "__deepcopy__", "__reduce_ex__")
"""Methods that read values of a tensor without an operation of torch."""
_FLOATS = (torch.float32, torch.float64)
"""Floats that count as real numbers. Narrower ones round so coarsely that a sum of them is a step function."""


class _NotAffineError(Exception):
    """The parameters enter an operation that is not known to be affine, or leave torch."""


class _Dependences(TorchDispatchMode):  # type: ignore[misc]
    """Propagate the dependence of tensors on the parameters through every operation."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Dependence] = {}
        self._alive: list[Any] = []  # keeps the memory of all tensors, so that no address is used twice
        self._count = 0

    def record(self, tensors: Sequence[Any], memory: Sequence[int], dependence: Dependence) -> None:
        """Record the dependence of the values in the memory of tensors."""
        for key in memory:
            self._known[key] = max(self._known.get(key, Dependence.CONSTANT), dependence)
        self._alive.extend(tensors)

    def of(self, values: Any) -> Dependence:
        """Return the largest dependence of the tensors in a nested structure; CONSTANT for unrecorded ones."""
        return self._largest(memory_of(values))

    def _largest(self, memory: list[int]) -> Dependence:
        return max((self._known.get(key, Dependence.CONSTANT) for key in memory), default=Dependence.CONSTANT)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._count += 1
        if self._count > _MAX_OPERATIONS:
            raise _NotAffineError
        call = Call.of(func, args, kwargs)
        dependences = {name: self._largest(memory) for name, memory in call.memory.items()}
        dependence = _dependence_of_result(func, call, dependences)
        output = func(*args, **kwargs)
        results, changed, memory = results_of(call, output)
        if dependence >= Dependence.INPUT and not results and not call.written:
            raise _NotAffineError  # the result is a Python number, on which the module may branch
        if dependence >= Dependence.AFFINE and any(each.dtype not in _FLOATS for each in results):
            raise _NotAffineError
        self.record(changed, memory, dependence)
        return output


class _Reads(TorchFunctionMode):  # type: ignore[misc]
    """Raise for methods that read values which depend on inputs or parameters out of torch."""

    def __init__(self, dependences: _Dependences) -> None:
        super().__init__()
        self._dependences = dependences

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READERS and self._dependences.of((args, kwargs)) >= Dependence.INPUT:
            raise _NotAffineError
        return func(*args, **(kwargs or {}))


def is_affine(function: Callable[[Any, Rows], Any], theta: Any, rows: Rows) -> bool:
    """Return whether a function is proved to be affine in the trainable parameters, for all of their values.

    Args:
        function: A function of parameters and inputs: a module's predictions, or a functional without inputs.
        theta: Flat parameters, (p,).
        rows: A few rows of inputs.
    """
    # Copies, because the function may write to its arguments.
    parameters = theta.detach().clone()
    inputs = copy_rows(rows)
    dependences = _Dependences()
    dependences.record([parameters], memory_of(parameters), Dependence.AFFINE)
    dependences.record(inputs, memory_of(inputs), Dependence.INPUT)
    try:
        with torch.inference_mode(False), torch.no_grad(), _Reads(dependences), dependences:
            output = function(parameters, inputs)
    except Exception:  # not affine, or a module that does not run under a dispatch mode
        return False
    return dependences.of(output) == Dependence.AFFINE


def _dependence_of_result(func: Any, call: Call, dependences: dict[str, Dependence]) -> Dependence:
    """Return the dependence of the values that an operation returns or writes.

    Args:
        func: The operation.
        call: Its call.
        dependences: The dependences of the arguments by name.

    Raises:
        _NotAffineError: When the result is not known to be affine.
    """
    if call.name in _SHAPE_ONLY:
        return Dependence.CONSTANT
    linearity = _LINEAR.get(call.name)
    if call.views and func._overloadname != "dtype":  # a view with another dtype reinterprets the bits
        linearity = _SELF
    if any(call.arguments.get(option) for option in _DISQUALIFYING_OPTIONS):
        linearity = None
    dependence = combine(dependences, linearity)
    if dependence > Dependence.AFFINE:
        raise _NotAffineError
    return dependence
