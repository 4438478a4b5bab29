"""One step from a question to an interval.

:func:`build` goes through it in order: the fit (curvature, solver, noise level, evidence of a minimum), V of every
value that is asked about, how V varies with the noise, half widths by a bound, and the sentence that says what they
rest on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.evidence.audit import Verdict, moved_by
from vhat.intervals import sup_t
from vhat.intervals.estimated_tail import EstimatedTail, Redraws, estimate_tail
from vhat.intervals.guarantee import Basis, sentence
from vhat.intervals.half_width import Values, half_widths
from vhat.intervals.interval import Interval
from vhat.intervals.options import Options
from vhat.intervals.prepare import (
    at_minimum,
    measured,
    nothing_yet,
    ready,
    require_residuals,
    warn_of_failed,
    warn_of_weights,
)
from vhat.linalg.curvature.kinks import way_on
from vhat.linalg.solvers import Prepared, Solver
from vhat.models.problem import Array, Problem
from vhat.variance.noise import Noise
from vhat.variance.weighted_norm import MOSTLY, Measured, Recorder, hardly_supported, row_curvature
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["Question", "build"]


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked about, and which interval.

    Attributes:
        options: The options of the interval.
        center: The values themselves: (points,), (points, outputs), or the shape of a functional.
        sides: Their gradients, in blocks, at the parameters of a problem.
        points: The inputs, to keep for plotting.
        index: The labels of the points, where they were a data frame.
        predictions: Whether the values are predictions, each with the noise of its output; else functionals.
        affine: Whether functionals are affine functions of the parameters, by structure.
        shortcut: Whether ``c g'h`` stands for V.
        own_noise: The noise of a new response at each point as the model itself predicts it; None where it does not.
        key: A fingerprint of the inputs, under which V is remembered; None where there is none.
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
    """Make the interval.

    Args:
        work: The fitted model.
        question: What is asked.
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
        if noise is None:
            warn_of_weights(work)
        level = work.noise(noise, chosen.curvature, options.seed)
        stationary = at_minimum(work, level, chosen, options.seed)
    _refuse_redraws(question, chosen, level)
    unit, df = _unit_of_values(level, question, problem)
    reference = np.broadcast_to(unit, shape)

    # V of every value, and how it varies with the noise.
    recorder = Recorder(unit, shape, chosen.curvature, prepared.name)
    found = _measure(work, question, prepared, level, recorder)
    normal = _is_normal(problem, question)
    if normal:
        options = replace(options, tail="constant")
    elif isinstance(options.tail, Redraws):
        _require_minimum(work, stationary)
        with recorder.keeping(found):
            tail = _redraw_tail(work, question, chosen, level, reference)
        options = replace(options, tail=tail)
    if isinstance(options.tail, EstimatedTail):
        options.tail.check_origin(_origin(work, question, chosen, level))
        found = options.tail.mark(found)
    warn_of_failed(problem, found)

    # Half widths. What was measured is sigma^2 V; V itself has no unit.
    values = Values(
        norm=_norm(problem, question, found, reference),
        n=problem.n,
        noise=reference,
        fresh=_fresh_noise(work, question, level, reference) if options.target == "observation" else None,
        df=df,
    )
    bound = "exact" if normal else options.bound
    width = _widths(values, found, level, options, bound) + _bias(found, options, shape)

    basis = Basis(
        options=options,
        bound=bound,
        chosen=chosen,
        noise=level,
        stationary=stationary,
        matched=work.weights_match(level),
        decay_from_data=work.decay_from_data,
        moved=None if given is None else moved_by(given, problem, level),
        subject="prediction" if question.predictions else "functional",
        undetermined=_undetermined(work, level, chosen, options.seed),
        points=question.center.size,
        unsupported=int(np.sum(hardly_supported(found.unsupported))),
        off_minimum=_count_off_minimum(found, width, question.center),
        refit=work.refit,
        variance_head=work.own_factor(level) is not None,
        held_fixed=bool(getattr(problem.autodiff, "held_fixed", False)),
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
        noise=_plain(level.level),
        noise_source=level.source,
        df=None if level.df is None else _plain(level.df),
        status=found.status.reshape(shape),
        delta=options.delta,
        bound=bound,
        tail=options.known_tail,
        target=options.target,
        curvature=chosen.curvature,
        solver=prepared.name,
        guarantee=sentence(basis),
        observation_noise=values.fresh,
        inputs=question.points,
        index=question.index,
        undetermined=basis.undetermined,
    )


