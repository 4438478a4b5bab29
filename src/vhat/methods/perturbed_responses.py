"""Ensembles of refits to responses with fresh noise added."""

from __future__ import annotations

from dataclasses import dataclass

from vhat.checks import check_count
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim, gaussian_noise
from vhat.methods.base.method import check_noise, find_noise
from vhat.methods.base.requirements import require_residuals

__all__ = ["PerturbedResponses"]

_STREAM = 12
"""Number of this method's stream of random numbers."""


@dataclass(frozen=True)
class PerturbedResponses(BaseMethod[Ensemble]):
    """Refit to ``y + sigma z`` with fresh Gaussian z for each member.

    The spread of the members is a simulation of the first-order variance: for a linear model its expectation is
    ``sigma^2 V / n``. The center is the prediction of the fit to the data. The loss must be a function of ``f - y``:
    noise cannot be added to labels or counts.

    Attributes:
        members: Number of refits.
        noise: Standard deviation of y; None estimates it from the residuals of the fit to the data.
        new_seeds: Whether each member gets a new seed; otherwise all have the seed of the fit to the data.

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

    def _fit(self, data: Training) -> Ensemble:
        observed = data.responses()
        base = data.fit_once()
        require_residuals(base, "PerturbedResponses")
        noise = find_noise(base, self.noise)
        z = data.random(_STREAM).standard_normal((self.members, *observed.shape))
        targets = observed + noise.values.reshape(observed.shape) * z
        seeds = data.refit_seeds(self.members, new=self.new_seeds)
        members = data.fit_many(seeds, targets=targets)
        claim = Claim(
            name="perturbed responses",
            covers="the mean of this prediction over fresh noise, not the truth behind it",
            by=f"Student's t over {self.members} refits to responses with noise added",
            assumed=(
                gaussian_noise(noise),
                "a fit that responds to added noise as it does to the noise that it has seen",
            ),
        )
        return Ensemble(members, claim, base, self.noise, center=base, spread="sample")
