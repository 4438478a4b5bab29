"""Each check of the audit, as a function of the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from vhat.checks import check_count
from vhat.errors import Interrupted, NoiseError, NotConverged, NotPositiveDefinite
from vhat.evidence.audit.alignment import alignment_lines
from vhat.evidence.audit.basin import basin_line
from vhat.evidence.audit.data_support import support_line
from vhat.evidence.audit.early_stopping import early_stopping_line, refit_comparison_line
from vhat.evidence.audit.lack_of_fit import lack_of_fit_line
from vhat.evidence.audit.linearisation import constructed_lines, noise_of_fitted_rows, refit_lines
from vhat.evidence.audit.noise_moves import noise_pushes
from vhat.evidence.audit.outliers import outliers_line
from vhat.evidence.audit.remedies import onward, settle_first
from vhat.evidence.audit.residual_curvature import residual_curvature_line
from vhat.evidence.audit.result import Audit, Line, Verdict
from vhat.evidence.audit.row_groups import group_rows
from vhat.evidence.audit.smoothness import smoothness_line
from vhat.evidence.audit.standardised_residuals import NotTested, seen_rows, standardised_residuals
from vhat.evidence.audit.unequal_noise import unequal_noise_line
from vhat.evidence.audit.validation_residuals import as_problem, validation_residuals
from vhat.evidence.minimise.stationarity import evaluate, relative_gradient, units
from vhat.linalg.curvature.definiteness import Definiteness
from vhat.linalg.curvature.kinks import way_on
from vhat.linalg.solvers import Status
from vhat.models.problem import Curvature, Problem
from vhat.progress import bar
from vhat.variance.interpolation import INTERPOLATES, residual_share
from vhat.variance.noise import UNCERTAIN, Noise, given_noise

if TYPE_CHECKING:
    from vhat.variance.workspace import Workspace

__all__ = ["audit_fit", "moved_by", "residual_lines", "stationarity_line"]

_STATIONARY = 0.01
_STATIONARY_WITHOUT_NOISE = 1e-6
_NEARLY_SINGULAR = 1e-8
_LEAST_SHARE = 0.01
_FEW = 5
"""Below so many residual degrees of freedom the estimated noise is off by a third and more."""
_HEAD_OFF = 1.25
"""Factor by which the residuals may differ from what a variance head says: at 1.25 a 90% interval covers 81%."""
_REDRAWS = 8
_FEW_ROWS = 128
_ACCURATE = 1e-3
_SEEN = 8
"""Rows that are predicted again."""
_LINES = 17
"""Lines of an audit, for its progress bar; one more or less does not matter there."""
NAN = float("nan")


def audit_fit(
    work: Workspace, *, noise: Any, curvature: str, refits: int, seed: int, given: Problem | None = None
) -> Audit:
    """Run every check; a check that cannot be made is a line too.

    Raises:
        InputError: For options that cannot be used.
        Interrupted: On Ctrl-C, with the lines that are finished.
    """
    check_count("refits", refits)
    check_count("seed", seed)
    if noise is not None and not isinstance(noise, str):
        given_noise(noise, work.problem)
    found: list[Line] = []
    try:
        with bar("audit", _LINES) as advance:
            for line in _lines(work, noise, curvature, refits, seed, given):
                found.append(line)
                advance(line.name)
    except KeyboardInterrupt:
        names = ", ".join(line.name for line in found) or "none"
        raise Interrupted(
            f"the lines of the audit that were finished: {names}. To keep them: except vhat.Interrupted as stop: "
            "stop.record. Ask for audit() again to go on: what was measured of the model is kept.",
            Audit(tuple(found)),
        ) from None
    return Audit(tuple(found))


def _lines(
    work: Workspace, noise: Any, curvature: str, refits: int, seed: int, given: Problem | None
) -> Iterator[Line]:
    """Make every check, and yield its line when it is known."""
    problem = work.problem
    try:
        chosen = _curvature(work, curvature)
    except NotPositiveDefinite as error:
        yield from _without_solves(work, noise, str(error))
        return
    level, noise_found = _noise_line(work, noise, chosen, seed)
    kind = noise if isinstance(noise, str) else None
    if work.refit is not None:
        yield from constructed_lines()
        yield noise_of_fitted_rows(noise_found, work.refit, level)
        # Rows left out of the refit would not tell of the model that was trained.
        yield from residual_lines(work, chosen, level, seed, False, kind)
        yield support_line(work, chosen, seed)
        yield from _model_lines(problem)
        if work.validation is not None:
            yield refit_comparison_line(work, work.validation)
        yield from refit_lines(work.refit)
        yield from _assumptions(problem)[1:]  # that V has no tail is true by construction
        return
    stationary = stationarity_line(work, chosen, level, seed)
    minimum = stationary.verdict == "holds"
    yield stationary
    yield from alignment_lines(problem, minimum, units(problem).resolution, onward(work))
    yield from _eigenvalue_lines(work, chosen)
    yield residual_curvature_line(work, chosen, seed)
    yield smoothness_line(work, chosen, level, seed)
    yield _at_minimum(_settled(noise_found, level, problem, minimum), stationary)
    for line in residual_lines(work, chosen, level, seed, minimum, kind):
        yield _at_minimum(line, stationary)
    yield _at_minimum(support_line(work, chosen, seed), stationary)
    yield from _model_lines(problem)
    near_fold = _near_fold(work, chosen, seed)
    yield basin_line(work, chosen, level, refits, seed, stationary=stationary, near_fold=near_fold)
    if work.validation is not None:
        yield early_stopping_line(work, work.validation, chosen, given)
    yield from _moved_lines(given, problem, level)
    yield from _assumptions(problem)


def _near_fold(work: Workspace, curvature: Curvature, seed: int) -> bool:
    """Return whether the fit amplifies noise; not where that cannot be measured, which the noise line says."""
    try:
        return work.amplifies(curvature, seed)
    except NotConverged:
        return False


def _at_minimum(line: Line, stationary: Line) -> Line:
    """Prefix the remedy with "settle stationarity first" where the parameters are not known to be a minimum.

    At the minimum the line may hold, and need no remedy.
    """
    if stationary.verdict == "holds" or line.verdict not in ("fails", "undecided"):
        return line
    return replace(line, remedy=f"{settle_first(stationary)}; if this line then stays: {line.remedy}")


def residual_lines(
    work: Workspace, curvature: Curvature, level: Noise | None, seed: int, minimum: bool, noise_kind: str | None = None
) -> tuple[Line, Line, Line]:
    """What the residuals say of the model and of its noise."""
    rows = work.validation
    if rows is None:
        found = standardised_residuals(work, curvature, level, seed, minimum=minimum)
        source = work.problem
    else:
        found = validation_residuals(work, rows, curvature, level, seed)
        source = as_problem(work.problem, rows)
    groups = None if isinstance(found, NotTested) else group_rows(source, found)
    fit = lack_of_fit_line(work, curvature, level, found, groups, seed, noise_kind)
    unequal = unequal_noise_line(found, groups)
    if fit.verdict == "fails" and unequal.verdict == "fails":
        # rows that are missed in one direction scatter more where they are missed most
        unequal = replace(unequal, remedy=f"Mend the lack of fit first; if this line then stays: {unequal.remedy}")
    penalised = bool(np.any(work.problem.numpy(work.problem.decay) > 0))
    return fit, unequal, outliers_line(found, level, penalised=penalised)


def _settled(line: Line, level: Noise | None, problem: Problem, minimum: bool) -> Line:
    """The noise line; an estimate that rests on the freedom of a minimum decides nothing elsewhere.

    A fit with many parameters that was stopped early has used little of their freedom: its residuals are divided by
    the degrees of freedom that the minimum would leave, which are too few, and the estimate is too large.
    """
    if minimum or level is None or not level.estimated or level.validation_rows:
        return line
    seen = seen_rows(problem)
    size = np.sqrt(np.mean((problem.targets - problem.fitted_values)[seen] ** 2, axis=0))
    raw = np.array2string(size, precision=4) if size.size > 1 else f"{float(size[0]):.4g}"
    remedy = (
        f"The level {_level(level)} was {level.source}: it is divided by the freedom that a minimum would leave to the "
        "residuals, and these parameters are not known to be one. The residuals as they are have a root mean square of "
        f"{raw}. Call fitted.with_validation(X, y) with rows that training did not fit, or give noise= from replicates."
    )
    return replace(line, verdict="undecided", remedy=remedy)


def moved_by(given: Problem, problem: Problem, level: Noise) -> float:
    """How far the training predictions have moved from the model given: root mean square, in noise levels."""
    return float(np.sqrt(np.mean(((problem.fitted_values - given.fitted_values) / level.level) ** 2)))


def _moved_lines(given: Problem | None, problem: Problem, level: Noise | None) -> list[Line]:
    if given is None:
        return []
    value = NAN if level is None else moved_by(given, problem, level)
    remedy = (
        "Intervals are those of the polished model: predict with it (fitted.predict, fitted.write_to). Whether loss "
        "and weight_decay were described rightly is seen in the audit before polish."
    )
    return [
        Line("moved", value, NAN, "noted", remedy, "how far polish moved the training predictions, in noise levels")
    ]


def _curvature(work: Workspace, asked: str) -> Curvature:
    """The matrix to measure with; where the one asked for is not positive definite, the eigenvalue line says so."""
    try:
        return work.choose_curvature(asked, quiet=True).curvature
    except NotPositiveDefinite:
        return work.choose_curvature("auto", quiet=True).curvature


def stationarity_line(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """Return the line, measured once for each curvature, noise and seed."""
    key = ("stationarity", curvature, None if level is None else level.digest, seed)
    return work.keep(key, lambda: _measure_stationarity(work, curvature, level, seed))


def _measure_stationarity(work: Workspace, curvature: Curvature, level: Noise | None, seed: int) -> Line:
    """How far the minimum is, in units of the spread that the noise itself gives the parameters.

    With ``d = A^-1 grad`` the step to the minimum and ``e`` the step that a redraw of the noise makes, the value is the
    largest of ``|d|_A / |e|_A`` and, for each output, ``|J d| / |J e|``, root mean squares over redraws (exactly, for
    few rows). Without decay the first is Bates and Watts' relative offset, the length of the residuals' projection on
    the tangent plane over ``sigma sqrt(p)``. Weights, losses and the units of y, of each output and of the parameters
    cancel.
    """
    problem = work.problem
    if level is None:
        return _relative_line(work)
    point, solver = evaluate(problem), work.own_solver(curvature)
    pushed, times = noise_pushes(problem, level.values, seed, _REDRAWS, few=_FEW_ROWS)[0::2]
    xp = array_namespace(point.gradient)
    sides = xp.concat([point.gradient[None, :], pushed], axis=0)
    solution = solver.solve(sides)
    if np.any(solution.status != Status.CONVERGED):
        return _not_compared(work)
    energy = problem.numpy(xp.sum(sides * solution.h, axis=1))
    images = np.mean(problem.jvp(solution.h) ** 2, axis=1)
    ratios = [_ratio(energy[0], times * np.mean(energy[1:]))]
    ratios += [_ratio(images[0, k], times * np.mean(images[1:, k])) for k in range(problem.outputs)]
    if not np.isfinite(ratios).any():  # the noise moves nothing: the loss does not see the responses
        return _relative_line(work)
    return _judge_stationarity(
        work,
        float(np.nanmax(ratios)),
        _STATIONARY,
        "the distance to the minimum over the spread that the noise gives the parameters",
    )


def _ratio(square: float, reference: float) -> float:
    return float(np.sqrt(max(square, 0.0) / reference)) if reference > 0 else NAN


def _relative_line(work: Workspace) -> Line:
    """Stationarity where there is no noise to compare with."""
    meaning = "the gradient relative to its terms, without unit"
    value = relative_gradient(evaluate(work.problem), units(work.problem))
    return _judge_stationarity(work, value, _STATIONARY_WITHOUT_NOISE, meaning)


def _not_compared(work: Workspace) -> Line:
    """Stationarity where the solves that compare the gradient with the noise did not converge.

    A gradient that vanishes to rounding needs no comparison. Any other may be far below what the noise does, or above.
    """
    line = _relative_line(work)
    if line.verdict == "holds":
        return line
    remedy = (
        "Whether this gradient matters is not known: the solves that compare it with the noise did not converge. Raise "
        f"weight_decay. {onward(work)}"
    )
    return replace(line, verdict="undecided", remedy=remedy)


def _judge_stationarity(work: Workspace, value: float, threshold: float, meaning: str) -> Line:
    if value <= threshold:
        return Line("stationarity", value, threshold, "holds", "The gradient vanishes for all purposes.", meaning)
    remedy = (
        "The parameters are not a minimum of the objective described: check loss and weight_decay against the "
        f"alignment line. {onward(work)}"
    )
    return Line("stationarity", value, threshold, "fails", remedy, meaning)


def _eigenvalue_lines(work: Workspace, curvature: Curvature) -> list[Line]:
    """Return the lines on the smallest eigenvalue; a model with kinks has no Hessian to have one."""
    if curvature == "ggn" and work.kinks.verdict == "kinked":
        remedy = (
            f"Not computed: the model has {work.kinks.told}, of which a Hessian knows nothing, and intervals use the "
            f"Gauss-Newton matrix. {way_on(work.problem)}"
        )
        line = Line("smallest eigenvalue", NAN, NAN, "undecided", remedy, "")
        return [line, _conditioning_line(work.definiteness("ggn"))]
    sign = work.definiteness("hessian")
    verdict: Verdict = {"positive": "holds", "indefinite": "fails", "undecided": "undecided"}[sign.verdict]  # type: ignore[assignment]
    settled = bool(np.isfinite(sign.error))
    remedy = {
        "positive": "The sign is certain."
        if sign.method != "lanczos"
        else "The iteration settled above zero. That is no proof: of a thousand such iterations, one may miss a value "
        "below half of this one."
        if sign.assured
        else "The iteration settled above zero. That is no proof, and too few steps to tell how likely it is.",
        "indefinite": "A direction of negative curvature was found: a saddle, or a point on the way to a minimum. "
        f"{onward(work)}",
        "undecided": "Zero lies within the error: the data and the decay leave some direction undetermined. Raise "
        "weight_decay, or remove redundant parameters."
        if settled
        else "The iteration did not settle, so that the sign is open. Raise weight_decay, or give more memory for a "
        "factorisation.",
    }[sign.verdict]
    return [
        Line(
            "smallest eigenvalue", sign.value, sign.error, verdict, remedy,
            "smallest eigenvalue of H + lam, each parameter in its natural unit; the threshold is its error",
        ),
        _conditioning_line(sign),
    ]  # fmt: skip


def _conditioning_line(sign: Definiteness) -> Line:
    meaning = "the same eigenvalue against near-singularity"
    if sign.verdict == "positive" and sign.value >= _NEARLY_SINGULAR:
        verdict: Verdict = "holds"
        remedy = "No direction is left to rounding."
    elif sign.verdict == "indefinite":
        verdict, remedy = "undecided", "Not a question before the curvature is positive."
    else:
        verdict = "undecided"
        remedy = "The data barely determine some direction: V rests on lam there, or on rounding. Raise weight_decay."
    return Line("conditioning", sign.value, _NEARLY_SINGULAR, verdict, remedy, meaning)


def _noise_line(work: Workspace, noise: Any, curvature: Curvature, seed: int) -> tuple[Noise | None, Line]:
    """What the noise level rests on: the freedom that the fit left to the residuals, or the user's word."""
    problem = work.problem
    shape = noise if isinstance(noise, str) else None  # "weights" or "equal": how an estimate varies over the rows
    given = None if noise is None or shape is not None else given_noise(noise, problem)
    try:
        freedom = work.residual_freedom(curvature, seed, work.check_noise_shape(shape))
    except NotConverged as error:
        verdict: Verdict = "undecided" if given is None else "assumed"
        return given, Line("noise", NAN, _LEAST_SHARE, verdict, _told(given, None) or _as_sentence(error), "")
    share = freedom.share
    fitted = f"effective degrees of freedom {float(freedom.effective.sum()):.4g} of {freedom.rows * problem.outputs}"
    meaning = f"share of the residuals' freedom that the fit left; {fitted}"
    try:
        estimate = work.noise(shape, curvature, seed)
    except NoiseError as error:
        if given is None:
            return None, Line("noise", share, _LEAST_SHARE, "fails", _as_sentence(error), meaning)
        return given, Line("noise", share, _LEAST_SHARE, "assumed", _told(given, None), meaning)
    if given is not None:
        return given, Line("noise", share, _LEAST_SHARE, "assumed", _told(given, estimate), meaning)
    if estimate.own:
        verdict, remedy = _judge_own(work, estimate, curvature, seed)
        return estimate, Line("noise", share, _LEAST_SHARE, verdict, remedy, meaning)
    verdict, remedy = _judge_estimate(estimate, work.amplifies(curvature, seed))
    return estimate, Line("noise", share, _LEAST_SHARE, verdict, remedy, meaning)


