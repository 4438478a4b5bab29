"""The guarantee of an interval: one sentence on what it covers, what was checked and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vhat.evidence.audit import Verdict
from vhat.intervals.estimated_tail import EstimatedTail
from vhat.intervals.fit_record import FitRecord
from vhat.intervals.options import Options
from vhat.intervals.tail import MODERATE, Tail
from vhat.level import level_text
from vhat.variance.noise import UNCERTAIN
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.weighted_norm import support_threshold

__all__ = ["BOUNDS_IN_WORDS", "Basis", "assumed_minimum", "assumed_of_norm", "headline", "noise_law", "sentence"]

BOUNDS_IN_WORDS = {
    "isoperimetric": "the isoperimetric bound",
    "tight": "the 'tight' bound",
    "theorem": "the published 'theorem' bound, whose terms in v and c are unproved",
    "sharp": "the published 'sharp' bound, whose terms in v and c are unproved",
    "empirical": "the 'tight' bound with E[V] bounded from V by its tail",
    "chebyshev": "Chebyshev's inequality",
    "asymptotic": "the delta method, which is exact only as n grows",
}
"""The inequality or law behind a width, by the name of the bound."""
_HEAVY_TAILS_AGREE = 0.05
"""Probability of a miss at which quantiles of the Gaussian and of Student's t with 4 degrees of freedom agree, scaled
to variance 1: 1.960 and 1.963. At 0.01 they are 2.58 and 3.26."""


@dataclass(frozen=True, eq=False)
class Basis:
    """Everything that the guarantee of an interval states.

    Attributes:
        fit: What was measured, checked and assumed of the fit.
        options: The options of the interval, the tail in use among them.
        bound: The bound in use: that of the options, or ``"exact"``.
        subject: ``"prediction"`` or ``"functional"``.
        points: Number of values.
        unsupported: Number of values at which the training data determine less than half of the prediction's freedom.
        off_minimum: Number of values at which the prediction at the minimum differs from the center by more than a
            tenth of the half width, to first order.
        probes: Number of random probes from which V was estimated; None where it was computed.
        shortcut: Whether ``c g'h`` stands for V.
    """

    fit: FitRecord
    options: Options
    bound: str
    subject: str
    points: int
    unsupported: int
    off_minimum: int
    probes: int | None = None
    shortcut: bool = False

    @property
    def guaranteed(self) -> bool:
        """Whether the level is exact under what was verified or supplied.

        The model is linear by structure, or by a Jacobian of the inputs alone, which the user supplied and a test at
        distant parameters confirmed. The parameters are its minimum for these values, and the noise level was given, or
        estimated from what no parameter explains, which is independent of the fit where the weights match the noise.
        """
        fit = self.fit
        at_minimum = fit.stationary == "holds" and not self.off_minimum
        fixed_before_the_data = not fit.decay_from_data and fit.refit is None and not fit.held_fixed
        exact_variance = not fit.chosen.span and not self.shortcut
        exact = self.bound == "exact"
        return exact and at_minimum and fixed_before_the_data and exact_variance and self._level_is_sound

    @property
    def _level_is_sound(self) -> bool:
        """Whether the noise level was given, or has a chi-square law and is independent of the fit.

        Of several outputs, the fit mixes noise levels that were estimated one by one.
        """
        if self.fit.variance_head:
            return False
        if not self.fit.noise.estimated:
            return True
        return self.fit.noise.independent and self.fit.matched and self.fit.noise.level.size == 1


def sentence(basis: Basis) -> str:
    """Compose the sentence."""
    claim = _claim(basis)
    doubts = _doubts(basis)
    if doubts:
        claim += f"; beware: {', '.join(doubts)}"
    return f"{claim}; checked: {', '.join(_checked(basis))}; assumed: {', '.join(_assumed(basis))}."


def headline(guarantee: str) -> str:
    """Return the claim of a guarantee, and what to beware of, without the list of what was checked and assumed."""
    ends = [at for at in (guarantee.find(part) for part in ("; checked: ", "; assumed: ")) if at >= 0]
    return f"{guarantee[: min(ends)]}." if ends else guarantee


def _claim(basis: Basis) -> str:
    standing = "Guaranteed" if basis.guaranteed else "Nominal"
    return f"{standing} {level_text(basis.options.delta)} {_scope(basis)}, for {_target(basis)}, by {_law(basis)}"


def _target(basis: Basis) -> str:
    """Return what the interval covers, in words."""
    if basis.options.target == "observation":
        return "a new response, if the model has no bias"
    truth = "not the truth behind it"
    if basis.options.bias is not None:
        truth = "widened for bias towards the truth behind it"
    refit = ""
    if basis.fit.refit is not None:
        refit = " by the ridge refit of the model's linearisation"
    return f"the mean of this {basis.subject}{refit} over fresh noise, {truth}"


def _scope(basis: Basis) -> str:
    """Return the points for which the level holds, in words."""
    if basis.options.joint == "":
        return "at each point taken alone"
    if basis.options.joint == "sup-t":
        return f"at all {basis.points} points at once (sup-t)"
    if basis.options.simultaneous == "sup-t":
        return f"at all {basis.points} points at once (union bound: delta is too small to simulate sup-t)"
    return f"at all {basis.points} points at once (union bound)"


def _law(basis: Basis) -> str:
    """Return the law or inequality behind the width, in words."""
    if basis.bound == "exact":
        law = "Student's t" if basis.fit.noise.estimated else "the normal distribution"
        what = "model that is" if basis.subject == "prediction" else "model and a functional that are"
        return f"{law}, for a {what} linear in its parameters"
    return BOUNDS_IN_WORDS[basis.bound]


def _doubts(basis: Basis) -> list[str]:
    """Return the reasons for which the interval may not have its level."""
    return [
        *_doubts_of_minimum(basis),
        *_doubts_of_fixed_parts(basis),
        *_doubts_of_noise(basis),
        *_doubts_of_width(basis),
    ]


def _doubts_of_minimum(basis: Basis) -> Iterator[str]:
    fit = basis.fit
    if fit.stationary == "holds":
        if basis.off_minimum:
            where = "this value is" if basis.points == 1 else f"{basis.off_minimum} of {basis.points} values are"
            remedy = "" if fit.chosen.kinks else " (call fitted.polish())"
            yield f"{where} not yet where the minimum would put it{remedy}"
    else:
        if fit.stationary == "fails":
            yield "the parameters are not a minimum (see the audit)"
        else:
            yield "whether the parameters are a minimum is undecided (see the audit)"
        if fit.noise.estimated and not fit.noise.validation_rows:
            yield (
                "the noise level was divided by the degrees of freedom that a minimum would leave, which may make it "
                "several times too large (call fitted.with_validation(X, y) with rows that training did not fit)"
            )
    if fit.chosen.kinks and fit.chosen.curvature == "hessian":
        yield f"the model has {fit.chosen.kinks}, of which the exact Hessian knows nothing"


def _doubts_of_fixed_parts(basis: Basis) -> Iterator[str]:
    """Yield doubts of an exact law whose fixed parts may come from the same responses."""
    if basis.bound != "exact":
        return
    if basis.fit.held_fixed and basis.fit.refit is None:
        yield (
            "if the parameters that are held fixed were trained on these responses, the interval may be far too narrow "
            "(calibrate on rows of their own)"
        )
    if basis.fit.decay_from_data:
        yield "the weight decay, or its unit, was taken from these responses, which the level does not allow for"


def _doubts_of_noise(basis: Basis) -> Iterator[str]:
    noise = basis.fit.noise
    if _rests_on_fitted_rows(basis):
        yield (
            "the noise level was read off rows that training fitted, which makes it too small where the model is "
            "overfitted (give validation=(X, y) to linearised(), or noise=)"
        )
    if noise.validation_rows and noise.relative_error > UNCERTAIN:
        rows = f"{noise.validation_rows} validation row{'s' if noise.validation_rows > 1 else ''}"
        yield (
            f"the noise level is known to about {100 * noise.relative_error:.0f}% (one standard error) from {rows} "
            "(give more of them, or noise=)"
        )
    if _is_too_narrow_for_heavy_tails(basis):
        yield (
            "the noise has heavier tails than a Gaussian, so that the limits are too narrow at this level for a new "
            "response (calibrate it: fitted.calibrate(X, y))"
        )


def _doubts_of_width(basis: Basis) -> Iterator[str]:
    fit = basis.fit
    if fit.refit is not None and not fit.refit.identified:
        instead = ""
        if fit.last_layer:
            instead = (
                " (a last layer is linear in its parameters: in place of linearised(), fitted.polish() finds its "
                "minimum by one solve)"
            )
        yield f"the validation rows do not tell how much a refit varies, so that the width may be far off{instead}"
    if fit.undetermined is not None:
        yield (
            "weight decay and not the data decides this fit (the data leave "
            f"{100 * fit.undetermined:.3g}% of its freedom open), so that its error is bias, which "
            "no width of this kind holds"
        )
    if basis.unsupported:
        yield _hardly_supported(basis)


def _hardly_supported(basis: Basis) -> str:
    """Return at how many values the training data determine too little, and the consequence there."""
    where = "this value" if basis.points == 1 else f"{basis.unsupported} of {basis.points} values"
    if basis.fit.refit is None:
        return f"the training data hardly speak for {where} (unsupported above 0.5), whose error is bias"
    usual = basis.fit.usual_unsupported
    return (
        f"the training data say less than half as much of {where} as of training rows (unsupported above "
        f"{support_threshold(usual):.3g}, where {usual:.2g} is usual), so that the ridge penalty keeps the refit "
        "at the model's own prediction there and the width may be too narrow"
    )


def _is_too_narrow_for_heavy_tails(basis: Basis) -> bool:
    """Whether the level is beyond the one at which Gaussian limits of a new response hold for heavy tails."""
    if basis.options.target != "observation" or not _has_heavy_tails(basis.fit.refit):
        return False
    delta = basis.options.delta
    if basis.options.joint == "union":
        delta /= basis.points
    return delta < _HEAVY_TAILS_AGREE


def _rests_on_fitted_rows(basis: Basis) -> bool:
    """Whether the noise of a linearised model rests on residuals whose degrees of freedom nothing measured."""
    if basis.fit.refit is None or basis.fit.refit.way == "retraining":
        return False
    return basis.fit.noise.estimated and not basis.fit.noise.validation_rows


def _checked(basis: Basis) -> list[str]:
    """Return what was verified."""
    fit = basis.fit
    if fit.refit is not None:
        found = ["the center is the model's own prediction", "linear and at its minimum by construction"]
        return found if fit.moved is None else [*found, _moved_by_polish("the model linearised is the one", fit.moved)]
    found = []
    if basis.bound == "exact":
        what = "" if basis.subject == "prediction" else "model and functional "
        how = "as tested at two other parameter vectors" if fit.linear_by_test else "by structure"
        found.append(f"{what}linear in its parameters {how}")
    if fit.chosen.curvature == "hessian":
        found.append("exact Hessian")
        if fit.stationary == "holds" and fit.chosen.definite.verdict == "positive":
            proved = fit.chosen.definite.method != "lanczos"
            found.append("certified minimum" if proved else "minimum, by a converged but unproved eigenvalue")
    if fit.moved is not None:
        subject = "the minimum is the one" if fit.stationary == "holds" else "the parameters are those"
        found.append(_moved_by_polish(subject, fit.moved))
    return found or ["nothing beyond convergence of the solves"]


def _moved_by_polish(subject: str, moved: float) -> str:
    """Return how far polish moved the predictions, in words."""
    return (
        f"{subject} that polish reached, its training predictions {moved:.2g} noise levels (root mean square) from "
        "those of the model given"
    )


def _assumed(basis: Basis) -> list[str]:
    """Return what was not verified."""
    chosen = basis.fit.chosen
    found = []
    if basis.fit.stationary != "holds":
        found.append(assumed_minimum(basis.fit.stationary))
    elif chosen.definite.verdict != "positive":
        found.append("that the minimum is a proper one (the sign of H + lam is not established)")
    if basis.bound == "exact":
        found += _assumed_of_linear(basis)
    else:
        if chosen.curvature == "ggn" and not chosen.span:
            why = f" ({chosen.reason})" if chosen.reason else ""
            found.append(f"Gauss-Newton in place of the exact Hessian{why}")
        found += assumed_of_norm(basis.options, basis.bound)
    if chosen.span:
        found.append(chosen.span)
    if basis.shortcut:
        found.append("g'h in place of V, which it is where the fit interpolates without decay")
    found.append(_assumed_noise(basis))
    if basis.probes is not None:
        found.append(_assumed_of_probes(basis))
    if basis.bound != "exact":
        found.append("one minimum that moves continuously with the noise, without jumps")
    if basis.options.bias is not None:
        kind = "plug-in" if isinstance(basis.options.bias, str) else "given"
        found.append(f"bias no larger than the {kind} term that was added")
    return found


def _assumed_of_probes(basis: Basis) -> str:
    """Return the assumption of a V that was estimated from random probes."""
    # With the exact Hessian the probes estimate V, and the Gauss-Newton matrix gives the unsupported share.
    two_matrices = basis.fit.chosen.curvature == "hessian" and not basis.fit.linear
    other = ", unsupported is that of Gauss-Newton" if two_matrices else ""
    return (
        f"points chosen without sight of the {basis.probes:,} random probes that V is estimated from (the sampling "
        f"error of V is allowed for{other})"
    )


def assumed_minimum(stationary: Verdict) -> str:
    """Return the assumption of a minimum where the audit does not say that it holds."""
    known = "WHICH THEY ARE NOT" if stationary == "fails" else "WHICH IS UNDECIDED"
    return f"that the parameters are a minimum, {known} (see the audit)"


def _assumed_of_linear(basis: Basis) -> list[str]:
    """Return the assumptions of an exact law."""
    if basis.fit.refit is not None:
        return [
            f"{basis.fit.refit.told}",
            "the parameters of the linearisation, lam and when training stopped held fixed although they came from "
            "these data (training again may vary more or less)",
        ]
    found = ["that predict is linear in theta everywhere, as jac(X) says"] if basis.fit.linear_by_test else []
    decay = "a weight decay fixed before these responses were seen"
    if basis.fit.decay_from_data:
        decay = "a weight decay that does not depend on these responses, WHICH IT DOES"
    if not basis.fit.held_fixed:
        return [*found, decay]
    return [*found, decay, "that the parameters which are held fixed were not trained on these responses"]


def assumed_of_norm(options: Options, bound: str) -> list[str]:
    """Return the assumptions of a bound on the mean and the tail of V.

    Args:
        options: The options of the interval, the tail in use among them.
        bound: The bound in use.
    """
    if bound == "asymptotic":
        return []
    tail = options.known_tail
    if isinstance(tail, EstimatedTail):
        return [_estimated_tail(tail, bound)]
    found = [] if bound == "empirical" else ["V in place of its mean E[V]"]
    if bound != "chebyshev":
        found.append(_assumed_tail(tail, bound))
    return found


def _estimated_tail(tail: EstimatedTail, bound: str) -> str:
    lost = f" ({tail.lost} more reached no minimum)" if tail.lost else ""
    redraws = f"{tail.redraws} redraws of the responses about this fit{lost} in place of the truth"
    if bound == "empirical":
        return f"a tail of V estimated from {redraws}"
    if bound == "isoperimetric":
        what = f"E[V] and the standard deviation of V as estimated from {redraws}"
        return f"{what}, with their Monte Carlo error allowed for"
    return f"E[V], with its Monte Carlo error allowed for, and the tail of V as estimated from {redraws}"


def _assumed_tail(tail: Tail | str | None, bound: str) -> str:
    if tail is None:
        return "that V does not vary with the noise (v = c = 0)"
    if tail == "constant":
        return "that V does not vary with the noise"
    if tail == "any":
        return "nothing of the tail of V"
    if bound == "isoperimetric" and tail == MODERATE:
        return "that V has a lighter tail than a chi-square with 8 degrees of freedom over 8"
    return "the tail of V that was supplied"


def _assumed_noise(basis: Basis) -> str:
    """Return the assumptions on the noise."""
    law = noise_law(basis.fit.refit)
    if basis.fit.noise.own:
        noise = (
            f"independent {law} as the model's own variance head has it, which is held fixed at its fitted values "
            "although it came from these responses"
        )
    else:
        noise = f"{law}, {_noise_shape(basis)}, its level {basis.fit.noise.source}{_freedom(basis)}"
    if not _has_heavy_tails(basis.fit.refit):
        return noise
    if basis.options.target == "observation":
        return (
            f"{noise}, and the limits of a Gaussian response, which for Student's t are right at 95% and a fifth too "
            "narrow at 99%"
        )
    return f"{noise}, and a {basis.subject} that is nearly Gaussian all the same, as a sum over many responses"


def noise_law(refit: RidgeRefit | None) -> str:
    """Return the law of the noise in words.

    Args:
        refit: The ridge refit of a linearised model, whose likelihood chose between two laws; else None.
    """
    if _has_heavy_tails(refit):
        return "noise with heavier tails than a Gaussian (Student's t with 4 degrees of freedom is likelier)"
    return "Gaussian noise"


def _has_heavy_tails(refit: RidgeRefit | None) -> bool:
    """Whether the penalty of a linearisation was found under noise with heavier tails than a Gaussian."""
    return refit is not None and refit.likelihood == "t4"


def _noise_shape(basis: Basis) -> str:
    if basis.fit.variance_head:
        return "independent, its size in each row that of the model's own variance head (held fixed) times one factor"
    return "the same in every row" if basis.fit.noise.uniform else "independent, its size in each row as described"


def _freedom(basis: Basis) -> str:
    """Return how the width allows for an estimated noise level, in words."""
    if basis.fit.noise.df is None:
        return ""
    left = f" with {float(np.min(basis.fit.noise.df)):.3g} degrees of freedom"
    if basis.guaranteed:
        return f"{left}, exact if the truth is in the model and too large otherwise"
    return f"{left}, allowed for as if it were independent of the fit"
