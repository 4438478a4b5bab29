"""What is found out about a module before it is trusted: a few rows are evaluated, and every refusal is a sentence."""

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
from vhat.models.torch.convention import choose_convention
from vhat.models.torch.inputs import Layout, Rows
from vhat.models.torch.kinks import kinked_operations
from vhat.models.torch.model import (
    Linear,
    State,
    Tape,
    TorchModel,
    copy_rows,
    recording,
    row_gradients,
    row_gradients_one_by_one,
    take_rows,
    training_submodules,
    wrap_errors,
)
from vhat.models.torch.outer_products import find_linear, row_factors

__all__ = ["few_rows", "is_repeatable", "narrow_casts", "probe_model", "probe_predictions", "refuse_module"]

_FEW, _MANY = 6, 64


def refuse_module(module: Any, mend: str = "module.eval()") -> None:
    """Refuse what is not a module in evaluation mode.

    Args:
        module: The module.
        mend: The call that brings it to evaluation mode.

    Raises:
        ModelError: In a sentence that names the submodules.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"module is a {type(module).__name__}; give a torch.nn.Module, or a fitted skorch net.")
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            "module is a ScriptModule, whose parameters cannot be replaced; give the module it was made of."
        )
    if found := training_submodules(module):
        raise ModelError(
            f"the module is in training mode, where {', '.join(found)} behave differently: call {mend} first."
        )


def probe_model(module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any = None) -> TorchModel:
    """Evaluate and differentiate a module on a few rows and return it as a function.

    Args:
        module: The module.
        state: Its tensors.
        theta: Its flat parameters, (p,).
        layout: How its inputs were given.
        rows: Inputs.
        output: Which part of what it returns is the prediction.

    Raises:
        ModelError: When it is random, mixes rows, works in place, or cannot be differentiated twice.
    """
    model = probe_predictions(module, state, theta, layout, rows, output)
    return _probe_derivatives(model, theta, few_rows(rows))


def probe_predictions(
    module: Any, state: State, theta: Any, layout: Layout, rows: Rows, output: Any = None
) -> TorchModel:
    """Evaluate a module on a few rows and return it as a function, of whose derivatives nothing is known yet.

    Raises:
        ModelError: When it is random, mixes rows or works in place.
    """
    few, many = few_rows(rows), _spread(rows, _MANY)
    with torch.inference_mode(False), torch.no_grad():
        model = _first_look(module, state, theta, layout, few, output)
        if not is_repeatable(model, theta, many):
            mode = " It is in training mode: call module.eval() first." if module.training else ""
            raise ModelError(
                "two evaluations of the same rows differ, so the module is random (dropout that is always on, noise, a "
                f"random mask?). Switch the randomness off.{mode}"
            )
        narrow = narrow_casts(model, theta, few)
        _refuse_mixing(model, theta, few, 1e-4 if narrow else 1e-9)
    return replace(model, narrow=narrow)


def few_rows(rows: Rows, most: int = _FEW) -> Rows:
    """Return a few rows, spread over all of them."""
    return _spread(rows, most)


def is_repeatable(model: TorchModel, theta: Any, rows: Rows) -> bool:
    """Whether three evaluations of (at most 64 of) the rows agree exactly. Works on copies of the buffers."""
    rows = _spread(rows, _MANY)
    copied = {name: value.clone() for name, value in model.state.fixed.items()}
    model = replace(model, state=replace(model.state, fixed=copied))
    with torch.inference_mode(False), torch.no_grad(), wrap_errors("evaluating the module"):
        first, *others = [model(theta.clone(), copy_rows(rows)) for _ in range(3)]
    return all(_equal(first, other) for other in others)


def narrow_casts(model: TorchModel, theta: Any, rows: Rows) -> tuple[str, ...]:
    """Name the operations of one forward pass that take float64 and return a narrower float."""
    watch, rows = _Narrowing(), few_rows(rows)
    with torch.inference_mode(False), torch.no_grad(), wrap_errors("evaluating the module"), watch:
        model(theta, rows)
    return tuple(watch.found)


class _Narrowing(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        came, went = (
            {leaf.dtype for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
            for tree in ((args, kwargs), output)
        )
        narrow = went & {torch.float32, torch.float16, torch.bfloat16}
        if torch.float64 in came and narrow:
            width = str(next(iter(narrow))).removeprefix("torch.")
            self.found[f"{func.overloadpacket} (float64 to {width})"] = None
        return output


class _Strays(TorchFunctionMode):
    """Finds a module's own parameters in a call where copies have taken their place."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._own = {id(value): name for name, value in module.named_parameters()}
        self.found: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
            names = (self._own.get(id(leaf)) for leaf in tree_leaves((args, kwargs)))
            self.found.update({name: None for name in names if name is not None})
        return output


