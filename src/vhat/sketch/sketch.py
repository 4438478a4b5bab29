"""Intervals that need neither the training data nor a solver: what is deployed."""

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
from vhat.models.problem import Problem
from vhat.models.stand_in import stand_in
from vhat.sketch.persistence import save_sketch
from vhat.sketch.roots import Roots, make_roots
from vhat.variance.noise import Noise
from vhat.variance.repeated_rows import is_more_than_chance, row_digests
from vhat.variance.weighted_norm import Measured, Recorder, WeightedNorm, gradient_blocks, join_measured
from vhat.variance.workspace import Workspace

__all__ = ["MOST_EXACT", "PROBES", "Sketch", "make_sketch"]

PROBES = 256
"""Random probes by default: the relative standard deviation of a width is 4.4%."""
MOST_EXACT = 2000
"""Parameters up to which V is exact: its roots are p x p matrices of 32 MB each."""
_FEWEST = 8
"""Probes: with fewer, the sampling error of V is larger than V."""
_MOST = 1_000_000
"""Probes: the relative standard deviation of a width is 0.07%, and more would gain nothing that could be seen."""


_NEED_ROWS = frozenset(
    {"acquire", "confidence_set", "covariance", "fisher", "functional", "leave_one_out", "linearised", "plan", "polish"}
    | {"report", "scale_weight_decay", "sensitivity", "sketch", "tangent_kernel", "uniform", "with_validation"}
)
"""Methods of a fitted model that a sketch cannot have."""


