"""Intervals without the training data and without a solver, for deployment."""

from __future__ import annotations

import os
import reprlib
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import chi2

from vhat.checks import as_numbers, check_count, check_delta
from vhat.errors import CalibrationWarning, InputError, outside
from vhat.evidence.audit import Audit
from vhat.intervals.ask import about_predictions, shaped
from vhat.intervals.build import answer
from vhat.intervals.calibrate import Calibrated, OwnInterval
from vhat.intervals.calibration_scores import common_noise, given_shape, held_out_errors, sizes_of
from vhat.intervals.fit_record import FitRecord, find_noise, record_fit, with_undetermined
from vhat.intervals.interval import Interval
from vhat.intervals.noise_shape import NoiseShape
from vhat.intervals.options import Options
from vhat.intervals.prepare import ready, warn_of_failed
from vhat.intervals.tail import Tail
from vhat.linalg.solvers import Primal
from vhat.models.loaders import read_pair
from vhat.models.placeholder_rows import with_placeholder_rows
from vhat.models.problem import Problem
from vhat.sketch.persistence import save_sketch
from vhat.sketch.roots import Roots, make_roots
from vhat.variance.noise import Noise
from vhat.variance.repeated_rows import is_more_than_chance, row_digests
from vhat.variance.weighted_norm import Measured, Recorder, WeightedNorm, gradient_blocks, join_measured
from vhat.variance.workspace import Workspace

__all__ = ["MOST_EXACT", "PROBES", "Sketch", "make_sketch"]

PROBES = 256
"""Default number of random probes: the relative standard deviation of a width is 4.4%."""
MOST_EXACT = 2000
"""Largest number of parameters for which V is exact: its roots are p x p matrices of at most 32 MB each."""
_FEWEST_PROBES = 8
"""Smallest number of probes: with fewer, the sampling error of V is larger than V."""
_MOST_PROBES = 1_000_000
"""Largest number of probes: the relative standard deviation of a width is then 0.07%."""

_NEED_ROWS = frozenset(
    {"acquire", "confidence_set", "covariance", "fisher", "functional", "leave_one_out", "linearised", "plan", "polish"}
    | {"report", "scale_weight_decay", "sensitivity", "sketch", "tangent_kernel", "uniform", "with_validation"}
)
"""Methods of a fitted model that need the training rows."""


