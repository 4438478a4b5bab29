"""A torch module as a pure float64 function of one flat parameter vector and rows of inputs, and its derivatives.

One recording of a chunk of rows serves products, Jacobians and their transposes. Recording the gradient once and going
backward through it for each right-hand side is the fastest eager way that was measured: 0.6 to 2.1 plain gradients per
Hessian product and 0.5 to 1.5 per Gauss-Newton product for one and two hidden layers, where ``torch.func`` takes 3.4 to
4.8 by ``jvp(grad)``, 2.6 to 4.9 by ``vmap`` of it, and ten and more by ``linearize`` unless its trace is kept. It also
needs no forward-mode rules, which attention and others lack.
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
    "Slot",
    "State",
    "Tape",
    "TorchModel",
    "arguments",
    "call",
    "copy_rows",
    "in_words",
    "jacobian_blocks",
    "recording",
    "row_gradients",
    "row_gradients_one_by_one",
    "take_rows",
    "training_submodules",
]

_MAPPED_BYTES = 2**24  # per-row gradients are made in blocks of this size: fresh memory costs more than arithmetic
_MOST_MAPPED = 512

Convention = Literal["positional", "together", "keywords"]


@dataclass(frozen=True)
class Slot:
    """Rows of a parameter that are trained, where the others are held fixed.

    Attributes:
        rows: The numbers of the trained rows, (k,).
        base: The whole parameter, in float64.
    """

    rows: Any
    base: Any

    def kept(self, whole: Any) -> Any:
        """Return the trained rows of the whole parameter."""
        return whole[self.rows]

    def filled(self, part: Any) -> Any:
        """Return the whole parameter with these trained rows."""
        return self.base.index_copy(0, self.rows, part)


@dataclass(frozen=True)
class State:
    """The tensors of a module, in float64: what training moved, and what it did not.

    Attributes:
        names: The trainable parameters, tied ones once.
        shapes: Their shapes.
        fixed: Frozen parameters and buffers by name.
        frozen: The names of the frozen parameters among ``fixed``.
        device: Where all of them live.
        dtype: The dtype in which the trainable parameters were given.
        selected: Whether ``parameters=`` has named the trainable ones; else they are those that require a gradient.
        slots: The parameters of which only some rows are trained; their shapes are those of these rows.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    fixed: dict[str, Any]
    frozen: tuple[str, ...]
    device: Any
    dtype: str
    selected: bool = False
    slots: dict[str, Slot] = field(default_factory=dict, kw_only=True)

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers of each parameter are trained."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    def split(self, theta: Any) -> dict[str, Any]:
        """Return the trainable parameters by name: views of the flat vector, where all of their rows are trained."""
        pieces = self.pieces(theta)
        return self.filled(pieces) if self.slots else pieces

    def pieces(self, theta: Any) -> dict[str, Any]:
        """Return the trained part of each parameter as a view of the flat vector, by name."""
        parts = map(torch.reshape, torch.split(theta, self.sizes), self.shapes)
        return dict(zip(self.names, parts, strict=True))

    def filled(self, pieces: dict[str, Any]) -> dict[str, Any]:
        """Return whole parameters, of which these are the trained parts."""
        return {name: self.slots[name].filled(part) if name in self.slots else part for name, part in pieces.items()}

    def hold(self, free: Sequence[str], slots: dict[str, Slot], values: dict[str, Any]) -> State:
        """Return the state in which only some of the trainable parameters are trained.

        Args:
            free: Their names.
            slots: Those of which only some rows are.
            values: The trainable parameters by name.
        """
        held = {name: value for name, value in values.items() if name not in free}
        shapes = [tuple((slots[name].kept(values[name]) if name in slots else values[name]).shape) for name in free]
        return replace(
            self,
            names=tuple(free),
            shapes=tuple(shapes),
            fixed={**self.fixed, **held},
            frozen=(*self.frozen, *held),
            slots=slots,
        )


class Linear(NamedTuple):
    """The names of a linear layer's own parameters; None where it has no bias, or one that is not its own."""

    weight: str
    bias: str | None


