"""Comparison of a module's derivatives with finite differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vhat.errors import ModelError
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import TorchModel
from vhat.models.torch.tape import Tape

__all__ = ["refuse_wrong_derivatives"]


@dataclass(frozen=True)
class _DifferenceCheck:
    """Steps and tolerances of the comparison of derivatives with central differences.

    Attributes:
        step: Relative step.
        tolerance: Largest error relative to the derivative.
        rounding: Largest error relative to the differentiated function.
        second: Whether second derivatives are compared as well.
    """

    step: float
    tolerance: float
    rounding: float
    second: bool


_FLOAT64_CHECK = _DifferenceCheck(1e-6, 1e-3, 1e-8, second=True)
_FLOAT32_CHECK = _DifferenceCheck(1e-3, 2e-2, 1e-3, second=False)
"""For a module that computes in float32, where second differences are too inaccurate."""


def refuse_wrong_derivatives(model: TorchModel, theta: Any, rows: Rows) -> None:
    """Compare derivatives with differences, at nearby parameters, and raise if they differ.

    Autograd reports no error for

    - a backward pass that cannot be differentiated (``once_differentiable``) and is not on the requested path;
    - a checkpoint that is computed again with other parameters;
    - a part of the module that is detached;
    - the second derivative of torch's own ``weight_norm``, which is wrong.

    The parameters are shifted because units may lie exactly on a kink at the user's parameters. A difference may still
    cross a kink, so three directions are tried; one agreement is enough.

    Raises:
        ModelError: With the remedy.
    """
    if any("16" in cast for cast in model.narrow):
        return  # differences in half precision are too inaccurate
    check = _FLOAT32_CHECK if model.narrow else _FLOAT64_CHECK
    if not any(_derivatives_agree(model, theta, rows, seed, check) for seed in range(3)):
        raise ModelError(
            "the module's derivatives by autograd are not those of its predictions: it contains an operation without "
            "gradient (detach(), torch.no_grad(), activation checkpointing) or with a wrong second derivative (a "
            "custom autograd.Function, torch's weight_norm). Replace it; for a part that is meant to stay fixed, set "
            "requires_grad_(False) on its parameters."
        )


def _derivatives_agree(model: TorchModel, theta: Any, rows: Rows, seed: int, check: _DifferenceCheck) -> bool:
    """Compare derivatives along a random direction with central differences.

    True also where a value is not finite: the shifted parameters are not the user's.
    """
    size, v, (here, up, down) = _tapes_along_line(model, theta, rows, seed, check.step)
    first = here.jvp(v[None])[0]
    difference = (up.values - down.values) / (2 * check.step)
    comparisons = [(first, difference, here.values)]
    if check.second:
        # The gradient in units of the parameters, so that its entries are comparable.
        second = size * here.product(v[None], "hessian")[0]
        difference = size * (up.gradient - down.gradient) / (2 * check.step)
        comparisons.append((second, difference, size * here.gradient))
    errors = [(derivative - difference, derivative, level) for derivative, difference, level in comparisons]
    if not all(bool(part.isfinite().all()) for parts in errors for part in parts):
        return True
    for error, derivative, level in errors:
        if not error.abs().max() <= check.tolerance * derivative.abs().max() + check.rounding * level.abs().max():
            return False
    return True


def _tapes_along_line(
    model: TorchModel, theta: Any, rows: Rows, seed: int, h: float
) -> tuple[Any, Any, tuple[Tape, Tape, Tape]]:
    """Return tapes at three points on a line near theta.

    Returns:
        The size of each parameter, (p,); a random direction v with entries of that size, (p,); and the tapes at a point
        near theta, at ``+h v`` and at ``-h v`` from it.
    """
    noise = torch.Generator().manual_seed(seed)
    e = torch.randn(3, len(theta), dtype=torch.float64, generator=noise).to(theta.device)
    tiny = 1e-3 * theta.square().mean().sqrt() + 1e-12
    near = theta * (1 + 0.1 * e[0]) + tiny * e[1]
    size = near.abs() + tiny
    v = size * e[2]

    # Unequal weights of the outputs: their sum is constant after a softmax or a layer norm, with derivatives that are
    # pure rounding.
    weights = 0.5 + torch.rand(len(rows[0]), model.outputs, dtype=torch.float64, generator=noise).to(theta.device)
    here, up, down = [Tape(model, t, rows, weights, 0 * weights) for t in (near, near + h * v, near - h * v)]
    return size, v, (here, up, down)
