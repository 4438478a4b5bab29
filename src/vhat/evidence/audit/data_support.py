"""The audit's line on support: do the data, rather than the weight decay, determine the fit?"""

from __future__ import annotations

from vhat.errors import NotConverged
from vhat.evidence.audit.result import Line
from vhat.models.problem import Curvature
from vhat.variance.weighted_norm import MOSTLY
from vhat.variance.workspace import Workspace

__all__ = ["support_line"]


def support_line(work: Workspace, curvature: Curvature, seed: int) -> Line:
    """Return the share of the training predictions' freedom that the data leave to the decay, ``1 - tr(SS) / tr S``.

    No assumption of a bound fails where the share is large: the interval covers the mean of the prediction. But the
    penalty then determines that mean, which may be far from the truth, with next to no variance.
    """
    problem = work.problem
    try:
        freedom = work.residual_freedom(curvature, seed)
    except NotConverged as error:
        return Line("support", float("nan"), MOSTLY, "undecided", f"Not measured, because {error}", "")
    share = freedom.undetermined(problem.p)
    meaning = (
        "share of the training predictions' freedom that the data leave open; effective degrees of "
        f"freedom {float(freedom.effective.sum()):.3g}, parameters {problem.p}"
    )
    if work.refit is not None:
        usual = max(freedom.undetermined(len(freedom.effective)), 0.0)
        remedy = (
            "The ridge penalty keeps the refit at the model's own predictions to this share, in place of what stopped "
            "the training: that is no bias of theirs. abstain(max_unsupported=) counts from here."
        )
        return Line("support", usual, float("nan"), "noted", remedy, meaning)
    if share <= MOSTLY:
        return Line("support", share, MOSTLY, "holds", "The data decide the fit.", meaning)
    remedy = (
        "Weight decay decides the fit: intervals are narrow because little is left to vary, around predictions that "
        "are off by bias. Lower weight_decay; or read intervals for new responses that are calibrated."
    )
    return Line("support", share, MOSTLY, "fails", remedy, meaning)
