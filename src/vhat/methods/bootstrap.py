"""The bootstrap: refits to resampled data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import InputError
from vhat.fitted.match_rows import held_rows
from vhat.methods.base import bootstrap_limits
from vhat.methods.base.answering import Answer, BaseFitted, Question, noise_of_response
from vhat.methods.base.ensemble import predictions
from vhat.methods.base.fitting import BaseMethod, Training
from vhat.methods.base.guarantee import Claim
from vhat.methods.base.limits import Limits
from vhat.methods.base.local_error import left_out_predictions, propagated_error
from vhat.methods.base.method import check_noise, residuals
from vhat.methods.base.requirements import require_residuals
from vhat.methods.base.resampling import KINDS, ResampledData, draw_pairs, draw_responses

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel
    from vhat.variance.noise import Noise

__all__ = ["Bootstrap", "FittedBootstrap"]

_STREAM = 11
"""Number of this method's stream of random numbers."""
_WEIGHT_ROUNDING = 1e-5
"""Relative difference of weights that counts as rounding: recipes may hold them in float32."""
_WHY = {
    "percentile": "",
    "bca": "All refits lie on one side of the fit (more resamples may cure that), or a row left out has no answer.",
    "studentised": "A refit has no standard error there.",
}
"""Why each kind of limits can be missing at a point, for the warning."""
_NOISE = {
    "pairs": "independent rows, drawn like these",
    "residual": "noise of one law in every row",
    "wild": "independent noise, symmetric in every row",
    "parametric": "Gaussian noise",
}
"""What each kind of resampling assumes about the noise, for the guarantee."""


@dataclass(frozen=True)
class Bootstrap(BaseMethod["FittedBootstrap"]):
    """Refit to resampled data, and take limits from the distribution of the refits.

    ``"pairs"`` needs a recipe that trains with its sample weights: refits that ignore them are refused. The other kinds
    need a loss that is a function of ``f - y``.

    Attributes:
        resamples: Number of refits. The paper compares with ten, too few to resolve 95%: take hundreds for that.
        resampling: ``"pairs"``: rows drawn with replacement, passed to the recipe as sample weights. The other kinds
            hold the inputs fixed: ``"residual"``: residuals drawn with replacement; ``"wild"``: each residual with a
            random sign; ``"parametric"``: Gaussian noise about the fit.
        limits: ``"percentile"``; ``"bca"``: percentiles corrected for bias and skewness (pairs only), with the
            acceleration from first-order leave-one-out predictions; ``"studentised"``: quantiles of each refit's
            deviation in units of its own sandwich error.
        new_seeds: Whether each refit gets a new seed, so that the spread includes the randomness of training;
            otherwise all have the seed of the fit to the data.
        adjust: For ``"residual"`` and ``"wild"``: divide residuals by ``sqrt(1 - leverage)``. Raw residuals are smaller
            than the noise by the degrees of freedom of the fit.
        noise: Standard deviation of y, for ``"parametric"`` and for ``target="observation"``; None estimates it.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import Adam, Network
        >>> x = np.linspace(-1, 1, 30)[:, None]
        >>> recipe = Adam(Network((1, 4, 1)), weight_decay=1e-2, steps=200)
        >>> fit = Bootstrap(resamples=10).fit(recipe, x, x[:, 0] ** 2)
        >>> len(fit.refits), fit.interval([[0.0], [0.5]], delta=0.2).bound
        (10, 'bootstrap (pairs, percentile)')
    """

    resamples: int = 10
    resampling: Literal["pairs", "residual", "wild", "parametric"] = "pairs"
    limits: Literal["percentile", "bca", "studentised"] = "percentile"
    new_seeds: bool = False
    adjust: bool = True
    noise: float | None = None

    def __post_init__(self) -> None:
        check_count("resamples", self.resamples, least=2)
        check_choice("resampling", self.resampling, KINDS)
        check_choice("limits", self.limits, tuple(_WHY))
        check_noise(self.noise)
        if self.limits == "bca" and self.resampling != "pairs":
            raise InputError(
                f'limits="bca" takes its acceleration from leaving rows out, which belongs to resampling="pairs", not '
                f'{self.resampling!r}. Use limits="percentile" or "studentised".'
            )

    def _fit(self, data: Training) -> FittedBootstrap:
        observed = data.responses()
        base = data.fit_once()
        if self.limits != "percentile":
            require_residuals(base, f'limits="{self.limits}"')
        resampled = self._resample(base, observed, data.random(_STREAM))
        seeds = data.refit_seeds(self.resamples, new=self.new_seeds)
        refits = data.fit_many(seeds, sample_weights=resampled.weights, targets=resampled.targets)
        _check_refits(base, refits, observed, resampled)
        return FittedBootstrap(self, base, refits, resampled)

    def _resample(self, base: FittedModel, y: np.ndarray, rng: np.random.Generator) -> ResampledData:
        """Draw the training data of all refits."""
        if self.resampling == "pairs":
            return draw_pairs(len(y), self.resamples, rng)
        return draw_responses(self.resampling, base, y, self.resamples, rng, noise=self.noise, adjust=self.adjust)


