"""Intervals for a new response whose level is read off responses that the fit has not seen, bias included.

A score is the size of a miss in units of the spread that the model itself claims for a new response there::

    score = |y - f(x)| / sqrt(sigma^2 + sigma^2 V(x) / n)

Where the noise varies with the prediction, sigma is that of the prediction at x: see :mod:`vhat.intervals.noise_shape`.

With m scores, the interval ``f(x) +- q spread(x)`` takes for q the ``ceil((1 - delta)(m + 1))``-th smallest of them.
The scores and the interval must take the noise of a response from the same source: a level that was given for the
scores is kept for the interval, and one that is given for the interval alone is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np

from vhat.checks import as_numbers, check_choice, check_delta, check_finite
from vhat.errors import InputError, StoreError
from vhat.evidence.factored_rows import is_worthwhile
from vhat.evidence.leave_one_out import ROUGH, LeftOut, warn_of_rows
from vhat.intervals.interval import Interval
from vhat.intervals.noise_shape import NoiseShape, estimate_noise_shape, spread_of
from vhat.level import level_text
from vhat.linalg.solvers import Status
from vhat.models.problem import Problem
from vhat.schema import build
from vhat.variance.noise import Noise
from vhat.variance.repeated_rows import refuse_training_rows, repeated_rows
from vhat.variance.workspace import Workspace

__all__ = [
    "MOST_SOLVED",
    "Calibrated",
    "HeldOutErrors",
    "Source",
    "common_noise",
    "count_validation_rows",
    "doubt_of",
    "given_shape",
    "held_out_errors",
    "left_out_errors",
    "load_calibrated",
    "refuse_calibration_rows",
    "rescaled",
    "rows_to_score",
    "sizes_of",
]

Source = Literal["split", "loo", "cv"]
_ANY_DELTA = 0.05
"""Quantiles take center and spread of an interval, which do not depend on its level."""
_OPTIMISTIC = 0.2
"""Mean leverage of a model that is not linear above which left-out errors are too small. Measured on networks of 8 and
16 units: 90% intervals cover 89% at a mean leverage of 0.19, 86 to 88% at 0.28 and 82 to 87% at 0.32."""
_ASKED = ("noise", "solver", "curvature", "seed")
"""Options of ``calibrate`` that are saved with a calibration."""
MOST_SOLVED = 5000
"""Training rows that leave-one-out scores where each of them is a solve: their 95% point is known to 0.3 points."""


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """Errors of rows at a model that had not seen them, and the spread that it claims for them.

    Attributes:
        prediction: (m,) or (m, outputs).
        error: ``y - f``, shaped alike; NaN where a row has none.
        standard_error: Of the prediction, shaped alike.
        noise: Standard deviation of the response around its mean; broadcasts to that shape.
    """

    prediction: np.ndarray
    error: np.ndarray
    standard_error: np.ndarray
    noise: np.ndarray

    def scores(self, relative: Any = 1.0) -> np.ndarray:
        """Return the errors in units of the spread, with their sign.

        Args:
            relative: The noise at each row relative to ``noise``.
        """
        found: np.ndarray = self.error / spread_of(self.standard_error, self.noise, relative)
        return found

    def varying(self, groups: np.ndarray | None = None) -> tuple[NoiseShape | None, np.ndarray]:
        """Return how the noise varies with the prediction, None where it does not, and the scores that allow for it.

        Args:
            groups: A number for each row; rows with one number are copies of each other. None to take rows for copies
                that have the same prediction and error.
        """
        if groups is None:
            groups = self._alike()
        shape, relative = estimate_noise_shape(self.prediction, self.scores(), groups)
        return shape, self.scores(relative)

    def _alike(self) -> np.ndarray:
        """Number the rows so that those of the same prediction and error, to nine digits, have one number, (m,)."""
        columns = np.column_stack(
            [self.prediction.reshape(len(self.error), -1), self.error.reshape(len(self.error), -1)]
        )
        size = np.nanmax(np.abs(columns), axis=0, initial=np.finfo(float).tiny)
        _, group = np.unique(np.round(columns / size, 9), axis=0, return_inverse=True)
        return np.asarray(group).reshape(-1)


@dataclass(frozen=True, repr=False)
class Calibrated:
    """A fitted model whose observation intervals take their level from scores instead of from a formula.

    Attributes:
        source: ``"split"``: scores of calibration rows that training did not see; ``"loo"``: of the training rows,
            each left out in turn; ``"cv"``: of the training rows, by refits without a fifth of them each.
        scores: ``|y - f| / spread``, (m,) or (m, outputs); infinite where a row has none, which errs upwards. Where
            the model and its noise are right they are the sizes of standard normals.
        repeated: How many calibration rows are training rows too.
        base: Makes the observation interval that is rescaled, at a point and a delta.
        rough: How many rows the fit leans on so much that leaving them out to first order is rough.
        observation_noise: The standard deviation that was given for all calibration responses alike, () or
            (1, outputs); :meth:`interval` uses it for new responses. None where none was given, or one per row.
        per_row: Whether each scored row had a noise level of its own; :meth:`interval` then needs that of the new
            responses.
        reused: How many calibration rows are among the validation rows that told the noise, or chose the penalty of a
            linearised model.
        leverage: Mean leverage of the training rows; 0 where leaving rows out is exact or was not done.
        doubt: Why leaving rows out to first order is not to be relied on for this fit; empty where it is.
        signed: The scores with the sign of ``y - f``, NaN where a row has none; they tell one-sided quantiles.
        digests: Eight bytes a calibration row, (m,), by which these rows are recognised when they are offered as
            held-out rows; None for leave-one-out, and where rows cannot be compared.
        noise_shape: How the noise varies with the prediction, estimated from training rows; None for constant noise.

    Examples:
        >>> import numpy as np, vhat
        >>> x = np.linspace(0, 4, 30)
        >>> y = 2.0 * np.exp(-x) + 0.01 * np.cos(30 * x)
        >>> fitted = vhat.from_numpy(lambda q, x: q[0] * np.exp(-q[1] * x), [2.0, 1.0], x, y).polish()
        >>> fresh = np.linspace(0.1, 3.9, 19)
        >>> calibrated = fitted.calibrate(fresh, 2.0 * np.exp(-fresh) + 0.01 * np.sin(30 * fresh))
        >>> calibrated.interval([1.0, 2.0]).center.round(2)
        array([0.74, 0.27])
    """

    source: Source
    scores: np.ndarray
    repeated: int
    base: Callable[..., Interval] = field(repr=False)
    rough: int = 0
    observation_noise: np.ndarray | None = None
    per_row: bool = False
    reused: int = 0
    leverage: float = 0.0
    doubt: str = ""
    signed: np.ndarray | None = field(default=None, repr=False)
    digests: np.ndarray | None = field(default=None, repr=False)
    noise_shape: NoiseShape | None = field(default=None, repr=False)

    @property
    def guarantee(self) -> str:
        """What an interval at any delta may claim: one sentence."""
        return _sentence(self, "1 - delta", "delta")

    @property
    def finest(self) -> float:
        """The smallest delta for which there are enough scores: ``1/(m + 1)`` when none of them is infinite."""
        unusable = int(np.max(np.sum(~np.isfinite(self.scores), axis=0)))
        return (1 + unusable) / (1 + len(self.scores))

    def quantile(self, delta: float = 0.05) -> np.ndarray:
        """Return the factor on the spread: the ``ceil((1 - delta)(m + 1))``-th smallest score, () or (outputs,).

        Raises:
            InputError: For a delta outside (0, 1), or too small for so few scores.
        """
        delta, m = check_delta(delta), len(self.scores)
        # the decimal that was written, not its binary neighbour: 0.95 * 20 must not become 20 of 19
        rank = math.ceil((1 - Fraction(repr(delta))) * (m + 1))
        factor = np.sort(self.scores, axis=0)[rank - 1] if rank <= m else np.asarray(np.inf)
        if not np.all(np.isfinite(factor)):
            raise InputError(
                f"{m} scores are too few for delta={delta:g}: the interval would be infinite. The smallest delta that "
                f"they allow is {self.finest:.3g}. Ask for that or more, or calibrate with at least "
                f"{math.ceil(1 / Fraction(repr(delta))) - 1} rows."
            )
        return np.asarray(factor)

    def interval(
        self,
        x: Any,
        delta: float = 0.05,
        *,
        simultaneous: bool = False,
        target: str = "observation",
        observation_noise: Any = None,
    ) -> Interval:
        """Compute an interval for a new response at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            simultaneous: One delta for all points and outputs at once, by the union bound: each has its share of delta,
                and m points take some ``m / delta`` scores.
            target: ``"observation"``, which is all that responses can calibrate.
            observation_noise: Standard deviation of a new response at x: a number, or one per row of x. Needed where
                the calibration rows had one each; by default the number that ``calibrate`` was given; refused where
                ``calibrate`` was given none.

        Returns:
            The interval; its sentence says what this kind of calibration can claim.

        Raises:
            InputError: For inputs that cannot be used, a delta too small for so few scores, or a noise level of new
                responses where the scores had none, and none where they had; for a target that responses do not tell.
        """
        check_choice("target", target, ("mean", "observation"))
        if target == "mean":
            raise InputError(
                "target='mean' asks for the mean of the prediction, and responses calibrate intervals of responses "
                "alone. fitted.interval(x) has the interval of the mean."
            )
        factor = self.quantile(delta)  # a delta that has no answer is refused before anything is solved
        fresh = self._fresh_noise(observation_noise)
        band = self.base(x, delta, observation_noise=fresh)
        share = band.delta / band.center.size if simultaneous else band.delta
        if simultaneous:
            factor = self.quantile(share)
        width = factor * self.spread(band, fresh)
        sentence = _sentence(self, level_text(share), f"{share:g}")
        if simultaneous and band.center.size > 1:
            sentence = (
                f"All {band.center.size} values at once at {level_text(delta)} by the union bound, each with its share "
                f"of delta. {sentence}"
            )
        return replace(
            band,
            lower=band.center - width,
            upper=band.center + width,
            half_width=width,
            bound=self.source,
            guarantee=sentence,
        )

    def quantiles(self, x: Any, levels: Any, *, observation_noise: Any = None) -> np.ndarray:
        """Return quantiles of a new response at every point, of each side on its own.

        A level q above a half takes the ``ceil(q (m + 1))``-th smallest of the signed scores, one below a half the
        ``floor(q (m + 1))``-th: the response is above the first, or below the second, no more often than it should be.

        Args:
            x: Test inputs, shaped like the training inputs.
            levels: Numbers between 0 and 1, (k,).
            observation_noise: As in :meth:`interval`.

        Returns:
            The quantiles, (points, k) or (points, outputs, k).

        Raises:
            InputError: For inputs that cannot be used, and levels too near 0 or 1 for so few scores.
        """
        asked = as_numbers("levels", levels)
        factors = [self._signed_quantile(level) for level in asked.tolist()]
        fresh = self._fresh_noise(observation_noise)
        band = self.base(x, _ANY_DELTA, observation_noise=fresh)
        sizes = self.spread(band, fresh)
        return np.stack([band.center + factor * sizes for factor in factors], axis=-1)

    def _signed_quantile(self, level: float) -> np.ndarray:
        """Return the factor on the spread, () or (outputs,)."""
        if self.signed is None:
            raise InputError("this calibration holds no signed scores. Calibrate again: fitted.calibrate(...).")
        m = len(self.signed)
        upper = level >= 0.5
        exact = Fraction(repr(float(level))) * (m + 1)
        rank = math.ceil(exact) if upper else math.floor(exact)
        # a row without a score counts as missed on the side that is asked about
        ordered = np.sort(np.where(np.isnan(self.signed), np.inf if upper else -np.inf, self.signed), axis=0)
        factor = ordered[rank - 1] if 1 <= rank <= m else np.asarray(np.nan)
        if not np.all(np.isfinite(factor)):
            unusable = int(np.max(np.sum(np.isnan(self.signed), axis=0)))
            least = (1 + unusable) / (m + 1)
            raise InputError(
                f"{m} scores are too few for the quantile {level:g}: they tell those from {least:.3g} to "
                f"{1 - least:.3g}. Ask for one of these, or calibrate with more rows."
            )
        return np.asarray(factor)

    def spread(self, band: Interval, observation_noise: Any = None) -> np.ndarray:
        """Return the standard deviation of a new response around its prediction, before the scores rescale it.

        Args:
            band: The interval that ``base`` makes.
            observation_noise: The noise of the new responses, where it was given.
        """
        noise: Any = band.noise if band.observation_noise is None else band.observation_noise
        if observation_noise is not None:
            noise = as_numbers("observation_noise", observation_noise)
        relative = 1.0 if self.noise_shape is None else self.noise_shape(band.center)
        return spread_of(band.standard_error, noise, relative)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save the model and this calibration of it: :func:`vhat.load` then returns the calibrated model.

        Args:
            directory: As in :meth:`vhat.FittedModel.save`, or :meth:`vhat.Sketch.save` where a sketch was calibrated.

        Raises:
            StoreError: As there, and for a calibration with a solver of its own.
        """
        asked = dict(getattr(self.base, "keywords", {}))
        keep = getattr(getattr(getattr(self.base, "func", None), "__self__", None), "save_calibrated", None)
        if keep is None:
            raise StoreError("this calibration belongs to no fitted model or sketch. Save what was calibrated.")
        if not isinstance(asked.get("solver", "auto"), str):
            raise StoreError(
                f"this calibration was made with solver={asked['solver']!r}, which is not saved. Calibrate again with "
                "solver='auto', or save the fitted model and calibrate what is loaded."
            )
        if not (asked.get("noise") is None or isinstance(asked["noise"], str)):
            asked["noise"] = as_numbers("noise", asked["noise"])
        kept = {name: asked[name] for name in _ASKED if name in asked}
        keep(directory, {"found": self.record(), "asked": kept})

    def record(self) -> dict[str, Any]:
        """Return everything but the model, as plain data and arrays, for :meth:`restored`."""
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "base"}
        if self.noise_shape is not None:
            kept["noise_shape"] = {each.name: getattr(self.noise_shape, each.name) for each in fields(NoiseShape)}
        return kept

    @classmethod
    def restored(cls, record: dict[str, Any], base: Callable[..., Interval]) -> Calibrated:
        """Return a calibration that was recorded, of the model that ``base`` asks."""
        saved = record.get("noise_shape")
        shape = None if saved is None else build(NoiseShape, saved)
        scores = record.get("scores")
        outputs = scores.shape[1] if isinstance(scores, np.ndarray) and scores.ndim == 2 else 1
        if shape is not None and len(shape.knots) != outputs:
            raise StoreError(
                f"the saved noise shape is malformed: it is of {len(shape.knots)} outputs and not {outputs}."
            )
        return build(cls, record, base=base, noise_shape=shape)

    def _fresh_noise(self, given: Any) -> Any:
        """Return the noise level of new responses, on the same footing as that of the scores.

        Raises:
            InputError: When only one of them is known.
        """
        if given is not None:
            if self.observation_noise is None and not self.per_row:
                raise InputError(_ONLY_HERE[self.source])
            return given
        if self.per_row:
            raise InputError(_ONLY_THERE[self.source])
        return self.observation_noise

    def __repr__(self) -> str:
        usable = self.scores[np.isfinite(self.scores)]
        middle = f"median score {np.median(usable):.3g} (0.674 where the model is right), " if usable.size else ""
        return (
            f"Calibrated by {self.source}: {len(self.scores)} rows, {middle}delta from {self.finest:.3g} up\n"
            f"{self.guarantee}"
        )


