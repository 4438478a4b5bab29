"""A Gaussian process with a Matern kernel, by scikit-learn."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_count, check_finite
from vhat.errors import ConvergenceWarning, InputError, MissingPackage, outside
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import check_positive
from vhat.fit.splits import check_table
from vhat.intervals.interval import Interval
from vhat.methods.base.kernel_smoother import check_rows, uniform_noise
from vhat.methods.base.method import Claim, Target, check_noise, check_question, make_interval, normal_limits, widened

__all__ = ["FittedGaussianProcess", "GaussianProcess"]


@dataclass(frozen=True)
class GaussianProcess:
    """The posterior of a Gaussian process in place of the network (:class:`sklearn.gaussian_process`).

    The prior is ``amplitude^2 Matern(length_scale, nu)`` about the mean of y; what is None is tuned to the highest
    marginal likelihood. Each output has a process of its own. The recipe is not used.

    Attributes:
        length_scale: The kernel's, in units of the inputs, or None.
        nu: Its smoothness: 0.5, 1.5, 2.5 or infinity (the Gaussian kernel), or any other positive number.
        amplitude: The prior's standard deviation, in units of y, or None.
        noise: The standard deviation of y about the function, or None.
        restarts: How often tuning starts again, from random values.

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

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> FittedGaussianProcess:  # noqa: ARG002
        """Tune the kernel, and condition on the data.

        Args:
            recipe: Not used: there is no network.
            X: Rows, (n, columns).
            y: Responses, (n,) or (n, outputs).
            seed: Draws where tuning starts again.

        Raises:
            InputError: When there are fewer than two rows, or y does not vary.
            MissingPackage: When scikit-learn is not installed.
        """
        check_count("seed", seed)
        table = check_table(X, y)
        rows = check_rows("X", table.X)
        columns = table.y.reshape(len(table.y), -1)
        if len(rows) < 2 or not np.all(np.ptp(columns, axis=0) > 0):
            raise InputError("GaussianProcess needs at least two rows, and responses that are not all the same.")
        processes, levels = zip(*(self._process(rows, column, seed) for column in columns.T), strict=True)
        return FittedGaussianProcess(self, processes, levels, table.y.ndim == 1)

    def _process(self, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[Any, float]:
        """Return a process without noise in its kernel, which so predicts the function, and the noise level."""
        try:
            from sklearn.exceptions import ConvergenceWarning as NotTuned
            from sklearn.gaussian_process import GaussianProcessRegressor
            from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
        except ImportError as error:
            raise MissingPackage(
                "GaussianProcess is scikit-learn's, which is not installed. Install it: pip install scikit-learn."
            ) from error

        unit = float(np.std(y))  # scikit-learn divides y by it (normalize_y), so everything in it has no unit of y
        amplitude, noise = (None if each is None else (each / unit) ** 2 for each in (self.amplitude, self.noise))
        spread = float(np.sqrt(np.mean(np.var(X, axis=0)))) or 1.0  # the unit in which a length scale is sought
        kernel = ConstantKernel(amplitude or 1.0, "fixed" if amplitude else (1e-3, 1e4)) * Matern(
            self.length_scale or spread, "fixed" if self.length_scale else (1e-3 * spread, 1e4 * spread), nu=self.nu
        )
        if noise is None:
            kernel += WhiteKernel(0.1, (1e-8, 1e1))
        tuned = GaussianProcessRegressor(
            kernel, alpha=noise or 1e-12, n_restarts_optimizer=self.restarts, normalize_y=True, random_state=seed
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NotTuned)
            tuned.fit(X, y)
        if caught:
            warnings.warn(
                f"tuning the Gaussian process ended at the edge of what is tried, or short of a maximum: "
                f"{tuned.kernel_}, in units of the standard deviation of y. Give length_scale, amplitude or noise, or "
                "raise restarts.",
                ConvergenceWarning,
                stacklevel=outside(),
            )
        latent, level = (tuned.kernel_, noise) if noise else (tuned.kernel_.k1, tuned.kernel_.k2.noise_level)
        process = GaussianProcessRegressor(latent, alpha=level, optimizer=None, normalize_y=True).fit(X, y)
        return process, unit * math.sqrt(level)


@dataclass(frozen=True, eq=False)
class FittedGaussianProcess:
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

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute a credible interval at every point.

        Args:
            x: Test inputs, (points, columns).
            delta: Posterior probability outside.
            target: ``"mean"`` for the regression function, ``"observation"`` for a new response.
        """
        delta = check_question("GaussianProcess", delta, target)
        first = self.processes[0]
        points = check_rows("x", as_numbers("x", x), first.X_train_.shape[1])
        check_finite("x", points)
        found = [process.predict(points, return_std=True) for process in self.processes]
        center, error = (self._shaped(np.stack(columns, axis=1)) for columns in zip(*found, strict=True))
        source = "estimated by the marginal likelihood" if self.options.noise is None else "given"
        noise = uniform_noise(self.levels, len(first.X_train_), source=source)
        limits = normal_limits(center, error, delta)
        return make_interval(
            self._claim(source),
            center,
            widened(limits, noise, delta) if target == "observation" else limits,
            delta=delta,
            target=target,
            standard_error=error,
            noise=noise,
            x=points,
        )

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self.squeeze else values

    def _claim(self, source: str) -> Claim:
        kernels = " and ".join(str(process.kernel_) for process in self.processes)
        free = [name for name in ("length_scale", "amplitude", "noise") if getattr(self.options, name) is None]
        tuned = (f"{', '.join(free)} known beforehand, WHICH WERE TUNED TO THESE DATA",) if free else ()
        return Claim(
            name="Gaussian process",
            covers="the regression function, in the belief that the kernel expresses",
            response="a new response, in the belief that the kernel expresses",
            by=f"the posterior of the prior {kernels}, in units of the standard deviation of y",
            assumed=("that the truth is a draw from that prior", f"Gaussian noise, its level {source}", *tuned),
        )
