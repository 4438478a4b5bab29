"""Remedies for parameters that are not a minimum, shared by several lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vhat.linalg.curvature.kinks import way_on

if TYPE_CHECKING:
    from vhat.evidence.audit.result import Line
    from vhat.variance.workspace import Workspace

__all__ = ["reach_minimum", "settle_first"]


def reach_minimum(work: Workspace) -> str:
    """Name, in sentences, the calls that give intervals for parameters that are not a minimum.

    ``polish`` is not recommended for a model with kinks, which it refuses, nor for a network that was stopped early,
    because it would undo that.
    """
    if work.kinks.verdict == "kinked":
        remedy = f"The model has {work.kinks.told}: no minimum of it can be certified. {way_on(work.problem)}"
    else:
        remedy = (
            "Where training was stopped early, fitted.linearised(validation=(X, y)) takes the network as it is. Where "
            "it was to reach a minimum, train longer or call fitted.polish()."
        )
    return with_own_validation(work, remedy)


def with_own_validation(work: Workspace, remedy: str) -> str:
    """Return a remedy without the argument ``validation=``, where the model has validation rows already."""
    if work.validation is None:
        return remedy
    return remedy.replace("linearised(validation=(X, y))", "linearised()")


def settle_first(stationary: Line) -> str:
    """Return the first sentence of a remedy that means little while the stationarity line does not hold."""
    return f"Settle stationarity first, which {'fails' if stationary.verdict == 'fails' else 'is undecided'}."
