"""Deep ensembles: the same training from several seeds."""

from __future__ import annotations

from dataclasses import dataclass

from vhat.checks import check_count
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.method import check_noise

__all__ = ["DeepEnsemble"]


@dataclass(frozen=True)
class DeepEnsemble(BaseMethod[Ensemble]):
    """Members trained on the same data from different first parameters (Lakshminarayanan et al., 2017).

    The center is the mean of the members, the standard error their standard deviation. The spread shows only the effect
    of the first parameters: an objective with a single minimum, such as that of a linear model, has no spread at all,
    whatever the noise. The recipe must depend on its seed; the first member has ``seed`` itself.

    Attributes:
        members: Number of members.
        noise: Standard deviation of y, for ``target="observation"``; None estimates it from the residuals of the
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

    def _fit(self, data: Training) -> Ensemble:
        members = data.fit_many(data.seeds(self.members))
        claim = Claim(
            name="deep ensemble",
            covers="no stated quantity: the spread of trainings from different seeds on the same responses",
            by=f"the normal quantile of {self.members} members' standard deviation, a heuristic",
            assumed=("that the spread over seeds measures the error, which no theory says",),
        )
        return Ensemble(members, claim, members[0], self.noise)
