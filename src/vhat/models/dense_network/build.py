"""A network of the library's own and checked numbers as a problem in NumPy."""

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

_MOST_PARAMETERS = 2000
"""Parameters up to which matrices of p x p numbers (32 MB) are formed and factorised at every step of a fit."""
_MOST_NUMBERS = 1.5e7
"""Numbers of the Jacobian, n K p, that are kept: 120 MB, and two or three times as much while it is used."""
_MOST_FLOPS = 1e10
"""Operations n K p^2 of one Gauss-Newton matrix: some 0.3 CPU seconds, of which a choice of weight decay takes a
hundred."""


def is_small(network: Network, rows: int) -> bool:
    """Return whether a network with so many training rows is computed in NumPy.

    A function of the sizes alone, so that no result depends on the machine.
    """
    p, pairs = network.parameters, rows * network.widths[-1]
    return p <= _MOST_PARAMETERS and pairs * p <= _MOST_NUMBERS and pairs * p**2 <= _MOST_FLOPS


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
    """Make a problem of a network, its parameters and its training data, ``loss="half_mse"``.

    Args:
        network: The network.
        params: In the structure of ``network.init``, or the flat vector (p,).
        X: Rows, (n, inputs), float64.
        y: Responses, (n,) or (n, outputs).
        weight_decay: lam, a number or one a parameter, (p,).
        sample_weight: One weight a row.
        memory: Budget in bytes.
        dtype: The dtype in which the parameters were trained.

    Raises:
        InputError: When the parameters are not those of the network, or the data are not of its shape.
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
