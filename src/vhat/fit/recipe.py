"""What every recipe for a network shares: from data to parameters, and on to a fitted model, for one fit or many."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import InputError
from vhat.fit.data import Fits, check_fits, each_fit
from vhat.models.networks import Network

if TYPE_CHECKING:
    from vhat.fit.training import Trained
    from vhat.fitted.model import FittedModel

__all__ = ["NetworkRecipe", "check_positive"]


@dataclass(frozen=True)
class NetworkRecipe(ABC):
    """A way to train a network on ``L = 1/(2n) sum_i w_i |f(x_i) - y_i|^2`` with decay.

    Attributes:
        network: What is trained.
        weight_decay: The decay, lam of the fitted model.
    """

    network: Network
    weight_decay: float

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise InputError(f"network={self.network!r} is not a vhat.fit.Network.")
        check_positive("weight_decay", self.weight_decay, zero=True)

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Train from the parameters that ``seed`` draws.

        Args:
            X: Rows, (n, inputs).
            y: Responses, (n,) or (n, outputs) as the network predicts.
            seed: Draws the first parameters; nothing else is random.
            sample_weight: One weight a row, or None.

        Returns:
            The fitted model, ``loss="half_mse"``.

        Raises:
            InputError: When the data cannot be used.
            ModelError: When training diverges.
        """
        weights = None if sample_weight is None else [sample_weight]
        return self.many(X, y, seeds=[seed], sample_weights=weights)[0]

    def many(
        self, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
    ) -> list[FittedModel]:
        """Train many fits in one compiled loop: each ends where it would have ended alone.

        Args:
            X: Rows, (n, inputs), shared by all fits.
            y: Responses, (n,) or (n, outputs).
            seeds: One seed a fit.
            sample_weights: Weights of the rows in each fit, (fits, n). A resample with replacement is its counts.
            targets: Responses of each fit in place of ``y``, (fits, n) or (fits, n, outputs).

        Returns:
            One fitted model a seed.

        Raises:
            InputError: When the data cannot be used.
            ModelError: When training diverges, naming the fits.
        """
        from vhat.fitted.construct import from_jax

        trained = self.train(X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        return [
            from_jax(self.network, end.params, X, target, weight_decay=self.weight_decay, sample_weight=weight)
            for end, (_, target, weight) in zip(trained, each_fit(y, seeds, sample_weights, targets), strict=True)
        ]

    def train(
        self, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
    ) -> list[Trained]:
        """Train without making fitted models: parameters, and loss and alignment on the way. As :meth:`many`."""
        fits = check_fits(self.network, X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        return self._train(fits)

    @abstractmethod
    def _train(self, fits: Fits) -> list[Trained]:
        """Train on checked data."""


def check_positive(name: str, value: Any, *, zero: bool = False) -> None:
    """Refuse what is not a finite number above 0 (or 0, where that is allowed)."""
    number = isinstance(value, int | float | np.integer | np.floating) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not zero):
        raise InputError(f"{name}={value!r} is not a finite number {'of at least 0' if zero else 'above 0'}.")
