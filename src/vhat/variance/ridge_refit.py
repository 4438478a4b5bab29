"""The ridge penalty of a linearisation: given, or chosen by how likely it makes rows that training did not fit.

With ``r_i`` the errors of the model at validation rows and ``V_lam(x_i)`` the weighted norm of its ridge refit, the
errors have about the variance ``sigma^2 (1 + V_lam(x_i)/n)`` if refits vary as much as the model errs beyond its noise.
The lam under which the errors are most likely, with sigma profiled, is taken. Where the errors do not grow with V, no
lam is better than an infinite one, under which refits do not vary at all, and the choice is said not to be identified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from vhat.linalg.solvers.jacobian_factors import jacobian_rows
from vhat.models.problem import Problem

__all__ = ["CHI_SQUARE", "RidgeRefit", "choose_ridge"]

_MOST_ROWS = 2000
"""Training rows, times outputs, that the path of lam is followed on: a random sample of them where there are more."""
_GRID = 61
"""Values of lam that are tried, from 1e-9 to 1e3 times the largest curvature."""
CHI_SQUARE = 3.84
"""95% quantile of a chi-square with one degree of freedom: twice the gain that chance gives to one more parameter."""


@dataclass(frozen=True, eq=False)
class RidgeRefit:
    """Whose refit a linearised model is, and how its penalty was found.

    Attributes:
        weight_decay: lam, (p,).
        rows: How many validation rows chose it; 0 where it was given.
        gain: Twice the log-likelihood of the validation rows over that of an infinite lam; NaN where it was given.
        at_end: Whether lam stands at an end of the grid.
        noise: The noise level of each output from validation rows, (K,); None where there were none.
        noise_rows: How many rows told the noise.
    """

    weight_decay: np.ndarray
    rows: int = 0
    gain: float = float("nan")
    at_end: bool = False
    noise: np.ndarray | None = None
    noise_rows: int = 0

    @property
    def identified(self) -> bool:
        """Whether the validation rows tell this lam from an infinite one, or it was given."""
        return self.rows == 0 or (self.gain >= CHI_SQUARE and not self.at_end)

    @property
    def told(self) -> str:
        """How lam was found, for a sentence."""
        low, high = float(self.weight_decay.min()), float(self.weight_decay.max())
        size = f"lam = {low:.3g}" if low == high else f"lam from {low:.3g} to {high:.3g}"
        if self.rows == 0:
            return f"{size} as given"
        if self.identified:
            return f"{size} by the likelihood of {self.rows:,} validation rows"
        return f"{size}, WHICH {self.rows:,} validation rows DO NOT IDENTIFY"


def choose_ridge(problem: Problem, inputs: object, y: np.ndarray, seed: int = 0) -> RidgeRefit:
    """Choose the penalty by the profiled likelihood of validation rows.

    The penalty is a multiple of the model's own weight decay, or the same for all parameters where some have none.

    Args:
        problem: The training problem, at the parameters of the model.
        inputs: Checked inputs of the validation rows.
        y: Their responses, (m, K).
        seed: Draws the training rows on which the path is followed.
    """
    decay = problem.numpy(problem.decay)
    shape = decay / decay.mean() if np.all(decay > 0) else np.ones(problem.p)
    spectrum, parts = _spectrum(problem, inputs, np.sqrt(shape), seed)
    # A model with a variance head: errors in units of its own noise, whose level is profiled all the same.
    own = problem.own_noise(inputs)
    unit = np.ones(1) if own is None else own
    errors = (problem.predict(inputs) - y) / unit
    # The columns of J are scaled by the shape, so that one number is the whole penalty.
    grid = spectrum.max() * np.logspace(-9, 3, _GRID)
    found = [_profiled(errors, _norms(parts, spectrum, lam, errors.shape) / problem.n / unit**2) for lam in grid]
    likelihood = np.array([value for value, _ in found])
    best = int(np.argmax(likelihood))
    gain = 2.0 * (likelihood[best] - _profiled(errors, np.zeros_like(errors))[0])
    return RidgeRefit(
        weight_decay=grid[best] * shape,
        rows=len(errors),
        gain=float(gain),
        at_end=best in (0, len(grid) - 1),
        noise=found[best][1] * _level_of_rows(problem),
        noise_rows=len(errors),
    )


def _level_of_rows(problem: Problem) -> np.ndarray:
    """Return the root mean square of the training rows' noise as the model itself predicts it, (K,); else ones."""
    own = problem.own_noise(problem.X)
    return np.ones(problem.outputs) if own is None else np.sqrt(np.mean(own**2, axis=0))


def _spectrum(problem: Problem, inputs: object, root: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of ``J'CJ/n`` in the units of the penalty, and the squares of gradients along them.

    Args:
        problem: The training problem.
        inputs: Checked inputs of the validation rows.
        root: The root of the shape of the penalty, (p,).
        seed: Draws training rows where there are many.

    Returns:
        The eigenvalues, (r,), and ``(w_j'g)^2`` for each validation gradient, (m * K, r).
    """
    most = max(1, _MOST_ROWS // problem.outputs)
    rows = np.arange(problem.n)
    if problem.n > most:
        rows = np.sort(np.random.default_rng(seed).choice(problem.n, size=most, replace=False))
    part = problem.rows(rows)
    J = jacobian_rows(part, 0, part.n, np.empty((part.n * part.outputs, part.p)))
    weights = np.sqrt(np.maximum(part.loss_derivatives.own_curvature, 0.0).reshape(-1, 1) / part.n)
    _, singular, directions = scipy.linalg.svd(weights * J / root, full_matrices=False)
    g = problem.numpy(problem.gradients(inputs)) / root
    return singular**2, (g @ directions.T) ** 2


def _norms(parts: np.ndarray, spectrum: np.ndarray, lam: float, shape: tuple[int, ...]) -> np.ndarray:
    """Return ``V_lam`` of each validation row and output: ``sum_j (w_j'g)^2 s_j / (s_j + lam)^2``."""
    found: np.ndarray = (parts @ (spectrum / (spectrum + lam) ** 2)).reshape(shape)
    return found


def _profiled(errors: np.ndarray, share: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the log-likelihood of errors with variances ``sigma_k^2 (1 + share)``, sigma profiled, and sigma (K,)."""
    spread = 1.0 + share
    variance = np.mean(errors**2 / spread, axis=0)
    value = -0.5 * float(np.sum(np.log(spread)) + len(errors) * np.sum(np.log(variance)))
    return value, np.sqrt(variance)
