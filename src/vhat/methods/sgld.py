"""Stochastic gradient Langevin dynamics, by blackjax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError, MissingPackage, ModelError
from vhat.fit.many_fits import Recipe
from vhat.linalg.curvature import Operator
from vhat.methods.base.ensemble import Ensemble, predictions
from vhat.methods.base.method import Claim, check_level, check_noise, find_noise, fit_once
from vhat.methods.base.posterior import Posterior, as_posterior, log_density, members, noise_clause

if TYPE_CHECKING:
    from vhat.models.jax.compiled import Model
    from vhat.models.problem import Problem

__all__ = ["SGLD"]

_POWER_STEPS = 30
_MARGIN = 1.05
"""The power method comes from below: so much is added to the curvature that it found."""
_FEW_ROWS = 64
_WIDE = 1.25
"""A variance that is too large by more than this factor is owned up to."""


@dataclass(frozen=True)
class SGLD:
    """Draws from the posterior by noisy gradient steps about the fit (Welling and Teh, 2011).

    The chain starts at the fit and steps by ``step sigma^2 / (n beta)``, beta the largest curvature of the objective
    there; without an accept-reject step its variance along a direction of curvature ``c`` is too large by a factor
    ``1 / (1 - step c / (2 beta))``. It forgets a direction in about ``beta / (step c)`` steps: where the decay alone
    holds a direction that may be more than is run. All outputs have one noise level.

    The gradient of a batch is itself noisy, and would add ``step c n / (2 batch beta)`` to that factor. So with a batch
    a step is taken in ``1 + n / batch`` shorter ones, together as long and no cheaper: the factor stays below that of
    all rows, where residuals are of the size that the noise level says. A batch saves memory, and no time.

    Attributes:
        draws: How many draws are kept.
        thin: Steps from one to the next, each in shorter ones where there are batches.
        burn_in: Steps before the first.
        step: The step, as a share of the one at which the steepest direction would be crossed in one stride.
        batch: Rows, drawn with replacement, for each gradient; None takes all, without the shorter steps.
        noise: The standard deviation of y; None estimates it from the residuals of the fit.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 1)), weight_decay=1e-2)
        >>> fit = SGLD(draws=20, burn_in=100).fit(recipe, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]]).bound
        'SGLD'
    """

    draws: int = 500
    thin: int = 20
    burn_in: int = 2000
    step: float = 0.2
    batch: int | None = None
    noise: float | None = None

    def __post_init__(self) -> None:
        check_count("draws", self.draws, least=4)
        check_count("thin", self.thin, least=1)
        check_count("burn_in", self.burn_in)
        check_level("step", self.step, zero=False)
        if self.batch is not None:
            check_count("batch", self.batch, least=1)
        check_noise(self.noise)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> Ensemble:
        """Train once, and run the chain.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``: a JAX model with the square loss.
            X: Rows.
            y: Responses.
            seed: Determines the training and the chain.

        Raises:
            InputError: When the model is not one of JAX, its loss not the square loss, or its outputs differ in noise.
            MissingPackage: When blackjax is not installed.
            ModelError: When the chain diverges.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        blackjax = _blackjax()
        fitted = fit_once(recipe, X, y, seed)
        noise = find_noise(fitted, self.noise)
        problem = fitted.problem
        if self.batch is not None and self.batch > problem.n:
            raise InputError(f"batch={self.batch} is more than the {problem.n} rows. Set batch=None to take all.")
        with problem.scope():
            model, posterior = as_posterior(fitted, noise, "SGLD")
            pieces = self._pieces(problem.n)
            stride = self.step * float(posterior.noise) ** 2 / (problem.n * _largest_curvature(problem)) / pieces
            key, size = jax.random.key(seed), self.batch
            start = _walk(model, 1, max(self.burn_in, 1) * pieces, size, key, problem.theta, posterior, stride)[-1]
            rest = jax.random.fold_in(key, 1)
            kept = np.asarray(_walk(model, self.draws, self.thin * pieces, size, rest, start, posterior, stride))
            widening = self._widening(problem, float(posterior.noise))
        if not np.isfinite(kept).all():
            raise ModelError(f"SGLD diverged at step={self.step:g}. Lower step, or raise batch.")
        drawn = members(fitted, kept)
        few = problem.take(problem.X, 0, min(_FEW_ROWS, problem.n))
        values = predictions(drawn, few).reshape(1, self.draws, -1)
        effective = float(np.min(blackjax.diagnostics.effective_sample_size(values)))
        batch = f", {self.batch} rows a step" if self.batch is not None else ""
        excess = f", WHICH WIDEN ITS VARIANCE UP TO {widening:.2g} TIMES" * (widening > _WIDE)
        claim = Claim(
            name="SGLD",
            covers="the regression function, in the belief that the decay expresses as a prior",
            response="a new response, in the belief that the decay expresses as a prior",
            by=f"the normal quantile over {self.draws} draws from a Langevin chain{batch}, worth about {effective:.0f} "
            "independent ones on the training rows",
            assumed=(
                "that the truth is a draw from that prior",
                noise_clause(fitted, noise),
                "a chain that has been everywhere the posterior is",
                f"steps short enough not to widen it (step={self.step:g}){excess}",
            ),
        )
        return Ensemble(drawn, claim, fitted, self.noise)

    def _pieces(self, n: int) -> int:
        """Return in how many shorter steps one is taken."""
        return 1 if self.batch is None else 1 + math.ceil(n / self.batch)

    def _widening(self, problem: Problem, noise: float) -> float:
        """Return the factor on the variance along the steepest direction, (1 + e G / 2) / (1 - e C / 2).

        e is the length of a step, C the curvature of the log density, and G the variance of its slope from a batch:
        ``n / batch`` times C where the squared residuals are ``noise^2`` in the mean, in proportion where they are not.
        """
        share, slope = self.step / self._pieces(problem.n), 0.0
        if self.batch is not None:
            residual = problem.targets - problem.fitted_values
            misfit = np.mean(problem.loss_derivatives.curvature * residual**2) / noise**2
            slope = problem.n / self.batch * max(1.0, float(misfit))
        return (1 + share * slope / 2) / (1 - share / 2)


