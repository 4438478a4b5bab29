"""Conjugate gradients on ``A = P + R`` in the metric of a factorised ``P``, which need few steps where R is small.

A step takes ``z = P^-1 r`` in the form that the factorisation has it: from the n x n side ``J z``, ``r'z`` and what is
needed to lift z to the space of parameters. The last one is never lifted: ``h = x + z`` is left as it is. Its error is
``P^-1 R`` times that of x, so where R is small a single product with A serves a point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from vhat.linalg.solvers.factorised import Factorised, SeenRows
from vhat.linalg.solvers.interface import Status
from vhat.models.problem import Array

__all__ = ["Correction", "Spectrum", "correct", "find_spectrum"]

_ROUNDING = 1e-13
"""Share of ``|g|`` in the metric of ``P^-1`` below which a residual is rounding."""

_PROBES = 8
"""Steps in a random direction from which the ends of the spectrum are estimated, as many products with A."""

Product = Callable[[np.ndarray, np.ndarray, float], tuple[np.ndarray, bool]]
"""``(q, P q, tolerance)`` to ``R q``, right to ``tolerance |q|`` in the metric of P, and whether in single."""


@dataclass(frozen=True)
class Correction:
    """``h = x + z`` for a block of rows.

    Attributes:
        x: The part in the space of parameters, (k, p); None where there is none.
        last: z, in the form of the factorisation.
        image: Of h, in the form of the factorisation: ``J h`` from the n x n side, h itself from the p x p side.
        energy: ``g'h``, (k,).
        pull: ``h' b``, (k,), with the gradient b of the penalty.
        status: A :class:`vhat.Status` value a row.
        error: Estimated relative error of ``s'J h``, (k,).
        steps: Products with A, (k,).
    """

    x: np.ndarray | None = field(repr=False)
    last: SeenRows = field(repr=False)
    image: np.ndarray = field(repr=False)
    energy: np.ndarray
    pull: np.ndarray
    status: np.ndarray
    error: np.ndarray
    steps: np.ndarray

    @staticmethod
    def none(factor: Factorised, seen: SeenRows) -> Correction:
        """Return ``h = P^-1 g`` as it is seen, which needs no correction if ``A = P``."""
        k = len(seen.energy)
        status = np.where(np.isfinite(seen.energy), Status.CONVERGED.value, Status.NOT_FINITE.value).astype("<U13")
        ones = np.ones(k, dtype=int)
        pull = factor.pull(seen)
        return Correction(None, seen, seen.image, seen.energy, pull, status, np.zeros(k), ones)


@dataclass(frozen=True)
class Spectrum:
    """What is known of ``P^-1 A`` before any row is solved: a row may hardly meet what would delay it most.

    Attributes:
        contraction: The spectral radius of ``P^-1 R``, estimated.
        smallest: An upper bound of the smallest eigenvalue of ``P^-1 A``, as near to it as is known.
    """

    contraction: float
    smallest: float

    def with_direction(self, factor: Factorised, product: Product, soft: np.ndarray) -> Spectrum:
        """Return the same with the quotient ``x'Ax / x'Px`` of a direction, (p,), that is known to be soft."""
        Px = factor.apply(soft[None])
        Ax = Px + product(soft[None], Px, 0.0)[0]
        quotient = float(soft @ Ax[0]) / float(soft @ Px[0])
        return replace(self, smallest=min(self.smallest, quotient)) if np.isfinite(quotient) else self


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
        spectrum: What :func:`find_spectrum` found.
        rtol: Relative error of ``s'J h`` to reach, by its estimate.
        max_steps: Products with A after which a row is given up.
        gradients: ``g`` as the framework's array where its rows may be compressed.
    """
    seen = factor.look(g, gradients)
    block = _Block(factor, g, seen)
    exactly = rtol * min(max(spectrum.smallest, 0.0), 1.0)  # what a product is off is magnified by a soft direction
    while len(block.rows):
        bend = block.descend(product, exactly)
        block.turn(block.judge(bend, spectrum, rtol, max_steps))
    return block.found


