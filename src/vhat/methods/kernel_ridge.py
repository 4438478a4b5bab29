"""Kernel ridge regression, and the band that a bound on the truth's norm gives."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from vhat import bounds
from vhat.checks import as_numbers, check_choice, check_finite
from vhat.errors import InputError, MissingPackage, SelectionWarning, outside
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import check_positive
from vhat.fit.splits import check_table
from vhat.intervals.interval import Interval
from vhat.methods.base.kernel_smoother import At, KernelFit, at_once, check_bound, check_rows, fit_kernel
from vhat.methods.base.method import (
    Claim,
    Limits,
    Target,
    check_noise,
    check_question,
    make_interval,
    widened,
)
from vhat.variance.noise import Noise

__all__ = ["FittedKernelRidge", "KernelRidge", "matern"]

_GRID = np.logspace(-9, 2, 45)
"""Decays that are tried, in units of the mean eigenvalue of K/n."""


@dataclass(frozen=True)
class KernelRidge:
    """Regression with a Matern kernel in place of the network; a band from a bound on the truth's norm.

    With ``|f*| <= B`` in the space of the kernel, the error at x is at most ``B power(x)`` of bias and
    ``sigma |w(x)|`` times a quantile of noise (see :mod:`vhat.methods.base.kernel_smoother`). The recipe is not used.
    The functions of that space tend to zero away from the data, so a norm belongs to an origin: subtract from y what
    you would predict where there are no data.

    Attributes:
        length_scale: The kernel's, in units of the inputs.
        nu: Its smoothness: 0.5, 1.5, 2.5 or infinity (the Gaussian kernel), or any other positive number.
        weight_decay: lam of ``1/(2n) sum_i (f(x_i) - y_i)^2 + lam/2 |f|^2``; None chooses it by leave-one-out.
        norm: B, in units of y; None plugs in the norm of the fit, which is a heuristic and errs low.
        band: ``"pointwise"``: bias plus the quantile of the noise, at each point alone; ``"uniform"``: the
            self-normalised band ``spread(x) (B + sigma sqrt((ln det(I + K/(n lam)) + 2 ln(1/delta)) / (n lam)))``, at
            all points at once.
        noise: The standard deviation of y; None estimates it from the residuals.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> fit = KernelRidge(norm=3.0, noise=0.1).fit(None, x, x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'kernel ridge'
    """

    length_scale: float = 1.0
    nu: float = 1.5
    weight_decay: float | None = None
    norm: float | None = None
    band: Literal["pointwise", "uniform"] = "pointwise"
    noise: float | None = None

    def __post_init__(self) -> None:
        check_positive("length_scale", self.length_scale)
        if self.nu != math.inf:
            check_positive("nu", self.nu)
        if self.weight_decay is not None:
            check_positive("weight_decay", self.weight_decay)
        check_bound("norm", self.norm)
        check_choice("band", self.band, ("pointwise", "uniform"))
        check_noise(self.noise)

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> FittedKernelRidge:  # noqa: ARG002
        """Fit the kernel regression.

        Args:
            recipe: Not used: there is no network.
            X: Rows, (n, columns).
            y: Responses, (n,) or (n, outputs).
            seed: Not used: nothing is random.

        Raises:
            InputError: When there are fewer than two rows, or the data cannot be used.
            MissingPackage: When scikit-learn, whose kernel it is, is not installed.
        """
        table = check_table(X, y)
        rows = check_rows("X", table.X)
        if len(rows) < 2:
            raise InputError("KernelRidge needs at least two rows.")
        gram = matern(rows, rows, self.length_scale, self.nu)
        found = fit_kernel(gram, table.y, 1.0 if self.weight_decay is None else self.weight_decay)
        if self.weight_decay is None:
            found = best_left_out(found)
        return FittedKernelRidge(self, found, rows, table.y.ndim == 1)


def matern(a: np.ndarray, b: np.ndarray, length_scale: float, nu: float) -> np.ndarray:
    """Return the Matern kernel of variance one between rows, (len(a), len(b)).

    Raises:
        MissingPackage: When scikit-learn is not installed.
    """
    try:
        from sklearn.gaussian_process.kernels import Matern
    except ImportError as error:
        raise MissingPackage(
            "the Matern kernel is scikit-learn's, which is not installed. Install it: pip install scikit-learn."
        ) from error
    return np.asarray(Matern(length_scale=length_scale, nu=nu)(a, b))


def best_left_out(found: KernelFit) -> KernelFit:
    """Return the fit under the decay whose leave-one-out residuals are smallest, each output in its own unit."""
    unit = np.sum((found.y - found.y.mean(axis=0)) ** 2, axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    decays = _GRID * float(found.values.mean()) / found.n
    misses = [np.sum(replace(found, decay=float(each)).left_out ** 2 / unit) for each in decays]
    best = int(np.argmin(misses))
    if best in (0, len(decays) - 1):
        warnings.warn(
            f"leave-one-out prefers the {'largest' if best else 'smallest'} weight decay that was tried, "
            f"{decays[best]:.1e}. Choose length_scale or weight_decay yourself.",
            SelectionWarning,
            stacklevel=outside(),
        )
    return replace(found, decay=float(decays[best]))


@dataclass(frozen=True, eq=False)
class FittedKernelRidge:
    """A fitted kernel regression.

    Attributes:
        options: The options.
        found: The fit.
        X: The training inputs.
        squeeze: Whether y was (n,).
    """

    options: KernelRidge
    found: KernelFit
    X: np.ndarray = field(repr=False)
    squeeze: bool

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute the band at every point.

        Args:
            x: Test inputs, (points, columns).
            delta: Probability of a miss.
            target: ``"mean"`` for the truth, ``"observation"`` for a new response.

        Raises:
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        delta = check_question("KernelRidge", delta, target)
        points = check_rows("x", as_numbers("x", x), self.X.shape[1])
        check_finite("x", points)
        at = self.found.at(matern(points, self.X, self.options.length_scale, self.options.nu), np.ones(len(points)))
        noise = self.found.noise(self.options.noise)
        norm = self.found.norm if self.options.norm is None else np.full(self.found.y.shape[1], self.options.norm)
        bias = (at.power if self.options.band == "pointwise" else at.spread)[:, None] * norm
        half = bias + self._noise_share(at, noise, delta)
        limits = Limits(self._shaped(at.center - half), self._shaped(at.center + half))
        claim = self._claim(noise, norm)
        together = self.options.band == "uniform" and target == "mean"
        return make_interval(
            claim,
            self._shaped(at.center),
            widened(limits, noise, delta, bias=self._shaped(bias)) if target == "observation" else limits,
            delta=delta,
            target=target,
            standard_error=self._shaped(at.response[:, None] * noise.level),
            noise=noise,
            x=points,
            guarantee=at_once(claim.sentence(delta, target, noise)) if together else "",
        )

    def _noise_share(self, at: At, noise: Noise, delta: float) -> np.ndarray:
        """What noise adds to the half widths, (m, K); at least its quantile at each point, in either band."""
        if self.options.band == "pointwise":
            quantile = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df)
            return np.asarray(at.response[:, None] * (quantile * noise.level))
        found = self.found
        factor = math.sqrt((found.log_determinant + 2 * math.log(1 / delta)) / (found.n * found.decay))
        return np.asarray(at.spread[:, None] * (factor * noise.level))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.squeeze else values

    def _claim(self, noise: Noise, norm: np.ndarray) -> Claim:
        options, uniform = self.options, self.options.band == "uniform"
        size = " and ".join(f"{each:.3g}" for each in norm)
        known = f"a truth of norm at most {size} in the space of the kernel"
        plugged = f"a truth of norm at most {size} in the space of the kernel, WHICH IS ONLY THE NORM OF THE FIT"
        chosen = "a kernel fixed before y was seen, and so the weight decay"
        chosen += ", WHICH WAS CHOSEN BY LEAVE-ONE-OUT" * (options.weight_decay is None)
        proved = options.norm is not None and options.noise is not None and options.weight_decay is not None
        return Claim(
            name="kernel ridge" + ", uniform" * uniform,
            covers="the regression function",
            by="the self-normalised bound on the noise and the norm's on the bias"
            if uniform
            else "the quantile of the noise and the norm's bound on the bias",
            assumed=(
                plugged if options.norm is None else known,
                f"{'sub-Gaussian' if uniform else 'Gaussian'} noise, its level {noise.source}",
                chosen,
            ),
            response="a new response",
            nominal=not proved,
        )