def _blackjax() -> Any:
    try:
        import blackjax
    except ImportError as error:
        raise MissingPackage(
            'SGLD is by blackjax, which is not installed. Install it: pip install "vhat[methods]", or pip install '
            "blackjax."
        ) from error
    return blackjax


def _largest_curvature(problem: Problem) -> float:
    """Return the largest eigenvalue of the Gauss-Newton matrix with decay, by the power method."""
    operator = Operator(problem, "ggn")
    direction, length = np.random.default_rng(0).standard_normal((1, problem.p)), 1.0
    for _ in range(_POWER_STEPS):
        image = problem.numpy(operator(problem.native(direction / np.linalg.norm(direction))))
        direction, length = image, float(np.linalg.norm(image))
    return _MARGIN * length


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _walk(
    model: Model, draws: int, thin: int, batch: int | None, key: Any, theta: Any, posterior: Posterior, stride: Any
) -> Any:
    """Return every ``thin``-th position of a chain, (draws, p)."""
    slope = jax.grad(log_density, argnums=1)
    chain = _blackjax().sgld(lambda position, rows: slope(model, position, posterior, rows))

    def step(position: Any, key: Any) -> tuple[Any, None]:
        first, second = jax.random.split(key)
        rows = None if batch is None else jax.random.randint(first, (batch,), 0, len(posterior.y))
        return chain.step(second, position, rows, stride), None

    def stretch(position: Any, key: Any) -> tuple[Any, Any]:
        position = jax.lax.scan(step, position, jax.random.split(key, thin))[0]
        return position, position

    return jnp.asarray(jax.lax.scan(stretch, theta, jax.random.split(key, draws))[1])
