"""The bootstrap: refits to resampled data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vhat.checks import check_choice, check_count
from vhat.errors import InputError
from vhat.fit.many_fits import Recipe, fit_many
from vhat.fitted.match_rows import held_rows
from vhat.intervals.interval import Interval
from vhat.methods.base import bootstrap_limits
from vhat.methods.base.ensemble import new_seeds, predictions
from vhat.methods.base.local_error import left_out_predictions, propagated_error
from vhat.methods.base.method import (
    Claim,
    Limits,
    Target,
    check_noise,
    check_question,
    find_noise,
    fit_once,
    make_interval,
    residuals,
    responses,
    widened,
)
from vhat.methods.base.requirements import require_residuals
from vhat.methods.base.resampling import KINDS, Worlds, draw_pairs, draw_responses

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["Bootstrap", "FittedBootstrap"]

_STREAM = 11  # keeps the draws apart from whatever else the seed draws
_WHY = {
    "percentile": "",
    "bca": "All refits lie on one side of the fit (more resamples may cure that), or a row left out has no answer.",
    "studentised": "A refit has no standard error there.",
}


@dataclass(frozen=True)
class Bootstrap:
    """Refit to resampled data, and read limits off the spread of the refits.

    Attributes:
        resamples: How many refits. Ten is what the paper compares with, and resolves no 95%: take hundreds for that.
        resampling: ``"pairs"``: rows drawn with replacement (a weight for each row, so that all refits share their
            training); with the inputs held fixed, ``"residual"``: residuals drawn with replacement, ``"wild"``: each
            residual with a random sign, ``"parametric"``: Gaussian noise about the fit.
        limits: ``"percentile"``; ``"bca"``: its levels corrected for bias and skewness (pairs only), the acceleration
            from leaving rows out to first order; ``"studentised"``: quantiles of each refit's deviation in units of its
            own sandwich error.
        new_seeds: Whether each refit starts from first parameters of its own, so that the randomness of training is in
            the spread too; otherwise all have the seed of the fit to the data.
        adjust: For ``"residual"`` and ``"wild"``: divide residuals by ``sqrt(1 - leverage)``; as they are, they are
            smaller than the noise by the freedom of the fit.
        noise: The standard deviation of y, for ``"parametric"`` and for ``target="observation"``; None estimates it.

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

    def fit(self, recipe: Recipe, X: Any, y: Any, *, seed: int = 0) -> FittedBootstrap:
        """Fit to the data, then to every resample.

        Args:
            recipe: ``recipe(X, y, *, seed, sample_weight=None) -> fitted``; ``"pairs"`` needs its sample weights.
            X: Rows.
            y: Responses.
            seed: Determines the resamples and the training.

        Raises:
            InputError: When the loss has no residuals and they are needed, or refits do not follow their resamples: a
                recipe that ignores its sample weights.
            NoiseError: When the noise has to be estimated and the fit interpolates.
        """
        observed = responses(y)
        base = fit_once(recipe, X, y, seed)
        if self.limits != "percentile":
            require_residuals(base, f'limits="{self.limits}"')
        worlds = self._worlds(base, observed, np.random.default_rng([seed, _STREAM]))
        seeds = new_seeds(seed, self.resamples + 1)[1:] if self.new_seeds else [seed] * self.resamples
        refits = fit_many(recipe, X, y, seeds=seeds, sample_weights=worlds.weights, targets=worlds.targets)
        _check_refits(base, refits, observed, worlds)
        return FittedBootstrap(self, base, tuple(refits), worlds)

    def _worlds(self, base: FittedModel, y: np.ndarray, rng: np.random.Generator) -> Worlds:
        if self.resampling == "pairs":
            return draw_pairs(len(y), self.resamples, rng)
        return draw_responses(self.resampling, base, y, self.resamples, rng, noise=self.noise, adjust=self.adjust)


