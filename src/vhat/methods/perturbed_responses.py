"""Ensembles of fits to responses with fresh noise added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.checks import check_count
from vhat.fit.many_fits import Recipe, fit_many
from vhat.methods.base.ensemble import Ensemble, new_seeds
from vhat.methods.base.method import Claim, check_noise, find_noise, fit_once, responses
from vhat.methods.base.requirements import require_residuals

__all__ = ["PerturbedResponses"]

_STREAM = 12


@dataclass(frozen=True)
class PerturbedResponses:
    """Refit to ``y + sigma z`` with fresh Gaussian z for each member.

    The spread of the members is a simulation of what first-order theory computes: for a linear model its variance is
    ``sigma^2 V / n`` in the mean. The center is the prediction of the fit to the data.

    Attributes:
        members: How many refits.
        noise: The standard deviation of y; None estimates it from the residuals of the fit to the data.
        new_seeds: Whether each member starts from first parameters of its own.

    Examples:
        >>> PerturbedResponses(members=50, noise=0.1).members
        50
    """

    members: int = 10
    noise: float | None = None
    new_seeds: bool = False

    def __post_init__(self) -> None:
        check_count("members", self.members, least=2)
        check_noise(self.noise)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> Ensemble:
        """Fit to the data, then to every perturbed set of responses.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``.
            X: Rows.
            y: Responses.
            seed: Determines the noise and the training.

        Raises:
            InputError: When the loss is not a function of f - y: noise cannot be added to labels or counts.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        observed = responses(y)
        base = fit_once(recipe, X, y, seed)
        require_residuals(base, "PerturbedResponses")
        noise = find_noise(base, self.noise)
        z = np.random.default_rng([seed, _STREAM]).standard_normal((self.members, *observed.shape))
        targets = observed + noise.values.reshape(observed.shape) * z
        seeds = new_seeds(seed, self.members + 1)[1:] if self.new_seeds else [seed] * self.members
        members = fit_many(recipe, X, y, seeds=seeds, targets=targets)
        claim = Claim(
            name="perturbed responses",
            covers="the mean of this prediction over fresh noise, not the truth behind it",
            by=f"Student's t over {self.members} refits to responses with noise added",
            assumed=(
                f"Gaussian noise, its level {noise.source}",
                "a fit that responds to added noise as it does to the noise that it has seen",
            ),
        )
        return Ensemble(tuple(members), claim, base, self.noise, center=base, spread="sample")
