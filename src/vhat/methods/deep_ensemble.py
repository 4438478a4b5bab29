"""Deep ensembles: the same training from several seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vhat.checks import check_count
from vhat.fit.many_fits import Recipe, fit_many
from vhat.methods.base.ensemble import Ensemble, new_seeds
from vhat.methods.base.method import Claim, check_data, check_noise

__all__ = ["DeepEnsemble"]


@dataclass(frozen=True)
class DeepEnsemble:
    """Members trained on the same data from different first parameters (Lakshminarayanan et al., 2017).

    The center is the mean of the members, the spread their standard deviation. Only what training forgets of its start
    is seen: an objective with a single minimum (a linear model) has no spread at all, whatever the noise.

    Attributes:
        members: How many.
        noise: The standard deviation of y, for ``target="observation"``; None estimates it from the residuals of the
            first member.

    Examples:
        >>> DeepEnsemble(members=3).members
        3
    """

    members: int = 5
    noise: float | None = None

    def __post_init__(self) -> None:
        check_count("members", self.members, least=1)
        check_noise(self.noise)

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> Ensemble:
        """Train the members; the first has ``seed`` itself.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``; its seed must matter.
            X: Rows.
            y: Responses.
            seed: Determines the seeds of all members.
        """
        check_count("seed", seed)
        check_data(X, y)
        members = fit_many(recipe, X, y, seeds=new_seeds(seed, self.members))
        claim = Claim(
            name="deep ensemble",
            covers="no stated quantity: the spread of trainings from different seeds on the same responses",
            by=f"the normal quantile of {self.members} members' standard deviation, a heuristic",
            assumed=("that the spread over seeds measures the error, which no theory says",),
        )
        return Ensemble(tuple(members), claim, members[0], self.noise)
