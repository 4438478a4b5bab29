"""Intervals for a new response, calibrated with responses that the fit has not seen.

A score is the absolute error in units of the standard deviation that the model itself predicts for a new response::

    score = |y - f(x)| / sqrt(sigma^2 + sigma^2 V(x) / n)

Where the noise varies with the prediction, sigma is that of the prediction at x: see :mod:`vhat.intervals.noise_shape`.

With m scores, the interval ``f(x) +- q spread(x)`` takes for q the ``ceil((1 - delta)(m + 1))``-th smallest of them.
The scores and the interval must take the noise of a response from the same source: a level given for the scores is kept
for the interval, and one given for the interval alone is refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_choice, check_delta
from vhat.errors import InputError, StoreError
from vhat.intervals.calibration_guarantee import (
    NOISE_AT_INTERVAL_ALONE,
    NOISE_AT_SCORES_ALONE,
    Source,
    calibration_sentence,
)
from vhat.intervals.interval import Interval
from vhat.intervals.noise_shape import NoiseShape, spread_of
from vhat.level import level_text
from vhat.schema import build

__all__ = ["SAVED_OPTIONS", "Calibrated", "OwnInterval"]

_ANY_DELTA = 0.05
"""Any level: quantiles use the center and the spread of an interval, which do not depend on it."""
SAVED_OPTIONS = ("noise", "solver", "curvature", "seed")
"""Options of ``calibrate`` that are saved with a calibration."""


@dataclass(frozen=True)
class OwnInterval:
    """The model's own observation interval, of the textbook's width, which a calibration rescales.

    Attributes:
        model: The fitted model or the sketch.
        options: Options of its ``interval``, without bound and target.
    """

    model: Any
    options: dict[str, Any]

    def __call__(self, x: Any, delta: float = _ANY_DELTA, *, observation_noise: Any = None) -> Interval:
        """Return the interval at x."""
        found: Interval = self.model.interval(
            x,
            delta,
            bound="asymptotic",
            target="observation",
            observation_noise=observation_noise,
            **self.options,
        )
        return found


@dataclass(frozen=True, repr=False)
class Calibrated:
    """A fitted model whose observation intervals take their level from scores instead of from a formula.

    Attributes:
        source: ``"split"``: scores of calibration rows that training did not see; ``"loo"``: of the training rows,
            each left out in turn; ``"cv"``: of the training rows, by refits without a fifth of them each.
        scores: ``|y - f| / spread``, (m,) or (m, outputs); infinite where a row has none, which errs upwards. Where
            the model and its noise are right they are the sizes of standard normals.
        repeated: Number of calibration rows that are training rows too.
        base: Makes the observation interval that is rescaled, at a point and a delta.
        rough: Number of rows of so high a leverage that first-order leave-one-out is rough.
        observation_noise: The standard deviation that was given for all calibration responses alike, () or
            (1, outputs); :meth:`interval` uses it for new responses. None where none was given, or one per row.
        per_row: Whether each scored row had a noise level of its own; :meth:`interval` then needs that of the new
            responses.
        reused: Number of calibration rows among the validation rows, from which the noise was estimated or the penalty
            of a linearised model was chosen.
        leverage: Mean leverage of the training rows; 0 where leaving rows out is exact or was not done.
        doubt: Why first-order leave-one-out is unreliable for this fit; empty where it is reliable.
        signed: The scores with the sign of ``y - f``, NaN where a row has none, for one-sided quantiles.
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
        """The guarantee of an interval at any delta, one sentence."""
        return calibration_sentence(self, "1 - delta", "delta")

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
        sentence = calibration_sentence(self, level_text(share), f"{share:g}")
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
        if not isinstance(self.base, OwnInterval):
            raise StoreError("this calibration belongs to no fitted model or sketch. Save what was calibrated.")
        asked = dict(self.base.options)
        if not isinstance(asked.get("solver", "auto"), str):
            raise StoreError(
                f"this calibration was made with solver={asked['solver']!r}, which is not saved. Calibrate again with "
                "solver='auto', or save the fitted model and calibrate what is loaded."
            )
        if not (asked.get("noise") is None or isinstance(asked["noise"], str)):
            asked["noise"] = as_numbers("noise", asked["noise"])
        self.base.model.save_calibrated(directory, {"found": self.record(), "asked": asked})

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
                raise InputError(NOISE_AT_INTERVAL_ALONE[self.source])
            return given
        if self.per_row:
            raise InputError(NOISE_AT_SCORES_ALONE[self.source])
        return self.observation_noise

    def __repr__(self) -> str:
        usable = self.scores[np.isfinite(self.scores)]
        middle = f"median score {np.median(usable):.3g} (0.674 where the model is right), " if usable.size else ""
        return (
            f"Calibrated by {self.source}: {len(self.scores)} rows, {middle}delta from {self.finest:.3g} up\n"
            f"{self.guarantee}"
        )
