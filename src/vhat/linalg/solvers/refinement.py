"""Solve ``B u = w`` with ``B >= I`` in double precision, with a preconditioner in single precision.

Conjugate gradients run on all right-hand sides at once and share every product with B. Such a product recomputes the
blocks of a kernel, which costs far more than multiplying the blocks by a few hundred columns. No eigenvalue of B is
below one, and the residual ``r = w - B u`` therefore bounds the error: ``|u - B^-1 w| <= |r|``. A column stops when
``|r| <= rtol |u|``, and the bound ``|r| / |u|`` is returned with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Refined", "refine"]

Columns = Callable[[np.ndarray], np.ndarray]
"""A linear map of columns, (N, k) to (N, k)."""

_PATIENCE = 40
"""Products without a decrease of the worst bound by a factor of two, after which the iteration stops. Conjugate
gradients minimise the error in the norm of B, and the residual may stagnate for a while."""


@dataclass(frozen=True)
class Refined:
    """Solutions of ``B u = w`` for some columns.

    Attributes:
        u: The solutions, (N, k).
        residual: ``w - B u``, (N, k).
        error: ``|residual| / |u|``, (k,): a bound on the relative error of each column.
        products: Number of products with B.
    """

    u: np.ndarray = field(repr=False)
    residual: np.ndarray = field(repr=False)
    error: np.ndarray
    products: int


def refine(product: Columns, precondition: Columns, w: np.ndarray, rtol: float, most: int) -> Refined:
    """Solve ``B u = w`` for each column of w, (N, k).

    Args:
        product: ``B v`` in double precision.
        precondition: An approximation of ``B^-1 v``, symmetric and positive definite.
        w: Right-hand sides.
        rtol: Bound on the relative error to reach.
        most: Largest number of products with B.
    """
    u = precondition(w)
    r = w - product(u)
    products = 1
    error = _bound(r, u)
    active = np.flatnonzero(error > rtol)
    direction = np.zeros((len(w), 0))
    rho = np.zeros(0)  # r'z of each active column, with z the preconditioned residual
    best = np.inf
    stagnated = 0
    while active.size and products < most and stagnated < _PATIENCE:
        # Preconditioned conjugate gradients. The guards leave a column unchanged where rounding in the preconditioner
        # makes r'z, or rounding in the product makes q'Bq, not positive.
        z = precondition(r[:, active])
        rho_new = _inner(r[:, active], z)
        if direction.shape[1]:
            beta = np.divide(rho_new, rho, out=np.zeros_like(rho), where=rho > 0)
            z += beta * direction
        direction, rho = z, rho_new
        image = product(direction)
        products += 1
        curvature = _inner(direction, image)
        alpha = np.divide(rho, curvature, out=np.zeros_like(rho), where=curvature > 0)
        u[:, active] += alpha * direction
        r[:, active] -= alpha * image
        error[active] = _bound(r[:, active], u[:, active])
        worst = float(np.max(error[active]))
        if worst <= best / 2:
            stagnated = 0
            best = worst
        else:
            stagnated += 1
            best = min(best, worst)
        # Finished columns leave the iteration, which makes the next product cheaper.
        running = error[active] > rtol
        active = active[running]
        direction = direction[:, running]
        rho = rho[running]
    return Refined(u, r, error, products)


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the inner products of columns, (k,)."""
    found: np.ndarray = np.einsum("ik,ik->k", a, b)
    return found


def _bound(r: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return ``|r| / |u|`` of each column; zero if both are zero, infinite if the ratio is not finite."""
    residual = np.sqrt(_inner(r, r))
    size = np.sqrt(_inner(u, u))
    found = np.divide(residual, size, out=np.where(residual > 0, np.inf, 0.0), where=size > 0)
    return np.where(np.isfinite(found), found, np.inf)
