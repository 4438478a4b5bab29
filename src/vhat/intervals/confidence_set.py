"""Wald's confidence set: an ellipsoid of parameter vectors around the fitted one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from scipy.special import chdtri, fdtri

from vhat.checks import as_numbers, check_count, check_delta
from vhat.errors import InputError, NotPositiveDefinite
from vhat.evidence.audit import Verdict
from vhat.intervals.guarantee import assumed_minimum, noise_law
from vhat.intervals.parameter_covariance import Covariance, parameter_covariance
from vhat.intervals.prepare import at_minimum, warn_of_weights
from vhat.level import level_text
from vhat.variance.workspace import Workspace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ConfidenceSet", "Ellipse", "find_set"]

_SINGULAR = 1e-13
"""Smallest eigenvalue of the correlation matrix below which it has no inverse in float64, for each parameter."""


class _Ellipsoid:
    """The points u with ``(u - center)' covariance^-1 (u - center) <= radius2``."""

    center: np.ndarray
    covariance: np.ndarray
    radius2: float

    @cached_property
    def _whitener(self) -> tuple[np.ndarray, np.ndarray]:
        """Standard deviations, and the Cholesky factor of the correlations, which have no units."""
        deviation = np.sqrt(np.diag(self.covariance))
        correlation = self.covariance / np.outer(deviation, deviation)
        return deviation, scipy.linalg.cholesky(correlation, lower=True)

    def distance2(self, theta: Any) -> np.ndarray:
        """Return ``(theta - center)' covariance^-1 (theta - center)``, the squared distance in standard deviations.

        Args:
            theta: One point, (p,), or several, (k, p).
        """
        points = as_numbers("theta", theta)
        p = len(self.center)
        if points.ndim not in (1, 2) or points.shape[-1] != p:
            raise InputError(f"theta has shape {points.shape}; give ({p},), the flat vector, or (k, {p}).")
        deviation, factor = self._whitener
        white = scipy.linalg.solve_triangular(factor, ((points - self.center) / deviation).T, lower=True)
        return np.asarray(np.sum(white**2, axis=0))

    def contains(self, theta: Any) -> bool | np.ndarray:
        """Return whether points are in the set: a bool for (p,), an array for (k, p)."""
        inside = self.distance2(theta) <= self.radius2
        return bool(inside) if inside.ndim == 0 else inside


@dataclass(frozen=True, eq=False)
class Ellipse(_Ellipsoid):
    """The projection of an ellipsoid on two parameters.

    Attributes:
        center: The two fitted parameters.
        covariance: Their covariance, (2, 2).
        radius2: The largest squared distance, in standard deviations.
        indices: Their positions in the flat vector.
    """

    center: np.ndarray
    covariance: np.ndarray
    radius2: float
    indices: tuple[int, int]

    def boundary(self, count: int = 200) -> np.ndarray:
        """Return points on the boundary, (count, 2), the last one equal to the first."""
        check_count("count", count, least=2)
        angle = np.linspace(0.0, 2 * np.pi, count)
        deviation, factor = self._whitener
        circle = np.stack([np.cos(angle), np.sin(angle)])
        return np.asarray(self.center + np.sqrt(self.radius2) * deviation * (factor @ circle).T)


@dataclass(frozen=True, eq=False, repr=False)
class ConfidenceSet(_Ellipsoid):
    """An ellipsoid of parameter vectors: ``(theta - center)' covariance^-1 (theta - center) <= radius2``.

    Attributes:
        center: The fitted parameters as a flat vector, (p,).
        covariance: Their first-order covariance over the noise, (p, p).
        radius2: The quantile: of chi-square with p degrees of freedom, or p times that of F where the noise was
            estimated.
        delta: Probability of a miss.
        df: Degrees of freedom of the estimated noise; None where it was given.
        curvature: ``"hessian"`` or ``"ggn"``.
        guarantee: What the set covers and what it assumes.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
        >>> region = fitted.confidence_set(0.05)
        >>> region.contains([2.0, 1.0]), region.contains([2.0, 1.2])
        (True, False)
        >>> region.project(0, 1).boundary().shape
        (200, 2)
    """

    center: np.ndarray
    covariance: np.ndarray
    radius2: float
    delta: float
    df: float | None
    curvature: str
    guarantee: str = field(default="")

    def __repr__(self) -> str:
        law = f"chi-square({len(self.center)})" if self.df is None else f"F({len(self.center)}, {self.df:.3g})"
        return f"ConfidenceSet({level_text(self.delta)}, p={len(self.center)}, {law}, {self.curvature})"

    def project(self, i: int, j: int, *, alone: bool = False) -> Ellipse:
        """Return the ellipse of two parameters.

        Args:
            i: Position of one in the flat vector.
            j: Position of the other.
            alone: False for the projection of the whole set, which holds for all pairs at once; True for a confidence
                set of these two alone, which is smaller.

        Raises:
            InputError: For positions that are not there, or the same twice.
        """
        p = len(self.center)
        for name, value in (("i", i), ("j", j)):
            check_count(name, value)
            if value >= p:
                raise InputError(f"{name}={value!r} is not a position in the flat vector of {p} parameters.")
        if i == j:
            raise InputError(f"i and j are both {i}: give two parameters.")
        pair = np.array([i, j])
        radius2 = _quantile(2, self.delta, self.df) if alone else self.radius2
        return Ellipse(self.center[pair], self.covariance[np.ix_(pair, pair)], radius2, (int(i), int(j)))

    def plot(self, i: int = 0, j: int = 1, ax: Axes | None = None, *, alone: bool = False) -> Axes:
        """Draw the ellipse of two parameters; see :meth:`project`."""
        from vhat import plot

        return plot.ellipse(self.project(i, j, alone=alone), ax, label=level_text(self.delta))