@dataclass(frozen=True, eq=False)
class TorchModel:
    """``f(theta, rows) -> (m, K)``: the module with its parameters replaced, whatever it returns and is called with.

    Attributes:
        module: The user's module; only its code runs, its tensors are swapped for float64 copies during a call.
        state: Those copies.
        layout: How the training inputs were given.
        convention: How the module takes them.
        outputs: K.
        squeeze: Whether the module returns (m,).
        batched: Whether one backward pass can carry a block of cotangents.
        mapped: Whether ``torch.vmap`` over rows works.
        linear: Layers whose gradients are known to be outer products: see :mod:`vhat.models.torch.outer_products`.
        affine: Whether predictions are an affine function of theta: see :mod:`vhat.models.torch.affine`.
        output: Which part of what the module returns is the prediction: see :mod:`vhat.models.outputs`.
        kinks: The kinked operations that act on theta: see :mod:`vhat.models.torch.kinks`.
        narrow: The operations that take float64 and return a narrower float.
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
        """Return predictions (m, K) at trainable parameters given by name."""
        m = len(rows[0])
        returned = call(self.module, {**trained, **self.state.fixed}, self.layout, self.convention, rows)
        one = self.output is None and isinstance(returned, torch.Tensor)  # most modules: there is nothing to choose
        output = returned if one else select(self.output, returned)
        if output.numel() != m * self.outputs or (m > 1 and output.shape[0] != m):
            expected = (m,) if self.squeeze else (m, self.outputs)
            raise ModelError(f"the module returned shape {tuple(output.shape)} for {m} rows; expected {expected}.")
        return output.reshape(m, self.outputs).to(torch.float64)  # squeeze() also eats the axis of a lone row

    def guard(self) -> None:
        """Refuse a module that was put back into training mode since it was given."""
        if found := training_submodules(self.module):
            raise ModelError(
                f"the module is in training mode again, where {', '.join(found)} behave differently: call "
                "module.eval() before asking for intervals."
            )


def call(module: Any, tensors: dict[str, Any], layout: Layout, convention: Convention, rows: Rows) -> Any:
    """Run the module with its parameters and buffers replaced by ``tensors``; its own are put back, come what may.

    Fused attention and compiled submodules have no second derivative: both run in their plain form. A module may
    differentiate on its own, as the force of an energy does, also where the caller records nothing.
    """
    args, kwargs = arguments(layout, convention, rows)
    with sdpa_kernel(SDPBackend.MATH), _uncompiled(), torch.enable_grad():
        return torch.func.functional_call(module, tensors, args, kwargs)


def _uncompiled() -> Any:
    """Run compiled parts in their plain form; where the compiler was never loaded there are none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def arguments(layout: Layout, convention: Convention, rows: Rows) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that give rows to a module in its convention, by position and by name."""
    if convention == "positional":
        return rows, {}
    named = dict(zip(layout.names, rows, strict=True))
    if convention == "keywords":
        return (), named
    return (named if layout.kind == "dict" else rows,), {}


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn whatever the module raises into a ModelError that says what was being done and what to do."""
    try:
        yield
    except VhatError:
        raise
    except Exception as error:
        raise ModelError(f"{doing} failed: {describe(error)}") from error


def training_submodules(module: Any) -> list[str]:
    """Name the submodules in training mode that behave differently there: dropout, batch-norm and their kin."""
    return [
        f"{name or 'the module itself'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if part.training and _mode_matters(part)
    ]


def _mode_matters(part: Any) -> bool:
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
    """Return the rows that a slice or an index tensor selects."""
    return tuple(value[index] for value in rows)


def copy_rows(rows: Rows) -> Rows:
    """Return rows that a module may write to."""
    return tuple(value.clone() for value in rows)


