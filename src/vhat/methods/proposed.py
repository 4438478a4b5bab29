"""The library's own interval, with the interface of the other methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vhat.intervals.estimated_tail import EstimatedTail, Redraws
from vhat.intervals.interval import Interval
from vhat.intervals.options import Options
from vhat.intervals.tail import Tail
from vhat.linalg.solvers import Solver
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Target

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["FittedProposed", "Proposed"]


@dataclass(frozen=True)
class Proposed(BaseMethod["FittedProposed"]):
    """One fit, and the interval of :meth:`vhat.FittedModel.interval`.

    The options are those of that call.

    Attributes:
        bound: Name of the bound.
        tail: Tail of V.
        simultaneous: Whether the level holds at all points at once.
        noise: Noise level; None estimates it.
        observation_noise: Noise level of a new response; used only for ``target="observation"``.
        bias: Bound on the bias.
        curvature: ``"auto"``, ``"hessian"`` or ``"ggn"``.
        solver: The solver, or ``"auto"``.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Minimum, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Minimum(Network((1, 4, 1)), weight_decay=1e-2)
        >>> fit = Proposed(bound="asymptotic").fit(recipe, x, x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0]))
        >>> fit.interval([[0.0]], target="observation").bound
        'asymptotic'
    """

    bound: str = "isoperimetric"
    tail: Tail | EstimatedTail | Redraws | str | None = None
    simultaneous: bool | str = False
    noise: Any = None
    observation_noise: Any = None
    bias: Any = None
    curvature: str = "auto"
    solver: Solver | str = "auto"

    def __post_init__(self) -> None:
        Options(simultaneous=self.simultaneous, bound=self.bound, tail=self.tail, bias=self.bias)
        Options(target="observation", observation_noise=self.observation_noise)

    def _fit(self, data: Training) -> FittedProposed:
        return FittedProposed(self, data.fit_once(), data.seed)


@dataclass(frozen=True, eq=False)
class FittedProposed:
    """A fitted model and the options of its interval.

    Attributes:
        options: The options.
        fitted: The fitted model.
        seed: Seed of random probes.
    """

    options: Proposed
    fitted: FittedModel
    seed: int

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute an interval at every point: :meth:`vhat.FittedModel.interval`."""
        options = self.options
        observation_noise = None
        if target == "observation":
            observation_noise = options.observation_noise
        return self.fitted.interval(
            x,
            delta,
            target=target,
            bound=options.bound,
            tail=options.tail,
            simultaneous=options.simultaneous,
            noise=options.noise,
            observation_noise=observation_noise,
            bias=options.bias,
            curvature=options.curvature,
            solver=options.solver,
            seed=self.seed,
        )