def _judge_estimate(estimate: Noise, amplified: bool) -> tuple[Verdict, str]:
    """Whether an estimated level can be relied on."""
    left = float(np.min(estimate.df)) if estimate.df is not None else NAN
    told = f"The level {_level(estimate)} was {estimate.source}."
    if estimate.validation_rows and estimate.relative_error > UNCERTAIN:
        few = f"So few rows tell it to about {100 * estimate.relative_error:.0f}% (one standard error)."
        return "undecided", f"{told} {few} Intervals allow for it, and are wide. Give more validation rows, or noise=."
    if left < _FEW:
        few = f"It rests on {left:.2g} degrees of freedom, too few."
        return "undecided", f"{told} {few} Intervals allow for it, and are wide. Give noise=, or more rows."
    if amplified:
        why = "The minimum may be near a fold, or the model nearly interpolates."
        return "undecided", f"{told} {why} Give noise=, or raise weight_decay."
    return "holds", told


def _judge_own(work: Workspace, noise: Noise, curvature: Curvature, seed: int) -> tuple[Verdict, str]:
    """Whether the residuals are of the size that the model's own variance head says."""
    told = f"The noise is as the model's own variance head has it, {_level(noise)} (root mean square)."
    try:
        estimate = work.residual_noise(None, curvature, seed)
    except NoiseError:
        return "assumed", told
    ratio = estimate.level / noise.level
    worst = float(ratio[np.argmax(np.abs(np.log(ratio)))])
    left = float(np.min(estimate.df)) if estimate.df is not None else 1.0
    # Three standard errors of the logarithm of an estimated level.
    if abs(np.log(worst)) <= np.log(_HEAD_OFF) + 3 / np.sqrt(2 * max(left, 1.0)):
        return "assumed", f"{told} The residuals speak for {worst:.3g} times that."
    remedy = (
        'Pass noise="weights" to take the level from the residuals and its shape from the head, give noise= and '
        "observation_noise=, or calibrate: fitted.calibrate(X, y)."
    )
    return "fails", f"{told} The residuals speak for {worst:.3g} times that. {remedy}"


