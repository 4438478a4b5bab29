"""Quadratic forms in the gradient of a network with one hidden layer, without the gradient itself.

Let ``u = (1, x)`` be what enters the hidden layer and ``v = (1, h)`` what enters the last one, each with a 1 for the
biases, and let d be the gradient of the prediction in the pre-activations of the hidden layer. In the order of the
parameters the gradient of the prediction is ``g = (u (x) d, v)``. With a symmetric matrix M, cut into blocks in the
same way, the form ``g'Mg`` is

    sum_{i <= k} sum_{j <= l} T_{ik,jl} (u_i u_k) (d_j d_l)  +  sum_j d_j sum_{a,i} R_{j,ai} v_a u_i  +  v'M_vv v,

where T adds up the entries of ``M_gg`` that belong to the same product of four factors, and ``R`` is twice ``M_gv``. T
has a quarter of the entries of ``M_gg``. Two forms together take 60% of the multiplications of ``g @ change``, which
gives both of them in :mod:`vhat.linalg.solvers.alike_rows`, and no array of p numbers a row is written.

The terms of these sums cancel, where ``|change' g|^2`` has positive terms only. The rounding error of each row is
estimated from the sizes of its terms; a row with too large an estimate is left to ``change``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vhat.linalg.solvers.alike_rows import Basis
from vhat.models.dense_network.activations import DERIVATIVES, VALUES
from vhat.models.dense_network.autodiff import NetworkAutodiff
from vhat.models.problem import Problem

__all__ = ["OuterProductForms", "make_forms"]

_LEAST_PARAMETERS = 128
"""Parameters from which the forms are used. Below, products of whole gradients take no more time."""
_ACCURACY = 1e-9
"""Relative error to which both forms are needed: the bound on residuals up to which ``change`` is used."""
_ROUNDING = 64 * np.finfo(float).eps
"""Bound on the rounding error of a form, relative to the size of its terms: some ten times the largest difference from
``|change' g|^2`` that was found, 5 eps, in a network of 449 parameters at points up to 30 standard deviations away."""


