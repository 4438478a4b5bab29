"""Adam's step, and the base class of the recipes with a cosine schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import optax

from vhat.checks import check_choice, check_count
from vhat.fit import training
from vhat.fit.data import Fits
from vhat.fit.objective import Fit, value_and_gradient
from vhat.fit.recipe import NetworkRecipe, check_positive
from vhat.fit.training import Schedule, Snapshot, Trained, run
from vhat.models.networks import Network, Params

__all__ = ["AdamRule", "CosineAdam", "cosine", "cosine_schedule"]


class AdamState(NamedTuple):
    """Parameters, and Adam's two moments."""

    params: Params
    moments: Any


@dataclass(frozen=True)
class AdamRule:
    """Adam's step.

    Attributes:
        decoupled: Whether the decay is decoupled from Adam's scaling (AdamW) or part of the gradient of ``L_lam``.
    """

    decoupled: bool

    def init(self, params: Params) -> AdamState:
        """Return the first state, with moments of zero."""
        return AdamState(params, optax.adamw(0.0).init(params))

    def prepare(self, network: Network, fit: Fit, state: AdamState) -> AdamState:  # noqa: ARG002
        """Return the state unchanged."""
        return state

    def step(self, network: Network, fit: Fit, state: AdamState, rate: Any) -> AdamState:
        """Return the state after one step with learning rate ``rate``."""
        _, gradient = value_and_gradient(network, state.params, fit, penalty=not self.decoupled)
        method = optax.adamw(rate, weight_decay=fit.decay if self.decoupled else 0.0)
        updates, moments = method.update(gradient, state.moments, state.params)
        return AdamState(optax.apply_updates(state.params, updates), moments)


@dataclass(frozen=True)
class CosineAdam(NetworkRecipe):
    """Adam or AdamW with full batches and a learning rate that falls to 0 along half a cosine: see :class:`Adam`."""

    steps: int = 10_000
    learning_rate: float = 1e-3
    dtype: Literal["float32", "float64"] = "float32"

    _decoupled: ClassVar[bool]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, least=1)
        check_positive("learning_rate", self.learning_rate)
        check_choice("dtype", self.dtype, ("float32", "float64"))

    def _train(self, fits: Fits) -> list[Trained]:
        return run(
            self.network,
            AdamRule(self._decoupled),
            fits,
            [cosine_schedule(self.learning_rate, self.steps)] * len(fits),
            decay=self.weight_decay,
            dtype=self.dtype,
            label=type(self).__name__,
            chunks=-(-self.steps // training.CHUNK),
        )


def cosine(learning_rate: float, steps: int) -> np.ndarray:
    """Return the learning rates ``learning_rate (1 + cos(pi t / steps)) / 2`` of the steps t = 0 .. steps - 1."""
    return learning_rate * (1.0 + np.cos(np.pi * np.arange(steps) / steps)) / 2.0


def cosine_schedule(learning_rate: float, steps: int) -> Schedule:
    """Return a schedule with the learning rates of :func:`cosine`, chunk by chunk."""
    rates = cosine(learning_rate, steps)

    def schedule(snapshots: Sequence[Snapshot]) -> np.ndarray | None:
        start = len(snapshots) * training.CHUNK
        if start >= steps:
            return None
        return rates[start : start + training.CHUNK]

    return schedule
