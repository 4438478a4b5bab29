"""A Gaussian process with a Matern kernel, by scikit-learn."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite
from vhat.errors import ConvergenceWarning, InputError, MissingPackage, outside
from vhat.fit.recipe import check_positive
from vhat.methods.base.answering import Answer, BaseFitted, Question
from vhat.methods.base.fitting import MethodWithoutRecipe, Training
from vhat.methods.base.kernel_smoother import check_rows, uniform_noise
from vhat.methods.base.method import Claim, check_noise, normal_limits

__all__ = ["FittedGaussianProcess", "GaussianProcess"]


@dataclass(frozen=True)
class GaussianProcess(MethodWithoutRecipe["FittedGaussianProcess"]):
    """The posterior of a Gaussian process in place of the network (:class:`sklearn.gaussian_process`).

    The prior is ``amplitude^2 Matern(length_scale, nu)`` about the mean of y; what is None is tuned to the highest
    marginal likelihood. Each output has a process of its own. The recipe is not used.

    Attributes:
        length_scale: The kernel's, in units of the inputs, or None.
        nu: Its smoothness: 0.5, 1.5, 2.5 or infinity (the Gaussian kernel), or any other positive number.
        amplitude: The prior's standard deviation, in units of y, or None.
        noise: The standard deviation of y about the function, or None.
        restarts: How often tuning is repeated from random values.

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
        _require_sklearn()
        processes, levels = zip(*(self._process(rows, column, data.seed) for column in columns.T), strict=True)
        return FittedGaussianProcess(self, processes, levels, table.y.ndim == 1)

    def _process(self, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[Any, float]:
        """Return a process whose kernel has no noise, so that it predicts the function, and the noise level."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        unit = float(np.std(y))  # scikit-learn divides y by it (normalize_y), so everything in it has no unit of y
        noise = _square(self.noise, unit)
        tuned = GaussianProcessRegressor(
            self._kernel(X, unit),
            alpha=noise or 1e-12,
            n_restarts_optimizer=self.restarts,
            normalize_y=True,
            random_state=seed,
        )
        _tune(tuned, X, y)
        if noise:
            latent = tuned.kernel_
            level = noise
        else:
            latent = tuned.kernel_.k1
            level = tuned.kernel_.k2.noise_level
        process = GaussianProcessRegressor(latent, alpha=level, optimizer=None, normalize_y=True).fit(X, y)
        return process, unit * math.sqrt(level)

    def _kernel(self, X: np.ndarray, unit: float) -> Any:
        """Return the kernel to tune, in units of the standard deviation of y; its last part is the noise if unknown."""
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        spread = float(np.sqrt(np.mean(np.var(X, axis=0)))) or 1.0  # the unit of the range for length scales
        amplitude = _square(self.amplitude, unit)
        height = ConstantKernel(1.0, (1e-3, 1e4))
        if amplitude:
            height = ConstantKernel(amplitude, "fixed")
        shape = Matern(spread, (1e-3 * spread, 1e4 * spread), nu=self.nu)
        if self.length_scale:
            shape = Matern(self.length_scale, "fixed", nu=self.nu)
        kernel = height * shape
        if self.noise is None:
            kernel += WhiteKernel(0.1, (1e-8, 1e1))
        return kernel


def _require_sklearn() -> None:
    """Refuse to go on without scikit-learn."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise MissingPackage(
            "GaussianProcess is scikit-learn's, which is not installed. Install it: pip install scikit-learn."
        ) from error


def _square(value: float | None, unit: float) -> float | None:
    """Return ``(value / unit)^2``, None for None."""
    if value is None:
        return None
    return (value / unit) ** 2


def _tune(process: Any, X: np.ndarray, y: np.ndarray) -> None:
    """Maximise the marginal likelihood; warn where that ended at a limit of the search."""
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
    """Posterior processes, one an output.

    Attributes:
        options: The options.
        processes: scikit-learn's regressors.
        levels: The standard deviation of the noise of each output.
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
        found = [process.predict(points, return_std=True) for process in self.processes]
        center = self._shaped([mean for mean, _ in found])
        error = self._shaped([deviation for _, deviation in found])
        source = "estimated by the marginal likelihood" if self.options.noise is None else "given"
        return Answer(
            self._claim(source),
            center,
            normal_limits(center, error, asked.delta),
            standard_error=error,
            noise=uniform_noise(self.levels, len(first.X_train_), source=source),
            points=points,
        )

    def _shaped(self, columns: list[np.ndarray]) -> np.ndarray:
        """Return (points,) where y was (n,), else (points, outputs)."""
        values = np.stack(columns, axis=1)
        return values[:, 0] if self.squeeze else values

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