@dataclass(frozen=True, eq=False)
class FittedBootstrap(BaseFitted):
    """The fit to the data and the fits to the resamples.

    Attributes:
        options: The options.
        base: The fit to the data.
        refits: The fits to the resamples.
        resampled: Their training data.
    """

    options: Bootstrap
    base: FittedModel = field(repr=False)
    refits: tuple[FittedModel, ...] = field(repr=False)
    resampled: ResampledData = field(repr=False)

    def _answer(self, asked: Question) -> Answer:
        """Compute limits from the refits; the center is the prediction of the fit to the data."""
        draws = predictions(self.refits, asked.x)
        center = self.base.predict(asked.x)
        return Answer(
            self._claim(asked.delta),
            center,
            self._limits(asked.x, draws, center, asked.delta),
            standard_error=draws.std(axis=0, ddof=1),
            why=_WHY[self.options.limits],
        )

    def _response_noise(self) -> Noise:
        return noise_of_response(self.base, self.options.noise)

    def _limits(self, x: Any, draws: np.ndarray, center: np.ndarray, delta: float) -> Limits:
        """Return the limits of the kind that the options name."""
        if self.options.limits == "percentile":
            return bootstrap_limits.percentile(draws, delta)
        if self.options.limits == "bca":
            acceleration = bootstrap_limits.acceleration(left_out_predictions(self.base, x))
            return bootstrap_limits.bias_corrected(draws, center, acceleration, delta)
        y = self.base.problem.targets
        counts: list[np.ndarray | None] = [None] * len(self.refits)
        if self.resampled.weights is not None:
            counts = list(self.resampled.weights)
        errors = np.stack([_sandwich(refit, x, y, count) for refit, count in zip(self.refits, counts, strict=True)])
        return bootstrap_limits.studentised(draws, errors, center, _sandwich(self.base, x, y), delta)

    def _claim(self, delta: float) -> Claim:
        options = self.options
        count = options.resamples
        # The smallest delta whose quantiles lie inside the range of the draws.
        finest = 2 / (count + 1)
        assumed = [
            _NOISE[options.resampling],
            "refits that vary about this fit as this fit varies about its mean",
        ]
        if options.resampling in ("residual", "wild") and not options.adjust:
            assumed.append("residuals as large as the noise (they are smaller by the freedom of the fit)")
        if delta < finest:
            assumed.append(f"that {count} RESAMPLES WILL DO, WHICH RESOLVE NO MORE THAN {100 * (1 - finest):.3g}%")
        else:
            # On average the interpolated quantile q of B draws is the quantile (q (B - 1) + 1) / (B + 1) of their
            # distribution, so that the interval between the two quantiles covers a little less than 1 - delta of it.
            covered = 1 - 2 * (delta / 2 * (count - 1) + 1) / (count + 1)
            assumed.append(f"limits of {count} draws for those of their law, of which they hold {100 * covered:.3g}%")
        return Claim(
            name=f"bootstrap ({options.resampling}, {options.limits})",
            covers="the mean of this prediction over fresh data, not the truth behind it",
            by=f"{count} refits to resampled data, which is right only as n and the resamples grow",
            assumed=tuple(assumed),
        )


def _check_refits(base: FittedModel, refits: Sequence[FittedModel], y: np.ndarray, resampled: ResampledData) -> None:
    """Refuse refits that were not trained on their resamples.

    Raises:
        InputError: When the weights of a refit are not proportional to the counts of its rows times the weights of the
            fit to the data, or when different resamples gave the same model.
    """
    if resampled.weights is not None:
        own = base.problem.numpy(base.problem.weights)
        for number, (refit, counts) in enumerate(zip(refits, resampled.weights, strict=True)):
            if not _proportional(_weights(refit, y, counts), own * counts):
                raise InputError(
                    f"refit {number} of the bootstrap does not hold the sample weights that the recipe was handed, the "
                    "counts of its resample. Train with them, and give them on: vhat.from_torch(..., "
                    'sample_weight=sample_weight). A recipe without sample weights can have resampling="residual" or '
                    '"wild".'
                )
        _check_spread(refits, resampled.weights, "sample_weight")
    if resampled.targets is not None:
        _check_spread(refits, resampled.targets, "y")


def _check_spread(refits: Sequence[FittedModel], drawn: np.ndarray, name: str) -> None:
    """Refuse refits that are all equal although their resamples differ.

    Args:
        refits: The refits.
        drawn: Their weights or responses, (resamples, ...).
        name: The argument of the recipe that holds these.
    """
    parameters = [refit.problem.numpy(refit.problem.theta) for refit in refits]
    all_equal = all(np.array_equal(each, parameters[0]) for each in parameters)
    if np.ptp(drawn, axis=0).any() and all_equal:
        raise InputError(
            f"all {len(refits)} refits of the bootstrap are one and the same model, though their resamples differ: the "
            f"recipe does not train with the {name} that it is handed (or the data are all alike), and intervals would "
            f"have no width. Let the loss that it minimises use {name}."
        )


def _weights(refit: FittedModel, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the total weight of each row of the data in a refit, summed over its copies, (n,)."""
    rows = held_rows(refit, y, counts)
    return np.bincount(rows, refit.problem.numpy(refit.problem.weights), minlength=len(y))


def _proportional(weights: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether weights equal the expected ones up to a common factor and rounding."""
    return np.allclose(weights / weights.sum(), expected / expected.sum(), rtol=_WEIGHT_ROUNDING, atol=0.0)


def _sandwich(fitted: FittedModel, x: Any, y: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Return the sandwich error of a fit; every copy of a resampled row counts as an independent row.

    Args:
        fitted: The fit.
        x: Test inputs.
        y: Responses of the data.
        counts: Number of times each row was drawn, (n,); None if every row counts once.
    """
    size = np.abs(residuals(fitted))
    if counts is not None:
        # The derivative d = d f/d y_i is that of all w copies of row i together. Independent copies with equal
        # residuals r contribute w (d/w)^2 r^2 = d^2 r^2 / w.
        rows = held_rows(fitted, y, counts)
        copies = (counts / np.bincount(rows, minlength=len(y)).clip(min=1))[rows, None]
        size = np.divide(size, np.sqrt(copies), out=np.zeros_like(size), where=copies > 0)
    return propagated_error(fitted, x, size).value