def _refuse_redraws(question: Question, chosen: Chosen, level: Noise) -> None:
    """Refuse what a shortcut, or minima that form a surface, cannot be combined with."""
    redrawn = isinstance(question.options.tail, Redraws | EstimatedTail)
    if redrawn and (chosen.span or question.shortcut):
        raise InputError(
            "tail='estimated' follows one minimum and its V as the responses are redrawn: it goes neither with "
            "vhat.MinimumNorm() nor with shortcut=True."
        )
    if question.shortcut and not level.uniform:
        raise InputError("shortcut=True takes the noise to be the same in every row; it was given one by one.")


def _norm(problem: Problem, question: Question, found: Measured, reference: np.ndarray) -> np.ndarray:
    """Return V of every value, or ``c g'h`` in its place."""
    shape = question.center.shape
    if not question.shortcut:
        return np.asarray(found.variance.reshape(shape) / reference**2)
    bend = row_curvature(problem)
    return np.asarray(found.shortcut.reshape(shape) * (bend if len(shape) > 1 else bend[0]))


_OFF_MINIMUM = 0.1
"""Share of the half width by which the center may miss the prediction of the minimum. At 95% a tenth costs less than
half a point of coverage."""
_ROUNDING = 1e-8
"""Share of the center that counts as rounding there: the relative gradient at which training stops is below it."""


def _count_off_minimum(found: Measured, width: np.ndarray, center: np.ndarray) -> int:
    """Return how many values are further from the prediction of the minimum than their interval can bear."""
    bearable = _OFF_MINIMUM * width + _ROUNDING * np.abs(center)
    return int(np.sum(np.abs(found.offset).reshape(center.shape) > bearable))


def _unit_of_values(level: Noise, question: Question, problem: Problem) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the noise level in whose unit V is expressed, and its degrees of freedom where it was estimated."""
    if not question.predictions:
        return np.asarray(level.overall), None if level.df is None else np.asarray(np.min(level.df))
    if problem.squeeze:
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
    # A prepared solver is kept by the workspace as long as V is, so that its identity tells it apart.
    return work.remember(("V", question.key, id(prepared), level.digest), solve)


def _redraw_tail(
    work: Workspace, question: Question, chosen: Chosen, level: Noise, reference: np.ndarray
) -> EstimatedTail:
    """Return the mean and the tail of V by redraws, cached as V is."""
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
    """Return a digest of what a tail is estimated for: the points, the noise and the fit."""
    problem = work.problem
    digest = hashlib.blake2b(chosen.curvature.encode(), digest_size=32)
    digest.update(question.key or b"")
    digest.update(level.digest)
    # Where inputs have no fingerprint, and for functionals, the values themselves tell them apart.
    for part in (question.center, problem.numpy(problem.theta), problem.targets):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.digest()


def _is_normal(problem: Problem, question: Question) -> bool:
    """Return whether the values are exactly normal: linear in the responses, by structure.

    The model is linear in its parameters, and so is what is asked of it: its predictions, or an affine functional.
    A tail that was given is used as it was given.
    """
    options = question.options
    open_tail = options.tail is None or isinstance(options.tail, Redraws) or options.tail == "constant"
    asked = options.bound == "isoperimetric" and open_tail and (question.predictions or question.affine)
    return asked and problem.linear and problem.loss_derivatives.square


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


def _fresh_noise(work: Workspace, question: Question, noise: Noise, reference: np.ndarray) -> np.ndarray:
    """Return the noise of a new response at each point."""
    options = question.options
    if options.observation_noise is None:
        factor = None if question.own_noise is None else work.own_factor(noise)
        if factor is not None:
            return np.asarray(question.own_noise * (factor[0] if question.center.ndim == 1 else factor))
        if not noise.uniform:
            raise InputError(
                "the training rows have noise of different sizes, so the noise of a new response is not known: give "
                "observation_noise=, one number or one a point."
            )
        return reference
    return _spread("observation_noise", options.observation_noise, reference.shape)


def _bias(found: Measured, options: Options, shape: tuple[int, ...]) -> np.ndarray:
    """Return what is added for bias: nothing, the plug-in ``|h' diag(lam) theta|``, or the user's own bound."""
    if options.bias is None:
        return np.zeros(shape)
    if isinstance(options.bias, str):
        return np.abs(found.bias).reshape(shape)
    return _spread("bias", options.bias, shape)


def _spread(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Broadcast values to the shape of the interval. One axis for several outputs is refused as ambiguous."""
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


def _undetermined(work: Workspace, level: Noise, chosen: Chosen, seed: int) -> float | None:
    """Return the share of the fit's own freedom that the data leave open, where it exceeds one half.

    None also where it would be expensive: it needs the traces of the smoother, which an estimated noise level has
    needed already.
    """
    if not (level.estimated or work.solver.forms_matrix):
        return None
    share = work.residual_freedom(chosen.curvature, seed).undetermined(work.problem.p)
    return share if share > MOSTLY else None


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
