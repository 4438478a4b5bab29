"""All lines of the audit, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_count
from vhat.errors import Interrupted, NotConverged, NotPositiveDefinite
from vhat.evidence.audit.alignment import alignment_lines
from vhat.evidence.audit.basin import basin_line
from vhat.evidence.audit.data_support import support_line
from vhat.evidence.audit.early_stopping import early_stopping_line, refit_comparison_line
from vhat.evidence.audit.eigenvalues import eigenvalue_lines
from vhat.evidence.audit.lack_of_fit import lack_of_fit_line
from vhat.evidence.audit.linearisation import constructed_lines, noise_of_fitted_rows, refit_lines
from vhat.evidence.audit.model_lines import gaussian_noise_line, interpolation_lines, model_lines, tail_line
from vhat.evidence.audit.noise_level import as_sentence, noise_line, undecided_off_minimum, untested_noise_line
from vhat.evidence.audit.outliers import outliers_line
from vhat.evidence.audit.remedies import reach_minimum, settle_first, with_own_validation
from vhat.evidence.audit.residual_curvature import residual_curvature_line
from vhat.evidence.audit.result import Audit, Line
from vhat.evidence.audit.row_groups import group_rows
from vhat.evidence.audit.smoothness import smoothness_line
from vhat.evidence.audit.standardised_residuals import NotTested, standardised_residuals
from vhat.evidence.audit.stationarity import gradient_line, stationarity_line
from vhat.evidence.audit.unequal_noise import unequal_noise_line
from vhat.evidence.audit.validation_residuals import as_problem, validation_residuals
from vhat.evidence.minimise.stationarity import units
from vhat.models.problem import Curvature, Problem
from vhat.progress import bar
from vhat.variance.noise import Noise, given_noise

if TYPE_CHECKING:
    from vhat.variance.workspace import Workspace

__all__ = ["audit_fit", "moved_by", "residual_lines"]

_LINES = 17
"""Lines of an audit, for its progress bar. One more or less does not matter there."""
NAN = float("nan")


def audit_fit(
    work: Workspace, *, noise: Any, curvature: str, refits: int, seed: int, given: Problem | None = None
) -> Audit:
    """Make every check; one that cannot be made is a line too.

    Args:
        work: The fit.
        noise: As in :meth:`vhat.FittedModel.audit`, like the options that follow.
        curvature: As there.
        refits: As there.
        seed: As there.
        given: The problem before it was polished, or None.

    Raises:
        InputError: For options that cannot be used.
        Interrupted: On Ctrl-C, with the lines that are finished.
    """
    check_count("refits", refits)
    check_count("seed", seed)
    if noise is not None and not isinstance(noise, str):
        given_noise(noise, work.problem)  # refuses levels that cannot be used
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
    """Make the checks of this kind of model, and yield each line when it is known."""
    try:
        chosen = _curvature(work, curvature)
    except NotPositiveDefinite as error:
        yield from _lines_without_solves(work, noise, str(error))
        return
    if work.refit is not None:
        yield from _lines_of_linearisation(work, noise, chosen, seed, given)
        return
    yield from _lines_of_minimum(work, noise, chosen, refits, seed, given)


def _lines_of_minimum(
    work: Workspace, noise: Any, chosen: Curvature, refits: int, seed: int, given: Problem | None
) -> Iterator[Line]:
    """Make the checks of a model that should be at a minimum of its objective."""
    problem = work.problem
    level, noise_found = noise_line(work, noise, chosen, seed)
    stationary = stationarity_line(work, chosen, level, seed)
    minimum = stationary.verdict == "holds"
    yield stationary
    yield from alignment_lines(problem, minimum, units(problem).resolution, reach_minimum(work))
    yield from eigenvalue_lines(work, chosen)
    yield residual_curvature_line(work, chosen, seed)
    yield smoothness_line(work, chosen, level, seed)
    yield _after(stationary, undecided_off_minimum(noise_found, level, problem, minimum))
    for line in residual_lines(work, chosen, level, seed, minimum, noise if isinstance(noise, str) else None):
        yield _after(stationary, line)
    yield _after(stationary, support_line(work, chosen, seed))
    yield from model_lines(problem)
    near_fold = _near_fold(work, chosen, seed)
    yield basin_line(work, chosen, level, refits, seed, stationary=stationary, near_fold=near_fold)
    if work.validation is not None:
        # Under another penalty than that of its minimum, a polished model is as far from one as any other.
        yield early_stopping_line(work, work.validation, chosen, None if stationary.verdict == "fails" else given)
    if given is not None:
        yield _moved_line(given, problem, level)
    yield tail_line()
    yield gaussian_noise_line(work)


def _lines_of_linearisation(
    work: Workspace, noise: Any, chosen: Curvature, seed: int, given: Problem | None
) -> Iterator[Line]:
    """Make the checks of a linearised model, whose minimum is known by construction."""
    level, noise_found = noise_line(work, noise, chosen, seed)
    assert work.refit is not None
    yield from constructed_lines()
    yield noise_of_fitted_rows(noise_found, work.refit, level)
    # Rows left out of the ridge refit say nothing of the training that led to the model: residuals as fitted are used.
    kind = noise if isinstance(noise, str) else None
    yield from residual_lines(work, chosen, level, seed, minimum=False, noise_kind=kind)
    yield support_line(work, chosen, seed)
    yield from model_lines(work.problem)
    if work.validation is not None:
        yield refit_comparison_line(work, work.validation)
    if given is not None:
        yield _moved_line(given, work.problem, level)
    yield from refit_lines(work.refit)
    yield gaussian_noise_line(work)  # that V has no tail is true by construction


def _lines_without_solves(work: Workspace, noise: Any, reason: str) -> Iterator[Line]:
    """Make the checks that need no solve, where even the Gauss-Newton matrix is singular."""
    problem = work.problem
    why = with_own_validation(work, f"Not tested, because {reason}")
    try:
        stationary = gradient_line(work)
        resolution = units(problem).resolution
        eigenvalues = eigenvalue_lines(work, "hessian")
    except NotPositiveDefinite:
        names = ("smallest eigenvalue", "conditioning")
        stationary = Line("stationarity", NAN, NAN, "undecided", why, "")
        resolution = 0.0
        eigenvalues = [Line(name, NAN, NAN, "fails", as_sentence(reason), "") for name in names]
    yield stationary
    yield from alignment_lines(problem, stationary.verdict == "holds", resolution, reach_minimum(work))
    yield from eigenvalues
    yield Line("residual curvature", NAN, NAN, "noted", why, "")
    yield Line("smoothness", NAN, NAN, "undecided", why, "")
    yield untested_noise_line(problem, noise, why)
    for name in ("lack of fit", "unequal noise", "outliers", "support"):
        yield Line(name, NAN, NAN, "undecided", why, "")
    yield from interpolation_lines(problem)
    yield from model_lines(problem)
    yield Line("basin", NAN, NAN, "undecided", why, "")
    yield tail_line()
    yield gaussian_noise_line(work)


def residual_lines(
    work: Workspace, curvature: Curvature, level: Noise | None, seed: int, minimum: bool, noise_kind: str | None = None
) -> tuple[Line, Line, Line]:
    """Return the lines on lack of fit, unequal noise and outliers, by validation rows where there are some.

    Args:
        work: The fit.
        curvature: The curvature that the audit uses.
        level: The noise level; None where there is none.
        seed: Seed of redraws of the noise.
        minimum: Whether the parameters are a minimum, so that rows can be left out to first order.
        noise_kind: How an estimated noise varies over the rows.
    """
    rows = work.validation
    if rows is None:
        found = standardised_residuals(work, curvature, level, seed, minimum=minimum)
        source = work.problem
    else:
        found = validation_residuals(work, rows, curvature, level, seed)
        source = as_problem(work.problem, rows)
    groups = None if isinstance(found, NotTested) else group_rows(source, found)
    fit = lack_of_fit_line(work, curvature, level, found, groups, seed, noise_kind)
    unequal = unequal_noise_line(work, level, found, groups)
    if fit.verdict == "fails" and unequal.verdict == "fails":
        # rows that are missed in one direction scatter more where they are missed most
        unequal = replace(unequal, remedy=f"Mend the lack of fit first. If this line then stays: {unequal.remedy}")
    penalised = bool(np.any(work.problem.numpy(work.problem.decay) > 0))
    return fit, unequal, outliers_line(found, level, penalised=penalised)


def moved_by(given: Problem, problem: Problem, level: Noise) -> float:
    """Return how far the training predictions moved from the given model, root mean square in noise levels."""
    return float(np.sqrt(np.mean(((problem.fitted_values - given.fitted_values) / level.level) ** 2)))


def _moved_line(given: Problem, problem: Problem, level: Noise | None) -> Line:
    value = NAN if level is None else moved_by(given, problem, level)
    remedy = (
        "Intervals are those of the polished model: predict with it (fitted.predict, fitted.write_to). Whether loss "
        "and weight_decay were described rightly is seen in the audit before polish."
    )
    return Line("moved", value, NAN, "noted", remedy, "how far polish moved the training predictions, in noise levels")


def _curvature(work: Workspace, asked: str) -> Curvature:
    """Return the curvature to measure with; where the one asked for is indefinite, the eigenvalue line says so."""
    try:
        return work.choose_curvature(asked, quiet=True).curvature
    except NotPositiveDefinite:
        return work.choose_curvature("auto", quiet=True).curvature


def _near_fold(work: Workspace, curvature: Curvature, seed: int) -> bool:
    """Return whether the fit amplifies noise; False where that cannot be measured, which the noise line says."""
    try:
        return work.amplifies(curvature, seed)
    except NotConverged:
        return False


def _after(stationary: Line, line: Line) -> Line:
    """Prefix the remedy with "settle stationarity first" where the parameters are not known to be a minimum.

    At the minimum the line may hold, and need no remedy.
    """
    if stationary.verdict == "holds" or line.verdict not in ("fails", "undecided"):
        return line
    return replace(line, remedy=f"{settle_first(stationary)} If this line then stays: {line.remedy}")
