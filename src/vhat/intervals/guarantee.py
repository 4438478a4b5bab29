"""The one sentence that every interval carries: what it covers, what was checked, what was assumed."""

from __future__ import annotations

from dataclasses import dataclass

from vhat.level import level_text

__all__ = ["FEW", "Evidence", "headline", "sentence"]

FEW = 10
"""Degrees of freedom below which a noise level that was estimated must not be taken as known."""

_STANDING = {
    "isoperimetric": "the 'isoperimetric' bound",
    "tight": "the 'tight' bound",
    "theorem": "the published 'theorem' bound, whose terms in v and c are unproved",
    "sharp": "the published 'sharp' bound, whose terms in v and c are unproved",
    "empirical": "the 'tight' bound with E[V] bounded from V by its tail",
    "chebyshev": "Chebyshev's inequality",
    "asymptotic": "the delta method, which is exact only as n grows",
}


@dataclass(frozen=True)
class Evidence:
    """What was really used to make an interval.

    Attributes:
        delta: Failure probability.
        points: How many predictions.
        joint: ``""``, ``"union"`` or ``"sup-t"``.
        bound: The bound's name.
        tail: ``"neglected"``, ``"moderate"``, ``"constant"``, ``"any"``, ``"supplied"`` or ``"estimated"``.
        noise: The noise source.
        curvature: ``"hessian"`` or ``"ggn"``.
        reason: Why it is Gauss-Newton, if it was not asked for.
        stationary: Whether the gradient vanishes.
        definite: The verdict on ``H + lam``.
        decided: Whether that verdict came from the whole matrix rather than from a converged iteration.
        target: ``"mean"`` or ``"observation"``.
        bias: ``""`` or how bias was added.
        moved: How far polish moved the training predictions, in noise levels; None where it was not called.
        subject: ``"prediction"`` or ``"functional"``.
        df: Residual degrees of freedom of an estimated noise level, else None.
        shape: What is assumed of the noise over the rows.
        redraws: How many redraws of the responses an estimated tail rests on.
        lost: How many more of them had no minimum.
        unsupported: At how many of the points the training data hold less than half of the prediction's freedom.
        undetermined: The share of the training predictions' own freedom that the data do not hold, where that is more
            than half; else None.
    """

    delta: float
    points: int
    joint: str
    bound: str
    tail: str
    noise: str
    curvature: str
    reason: str
    stationary: bool
    definite: str
    decided: bool
    target: str
    bias: str
    moved: float | None
    subject: str
    df: float | None
    shape: str
    redraws: int = 0
    lost: int = 0
    unsupported: int = 0
    undetermined: float | None = None


def sentence(evidence: Evidence) -> str:
    """Compose the sentence."""
    doubts = _doubts(evidence)
    claim = f"{_claim(evidence)}; beware: {_join(doubts)}" if doubts else _claim(evidence)
    return f"{claim}; checked: {_join(_checked(evidence))}; assumed: {_join(_assumed(evidence))}."


def headline(guarantee: str) -> str:
    """The claim of a guarantee, and what to beware of, without the list of what was checked and assumed."""
    ends = [at for at in (guarantee.find(part) for part in ("; checked: ", "; assumed: ")) if at >= 0]
    return f"{guarantee[: min(ends)]}." if ends else guarantee


def _claim(evidence: Evidence) -> str:
    scope = {
        "": "at each point taken alone",
        "union": f"at all {evidence.points} points at once (union bound)",
        "sup-t": f"at all {evidence.points} points at once (sup-t)",
    }[evidence.joint]
    truth = "not the truth behind it" if not evidence.bias else "widened for bias towards the truth behind it"
    covered = {
        "mean": f"the mean of this {evidence.subject} over fresh noise, {truth}",
        "observation": "a new response, if the model has no bias",
    }[evidence.target]
    return f"Nominal {level_text(evidence.delta)} {scope}, for {covered}, by {_STANDING[evidence.bound]}"


def _doubts(evidence: Evidence) -> list[str]:
    """What makes the claim less than it seems."""
    found = []
    if not evidence.stationary:
        found.append("the parameters are not a minimum (see the audit)")
    if evidence.undetermined is not None:
        found.append(
            f"weight decay and not the data decides this fit (the data leave {100 * evidence.undetermined:.3g}% of its "
            "freedom open), so that its error is bias, which no width of this kind holds"
        )
    if evidence.unsupported:
        where = "this value" if evidence.points == 1 else f"{evidence.unsupported} of {evidence.points} values"
        found.append(f"the training data hardly speak for {where} (unsupported above 0.5), whose error is bias")
    return found


def _checked(evidence: Evidence) -> list[str]:
    found = []
    if evidence.curvature == "hessian":
        found.append("exact Hessian")
    if evidence.stationary and evidence.definite == "positive" and evidence.curvature == "hessian":
        found.append("certified minimum" if evidence.decided else "minimum, by a converged but unproved eigenvalue")
    if evidence.moved is not None:
        found.append(
            f"the minimum is the one that polish reached, its training predictions {evidence.moved:.2g} noise levels "
            "(root mean square) from those of the model given"
        )
    return found or ["nothing beyond convergence of the solves"]


def _assumed(evidence: Evidence) -> list[str]:
    found = []
    if not evidence.stationary:
        found.append("that the parameters are a minimum, WHICH THEY ARE NOT (see the audit)")
    elif evidence.definite != "positive":
        found.append("that the minimum is a proper one (the sign of H + lam is not established)")
    if evidence.curvature == "ggn":
        why = f" ({evidence.reason})" if evidence.reason else ""
        found.append(f"Gauss-Newton in place of the exact Hessian{why}")
    if evidence.bound not in ("asymptotic", "empirical"):
        found.append("V in place of its mean E[V]")
    if evidence.bound not in ("asymptotic", "chebyshev"):
        found.append(
            {
                "neglected": "that V does not vary with the noise (v = c = 0)",
                "constant": "that V does not vary with the noise",
                "any": "nothing of the tail of V",
                "moderate": "that V has a lighter tail than a chi-square with 8 degrees of freedom over 8",
                "supplied": "the tail of V that was supplied",
                "estimated": f"a tail estimated from {evidence.redraws} redraws of the responses about this fit"
                + (f" ({evidence.lost} more reached no minimum)" if evidence.lost else ""),
            }[evidence.tail]
        )
    found.append(f"Gaussian noise, {evidence.shape}, its level {evidence.noise}{_freedom(evidence)}")
    found.append("one minimum that moves continuously with the noise")
    if evidence.bias:
        found.append(f"bias no larger than the {evidence.bias} term that was added")
    return found


def _freedom(evidence: Evidence) -> str:
    if evidence.df is None:
        return ""
    if evidence.bound == "isoperimetric":
        return f" with {evidence.df:.3g} degrees of freedom, allowed for as if it were independent of the fit"
    known = "" if evidence.bound == "asymptotic" else " and used as if it were known"
    if known and evidence.df < FEW:
        known += ", FEW AS THEY ARE (bound='asymptotic' allows for that)"
    return f" with {evidence.df:.3g} degrees of freedom{known}"


def _join(parts: list[str]) -> str:
    return ", ".join(parts)