_ONLY_HERE: dict[Source, str] = {
    "split": (
        "observation_noise was given to interval() and not to calibrate(): the scores are in units of the fit's noise, "
        "and would be read in other units here. Give it to both, fitted.calibrate(X_cal, y_cal, "
        "observation_noise=...).interval(x, observation_noise=...), or to neither."
    ),
    "loo": (
        "observation_noise was given to interval(), and the scores of calibrate('loo') are in units of the fit's "
        "noise, which is the same in all rows. Leave it out; or calibrate with noise=, one number per training row, "
        "where the noise differs between rows."
    ),
    "cv": (
        "observation_noise was given to interval(), and the scores of a calibration by folds are in units of the fit's "
        "noise, which is the same in all rows. Leave it out; or calibrate with noise=, one number per training row, "
        "where the noise differs between rows."
    ),
}
"""Noise of new responses that was given for the interval and not for the scores."""
_ONLY_THERE: dict[Source, str] = {
    "split": (
        "calibrate() was given one observation_noise per calibration row, which says nothing of new responses. Give "
        "interval(x, observation_noise=...): the standard deviation of a new response, a number or one per row of x."
    ),
    "loo": (
        "the training rows have noise of different sizes, so the noise of a new response is not known. Give "
        "interval(x, observation_noise=...): the standard deviation of a new response, a number or one per row of x."
    ),
    "cv": (
        "the training rows have noise of different sizes, so the noise of a new response is not known. Give "
        "interval(x, observation_noise=...): the standard deviation of a new response, a number or one per row of x."
    ),
}
"""Noise that each scored row had of its own, and that is not given for the interval."""


