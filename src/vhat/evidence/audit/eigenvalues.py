"""The audit's lines on the smallest eigenvalue of the regularised Hessian: its sign, and how near it is to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.evidence.audit.remedies import reach_minimum, with_own_validation
from vhat.evidence.audit.result import Line, Verdict
from vhat.linalg.curvature.definiteness import Definiteness
from vhat.linalg.curvature.kinks import way_on

if TYPE_CHECKING:
    from vhat.models.problem import Curvature
    from vhat.variance.workspace import Workspace

__all__ = ["eigenvalue_lines"]

_NEARLY_SINGULAR = 1e-8
"""Eigenvalue, with each parameter in its natural unit, below which V rests on the decay or on rounding."""
NAN = float("nan")


def eigenvalue_lines(work: Workspace, curvature: Curvature) -> list[Line]:
    """Return both lines. A model with kinks has no Hessian, so that its Gauss-Newton matrix is judged."""
    if curvature == "ggn" and work.kinks.verdict == "kinked":
        remedy = (
            f"Not computed: the model has {work.kinks.told}, of which a Hessian knows nothing, and intervals use the "
            f"Gauss-Newton matrix. {with_own_validation(work, way_on(work.problem))}"
        )
        line = Line("smallest eigenvalue", NAN, NAN, "undecided", remedy, "")
        return [line, _conditioning_line(work.definiteness("ggn"))]
    sign = work.definiteness("hessian")
    meaning = "smallest eigenvalue of H + lam, each parameter in its natural unit; the threshold is its error"
    verdict, remedy = _judge_sign(work, sign)
    line = Line("smallest eigenvalue", sign.value, sign.error, verdict, remedy, meaning)
    return [line, _conditioning_line(sign)]


def _judge_sign(work: Workspace, sign: Definiteness) -> tuple[Verdict, str]:
    """Return the verdict on the sign of the eigenvalue, and the remedy."""
    if sign.verdict == "positive":
        if sign.method != "lanczos":
            return "holds", "The sign is certain."
        if sign.assured:
            return "holds", (
                "The iteration settled above zero. That is no proof: of a thousand such iterations, one may miss a "
                "value below half of this one."
            )
        return "holds", (
            "The iteration settled above zero. That is no proof, and too few steps to tell how likely it is."
        )
    if sign.verdict == "indefinite":
        found = "A direction of negative curvature was found: a saddle, or a point on the way to a minimum."
        return "fails", f"{found} {reach_minimum(work)}"
    if np.isfinite(sign.error):
        return "undecided", (
            "Zero lies within the error: the data and the decay leave some direction undetermined. Raise weight_decay, "
            "or remove redundant parameters."
        )
    return "undecided", (
        "The iteration did not settle, so that the sign is open. Raise weight_decay, or give more memory for a "
        "factorisation."
    )


def _conditioning_line(sign: Definiteness) -> Line:
    meaning = "the same eigenvalue against near-singularity"
    verdict: Verdict = "undecided"
    if sign.verdict == "positive" and sign.value >= _NEARLY_SINGULAR:
        verdict = "holds"
        remedy = "No direction is left to rounding."
    elif sign.verdict == "indefinite":
        remedy = "Not a question before the curvature is positive."
    else:
        remedy = "The data barely determine some direction: V rests on lam there, or on rounding. Raise weight_decay."
    return Line("conditioning", sign.value, _NEARLY_SINGULAR, verdict, remedy, meaning)
