"""From a question to an interval.

The steps of :func:`build`, in order: the fit (curvature, solver, noise level, evidence of a minimum), V of every value,
its tail over the noise, half widths by a bound, and the guarantee.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.evidence.audit import Verdict
from vhat.intervals import sup_t
from vhat.intervals.estimated_tail import EstimatedTail, Redraws, estimate_tail
from vhat.intervals.fit_record import FitRecord, find_noise, record_fit, with_undetermined
from vhat.intervals.guarantee import Basis, sentence
from vhat.intervals.half_width import Values, half_widths
from vhat.intervals.interval import Interval
from vhat.intervals.options import Options
from vhat.intervals.prepare import (
    measured,
    nothing_yet,
    ready,
    require_residuals,
    warn_of_failed,
)
from vhat.linalg.curvature.kinks import way_on
from vhat.linalg.solvers import Prepared, Solver
from vhat.models.problem import Array, Problem
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import Measured, Recorder, hardly_supported, row_curvature
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["Question", "answer", "build"]


@dataclass(frozen=True, eq=False)
class Question:
    """The values for which an interval is computed, and its options.

    Attributes:
        options: The options of the interval.
        center: The values: (points,), (points, outputs), or the shape of a functional.
        sides: Returns their gradients, in blocks, at the parameters of a problem.
        points: The inputs, for plotting.
        index: The labels of the points, where they were a data frame.
        predictions: Whether the values are predictions, each with the noise of its output; else functionals.
        affine: Whether functionals are affine functions of the parameters, by structure.
        shortcut: Whether ``c g'h`` stands for V.
        own_noise: The noise of a new response at each point as the model itself predicts it; None where it does not.
        key: A fingerprint of the inputs, the key of V in the cache; None where there is none.
    """

    options: Options
    center: np.ndarray
    sides: Callable[[Problem], Iterable[Array]] = field(repr=False)
    points: np.ndarray | None = field(default=None, repr=False)
    index: Any = field(default=None, repr=False)
    predictions: bool = True
    affine: bool = False
    shortcut: bool = False
    own_noise: np.ndarray | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


def build(
    work: Workspace,
    question: Question,
    noise: Any,
    solver: Solver | str,
    curvature: str,
    *,
    given: Problem | None,
) -> Interval:
    """Compute the interval.

    Args:
        work: The fitted model.
        question: The values, and the options of the interval.
        noise: The noise as the user gave it; None to estimate it.
        solver: As the user gave it.
        curvature: As the user gave it.
        given: The model before it was polished, or None.
    """
    work = work.for_solver(solver)
    problem = work.problem
    options = question.options
    shape = question.center.shape
    if options.target == "observation":
        require_residuals(problem)

    # The fit. Ctrl-C before the first solve raises Interrupted with an empty record.
    with nothing_yet(shape, solver, curvature).keeping():
        chosen, prepared = ready(work, solver, curvature, question.center.size)
        level = find_noise(work, noise, chosen, options.seed)
        fit = record_fit(work, chosen, prepared.name, level, options.seed, given)
    _refuse_redraws(question, chosen, level)
    unit, _ = _unit_of_values(fit, question)

    # V of every value, and its tail over the noise.
    recorder = Recorder(unit, shape, chosen.curvature, prepared.name)
    found = _measure(work, question, prepared, level, recorder)
    if isinstance(options.tail, Redraws) and not _is_normal(fit, question):
        _require_minimum(work, fit.stationary)
        with recorder.keeping(found):
            tail = _redraw_tail(work, question, chosen, level, np.broadcast_to(unit, shape))
        question = replace(question, options=replace(options, tail=tail))
    if isinstance(question.options.tail, EstimatedTail):
        question.options.tail.check_origin(_origin(work, question, chosen, level))
        found = question.options.tail.mark(found)
    warn_of_failed(problem, found)
    if question.shortcut:
        found = _shortcut(problem, question, found, np.broadcast_to(unit, shape))
    with recorder.keeping(found):
        fit = with_undetermined(fit, work, options.seed)
    return answer(fit, question, found)


def answer(fit: FitRecord, question: Question, found: Measured, *, probes: int | None = None) -> Interval:
    """Compute the interval of values whose V is known.

    Args:
        fit: The properties of the fit.
        question: The values and the options, with a known tail of V.
        found: V of every value, with its record.
        probes: Number of random probes from which V was estimated; None where it was computed.
    """
    options = question.options
    shape = question.center.shape
    unit, df = _unit_of_values(fit, question)
    reference = np.broadcast_to(unit, shape)
    normal = _is_normal(fit, question)
    if normal:
        options = replace(options, tail="constant")
    bound = "exact" if normal else options.bound

    # Half widths. The measured variance is sigma^2 V, V itself has no unit.
    values = Values(
        norm=found.variance.reshape(shape) / reference**2,
        n=fit.rows,
        noise=reference,
        fresh=_fresh_noise(fit, question, reference) if options.target == "observation" else None,
        df=df,
        probes=probes,
    )
    width = _widths(values, found, fit.noise, options, bound) + _bias(found, options, shape)

    basis = Basis(
        fit=fit,
        options=options,
        bound=bound,
        subject="prediction" if question.predictions else "functional",
        points=question.center.size,
        unsupported=int(np.sum(hardly_supported(found.unsupported, usual=fit.usual_unsupported))),
        off_minimum=_count_off_minimum(found, width, question.center),
        probes=probes,
        shortcut=question.shortcut,
    )
    return Interval(
        center=question.center,
        lower=question.center - width,
        upper=question.center + width,
        half_width=width,
        standard_error=values.standard_error,
        weighted_norm=values.norm,
        unsupported=found.unsupported.reshape(shape),
        usual_unsupported=fit.usual_unsupported,
        linearised=fit.refit is not None,
        noise=_plain(fit.noise.level),
        noise_source=fit.noise.source,
        df=None if fit.noise.df is None else _plain(fit.noise.df),
        status=found.status.reshape(shape),
        delta=options.delta,
        bound=bound,
        tail=options.known_tail,
        target=options.target,
        curvature=fit.chosen.curvature,
        solver=fit.solver,
        guarantee=sentence(basis),
        observation_noise=values.fresh,
        inputs=question.points,
        index=question.index,
        undetermined=fit.undetermined,
    )


def _refuse_redraws(question: Question, chosen: Chosen, level: Noise) -> None:
    """Refuse estimated tails for shortcuts and for minima that are not isolated, and shortcuts for unequal noise."""
    redrawn = isinstance(question.options.tail, Redraws | EstimatedTail)
    if redrawn and (chosen.span or question.shortcut):
        raise InputError(
            "tail='estimated' follows one minimum and its V as the responses are redrawn: it goes neither with "
            "vhat.MinimumNorm() nor with shortcut=True."
        )
    if question.shortcut and not level.uniform:
        raise InputError("shortcut=True takes the noise to be the same in every row; it was given one by one.")


def _shortcut(problem: Problem, question: Question, found: Measured, reference: np.ndarray) -> Measured:
    """Return the measured values with ``c g'h`` in place of V."""
    shape = question.center.shape
    c = row_curvature(problem)
    norm = found.shortcut.reshape(shape) * (c if len(shape) > 1 else c[0])
    return replace(found, variance=(norm * reference**2).ravel())


