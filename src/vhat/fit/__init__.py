"""Networks as plain JAX functions, and recipes that train them.

A *recipe* is any callable ``recipe(X, y, *, seed, sample_weight=None) -> fitted``: one of the classes
here, or a training loop of your own that ends in ``vhat.from_jax`` or ``vhat.from_torch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from vhat.fit.adamw import AdamW
from vhat.fit.networks import Network, VarianceScaling, glorot, normal

if TYPE_CHECKING:
    from vhat.fitted import FittedModel

__all__ = ["AdamW", "Network", "Recipe", "VarianceScaling", "glorot", "normal"]


class Recipe(Protocol):
    """From data to a fitted model; the same seed gives the same model."""

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Train on rows ``X`` and responses ``y``."""
