"""Derivatives of a NumPy model over rows: the user's own, compared with finite differences, or the differences."""

from __future__ import annotations

from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from vhat.errors import InputError, ModelError, name_rows
from vhat.models.numpy.difference_steps import SampledSteps, measure_rounding
from vhat.models.numpy.finite_differences import Estimate, first_derivatives, not_converged, second_derivatives
from vhat.models.numpy.inputs import take
from vhat.models.numpy.model import Model, wrap_errors
from vhat.models.numpy.sampled import Sampled

__all__ = ["disagreement", "refuse_nonlinear", "require_convergence", "residual_part"]


_CHECKED_ROWS = 5
"""Number of rows on which the user's derivatives are compared with differences."""
_CHECKED_PAIRS = 60
"""Number of pairs of parameters in which the user's second derivatives are compared with differences."""
_MAX_NONLINEARITY = 1e-6
"""Largest deviation from linearity, as a share of the terms of the sum. Larger than the rounding of a model that
computes in float32."""


def require_convergence(found: Estimate, steps: np.ndarray, what: str, outputs: int = 1) -> Estimate:
    """Return first derivatives (m, p) if the errors of all are small.

    An error is compared with the row's own gradient, each parameter in the unit of its step. Errors that rounding
    explains are accepted.

    Args:
        found: The derivatives.
        steps: The difference step of each parameter, (p,).
        what: Name of the function in the message.
        outputs: Number of consecutive rows of ``found`` that belong to one row of the data.

    Raises:
        ModelError: Naming the parameter and the rows.
    """
    size = np.max(np.abs(found.value) * steps, axis=1, keepdims=True)
    bad = not_converged(found, steps, size)
    if bad.any():
        j = int(np.argmax(bad.sum(axis=0)))
        rows = np.unique(np.flatnonzero(bad[:, j]) // outputs)
        raise ModelError(
            f"the derivative of {what} in theta[{j}] does not converge as the step shrinks ({name_rows(rows, 3)}): "
            "it has a kink, a jump or an edge there, or is noisy. Smooth it, tighten the tolerance of any solver "
            "inside, or give jac."
        )
    return found


def residual_part(
    model: Model, X: Any, c: np.ndarray, J: np.ndarray, *, sampled: SampledSteps, memory: int
) -> Estimate:
    """Return ``sum_r c_r hess f_r``, (p, p), over the rows r = (row, output) of the model.

    Args:
        model: The model.
        X: Its inputs.
        c: One weight per r, (m * K,).
        J: Its Jacobian, (m * K, p).
        sampled: The model over X with its rounding measured, and the step of each parameter.
        memory: Budget in bytes for blocks of the user's second derivatives.
    """
    function, steps = sampled
    theta = function.theta
    p = len(theta)
    if not c.any() or model.linear:
        return Estimate(*np.zeros((3, p, p)))
    if model.hess is not None:
        return Estimate(_contract_hessians(model, theta, X, c, memory), *np.zeros((2, p, p)))
    if model.jac is not None:
        # First differences of J'c; each of its p values is a sum over rows, whose roundings add up as squares.
        floor = np.broadcast_to(np.sqrt(c**2 @ J**2), (p, p))
        gradient = Sampled(partial(_weighted_gradient, model, X, c), theta, c @ J, floor, function.eps)
        found = first_derivatives(gradient, steps)
        return Estimate(*((part + part.T) / 2 for part in (found.value, found.error, found.rounding)))
    # Second differences of c'f, a single value.
    pairs = list(combinations_with_replacement(range(p), 2))
    floor = np.sqrt((c * function.base) ** 2 @ (J != 0))[:, None]  # a value that does not change has no rounding
    total = Sampled(partial(_weighted_change, function, c), theta, np.zeros(1), floor, function.eps)
    found = second_derivatives(total, steps, pairs)
    return Estimate(*(_symmetric(part[:, 0], pairs, p) for part in (found.value, found.error, found.rounding)))


def _contract_hessians(model: Model, theta: np.ndarray, X: Any, c: np.ndarray, memory: int) -> np.ndarray:
    """Return the weighted sum of the user's second derivatives, in blocks of rows that fit an eighth of the budget."""
    block = max(1, memory // (64 * model.outputs * len(theta) ** 2))
    total = np.zeros((len(theta), len(theta)))
    for start in range(0, len(X), block):
        stop = min(start + block, len(X))
        weights = c[start * model.outputs : stop * model.outputs]
        total += np.tensordot(weights, model.checked_hessians(theta, take(X, slice(start, stop))), axes=1)
    return (total + total.T) / 2


def _weighted_gradient(model: Model, X: Any, c: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return ``J'c``, (p,)."""
    return c @ model.jacobian(theta, X)


def _weighted_change(function: Sampled, c: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return ``sum_r c_r (f_r(theta) - f_r)``, (1,). Subtracting the constant before the sum loses no digits."""
    return np.atleast_1d(c @ (function.call(theta) - function.base))


def _symmetric(values: np.ndarray, pairs: list[tuple[int, int]], p: int) -> np.ndarray:
    """Return the symmetric matrix (p, p) with these values at these pairs of positions."""
    i, j = np.array(pairs).T
    matrix = np.zeros((p, p))
    matrix[i, j] = matrix[j, i] = values
    return matrix


# -- checks of the user's derivatives ------------------------------------------------------------
def disagreement(model: Model, theta: np.ndarray, X: Any) -> float:
    """Compare the user's jac and hess with differences on a few rows.

    Returns:
        Their largest relative difference beyond the error of the differences themselves.

    Raises:
        InputError: Naming the row and parameter of the largest difference, if it is more than rounding.
    """
    if model.jac is None and model.hess is None:
        return 0.0
    numbers = np.unique(np.linspace(0, len(X) - 1, _CHECKED_ROWS).astype(int))
    few = take(X, numbers)
    rows = np.repeat(numbers, model.outputs)
    with np.errstate(all="ignore"):
        base = model.values(theta, few)
    function, steps = measure_rounding(Sampled(partial(model.values, X=few), theta, base))
    worst = 0.0
    if model.jac is not None:
        first = first_derivatives(function, steps)
        names = [f"theta[{j}]" for j in range(len(theta))]
        worst = _compare("jac", model.checked_jacobian(theta, few), first, unit=steps, rows=rows, names=names)
    if model.hess is not None:
        pairs = list(combinations_with_replacement(range(len(theta)), 2))
        pairs = [pairs[at] for at in np.unique(np.linspace(0, len(pairs) - 1, _CHECKED_PAIRS).astype(int))]
        second = second_derivatives(function, steps, pairs)
        second = Estimate(second.value.T, second.error.T, second.rounding.T)
        i, j = np.array(pairs).T
        unit = steps[i] * steps[j]
        names = [f"theta[{a}], theta[{b}]" for a, b in pairs]
        hessians = model.checked_hessians(theta, few)
        for given in (hessians[:, i, j], hessians[:, j, i]):  # both triangles
            worst = max(worst, _compare("hess", given, second, unit=unit, rows=rows, names=names))
    return worst


def refuse_nonlinear(model: Model, theta: np.ndarray, X: Any, values: np.ndarray, targets: np.ndarray) -> None:
    """Compare a Jacobian that does not depend on theta with the model at distant parameters, on both sides.

    Every parameter changes by at least its own size, and by at least the change that moves the predictions by their
    size or that of the responses: first in a random direction, then ten times as far in the opposite direction.

    Args:
        model: A model whose jac takes the inputs alone.
        theta: The fitted parameters, (p,).
        X: Training inputs.
        values: The predictions there, (n * K,).
        targets: The responses, (n, K).

    Raises:
        InputError: Naming the row where ``predict`` is not ``predict(theta, X) + jac(X) move``.
    """
    J = model.checked_jacobian(theta, X)
    column = np.sqrt(np.mean(J**2, axis=0))
    level = max(float(np.sqrt(np.mean(each**2))) for each in (values, targets)) or 1.0
    size = np.abs(theta) + level / np.where(column > 0, column, np.inf)
    draws = np.random.default_rng(0).standard_normal(len(theta))
    first = np.where(size > 0, size, 1.0) * np.sign(draws) * (1 + np.abs(draws))
    for move in (first, -10 * first):
        with np.errstate(all="ignore"), wrap_errors("predict failed at other parameters"):
            moved = model.values(theta + move, X)
        expected = values + J @ move
        # The magnitude of the terms that are added up bounds the rounding of either side.
        terms = np.abs(J) @ (np.abs(theta) + np.abs(move)) + np.abs(values) + np.abs(expected)
        wrong = ~(np.abs(moved - expected) <= _MAX_NONLINEARITY * terms)  # NaN is wrong too
        if wrong.any():
            at = int(np.argmax(np.where(np.isfinite(moved), np.abs(moved - expected) / terms, np.inf)))
            raise InputError(
                "jac takes the inputs alone, which says that predict is linear in theta, and it is not, or jac is not "
                f"its derivative: with all parameters moved, the prediction for row {at // model.outputs} is "
                f"{moved[at]:.6g}, and predict(theta, X) + jac(X) @ move is {expected[at]:.6g}. Correct jac, or give "
                "jac(theta, X)."
            )


def _compare(
    name: str, given: np.ndarray, found: Estimate, *, unit: np.ndarray, rows: np.ndarray, names: list[str]
) -> float:
    """Return the largest difference beyond the error of ``found``, as a share of the row's size.

    Args:
        name: "jac" or "hess".
        given: The user's derivatives, (m * K, columns).
        found: The differences.
        unit: The unit of each column.
        rows: The row of the data that each row belongs to.
        names: Names of the columns.

    Raises:
        InputError: If a difference is more than rounding.
    """
    size = np.max(np.abs(found.value) * unit, axis=1, keepdims=True) / unit
    excess = np.where(np.isfinite(found.error), np.abs(given - found.value) - 10 * found.error, 0.0)
    wrong = (excess > 1e-5 * np.abs(found.value)) & (excess > 1e-8 * size)
    if wrong.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.unravel_index(np.argmax(np.where(wrong, excess / size, 0.0)), wrong.shape)
        raise InputError(
            f"{name}(theta, X) is {given[at]:.6g} at row {rows[at[0]]} in {names[at[1]]}, but differences of "
            f"predict give {found.value[at]:.6g} (+- {found.error[at]:.1g}). Correct it, or leave it out."
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.nan_to_num(np.maximum(excess, 0.0) / size, posinf=0.0)))