def _first_look(module: Any, state: State, theta: Any, layout: Layout, rows: Rows, part: Any) -> TorchModel:
    """Call the module once on copies, and look at what it returns and what it changes."""
    given = copy_rows(rows)
    flat, tensors = theta.clone(), {name: value.clone() for name, value in state.fixed.items()}
    with _Strays(module) as strays:
        convention, returned = choose_convention(module, {**state.split(flat), **tensors}, layout, given)
    if strays.found:
        raise ModelError(
            f"the module reaches its parameters {', '.join(strays.found)} beside their registered names (a list, a "
            "closure?), where they cannot be replaced. Use them as attributes of the module."
        )
    if not all(map(_equal, given, rows)):
        raise ModelError(
            "the module changes its inputs in place; write that step out of place (x = x + 1, not x += 1)."
        )
    if not _equal(flat, theta):
        raise ModelError("the module changes its own parameters in its forward pass (max_norm of an embedding?).")
    changed = [name for name, value in tensors.items() if not _equal(value, state.fixed[name])]
    if changed:
        raise ModelError(
            f"the module changes its buffers in its forward pass ({', '.join(changed)}): call module.eval() first."
        )
    m = len(rows[0])
    with wrap_errors("choosing the prediction by output="):
        output = select(part, returned)
    if not isinstance(output, torch.Tensor):
        raise ModelError(f"the prediction is a {type(output).__name__}, not a tensor: keep it in torch.")
    if not output.is_floating_point():
        raise ModelError(f"the module returned dtype {output.dtype}, which has no derivative; return real numbers.")
    shape = (1,) if m == 1 and output.ndim == 0 else tuple(output.shape)
    check_prediction(shape, m, flatten_remedy(shape, m, part, returned))
    outputs = 1 if len(shape) == 1 else shape[1]
    return TorchModel(module, state, layout, convention, outputs, len(shape) == 1, output=part)


def _refuse_mixing(model: TorchModel, theta: Any, rows: Rows, rounding: float) -> None:
    """Refuse a module whose prediction for a row depends on the rows beside it, by more than rounding."""
    together = model(theta, rows)
    with wrap_errors("predicting one row alone"):
        alone = torch.cat([model(theta, take_rows(rows, slice(i, i + 1))) for i in range(len(together))])
    if bool(((alone - together).abs() > rounding * together.abs().max().clamp(min=1e-300)).any()):
        raise ModelError(
            "the module's prediction for a row changes with the rows beside it (statistics of the batch, attention "
            "between rows, a batch axis that is not the first?). Make it treat each row alone."
        )


def _probe_derivatives(model: TorchModel, theta: Any, rows: Rows) -> TorchModel:
    """Go once through every kind of derivative, and find out which shortcuts this module allows."""
    doing = "differentiating the module twice"
    with recording(), wrap_errors(doing):
        if not model(theta.detach().requires_grad_(), rows).requires_grad:
            raise ModelError(
                "the module's prediction does not depend on any trainable parameter through autograd (detach(), "
                "numpy(), argmax or torch.no_grad() inside?)."
            )
    ones = torch.ones(len(rows[0]), model.outputs, dtype=torch.float64, device=theta.device)
    noise = torch.Generator().manual_seed(0)
    v = torch.randn(2, len(theta), dtype=torch.float64, generator=noise).to(theta.device)
    pair = take_rows(rows, slice(0, 2))
    with wrap_errors(doing):
        curved = Tape(model, theta, rows, ones, ones).product(v, "hessian")
        jacobian = row_gradients_one_by_one(model, theta, pair)
        if not any("16" in cast for cast in model.narrow):  # differences of half precision say nothing
            _refuse_untrue_derivatives(model, theta, rows, narrow=bool(model.narrow))
    mapped = _agrees(lambda: row_gradients(model, theta, pair), jacobian)
    return replace(
        model,
        batched=_agrees(lambda: Tape(model, theta, rows, ones, ones, block=2).product(v, "hessian"), curved),
        mapped=mapped,
        linear=_linear_layers(model, theta, pair, jacobian) if mapped else (),
        affine=is_affine(model, theta, rows),
        kinks=kinked_operations(model, theta, rows),
    )


