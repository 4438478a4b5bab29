"""Derivatives of a NumPy model over rows: the user's own, held against differences, or the differences."""

from __future__ import annotations

from functools import partial
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from vhat.errors import InputError, ModelError, name_rows
from vhat.models.numpy.finite_differences import Estimate, Sampled, first_derivatives, second_derivatives, settle
from vhat.models.numpy.model import Model, blame, take

__all__ = ["disagreement", "refuse_nonlinear", "require_settled", "residual_part"]

_UNSETTLED = 1e-4
_PAIRS = 60
_LINEAR = 1e-6
"""Largest deviation from linearity, as a share of the terms of the sum: above the rounding of a float32 inside."""


def require_settled(found: Estimate, steps: np.ndarray, what: str, outputs: int = 1) -> Estimate:
    """Return first derivatives (m, p) if all have settled.

    An error counts against the row's own gradient, each parameter in the unit of its step, and only beyond
    what rounding explains.

    Raises:
        ModelError: Naming the parameter and the rows.
    """
    size = np.max(np.abs(found.value) * steps, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        bad = (found.error * steps > _UNSETTLED * size) & ~(found.error <= 30 * found.rounding)
    bad |= np.isinf(found.error)
    if bad.any():
        j = int(np.argmax(bad.sum(axis=0)))
        rows = np.unique(np.flatnonzero(bad[:, j]) // outputs)
        raise ModelError(
            f"the derivative of {what} in theta[{j}] does not settle as the step shrinks ({name_rows(rows, 3)}): "
            "it has a kink, a jump or an edge there, or is noisy. Smooth it, tighten the tolerance of any solver "
            "inside, or give jac."
        )
    return found


def residual_part(
    model: Model, X: Any, c: np.ndarray, J: np.ndarray, *, settled: tuple[Sampled, np.ndarray], memory: int
) -> Estimate:
    """Return ``sum_r c_r hess f_r``, (p, p), over the rows r = (row, output) of the model.

    Args:
        model: The model.
        X: Its inputs.
        c: One weight a row, (m * K,).
        J: Its Jacobian, (m * K, p).
        settled: The model over X with its rounding measured, and the step of each parameter.
        memory: Budget in bytes for blocks of the user's second derivatives.
    """
    function, steps = settled
    theta, p = function.theta, len(function.theta)
    if not c.any() or model.linear:
        return Estimate(*np.zeros((3, p, p)))
    if model.hess is not None:
        return Estimate(_contracted(model, theta, X, c, memory), *np.zeros((2, p, p)))
    if model.jac is not None:
        floor = np.broadcast_to(np.sqrt(c**2 @ J**2), (p, p))
        slope = Sampled(partial(_weighted_slope, model, X, c), theta, c @ J, floor, function.eps)
        found = first_derivatives(slope, steps)
        return Estimate(*((part + part.T) / 2 for part in (found.value, found.error, found.rounding)))
    pairs = list(combinations_with_replacement(range(p), 2))
    floor = np.sqrt((c * function.base) ** 2 @ (J != 0))[:, None]  # rows that do not move have no rounding
    total = Sampled(partial(_weighted_change, function, c), theta, np.zeros(1), floor, function.eps)
    found = second_derivatives(total, steps, pairs)
    return Estimate(*(_symmetric(part[:, 0], pairs, p) for part in (found.value, found.error, found.rounding)))


def _contracted(model: Model, theta: np.ndarray, X: Any, c: np.ndarray, memory: int) -> np.ndarray:
    """Sum the user's second derivatives, as many rows at a time as an eighth of the budget holds."""
    block = max(1, memory // (64 * model.outputs * len(theta) ** 2))
    total = np.zeros((len(theta), len(theta)))
    for start in range(0, len(X), block):
        stop = min(start + block, len(X))
        weights = c[start * model.outputs : stop * model.outputs]
        total += np.tensordot(weights, model.sound_bends(theta, take(X, slice(start, stop))), axes=1)
    return (total + total.T) / 2


def _weighted_slope(model: Model, X: Any, c: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return c @ model.slopes(theta, X)


def _weighted_change(function: Sampled, c: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """``sum_r c_r (f_r(theta) - f_r)``: the constant is taken off first, so that it costs no digits."""
    return np.atleast_1d(c @ (function.call(theta) - function.base))


def _symmetric(values: np.ndarray, pairs: list[tuple[int, int]], p: int) -> np.ndarray:
    i, j = np.array(pairs).T
    matrix = np.zeros((p, p))
    matrix[i, j] = matrix[j, i] = values
    return matrix


def disagreement(model: Model, theta: np.ndarray, X: Any) -> float:
    """Hold the user's jac and hess against differences on a few rows.

    Returns:
        Their largest relative difference beyond the error of the differences themselves.

    Raises:
        InputError: Naming the row and parameter of the largest one, when it is more than a slip of rounding.
    """
    if model.jac is None and model.hess is None:
        return 0.0
    some = np.unique(np.linspace(0, len(X) - 1, 5).astype(int))
    few, rows = take(X, some), np.repeat(some, model.outputs)
    with np.errstate(all="ignore"):
        base = model.values(theta, few)
    function, steps = settle(Sampled(partial(model.values, X=few), theta, base))
    worst = 0.0
    if model.jac is not None:
        found = first_derivatives(function, steps)
        names = [f"theta[{j}]" for j in range(len(theta))]
        worst = _compare("jac", model.sound_slopes(theta, few), found, unit=steps, rows=rows, names=names)
    if model.hess is not None:
        pairs = list(combinations_with_replacement(range(len(theta)), 2))
        pairs = [pairs[at] for at in np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).astype(int))]
        found = second_derivatives(function, steps, pairs)
        i, j = np.array(pairs).T
        names = [f"theta[{a}], theta[{b}]" for a, b in pairs]
        found = Estimate(found.value.T, found.error.T, found.rounding.T)
        bends = model.sound_bends(theta, few)
        for given in (bends[:, i, j], bends[:, j, i]):
            worst = max(worst, _compare("hess", given, found, unit=steps[i] * steps[j], rows=rows, names=names))
    return worst


def refuse_nonlinear(model: Model, theta: np.ndarray, X: Any, values: np.ndarray, targets: np.ndarray) -> None:
    """Hold a Jacobian that does not depend on theta against the model at parameters far away, on both sides.

    Every parameter moves by at least its own size, and by at least what changes the predictions by their size or that
    of the responses, once in a random direction and then ten times as far in the opposite one.

    Args:
        model: A model whose jac takes the inputs alone.
        theta: The fitted parameters, (p,).
        X: Training inputs.
        values: The predictions there, (n * K,).
        targets: The responses, (n, K).

    Raises:
        InputError: Naming the row where ``predict`` is not ``predict(theta, X) + jac(X) move``.
    """
    J = model.sound_slopes(theta, X)
    column = np.sqrt(np.mean(J**2, axis=0))
    level = max(float(np.sqrt(np.mean(each**2))) for each in (values, targets)) or 1.0
    size = np.abs(theta) + level / np.where(column > 0, column, np.inf)
    draws = np.random.default_rng(0).standard_normal(len(theta))
    first = np.where(size > 0, size, 1.0) * np.sign(draws) * (1 + np.abs(draws))
    for move in (first, -10 * first):
        with np.errstate(all="ignore"), blame("predict failed at other parameters"):
            moved = model.values(theta + move, X)
        expected = values + J @ move
        terms = np.abs(J) @ (np.abs(theta) + np.abs(move)) + np.abs(values) + np.abs(expected)
        wrong = ~(np.abs(moved - expected) <= _LINEAR * terms)  # NaN is wrong too
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
    """Return the largest unexplained difference as a share of the row's size, each column in its unit."""
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
