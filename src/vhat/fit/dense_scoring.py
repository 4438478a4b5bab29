"""Scores of fits that are only candidates, in matrices of p x p numbers.

With ``S = J A^-1 J'W/n`` the rows are left out one by one as in :mod:`vhat.evidence.leave_one_out`. The sums over all
training rows that its variances need are one matrix, ``B = J' diag(w sigma)^2 J``, so that n rows cost n p^2 operations
and not n^2 p. ``A`` is the exact Hessian plus lam: by the Gauss-Newton matrix, a network that has fitted the noise has
leverages that are far too small. Where the exact one is not positive definite, the score is called rough.
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
"""Parameters, as a share of the responses, up to which leaving rows out is not doubted: by the Gauss-Newton matrix the
leverages of rows are below that share on average, so that no single row decides where a descent stops."""


@dataclass(frozen=True)
class DenseScoring(Scoring):
    """The scores of :class:`vhat.fit.scoring.Scoring` for fits that need not be at a minimum.

    Attributes:
        stationary: Relative gradient above which a row's absence is not told to first order.
    """

    stationary: float = 1e-2

    def of_rows(self, fitted: FittedModel, test: Table) -> Scored:
        """Score rows that the fit has not seen."""
        problem = fitted.problem
        inputs = problem.inputs(test.X)
        residual = test.y.reshape(len(test), -1) - problem.predict(inputs)
        # The residuals of these rows judge the fit; for its width alone the Gauss-Newton matrix will do.
        smoother = _Smoother(fitted, "ggn", fitted.workspace.noise(self.noise, "ggn", self.seed))
        variance = smoother.variances(problem.gradients(inputs)).reshape(residual.shape)
        spread = np.sqrt(smoother.noise.level**2 + variance / problem.n)
        half_width = bounds.asymptotic(1.0, 1, spread, self.delta, df=smoother.noise.df)
        return Scored(self._winkler(residual, half_width))

    def of_left_out(self, fitted: FittedModel) -> Scored:
        """Score every training row by the fit that would not have seen it; rough where the fit is no minimum."""
        scored = super().of_left_out(fitted)
        if fitted.problem.p <= _FEW_PARAMETERS * fitted.problem.targets.size:
            return scored
        gradient = gradient_of(fitted)
        if fitted.workspace.choose_curvature("auto", quiet=True).reason:
            doubt = "the Hessian is indefinite where the descent stopped: leaving rows out to first order is rough."
        elif gradient > self.stationary:
            doubt = f"the descent stopped at a relative gradient of {gradient:.1e}: leaving rows out is rough."
        else:
            return scored
        return Scored(scored.rows, " ".join(filter(None, (scored.remark, doubt))), rough=True)

    def _left_out(self, fitted: FittedModel) -> tuple[LeftOut, Noise]:
        curvature = fitted.workspace.choose_curvature("auto", quiet=True).curvature
        smoother = _Smoother(fitted, curvature, fitted.workspace.noise(self.noise, curvature, self.seed))
        return smoother.left_out(), smoother.noise


@dataclass(frozen=True, eq=False)
class _Smoother:
    """The smoother of a fit.

    Attributes:
        fitted: The fit.
        curvature: Which matrix ``A`` is.
        noise: The noise of its responses.
    """

    fitted: FittedModel
    curvature: Curvature
    noise: Noise

    @cached_property
    def _factor(self) -> Factor:
        """``A = LL'`` in the scaled basis."""
        found = self.fitted.workspace.own_solver(self.curvature)
        assert isinstance(found, Factor)  # networks of this kind are small
        return found

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
        """Return ``n`` times the variance of predictions with these gradients, (k, p) to (k,)."""
        half = self._factor._half(gradients)
        found: np.ndarray = np.einsum("ij,ij->i", half @ self._middle, half) / self.fitted.problem.n
        return found

    def left_out(self) -> LeftOut:
        """Leave out every training row."""
        problem = self.fitted.problem
        n, K = problem.n, problem.outputs
        half = self._half.reshape(n, K, -1)
        a = _products(half, half) / n
        together = _products((self._half @ self._middle).reshape(n, K, -1), half)
        own = n * a * (problem.weights[:, None] * self.noise.values)[:, None, :]
        # the row's own response is no longer there
        squares = together - own @ own.transpose(0, 2, 1)
        return leave_rows_out_of(problem, a, squares / n)


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the inner products of the outputs of each row, (n, K, p) twice to (n, K, K)."""
    if left.shape[1] > 1:
        return left @ right.transpose(0, 2, 1)
    # with one output, a product of matrices for each row costs more than its multiplications
    found: np.ndarray = np.einsum("ikp,ikp->ik", left, right)[:, :, None]
    return found
