"""The loss of each training row and its derivatives: closed form for the square loss, else finite differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_finite
from vhat.errors import InputError, ModelError, name_rows
from vhat.models.loss import LossDerivatives, diagonal_if_separable, half_square, half_square_values
from vhat.models.numpy.difference_steps import START_FRACTION, measure_rounding
from vhat.models.numpy.finite_differences import Estimate, first_derivatives, not_converged, second_derivatives
from vhat.models.numpy.model import wrap_errors
from vhat.models.numpy.sampled import Sampled

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["loss_derivatives", "loss_values"]


def loss_values(
    loss: Callable[..., Any] | None, f: np.ndarray, y: np.ndarray, w: np.ndarray, squeeze: bool
) -> np.ndarray:
    """Return ``w_i l(f_i, y_i)``, (n,); NaN where the loss fails."""
    if loss is None:
        return half_square_values(f, y, w)
    with np.errstate(all="ignore"):
        rows = _Rows(loss, f, y, squeeze)
        return w * Sampled(rows, np.zeros(2 * f.shape[1]), np.zeros(len(f))).values_with([])


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
        ModelError: If it is not finite or not twice differentiable. Names the rows.
    """
    if loss is None:
        return half_square(f, y, w)
    K = f.shape[1]
    rows = _Rows(loss, f, y, squeeze)
    function, steps, unit = rows.sampled()
    first = first_derivatives(function, steps[:K])
    location = rows.is_location(function, unit, np.nan_to_num(first.value))
    upper = _second_blocks(function, steps, [(a, b) for a in range(K) for b in range(a, K)], K)
    second = upper + np.tril(upper.transpose(0, 2, 1), -1)
    if location:  # l(f - y): the derivative in y is that in f with the other sign
        cross = -second
    else:
        cross = _second_blocks(function, steps, [(a, K + b) for a in range(K) for b in range(K)], K)
    _require_convergence(first, steps[:K], "differentiable")
    weights = w[:, None]
    return LossDerivatives(
        w * function.base,
        weights * first.value,
        diagonal_if_separable(weights[:, :, None] * second),
        diagonal_if_separable(weights[:, :, None] * cross),
        location,
    )


@dataclass(frozen=True)
class _Rows:
    """The loss of every row as a function of a common shift z of all predictions and all responses, (2K,).

    All rows are differentiated at once: the first K entries of z are added to every prediction, the others to every
    response.
    """

    loss: Callable[..., Any]
    f: np.ndarray
    y: np.ndarray
    squeeze: bool

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return the loss of every row, (n,)."""
        K = self.f.shape[1]
        pairs = zip(self.f + z[:K], self.y + z[K:], strict=True)
        if self.squeeze:
            return np.array([float(np.sum(self.loss(f[0], y[0]))) for f, y in pairs])
        return np.array([float(np.sum(self.loss(f, y))) for f, y in pairs])

    def sampled(self) -> tuple[Sampled, np.ndarray, np.ndarray]:
        """Return the function with its rounding measured, its steps, and the unit of each output, (K,).

        The unit of an output is its root mean square residual, or that of the responses if all residuals are zero.
        """
        K = self.f.shape[1]
        with wrap_errors("loss(f_i, y_i) of one row failed", InputError):
            base = self(np.zeros(2 * K))
        check_finite("the loss", base, ModelError)
        residual = np.sqrt(np.mean((self.f - self.y) ** 2, axis=0))
        response = np.sqrt(np.mean(self.y**2, axis=0))
        unit = np.where(residual > 0, residual, np.where(response > 0, response, 1.0))
        # The shift z is 0, which gives no scale for a first step, so the unit is given.
        start = START_FRACTION * np.tile(unit, 2)
        function, steps = measure_rounding(Sampled(self, np.zeros(2 * K), base), start)
        return function, steps, unit

    def is_location(self, function: Sampled, unit: np.ndarray, slope: np.ndarray) -> bool:
        """Return whether the loss is unchanged, up to rounding, if predictions and responses shift together.

        Args:
            function: This function with its values at zero.
            unit: The unit of each output, (K,).
            slope: The first derivatives of the loss in the predictions, (n, K).
        """
        size = np.maximum(np.abs(self.f), np.abs(self.y)).max(axis=0)
        # Two shifts that are no simple fractions, one of the size of the residuals and one of that of the responses.
        for shift in (0.731 * unit, -0.613 * size):
            shifted = function.values_with(list(enumerate(np.tile(shift, 2))))
            rounding = 16 * np.finfo(float).eps * (np.abs(slope) @ (size + np.abs(shift)))
            if not np.all(abs(shifted - function.base) <= 1e-9 * abs(function.base).max() + rounding):
                return False
        return True


def _second_blocks(function: Sampled, steps: np.ndarray, pairs: list[tuple[int, int]], K: int) -> np.ndarray:
    """Return second derivatives as (n, K, K), zero in pairs that are not asked for.

    A pair is also set to exactly zero where no row's derivative exceeds its error, so that a loss which is a sum over
    outputs is recognised as such.
    """
    found = second_derivatives(function, steps, pairs)
    area = np.array([steps[a] * steps[b] for a, b in pairs])
    by_row = Estimate(found.value.T, found.error.T, found.rounding.T)
    _require_convergence(by_row, area, "twice differentiable")
    blocks = np.zeros((len(function.base), K, K))
    for (a, b), value, error in zip(pairs, found.value, found.error, strict=True):
        if np.any(abs(value) > 10 * error):
            blocks[:, a, b % K] = value
    return blocks


def _require_convergence(found: Estimate, unit: np.ndarray, what: str) -> None:
    """Raise unless the errors of derivatives (n, k), each in its own unit, are small against the largest derivative."""
    largest = np.max(np.abs(found.value) * unit)
    rows = np.flatnonzero(not_converged(found, unit, largest).any(axis=1))
    if rows.size:
        raise ModelError(
            f"the loss does not look {what} at the fitted values of {name_rows(rows)}. Use a smooth loss, such "
            "as a pseudo-Huber loss for a Huber loss."
        )