def rescaled(ask: Callable[..., Interval], **options: Any) -> Callable[..., Interval]:
    """Return what a calibration rescales: the model's own observation interval by the textbook's width.

    Args:
        ask: ``fitted.interval``.
        options: Its options beside the bound and the target.
    """
    return partial(ask, bound="asymptotic", target="observation", **options)


def load_calibrated(model: Any, saved: dict[str, Any] | None) -> Any:
    """Return a model that was loaded, or its calibration where one was saved with it.

    Args:
        model: The fitted model or sketch.
        saved: What :meth:`Calibrated.save` keeps beside the model, or None.

    Raises:
        StoreError: For a calibration that is malformed, or of another model.
    """
    if saved is None:
        return model
    asked = saved["asked"]
    if not set(asked) <= set(_ASKED) or not isinstance(asked.get("solver", "auto"), str):
        raise StoreError(f"the saved calibration is malformed: its options are {sorted(asked)}.")
    found = Calibrated.restored(saved["found"], rescaled(model.interval, **asked))
    outputs = () if model.problem.squeeze else (model.problem.outputs,)
    for name in ("scores", "signed"):
        array = getattr(found, name)
        if array is not None and array.shape[1:] != outputs:
            raise StoreError(f"the saved calibration is malformed: its {name} have shape {array.shape}.")
    return found