def _told(given: Noise | None, estimate: Noise | None) -> str:
    """The level that was given, beside what the residuals say where that is another."""
    if given is None:
        return ""
    told = f"The level {_level(given)} was given."
    if estimate is None:
        return told
    ratio = estimate.level / given.level
    if np.max(ratio) > 2:
        return f"{told} The residuals speak for {_level(estimate)}: the model misses the data, or the noise is larger."
    if np.min(ratio) < 0.5:
        return f"{told} The residuals speak for {_level(estimate)}: is it a standard deviation, in the unit of y?"
    return f"{told} The residuals speak for {_level(estimate)}."


def _level(noise: Noise) -> str:
    return np.array2string(noise.level, precision=4) if noise.level.size > 1 else f"{noise.overall:.4g}"


def _as_sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]


def _model_lines(problem: Problem) -> list[Line]:
    facts = problem.facts()
    same = facts.deterministic and _repeats(problem, 1e-3 if facts.narrow_casts else 1e-6)
    casts = ", ".join(facts.narrow_casts[:3])
    rough = not facts.accuracy <= _ACCURATE
    remedy = f"Parameters came as {facts.dtype}; everything was computed in float64."
    if facts.narrow_casts:
        remedy = f"The model leaves float64 inside ({casts}): let constants and casts follow the input's dtype."
    elif rough:
        remedy = "Differences do not settle on this model's derivatives: give jac= and hess=, or use from_jax."
    return [
        Line(
            "determinism", NAN, NAN, "holds" if same else "fails",
            "Two evaluations agree."
            if same
            else "Two evaluations of the same rows differ: switch dropout off, fix the random state, and let the model "
            "read nothing that changes.",
            "whether the model is a function",
        ),
        Line(
            "precision", facts.accuracy, NAN if facts.narrow_casts else _ACCURATE,
            "fails" if facts.narrow_casts or rough else "holds", remedy,
            "relative accuracy of second derivatives",
        ),
    ]  # fmt: skip