@contextmanager
def recording() -> Iterator[None]:
    """Record for autograd, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


class Tape:
    """The chunk's predictions ``f`` and its share ``g = J'u`` of the gradient of L, recorded as functions of theta.

    ``u = first + C (f - f_hat)`` is the loss derivative to first order around the fitted values ``f_hat``, so the
    derivative of ``g`` in theta is the exact Hessian ``J'CJ + sum_i first_i hess f_i`` for any loss; the derivative of
    ``g`` in ``u`` is the transpose of ``J'``.

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
            curvature: ``w l''/n``, (m, K) or (m, K, K).
            block: How many cotangents go backward together.
        """
        self._curvature, self._block = curvature, block if model.batched else 1
        with recording():
            self._theta = theta.detach().requires_grad_()
            self._f = model(self._theta, rows)
            self._u = first + self._weigh(self._f - self._f.detach())
            (self._g,) = torch.autograd.grad(self._f, self._theta, self._u, create_graph=True)
        self.values, self.gradient = self._f.detach(), self._g.detach()

    def product(self, v: Any, curvature: Curvature) -> Any:
        """The chunk's share of ``H v``, or of its Gauss-Newton part, for each row of v: (k, p) to (k, p)."""
        if curvature == "hessian":
            return self._backward(self._g, self._theta, v)
        return self.vjp(self._weigh(self.jvp(v)))

    def jvp(self, v: Any) -> Any:
        """``J v``: (k, p) to (k, m, K)."""
        return self._backward(self._g, self._u, v)

    def vjp(self, t: Any) -> Any:
        """``J' t``: (k, m, K) to (k, p)."""
        return self._backward(self._f, self._theta, t)

    def _weigh(self, t: Any) -> Any:
        if self._curvature.ndim == 2:
            return self._curvature * t
        return torch.einsum("mij,...mj->...mi", self._curvature, t)

    def _backward(self, output: Any, source: Any, cotangents: Any) -> Any:
        def pull(cotangent: Any, batched: bool) -> Any:
            return torch.autograd.grad(output, source, cotangent, retain_graph=True, is_grads_batched=batched)[0]

        with torch.inference_mode(False):
            if self._block > 1 and len(cotangents) > 1:
                return torch.cat([pull(block, True) for block in torch.split(cotangents, self._block)])
            return torch.stack([pull(cotangent, False) for cotangent in cotangents])


def rows_together(numbers: int) -> int:
    """How many rows to differentiate at once where each gives so many numbers."""
    return min(_MOST_MAPPED, max(1, _MAPPED_BYTES // (8 * numbers)))


def jacobian_blocks(
    model: TorchModel, theta: Any, rows: Rows, names: Sequence[str]
) -> Iterator[tuple[slice, list[Any]]]:
    """Yield cache-sized blocks of rows with their Jacobian, parameter by parameter: (m, K, size of the parameter).

    Args:
        model: A module that ``torch.vmap`` can map.
        theta: Flat parameters, (p,).
        rows: Inputs.
        names: The parameters that are asked for.
    """
    state = model.state
    trained = state.pieces(theta.detach())
    asked = {name: trained[name] for name in names}

    def one(asked: dict[str, Any], row: Rows) -> Any:
        return model.at(state.filled({**trained, **asked}), tuple(value[None] for value in row))[0]

    size = rows_together(sum(value.numel() for value in asked.values()) * model.outputs)
    for start in range(0, len(rows[0]), size):
        block = slice(start, min(start + size, len(rows[0])))
        with torch.inference_mode(False):
            jacobian = torch.vmap(torch.func.jacrev(one), in_dims=(None, 0))
            parts = jacobian(asked, take_rows(rows, block))
        shape = (block.stop - start, model.outputs, -1)
        yield block, [parts[name].reshape(shape) for name in names]


def row_gradients(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """Gradients of every output of every row, (m, K, p)."""
    if not model.mapped:
        return row_gradients_one_by_one(model, theta, rows)
    found = torch.empty(len(rows[0]), model.outputs, len(theta), dtype=torch.float64, device=theta.device)
    for block, parts in jacobian_blocks(model, theta, rows, model.state.names):
        torch.cat(parts, dim=2, out=found[block])
    return found


def row_gradients_one_by_one(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """The same without ``vmap``, for modules that it cannot map (recurrent kernels, branches on values)."""
    found = []
    with recording():
        leaf = theta.detach().requires_grad_()
        for index in range(len(rows[0])):
            f = model(leaf, take_rows(rows, slice(index, index + 1)))[0]
            found.append(torch.stack([torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in f]))
    return torch.stack(found)
