"""Save and restore the library's own networks, computed in NumPy.

The document is that of :mod:`vhat.store.jax`, so that a network saved from JAX can be restored in NumPy and vice versa.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np

from vhat.errors import StoreError
from vhat.models.dense_network import is_small, network_problem
from vhat.models.dense_network.autodiff import NetworkAutodiff
from vhat.models.dense_network.layers import flatten
from vhat.models.networks import Network, VarianceScaling
from vhat.models.problem import Problem
from vhat.schema import build
from vhat.store.document import Document
from vhat.store.match_model import Supplied

__all__ = [
    "describe",
    "input_arrays",
    "inputs",
    "is_computed_in_numpy",
    "model_name",
    "move",
    "network_of",
    "parameters",
    "rebuild",
]


def is_computed_in_numpy(model: Document, rows: int) -> bool:
    """Return whether a saved model is a network that is small enough to be computed in NumPy.

    Args:
        model: The result of ``describe``, here or in :mod:`vhat.store.jax`.
        rows: The number of training rows.
    """
    is_own_network = model["network"] is not None and model["loss"] == "half_mse"
    is_own_network = is_own_network and tuple(model["columns"]) == (None,)
    all_trained = not model.get("last") and model.get("selected") is None
    return is_own_network and all_trained and is_small(network_of(model["network"]), rows)


def describe(problem: Problem) -> Document:
    """Describe the model, without parameters and data."""
    autodiff = _autodiff(problem)
    return {
        "network": asdict(autodiff.network),
        "loss": "half_mse",
        "plain": True,
        "columns": (None,),
        "dtype": autodiff.dtype,
    }


def _autodiff(problem: Problem) -> NetworkAutodiff:
    return cast(NetworkAutodiff, problem.autodiff)


def parameters(problem: Problem) -> Any:
    """Return the parameters in the structure of ``network.init``."""
    return problem.params


def inputs(problem: Problem) -> np.ndarray:
    """Return the training inputs."""
    X: np.ndarray = problem.X
    return X


def input_arrays(problem: Problem) -> list[np.ndarray]:
    """Return the training inputs, for their checksum."""
    return [problem.X]


def rebuild(saved: Document, params: Any, X: Any, y: Any, supplied: Supplied) -> Problem:
    """Build the problem from the saved network and its parameters.

    Args:
        saved: The document. Its entries ``model``, ``weight_decay`` and ``sample_weight`` are used.
        params: The result of :func:`parameters`.
        X: Training inputs.
        y: Training responses.
        supplied: The caller's options.
    """
    model = saved["model"]
    network = network_of(model["network"])
    if supplied.model is not None and supplied.model != network:
        raise StoreError(f"the model is a network of vhat's own, {network}. Leave model= out.")
    supplied.loss_for(model["loss"])
    problem = network_problem(
        network, params, X, y, weight_decay=saved["weight_decay"], memory=supplied.memory, dtype=model["dtype"]
    )
    return replace(problem, weights=saved["sample_weight"])


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    return problem.at(flatten(to))


def model_name(model: Document) -> str:
    """Return the name of the model in messages."""
    del model
    return "the network that this version of vhat makes"


def network_of(options: Document) -> Network:
    """Return a network from its saved options."""
    initial: Any = options["initial"]
    if isinstance(initial, tuple):
        initial = tuple(build(VarianceScaling, each) for each in initial)
    else:
        initial = build(VarianceScaling, initial)
    return build(Network, options, initial=initial)
