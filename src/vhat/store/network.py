"""The library's own networks in NumPy, in the documents that JAX's have: each version of vhat reads the other's."""

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
from vhat.store.match_model import Brought

__all__ = ["describe", "inputs", "move", "network_of", "point", "rebuild", "rows", "serves", "whose"]


def serves(model: Document, rows: int) -> bool:
    """Return whether a model that JAX or NumPy has saved is computed in NumPy.

    Args:
        model: What ``describe`` gave.
        rows: How many training rows there are.
    """
    plain = model["network"] is not None and model["loss"] == "half_mse" and tuple(model["columns"]) == (None,)
    whole = not model.get("last") and model.get("selected") is None  # every parameter was trained
    return plain and whole and is_small(network_of(model["network"]), rows)


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


def point(problem: Problem) -> Any:
    """The parameters in the structure of ``network.init``."""
    return problem.params


def inputs(problem: Problem) -> np.ndarray:
    """The training inputs."""
    X: np.ndarray = problem.X
    return X


def rows(problem: Problem) -> list[np.ndarray]:
    """The training inputs, for their checksum."""
    return [problem.X]


def rebuild(saved: Document, at: Any, X: Any, y: Any, brought: Brought) -> Problem:
    """Make the problem again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: Training inputs.
        y: Training responses.
        brought: The caller's options.
    """
    model = saved["model"]
    network = network_of(model["network"])
    if brought.model is not None and brought.model != network:
        raise StoreError(f"the model is a network of vhat's own, {network}. Leave model= out.")
    brought.loss_for(model["loss"])
    problem = network_problem(
        network, at, X, y, weight_decay=saved["weight_decay"], memory=brought.memory, dtype=model["dtype"]
    )
    return replace(problem, weights=saved["sample_weight"])


def move(problem: Problem, to: Any) -> Problem:
    """Return the problem at other saved parameters."""
    return problem.at(flatten(to))


def whose(model: Document) -> str:
    """What messages call the model."""
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
