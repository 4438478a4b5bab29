"""Express a model that was fitted to standardised rows in the units of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.fitted.model import FittedModel
from vhat.models.problem import Problem
from vhat.models.scaling import Scaling
from vhat.tables import validate

if TYPE_CHECKING:
    from vhat.evidence.minimise import Polished

__all__ = ["in_user_units"]


def in_user_units(
    trained: FittedModel, scaling: Scaling, rows: validate.TrainingRows, weight_decay: float, names: Any
) -> FittedModel:
    """Return the trained parameters as a model of all rows of the table, copies included, in the units of the user.

    Args:
        trained: The fit to standardised rows, in which copies were merged.
        scaling: How the rows were standardised.
        rows: All rows, in the units of the user.
        weight_decay: lam.
        names: The names of the columns, or None.
    """
    standardised = _standardised(trained, scaling.inputs(rows.X), scaling.responses(rows.y), rows.weights, weight_decay)
    problem = replace(
        standardised,
        X=rows.X,
        targets=rows.y.reshape(len(rows.y), -1),
        scaling=replace(scaling, columns=None if names is None else tuple(names)),
    )
    return FittedModel(problem, polished=_at(trained.polished, problem))


def _standardised(
    trained: FittedModel, X: np.ndarray, y: np.ndarray, weights: np.ndarray, weight_decay: float
) -> Problem:
    """Return the problem of the network with these rows: in NumPy if it is small, else in JAX."""
    from vhat.models.dense_network import is_small, network_problem
    from vhat.models.dense_network.autodiff import NetworkAutodiff

    autodiff = trained.problem.autodiff
    if isinstance(autodiff, NetworkAutodiff):
        network = autodiff.network
    else:
        from vhat.models.jax.autodiff import JaxAutodiff

        assert isinstance(autodiff, JaxAutodiff)
        network = autodiff.model.predict.value
    options: dict[str, Any] = {"weight_decay": weight_decay, "sample_weight": weights}
    if is_small(network, len(X)):
        return network_problem(network, trained.params, X, y, dtype=autodiff.dtype, **options)
    from vhat.models.jax import jax_problem

    return jax_problem(network, trained.params, X, y, **options)


def _at(record: Polished | None, problem: Problem) -> Polished | None:
    """Return the record of a polish for the same parameters in another framework."""
    if record is None:
        return None
    with problem.scope():
        vector = problem.native(record.problem.numpy(record.definiteness.vector))
    return replace(record, problem=problem, definiteness=replace(record.definiteness, vector=vector))
