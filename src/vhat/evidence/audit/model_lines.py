"""The audit's lines on determinism, precision and interpolation, and on the tail and the law of the noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.evidence.audit.result import Line, Verdict
from vhat.models.problem import Problem
from vhat.variance.interpolation import INTERPOLATES, residual_share

if TYPE_CHECKING:
    from vhat.variance.workspace import Workspace

__all__ = ["gaussian_noise_line", "interpolation_lines", "model_lines", "tail_line"]

_ACCURATE = 1e-3
"""Largest relative error of second derivatives."""
_ROWS = 8
"""Training rows that are predicted again."""
_REPEATS, _REPEATS_FLOAT32 = 1e-6, 1e-3
"""Largest relative difference between two predictions of a row, in float64 and of a model that computes in float32."""
NAN = float("nan")


def model_lines(problem: Problem) -> list[Line]:
    """Return the lines on determinism and precision."""
    facts = problem.facts()
    rtol = _REPEATS_FLOAT32 if facts.narrow_casts else _REPEATS
    same = facts.deterministic and _predicts_as_before(problem, rtol)
    if same:
        told = "Two evaluations agree."
    else:
        told = (
            "Two evaluations of the same rows differ: switch dropout off, fix the random state, and let the model read "
            "nothing that changes."
        )
    deterministic = Line("determinism", NAN, NAN, "holds" if same else "fails", told, "whether the model is a function")
    meaning = "relative accuracy of second derivatives"
    if facts.narrow_casts:
        casts = ", ".join(facts.narrow_casts[:3])
        told = f"The model leaves float64 inside ({casts}): let constants and casts follow the input's dtype."
        return [deterministic, Line("precision", facts.accuracy, NAN, "fails", told, meaning)]
    verdict: Verdict = "holds"
    told = f"Parameters came as {facts.dtype}; everything was computed in float64."
    if not facts.accuracy <= _ACCURATE:  # also where it is NaN
        verdict = "fails"
        told = "Differences do not settle on this model's derivatives: give jac= and hess=, or use from_jax."
    return [deterministic, Line("precision", facts.accuracy, _ACCURATE, verdict, told, meaning)]


def _predicts_as_before(problem: Problem, rtol: float) -> bool:
    """Whether the first training rows are predicted as they were when the model was given."""
    few = min(problem.n, _ROWS)
    before = problem.fitted_values[:few]
    atol = rtol * float(np.max(np.abs(before)))
    for _ in range(2):  # twice: a random model may agree once
        again = problem.predict(problem.take(problem.X, 0, few))
        if not np.all(np.abs(again - before) <= atol):
            return False
    return True


def tail_line() -> Line:
    """Return the line on the tail of V, which cannot be tested."""
    return Line("tail", NAN, NAN, "assumed", "Supply vhat.Tail(v, c) where it is known.", "how V varies with the noise")


def gaussian_noise_line(work: Workspace) -> Line:
    """Return the line on the law of the noise, which is refuted only by responses of two values or by heavy tails."""
    problem = work.problem
    meaning = "independent Gaussian noise in y at fixed inputs"
    verdict: Verdict = "assumed"
    remedy = "Counts and yes/no responses are not covered."
    if problem.n > _ROWS and any(len(np.unique(column)) == 2 for column in problem.targets.T):
        verdict = "fails"
        remedy = "y takes two values only: yes/no responses are not covered. Model them by another method."
    elif work.refit is not None and work.refit.likelihood == "t4":
        verdict = "noted"
        remedy = (
            "The errors are likelier under Student's t with 4 degrees of freedom. That matters little for the mean. "
            "Limits for a new response are right at 95%, a little too wide at 90%, where they cover 92%, and too "
            "narrow beyond 95%: fitted.calibrate(X, y) needs no law."
        )
    return Line("gaussian noise", NAN, NAN, verdict, remedy, meaning)


def interpolation_lines(problem: Problem) -> list[Line]:
    """Return the line on whether a fit without decay interpolates, for models that could; else nothing."""
    share = residual_share(problem)
    could = problem.p > problem.n * problem.outputs or share <= INTERPOLATES
    if np.any(problem.numpy(problem.decay) != 0) or not could:
        return []
    meaning = "residuals as a share of the responses' spread, without decay"
    if share <= INTERPOLATES:
        remedy = (
            "The residuals vanish: solver=vhat.MinimumNorm() and noise= give the intervals of minimum-norm solutions."
        )
        return [Line("interpolation", share, INTERPOLATES, "holds", remedy, meaning)]
    remedy = "The residuals do not vanish: solver=vhat.MinimumNorm() would leave out the curvature that they bring."
    return [Line("interpolation", share, INTERPOLATES, "noted", remedy, meaning)]