@dataclass(frozen=True, eq=False)
class OuterProductForms:
    """Two quadratic and two linear forms in gradients of predictions. Arrays over points have one point a column.

    H is the number of hidden units, D the number of inputs and 1; ``pairs(m) = m (m + 1) / 2``.

    Attributes:
        activation: The name of the activation.
        weights: Biases, in the first row, and weights of the hidden layer, (D, H).
        last: Weights of the last layer, (H,).
        hidden: T of both forms, (2 pairs(D), pairs(H)).
        mixed: R of both forms, (2 H, (H + 1) D).
        outer: ``M_vv`` of both forms, (2 (H + 1), H + 1).
        linear_hidden: Coefficients of the linear forms in ``u (x) d``, (2 H, D).
        linear_outer: Coefficients of the linear forms in v, (2, H + 1).
        norms: Frobenius norms of ``M_gg``, ``M_gv`` and ``M_vv`` of both forms, (2, 3).
    """

    activation: str
    weights: np.ndarray = field(repr=False)
    last: np.ndarray = field(repr=False)
    hidden: np.ndarray = field(repr=False)
    mixed: np.ndarray = field(repr=False)
    outer: np.ndarray = field(repr=False)
    linear_hidden: np.ndarray = field(repr=False)
    linear_outer: np.ndarray = field(repr=False)
    norms: np.ndarray = field(repr=False)

    def at(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the quadratic forms, the linear forms, and which points have accurate ones.

        Args:
            X: Inputs in the units of the network, (k, D - 1).

        Returns:
            The quadratic forms, (2, k); the linear forms, (2, k); whether all forms of a point are finite and both
            quadratic ones have a relative rounding error of at most 1e-9, (k,).
        """
        with np.errstate(all="ignore"):  # a point whose forms overflow is not accurate either
            u, d, v = self._factors(X)
            # Each product has the terms of both forms: the first half of its rows belongs to the first form.
            quadratic = _halves_dot(self.hidden @ _pair_products(d), _pair_products(u))
            products = np.multiply(v[:, None, :], u[None, :, :]).reshape(-1, u.shape[1])
            quadratic += _halves_dot(self.mixed @ products, d)
            quadratic += _halves_dot(self.outer @ v, v)
            linear = _halves_dot(self.linear_hidden @ u, d) + self.linear_outer @ v
            accurate = np.all(_ROUNDING * self._term_sizes(u, d, v) <= _ACCURACY * quadratic, axis=0)
            accurate &= np.all(np.isfinite(quadratic), axis=0) & np.all(np.isfinite(linear), axis=0)
        return quadratic, linear, accurate

    def _factors(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return u (D, k), d (H, k) and v (H + 1, k)."""
        units = len(self.last)
        u = np.empty((X.shape[1] + 1, len(X)))
        u[0] = 1.0
        u[1:] = X.T
        v = np.empty((units + 1, len(X)))
        v[0] = 1.0
        before = self.weights.T @ u
        v[1:] = VALUES[self.activation](before)
        slope, _ = DERIVATIVES[self.activation](before, v[1:])
        return u, self.last[:, None] * slope, v

    def _term_sizes(self, u: np.ndarray, d: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return ``|g|'|M||g|`` or more, for both forms: the sum of the magnitudes of all terms, (2, k)."""
        first = np.einsum("ik,ik->k", u, u) * np.einsum("jk,jk->k", d, d)  # |u (x) d|^2
        second = np.einsum("ak,ak->k", v, v)
        return self.norms @ np.stack([first, 2.0 * np.sqrt(first * second), second])


def make_forms(problem: Problem, basis: Basis) -> OuterProductForms | None:
    """Prepare the forms ``|z|^2`` and ``sum_k m_k z_k^2`` of ``z = change' g``, and the linear forms ``solved' g``.

    Args:
        problem: The training problem, of a network with one output.
        basis: The basis with ``change``, ``m`` and ``solved``.

    Returns:
        The forms; None for a network without a hidden layer or with several, and for a small one.
    """
    assert isinstance(problem.autodiff, NetworkAutodiff)
    network = problem.autodiff.network
    if len(network.widths) != 3 or problem.p < _LEAST_PARAMETERS:
        return None
    inputs, units, _ = network.widths
    size = (inputs + 1) * units  # parameters of the hidden layer: biases first, then weights row by row
    theta = problem.numpy(problem.theta)
    # The gradient in the units of the responses is this factor times the gradient of the network.
    unit = 1.0 if problem.scaling is None else float(problem.scaling.unit[0])
    hidden = []
    mixed = []
    outer = []
    norms = []
    for root in (basis.change, basis.change * np.sqrt(basis.eigenvalues)):
        matrix = unit**2 * (root @ root.T)
        first = matrix[:size, :size]
        across = matrix[:size, size:]
        second = matrix[size:, size:]
        hidden.append(_folded(first, inputs + 1, units))
        # From the order (i, j, a) of the entries to one row per j.
        by_unit = across.reshape(inputs + 1, units, units + 1).transpose(1, 2, 0)
        mixed.append(2.0 * by_unit.reshape(units, -1))
        outer.append(second)
        norms.append([np.linalg.norm(block) for block in (first, across, second)])
    linear = unit * basis.solved.T
    linear_hidden = linear[:, :size].reshape(2, inputs + 1, units).transpose(0, 2, 1).reshape(-1, inputs + 1)
    return OuterProductForms(
        activation=network.activation,
        weights=theta[:size].reshape(inputs + 1, units),
        last=theta[size + 1 :],
        hidden=np.concatenate(hidden),
        mixed=np.concatenate(mixed),
        outer=np.concatenate(outer),
        linear_hidden=np.ascontiguousarray(linear_hidden),
        linear_outer=np.ascontiguousarray(linear[:, size:]),
        norms=np.array(norms),
    )


def _folded(matrix: np.ndarray, inputs: int, units: int) -> np.ndarray:
    """Return T of a block ``M_gg``: the sum of its entries over both orders of (i, k) and of (j, l)."""
    entries = matrix.reshape(inputs, units, inputs, units).transpose(0, 2, 1, 3)  # i, k, j, l
    entries = entries + entries.transpose(1, 0, 2, 3)
    i, k = np.triu_indices(inputs)
    folded = entries[i, k]
    folded = folded + folded.transpose(0, 2, 1)
    j, l = np.triu_indices(units)  # noqa: E741  (the index of the formula)
    folded = folded[:, j, l]
    # An index that occurs twice has one order, and was added to itself.
    folded[i == k] /= 2.0
    folded[:, j == l] /= 2.0
    return folded


def _pair_products(rows: np.ndarray) -> np.ndarray:
    """Return the products of all pairs of rows, each with itself included, in the order of ``triu_indices``."""
    count, points = rows.shape
    products = np.empty((count * (count + 1) // 2, points))
    start = 0
    for first in range(count):
        stop = start + count - first
        np.multiply(rows[first:], rows[first], out=products[start:stop])
        start = stop
    return products


def _halves_dot(stacked: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return the inner products over rows of each half of an array with another, (2 m, k) and (m, k) to (2, k)."""
    halves = stacked.reshape(2, *factor.shape)
    return np.einsum("fmk,mk->fk", halves, factor)