def doubt_of(found: LeftOut, *, minimum: bool, reason: str) -> str:
    """Return why leaving rows out to first order is not to be relied on; empty where it is.

    Args:
        found: The rows left out.
        minimum: Whether the parameters are a certified minimum.
        reason: Why the Gauss-Newton matrix took the place of the exact Hessian; empty where it did not.
    """
    if not minimum:
        return "the parameters are not a minimum, and a fit without a row is not told from them"
    if reason:
        return "the exact Hessian cannot be used, and leverages by the Gauss-Newton matrix are too small"
    if found.mean_leverage > _OPTIMISTIC:
        return (
            f"the fit spends {found.mean_leverage:.2g} degrees of freedom on each row, and predicts new rows worse "
            "than a first-order step tells"
        )
    if found.unreliable:
        return f"{found.rough} of {len(found.leverage)} training rows have leverage above {ROUGH}"
    return ""


def sizes_of(signed: np.ndarray) -> np.ndarray:
    """Return the sizes of signed scores; infinite where a row has none."""
    return np.where(np.isnan(signed), np.inf, np.abs(signed))


def common_noise(observation_noise: Any) -> tuple[np.ndarray | None, bool]:
    """Return the noise level that all calibration rows share, if there is one, and whether each row has its own."""
    if observation_noise is None:
        return None, False
    levels = as_numbers("observation_noise", observation_noise)
    if levels.ndim > 0 and len(levels) > 1:
        return None, True
    return levels, False


