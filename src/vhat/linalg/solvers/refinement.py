"""Linear systems ``B u = w`` with ``B >= I``, solved in double precision with a preconditioner in single precision.

Conjugate gradients for all right-hand sides at once, so that they share every product with B: that product recomputes
the blocks of a kernel, which costs far more than to multiply them by a few hundred columns. No eigenvalue of B is below
one, so the residual ``r = w - B u`` bounds the error: ``|u - B^-1 w| <= |r|``. A column is finished when ``|r| <= rtol
|u|``, and that bound is returned with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Refined", "refine"]

Columns = Callable[[np.ndarray], np.ndarray]
"""A linear map of columns, (N, k) to (N, k)."""

_PATIENCE = 40
"""Products after which columns that have not come closer by a factor of two are given up. The residual is not what
conjugate gradients make small: it may stand still for a while."""


@dataclass(frozen=True)
class Refined:
    """Solutions of ``B u = w`` for some columns.

    Attributes:
        u: The solutions, (N, k).
        residual: ``w - B u``, (N, k).
        error: ``|residual| / |u|``, (k,): a bound on the relative error of each column.
        products: How many products with B were taken.
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
        rtol: Relative error to reach, by its bound.
        most: Products with B after which columns are left as they are.
    """
    u = precondition(w)
    r = w - product(u)
    products = 1
    error = _bound(r, u)
    active = np.flatnonzero(error > rtol)
    direction = np.zeros((len(w), 0))
    rho = np.zeros(0)
    best = np.inf
    waited = 0
    while active.size and products < most and waited < _PATIENCE:
        z = precondition(r[:, active])
        rho_new = _inner(r[:, active], z)
        if direction.shape[1]:
            beta = np.divide(rho_new, rho, out=np.zeros_like(rho), where=rho > 0)
            z += beta * direction
        direction, rho = z, rho_new
        image = product(direction)
        products += 1
        bend = _inner(direction, image)
        alpha = np.divide(rho, bend, out=np.zeros_like(rho), where=bend > 0)
        u[:, active] += alpha * direction
        r[:, active] -= alpha * image
        error[active] = _bound(r[:, active], u[:, active])
        worst = float(np.max(error[active]))
        waited = 0 if worst <= best / 2 else waited + 1
        best = min(best, worst) if waited else worst
        going = error[active] > rtol
        active, direction, rho = active[going], direction[:, going], rho[going]
    return Refined(u, r, error, products)


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the inner products of columns, (k,)."""
    found: np.ndarray = np.einsum("ik,ik->k", a, b)
    return found


def _bound(r: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return ``|r| / |u|`` of each column, zero where both are zero, infinite where they are not finite."""
    left = np.sqrt(_inner(r, r))
    size = np.sqrt(_inner(u, u))
    found = np.divide(left, size, out=np.where(left > 0, np.inf, 0.0), where=size > 0)
    return np.where(np.isfinite(found), found, np.inf)
