"""Bounds for special settings: ridge regression, networks with bounded weights, damped Hessians."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.bounds.formulas import check_rows, level_of, nonnegative, positive, theorem_at, whole
from vhat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Damping", "fisher_damping", "lipschitz_gap", "lipschitz_network", "ridge"]


def ridge(
    x: ArrayLike, X: ArrayLike, lam: float, noise: float, delta: float, *, theta_star: ArrayLike | None = None
) -> np.ndarray:
    """Half width around a ridge regression's prediction, bias included.

    With ``S = X'X / n + lam I``::

        half width = lam |x' S^-1 theta*| + noise sqrt((pi^2 / 2) l / n) sqrt(x' S^-1 x)

    Validity: proved. V does not depend on the noise, so that v = c = 0, and ``x' S^-1 x`` is at least ``V =
    x' S^-1 (X'X / n) S^-1 x``. `tight` at that V is narrower and proved too. The bias needs the true parameters: with
    an estimate of theta_star the bias term is a heuristic, and without theta_star the interval is for the expected
    prediction only.

    Args:
        x: Test inputs, (d,) or (points, d).
        X: Training inputs, (n, d).
        lam: Decay in ``1/(2n) |X theta - y|^2 + lam/2 |theta|^2``; not negative.
        noise: Standard deviation of the noise; positive.
        delta: Probability of a miss, in (0, 1).
        theta_star: The true parameters, (d,), or None to leave the bias out.

    Returns:
        The half widths, one per test input.

    Raises:
        InputError: For shapes that do not fit, values that are not finite, or a singular S.

    Examples:
        >>> X = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
        >>> ridge([[1.0, 1.0], [1.0, -1.0]], X, 0.01, 0.1, 0.05, theta_star=[1.0, 2.0]).round(4)
        array([0.3763, 0.6237])
    """
    points = np.asarray(x, dtype=float)
    rows = np.asarray(X, dtype=float)
    nonnegative("lam", lam)
    if rows.ndim != 2 or points.ndim not in (1, 2) or points.shape[-1] != rows.shape[1]:
        raise InputError(f"x has shape {points.shape} and X {rows.shape}; give (d,) or (points, d), and (n, d).")
    if not (np.isfinite(points).all() and np.isfinite(rows).all() and np.isfinite(lam)):
        raise InputError("x, X or lam has NaN or infinite values. Remove or repair them.")
    n, d = rows.shape
    try:
        factor = np.linalg.cholesky(rows.T @ rows / n + lam * np.eye(d))
    except np.linalg.LinAlgError:
        raise InputError(f"X'X/n + lam I is singular with lam={lam!r}. Give a positive lam, or more rows.") from None
    # With S = L L', x' S^-1 x is the square of L^-1 x.
    whitened = np.linalg.solve(factor, np.atleast_2d(points).T)
    half_width = theorem_at(check_rows(np.sum(whitened**2, axis=0), n, noise), level_of(delta))
    if theta_star is not None:
        truth = np.asarray(theta_star, dtype=float)
        if truth.shape != (d,):
            raise InputError(f"theta_star has shape {truth.shape}; X has {d} columns, so give ({d},).")
        half_width = half_width + lam * np.abs(np.linalg.solve(factor, truth) @ whitened)
    return np.asarray(half_width.reshape(points.shape[:-1]))


def lipschitz_network(objective: ArrayLike, lam: ArrayLike, layers: int) -> np.ndarray:
    """Bound on a network's Lipschitz constant in its input, from the value of its penalised objective.

    ::

        Lip f <= (2 L_lam / (lam K))^(K/2)

    because ``|theta|^2 <= 2 L_lam / lam``, and by the inequality of arithmetic and geometric means for the product of K
    operator norms. (The paper leaves out the 2. Its inequality fails for a chain of equal weights that fits exactly.)

    Validity: proved for K dense layers with activations of slope at most 1: ReLU and tanh, but not GELU (1.13) or SiLU
    (1.10).

    Args:
        objective: ``L_lam = 1/(2n) sum (f - y)^2 + lam/2 |theta|^2`` at the parameters; not negative.
        lam: Decay; positive.
        layers: K, the number of weight matrices.

    Returns:
        The bounds.

    Raises:
        InputError: For a negative objective, a lam that is not positive or fewer than one layer.

    Examples:
        >>> f"{lipschitz_network(0.02, 1e-3, 2):.1f}"
        '20.0'
    """
    K = whole("layers", layers)
    value = nonnegative("objective", objective)
    decay = positive("lam", lam)
    with np.errstate(over="ignore"):
        return np.asarray((2 * value / (decay * K)) ** (K / 2))


def lipschitz_gap(objective_bound: ArrayLike, lam: ArrayLike, layers: int) -> np.ndarray:
    """Bound on the Lipschitz constant of the gap ``f(x; theta_hat) - E f(x; theta_hat)`` of a network.

    ::

        Lip gap <= 2 (2 C / (lam K))^(K/2)

    Validity: proved if ``L_lam(theta_hat) <= C`` for all noise. Gaussian responses are unbounded, so that the objective
    alone gives no such C. A C that holds with high probability bounds only the first half of the sum, that of the
    fitted model; the other half is an expectation.

    Args:
        objective_bound: C, the bound on the penalised objective at the minimum; not negative.
        lam: Decay; positive.
        layers: K, the number of weight matrices.

    Returns:
        The bounds.

    Raises:
        InputError: As in `lipschitz_network`.

    Examples:
        >>> f"{lipschitz_gap(0.02, 1e-3, 2):.1f}"
        '40.0'
    """
    return np.asarray(2 * lipschitz_network(objective_bound, lam, layers))


@dataclass(frozen=True)
class Damping:
    """The damping of the Fisher comparison, with its two parts.

    Attributes:
        value: ``alpha + |min(0, smallest eigenvalue of R)|``.
        alpha: The deterministic part.
        scale: ``b = 2 noise C / sqrt(n)``, the size of R's fluctuation.
    """

    value: float
    alpha: float
    scale: float


def fisher_damping(noise: float, curvature_bound: float, n: float, p: int, smallest_eigenvalue: float) -> Damping:
    """Damping at which the expected sandwich matrix is compared with the inverse Fisher information.

    With ``b = 2 noise C / sqrt(n)`` and R the residual part of the Hessian::

        alpha = b sqrt(max(1, ln(n sqrt(2 p) / b))),        value = alpha + |min(0, lambda_min(R))|

    Then ``E M(theta*) <= I(theta*)^-1 + I / n``. This requires ``alpha >= b sqrt(ln(n sqrt(2 p) / alpha))``, which
    holds for this alpha because it is at least b. It does not hold for the published alpha.

    Validity: proved at the true parameters, for |hess f(x_i)| <= C in operator norm. With a damping other than the
    decay of the training, the interval does not belong to the minimum that was found.

    Args:
        noise: Standard deviation of the noise; positive.
        curvature_bound: C, not negative.
        n: Number of training rows.
        p: Number of parameters.
        smallest_eigenvalue: The smallest eigenvalue of R.

    Returns:
        The damping and its parts.

    Raises:
        InputError: For arguments out of range.

    Examples:
        >>> damping = fisher_damping(0.1, 1.0, 100, 50, smallest_eigenvalue=-0.3)
        >>> f"{damping.value:.4f} = {damping.alpha:.4f} + 0.3"
        '0.3658 = 0.0658 + 0.3'
    """
    rows = float(positive("n", n))
    sigma = float(positive("noise", noise))
    b = 2 * sigma * float(nonnegative("curvature_bound", curvature_bound)) / np.sqrt(rows)
    if not np.isfinite(smallest_eigenvalue):
        raise InputError(f"smallest_eigenvalue={smallest_eigenvalue!r} is not a finite number.")
    count = rows * np.sqrt(2 * whole("p", p))
    alpha = b * np.sqrt(max(1.0, np.log(count) - np.log(b))) if b > 0 else 0.0
    return Damping(value=float(alpha + max(0.0, -smallest_eigenvalue)), alpha=float(alpha), scale=float(b))
