"""How steep a network of the library is in its inputs, from its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vhat.models.networks import Network
from vhat.models.problem import Problem

__all__ = ["SLOPES", "Steepness", "network_of", "steepness"]

SLOPES = {"relu": 1.0, "tanh": 1.0, "softplus": 1.0, "gelu": 1.13, "silu": 1.10}
"""Bounds on the slopes of the activations."""


class Steepness(NamedTuple):
    """What a Lipschitz constant of a network is made of.

    Attributes:
        layers: K, the number of weight matrices.
        weights: The product of their operator norms, times the slopes of the activations, in the units of the model.
        slopes: The product of the slopes of the activations alone.
        unit: What a constant in the units of the model is multiplied by to be one in those of the user.
    """

    layers: int
    weights: float
    slopes: float
    unit: float


def network_of(problem: Problem) -> Network | None:
    """Return the network behind a problem where it is one of the library's own; else None."""
    own = getattr(problem.autodiff, "network", None)
    if own is None:
        predict: Any = getattr(getattr(problem.autodiff, "model", None), "predict", None)
        own = getattr(predict, "value", None)
    return own if isinstance(own, Network) else None


def steepness(problem: Problem) -> Steepness | None:
    """Return the steepness of a network of the library's own.

    None for other models, for networks of which some layers are held fixed, and where columns are transformed before
    the network sees them: the slope of such a transformation has no bound.
    """
    network = network_of(problem)
    scaling = problem.scaling
    if network is None or bool(getattr(problem.autodiff, "held_fixed", False)):
        return None
    if scaling is not None and scaling.power is not None:
        return None
    layers = problem.params
    norms = [float(np.linalg.norm(np.asarray(layer["w"]), 2)) for layer in layers]
    slopes = SLOPES[network.activation] ** (len(norms) - 1)
    # f_user(x) = shift + unit f((x - center) / spread)
    unit = 1.0 if scaling is None else float(np.max(scaling.unit) / np.min(scaling.spread))
    return Steepness(len(norms), slopes * float(np.prod(norms)), slopes, unit)
