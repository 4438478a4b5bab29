"""The audit's line on the noise level, estimated or given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.errors import NoiseError, NotConverged
from vhat.evidence.audit.result import Line, Verdict
from vhat.evidence.audit.standardised_residuals import rows_in_loss
from vhat.variance.noise import UNCERTAIN, Noise, given_noise

if TYPE_CHECKING:
    from vhat.models.problem import Curvature, Problem
    from vhat.variance.workspace import Workspace

__all__ = ["as_sentence", "noise_line", "undecided_off_minimum", "untested_noise_line"]

_LEAST_SHARE = 0.01
"""Share of the residuals' degrees of freedom that a fit should leave, shown as the threshold."""
_FEW = 5
"""Residual degrees of freedom below which an estimated level is off by a third and more."""
_HEAD_OFF = 1.25
"""Factor by which the residuals may differ from what a variance head says: at 1.25 a 90% interval covers 81%."""
_LARGER, _SMALLER = 2.0, 0.5
"""Factors between the level of the residuals and a given one from which the line asks about the given one."""
NAN = float("nan")


def noise_line(work: Workspace, noise: Any, curvature: Curvature, seed: int) -> tuple[Noise | None, Line]:
    """Return the noise that the audit uses, None where there is none, and the line on it.

    Args:
        work: The fit.
        noise: The noise as the user gave it: levels, the name of a shape, or None.
        curvature: The curvature that the audit uses.
        seed: Seed of random probes.
    """
    problem = work.problem
    shape = noise if isinstance(noise, str) else None  # "weights" or "equal": how an estimate varies over the rows
    given = None if noise is None or shape is not None else given_noise(noise, problem)
    try:
        freedom = work.residual_freedom(curvature, seed, work.check_noise_shape(shape))
    except NotConverged as error:
        if given is None:
            return None, Line("noise", NAN, _LEAST_SHARE, "undecided", as_sentence(error), "")
        return given, Line("noise", NAN, _LEAST_SHARE, "assumed", _describe_given(given, None), "")
    share = freedom.share
    fitted = f"effective degrees of freedom {float(freedom.effective.sum()):.4g} of {freedom.rows * problem.outputs}"
    meaning = f"share of the residuals' freedom that the fit left; {fitted}"
    try:
        estimate = work.noise(shape, curvature, seed)
    except NoiseError as error:
        if given is None:
            return None, Line("noise", share, _LEAST_SHARE, "fails", as_sentence(error), meaning)
        return given, Line("noise", share, _LEAST_SHARE, "assumed", _describe_given(given, None), meaning)
    if given is not None:
        return given, Line("noise", share, _LEAST_SHARE, "assumed", _describe_given(given, estimate), meaning)
    if estimate.own:
        verdict, remedy = _judge_variance_head(work, estimate, curvature, seed)
    else:
        verdict, remedy = _judge_estimate(estimate, work.amplifies(curvature, seed))
    return estimate, Line("noise", share, _LEAST_SHARE, verdict, remedy, meaning)


def untested_noise_line(problem: Problem, noise: Any, why: str) -> Line:
    """Return the line where no system can be solved."""
    if noise is None or isinstance(noise, str):
        return Line("noise", NAN, _LEAST_SHARE, "undecided", why, "")
    return Line("noise", NAN, _LEAST_SHARE, "assumed", _describe_given(given_noise(noise, problem), None), "")


def undecided_off_minimum(line: Line, level: Noise | None, problem: Problem, minimum: bool) -> Line:
    """Return the noise line, undecided where an estimate rests on the degrees of freedom of a minimum elsewhere.

    A fit with many parameters that was stopped early has used few of their degrees of freedom. Its residuals are
    divided by those that the minimum would leave, which are too few, so that the estimate is too large.
    """
    if minimum or level is None or not level.estimated or level.validation_rows:
        return line
    seen = rows_in_loss(problem)
    size = np.sqrt(np.mean((problem.targets - problem.fitted_values)[seen] ** 2, axis=0))
    raw = np.array2string(size, precision=4) if size.size > 1 else f"{float(size[0]):.4g}"
    remedy = (
        f"The level {_level(level)} was {level.source}: it is divided by the freedom that a minimum would leave to the "
        "residuals, and these parameters are not known to be one. The residuals as they are have a root mean square of "
        f"{raw}. Call fitted.with_validation(X, y) with rows that training did not fit, or give noise= from replicates."
    )
    return replace(line, verdict="undecided", remedy=remedy)


def as_sentence(error: Exception | str) -> str:
    """Return a message with a capital letter."""
    text = str(error)
    return text[:1].upper() + text[1:]


def _judge_estimate(estimate: Noise, amplified: bool) -> tuple[Verdict, str]:
    """Return whether an estimated level can be relied on, and why.

    Args:
        estimate: The level.
        amplified: Whether some fitted values move further than the responses that they follow.
    """
    df = float(np.min(estimate.df)) if estimate.df is not None else NAN
    source = f"The level {_level(estimate)} was {estimate.source}."
    if estimate.validation_rows and estimate.relative_error > UNCERTAIN:
        few = f"So few rows tell it to about {100 * estimate.relative_error:.0f}% (one standard error)."
        remedy = "Intervals allow for it, and are wide. Give more validation rows, or noise=."
        return "undecided", f"{source} {few} {remedy}"
    if df < _FEW:
        few = f"It rests on {df:.2g} degrees of freedom, too few."
        return "undecided", f"{source} {few} Intervals allow for it, and are wide. Give noise=, or more rows."
    if amplified:
        why = "The minimum may be near a fold, or the model nearly interpolates."
        return "undecided", f"{source} {why} Give noise=, or raise weight_decay."
    return "holds", source


def _judge_variance_head(work: Workspace, noise: Noise, curvature: Curvature, seed: int) -> tuple[Verdict, str]:
    """Return whether the residuals are of the size that the model's own variance head predicts."""
    source = f"The noise is as the model's own variance head has it, {_level(noise)} (root mean square)."
    try:
        estimate = work.residual_noise(None, curvature, seed)
    except NoiseError:
        return "assumed", source
    ratio = estimate.level / noise.level
    worst = float(ratio[np.argmax(np.abs(np.log(ratio)))])
    found = f"{source} The residuals speak for {worst:.3g} times that."
    df = float(np.min(estimate.df)) if estimate.df is not None else 1.0
    # Three standard errors of the logarithm of an estimated level.
    if abs(np.log(worst)) <= np.log(_HEAD_OFF) + 3 / np.sqrt(2 * max(df, 1.0)):
        return "assumed", found
    remedy = (
        'Pass noise="weights" to take the level from the residuals and its shape from the head, give noise= and '
        "observation_noise=, or calibrate: fitted.calibrate(X, y)."
    )
    return "fails", f"{found} {remedy}"


def _describe_given(given: Noise, estimate: Noise | None) -> str:
    """Return a given level in words, beside that of the residuals where it is known."""
    told = f"The level {_level(given)} was given."
    if estimate is None:
        return told
    ratio = estimate.level / given.level
    residuals = f"The residuals speak for {_level(estimate)}"
    if np.max(ratio) > _LARGER:
        return f"{told} {residuals}: the model misses the data, or the noise is larger."
    if np.min(ratio) < _SMALLER:
        return f"{told} {residuals}: is it a standard deviation, in the unit of y?"
    return f"{told} {residuals}."


def _level(noise: Noise) -> str:
    return np.array2string(noise.level, precision=4) if noise.level.size > 1 else f"{noise.overall:.4g}"