_OFF_MINIMUM = 0.1
"""Largest difference between the center and the prediction at the minimum, as a share of the half width. At 95% a tenth
costs less than half a point of coverage."""
_ROUNDING = 1e-8
"""Share of the center up to which that difference is rounding: the relative gradient at which training stops is
smaller."""


def _count_off_minimum(found: Measured, width: np.ndarray, center: np.ndarray) -> int:
    """Return the number of values too far from the prediction at the minimum for their interval."""
    tolerated = _OFF_MINIMUM * width + _ROUNDING * np.abs(center)
    return int(np.sum(np.abs(found.offset).reshape(center.shape) > tolerated))


def _unit_of_values(fit: FitRecord, question: Question) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the noise level in whose unit V is expressed, and its degrees of freedom where it was estimated."""
    level = fit.noise
    if not question.predictions:
        return np.asarray(level.overall), None if level.df is None else np.asarray(np.min(level.df))
    if fit.squeeze:
        return np.asarray(level.level[0]), None if level.df is None else np.asarray(level.df[0])
    return level.level, level.df


def _measure(work: Workspace, question: Question, prepared: Prepared, level: Noise, recorder: Recorder) -> Measured:
    """Return V of every value, cached for the last few questions whatever bound or level they asked for."""
    keep_rows = question.options.joint == "sup-t"  # its correlations need every sensitivity, (rows, n, K)

    def solve() -> Measured:
        sides = question.sides(work.problem)
        return measured(work, prepared, sides, level.values, recorder, rows=keep_rows)

    if question.key is None or keep_rows:
        return solve()
    # The workspace keeps a prepared solver as long as V, so that its id identifies it.
    return work.remember(("V", question.key, id(prepared), level.digest), solve)


def _redraw_tail(
    work: Workspace, question: Question, chosen: Chosen, level: Noise, reference: np.ndarray
) -> EstimatedTail:
    """Return the mean and the tail of V by redraws, from the cache where it has them."""
    options = question.options
    assert isinstance(options.tail, Redraws)
    redraws = options.tail

    origin = _origin(work, question, chosen, level)

    def estimate() -> EstimatedTail:
        found = estimate_tail(work, chosen.curvature, level, question.sides, reference, redraws, options.seed)
        return replace(found, origin=origin)

    if question.key is None:
        return estimate()
    return work.remember(("tail", origin, redraws.count, options.seed), estimate)


def _origin(work: Workspace, question: Question, chosen: Chosen, level: Noise) -> bytes:
    """Return a digest of the points, the noise and the fit for which a tail is estimated."""
    problem = work.problem
    digest = hashlib.blake2b(chosen.curvature.encode(), digest_size=32)
    digest.update(question.key or b"")
    digest.update(level.digest)
    # Where inputs have no fingerprint, and for functionals, the values themselves tell them apart.
    for part in (question.center, problem.numpy(problem.theta), problem.targets):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def _is_normal(fit: FitRecord, question: Question) -> bool:
    """Return whether the values are linear in the responses by structure, and so exactly normal for Gaussian noise.

    The model is linear in its parameters, and the values are its predictions or an affine functional. A tail that was
    given is used as it was given.
    """
    options = question.options
    open_tail = options.tail is None or isinstance(options.tail, Redraws) or options.tail == "constant"
    asked = options.bound == "isoperimetric" and open_tail and (question.predictions or question.affine)
    return asked and fit.linear


def _widths(values: Values, found: Measured, level: Noise, options: Options, bound: str) -> np.ndarray:
    """Return the half widths before bias: of each point alone, or of all at once."""
    if options.joint == "sup-t":
        return _sup_t(values, found, level, options) * values.deviation
    delta = options.delta / values.norm.size if options.joint == "union" else options.delta
    return half_widths(values, bound, options.known_tail, delta)


def _sup_t(values: Values, found: Measured, level: Noise, options: Options) -> float:
    """Return the multiplier of all values at once.

    The gap at a is ``sum_ib s_ib(a) sigma_ib z_ib`` with ``s`` the sensitivities, so that the covariance of two gaps is
    the inner product of their scaled sensitivities.
    """
    good = np.isfinite(found.variance) & ((found.variance > 0) | (values.fresh is not None))
    if not good.any():
        return 0.0
    assert found.sensitivity is not None  # kept for sup-t
    rows = (found.sensitivity * level.values)[good].reshape(int(good.sum()), -1)
    covariance = rows @ rows.T
    if values.fresh is not None:
        covariance = covariance + np.diag(values.fresh.ravel()[good] ** 2)
    least = None if values.df is None else float(np.min(values.df))
    return sup_t.multiplier(covariance, least, options.delta, options.seed)


def _fresh_noise(fit: FitRecord, question: Question, reference: np.ndarray) -> np.ndarray:
    """Return the noise of a new response at each point."""
    options = question.options
    if options.observation_noise is None:
        factor = None if question.own_noise is None else fit.own_factor
        if factor is not None:
            return np.asarray(question.own_noise * (factor[0] if question.center.ndim == 1 else factor))
        if not fit.noise.uniform:
            raise InputError(
                "the training rows have noise of different sizes, so the noise of a new response is not known: give "
                "observation_noise=, one number or one a point."
            )
        return reference
    return _spread("observation_noise", options.observation_noise, reference.shape)


def _bias(found: Measured, options: Options, shape: tuple[int, ...]) -> np.ndarray:
    """Return the width added for bias: none, the plug-in ``|h' diag(lam) theta|``, or the user's bound."""
    if options.bias is None:
        return np.zeros(shape)
    if isinstance(options.bias, str):
        return np.abs(found.bias).reshape(shape)
    return _spread("bias", options.bias, shape)


def _spread(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Broadcast values to the shape of the interval, and refuse one axis for several outputs, which is ambiguous."""
    if len(shape) == 2 and values.ndim == 1 and values.size > 1:
        points, outputs = shape
        raise InputError(
            f"{name} has shape {values.shape}, which leaves open whether it is one number a point or one an output of "
            f"the ({points}, {outputs}) interval. Give shape ({points}, 1), (1, {outputs}) or ({points}, {outputs})."
        )
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise InputError(f"{name} has shape {values.shape}; the interval has shape {shape}.") from None


def _require_minimum(work: Workspace, stationary: Verdict) -> None:
    if work.kinks.verdict == "kinked":
        raise InputError(
            f"tail='estimated' follows the minimum as the responses are redrawn, and the model has {work.kinks.told}: "
            f"no minimum of it can be certified. {way_on(work.problem)} The V of a linear model has no tail."
        )
    if stationary != "holds":
        known = "are not" if stationary == "fails" else "are not known to be"
        raise InputError(
            f"tail='estimated' follows the minimum as the responses are redrawn, and these parameters {known} a "
            "minimum. Call fitted.polish() first; fitted.linearised(validation=(X, y)) needs none, and its V has no "
            "tail."
        )


def _plain(values: np.ndarray) -> float | np.ndarray:
    return float(values[0]) if values.shape == (1,) else values