@dataclass(frozen=True, eq=False, repr=False)
class Sketch:
    """A fitted model without its training data: predictions, and intervals at a cost that does not depend on them.

    Made by :meth:`vhat.FittedModel.sketch`, saved by :meth:`save` and loaded by :func:`vhat.load`. A row costs its
    gradient and some hundred inner products with it.

    Attributes:
        problem: The model, on made-up rows in place of its training rows.
        roots: What intervals need of the fit.
        fit: What was measured, checked and assumed of the fit.
        audited: The audit of the fitted model; None where ``sketch(audit=True)`` did not ask for it.
        row_digests: Eight bytes a training row, sorted, by which a training row is refused as a calibration row; None
            where rows cannot be compared, or are not to be remembered.
        validation_digests: The same of validation rows, which are named where they calibrate.
    """

    problem: Problem = field(repr=False)
    roots: Roots
    fit: FitRecord = field(repr=False)
    audited: Audit | None = field(default=None, repr=False)
    row_digests: np.ndarray | None = field(default=None, repr=False)
    validation_digests: np.ndarray | None = field(default=None, repr=False)
    _told: set[str] = field(default_factory=set, repr=False)

    def first(self, event: str) -> bool:
        """Whether this is the first time that ``event`` happens to this sketch."""
        new = event not in self._told
        self._told.add(event)
        return new

    def __getattr__(self, name: str) -> Any:
        """Say of what only a fitted model has that it needs the training rows."""
        if name in _NEED_ROWS:
            raise AttributeError(
                f"a Sketch has no {name}(): that needs the training rows, which it does not have. Ask the fitted model "
                "that it was made of."
            )
        raise AttributeError(f"'Sketch' object has no attribute {name!r}")

    def audit(self) -> Audit:
        """Return the audit that was made with the sketch.

        Raises:
            InputError: Where there is none.
        """
        if self.audited is None:
            raise InputError(
                "this sketch was made without an audit, and has no training rows to make one from. Ask the fitted "
                "model for fitted.audit(), or make the sketch by fitted.sketch(audit=True)."
            )
        return self.audited

    @property
    def probes(self) -> int | None:
        """How many random probes V is estimated from; None where it is exact."""
        return self.roots.probes

    def __repr__(self) -> str:
        problem = self.problem
        how = "exact V" if self.probes is None else f"V from {self.probes} probes"
        curvature = self.fit.chosen.curvature if self.fit.refit is None else "exact (linearised)"
        return (
            f"Sketch({problem.autodiff.framework}, outputs={problem.outputs}, p={problem.p}, "
            f"fitted to n={self.fit.rows:,}, {curvature} curvature, {how})"
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

        The sampling error of V is part of the level: the multiplier is a little larger than that of exact V, by 0.5%
        for 256 probes at 95%. That holds for points that were chosen without sight of the probes, not for those at
        which this sketch reports the smallest or largest V.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            simultaneous: False, or True (``"union"``); ``"sup-t"`` needs the training rows.
            bound: As in :meth:`vhat.FittedModel.interval`.
            tail: As there, but in multiples of V: ``Tail.relative(v, c)``, ``Tail.sd(share)``, ``"constant"``,
                ``"any"`` or None.
            target: ``"mean"`` for the expected prediction, ``"observation"`` for a new response.
            noise: Another noise level than that of the sketch, for one output with equal noise in every row.
            observation_noise: Standard deviation of a new response, where it differs from ``noise``.
            bias: None, ``"plug-in"``, or a bound on the absolute bias to be added.
            seed: Not used: a sketch draws nothing when it is asked.

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
        """Compute V at every point: exact, or ``V`` times a chi-square variable over its degrees of freedom."""
        with self.problem.scope():
            inputs = self.problem.inputs(x)
            count = self.problem.count(inputs)
            found = self._measure(inputs)
        shape = (count,) if self.problem.squeeze else (count, self.problem.outputs)
        return Recorder(self.fit.noise.level, shape, self.fit.chosen.curvature, self.fit.solver).record(found)

    def variance_limits(self, x: Any, delta: float = 0.01, *, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return limits of V itself, of all points at once.

        Over draws of the probes, the limits of all points hold together with probability ``1 - delta`` (union bound).
        Where V is exact, both limits are V.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability that some limit fails.
            rows: At how many values this sketch will ever be asked for limits, where these are only some of them; by
                default as many as are asked for here.

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
        """Take the level of observation intervals from responses that the fit has not seen, bias included.

        Args:
            X_cal: Calibration inputs that training did not see.
            y_cal: Their responses.
            noise: As in :meth:`interval`.
            observation_noise: As in :meth:`vhat.FittedModel.calibrate`.
            noise_shape: As in :meth:`vhat.FittedModel.calibrate`, for calibration rows.

        Returns:
            The calibrated model: ``.interval(x, delta)``, with what it may claim in ``.guarantee``.

        Raises:
            InputError: For data that cannot be used, or that training has seen.
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
        """Save for :func:`vhat.load`: parameters, roots, noise and audit, and no training row.

        Args:
            directory: A new or empty directory, or one that was saved to before.

        Raises:
            StoreError: When the directory cannot be written, or something of the model cannot be kept.
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
        """Return how many calibration rows are training rows too: warn of some, refuse many."""
        count = _count_known(digests, self.row_digests)
        if not count:
            return 0
        assert digests is not None
        assert self.row_digests is not None
        told = f"{count} of {len(digests)} calibration rows are also training rows, input and response alike"
        if is_more_than_chance(digests, self.row_digests):
            raise InputError(
                f"{told}, which is more than chance explains: their errors say nothing about a new response. Give rows "
                "that training did not see."
            )
        warnings.warn(
            f"{told}. If training saw them, leave them out: the level does not hold with them.",
            CalibrationWarning,
            stacklevel=outside(),
        )
        return count

    def _check(self, options: Options) -> None:
        """Refuse what only the training rows could answer.

        Raises:
            InputError: Naming what to ask instead.
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
        """Return the record under a noise level that was given, and by how much it exceeds that of the sketch."""
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
            # Less noise leaves less room for the distance to the minimum.
            distance = self.fit.distance / factor
            stationary = "undecided" if np.isnan(distance) else "holds" if distance <= 1 else "fails"
        return replace(self.fit, noise=given, own_factor=None, stationary=stationary), factor


def _count_known(digests: np.ndarray | None, known: np.ndarray | None) -> int:
    """Return how many rows are among known ones."""
    return 0 if digests is None or known is None else int(np.sum(np.isin(digests, known)))


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
    """Make a sketch of a fitted model: see :meth:`vhat.FittedModel.sketch`."""
    check_count("seed", seed)
    check_count("probes", probes, least=_FEWEST)
    if probes > _MOST:
        raise InputError(f"probes={reprlib.repr(probes)} are more than {_MOST:,}. Give 256, or some thousands.")
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
        problem=stand_in(problem),
        roots=roots,
        fit=replace(fit.without_rows(), solver="sketch"),
        audited=audit,
        row_digests=_sorted_digests(problem, problem.X, problem.targets) if digests else None,
        validation_digests=_sorted_digests(problem, rows.inputs, rows.targets) if digests and rows else None,
    )


def _on_cluster(solver: Any, engine: Any) -> Primal:
    """Return the solver whose sums over the training rows a cluster makes.

    Raises:
        InputError: For other solvers, naming the call that works.
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
    """Return digests of rows, in an order that says nothing of that of the rows."""
    found = row_digests(problem, inputs, targets)
    return None if found is None else np.sort(found)
