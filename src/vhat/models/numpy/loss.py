"""The loss of each training row and its derivatives, in closed form for the square, else by differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import InputError, ModelError, name_rows
from vhat.models.loss import LossDerivatives, diagonal_if_separable, half_square, half_square_values
from vhat.models.numpy.finite_differences import Estimate, Sampled, first_derivatives, second_derivatives, settle
from vhat.models.numpy.model import blame

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["loss_derivatives", "loss_values"]

_UNSETTLED = 1e-4


def loss_values(
    loss: Callable[..., Any] | None, f: np.ndarray, y: np.ndarray, w: np.ndarray, squeeze: bool
) -> np.ndarray:
    """Return ``w_i l(f_i, y_i)``, (n,); NaN where it has no value."""
    if loss is None:
        return half_square_values(f, y, w)
    with np.errstate(all="ignore"):
        rows = _Rows(loss, f, y, squeeze)
        return w * Sampled(rows, np.zeros(2 * f.shape[1]), np.zeros(len(f))).moved([])


def loss_derivatives(
    loss: Callable[..., Any] | None, f: np.ndarray, y: np.ndarray, w: np.ndarray, squeeze: bool
) -> LossDerivatives:
    """Return ``w_i l(f_i, y_i)`` and its derivatives.

    Args:
        loss: ``None`` for ``|f_i - y_i|^2 / 2``, else a function of one row.
        f: Fitted values, (n, K).
        y: Responses, (n, K).
        w: Sample weights, (n,).
        squeeze: Whether the loss takes numbers, not arrays of length K = 1.

    Raises:
        InputError: If the loss fails or does not return numbers.
        ModelError: If it is not finite, or not twice differentiable, in rows that are named.
    """
    if loss is None:
        return half_square(f, y, w)
    column = w[:, None]
    rows = _Rows(loss, f, y, squeeze)
    function, steps, unit = rows.sampled()
    value, K = function.base, f.shape[1]
    first = first_derivatives(function, steps[:K])
    location = rows.is_location(function, unit, np.nan_to_num(first.value))
    second = _second(function, steps, [(a, b) for a in range(K) for b in range(a, K)], K)
    second = second + np.tril(second.transpose(0, 2, 1), -1)
    cross = -second if location else _second(function, steps, [(a, K + b) for a in range(K) for b in range(K)], K)
    _refuse_unsettled(first, steps[:K], "differentiable")
    curvature, score = (diagonal_if_separable(column[:, :, None] * part) for part in (second, cross))
    return LossDerivatives(w * value, column * first.value, curvature, score, location)


@dataclass(frozen=True)
class _Rows:
    """The loss of every row as a function of one shift z of all predictions and all responses, (2K,)."""

    loss: Callable[..., Any]
    f: np.ndarray
    y: np.ndarray
    squeeze: bool

    def __call__(self, z: np.ndarray) -> np.ndarray:
        K = self.f.shape[1]
        pairs = zip(self.f + z[:K], self.y + z[K:], strict=True)
        if self.squeeze:
            return np.array([float(np.sum(self.loss(f[0], y[0]))) for f, y in pairs])
        return np.array([float(np.sum(self.loss(f, y))) for f, y in pairs])

    def sampled(self) -> tuple[Sampled, np.ndarray, np.ndarray]:
        """Return the function with its steps, and the unit of each output, (K,)."""
        K = self.f.shape[1]
        with blame("loss(f_i, y_i) of one row failed", InputError):
            base = self(np.zeros(2 * K))
        check_finite("the loss", base, ModelError)
        unit = np.sqrt(np.mean((self.f - self.y) ** 2, axis=0))
        spread = np.sqrt(np.mean(self.y**2, axis=0))
        unit = np.where(unit > 0, unit, np.where(spread > 0, spread, 1.0))
        function, steps = settle(Sampled(self, np.zeros(2 * K), base), 0.2896 * np.tile(unit, 2))
        return function, steps, unit

    def is_location(self, function: Sampled, unit: np.ndarray, slope: np.ndarray) -> bool:
        """Say whether moving predictions and responses together changes nothing but rounding."""
        size = np.maximum(np.abs(self.f), np.abs(self.y)).max(axis=0)
        for shift in (0.731 * unit, -0.613 * size):
            moved = function.moved(list(enumerate(np.tile(shift, 2))))
            rounding = 16 * np.finfo(float).eps * (np.abs(slope) @ (size + np.abs(shift)))
            if not np.all(abs(moved - function.base) <= 1e-9 * abs(function.base).max() + rounding):
                return False
        return True


def _second(function: Sampled, steps: np.ndarray, pairs: list[tuple[int, int]], K: int) -> np.ndarray:
    """Return second derivatives as (n, K, K), zero in pairs not asked for or distinct from zero in no row."""
    found = second_derivatives(function, steps, pairs)
    area = np.array([steps[a] * steps[b] for a, b in pairs])
    _refuse_unsettled(Estimate(found.value.T, found.error.T, found.rounding.T), area, "twice differentiable")
    blocks = np.zeros((len(function.base), K, K))
    for (a, b), value, error in zip(pairs, found.value, found.error, strict=True):
        if np.any(abs(value) > 10 * error):
            blocks[:, a, b % K] = value
    return blocks


def _refuse_unsettled(found: Estimate, unit: np.ndarray, what: str) -> None:
    """Refuse derivatives (n, k) whose error is not small against the largest, each in its own unit."""
    largest = np.max(np.abs(found.value) * unit)
    bad = (found.error * unit > _UNSETTLED * largest) & ~(found.error <= 30 * found.rounding)
    rows = np.flatnonzero((bad | np.isinf(found.error)).any(axis=1))
    if rows.size:
        raise ModelError(
            f"the loss does not look {what} at the fitted values of {name_rows(rows)}. Use a smooth loss, such "
            "as a pseudo-Huber loss for a Huber loss."
        )