@dataclass(frozen=True, eq=False)
class FittedBootstrap:
    """The fit to the data and those to the resamples.

    Attributes:
        options: The options.
        base: The fit to the data.
        refits: The fits to the resamples.
        worlds: What they were trained on.
    """

    options: Bootstrap
    base: FittedModel = field(repr=False)
    refits: tuple[FittedModel, ...] = field(repr=False)
    worlds: Worlds = field(repr=False)

    def interval(self, x: Any, delta: float = 0.05, *, target: Target = "mean") -> Interval:
        """Compute an interval at every point.

        Args:
            x: Test inputs, shaped like the training inputs.
            delta: Probability of a miss.
            target: ``"mean"`` for the expected prediction, ``"observation"`` for a new response.

        Returns:
            The interval; its center is the prediction of the fit to the data.

        Raises:
            NoiseError: When the noise of a new response has to be estimated and the fit interpolates.
        """
        delta = check_question("the bootstrap", delta, target)
        draws = predictions(self.refits, x)
        center = self.base.predict(x)
        limits = self._limits(x, draws, center, delta)
        noise = None
        if target == "observation":
            require_residuals(self.base, "target='observation'")
            noise = find_noise(self.base, self.options.noise)
            limits = widened(limits, noise, delta)
        error = draws.std(axis=0, ddof=1)
        return make_interval(
            self._claim(delta),
            center,
            limits,
            delta=delta,
            target=target,
            standard_error=error,
            noise=noise,
            x=x,
            why=_WHY[self.options.limits],
        )

    def _limits(self, x: Any, draws: np.ndarray, center: np.ndarray, delta: float) -> Limits:
        if self.options.limits == "percentile":
            return bootstrap_limits.percentile(draws, delta)
        if self.options.limits == "bca":
            skew = bootstrap_limits.acceleration(left_out_predictions(self.base, x))
            return bootstrap_limits.bias_corrected(draws, center, skew, delta)
        counts = [None] * len(self.refits) if self.worlds.weights is None else list(self.worlds.weights)
        y = self.base.problem.targets
        errors = np.stack([_sandwich(refit, x, y, count) for refit, count in zip(self.refits, counts, strict=True)])
        return bootstrap_limits.studentised(draws, errors, center, _sandwich(self.base, x, y), delta)

    def _claim(self, delta: float) -> Claim:
        options = self.options
        count, finest = options.resamples, 2 / (options.resamples + 1)
        assumed = [
            {
                "pairs": "independent rows, drawn like these",
                "residual": "noise of one law in every row",
                "wild": "independent noise, symmetric in every row",
                "parametric": "Gaussian noise",
            }[options.resampling],
            "refits that vary about this fit as this fit varies about its mean",
        ]
        if options.resampling in ("residual", "wild") and not options.adjust:
            assumed.append("residuals as large as the noise (they are smaller by the freedom of the fit)")
        if delta < finest:
            assumed.append(f"that {count} RESAMPLES WILL DO, WHICH RESOLVE NO MORE THAN {100 * (1 - finest):.3g}%")
        else:
            # in the mean the interpolated quantile at q of B draws lies at place (q (B - 1) + 1) / (B + 1) of their law
            held = 1 - 2 * (delta / 2 * (count - 1) + 1) / (count + 1)
            assumed.append(f"limits of {count} draws for those of their law, of which they hold {100 * held:.3g}%")
        return Claim(
            name=f"bootstrap ({options.resampling}, {options.limits})",
            covers="the mean of this prediction over fresh data, not the truth behind it",
            by=f"{count} refits to resampled data, which is right only as n and the resamples grow",
            assumed=tuple(assumed),
        )


def _check_refits(base: FittedModel, refits: Sequence[FittedModel], y: np.ndarray, worlds: Worlds) -> None:
    """Refuse refits that are not those of their resamples.

    Raises:
        InputError: When a refit holds other weights than the counts of its rows times those of the fit to the data (a
            common factor is free), or when different resamples have given one and the same model.
    """
    if worlds.weights is not None:
        own = base.problem.numpy(base.problem.weights)
        for number, (refit, counts) in enumerate(zip(refits, worlds.weights, strict=True)):
            if not _proportional(_weights(refit, y, counts), own * counts):
                raise InputError(
                    f"refit {number} of the bootstrap does not hold the sample weights that the recipe was handed, the "
                    "counts of its resample. Train with them, and give them on: vhat.from_torch(..., "
                    'sample_weight=sample_weight). A recipe without sample weights can have resampling="residual" or '
                    '"wild".'
                )
        _check_spread(refits, worlds.weights, "sample_weight")
    if worlds.targets is not None:
        _check_spread(refits, worlds.targets, "y")


def _check_spread(refits: Sequence[FittedModel], drawn: np.ndarray, name: str) -> None:
    """Refuse one and the same model for resamples that differ."""
    found = [refit.problem.numpy(refit.problem.theta) for refit in refits]
    if np.ptp(drawn, axis=0).any() and all(np.array_equal(each, found[0]) for each in found):
        raise InputError(
            f"all {len(refits)} refits of the bootstrap are one and the same model, though their resamples differ: the "
            f"recipe does not train with the {name} that it is handed (or the data are all alike), and intervals would "
            f"have no width. Let the loss that it minimises use {name}."
        )


def _weights(refit: FittedModel, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the weights that a refit holds of each row of the data, copies of it together, (n,)."""
    rows = held_rows(refit, y, counts)
    return np.bincount(rows, refit.problem.numpy(refit.problem.weights), minlength=len(y))


def _proportional(weights: np.ndarray, expected: np.ndarray) -> bool:
    """Whether weights are the expected ones up to a common factor, in the rounding of float32."""
    return np.allclose(weights / weights.sum(), expected / expected.sum(), rtol=1e-5, atol=0.0)


def _sandwich(fitted: FittedModel, x: Any, y: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Return the sandwich error of a fit, every copy of a row counting as a row of its own."""
    size = np.abs(residuals(fitted))
    if counts is not None:
        # d f/d y_i counts all copies of row i at once: with w copies of equal residuals, w (d/w)^2 r^2 = d^2 r^2 / w
        rows = held_rows(fitted, y, counts)
        copies = (counts / np.bincount(rows, minlength=len(y)).clip(min=1))[rows, None]
        size = np.divide(size, np.sqrt(copies), out=np.zeros_like(size), where=copies > 0)
    return propagated_error(fitted, x, size).value
