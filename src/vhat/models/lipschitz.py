"""Lipschitz constant of one of the library's networks as a function of its inputs, computed from its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vhat.models.networks import Network
from vhat.models.problem import Problem

__all__ = ["SLOPES", "Steepness", "network_of", "steepness"]

SLOPES = {"relu": 1.0, "tanh": 1.0, "softplus": 1.0, "gelu": 1.13, "silu": 1.10}
"""Upper bounds on ``|phi'|`` for the activations phi."""


class Steepness(NamedTuple):
    """The terms of a Lipschitz constant of a network.

    Attributes:
        layers: Number of weight matrices.
        weights: The product of their operator norms and of ``slopes``, in the units of the model.
        slopes: The product of the bounds ``SLOPES`` over the hidden layers.
        unit: Factor from a Lipschitz constant in the units of the model to one in the user's units.
    """

    layers: int
    weights: float
    slopes: float
    unit: float


def network_of(problem: Problem) -> Network | None:
    """Return a problem's network if it is one of the library's own; else None."""
    network = getattr(problem.autodiff, "network", None)  # computed in NumPy
    if network is None:  # computed in JAX
        predict: Any = getattr(getattr(problem.autodiff, "model", None), "predict", None)
        network = getattr(predict, "value", None)
    return network if isinstance(network, Network) else None


def steepness(problem: Problem) -> Steepness | None:
    """Return the terms of the Lipschitz constant of one of the library's own networks.

    None for other models, for networks with fixed layers, and where skewed columns are transformed before they enter
    the network: the slope of such a transformation is unbounded.
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
    # f_user(x) = shift + unit f((x - center) / spread), so slopes are multiplied by at most max(unit) / min(spread).
    unit = 1.0 if scaling is None else float(np.max(scaling.unit) / np.min(scaling.spread))
    return Steepness(len(norms), slopes * float(np.prod(norms)), slopes, unit)
