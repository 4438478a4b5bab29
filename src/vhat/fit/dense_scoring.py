"""Scores of candidate fits, by dense p x p matrices.

With ``S = J A^-1 J'W/n`` the rows are left out one by one as in :mod:`vhat.evidence.leave_one_out`. The sums over all
training rows that the variances need are collected in one matrix, ``B = J' diag(w sigma)^2 J``, so that n rows cost
n p^2 operations instead of n^2 p. ``A`` is the exact Hessian plus lam: with the Gauss-Newton matrix, the leverages of a
network that has fitted the noise are far too small. If the exact Hessian is not positive definite, the score is marked
as rough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vhat import bounds
from vhat.evidence.leave_one_out import LeftOut, leave_rows_out_of
from vhat.fit.decay_path import gradient_of
from vhat.fit.scoring import Scored, Scoring
from vhat.fit.splits import Table
from vhat.linalg.solvers.alike_rows import rows_alike
from vhat.linalg.solvers.dense import Factor
from vhat.models.problem import Curvature
from vhat.variance.noise import Noise

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["DenseScoring"]

_FEW_PARAMETERS = 0.1
"""Largest number of parameters per response for which leave-one-out is trusted without a minimum: the mean leverage by
the Gauss-Newton matrix is then below this number, so that no single row determines where a descent stops."""


@dataclass(frozen=True)
class DenseScoring(Scoring):
    """The scores of :class:`vhat.fit.scoring.Scoring` for fits that need not be at a minimum.

    Attributes:
        stationary: Relative gradient above which first-order leave-one-out is rough.
    """

    stationary: float = 1e-2

    def of_rows(self, fitted: FittedModel, test: Table) -> Scored:
        """Score held-out rows."""
        problem = fitted.problem
        inputs = problem.inputs(test.X)
        residual = test.y.reshape(len(test), -1) - problem.predict(inputs)
        # The curvature affects only the width, not the residuals: the Gauss-Newton matrix is accurate enough.
        smoother = _Smoother(fitted, "ggn", fitted.workspace.noise(self.noise, "ggn", self.seed))
        variance = smoother.variances(problem.gradients(inputs)).reshape(residual.shape)
        spread = np.sqrt(smoother.noise.level**2 + variance / problem.n)
        half_width = bounds.asymptotic(1.0, 1, spread, self.delta, df=smoother.noise.df)
        return Scored(self._winkler(residual, half_width))

    def of_left_out(self, fitted: FittedModel) -> Scored:
        """Score every training row by a fit without it; the score is rough if the fit is not near a minimum."""
        scored = super().of_left_out(fitted)
        if fitted.problem.p <= _FEW_PARAMETERS * fitted.problem.targets.size:
            return scored
        gradient = gradient_of(fitted)
        if fitted.workspace.choose_curvature("auto", quiet=True).reason:
            caveat = "the Hessian is indefinite where the descent stopped: leaving rows out to first order is rough."
        elif gradient > self.stationary:
            caveat = f"the descent stopped at a relative gradient of {gradient:.1e}: leaving rows out is rough."
        else:
            return scored
        return Scored(scored.rows, " ".join(filter(None, (scored.remark, caveat))), rough=True)

    def _left_out(self, fitted: FittedModel) -> tuple[LeftOut, Noise]:
        """Leave out every training row; return the noise as well."""
        curvature = fitted.workspace.choose_curvature("auto", quiet=True).curvature
        smoother = _Smoother(fitted, curvature, fitted.workspace.noise(self.noise, curvature, self.seed))
        return smoother.left_out(), smoother.noise


@dataclass(frozen=True, eq=False)
class _Smoother:
    """The linear map S from responses to fitted values, to first order about a fit.

    Attributes:
        fitted: The fit.
        curvature: The matrix ``A``: ``"hessian"`` or ``"ggn"``.
        noise: The noise of the responses.
    """

    fitted: FittedModel
    curvature: Curvature
    noise: Noise

    @cached_property
    def _factor(self) -> Factor:
        """The Cholesky factor L of ``A = LL'``, in scaled parameters."""
        prepared = self.fitted.workspace.own_solver(self.curvature)
        assert isinstance(prepared, Factor)  # networks of this kind are small
        return prepared

    @cached_property
    def _half(self) -> np.ndarray:
        """``J L^-T``, (n * K, p)."""
        problem = self.fitted.problem
        return self._factor._half(problem.gradients(problem.X))

    @cached_property
    def _middle(self) -> np.ndarray:
        """``L^-1 B L^-T``, (p, p)."""
        problem = self.fitted.problem
        deviation = problem.weights[:, None] * self.noise.values
        if problem.scaling is None and rows_alike(problem, self.noise.values):
            matrix = self.fitted.workspace.smoother_matrix(self.curvature)
            if matrix is not None:
                # One weight w and one noise sigma for all rows: B = w^2 sigma^2 J'J = w sigma^2 n G.
                return matrix * (problem.n * float(deviation[0, 0] * self.noise.values[0, 0]))
        scaled = self._half * deviation.reshape(-1, 1)
        found: np.ndarray = scaled.T @ scaled
        return found

    def variances(self, gradients: np.ndarray) -> np.ndarray:
        """Return ``n`` times the variance of predictions with the given gradients, (k, p), as (k,)."""
        half = self._factor._half(gradients)
        variances: np.ndarray = np.einsum("ij,ij->i", half @ self._middle, half) / self.fitted.problem.n
        return variances

    def left_out(self) -> LeftOut:
        """Leave out every training row."""
        problem = self.fitted.problem
        n = problem.n
        K = problem.outputs
        half = self._half.reshape(n, K, -1)
        a = _products(half, half) / n  # J_i A^-1 J_i' / n, the leverage blocks without weights
        all_rows = _products((self._half @ self._middle).reshape(n, K, -1), half)
        own = n * a * (problem.weights[:, None] * self.noise.values)[:, None, :]
        # The left-out row does not contribute to the variance of its prediction.
        squares = all_rows - own @ own.transpose(0, 2, 1)
        return leave_rows_out_of(problem, a, squares / n)


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the inner products between the outputs of each row: of two arrays (n, K, p), as (n, K, K)."""
    if left.shape[1] > 1:
        return left @ right.transpose(0, 2, 1)
    # With one output, n products of matrices would cost more in overhead than in multiplications.
    products: np.ndarray = np.einsum("ikp,ikp->ik", left, right)[:, :, None]
    return products