def find_spectrum(factor: Factorised, product: Product) -> Spectrum:
    """Estimate the ends of the spectrum from a few steps in a random direction that the data see."""
    g = factor.probe(seed=0)
    block = _Block(factor, g, factor.look(g))
    for _ in range(_PROBES if len(block.rows) else 0):
        if not block.descend(product, 0.0)[0] > 0:
            return Spectrum(1.0, 1.0)
        if not block.seen.energy[0] > _ROUNDING**2 * block.first[0]:
            break
        block.turn(np.ones(1, dtype=bool))
    if not block.alphas.size:
        return Spectrum(0.0, 1.0)
    smallest, largest = _ends(block.alphas[0], block.betas[0])
    return Spectrum(_contraction(smallest, largest, block.betas[0]), smallest)


class _Block:
    """The state of a block: ``found`` and ``x`` for all rows, the other arrays for ``rows``, those that still move."""

    def __init__(self, factor: Factorised, g: np.ndarray, seen: SeenRows) -> None:
        self.factor, self.g = factor, g
        self.first = seen.energy
        self.h0 = factor.lift(seen)
        self.x = np.zeros_like(g)
        self.found = replace(
            Correction.none(factor, seen),
            x=self.x,
            last=seen.copy(),
            image=seen.image.copy(),
            energy=seen.energy.copy(),
        )
        self.rows = np.flatnonzero(seen.energy > 0)
        self.seen, self.r = seen.take(self.rows), g[self.rows]
        self.q, self.Pq, self.FPq, self.Jq = self.h0[self.rows], self.r.copy(), self.seen.cross, self.seen.image
        self.Jx = np.zeros_like(self.Jq)
        self.alphas = self.betas = np.zeros((len(self.rows), 0))

    def descend(self, product: Product, rtol: float) -> np.ndarray:
        """Move to the minimum along q, look at the new residual, and return the curvature ``q'Aq``."""
        # a later, shorter direction may be followed less exactly; little may be lost where the data see little of h
        needed = self.factor.lengths(self.Jx + self.seen.image) / np.sqrt(self.seen.energy)
        Rq, single = product(self.q, self.Pq, rtol / 4 * float(needed.min()))
        Aq, FAq = self.Pq + Rq, self.FPq + self.factor.cross(Rq, single=single)
        bend = np.einsum("kp,kp->k", self.q, Aq)
        good = np.isfinite(bend) & (bend > 0)
        alpha = np.divide(self.seen.energy, bend, out=np.zeros_like(bend), where=good)
        self.x[self.rows] += alpha[:, None] * self.q
        self.Jx = self.Jx + alpha[:, None, None] * self.Jq
        self.r = self.r - alpha[:, None] * np.where(good[:, None], Aq, 0.0)
        cross = self.seen.cross - alpha[:, None] * np.where(good[:, None], FAq, 0.0)
        before, self.seen = self.seen.energy, self.factor.look(self.r, cross=cross)
        self.alphas = np.column_stack([self.alphas, alpha])
        self.betas = np.column_stack([self.betas, np.maximum(self.seen.energy, 0.0) / before])
        return bend

    def judge(self, bend: np.ndarray, spectrum: Spectrum, rtol: float, max_steps: int) -> np.ndarray:
        """Settle the rows that have arrived or can go no further; return which go on, (k,) of bool."""
        left = np.sqrt(np.maximum(self.seen.energy, 0.0))
        good = np.isfinite(bend) & (bend > 0)
        coefficients = zip(self.alphas, self.betas, good, strict=True)
        factor = np.array([_error_factor(a, b, spectrum) if fine else np.inf for a, b, fine in coefficients])
        # where P^-1 R does not contract, z is no improvement
        used = np.where((self.betas[:, -1] < 1) & good, 1.0, 0.0)
        image = self.Jx + used[:, None, None] * self.seen.image
        shown = self.factor.lengths(image)
        error = np.divide(factor * left, shown, out=np.full_like(left, np.inf), where=shown > 0)
        arrived = (error <= rtol) | (left <= _ROUNDING * np.sqrt(self.first[self.rows]))
        conditions = [~np.isfinite(bend), bend <= 0, arrived, np.full(len(left), self.alphas.shape[1] >= max_steps)]
        statuses = [Status.NOT_FINITE, Status.INDEFINITE, Status.CONVERGED, Status.NOT_CONVERGED]
        status = np.select(conditions, [str(s) for s in statuses], default="")
        self._settle(np.flatnonzero(status != ""), status, used, image, error)
        going: np.ndarray = status == ""
        return going

    def _settle(
        self, at: np.ndarray, status: np.ndarray, used: np.ndarray, image: np.ndarray, error: np.ndarray
    ) -> None:
        rows, found, factor = self.rows[at], self.found, self.factor
        last = self.seen.take(at).times(used[at])
        found.last.put(rows, last)
        found.image[rows] = image[at]
        found.energy[rows] = np.einsum("kp,kp->k", self.g[rows], self.x[rows])
        found.energy[rows] += used[at] * np.einsum("kp,kp->k", self.h0[rows], self.r[at])
        found.pull[rows] = self.x[rows] @ factor.penalty_slope + factor.pull(last)
        found.status[rows] = status[at]
        found.error[rows] = error[at]
        found.steps[rows] = self.alphas.shape[1]

    def turn(self, going: np.ndarray) -> None:
        """Drop the rows that are settled and turn the others to their next, conjugate direction."""
        self.rows, self.r, self.Jx = self.rows[going], self.r[going], self.Jx[going]
        self.alphas, self.betas, self.seen = self.alphas[going], self.betas[going], self.seen.take(going)
        if not len(self.rows):
            return
        beta = self.betas[:, -1:]
        self.q = self.factor.lift(self.seen) + beta * self.q[going]
        self.Pq, self.FPq = self.r + beta * self.Pq[going], self.seen.cross + beta * self.FPq[going]
        self.Jq = self.seen.image + beta[:, :, None] * self.Jq[going]