def _repeats(problem: Problem, rtol: float) -> bool:
    """Whether the first training rows are predicted as they were when the model was given."""
    few = min(problem.n, _SEEN)
    seen = problem.fitted_values[:few]
    atol = rtol * float(np.max(np.abs(seen)))
    return all(bool(np.all(np.abs(problem.predict(problem.take(problem.X, 0, few)) - seen) <= atol)) for _ in range(2))


def _assumptions(problem: Problem) -> list[Line]:
    meaning = "independent Gaussian noise in y at fixed inputs"
    if problem.n > _SEEN and any(len(np.unique(column)) == 2 for column in problem.targets.T):
        verdict: Verdict = "fails"
        remedy = "y takes two values only: yes/no responses are not covered. Model them by another method."
    else:
        verdict, remedy = "assumed", "Counts and yes/no responses are not covered."
    return [
        Line("tail", NAN, NAN, "assumed", "Supply vhat.Tail(v, c) where it is known.", "how V varies with the noise"),
        Line("gaussian noise", NAN, NAN, verdict, remedy, meaning),
    ]


def _interpolation_lines(problem: Problem) -> list[Line]:
    """Say of a fit without decay that the data leave undetermined whether it interpolates, where it could."""
    share = residual_share(problem)
    could = problem.p > problem.n * problem.outputs or share <= INTERPOLATES
    if np.any(problem.numpy(problem.decay) != 0) or not could:
        return []
    remedy = (
        "The residuals vanish: solver=vhat.MinimumNorm() and noise= give the intervals of minimum-norm solutions."
        if share <= INTERPOLATES
        else "The residuals do not vanish: solver=vhat.MinimumNorm() would leave out the curvature that they bring."
    )
    verdict: Verdict = "holds" if share <= INTERPOLATES else "noted"
    meaning = "residuals as a share of the responses' spread, without decay"
    return [Line("interpolation", share, INTERPOLATES, verdict, remedy, meaning)]


