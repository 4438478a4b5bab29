"""A torch module as a pure float64 function of one flat parameter vector and rows of inputs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vhat.errors import ModelError, VhatError
from vhat.models.kinks import UNKNOWN_KINKS, KinkedOperations
from vhat.models.outputs import select
from vhat.models.selection import ALL, Selection
from vhat.models.selection import select as select_names
from vhat.models.torch.inputs import Layout, Rows

__all__ = [
    "Linear",
    "Slot",
    "State",
    "TorchModel",
    "choose_convention",
    "in_words",
    "read_state",
    "training_submodules",
]

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

    def split(self, theta: Any) -> dict[str, Any]:
        """Return the trainable parameters by name: views of the flat vector, where all of their rows are trained."""
        return self.filled(self.pieces(theta))

    def pieces(self, theta: Any) -> dict[str, Any]:
        """Return the trained part of each parameter as a view of the flat vector, by name."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        parts = zip(self.names, torch.split(theta, sizes), self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in parts}

    def filled(self, pieces: dict[str, Any]) -> dict[str, Any]:
        """Return whole parameters, of which these are the trained parts."""
        if not self.slots:
            return pieces
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

    def __call__(self, theta: Any, rows: Rows) -> Any:
        """Return predictions (m, K) in float64, differentiable in the flat ``theta``."""
        return self.at(self.state.split(theta), rows)

    def at(self, trained: dict[str, Any], rows: Rows) -> Any:
        """Return predictions (m, K) at trainable parameters given by name."""
        m = len(rows[0])
        returned = call(self.module, {**trained, **self.state.fixed}, self.layout, self.convention, rows)
        output = select(self.output, returned)
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
    args, kwargs = _arguments(layout, convention, rows)
    with sdpa_kernel(SDPBackend.MATH), _uncompiled(), torch.enable_grad():
        return torch.func.functional_call(module, tensors, args, kwargs)


def _uncompiled() -> Any:
    """Run compiled parts in their plain form; where the compiler was never loaded there are none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _arguments(layout: Layout, convention: Convention, rows: Rows) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if convention == "positional":
        return rows, {}
    named = dict(zip(layout.names, rows, strict=True))
    if convention == "keywords":
        return (), named
    return (named if layout.kind == "dict" else rows,), {}


def choose_convention(module: Any, tensors: dict[str, Any], layout: Layout, rows: Rows) -> tuple[Convention, Any]:
    """Find how the module takes its inputs; return that and its output for these rows.

    Raises:
        ModelError: When no way of calling it works.
    """
    candidates = _conventions(module, layout)
    errors: list[Exception] = []
    for convention in candidates:
        args, kwargs = _arguments(layout, convention, rows)
        try:
            inspect.signature(module.forward).bind(*args, **kwargs)
            return convention, call(module, tensors, layout, convention, rows)
        except Exception as error:
            errors.append(error)
    tried = {"positional": "module(*inputs)", "together": "module(inputs)", "keywords": "module(**inputs)"}
    ways = " and ".join(tried[convention] for convention in candidates) if layout.kind != "one" else "module(X)"
    telling = next((error for error in errors if not isinstance(error, TypeError)), errors[-1])
    raise ModelError(f"calling {ways} in float64 failed: {describe(telling)}{_about_keys(module, layout)}") from telling


def _conventions(module: Any, layout: Layout) -> list[Convention]:
    """Return the ways of calling the module that are tried, in order.

    A dict whose keys are all named parameters of ``forward`` is meant for them. Keys that only ``**kwargs`` would take
    may be passed on to a module that takes the dict as one argument.
    """
    if layout.kind == "one":
        return ["positional"]
    if layout.kind == "tuple":
        return ["positional", "together"]
    if set(layout.names) <= set(_keywords(module)):
        return ["keywords"]
    found: list[Convention] = ["keywords", "together"]
    return [*found, "positional"] if len(layout.names) == 1 else found


def _keywords(module: Any) -> list[str]:
    """Return the parameters of ``forward`` that can be given by name."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in kinds]


