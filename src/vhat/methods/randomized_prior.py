"""Randomised prior functions: an ensemble whose members are regularised towards different random functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe
from vhat.fit.recipe import NetworkRecipe, check_positive
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim, gaussian_noise
from vhat.methods.base.method import check_noise, find_noise
from vhat.methods.base.requirements import require_square_loss

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.models.networks import Network

__all__ = ["NetworkPrior", "RandomizedPrior"]

_STREAM = 13
"""Number of this method's stream of random numbers."""

Prior = Callable[[Any, int], np.ndarray]
"""``prior(x, seed)``: values of a random function at x, (points,) or (points, outputs); the seed determines the
function."""


@dataclass(frozen=True)
class NetworkPrior:
    """A network with random first parameters, as a prior function.

    Attributes:
        network: The network.
    """

    network: Network

    def __call__(self, x: Any, seed: int) -> np.ndarray:
        """Return its predictions, (points,) or (points, outputs)."""
        import jax

        points = np.asarray(x, dtype=np.float64)
        with jax.enable_x64(True):
            return np.asarray(self.network(self.network.init(seed), points), dtype=np.float64)


@dataclass(frozen=True)
class RandomizedPrior(BaseMethod[Ensemble]):
    """Train each member with a fixed random function added to it (Osband et al., 2018).

    Member k is ``f_k + beta p_k``. The random function ``p_k`` is fixed, and ``f_k`` is trained on
    ``y + sigma z_k - beta p_k(X)``. Far from the data, where training has no effect, members differ as their priors do.
    For a linear model with decay lam and a prior of variance ``sigma^2 / (n lam)``, each member is an exact draw from
    the posterior of Bayesian linear regression, and the truth is one more draw. With Student's quantile and the spread
    times ``sqrt(1 + 1/members)``, the interval then has its level for any number of members. The loss must be the
    square loss.

    Attributes:
        members: Number of members.
        scale: beta, in units of the standard deviation of each output.
        prior: ``prior(x, seed) -> predictions``; None takes the recipe's own network with random parameters.
        noise: Standard deviation sigma of y; None estimates it from the residuals of a fit to the data.

    Examples:
        >>> RandomizedPrior(members=20, scale=0.5).scale
        0.5
    """

    members: int = 10
    scale: float = 1.0
    prior: Prior | None = field(default=None, repr=False)
    noise: float | None = None

    def __post_init__(self) -> None:
        check_count("members", self.members, least=2)
        check_positive("scale", self.scale)
        check_noise(self.noise)
        if self.prior is not None and not callable(self.prior):
            raise InputError(f"prior={self.prior!r} is not a function prior(x, seed) of points and a seed.")

    def _fit(self, data: Training) -> Ensemble:
        observed = data.responses()
        prior = self._prior(data.recipe)
        base = data.fit_once()
        require_square_loss(base, "RandomizedPrior")
        noise = find_noise(base, self.noise)
        beta = self.scale * observed.std(axis=0)
        # The first half of the new seeds is for training, the second for the prior functions.
        seeds = data.refit_seeds(2 * self.members, new=True)
        drawn = seeds[self.members :]
        offsets = np.stack([beta * _values(prior, data.X, each, observed.shape) for each in drawn])
        z = data.random(_STREAM).standard_normal(offsets.shape)
        targets = observed + noise.values.reshape(observed.shape) * z - offsets
        fits = data.fit_many(seeds[: self.members], targets=targets)
        members = tuple(WithPrior(fitted, prior, each, beta) for fitted, each in zip(fits, drawn, strict=True))
        claim = Claim(
            name="randomised prior",
            covers="the regression function, in the belief that the prior functions and this training express",
            response="a new response, in the belief that the prior functions and this training express",
            by=f"Student's t over {self.members} members, approximate draws of a posterior",
            assumed=(
                gaussian_noise(noise),
                f"prior functions of {self.scale:g} standard deviations of y that resemble the truth",
                "members that draw from the posterior, as they do only for linear models with a matching decay",
            ),
        )
        # If the members are draws from the posterior, the truth is one more draw. Then (truth - mean) / (spread
        # sqrt(1 + 1/m)) has Student's distribution with m - 1 degrees of freedom: few members cover as often as many.
        return Ensemble(members, claim, base, self.noise, spread="draws")

    def _prior(self, recipe: Recipe) -> Prior:
        """Return the prior function of the options, or one from the network of the recipe.

        Raises:
            InputError: When neither exists.
        """
        if self.prior is not None:
            return self.prior
        if isinstance(recipe, NetworkRecipe):
            return NetworkPrior(recipe.network)
        raise InputError(
            "RandomizedPrior adds random networks like the one that is trained, and a training loop of your own does "
            "not show its network. Give prior=, a function prior(x, seed) that returns a random function at x."
        )


@dataclass(frozen=True, eq=False)
class WithPrior:
    """A trained model with its prior function added.

    Attributes:
        fitted: The trained model.
        prior: The prior function.
        seed: Seed of the prior function.
        scale: beta in units of y, () or (outputs,).
    """

    fitted: FittedModel = field(repr=False)
    prior: Prior
    seed: int
    scale: np.ndarray

    def predict(self, x: Any) -> np.ndarray:
        """Return predictions, (points,) or (points, outputs)."""
        trained = self.fitted.predict(x)
        if isinstance(self.prior, NetworkPrior):
            with self.fitted.problem.scope():
                x = self.fitted.problem.inputs(x)  # puts the columns of a data frame into the order of training
        return trained + np.reshape(self.scale * _values(self.prior, x, self.seed), trained.shape)


def _values(prior: Prior, x: Any, seed: int, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Return the values of a prior function.

    Args:
        prior: The prior function.
        x: Points.
        seed: Its seed.
        shape: Shape that the values must have; None accepts any.

    Raises:
        InputError: When the values have another shape or are not finite.
    """
    values = np.asarray(prior(x, seed), dtype=np.float64)
    if shape is not None and values.shape != shape:
        raise InputError(f"prior(X, seed) has shape {values.shape}; the responses have {shape}. They must agree.")
    if not np.all(np.isfinite(values)):
        raise InputError("prior(x, seed) returned NaN or infinite values.")
    return values
