"""A torch module as a pure float64 function of one flat parameter vector and rows of inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vhat.errors import ModelError, VhatError
from vhat.models.kinks import UNKNOWN_KINKS, KinkedOperations
from vhat.models.outputs import select
from vhat.models.torch.describe import describe
from vhat.models.torch.inputs import Layout, Rows
from vhat.models.torch.state import State

__all__ = [
    "Convention",
    "Linear",
    "TorchModel",
    "arguments",
    "call",
    "copy_rows",
    "recording",
    "take_rows",
    "training_submodules",
    "wrap_errors",
]

Convention = Literal["positional", "together", "keywords"]
"""How the module takes its inputs: ``module(*inputs)``, ``module(inputs)`` or ``module(**inputs)``."""


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
