"""A Gaussian process with a Matern kernel, by scikit-learn."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite
from vhat.errors import ConvergenceWarning, InputError, outside
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer, BaseFitted, Question
from vhat.methods.base.fitting import MethodWithoutRecipe, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.kernel_smoother import check_rows, uniform_noise
from vhat.methods.base.limits import normal_limits, without_output_axis
from vhat.methods.base.method import check_noise
from vhat.methods.base.requirements import require_package

__all__ = ["FittedGaussianProcess", "GaussianProcess"]

# Search ranges of the hyperparameters. Responses are in units of their standard deviation, inputs of their spread.
_AMPLITUDE_RANGE = (1e-3, 1e4)  # of amplitude^2
_LENGTH_SCALE_RANGE = (1e-3, 1e4)
_NOISE_RANGE = (1e-8, 1e1)  # of noise^2
_FIRST_NOISE = 0.1
"""Squared noise level at which the search starts, in units of the variance of y."""
_JITTER = 1e-12
"""Added to the diagonal of the kernel matrix while the noise is a part of the kernel."""


@dataclass(frozen=True)
class GaussianProcess(MethodWithoutRecipe["FittedGaussianProcess"]):
    """The posterior of a Gaussian process in place of the network (:class:`sklearn.gaussian_process`).

    The prior is ``amplitude^2 Matern(length_scale, nu)`` about the mean of y. Options that are None maximise the
    marginal likelihood. Each output has its own process. The recipe is not used.

    Attributes:
        length_scale: Length scale of the kernel, in units of the inputs, or None.
        nu: Smoothness of the kernel: 0.5, 1.5, 2.5 or infinity (the Gaussian kernel), or any other positive number.
        amplitude: Standard deviation of the prior, in units of y, or None.
        noise: Standard deviation of y about the function, or None.
        restarts: Number of further searches from random values.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
        >>> GaussianProcess(noise=0.1).fit(None, x, y).interval([[0.0]]).bound
        'Gaussian process'
    """

    length_scale: float | None = None
    nu: float = 1.5
    amplitude: float | None = None
    noise: float | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        for name in ("length_scale", "amplitude"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.nu != math.inf:
            check_positive("nu", self.nu)
        check_noise(self.noise)
        check_count("restarts", self.restarts)

    def _fit(self, data: Training) -> FittedGaussianProcess:
        check_count("seed", data.seed)
        table = data.table()
        rows = check_rows("X", table.X)
        columns = table.y.reshape(len(table.y), -1)
        if len(rows) < 2 or not np.all(np.ptp(columns, axis=0) > 0):
            raise InputError("GaussianProcess needs at least two rows, and responses that are not all the same.")
        require_package(
            "sklearn",
            "GaussianProcess is scikit-learn's, which is not installed. Install it: pip install scikit-learn.",
        )
        processes, levels = zip(*(self._process(rows, column, data.seed) for column in columns.T), strict=True)
        return FittedGaussianProcess(self, processes, levels, table.y.ndim == 1)

    def _process(self, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[Any, float]:
        """Return a process that predicts the function, and the noise level.

        The kernel of the process has no noise part, so that its standard deviation is that of the function.
        """
        from sklearn.gaussian_process import GaussianProcessRegressor

        unit = float(np.std(y))  # scikit-learn divides y by this (normalize_y): hyperparameters are in its unit
        noise = _square(self.noise, unit)
        tuned = GaussianProcessRegressor(
            self._kernel(X, unit),
            alpha=noise or _JITTER,
            n_restarts_optimizer=self.restarts,
            normalize_y=True,
            random_state=seed,
        )
        _tune(tuned, X, y)
        if noise:
            latent = tuned.kernel_
            variance = noise
        else:
            # The kernel is a sum: k1 is that of the function, k2 the noise.
            latent = tuned.kernel_.k1
            variance = tuned.kernel_.k2.noise_level
        process = GaussianProcessRegressor(latent, alpha=variance, optimizer=None, normalize_y=True).fit(X, y)
        return process, unit * math.sqrt(variance)

    def _kernel(self, X: np.ndarray, unit: float) -> Any:
        """Return the kernel to tune, in units of the standard deviation of y.

        If the noise level is unknown, the last part of the kernel is the noise.
        """
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        spread = float(np.sqrt(np.mean(np.var(X, axis=0)))) or 1.0
        amplitude = _square(self.amplitude, unit)
        height = ConstantKernel(1.0, _AMPLITUDE_RANGE)
        if amplitude:
            height = ConstantKernel(amplitude, "fixed")
        low, high = _LENGTH_SCALE_RANGE
        shape = Matern(spread, (low * spread, high * spread), nu=self.nu)
        if self.length_scale:
            shape = Matern(self.length_scale, "fixed", nu=self.nu)
        kernel = height * shape
        if self.noise is None:
            kernel += WhiteKernel(_FIRST_NOISE, _NOISE_RANGE)
        return kernel


def _square(value: float | None, unit: float) -> float | None:
    """Return ``(value / unit)^2``; None for None."""
    if value is None:
        return None
    return (value / unit) ** 2


def _tune(process: Any, X: np.ndarray, y: np.ndarray) -> None:
    """Maximise the marginal likelihood; warn if the search ended at a limit of its range or did not converge."""
    from sklearn.exceptions import ConvergenceWarning as NotTuned

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotTuned)
        process.fit(X, y)
    if caught:
        warnings.warn(
            f"tuning the Gaussian process ended at the edge of what is tried, or short of a maximum: "
            f"{process.kernel_}, in units of the standard deviation of y. Give length_scale, amplitude or noise, or "
            "raise restarts.",
            ConvergenceWarning,
            stacklevel=outside(),
        )


@dataclass(frozen=True, eq=False)
class FittedGaussianProcess(BaseFitted):
    """Posterior processes, one per output.

    Attributes:
        options: The options.
        processes: scikit-learn's regressors.
        levels: Noise level of each output, in units of y.
        squeeze: Whether y was (n,).
    """

    options: GaussianProcess
    processes: tuple[Any, ...] = field(repr=False)
    levels: tuple[float, ...]
    squeeze: bool

    def _answer(self, asked: Question) -> Answer:
        """Compute credible limits."""
        first = self.processes[0]
        points = check_rows("x", as_numbers("x", asked.x), first.X_train_.shape[1])
        check_finite("x", points)
        predicted = [process.predict(points, return_std=True) for process in self.processes]
        center = without_output_axis(np.stack([mean for mean, _ in predicted], axis=1), self.squeeze)
        error = without_output_axis(np.stack([deviation for _, deviation in predicted], axis=1), self.squeeze)
        source = "estimated by the marginal likelihood" if self.options.noise is None else "given"
        return Answer(
            self._claim(source),
            center,
            normal_limits(center, error, asked.delta),
            standard_error=error,
            noise=uniform_noise(self.levels, len(first.X_train_), source=source),
            points=points,
        )

    def _claim(self, source: str) -> Claim:
        kernels = " and ".join(str(process.kernel_) for process in self.processes)
        assumed = ["that the truth is a draw from that prior", f"Gaussian noise, its level {source}"]
        free = [name for name in ("length_scale", "amplitude", "noise") if getattr(self.options, name) is None]
        if free:
            assumed.append(f"{', '.join(free)} known beforehand, WHICH WERE TUNED TO THESE DATA")
        return Claim(
            name="Gaussian process",
            covers="the regression function, in the belief that the kernel expresses",
            response="a new response, in the belief that the kernel expresses",
            by=f"the posterior of the prior {kernels}, in units of the standard deviation of y",
            assumed=tuple(assumed),
        )
