"""Checks of a module before its first use, on a few rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vhat.checks import check_prediction
from vhat.errors import ModelError
from vhat.models.outputs import flatten_remedy, select
from vhat.models.torch.affine import is_affine
from vhat.models.torch.check_derivatives import refuse_wrong_derivatives
from vhat.models.torch.convention import choose_convention
from vhat.models.torch.inputs import Layout, Rows
from vhat.models.torch.kinks import kinked_operations
from vhat.models.torch.model import (
    Linear,
    TorchModel,
    copy_rows,
    recording,
    take_rows,
    training_submodules,
    wrap_errors,
)
from vhat.models.torch.outer_products import find_linear, row_factors
from vhat.models.torch.row_gradients import row_gradients, row_gradients_one_by_one
from vhat.models.torch.state import State
from vhat.models.torch.tape import Tape

__all__ = ["few_rows", "is_repeatable", "narrow_casts", "probe_model", "probe_predictions", "refuse_module"]

_FEW_ROWS = 6
"""Number of rows on which a module is evaluated and differentiated."""
_MANY_ROWS = 64
"""Number of rows on which repeated evaluations are compared."""


def refuse_module(module: Any, remedy: str = "module.eval()") -> None:
    """Raise unless the argument is a module in evaluation mode.

    Args:
        module: The module.
        remedy: The call that sets evaluation mode, for the message.

    Raises:
        ModelError: Naming the submodules in training mode.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"module is a {type(module).__name__}; give a torch.nn.Module, or a fitted skorch net.")
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            "module is a ScriptModule, whose parameters cannot be replaced; give the module it was made of."
        )
    if found := training_submodules(module):
        raise ModelError(
            f"the module is in training mode, where {', '.join(found)} behave differently: call {remedy} first."
        )


def probe_model(module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any = None) -> TorchModel:
    """Evaluate and differentiate a module on a few rows and return it as a function.

    Args:
        module: The module.
        state: Its tensors.
        theta: Its flat parameters, (p,).
        layout: Structure of its inputs.
        rows: Inputs.
        output: The user's ``output=``, which selects the prediction in the return value.

    Raises:
        ModelError: When it is random, mixes rows, changes its arguments, or cannot be differentiated twice.
    """
    model = probe_predictions(module, state, theta, layout, rows, output)
    return _probe_derivatives(model, theta, few_rows(rows))


def probe_predictions(
    module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any = None
) -> TorchModel:
    """Evaluate a module on a few rows and return it as a function, without any check of its derivatives.

    Raises:
        ModelError: When it is random, mixes rows or changes its arguments.
    """
    few = few_rows(rows)
    with torch.inference_mode(False), torch.no_grad():
        model = _first_call(module, state, theta, layout, few, output)
        if not is_repeatable(model, theta, rows):
            mode = " It is in training mode: call module.eval() first." if module.training else ""
            raise ModelError(
                "two evaluations of the same rows differ, so the module is random (dropout that is always on, noise, a "
                f"random mask?). Switch the randomness off.{mode}"
            )
        narrow = narrow_casts(model, theta, few)
        _refuse_mixing(model, theta, few, 1e-4 if narrow else 1e-9)
    return replace(model, narrow=narrow)


def few_rows(rows: Rows, most: int = _FEW_ROWS) -> Rows:
    """Return at most ``most`` rows, evenly spaced over all of them."""
    n = len(rows[0])
    index = torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long().to(rows[0].device)
    return take_rows(rows, index)


def is_repeatable(model: TorchModel, theta: Any, rows: Rows) -> bool:
    """Return whether three evaluations of at most 64 of the rows agree exactly. Works on copies of the buffers."""
    rows = few_rows(rows, _MANY_ROWS)
    copied = {name: value.clone() for name, value in model.state.fixed.items()}
    model = replace(model, state=replace(model.state, fixed=copied))
    with torch.inference_mode(False), torch.no_grad(), wrap_errors("evaluating the module"):
        first, *others = [model(theta.clone(), copy_rows(rows)) for _ in range(3)]
    return all(_equal(first, other) for other in others)


def narrow_casts(model: TorchModel, theta: Any, rows: Rows) -> tuple[str, ...]:
    """Return the operations of one forward pass that take float64 and return a narrower float."""
    casts = _NarrowCasts()
    few = few_rows(rows)
    with torch.inference_mode(False), torch.no_grad(), wrap_errors("evaluating the module"), casts:
        model(theta, few)
    return tuple(casts.found)


class _NarrowCasts(TorchDispatchMode):
    """Record operations that take float64 and return a narrower float."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}  # an ordered set

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        taken = _dtypes((args, kwargs))
        narrow = _dtypes(output) & {torch.float32, torch.float16, torch.bfloat16}
        if torch.float64 in taken and narrow:
            width = str(next(iter(narrow))).removeprefix("torch.")
            self.found[f"{func.overloadpacket} (float64 to {width})"] = None
        return output


def _dtypes(tree: Any) -> set[Any]:
    """Return the dtypes of the tensors in a nested structure."""
    return {leaf.dtype for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class _UnreplacedParameters(TorchFunctionMode):
    """Record uses of a module's own parameters in a call where they should be replaced by copies."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._own = {id(value): name for name, value in module.named_parameters()}
        self.found: dict[str, None] = {}  # an ordered set

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
            names = (self._own.get(id(leaf)) for leaf in tree_leaves((args, kwargs)))
            self.found.update({name: None for name in names if name is not None})
        return output