def find_set(work: Workspace, delta: float, *, noise: Any, curvature: str, seed: int) -> ConfidenceSet:
    """Make the set.

    Args:
        work: The fitted model.
        delta: Probability of a miss.
        noise: The noise as the user gave it; None to estimate it.
        curvature: As the user gave it.
        seed: Seed of random probes.

    Raises:
        NotPositiveDefinite: When the noise does not move the parameters in every direction.
    """
    delta = check_delta(delta)
    if noise is None:
        warn_of_weights(work)
    found = parameter_covariance(work, noise, curvature, seed)
    _require_full_rank(found.matrix, work.problem.n * work.problem.outputs)
    stationary = at_minimum(work, found.noise, found.chosen, seed).verdict
    df = None if found.noise.df is None else float(np.min(found.noise.df))
    p = work.problem.p
    return ConfidenceSet(
        center=work.problem.numpy(work.problem.theta).copy(),
        covariance=found.matrix,
        radius2=_quantile(p, delta, df),
        delta=delta,
        df=df,
        curvature=found.chosen.curvature,
        guarantee=_sentence(work, found, delta, df, stationary),
    )


def _quantile(p: int, delta: float, df: float | None) -> float:
    """Return the quantile of ``|z|^2`` in p dimensions, its variance known or estimated."""
    return float(chdtri(p, delta)) if df is None else p * float(fdtri(p, df, 1 - delta))


def _require_full_rank(covariance: np.ndarray, responses: int) -> None:
    """Refuse a covariance that has no inverse."""
    p = len(covariance)
    deviation = np.sqrt(np.diag(covariance))
    singular = bool(np.any(deviation == 0))
    if not singular:
        correlation = covariance / np.outer(deviation, deviation)
        singular = bool(scipy.linalg.eigvalsh(correlation, subset_by_index=[0, 0])[0] < _SINGULAR * p)
    if singular:
        raise NotPositiveDefinite(
            f"the noise of {responses} responses does not move the {p} parameters in every direction, so that no "
            "ellipsoid holds them. Ask for intervals of predictions or of functionals instead: fitted.interval, "
            "fitted.functional."
        )


def _level_is_sound(work: Workspace, found: Covariance) -> bool:
    """Whether nothing but the noise is random: its level is known or independent of the fit, all else was given."""
    known = not found.noise.estimated
    if not known:
        one = found.noise.level.size == 1
        known = found.noise.independent and one and work.weights_match(found.noise)
    held = bool(getattr(work.problem.autodiff, "held_fixed", False))
    return known and not held and not work.decay_from_data and work.refit is None


def _sentence(work: Workspace, found: Covariance, delta: float, df: float | None, stationary: Verdict) -> str:
    """Compose the guarantee."""
    p = work.problem.p
    law = f"chi-square with {p} degrees of freedom" if df is None else f"F with {p} and {df:.3g} degrees of freedom"
    linear = work.problem.linear and work.problem.loss_derivatives.square
    if linear and _level_is_sound(work, found):
        shape = "exact for a model linear in its parameters"
    elif linear:
        shape = "which the noise level, or a decay or features that came from these responses, make approximate"
    else:
        shape = "right only as the noise becomes small"
    penalised = bool(np.any(work.problem.numpy(work.problem.decay) > 0))
    subject = "the mean of the fitted parameters over fresh noise"
    truth = (
        "not the true parameters, from which weight decay shrinks it away"
        if penalised
        else "near the true parameters where the model contains the truth"
    )
    assumed = [
        "one minimum that moves continuously with the noise",
        f"{noise_law(work.refit)}, its level {found.noise.source}",
    ]
    if found.chosen.curvature == "ggn" and not linear:
        assumed.append("Gauss-Newton in place of the exact Hessian")
    if getattr(work.problem.autodiff, "held_fixed", False):
        assumed.append(
            "that the parameters which are held fixed were not trained on these responses (if they were, the set may "
            "be far too small)"
        )
    if stationary != "holds":
        assumed.insert(0, assumed_minimum(stationary))
    return (
        f"Nominal {level_text(delta)} for {subject}, {truth}, by the covariance to first order and {law}, {shape}; "
        f"assumed: {', '.join(assumed)}. Wald sets change with the parameterisation."
    )