@dataclass(frozen=True, eq=False, repr=False)
class Sketch:
    """A fitted model without its training data: predictions, and intervals at a cost independent of the data.

    Made by :meth:`vhat.FittedModel.sketch`, saved by :meth:`save` and loaded by :func:`vhat.load`. A point costs its
    gradient and a few hundred inner products with it.

    Attributes:
        problem: The model, on placeholder rows in place of its training rows.
        roots: Roots of the quadratic forms of an interval.
        fit: Record of the fit: its measurements, checks and assumptions.
        audited: The audit of the fitted model; None without ``sketch(audit=True)``.
        row_digests: Hashes of the training rows, eight bytes each, sorted; training rows are refused as calibration
            rows. None if rows cannot be compared, or their hashes are not to be stored.
        validation_digests: Hashes of the validation rows; a calibration with these rows is reported.
    """

    problem: Problem = field(repr=False)
    roots: Roots
    fit: FitRecord = field(repr=False)
    audited: Audit | None = field(default=None, repr=False)
    row_digests: np.ndarray | None = field(default=None, repr=False)
    validation_digests: np.ndarray | None = field(default=None, repr=False)
    _events: set[str] = field(default_factory=set, repr=False)

    def first(self, event: str) -> bool:
        """Return whether this is the first call for ``event``, so that a warning is given once."""
        new = event not in self._events
        self._events.add(event)
        return new

    def __getattr__(self, name: str) -> Any:
        """Explain missing methods that need the training rows.

        Raises:
            AttributeError: Always, for attributes that a sketch does not have.
        """
        if name in _NEED_ROWS:
            raise AttributeError(
                f"a Sketch has no {name}(): that needs the training rows, which it does not have. Ask the fitted model "
                "that it was made of."
            )
        raise AttributeError(f"'Sketch' object has no attribute {name!r}")

    def audit(self) -> Audit:
        """Return the audit that was made with the sketch.

        Raises:
            InputError: If there is none.
        """
        if self.audited is None:
            raise InputError(
                "this sketch was made without an audit, and has no training rows to make one from. Ask the fitted "
                "model for fitted.audit(), or make the sketch by fitted.sketch(audit=True)."
            )
        return self.audited

    @property
    def probes(self) -> int | None:
        """Number of random probes from which V is estimated; None if V is exact."""
        return self.roots.probes

    def __repr__(self) -> str:
        problem = self.problem
        variance = "exact V" if self.probes is None else f"V from {self.probes} probes"
        curvature = self.fit.chosen.curvature if self.fit.refit is None else "exact (linearised)"
        return (
            f"Sketch({problem.autodiff.framework}, outputs={problem.outputs}, p={problem.p}, "
            f"fitted to n={self.fit.rows:,}, {curvature} curvature, {variance})"
        )

    def predict(self, x: Any) -> np.ndarray:
        """Return the model's predictions in float64, (points,) or (points, outputs)."""
        with self.problem.scope():
            return shaped(self.problem, self.problem.predict(self.problem.inputs(x)))

    def interval(
        self,
        x: Any,
        delta: float = 0.05,
        *,
        simultaneous: bool | str = False,
        bound: str = "isoperimetric",
        tail: Tail | str | None = None,
        target: str = "mean",
        noise: Any = None,
        observation_noise: Any = None,
        bias: Any = None,
        seed: int = 0,
    ) -> Interval:
        """Compute a confidence interval for the prediction at every point.

        The level includes the sampling error of V: the multiplier is slightly larger than with exact V, by 0.5% for 256
        probes at 95%. This holds for points chosen independently of the probes. It does not hold for the points at
        which this sketch reports the smallest or the largest V.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            simultaneous: False, or True (``"union"``); ``"sup-t"`` needs the training rows.
            bound: As in :meth:`vhat.FittedModel.interval`.
            tail: As there, but in multiples of V: ``Tail.relative(v, c)``, ``Tail.sd(share)``, ``"constant"``,
                ``"any"`` or None.
            target: ``"mean"`` for the expected prediction, ``"observation"`` for a new response.
            noise: Another noise level than that of the sketch, for one output with equal noise in every row.
            observation_noise: Standard deviation of a new response, if it differs from ``noise``.
            bias: None, ``"plug-in"``, or a bound on the absolute bias to be added.
            seed: Not used: the intervals of a sketch are deterministic.

        Returns:
            The interval, with its evidence in ``guarantee``.

        Raises:
            InputError: For inputs or options that cannot be used.
        """
        options = Options(delta, simultaneous, bound, tail, target, observation_noise, bias, seed)
        self._check(options)
        fit, factor = self._with_noise(noise)
        with self.problem.scope():
            question = about_predictions(self.problem, x, options)
            found = self._measure(self.problem.inputs(x))
        if factor != 1.0:
            found = replace(found, variance=factor**2 * found.variance)
        warn_of_failed(self.problem, found)
        return answer(fit, question, found, probes=self.probes)

    def weighted_norm(self, x: Any) -> WeightedNorm:
        """Compute V at every point: exact, or times a chi-square variable divided by its degrees of freedom."""
        with self.problem.scope():
            inputs = self.problem.inputs(x)
            count = self.problem.count(inputs)
            found = self._measure(inputs)
        shape = (count,) if self.problem.squeeze else (count, self.problem.outputs)
        return Recorder(self.fit.noise.level, shape, self.fit.chosen.curvature, self.fit.solver).record(found)

    def variance_limits(self, x: Any, delta: float = 0.01, *, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return confidence limits of V, simultaneous for all points.

        Over draws of the probes, all limits hold together with probability ``1 - delta`` (union bound). If V is exact,
        both limits are V.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability that some limit fails.
            rows: Total number of values of V for which limits will be computed by this sketch, if this call is only a
                part; the number of values of this call by default.

        Returns:
            Lower and upper limits, (points,) or (points, outputs).
        """
        check_delta(delta)
        value = self.weighted_norm(x).value
        if self.probes is None:
            return value.copy(), value.copy()
        count = value.size
        if rows is not None:
            check_count("rows", rows, least=value.size)
            count = rows
        share = delta / (2 * count)
        K = self.probes
        return value * K / chi2.isf(share, K), value * K / chi2.ppf(share, K)

    def calibrate(
        self,
        X_cal: Any,
        y_cal: Any = None,
        *,
        noise: Any = None,
        observation_noise: Any = None,
        noise_shape: NoiseShape | str = "constant",
    ) -> Calibrated:
        """Calibrate observation intervals on responses that were not used for the fit; their level includes bias.

        Args:
            X_cal: Calibration inputs that training did not see.
            y_cal: Their responses.
            noise: As in :meth:`interval`.
            observation_noise: As in :meth:`vhat.FittedModel.calibrate`.
            noise_shape: As in :meth:`vhat.FittedModel.calibrate`, for calibration rows.

        Returns:
            The calibrated model: ``.interval(x, delta)``, with its guarantee in ``.guarantee``.

        Raises:
            InputError: For data that cannot be used, or that were training data.
        """
        base = OwnInterval(self, {"noise": noise})
        X_cal, y_cal = read_pair(self.problem, X_cal, y_cal, "calibrate(X_cal, y_cal)")
        if isinstance(X_cal, str) or y_cal is None:
            raise InputError(
                "a sketch has no training rows to leave out: give calibrate(X_cal, y_cal) rows that training did not "
                "see, or calibrate the fitted model before it is sketched."
            )
        shape = given_shape(noise_shape, observation_noise)
        errors = held_out_errors(base(X_cal, observation_noise=observation_noise), y_cal, observation_noise)
        signed = errors.scores(1.0 if shape is None else shape(errors.prediction))
        with self.problem.scope():
            inputs = self.problem.inputs(X_cal)
            responses = as_numbers("y_cal", y_cal).reshape(-1, self.problem.outputs)
            digests = row_digests(self.problem, inputs, responses)
        repeated = self._count_training_rows(digests)
        reused = _count_known(digests, self.validation_digests)
        common, per_row = common_noise(observation_noise)
        return Calibrated(
            "split",
            sizes_of(signed),
            repeated,
            base,
            reused=reused,
            signed=signed,
            observation_noise=common,
            per_row=per_row,
            digests=digests,
            noise_shape=shape,
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save for :func:`vhat.load`: parameters, roots, noise and audit, without training rows.

        Args:
            directory: A new or empty directory, or one that was saved to before.

        Raises:
            StoreError: When the directory cannot be written, or a part of the model cannot be saved.
        """
        save_sketch(self, directory)

    def save_calibrated(self, directory: str | os.PathLike[str], calibration: dict[str, Any]) -> None:
        """Save this sketch with the record of a calibration: see :meth:`vhat.Calibrated.save`."""
        save_sketch(self, directory, calibration)

    # -- inside ----------------------------------------------------------------------------------
    def _measure(self, inputs: Any) -> Measured:
        problem = self.problem
        blocks = gradient_blocks(problem, inputs)
        return join_measured([self.roots.measure(np.asarray(problem.numpy(g))) for g in blocks])

    def _count_training_rows(self, digests: np.ndarray | None) -> int:
        """Return how many calibration rows are training rows too; warn about some, refuse many."""
        count = _count_known(digests, self.row_digests)
        if not count:
            return 0
        assert digests is not None
        assert self.row_digests is not None
        finding = f"{count} of {len(digests)} calibration rows are also training rows, input and response alike"
        if is_more_than_chance(digests, self.row_digests):
            raise InputError(
                f"{finding}, which is more than chance explains: their errors say nothing about a new response. Give "
                "rows that training did not see."
            )
        warnings.warn(
            f"{finding}. If training saw them, leave them out: the level does not hold with them.",
            CalibrationWarning,
            stacklevel=outside(),
        )
        return count

    def _check(self, options: Options) -> None:
        """Refuse options that need the training rows.

        Raises:
            InputError: For such an option, with an alternative.
        """
        if options.simultaneous == "sup-t":
            raise InputError(
                "simultaneous='sup-t' needs the correlations of predictions over the training rows, which a sketch "
                "does not have. Use simultaneous=True, or ask the fitted model."
            )
        tail = options.tail
        relative = tail is None or tail in ("constant", "any") or (isinstance(tail, Tail) and tail.per_norm)
        if not relative:
            raise InputError(
                f"tail={tail!r} is not a multiple of V, which a sketch knows up to its sampling error only. Give "
                "vhat.Tail.relative(v, c), or ask the fitted model."
            )

    def _with_noise(self, noise: Any) -> tuple[FitRecord, float]:
        """Return the record of the fit under a given noise level, and the ratio of that level to the sketch's."""
        if noise is None:
            return self.fit, 1.0
        known = self.fit.noise
        if isinstance(noise, str) or np.ndim(noise) or self.problem.outputs > 1 or not known.uniform:
            raise InputError(
                "a sketch takes another noise= only where it is one number, for one output with equal noise in every "
                "row. Give it to fitted.sketch(noise=...)."
            )
        level = as_numbers("noise", noise)
        if not (np.isfinite(level) and level > 0):
            raise InputError(f"noise={noise!r} is not positive and finite. It is the standard deviation of y.")
        factor = float(level / known.level[0])
        given = Noise(known.values, level.reshape(1), float(level), "given", None, uniform=True)
        stationary = self.fit.stationary
        if stationary == "holds" and self.fit.refit is None:
            # The distance to the minimum, relative to its threshold, is inversely proportional to the noise.
            distance = self.fit.distance / factor
            if np.isnan(distance):
                stationary = "undecided"
            elif distance > 1:
                stationary = "fails"
        return replace(self.fit, noise=given, own_factor=None, stationary=stationary), factor


def _count_known(digests: np.ndarray | None, known: np.ndarray | None) -> int:
    """Return how many rows are among the known rows; 0 if rows cannot be compared."""
    if digests is None or known is None:
        return 0
    return int(np.sum(np.isin(digests, known)))


def make_sketch(
    work: Workspace,
    *,
    probes: int,
    seed: int,
    noise: Any,
    solver: Any,
    curvature: str,
    given: Problem | None,
    audit: Audit | None = None,
    digests: bool = True,
    engine: Any = None,
) -> Sketch:
    """Return a sketch of a fitted model: see :meth:`vhat.FittedModel.sketch`."""
    check_count("seed", seed)
    check_count("probes", probes, least=_FEWEST_PROBES)
    if probes > _MOST_PROBES:
        raise InputError(f"probes={reprlib.repr(probes)} are more than {_MOST_PROBES:,}. Give 256, or some thousands.")
    if engine is not None:
        solver = _on_cluster(solver, engine)
    work = work.for_solver(solver)
    problem = work.problem
    chosen, prepared = ready(work, solver, curvature, probes)
    if chosen.span:
        raise InputError(
            f"solver={solver!r} inverts the matrix on the span of the training gradients, and a sketch would not know "
            "what lies outside of it. Ask the fitted model for intervals."
        )
    level = find_noise(work, noise, chosen, seed)
    fit = with_undetermined(record_fit(work, chosen, prepared.name, level, seed, given), work, seed)
    exact = problem.p <= MOST_EXACT and prepared.half is not None
    rows = work.validation
    roots = make_roots(work, prepared, chosen, level, probes, seed, exact=exact, engine=engine)
    return Sketch(
        problem=with_placeholder_rows(problem),
        roots=roots,
        fit=replace(fit.without_rows(), solver="sketch"),
        audited=audit,
        row_digests=_sorted_digests(problem, problem.X, problem.targets) if digests else None,
        validation_digests=_sorted_digests(problem, rows.inputs, rows.targets) if digests and rows else None,
    )


def _on_cluster(solver: Any, engine: Any) -> Primal:
    """Return the primal solver with sums over the training rows on a cluster.

    Raises:
        InputError: For a solver that cannot use a cluster.
    """
    if isinstance(solver, Primal):
        return replace(solver, engine=engine)
    if isinstance(solver, str) and solver == "auto":
        return Primal(engine=engine)
    raise InputError(
        f"solver={solver!r} goes through the training rows in this process, once for every step, and engine= has a "
        "cluster sum over them once. Leave solver out (it is then vhat.Primal()), or leave engine out."
    )


def _sorted_digests(problem: Problem, inputs: Any, targets: np.ndarray) -> np.ndarray | None:
    """Return hashes of rows, sorted so that they do not reveal the order; None if rows cannot be compared."""
    found = row_digests(problem, inputs, targets)
    return None if found is None else np.sort(found)