def _linear_layers(model: TorchModel, theta: Any, rows: Rows, jacobian: Any) -> tuple[Linear, ...]:
    """Find the layers whose gradients are outer products; none where that gives another Jacobian than autograd."""

    def multiplied() -> Any:
        leaves = row_factors(watched, theta, rows)
        full = [leaf[0] if len(leaf) == 1 else torch.einsum("ia,ib->iab", *leaf).flatten(1) for leaf in leaves]
        return torch.cat(full, dim=1).reshape(jacobian.shape)

    try:
        watched = replace(model, linear=find_linear(model, theta, rows))
    except Exception:  # a module that does not let itself be watched
        return ()
    return watched.linear if _agrees(multiplied, jacobian) else ()


def _refuse_untrue_derivatives(model: TorchModel, theta: Any, rows: Rows, narrow: bool) -> None:
    """Compare derivatives with differences, at parameters nearby where no unit sits exactly on a kink.

    Autograd is silent when it is wrong: about a backward pass that cannot be differentiated but lies beside the path
    it was asked for (``once_differentiable``), about a checkpoint that computes again with other parameters, about a
    part that was detached, about the second derivative of torch's own ``weight_norm``. A difference may step over a
    kink, so three directions are tried. In a module that computes in float32, wide differences judge the first
    derivative.
    """
    true = _nearly_true_in_direction if narrow else _true_in_direction
    if not any(true(model, theta, rows, seed) for seed in range(3)):
        raise ModelError(
            "the module's derivatives by autograd are not those of its predictions: something inside hides from "
            "autograd (detach(), torch.no_grad(), activation checkpointing) or has no true second derivative (a custom "
            "autograd.Function, torch's weight_norm). Replace it; for a part that is meant to stay fixed, set "
            "requires_grad_(False) on its parameters."
        )


def _true_in_direction(model: TorchModel, theta: Any, rows: Rows, seed: int) -> bool:
    size, v, (here, up, down) = _along_a_line(model, theta, rows, seed, h := 1e-6)
    slope, curved = here.jvp(v[None])[0], size * here.product(v[None], "hessian")[0]
    gaps = (
        (slope - (up.values - down.values) / (2 * h), slope, here.values),
        (curved - size * (up.gradient - down.gradient) / (2 * h), curved, size * here.gradient),
    )
    if not all(bool(part.isfinite().all()) for gap in gaps for part in gap):
        return True  # no verdict: these parameters were not the user's
    return all(
        bool(gap.abs().max() <= 1e-3 * value.abs().max() + 1e-8 * level.abs().max()) for gap, value, level in gaps
    )


def _nearly_true_in_direction(model: TorchModel, theta: Any, rows: Rows, seed: int) -> bool:
    _, v, (here, up, down) = _along_a_line(model, theta, rows, seed, h := 1e-3)
    slope = here.jvp(v[None])[0]
    gap, level = (slope - (up.values - down.values) / (2 * h)).abs().max(), here.values.abs().max()
    return not bool(gap.isfinite()) or bool(gap <= 2e-2 * slope.abs().max() + 1e-3 * level)


def _along_a_line(
    model: TorchModel, theta: Any, rows: Rows, seed: int, h: float
) -> tuple[Any, Any, tuple[Tape, Tape, Tape]]:
    """Return the size of the parameters, a random direction of that size, and tapes at a point, ``h`` up and down."""
    noise = torch.Generator().manual_seed(seed)
    e = torch.randn(3, len(theta), dtype=torch.float64, generator=noise).to(theta.device)
    tiny = 1e-3 * theta.square().mean().sqrt() + 1e-12
    near = theta * (1 + 0.1 * e[0]) + tiny * e[1]
    size = near.abs() + tiny
    v = size * e[2]

    # Unequal weights: the plain sum of outputs is a constant after a softmax or a layer norm, and its derivatives are
    # rounding.
    weights = 0.5 + torch.rand(len(rows[0]), model.outputs, dtype=torch.float64, generator=noise).to(theta.device)
    here, up, down = [Tape(model, t, rows, weights, 0 * weights) for t in (near, near + h * v, near - h * v)]
    return size, v, (here, up, down)


def _agrees(shortcut: Any, expected: Any) -> bool:
    """Whether a vectorised way works, without torch's warning that it is slow, and gives the same."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            atol = 1e-9 * float(expected.abs().max())
            return bool(torch.allclose(shortcut(), expected, rtol=1e-6, atol=atol))
    except Exception:
        return False


def _spread(rows: Rows, most: int) -> Rows:
    n = len(rows[0])
    index = torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long().to(rows[0].device)
    return take_rows(rows, index)


def _equal(a: Any, b: Any) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
