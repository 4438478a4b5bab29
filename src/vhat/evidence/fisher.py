"""The Fisher information of a fit, and the sandwich matrix of the weighted norm compared with its inverse.

With ``I = J'J/n``, ``H = I + R`` and ``M = (H + Lam)^-1 I (H + Lam)^-1``, the reported ratio is the largest
``x'Mx / x'I^-1x``. With ``I = F F'`` it is the square of the largest eigenvalue of ``F'(H + Lam)^-1 F``, which needs no
inverse of I: directions that do not change any training prediction count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

from vhat.bounds import Damping, fisher_damping
from vhat.checks import check_count
from vhat.errors import InputError, MemoryBudgetError, NotPositiveDefinite
from vhat.linalg.memory import in_words
from vhat.models.problem import Problem
from vhat.progress import bar
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["FisherInformation", "find_fisher"]

_MATRICES = 10
"""Number of p x p matrices in memory at once: I, H, R, the Hessian of a row, factors and the workspace of LAPACK."""


@dataclass(frozen=True)
class FisherInformation:
    """The Fisher information at the fitted parameters, a damping, and the sandwich matrix beside its inverse.

    Attributes:
        information: ``I = J'J/n``, (p, p), in the order of the flat vector. ``n I / noise^2`` is the information of the
            whole sample in the sense of maximum likelihood.
        noise: Standard deviation of y that was used: the largest of all rows where they differ.
        noise_source: Where it comes from.
        curvature_bound: C, the largest ``|hess f(x_i)|`` in operator norm over the training rows.
        smallest_eigenvalue: The smallest eigenvalue of ``R = H - I``, the residuals' part of the Hessian.
        damping: ``lam_hat = alpha + |min(0, smallest eigenvalue)|`` with its parts.
        ratio: The largest ``x'Mx / x'I^-1x`` with M at the decay of the training; NaN where ``H + lam`` is not positive
            definite. At most 1 where ``R + lam`` is positive; 1 for a linear model without decay.
        damped_ratio: The same with ``lam_hat`` in place of the decay. It is at most 1, because ``R + lam_hat`` has no
            negative eigenvalue.
        curvature: The curvature in M at the decay of the training.
        told: What was computed, and its limits, in a sentence.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
        >>> found = fitted.fisher()
        >>> found.information.shape, bool(0.9 < found.ratio < 1.1), bool(found.damped_ratio <= 1)
        ((2, 2), True, True)
    """

    information: np.ndarray = field(repr=False)
    noise: float
    noise_source: str
    curvature_bound: float
    smallest_eigenvalue: float
    damping: Damping
    ratio: float
    damped_ratio: float
    curvature: str
    told: str = field(repr=False)


def find_fisher(
    work: Workspace, *, noise: Any, curvature: str, curvature_bound: float | None, seed: int
) -> FisherInformation:
    """Compute the information, the damping and both ratios.

    Args:
        work: The fitted model.
        noise: The noise as the user gave it; None to estimate it.
        curvature: The curvature in M at the decay of the training, as the user gave it.
        curvature_bound: C where it is known; None to compute it from the training rows.
        seed: Seed of random probes of the degrees of freedom.

    Raises:
        InputError: For another loss than the half squared error, sample weights, or several outputs.
        MemoryBudgetError: When some p x p matrices do not fit.
    """
    check_count("seed", seed)
    # The objective is the same function of the parameters in the units of the model, where it is the paper's.
    problem = work.problem.in_model_units()
    _require_setting(problem)
    _require_memory(problem)
    decay = np.diag(problem.numpy(problem.decay))
    hessian = work.matrix("hessian") - decay
    information = work.matrix("ggn") - decay
    residual_part = np.zeros_like(hessian) if problem.linear else hessian - information
    smallest = float(scipy.linalg.eigvalsh(residual_part, subset_by_index=[0, 0])[0])
    bound = _largest_hessian(problem) if curvature_bound is None else float(curvature_bound)

    chosen = _chosen(work, curvature)
    level = work.noise(noise, "ggn" if chosen is None else chosen.curvature, seed)
    unit = 1.0 if work.problem.scaling is None else float(work.problem.scaling.unit[0])
    sigma = float(np.max(level.values))
    damping = fisher_damping(sigma / unit, bound, problem.n, problem.p, smallest)

    root = _root(information)
    damped = hessian + damping.value * np.eye(problem.p)
    ratio = np.nan if chosen is None else _ratio(work.matrix(chosen.curvature), root)
    return FisherInformation(
        information=information,
        noise=sigma,
        noise_source=level.source,
        curvature_bound=bound,
        smallest_eigenvalue=smallest,
        damping=damping,
        ratio=ratio,
        damped_ratio=_ratio(damped, root),
        curvature="none" if chosen is None else chosen.curvature,
        told=_told(problem, damping, ratio, given=curvature_bound is not None),
    )


def _require_setting(problem: Problem) -> None:
    """Refuse settings for which the comparison is not stated."""
    square = problem.loss_derivatives.square
    weighted = bool(np.any(problem.numpy(problem.weights) != 1))
    faults = {
        "another loss": not square,
        "sample weights": weighted,
        f"{problem.outputs} outputs": problem.outputs > 1,
    }
    found = [fault for fault, there in faults.items() if there]
    if found:
        raise InputError(
            "fisher() compares matrices of the half squared error of one output, all rows alike; this model has "
            f"{' and '.join(found)}. fitted.covariance() is the sandwich of any loss."
        )


def _require_memory(problem: Problem) -> None:
    need = _MATRICES * 8 * problem.p**2
    if need > problem.memory:
        raise MemoryBudgetError(
            f"fisher() needs {_MATRICES} matrices of {problem.p:,} x {problem.p:,}, {in_words(need)}; the budget is "
            f"{in_words(problem.memory)}. It is for models of few parameters: fit some of them (parameters=), or raise "
            "memory=."
        )


def _chosen(work: Workspace, curvature: str) -> Chosen | None:
    """Return the curvature of M at the decay of the training; None where none is positive definite."""
    try:
        return work.choose_curvature(curvature, quiet=True)
    except NotPositiveDefinite:
        return None


def _largest_hessian(problem: Problem) -> float:
    """Return the largest ``|hess f(x_i)|`` in operator norm over the training rows, each formed by p products.

    The problem of a single row whose residual ``f - y`` is 1 has ``H - J'J = hess f(x_i)``.
    """
    if problem.linear:
        return 0.0
    identity = problem.native(np.eye(problem.p))
    largest = 0.0
    with bar("Hessians of rows", problem.n) as advance:
        for row in range(problem.n):
            alone = problem.rows(np.array([row]))
            alone = alone.with_targets(alone.fitted_values - 1.0)
            second = problem.numpy(alone.product(identity, "hessian") - alone.product(identity, "ggn"))
            # The Frobenius norm bounds the operator norm: below the largest so far, no eigenvalues are needed.
            if np.linalg.norm(second) > largest:
                values = scipy.linalg.eigvalsh((second + second.T) / 2)
                largest = max(largest, float(np.max(np.abs(values))))
            advance("")
    return largest


def _root(information: np.ndarray) -> np.ndarray:
    """Return F with ``I = F F'``; negative eigenvalues are rounding."""
    values, vectors = scipy.linalg.eigh(information)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _ratio(A: np.ndarray, root: np.ndarray) -> float:
    """Return the largest ``x'Mx / x'I^-1x``. Where A vanishes, so does I, and the pseudo-inverse leaves it out."""
    T = root.T @ scipy.linalg.pinvh(A) @ root
    return float(np.max(np.abs(scipy.linalg.eigvalsh((T + T.T) / 2)))) ** 2


def _told(problem: Problem, damping: Damping, ratio: float, *, given: bool) -> str:
    decay = problem.numpy(problem.decay)
    lam = f"{decay.max():.3g}" if np.ptp(decay) == 0 else f"{decay.min():.3g} to {decay.max():.3g}"
    how = "as it was given" if given else f"the largest operator norm over {problem.n:,} training rows, each formed"
    fault = "" if np.isfinite(ratio) else " H + lam of the training is not positive definite: it has no M."
    return (
        f"All matrices are at the fitted parameters, where the theory has the true ones; C is {how} there, and not a "
        f"bound elsewhere. The training decay is {lam}; the damping {damping.value:.3g} would move the minimum, so "
        f"that it belongs to no interval of this fit.{fault}"
    )
