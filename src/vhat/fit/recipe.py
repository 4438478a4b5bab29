"""The base class of recipes that train a network: one or many fits, from data to fitted models."""

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
    """A recipe that trains a network on ``L = 1/(2n) sum_i w_i |f(x_i) - y_i|^2`` with weight decay.

    Attributes:
        network: The network to train.
        weight_decay: The decay, and lam of the fitted model.
    """

    network: Network
    weight_decay: float

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise InputError(f"network={self.network!r} is not a vhat.fit.Network.")
        check_positive("weight_decay", self.weight_decay, zero=True)

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Train from random first parameters.

        Args:
            X: Rows, (n, inputs).
            y: Responses, (n,) or (n, outputs), in the shape of the predictions.
            seed: Seed of the first parameters; nothing else is random.
            sample_weight: Row weights, (n,), or None.

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
        """Train many fits in one compiled loop; each gives the same model as it would alone.

        Args:
            X: Rows, (n, inputs), shared by all fits.
            y: Responses, (n,) or (n, outputs).
            seeds: One seed per fit.
            sample_weights: Row weights of each fit, (fits, n). For a resample with replacement, the counts of the rows.
            targets: Responses of each fit in place of ``y``, (fits, n) or (fits, n, outputs).

        Returns:
            One fitted model per seed.

        Raises:
            InputError: When the data cannot be used.
            ModelError: When training diverges, naming the fits.
        """
        from vhat.fitted.construct import from_jax

        trained = self.train(X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        fitted = []
        for end, (_, target, weight) in zip(trained, each_fit(y, seeds, sample_weights, targets), strict=True):
            fitted.append(
                from_jax(self.network, end.params, X, target, weight_decay=self.weight_decay, sample_weight=weight)
            )
        return fitted

    def train(
        self, X: Any, y: Any, *, seeds: Sequence[int], sample_weights: Any = None, targets: Any = None
    ) -> list[Trained]:
        """Train like :meth:`many`, but return parameters and traces instead of fitted models."""
        fits = check_fits(self.network, X, y, seeds=seeds, sample_weights=sample_weights, targets=targets)
        return self._train(fits)

    @abstractmethod
    def _train(self, fits: Fits) -> list[Trained]:
        """Train on checked data."""


def check_positive(name: str, value: Any, *, zero: bool = False) -> None:
    """Refuse a value that is not a finite number above 0, or of at least 0 if ``zero``.

    Raises:
        InputError: Naming the option and the value.
    """
    finite = isinstance(value, int | float | np.integer | np.floating) and math.isfinite(value)
    if not finite or value < 0 or (value == 0 and not zero):
        allowed = "of at least 0" if zero else "above 0"
        raise InputError(f"{name}={value!r} is not a finite number {allowed}.")