def _about_keys(module: Any, layout: Layout) -> str:
    """Say which keys of a dict of inputs are no parameters of ``forward``."""
    if layout.kind != "dict":
        return ""
    taken = _keywords(module)
    unknown = [name for name in layout.names if name not in taken]
    if not unknown:
        return f" (X is a dict whose keys are parameters of forward, so it was called as forward(**X): {taken}.)"
    return (
        f" (X has the keys {list(layout.names)} and forward takes {taken}. Leave out {unknown}, name the responses by "
        "target_key=, or give a dict with the names of forward's parameters.)"
    )


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn whatever the module raises into a ModelError that says what was being done and what to do."""
    try:
        yield
    except VhatError:
        raise
    except Exception as error:
        raise ModelError(f"{doing} failed: {describe(error)}") from error


_REMEDIES = (
    (
        ("inplace", "in-place"),
        "The module works in place on a tensor that autograd needs: write that step out of place (x = x + 1, not "
        "x += 1).",
    ),
    (
        (
            "derivative for",
            "differentiable twice",
            "once_differentiable",
            "double backward",
            "double-backward",
        ),
        "The module holds an operation without a second derivative: replace it by a differentiable one.",
    ),
    (
        ("require grad", "grad_fn", "requires grad", "used in the graph"),
        "The prediction leaves autograd (detach(), numpy(), argmax, rounding, torch.no_grad()): keep it "
        "differentiable from parameters to output.",
    ),
    (
        ("dtype", "scalar type", "same type", "double"),
        "vhat evaluates the module in float64 and it mixes dtypes: let tensors that it makes follow its inputs "
        "(x.new_zeros(...), dtype=x.dtype), register constants as buffers, and give numbers as floats.",
    ),
)


def describe(error: Exception) -> str:
    """Say what a torch error means for the module, and what to do, with the error's own first line."""
    text = str(error).strip()
    first = text.splitlines()[0][:300] if text else "no message"
    remedy = next((say for signs, say in _REMEDIES if any(sign in text.lower() for sign in signs)), "")
    return f"{type(error).__name__}: {first} {remedy}".strip()


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


def read_state(module: Any, parameters: Selection = ALL) -> tuple[State, Any]:
    """Copy a module's tensors to float64 and return them with the flat vector of trainable parameters.

    Args:
        module: The module.
        parameters: The trainable ones: ``"all"`` that require a gradient, or a selection among all of them.

    Raises:
        InputError: For a selection that names what the module does not have.
        ModelError: When there is nothing to differentiate, or the tensors cannot be float64.
    """
    own = dict(module.named_parameters())
    selected = not (isinstance(parameters, str) and parameters == ALL)
    if selected:
        trained = {name: own[name] for name in select_names(parameters, tuple(own), ".")}
    else:
        trained = {name: value for name, value in own.items() if value.requires_grad}
    if not trained:
        raise ModelError("the module has no parameter with requires_grad=True: there is nothing that training moved.")
    tensors = {**own, **dict(module.named_buffers())}
    device = _device(tensors)
    frozen = tuple(name for name in own if name not in trained)
    with torch.inference_mode(False), torch.no_grad():
        theta = torch.cat([value.detach().to(torch.float64).reshape(-1) for value in trained.values()])
        fixed = {name: _widened(value) for name, value in tensors.items() if name not in trained}
    bad = [name for name, value in trained.items() if not value.detach().isfinite().all()]
    if bad:
        raise ModelError(f"parameters hold NaN or infinite values: {', '.join(bad)}. Training diverged; fit again.")
    dtypes = sorted({str(value.dtype).removeprefix("torch.") for value in trained.values()})
    shapes = tuple(tuple(value.shape) for value in trained.values())
    return State(tuple(trained), shapes, fixed, frozen, device, ", ".join(dtypes), selected), theta


def _device(tensors: dict[str, Any]) -> Any:
    for name, value in tensors.items():
        if isinstance(value, nn.parameter.UninitializedTensorMixin):
            raise ModelError(f"{name} is not initialised yet (a lazy module): run the module once on a batch.")
        if value.is_complex():
            raise ModelError(f"{name} is complex; vhat differentiates real parameters only.")
    devices = {value.device for value in tensors.values()}
    if len(devices) > 1:
        listed = ", ".join(sorted(str(device) for device in devices))
        raise ModelError(f"the module lives on several devices ({listed}). Move it to one: module.to('cpu').")
    (device,) = devices
    if device.type in ("mps", "meta"):
        raise ModelError(f"device {device} has no float64, which the solve needs. Use module.to('cpu').")
    return device


def _widened(value: Any) -> Any:
    wide = torch.float64 if value.is_floating_point() else value.dtype
    return value.detach().to(dtype=wide, copy=True)