def _without_solves(work: Workspace, noise: Any, reason: str) -> Audit:
    """The same lines where no system can be solved: singular even in its Gauss-Newton part."""
    problem, why = work.problem, f"Not tested, because {reason}"
    try:
        stationary, resolution = _relative_line(work), units(problem).resolution
        eigenvalues = _eigenvalue_lines(work, "hessian")
    except NotPositiveDefinite:
        names = ("smallest eigenvalue", "conditioning")
        stationary, resolution = Line("stationarity", NAN, NAN, "undecided", why, ""), 0.0
        eigenvalues = [Line(name, NAN, NAN, "fails", _as_sentence(Exception(reason)), "") for name in names]
    given = None if noise is None or isinstance(noise, str) else given_noise(noise, problem)
    told = Line("noise", NAN, _LEAST_SHARE, "assumed" if given else "undecided", _told(given, None) or why, "")
    return Audit(
        (
            stationary,
            *alignment_lines(problem, stationary.verdict == "holds", resolution, onward(work)),
            *eigenvalues,
            Line("residual curvature", NAN, NAN, "noted", why, ""),
            Line("smoothness", NAN, NAN, "undecided", why, ""),
            told,
            *(Line(name, NAN, NAN, "undecided", why, "") for name in ("lack of fit", "unequal noise", "outliers")),
            Line("support", NAN, NAN, "undecided", why, ""),
            *_interpolation_lines(problem),
            *_model_lines(problem),
            Line("basin", NAN, NAN, "undecided", why, ""),
            *_assumptions(problem),
        )
    )
