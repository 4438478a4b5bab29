"""Each check of the audit, as a function of the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from vhat.audit.line import Audit, Line, Verdict
from vhat.audit.probes import basin_line, smoothness_line
from vhat.definiteness import Definiteness
from vhat.errors import NoiseError, NotPositiveDefinite
from vhat.noise import Noise
from vhat.problem import Curvature, Problem
from vhat.solve import Status
from vhat.stationarity import evaluate, relative_gradient, units

if TYPE_CHECKING:
    from vhat.workspace import Workspace

__all__ = ["audit_fit", "stationarity_line"]

_STATIONARY = 0.01
_STATIONARY_WITHOUT_NOISE = 1e-6
_ALIGNED = 0.05
_NEARLY_SINGULAR = 1e-8
NAN = float("nan")


def audit_fit(work: Workspace, *, noise: Any, curvature: str, refits: int, seed: int) -> Audit:
    """Run every check; a check that cannot be made is a line too."""
    problem = work.problem
    try:
        chosen = work.choose_curvature(curvature, quiet=True)
    except NotPositiveDefinite as error:
        return Audit((*_without_solves(work), *_model_lines(problem), _blocked(str(error)), *_assumptions()))
    level, noise_found = _noise_line(work, noise, chosen.curvature, seed)
    return Audit(
        (
            stationarity_line(work, chosen.curvature, level, seed),
            *_alignment_lines(problem),
            *_eigenvalue_lines(work.definiteness("hessian")),
            _residual_curvature_line(work, seed),
            smoothness_line(work, chosen.curvature, level, seed),
            noise_found,
            *_model_lines(problem),
            basin_line(work, chosen.curvature, level, refits, seed),
            *_assumptions(),
        )
    )


def stationarity_line(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """How far the minimum is, in units of the spread that the noise itself gives the parameters.

    ``value^2 = grad' A^-1 grad / (sigma^2 tr S / n)``: without decay this is Bates and Watts' relative offset, the
    length of the residuals' projection on the tangent plane over ``sigma sqrt(p)``. It has no unit.
    """
    problem = work.problem
    point = evaluate(problem)
    if level is None:
        value = relative_gradient(point, units(problem))
        return _judge_stationarity(value, _STATIONARY_WITHOUT_NOISE, "the gradient relative to its terms, without unit")
    solution = work.own_solver(curvature).solve(point.gradient[None, :])
    if solution.status[0] != Status.CONVERGED:
        return Line("stationarity", NAN, _STATIONARY, "undecided", "The Newton step did not converge.", "")
    xp = array_namespace(point.gradient)
    decrement = float(xp.sum(point.gradient * solution.h[0, :]))
    effective = np.maximum(work.freedom(curvature, seed).effective, 0.0)
    spread = float(np.sum(level.level**2 * effective)) / problem.n
    value = float(np.sqrt(max(decrement, 0.0) / spread)) if spread > 0 else NAN
    return _judge_stationarity(
        value, _STATIONARY, "the distance to the minimum over the spread that the noise gives the parameters"
    )


def _judge_stationarity(value: float, threshold: float, meaning: str) -> Line:
    holds = value <= threshold
    remedy = (
        "The gradient vanishes for all purposes."
        if holds
        else "The parameters are not a minimum of the objective described: check loss and weight_decay against the "
        "alignment line, train longer, or call fitted.polish()."
    )
    return Line("stationarity", value, threshold, "holds" if holds else "fails", remedy, meaning)


def _alignment_lines(problem: Problem) -> list[Line]:
    """At a minimum ``grad L = -lam theta``; which lam do the parameters themselves imply?"""
    theta, decay = problem.numpy(problem.theta), problem.numpy(problem.decay)
    pull = float(theta @ (decay * theta))
    push = -float(theta @ problem.numpy(problem.gradient()))
    implied = push / float(theta @ theta) if theta.any() else NAN
    stated = pull / float(theta @ theta) if theta.any() else NAN
    noted = Line(
        "implied decay", implied, stated, "noted", "Compare it with the lam that was described.",
        "the lam with which these parameters align, -<grad L, theta>/|theta|^2",
    )  # fmt: skip
    if pull == 0:
        remedy = "There is no decay to align with."
        return [Line("alignment", NAN, NAN, "noted", remedy, "implied over stated decay"), noted]
    ratio = push / pull
    holds = abs(ratio - 1) <= _ALIGNED
    verdict: Verdict = "holds" if holds else "fails"
    return [
        Line(
            "alignment",
            ratio,
            1.0,
            verdict,
            _alignment_remedy(ratio, problem.outputs),
            "implied over stated decay",
        ),
        noted,
    ]


def _alignment_remedy(ratio: float, outputs: int) -> str:
    if abs(ratio - 1) <= _ALIGNED:
        return "The pull of the data balances the decay."
    if abs(ratio / (outputs / 2) - 1) <= _ALIGNED:
        return (
            f"The ratio is outputs/2 = {outputs / 2:g}: the model was trained on torch's MSELoss (a mean without the "
            'half). Pass loss="mse".'
        )
    if abs(ratio * outputs / 2 - 1) <= _ALIGNED:
        return 'The ratio is 2/outputs: loss="mse" was passed for a model trained on the half squared error.'
    if abs(ratio - 0.5) <= _ALIGNED:
        return "The ratio is 1/2: the model was trained on a sum of squares without the half. Halve weight_decay."
    if ratio < 0.2:
        return (
            "The decay hardly acted: decoupled decay (AdamW) or too few steps. Call fitted.polish(), or describe the "
            "lam that training really reached."
        )
    return "The decay described is not the one that acted in training: check weight_decay, or call fitted.polish()."


def _eigenvalue_lines(sign: Definiteness) -> list[Line]:
    verdict: Verdict = {"positive": "holds", "indefinite": "fails", "undecided": "undecided"}[sign.verdict]  # type: ignore[assignment]
    remedy = {
        "positive": "The sign is certain."
        if sign.method != "lanczos"
        else "The iteration settled above zero; that is not a proof.",
        "indefinite": "A direction of negative curvature was found: a saddle, or a point on the way. fitted.polish().",
        "undecided": "Zero lies within the error. More weight decay, or fewer redundant parameters.",
    }[sign.verdict]
    near = sign.value < _NEARLY_SINGULAR
    return [
        Line(
            "smallest eigenvalue", sign.value, sign.error, verdict, remedy,
            "smallest eigenvalue of H + lam, each parameter in its natural unit; the threshold is its error",
        ),
        Line(
            "conditioning", sign.value, _NEARLY_SINGULAR, "undecided" if near else "holds",
            "The data barely determine some direction: V rests on lam there. Raise weight_decay."
            if near
            else "No direction is left to rounding.",
            "the same eigenvalue against near-singularity",
        ),
    ]  # fmt: skip


def _residual_curvature_line(work: Workspace, seed: int) -> Line:
    """``|R z| / |G z|`` in the unit-free metric, root mean square over random directions."""
    problem, s = work.problem, work.scale()
    rng = np.random.default_rng(seed)
    z = problem.native(rng.standard_normal((4, problem.p))) / s
    full, gauss = problem.product(z, "hessian") / s, problem.product(z, "ggn") / s
    size = float(np.linalg.norm(problem.numpy(gauss)))
    value = float(np.linalg.norm(problem.numpy(full - gauss))) / size if size > 0 else NAN
    remedy = "Gauss-Newton would do." if value < 0.01 else "The exact Hessian differs from Gauss-Newton here."
    return Line("residual curvature", value, NAN, "noted", remedy, "size of R against the Gauss-Newton part")


def _noise_line(work: Workspace, noise: Any, curvature: Curvature, seed: int) -> tuple[Noise | None, Line]:
    problem, freedom = work.problem, work.freedom(curvature, seed)
    share = float(np.min(np.diag(freedom.residual))) / problem.n
    fitted = f"effective degrees of freedom {float(freedom.effective.sum()):.4g} of {problem.n * problem.outputs}"
    meaning = f"share of the residuals' freedom that the fit left; {fitted}"
    try:
        level = work.noise(noise, curvature, seed)
    except NoiseError as error:
        return None, Line("noise", share, 0.01, "fails", str(error), meaning)
    text = np.array2string(level.level, precision=4) if problem.outputs > 1 else f"{level.overall:.4g}"
    verdict: Verdict = "holds" if level.estimated else "assumed"
    return level, Line("noise", share, 0.01, verdict, f"The level {text} was {level.source}.", meaning)


def _model_lines(problem: Problem) -> list[Line]:
    facts = problem.facts()
    casts = ", ".join(facts.narrow_casts[:3])
    return [
        Line(
            "determinism", NAN, NAN, "holds" if facts.deterministic else "fails",
            "Two evaluations agree."
            if facts.deterministic
            else "Two evaluations of the same rows differ: switch dropout off, fix the random state.",
            "whether the model is a function",
        ),
        Line(
            "precision", facts.accuracy, NAN, "fails" if facts.narrow_casts else "holds",
            f"The model leaves float64 inside ({casts}): let constants and casts follow the input's dtype."
            if facts.narrow_casts
            else f"Parameters came as {facts.dtype}; everything was computed in float64.",
            "relative accuracy of second derivatives",
        ),
    ]  # fmt: skip


def _assumptions() -> list[Line]:
    return [
        Line("tail", NAN, NAN, "assumed", "Supply vhat.Tail(v, c) where it is known.", "how V varies with the noise"),
        Line(
            "gaussian noise", NAN, NAN, "assumed", "Counts and yes/no responses are not covered.",
            "independent Gaussian noise in y at fixed inputs",
        ),
    ]  # fmt: skip


def _without_solves(work: Workspace) -> list[Line]:
    problem = work.problem
    try:
        value = relative_gradient(evaluate(problem), units(problem))
        first = _judge_stationarity(
            value, _STATIONARY_WITHOUT_NOISE, "the gradient relative to its terms, without unit"
        )
    except NotPositiveDefinite:
        first = Line("stationarity", NAN, NAN, "undecided", "Some parameters have no scale.", "")
    return [first, *_alignment_lines(problem)]


def _blocked(reason: str) -> Line:
    return Line("smallest eigenvalue", NAN, NAN, "fails", reason, "smallest eigenvalue of H + lam")