def _error_factor(alphas: np.ndarray, betas: np.ndarray, spectrum: Spectrum) -> float:
    """Estimate ``c`` in ``|error of x + z|_P <= c |r|_{P^-1}`` from the coefficients of one row's iteration.

    The error of x is ``A^-1 r``, at most ``|r|/smallest`` with the smallest eigenvalue of ``P^-1 A``; z takes it to
    ``P^-1 R`` times that.
    """
    smallest, largest = _ends(alphas, betas)
    contraction = max(spectrum.contraction, _contraction(smallest, largest, betas))
    return min(contraction, 1.0) / max(min(smallest, spectrum.smallest), float(np.finfo(float).tiny))


def _ends(alphas: np.ndarray, betas: np.ndarray) -> tuple[float, float]:
    """Return the ends of the spectrum of ``P^-1 A`` that an iteration has met: Lanczos' method in disguise."""
    diagonal = 1.0 / alphas
    diagonal[1:] += betas[:-1] / alphas[:-1]
    if len(alphas) == 1:
        return float(diagonal[0]), float(diagonal[0])
    beside, last = np.sqrt(betas[:-1]) / alphas[:-1], len(alphas) - 1
    ends = [eigvalsh_tridiagonal(diagonal, beside, select="i", select_range=(i, i)) for i in (0, last)]
    return float(ends[0][0]), float(ends[1][0])


def _contraction(smallest: float, largest: float, betas: np.ndarray) -> float:
    """What ``P^-1 R`` does to a vector at most; before the spectrum shows it, the fall of the residuals does."""
    return max(1.0 - smallest, largest - 1.0, float(np.sqrt(betas.max())))
