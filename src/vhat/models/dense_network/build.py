"""Problems from the library's own networks and checked data, computed in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.checks import check_memory, check_targets, check_weights
from vhat.errors import InputError
from vhat.models.dense_network.autodiff import NetworkAutodiff
from vhat.models.dense_network.layers import flatten
from vhat.models.networks import Network
from vhat.models.problem import Problem

__all__ = ["is_small", "network_problem"]

_MAX_PARAMETERS = 2000
"""Largest p for which p x p matrices (32 MB) are formed and factorised at every step of a fit."""
_MAX_JACOBIAN_NUMBERS = 1.5e7
"""Largest size n K p of the Jacobian, which is kept: 120 MB, and two or three times as much while it is used."""
_MAX_FLOPS = 1e10
"""Largest cost n K p^2 of one Gauss-Newton matrix, about 0.3 CPU seconds. A choice of weight decay forms about a
hundred of them."""


def is_small(network: Network, rows: int) -> bool:
    """Return whether a network with this number of training rows is computed in NumPy.

    The answer depends on the sizes only, so that no result depends on the machine.
    """
    p = network.parameters
    predictions = rows * network.widths[-1]
    return p <= _MAX_PARAMETERS and predictions * p <= _MAX_JACOBIAN_NUMBERS and predictions * p**2 <= _MAX_FLOPS


def network_problem(
    network: Network,
    params: Any,
    X: np.ndarray,
    y: np.ndarray,
    *,
    weight_decay: Any,
    sample_weight: Any = None,
    memory: float | None = None,
    dtype: str = "float64",
) -> Problem:
    """Return the problem of a network, its parameters and its training data, with ``loss="half_mse"``.

    Args:
        network: The network.
        params: In the structure of ``network.init``, or the flat vector (p,).
        X: Rows, (n, inputs), float64.
        y: Responses, (n,) or (n, outputs).
        weight_decay: lam, a number or one per parameter, (p,).
        sample_weight: One weight per row.
        memory: Budget in bytes.
        dtype: The dtype in which the parameters were trained.

    Raises:
        InputError: When the number of parameters or the shape of the data is not that of the network.
    """
    theta = np.array(params, dtype=np.float64) if isinstance(params, np.ndarray) else flatten(params)
    if theta.shape != (network.parameters,):
        raise InputError(f"params hold {theta.size} numbers; this network has {network.parameters}.")
    outputs = network.widths[-1]
    targets = check_targets(y, (len(X),) if outputs == 1 else (len(X), outputs))
    return Problem(
        autodiff=NetworkAutodiff(network, dtype),
        theta=theta,
        decay=np.broadcast_to(np.asarray(weight_decay, dtype=np.float64), theta.shape).copy(),
        X=np.asarray(X, dtype=np.float64),
        targets=targets,
        weights=check_weights(sample_weight, len(targets)),
        memory=check_memory(memory),
    )