def given_shape(noise_shape: NoiseShape | str, observation_noise: Any) -> NoiseShape | None:
    """Return how the noise of calibration rows varies with the prediction; None for constant noise.

    Raises:
        InputError: For anything but ``"constant"`` and a shape that was estimated before, and for a shape beside a
            noise level of the responses.
    """
    if isinstance(noise_shape, NoiseShape):
        if observation_noise is not None:
            raise InputError("noise_shape and observation_noise both say how noisy a response is. Give one of them.")
        return noise_shape
    if noise_shape != "constant":
        raise InputError(
            f"noise_shape={noise_shape!r} beside calibration rows must be 'constant' or a shape estimated without "
            "them, such as fitted.calibrate('loo', noise_shape='prediction').noise_shape."
        )
    return None


def held_out_errors(band: Interval, y: Any, observation_noise: Any) -> HeldOutErrors:
    """Compare responses with the model's own observation interval at their inputs.

    Raises:
        InputError: For responses of another shape, or that are not finite.
    """
    responses = as_numbers("y_cal", y)
    if responses.shape != band.center.shape:
        raise InputError(
            f"y_cal has shape {responses.shape}; the model predicts shape {band.center.shape} at X_cal. Bring them to "
            "one shape, one row a calibration point."
        )
    check_finite("y_cal", responses)
    noise: Any = band.noise if band.observation_noise is None else band.observation_noise
    if observation_noise is not None:
        noise = as_numbers("observation_noise", observation_noise)
    error = np.where(band.status == Status.CONVERGED, responses - band.center, np.nan)
    return HeldOutErrors(band.center, error, band.standard_error, np.asarray(noise))


