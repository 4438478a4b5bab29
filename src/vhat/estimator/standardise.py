"""From a model of standardised rows to one in the units of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vhat.fitted.model import FittedModel
from vhat.models.scaling import Scaling
from vhat.tables import validate

__all__ = ["in_user_units"]


def in_user_units(
    trained: FittedModel, scaling: Scaling, rows: validate.Rows, weight_decay: float, names: Any
) -> FittedModel:
    """Put the parameters that were found with all rows of the table, copies among them, in the user's units."""
    from vhat.models.jax import jax_problem
    from vhat.models.jax.autodiff import JaxAutodiff

    autodiff = trained.problem.autodiff
    assert isinstance(autodiff, JaxAutodiff)
    standardised = jax_problem(
        autodiff.model.predict.value,
        trained.params,
        scaling.inputs(rows.X),
        scaling.responses(rows.y),
        weight_decay=weight_decay,
        sample_weight=rows.weights,
    )
    problem = replace(
        standardised,
        X=rows.X,
        targets=rows.y.reshape(len(rows.y), -1),
        scaling=replace(scaling, columns=None if names is None else tuple(names)),
    )
    record = trained.polished
    return FittedModel(problem, polished=None if record is None else replace(record, problem=problem))
