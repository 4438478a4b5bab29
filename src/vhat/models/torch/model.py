"""A torch module as a pure float64 function of one flat parameter vector and rows of inputs, and its derivatives.

One recording of a chunk of rows (:class:`Tape`) serves curvature products, Jacobian products and their transposes. The
gradient is recorded once, and each right-hand side takes a backward pass through the recording. This was the fastest
eager method in our measurements with one and two hidden layers. Cost of a product, in plain gradients:

- this method: 0.6 to 2.1 for the Hessian, 0.5 to 1.5 for Gauss-Newton;
- ``jvp(grad)`` of ``torch.func``: 3.4 to 4.8, and 2.6 to 4.9 by ``vmap`` of it;
- ``linearize`` of ``torch.func``: ten and more, unless its trace is kept.

It also needs no forward-mode rules, which attention and other operations do not have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vhat.errors import ModelError, VhatError
from vhat.models.kinks import UNKNOWN_KINKS, KinkedOperations
from vhat.models.outputs import select
from vhat.models.protocols import Curvature
from vhat.models.torch.describe import describe
from vhat.models.torch.inputs import Layout, Rows

__all__ = [
    "Convention",
    "Linear",
    "State",
    "Tape",
    "TorchModel",
    "TrainedRows",
    "arguments",
    "call",
    "copy_rows",
    "jacobian_blocks",
    "recording",
    "row_gradients",
    "row_gradients_one_by_one",
    "take_rows",
    "training_submodules",
    "wrap_errors",
]

_BLOCK_BYTES = 2**24
"""Size of one block of per-row gradients, in bytes. Allocating larger blocks costs more time than the arithmetic."""
_MAX_BLOCK_ROWS = 512
"""Upper limit on the rows of one block, for modules with few parameters."""

Convention = Literal["positional", "together", "keywords"]
"""How the module takes its inputs: ``module(*inputs)``, ``module(inputs)`` or ``module(**inputs)``."""


@dataclass(frozen=True)
class TrainedRows:
    """The trained rows of a parameter whose other rows are held fixed.

    Attributes:
        rows: The indices of the trained rows, (k,).
        base: The whole parameter, in float64.
    """

    rows: Any
    base: Any

    def select(self, whole: Any) -> Any:
        """Return the trained rows of the whole parameter."""
        return whole[self.rows]

    def insert(self, part: Any) -> Any:
        """Return the whole parameter with these values in its trained rows."""
        return self.base.index_copy(0, self.rows, part)


@dataclass(frozen=True)
class State:
    """The tensors of a module, in float64, divided into trained and fixed ones.

    Attributes:
        names: Names of the trained parameters, tied ones once.
        shapes: Their shapes.
        fixed: Frozen parameters and buffers by name.
        frozen: Names of the frozen parameters among ``fixed``.
        device: The device of all tensors.
        dtype: The dtype in which the trained parameters were given.
        selected: Whether ``parameters=`` has selected the trained ones; otherwise they are those that require a
            gradient.
        slots: Parameters with only some rows trained. Their entries in ``shapes`` are the shapes of these rows.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    fixed: dict[str, Any]
    frozen: tuple[str, ...]
    device: Any
    dtype: str
    selected: bool = False
    slots: dict[str, TrainedRows] = field(default_factory=dict, kw_only=True)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of trained values of each parameter."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    def split(self, theta: Any) -> dict[str, Any]:
        """Return the trained parameters by name; views of the flat vector, if all of their rows are trained."""
        parts = self.trained_parts(theta)
        return self.complete(parts) if self.slots else parts

    def trained_parts(self, theta: Any) -> dict[str, Any]:
        """Return the trained part of each parameter by name, as a view of the flat vector."""
        parts = map(torch.reshape, torch.split(theta, self.sizes), self.shapes)
        return dict(zip(self.names, parts, strict=True))

    def complete(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Return the whole parameters by name, given their trained parts."""
        return {name: self.slots[name].insert(part) if name in self.slots else part for name, part in parts.items()}

    def hold(self, free: Sequence[str], slots: dict[str, TrainedRows], values: dict[str, Any]) -> State:
        """Return the state with only some of the trained parameters trained and the others held fixed.

        Args:
            free: Names of the parameters that stay trained.
            slots: Those with only some rows trained.
            values: All trained parameters by name.
        """
        held = {name: value for name, value in values.items() if name not in free}
        shapes = []
        for name in free:
            part = slots[name].select(values[name]) if name in slots else values[name]
            shapes.append(tuple(part.shape))
        return replace(
            self,
            names=tuple(free),
            shapes=tuple(shapes),
            fixed={**self.fixed, **held},
            frozen=(*self.frozen, *held),
            slots=slots,
        )


class Linear(NamedTuple):
    """Names of the parameters of a linear layer; ``bias`` is None without one, or if other layers use it as well."""

    weight: str
    bias: str | None


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A module as a function ``f(theta, rows) -> (m, K)`` of its trained parameters.

    Attributes:
        module: The user's module. Its tensors are replaced by float64 copies during a call.
        state: These copies.
        layout: Structure of the training inputs.
        convention: How the module takes its inputs.
        outputs: Number of outputs, K.
        squeeze: Whether the module returns (m,).
        batched: Whether one backward pass can process a block of cotangents.
        mapped: Whether ``torch.vmap`` over rows works.
        linear: Layers whose gradients are known to be outer products: see :mod:`vhat.models.torch.outer_products`.
        affine: Whether predictions are an affine function of theta: see :mod:`vhat.models.torch.affine`.
        output: The user's ``output=``, which selects the prediction: see :mod:`vhat.models.outputs`.
        kinks: Kinked operations on parameter-dependent values: see :mod:`vhat.models.torch.kinks`.
        narrow: Operations that take float64 and return a narrower float.
    """

    module: Any
    state: State
    layout: Layout
    convention: Convention
    outputs: int
    squeeze: bool
    batched: bool = True
    mapped: bool = True
    linear: tuple[Linear, ...] = ()
    affine: bool = False
    output: Any = None
    kinks: KinkedOperations = UNKNOWN_KINKS
    narrow: tuple[str, ...] = ()

    def __call__(self, theta: Any, rows: Rows) -> Any:
        """Return predictions (m, K) in float64, differentiable in the flat ``theta``."""
        return self.at(self.state.split(theta), rows)

    def at(self, trained: dict[str, Any], rows: Rows) -> Any:
        """Return predictions (m, K) at trained parameters given by name."""
        m = len(rows[0])
        returned = call(self.module, {**trained, **self.state.fixed}, self.layout, self.convention, rows)
        if self.output is None and isinstance(returned, torch.Tensor):
            output = returned
        else:
            output = select(self.output, returned)
        # The number of values is compared and not the shape, because squeeze() in a module removes the axis of a
        # single row as well.
        if output.numel() != m * self.outputs or (m > 1 and output.shape[0] != m):
            expected = (m,) if self.squeeze else (m, self.outputs)
            raise ModelError(f"the module returned shape {tuple(output.shape)} for {m} rows; expected {expected}.")
        return output.reshape(m, self.outputs).to(torch.float64)

    def guard(self) -> None:
        """Raise if the module has been put back into training mode."""
        if found := training_submodules(self.module):
            raise ModelError(
                f"the module is in training mode again, where {', '.join(found)} behave differently: call "
                "module.eval() before asking for intervals."
            )


def call(module: Any, tensors: dict[str, Any], layout: Layout, convention: Convention, rows: Rows) -> Any:
    """Call the module with its parameters and buffers replaced by ``tensors`` for the duration of the call.

    Fused attention and compiled submodules have no second derivatives, so both run in their unfused, uncompiled form.
    Gradients are enabled because a module may itself differentiate, as the force of an energy model does.
    """
    args, kwargs = arguments(layout, convention, rows)
    with sdpa_kernel(SDPBackend.MATH), _uncompiled(), torch.enable_grad():
        return torch.func.functional_call(module, tensors, args, kwargs)


def _uncompiled() -> Any:
    """Return a context manager in which compiled submodules run without compilation."""
    if "torch._dynamo" not in sys.modules:  # the compiler was never imported, so nothing is compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def arguments(layout: Layout, convention: Convention, rows: Rows) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments of a call of the module with these rows."""
    if convention == "positional":
        return rows, {}
    named = dict(zip(layout.names, rows, strict=True))
    if convention == "keywords":
        return (), named
    return (named if layout.kind == "dict" else rows,), {}


@contextmanager
def wrap_errors(action: str) -> Iterator[None]:
    """Raise exceptions of the module as a ModelError that names the action and a remedy."""
    try:
        yield
    except VhatError:
        raise
    except Exception as error:
        raise ModelError(f"{action} failed: {describe(error)}") from error


def training_submodules(module: Any) -> list[str]:
    """Return the names of submodules that are in training mode and behave differently there, such as dropout."""
    return [
        f"{name or 'the module itself'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training and _depends_on_mode(part)
    ]


def _depends_on_mode(part: Any) -> bool:
    """Return whether a submodule behaves differently in training mode."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return bool(part.p > 0)
    if isinstance(part, nn.modules.instancenorm._InstanceNorm):
        return bool(part.track_running_stats)
    if isinstance(part, nn.MultiheadAttention):
        return bool(part.dropout > 0)
    if isinstance(part, nn.RNNBase):
        return bool(part.dropout > 0 and part.num_layers > 1)
    return isinstance(part, nn.modules.batchnorm._BatchNorm | nn.RReLU)


def take_rows(rows: Rows, index: Any) -> Rows:
    """Return rows, selected by a slice or an index tensor."""
    return tuple(value[index] for value in rows)


def copy_rows(rows: Rows) -> Rows:
    """Return copies of rows, to which a module may write."""
    return tuple(value.clone() for value in rows)


@contextmanager
def recording() -> Iterator[None]:
    """Enable recording by autograd, also inside of ``no_grad`` and ``inference_mode``."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


class Tape:
    """The predictions ``f`` of a chunk of rows and its part ``g = J'u`` of the gradient of L, recorded by autograd.

    Here ``u = first + C (f - f_hat)`` is the derivative of the loss, linearised at the fitted values ``f_hat``. For any
    loss, the derivative of ``g`` in theta is the exact Hessian ``J'CJ + sum_i first_i hess f_i``. The derivative of
    ``g`` in ``u`` is ``J'``, so that a backward pass from ``g`` to ``u`` multiplies by J.

    Attributes:
        values: The predictions, (m, K).
        gradient: ``J' first``, (p,).
    """

    def __init__(self, model: TorchModel, theta: Any, rows: Rows, first: Any, curvature: Any, block: int = 1) -> None:
        """Record one chunk.

        Args:
            model: The module as a function.
            theta: Flat parameters, (p,).
            rows: The chunk's inputs, m rows.
            first: ``w l'/n`` at the fitted values, (m, K).
            curvature: C, which is ``w l''/n``, (m, K) or (m, K, K).
            block: Number of cotangents in one backward pass.
        """
        self._curvature = curvature
        self._block = block if model.batched else 1
        with recording():
            self._theta = theta.detach().requires_grad_()
            self._f = model(self._theta, rows)
            self._u = first + self._weigh(self._f - self._f.detach())
            (self._g,) = torch.autograd.grad(self._f, self._theta, self._u, create_graph=True)
        self.values = self._f.detach()
        self.gradient = self._g.detach()

    def product(self, v: Any, curvature: Curvature) -> Any:
        """Return the chunk's part of ``H v``, or of the Gauss-Newton product, for each row of v: (k, p) to (k, p)."""
        if curvature == "hessian":
            return self._backward(self._g, self._theta, v)
        return self.vjp(self._weigh(self.jvp(v)))

    def jvp(self, v: Any) -> Any:
        """Return ``J v`` for each row of v: (k, p) to (k, m, K)."""
        return self._backward(self._g, self._u, v)

    def vjp(self, t: Any) -> Any:
        """Return ``J' t`` for each block of t: (k, m, K) to (k, p)."""
        return self._backward(self._f, self._theta, t)

    def _weigh(self, t: Any) -> Any:
        """Return ``C t``."""
        if self._curvature.ndim == 2:
            return self._curvature * t
        return torch.einsum("mij,...mj->...mi", self._curvature, t)

    def _backward(self, output: Any, source: Any, cotangents: Any) -> Any:
        """Return the transposed derivative of ``output`` in ``source``, applied to each cotangent."""

        def pull_back(cotangent: Any, batched: bool) -> Any:
            return torch.autograd.grad(output, source, cotangent, retain_graph=True, is_grads_batched=batched)[0]

        with torch.inference_mode(False):
            if self._block > 1 and len(cotangents) > 1:
                return torch.cat([pull_back(block, True) for block in torch.split(cotangents, self._block)])
            return torch.stack([pull_back(cotangent, False) for cotangent in cotangents])


def jacobian_blocks(
    model: TorchModel, theta: Any, rows: Rows, names: Sequence[str]
) -> Iterator[tuple[slice, list[Any]]]:
    """Yield blocks of rows with their Jacobian by parameter, (m, K, size of the parameter) each.

    Args:
        model: A module that ``torch.vmap`` can map over rows.
        theta: Flat parameters, (p,).
        rows: Inputs.
        names: The parameters in which to differentiate.
    """
    state = model.state
    trained = state.trained_parts(theta.detach())
    varied = {name: trained[name] for name in names}

    def predict_row(varied: dict[str, Any], row: Rows) -> Any:
        return model.at(state.complete({**trained, **varied}), tuple(value[None] for value in row))[0]

    row_numbers = sum(value.numel() for value in varied.values()) * model.outputs
    size = min(_MAX_BLOCK_ROWS, max(1, _BLOCK_BYTES // (8 * row_numbers)))
    for start in range(0, len(rows[0]), size):
        block = slice(start, min(start + size, len(rows[0])))
        with torch.inference_mode(False):
            jacobian = torch.vmap(torch.func.jacrev(predict_row), in_dims=(None, 0))
            parts = jacobian(varied, take_rows(rows, block))
        shape = (block.stop - start, model.outputs, -1)
        yield block, [parts[name].reshape(shape) for name in names]


def row_gradients(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """Return the gradients of every output of every row, (m, K, p)."""
    if not model.mapped:
        return row_gradients_one_by_one(model, theta, rows)
    gradients = torch.empty(len(rows[0]), model.outputs, len(theta), dtype=torch.float64, device=theta.device)
    for block, parts in jacobian_blocks(model, theta, rows, model.state.names):
        torch.cat(parts, dim=2, out=gradients[block])
    return gradients


def row_gradients_one_by_one(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """Return the same without ``vmap``, for modules that it cannot map (recurrent kernels, branches on values)."""
    gradients = []
    with recording():
        leaf = theta.detach().requires_grad_()
        for index in range(len(rows[0])):
            f = model(leaf, take_rows(rows, slice(index, index + 1)))[0]
            gradients.append(torch.stack([torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in f]))
    return torch.stack(gradients)
