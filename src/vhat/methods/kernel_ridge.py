"""Kernel ridge regression, with a band from a bound on the norm of the truth."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vhat import bounds
from vhat.checks import as_numbers, check_choice, check_finite
from vhat.errors import InputError, SelectionWarning, outside
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer, BaseFitted, Question
from vhat.methods.base.fitting import MethodWithoutRecipe, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.kernel_smoother import (
    KernelFit,
    KernelPrediction,
    biased_answer,
    check_bound,
    check_rows,
    fit_kernel,
)
from vhat.methods.base.method import check_noise
from vhat.methods.base.requirements import require_package
from vhat.variance.noise import Noise

__all__ = ["FittedKernelRidge", "KernelRidge", "matern"]

_GRID = np.logspace(-9, 2, 45)
"""Candidate decays for leave-one-out, in units of the mean eigenvalue of K/n: four per decade."""


@dataclass(frozen=True)
class KernelRidge(MethodWithoutRecipe["FittedKernelRidge"]):
    """Regression with a Matern kernel in place of the network, with a band from a bound on the norm of the truth.

    If ``|f*| <= B`` in the space of the kernel, the error at x is at most a bias of ``B power(x)`` plus a quantile of
    noise of standard deviation ``sigma |w(x)|`` (see :mod:`vhat.methods.base.kernel_smoother`). The recipe is not used.
    The functions of that space tend to zero away from the data, so the norm depends on the origin of y: subtract from y
    the value that you would predict without data.

    Attributes:
        length_scale: Length scale of the kernel, in units of the inputs.
        nu: Smoothness of the kernel: 0.5, 1.5, 2.5 or infinity (the Gaussian kernel), or any other positive number.
        weight_decay: lam of ``1/(2n) sum_i (f(x_i) - y_i)^2 + lam/2 |f|^2``; None chooses it by leave-one-out.
        norm: B, in units of y; None uses the norm of the fit, a heuristic that is too small.
        band: ``"pointwise"``: bias plus the quantile of the noise, at each point taken alone; ``"uniform"``: the
            self-normalised band ``spread(x) (B + sigma sqrt((ln det(I + K/(n lam)) + 2 ln(1/delta)) / (n lam)))``, at
            all points at once.
        noise: Standard deviation of y; None estimates it from the residuals.

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

    def _fit(self, data: Training) -> FittedKernelRidge:
        table = data.table()
        rows = check_rows("X", table.X)
        if len(rows) < 2:
            raise InputError("KernelRidge needs at least two rows.")
        gram = matern(rows, rows, self.length_scale, self.nu)
        if self.weight_decay is None:
            # The eigendecomposition does not depend on the decay: it is computed once, with a placeholder of 1.
            regression = choose_decay(fit_kernel(gram, table.y, 1.0))
        else:
            regression = fit_kernel(gram, table.y, self.weight_decay)
        return FittedKernelRidge(self, regression, rows, table.y.ndim == 1)


def matern(a: np.ndarray, b: np.ndarray, length_scale: float, nu: float) -> np.ndarray:
    """Return the Matern kernel of variance one between rows, (len(a), len(b)).

    Raises:
        MissingPackage: When scikit-learn is not installed.
    """
    kernels = require_package(
        "sklearn.gaussian_process.kernels",
        "the Matern kernel is scikit-learn's, which is not installed. Install it: pip install scikit-learn.",
    )
    return np.asarray(kernels.Matern(length_scale=length_scale, nu=nu)(a, b))


def choose_decay(fit: KernelFit) -> KernelFit:
    """Return the fit with the decay whose squared leave-one-out residuals are smallest.

    The residuals of each output are in units of its standard deviation. Warns if the best decay is at an end of the
    grid.
    """
    unit = np.sum((fit.y - fit.y.mean(axis=0)) ** 2, axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    decays = _GRID * float(fit.values.mean()) / fit.n
    scores = [np.sum(replace(fit, decay=float(decay)).left_out ** 2 / unit) for decay in decays]
    best = int(np.argmin(scores))
    if best in (0, len(decays) - 1):
        end = "largest" if best else "smallest"
        warnings.warn(
            f"leave-one-out prefers the {end} weight decay that was tried, "
            f"{decays[best]:.1e}. Choose length_scale or weight_decay yourself.",
            SelectionWarning,
            stacklevel=outside(),
        )
    return replace(fit, decay=float(decays[best]))


@dataclass(frozen=True, eq=False)
class FittedKernelRidge(BaseFitted):
    """A fitted kernel regression.

    Attributes:
        options: The options.
        regression: The fit.
        X: The training inputs.
        squeeze: Whether y was (n,).
    """

    options: KernelRidge
    regression: KernelFit
    X: np.ndarray = field(repr=False)
    squeeze: bool

    def _answer(self, asked: Question) -> Answer:
        """Compute the band."""
        points = check_rows("x", as_numbers("x", asked.x), self.X.shape[1])
        check_finite("x", points)
        options = self.options
        kernel = matern(points, self.X, options.length_scale, options.nu)
        predicted = self.regression.predict(kernel, np.ones(len(points)))  # k(x, x) = 1
        noise = self.regression.noise(options.noise)
        norm = self.regression.norm
        if options.norm is not None:
            norm = np.full(self.regression.y.shape[1], options.norm)
        bias_for_norm_one = predicted.power if options.band == "pointwise" else predicted.spread
        return biased_answer(
            self._claim(noise, norm),
            predicted.center,
            bias=bias_for_norm_one[:, None] * norm,
            noise_half_width=self._noise_half_width(predicted, noise, asked.delta),
            standard_error=predicted.response[:, None] * noise.level,
            noise=noise,
            squeeze=self.squeeze,
            points=points,
            simultaneous=options.band == "uniform",
        )

    def _noise_half_width(self, predicted: KernelPrediction, noise: Noise, delta: float) -> np.ndarray:
        """Return the part of the half width for the noise, (m, K).

        In either band it is at least the quantile of the noise at each point, as limits for a new response require.
        """
        if self.options.band == "pointwise":
            quantile = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df)
            return np.asarray(predicted.response[:, None] * (quantile * noise.level))
        fit = self.regression
        factor = math.sqrt((fit.log_determinant + 2 * math.log(1 / delta)) / (fit.n * fit.decay))
        return np.asarray(predicted.spread[:, None] * (factor * noise.level))

    def _claim(self, noise: Noise, norm: np.ndarray) -> Claim:
        options = self.options
        name = "kernel ridge"
        by = "the quantile of the noise and the norm's bound on the bias"
        law = "Gaussian"
        if options.band == "uniform":
            name = "kernel ridge, uniform"
            by = "the self-normalised bound on the noise and the norm's on the bias"
            law = "sub-Gaussian"
        size = " and ".join(f"{each:.3g}" for each in norm)
        known = f"a truth of norm at most {size} in the space of the kernel"
        if options.norm is None:
            known += ", WHICH IS ONLY THE NORM OF THE FIT"
        chosen = "a kernel fixed before y was seen, and so the weight decay"
        if options.weight_decay is None:
            chosen += ", WHICH WAS CHOSEN BY LEAVE-ONE-OUT"
        proved = options.norm is not None and options.noise is not None and options.weight_decay is not None
        return Claim(
            name=name,
            covers="the regression function",
            by=by,
            assumed=(known, f"{law} noise, its level {noise.source}", chosen),
            response="a new response",
            nominal=not proved,
        )
