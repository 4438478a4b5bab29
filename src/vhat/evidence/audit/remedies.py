"""What to do where the parameters are not a minimum: words that several lines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vhat.linalg.curvature.kinks import way_on

if TYPE_CHECKING:
    from vhat.evidence.audit.result import Line
    from vhat.variance.workspace import Workspace

__all__ = ["onward", "settle_first"]


def onward(work: Workspace) -> str:
    """Say, in sentences, which calls give intervals for parameters that are not a minimum.

    A model with kinks is not sent to ``polish``, which refuses it, and a network that was stopped early is not either:
    polish would undo that.
    """
    if work.kinks.verdict == "kinked":
        return f"The model has {work.kinks.told}: no minimum of it can be certified. {way_on(work.problem)}"
    return (
        "Where training was stopped early, fitted.linearised(validation=(X, y)) takes the network as it is. Where it "
        "was to reach a minimum, train longer or call fitted.polish()."
    )


def settle_first(stationary: Line) -> str:
    """Return the advice of a line that means little while the stationarity line does not hold."""
    return f"Settle stationarity first, which {'fails' if stationary.verdict == 'fails' else 'is undecided'}"