def rows_to_score(problem: Problem, half: Any, seed: int) -> np.ndarray | None:
    """Return the training rows that leave-one-out scores; None for all of them.

    Args:
        problem: The training problem.
        half: The factorisation of the solver, or None where it has none: each row is then a solve.
        seed: Draws the rows.
    """
    if problem.n <= MOST_SOLVED or is_worthwhile(problem, half):
        return None
    return np.sort(np.random.default_rng(seed).choice(problem.n, size=MOST_SOLVED, replace=False))


def left_out_errors(problem: Problem, found: LeftOut, noise: Noise, rows: np.ndarray | None = None) -> HeldOutErrors:
    """Compare the training rows that the loss sees, each with the model that never saw it; fields are (rows, K)."""
    warn_of_rows(found)
    index = np.arange(problem.n) if rows is None else rows
    seen = np.any(problem.loss_derivatives.cross.reshape(problem.n, -1)[index] != 0, axis=1)
    error = problem.targets[index] - found.prediction
    standard_error = np.sqrt(found.variance / problem.n)
    return HeldOutErrors(found.prediction[seen], error[seen], standard_error[seen], noise.values[index][seen])


def refuse_calibration_rows(problem: Problem, inputs: Any, y: Any) -> int:
    """Return how many calibration rows are training rows too: see :func:`refuse_training_rows`."""
    responses = as_numbers("y_cal", y).reshape(-1, problem.outputs)
    remedy = "Give rows that training did not see, or use calibrate('loo')."
    return refuse_training_rows(problem, inputs, responses, kind="calibration", remedy=remedy)


def count_validation_rows(work: Workspace, inputs: Any, y: Any) -> int:
    """Return how many calibration rows, input and response, are validation rows of the model too."""
    rows = work.validation
    if rows is None:
        return 0
    responses = as_numbers("y_cal", y).reshape(-1, work.problem.outputs)
    return len(repeated_rows(work.problem, inputs, responses, (rows.inputs, rows.targets)))


def _varying(found: Calibrated) -> str:
    """Return the clause on noise that varies with the prediction; empty for constant noise."""
    if found.noise_shape is None:
        return ""
    least, most = found.noise_shape.extremes
    return (
        f"; widths follow noise that varies with the prediction, {least:.2g} to {most:.2g} times its root mean square "
        "(estimated from training rows)"
    )


def _sentence(found: Calibrated, level: str, miss: str) -> str:
    m = len(found.scores)
    each = " (each output alone)" if found.scores.ndim == 2 else ""
    varying = _varying(found)
    if found.source == "loo":
        leans = f", BUT {found.rough} OF THEM HAVE LEVERAGE ABOVE {ROUGH}" if found.rough else ""
        if found.doubt:
            leans += f"; NOT TO BE RELIED ON: {found.doubt}"
        return (
            f"Nominal {level} for a new response at one point{each}, bias included, from {m} training rows, each "
            f"left out in turn to first order{varying}; there is no finite-sample guarantee (jackknife+ with exact "
            f"refits would miss with probability at most 2 x {miss}); assumed: the new row and the training rows "
            f"exchangeable, and a fit that hardly depends on any one row{leans}."
        )
    if found.source == "cv":
        unsure = f"; NOT TO BE RELIED ON: {found.doubt}" if found.doubt else ""
        return (
            f"Nominal {level} for a new response at one point{each}, bias included, from {m} training rows, each "
            f"predicted by a refit without a fifth of the rows, its own among them{varying}; there is no finite-sample "
            f"guarantee (cross-conformal prediction would miss with probability at most 2 x {miss} and a little more); "
            f"assumed: the new row and the training rows exchangeable, and refits that err as the fit does{unsure}."
        )
    known = f", BUT {found.repeated} OF THEM ARE TRAINING ROWS TOO" if found.repeated else ""
    doubt = f"; beware: {found.doubt}" if found.doubt else ""
    if found.reused:
        doubt += (
            f"; beware: {found.reused} OF THEM ARE VALIDATION ROWS, which told the noise and may have chosen lam, so "
            "that this probability is not promised (give other rows)"
        )
    return (
        f"A new response at one point{each} is missed with probability at most {miss}, bias included, in the mean over "
        f"draws of the {m} calibration rows and of the new one together, not for each x nor for these {m} rows given "
        f"(split conformal){varying}{doubt}; assumed: calibration rows and the new row exchangeable (the same "
        "population, no shift), and model, noise level and weight decay fixed before these rows were seen, not chosen "
        f"with them{known}; nothing is assumed of the model, its minimum or its noise."
    )