def _first_call(module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any) -> TorchModel:
    """Call the module once with copies of all tensors, and check what it returns and what it changes.

    Returns:
        The module as a function, with none of its optional properties known.
    """
    inputs = copy_rows(rows)
    parameters = theta.clone()
    fixed = {name: value.clone() for name, value in state.fixed.items()}
    with _UnreplacedParameters(module) as unreplaced:
        convention, returned = choose_convention(module, {**state.split(parameters), **fixed}, layout, inputs)
    if unreplaced.found:
        raise ModelError(
            f"the module uses its parameters {', '.join(unreplaced.found)} by other references than their registered "
            "names (a list, a closure?), where they cannot be replaced. Use them as attributes of the module."
        )
    if not all(map(_equal, inputs, rows)):
        raise ModelError(
            "the module changes its inputs in place; write that step out of place (x = x + 1, not x += 1)."
        )
    if not _equal(parameters, theta):
        raise ModelError("the module changes its own parameters in its forward pass (max_norm of an embedding?).")
    changed = [name for name, value in fixed.items() if not _equal(value, state.fixed[name])]
    if changed:
        raise ModelError(
            f"the module changes its buffers in its forward pass ({', '.join(changed)}): call module.eval() first."
        )
    shape = _prediction_shape(returned, len(rows[0]), output)
    outputs = 1 if len(shape) == 1 else shape[1]
    return TorchModel(module, state, layout, convention, outputs, len(shape) == 1, output=output)


def _prediction_shape(returned: Any, m: int, output: Any) -> tuple[int, ...]:
    """Return the shape of the prediction for m rows, (m,) or (m, K); raise if it is no prediction."""
    with wrap_errors("choosing the prediction by output="):
        prediction = select(output, returned)
    if not isinstance(prediction, torch.Tensor):
        raise ModelError(f"the prediction is a {type(prediction).__name__}, not a tensor: keep it in torch.")
    if not prediction.is_floating_point():
        raise ModelError(f"the module returned dtype {prediction.dtype}, which has no derivative; return real numbers.")
    # A module that squeezes its output returns a scalar for a single row.
    shape = (1,) if m == 1 and prediction.ndim == 0 else tuple(prediction.shape)
    check_prediction(shape, m, flatten_remedy(shape, m, output, returned))
    return shape


def _refuse_mixing(model: TorchModel, theta: Any, rows: Rows, rounding: float) -> None:
    """Raise if the prediction for a row depends on the other rows of the same call, by more than rounding."""
    together = model(theta, rows)
    with wrap_errors("predicting one row alone"):
        alone = torch.cat([model(theta, take_rows(rows, slice(i, i + 1))) for i in range(len(together))])
    if bool(((alone - together).abs() > rounding * together.abs().max().clamp(min=1e-300)).any()):
        raise ModelError(
            "the module's prediction for a row depends on the other rows of the call (statistics of the batch, "
            "attention between rows, a batch axis that is not the first?). Make it treat each row alone."
        )


def _probe_derivatives(model: TorchModel, theta: Any, rows: Rows) -> TorchModel:
    """Compute every kind of derivative once, and return the model with the vectorised methods that it supports."""
    action = "differentiating the module twice"
    with recording(), wrap_errors(action):
        if not model(theta.detach().requires_grad_(), rows).requires_grad:
            raise ModelError(
                "the module's prediction does not depend on any trainable parameter through autograd (detach(), "
                "numpy(), argmax or torch.no_grad() inside?)."
            )
    ones = torch.ones(len(rows[0]), model.outputs, dtype=torch.float64, device=theta.device)
    noise = torch.Generator().manual_seed(0)
    v = torch.randn(2, len(theta), dtype=torch.float64, generator=noise).to(theta.device)
    pair = take_rows(rows, slice(0, 2))
    with wrap_errors(action):
        product = Tape(model, theta, rows, ones, ones).product(v, "hessian")
        jacobian = row_gradients_one_by_one(model, theta, pair)
        refuse_wrong_derivatives(model, theta, rows)
    mapped = _agrees(lambda: row_gradients(model, theta, pair), jacobian)
    return replace(
        model,
        batched=_agrees(lambda: Tape(model, theta, rows, ones, ones, block=2).product(v, "hessian"), product),
        mapped=mapped,
        linear=_linear_layers(model, theta, pair, jacobian) if mapped else (),
        affine=is_affine(model, theta, rows),
        kinks=kinked_operations(model, theta, rows),
    )


def _linear_layers(model: TorchModel, theta: Any, rows: Rows, jacobian: Any) -> tuple[Linear, ...]:
    """Return the layers whose gradients are outer products; none if the products are not those of autograd."""
    try:
        with_linear = replace(model, linear=find_linear(model, theta, rows))
    except Exception:  # a module that does not run under a function mode
        return ()

    def jacobian_of_factors() -> Any:
        leaves = row_factors(with_linear, theta, rows)
        full = [leaf[0] if len(leaf) == 1 else torch.einsum("ia,ib->iab", *leaf).flatten(1) for leaf in leaves]
        return torch.cat(full, dim=1).reshape(jacobian.shape)

    return with_linear.linear if _agrees(jacobian_of_factors, jacobian) else ()


def _agrees(vectorised: Any, expected: Any) -> bool:
    """Return whether a vectorised method works, without a warning that it is slow, and returns the expected values."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            atol = 1e-9 * float(expected.abs().max())
            return bool(torch.allclose(vectorised(), expected, rtol=1e-6, atol=atol))
    except Exception:
        return False


def _equal(a: Any, b: Any) -> bool:
    """Return whether tensors are equal, NaN to NaN."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
