"""Conjugate gradients on ``A = P + R``, preconditioned by a factorised ``P``; few steps are needed if R is small.

P is the Gauss-Newton matrix plus decay, and R the rest of the exact Hessian. Each step uses ``z = P^-1 r`` in the form
of the factorisation: for the dual, ``J z``, ``r'z`` and the coefficients from which z itself can be computed. The last
z is added to the solution without computing it: ``h = x + z``. The error of h is ``P^-1 R`` times the error of x, so
that for small R a single product with A per point is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from vhat.linalg.solvers.factorised import Factorised, ImplicitSolution
from vhat.linalg.solvers.interface import STATUS_DTYPE, Status
from vhat.models.problem import Array

__all__ = ["Correction", "Spectrum", "correct", "find_spectrum"]

_ROUNDING = 1e-13
"""Relative residual, in the metric of ``P^-1``, at or below which a residual is rounding."""

_PROBES = 8
"""Iterations, one product with A each, from which the ends of the spectrum are estimated."""

Product = Callable[[np.ndarray, np.ndarray, float], tuple[np.ndarray, bool]]
"""From ``(q, P q, tolerance)`` to ``R q`` with error at most ``tolerance |q|`` in the metric of P, and whether it was
computed in single precision."""


@dataclass(frozen=True)
class Correction:
    """``h = x + z`` for a block of rows.

    Attributes:
        x: The part stored as vectors, (k, p); None if it is zero.
        last: z, in the form of the factorisation.
        image: Image of h in the form of the factorisation: ``J h`` for the dual, h itself for the primal.
        energy: ``g'h``, (k,).
        pull: ``h' b``, (k,), with b the gradient of the penalty.
        status: A :class:`vhat.Status` value per row.
        error: Estimated relative error of ``s'J h``, (k,).
        steps: Products with A, (k,).
    """

    x: np.ndarray | None = field(repr=False)
    last: ImplicitSolution = field(repr=False)
    image: np.ndarray = field(repr=False)
    energy: np.ndarray
    pull: np.ndarray
    status: np.ndarray
    error: np.ndarray
    steps: np.ndarray

    @staticmethod
    def direct(factor: Factorised, z: ImplicitSolution) -> Correction:
        """Return ``h = z = P^-1 g`` without correction: the solution if ``A = P``."""
        k = len(z.energy)
        status = np.where(np.isfinite(z.energy), Status.CONVERGED.value, Status.NOT_FINITE.value)
        return Correction(
            x=None,
            last=z,
            image=z.image,
            energy=z.energy,
            pull=factor.pull(z),
            status=status.astype(STATUS_DTYPE),
            error=np.zeros(k),
            steps=np.ones(k, dtype=int),
        )


@dataclass(frozen=True)
class Spectrum:
    """Bounds of the spectrum of ``P^-1 A``, estimated before any row is solved.

    A single row may have almost no component along the direction that limits its accuracy, and its own iteration then
    does not show the end of the spectrum.

    Attributes:
        contraction: The spectral radius of ``P^-1 R``, estimated.
        smallest: The smallest known upper bound of the smallest eigenvalue of ``P^-1 A``.
    """

    contraction: float
    smallest: float

    def with_direction(self, factor: Factorised, product: Product, x: np.ndarray) -> Spectrum:
        """Return the spectrum bounded by the quotient ``x'Ax / x'Px`` of a direction of little curvature, (p,)."""
        Px = factor.apply(x[None])
        Ax = Px + product(x[None], Px, 0.0)[0]
        quotient = float(x @ Ax[0]) / float(x @ Px[0])
        if not np.isfinite(quotient):
            return self
        return replace(self, smallest=min(self.smallest, quotient))


def correct(
    factor: Factorised,
    g: np.ndarray,
    product: Product,
    spectrum: Spectrum,
    rtol: float,
    max_steps: int,
    gradients: Array | None = None,
) -> Correction:
    """Solve ``A h = g`` for each row of g, (k, p).

    Args:
        factor: ``P`` factorised.
        g: Right-hand sides.
        product: ``R q`` for directions q whose ``P q`` is known.
        spectrum: The result of :func:`find_spectrum`.
        rtol: Estimated relative error of ``s'J h`` to reach.
        max_steps: Products with A after which a row stops as not converged.
        gradients: ``g`` as an array of the framework, if its rows may be compressed.
    """
    block = _Block(factor, g, factor.solve_implicit(g, gradients))
    # A small eigenvalue of P^-1 A magnifies the error of a product by its inverse.
    product_rtol = rtol * min(max(spectrum.smallest, 0.0), 1.0)
    while len(block.rows):
        curvature = block.descend(product, product_rtol)
        running = block.update_status(curvature, spectrum, rtol, max_steps)
        block.redirect(running)
    return block.found


def find_spectrum(factor: Factorised, product: Product) -> Spectrum:
    """Estimate the ends of the spectrum of ``P^-1 A`` by a few iterations from a random right-hand side.

    The right-hand side is in the span of the training gradients.
    """
    g = factor.probe(seed=0)
    block = _Block(factor, g, factor.solve_implicit(g))
    for _ in range(_PROBES if len(block.rows) else 0):
        if not block.descend(product, 0.0)[0] > 0:
            return Spectrum(1.0, 1.0)
        if not block.z.energy[0] > _ROUNDING**2 * block.initial_energy[0]:
            break
        block.redirect(np.ones(1, dtype=bool))
    if not block.alphas.size:
        return Spectrum(0.0, 1.0)
    smallest, largest = _extreme_eigenvalues(block.alphas[0], block.betas[0])
    return Spectrum(_contraction(smallest, largest, block.betas[0]), smallest)


class _Block:
    """State of the iteration for a block of rows.

    ``found``, ``x``, ``h0``, ``g`` and ``initial_energy`` have all rows. The other arrays have only the running rows,
    whose indices are ``rows``: the residual r, ``z = P^-1 r``, the search direction q with its products ``P q``,
    ``F Lam^-1/2 P q`` (``FPq``) and image (``Jq``), the image of x (``Jx``), and the coefficients of each step.
    """

    def __init__(self, factor: Factorised, g: np.ndarray, z: ImplicitSolution) -> None:
        self.factor = factor
        self.g = g
        self.initial_energy = z.energy
        self.h0 = factor.lift(z)
        self.x = np.zeros_like(g)
        self.found = replace(
            Correction.direct(factor, z),
            x=self.x,
            last=z.copy(),
            image=z.image.copy(),
            energy=z.energy.copy(),
        )
        self.rows = np.flatnonzero(z.energy > 0)
        self.z = z.take(self.rows)
        self.r = g[self.rows]
        # The first direction is q = P^-1 g, so that P q = r.
        self.q = self.h0[self.rows]
        self.Pq = self.r.copy()
        self.FPq = self.z.cross
        self.Jq = self.z.image
        self.Jx = np.zeros_like(self.Jq)
        self.alphas = np.zeros((len(self.rows), 0))
        self.betas = np.zeros((len(self.rows), 0))

    def descend(self, product: Product, rtol: float) -> np.ndarray:
        """Move to the minimum along q, update the residual, and return the curvature ``q'Aq``, (k,).

        Rows with curvature that is not positive do not move.
        """
        # The error of a product counts relative to |s'J h|. Later directions are shorter and allow a larger relative
        # error; a prediction with little support in the data allows less.
        needed = self.factor.lengths(self.Jx + self.z.image) / np.sqrt(self.z.energy)
        Rq, single = product(self.q, self.Pq, rtol / 4 * float(needed.min()))
        Aq = self.Pq + Rq
        FAq = self.FPq + self.factor.cross(Rq, single=single)
        curvature = np.einsum("kp,kp->k", self.q, Aq)
        good = np.isfinite(curvature) & (curvature > 0)
        # alpha = r'P^-1 r / q'Aq, the step of conjugate gradients
        alpha = np.divide(self.z.energy, curvature, out=np.zeros_like(curvature), where=good)
        self.x[self.rows] += alpha[:, None] * self.q
        self.Jx = self.Jx + alpha[:, None, None] * self.Jq
        self.r = self.r - alpha[:, None] * np.where(good[:, None], Aq, 0.0)
        cross = self.z.cross - alpha[:, None] * np.where(good[:, None], FAq, 0.0)
        previous_energy = self.z.energy
        self.z = self.factor.solve_implicit(self.r, cross=cross)
        beta = np.maximum(self.z.energy, 0.0) / previous_energy
        self.alphas = np.column_stack([self.alphas, alpha])
        self.betas = np.column_stack([self.betas, beta])
        return curvature

    def update_status(self, curvature: np.ndarray, spectrum: Spectrum, rtol: float, max_steps: int) -> np.ndarray:
        """Store the results of rows that have converged or failed; return which rows continue, (k,) of bool."""
        residual = np.sqrt(np.maximum(self.z.energy, 0.0))  # |r| in the metric of P^-1
        good = np.isfinite(curvature) & (curvature > 0)
        error_factor = np.full(len(residual), np.inf)
        for i in np.flatnonzero(good):
            error_factor[i] = _error_factor(self.alphas[i], self.betas[i], spectrum)
        # Where P^-1 R does not contract, adding z would not reduce the error.
        used = np.where((self.betas[:, -1] < 1) & good, 1.0, 0.0)
        image = self.Jx + used[:, None, None] * self.z.image
        length = self.factor.lengths(image)
        error = np.divide(error_factor * residual, length, out=np.full_like(residual, np.inf), where=length > 0)
        converged = (error <= rtol) | (residual <= _ROUNDING * np.sqrt(self.initial_energy[self.rows]))
        out_of_steps = np.full(len(residual), self.alphas.shape[1] >= max_steps)
        # In order of precedence.
        conditions = [~np.isfinite(curvature), curvature <= 0, converged, out_of_steps]
        statuses = [Status.NOT_FINITE, Status.INDEFINITE, Status.CONVERGED, Status.NOT_CONVERGED]
        status = np.select(conditions, [str(s) for s in statuses], default="")
        self._store(np.flatnonzero(status != ""), status, used, image, error)
        running: np.ndarray = status == ""
        return running

    def _store(
        self, at: np.ndarray, status: np.ndarray, used: np.ndarray, image: np.ndarray, error: np.ndarray
    ) -> None:
        """Write the results of the running rows ``at`` to ``found``."""
        rows = self.rows[at]
        found = self.found
        last = self.z.take(at).times(used[at])
        found.last.put(rows, last)
        found.image[rows] = image[at]
        # g'h = g'x + g'z, and g'z = (P^-1 g)'r.
        found.energy[rows] = np.einsum("kp,kp->k", self.g[rows], self.x[rows])
        found.energy[rows] += used[at] * np.einsum("kp,kp->k", self.h0[rows], self.r[at])
        found.pull[rows] = self.x[rows] @ self.factor.penalty_gradient + self.factor.pull(last)
        found.status[rows] = status[at]
        found.error[rows] = error[at]
        found.steps[rows] = self.alphas.shape[1]

    def redirect(self, running: np.ndarray) -> None:
        """Drop the rows that have stopped; compute the next conjugate direction ``q <- z + beta q`` of the others."""
        self.rows = self.rows[running]
        self.r = self.r[running]
        self.z = self.z.take(running)
        self.Jx = self.Jx[running]
        self.alphas = self.alphas[running]
        self.betas = self.betas[running]
        if not len(self.rows):
            return
        beta = self.betas[:, -1:]
        self.q = self.factor.lift(self.z) + beta * self.q[running]
        # P z = r, so that P q needs no product with P.
        self.Pq = self.r + beta * self.Pq[running]
        self.FPq = self.z.cross + beta * self.FPq[running]
        self.Jq = self.z.image + beta[:, :, None] * self.Jq[running]


def _error_factor(alphas: np.ndarray, betas: np.ndarray, spectrum: Spectrum) -> float:
    """Estimate ``c`` in ``|error of x + z|_P <= c |r|_{P^-1}`` from the coefficients of one row's iteration.

    The error of x is ``A^-1 r``, at most ``|r|/smallest`` with the smallest eigenvalue of ``P^-1 A``. Adding z
    multiplies it by ``P^-1 R``.
    """
    smallest, largest = _extreme_eigenvalues(alphas, betas)
    contraction = max(spectrum.contraction, _contraction(smallest, largest, betas))
    return min(contraction, 1.0) / max(min(smallest, spectrum.smallest), float(np.finfo(float).tiny))


def _extreme_eigenvalues(alphas: np.ndarray, betas: np.ndarray) -> tuple[float, float]:
    """Return the extreme Ritz values of ``P^-1 A`` after an iteration.

    The coefficients of conjugate gradients define the tridiagonal matrix of Lanczos' method.
    """
    diagonal = 1.0 / alphas
    diagonal[1:] += betas[:-1] / alphas[:-1]
    if len(alphas) == 1:
        return float(diagonal[0]), float(diagonal[0])
    off_diagonal = np.sqrt(betas[:-1]) / alphas[:-1]
    last = len(alphas) - 1
    smallest = eigvalsh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(0, 0))
    largest = eigvalsh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(last, last))
    return float(smallest[0]), float(largest[0])


def _contraction(smallest: float, largest: float, betas: np.ndarray) -> float:
    """Return an estimate of the spectral radius of ``P^-1 R``: from the Ritz values, or the decrease of the residuals.

    In the first iterations the Ritz values do not show the ends of the spectrum yet.
    """
    return max(1.0 - smallest, largest - 1.0, float(np.sqrt(betas.max())))
