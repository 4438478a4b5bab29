"""Kernel ridge regression, and the band that a bound on the truth's norm gives."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vhat import bounds
from vhat.checks import as_numbers, check_choice, check_finite
from vhat.errors import InputError, MissingPackage, SelectionWarning, outside
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer, BaseFitted, Question
from vhat.methods.base.fitting import MethodWithoutRecipe, Training
from vhat.methods.base.kernel_smoother import At, KernelFit, check_bound, check_rows, fit_kernel
from vhat.methods.base.method import Claim, Limits, check_noise
from vhat.variance.noise import Noise

__all__ = ["FittedKernelRidge", "KernelRidge", "matern"]

_GRID = np.logspace(-9, 2, 45)
"""Decays that leave-one-out chooses from, in units of the mean eigenvalue of K/n."""


@dataclass(frozen=True)
class KernelRidge(MethodWithoutRecipe["FittedKernelRidge"]):
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

    def _fit(self, data: Training) -> FittedKernelRidge:
        table = data.table()
        rows = check_rows("X", table.X)
        if len(rows) < 2:
            raise InputError("KernelRidge needs at least two rows.")
        gram = matern(rows, rows, self.length_scale, self.nu)
        if self.weight_decay is None:
            # The eigenvectors do not depend on the decay, so that any one serves until the best is found.
            found = best_left_out(fit_kernel(gram, table.y, 1.0))
        else:
            found = fit_kernel(gram, table.y, self.weight_decay)
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
        end = "largest" if best else "smallest"
        warnings.warn(
            f"leave-one-out prefers the {end} weight decay that was tried, "
            f"{decays[best]:.1e}. Choose length_scale or weight_decay yourself.",
            SelectionWarning,
            stacklevel=outside(),
        )
    return replace(found, decay=float(decays[best]))


@dataclass(frozen=True, eq=False)
class FittedKernelRidge(BaseFitted):
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

    def _answer(self, asked: Question) -> Answer:
        """Compute the band."""
        points = check_rows("x", as_numbers("x", asked.x), self.X.shape[1])
        check_finite("x", points)
        options = self.options
        at = self.found.at(matern(points, self.X, options.length_scale, options.nu), np.ones(len(points)))
        noise = self.found.noise(options.noise)
        norm = self.found.norm
        if options.norm is not None:
            norm = np.full(self.found.y.shape[1], options.norm)
        largest = at.power if options.band == "pointwise" else at.spread
        bias = largest[:, None] * norm
        half = bias + self._noise_share(at, noise, asked.delta)
        return Answer(
            self._claim(noise, norm),
            self._shaped(at.center),
            Limits(self._shaped(at.center - half), self._shaped(at.center + half)),
            standard_error=self._shaped(at.response[:, None] * noise.level),
            noise=noise,
            bias=self._shaped(bias),
            simultaneous=options.band == "uniform",
            points=points,
        )

    def _noise_share(self, at: At, noise: Noise, delta: float) -> np.ndarray:
        """Return what noise adds to the half widths, (m, K); at least its quantile at each point, in either band."""
        if self.options.band == "pointwise":
            quantile = bounds.asymptotic(1.0, 1, 1.0, delta, df=noise.df)
            return np.asarray(at.response[:, None] * (quantile * noise.level))
        found = self.found
        factor = math.sqrt((found.log_determinant + 2 * math.log(1 / delta)) / (found.n * found.decay))
        return np.asarray(at.spread[:, None] * (factor * noise.level))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Return (points,) where y was (n,), else (points, outputs)."""
        return values[:, 0] if self.squeeze else values

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
