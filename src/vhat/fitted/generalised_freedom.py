"""Generalised degrees of freedom of a training recipe, ``tr df/dy``, by retraining on perturbed responses.

With random signs e, one per response, and a perturbation of size t, ``e'(f(y + t sigma e) - f(y)) / (t sigma)`` has the
mean ``tr df/dy`` to first order (Ye 1998; Efron 2004). All trainings have the same seed, so that nothing else differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vhat.errors import InputError, Interrupted
from vhat.fitted.match_rows import held_rows
from vhat.fitted.recipes import Recipe, check_fitted, check_recipe, fit_one
from vhat.models.linear_head import HeadAutodiff
from vhat.models.problem import Problem
from vhat.progress import bar

__all__ = ["GeneralisedFreedom", "Retrainings", "measure_freedom"]

NUDGE = 0.3
"""Size of the perturbation in noise levels. Measured on networks against forty redraws: 1 is 17% low, 0.1 noisier, and
central differences are no better."""
RETRAININGS = 6
"""Default number of retrainings, at which the standard error is about 13%."""
_SAME_UNIT = 1e-6
"""Relative difference of two noise levels up to which they are one level, computed twice."""


@dataclass(frozen=True)
class GeneralisedFreedom:
    """The generalised degrees of freedom of a recipe.

    Attributes:
        estimates: One for each finished retraining under perturbed responses, (r,).
        reproduced: Root mean square difference, in noise levels, between the training predictions of the recipe's model
            on the unperturbed responses and those of the given model, each row once; NaN before it is trained.
    """

    estimates: np.ndarray
    reproduced: float

    @property
    def value(self) -> float:
        """Mean of the estimates; NaN where there is none."""
        return float(np.mean(self.estimates)) if self.estimates.size else float("nan")

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for fewer than two estimates."""
        count = self.estimates.size
        return float(np.std(self.estimates, ddof=1) / np.sqrt(count)) if count > 1 else float("nan")


@dataclass(eq=False)
class Retrainings:
    """Predictions of the finished retrainings, kept so that an interrupted measurement can continue.

    Attributes:
        recipe: The recipe that was called.
        noise: The noise level of each training response, (n, K), in whose unit responses were perturbed.
        seed: The seed of all trainings, and of the signs.
        fits: For each training, the first on the unperturbed responses: its predictions at the rows that its model
            contains, and the numbers of these rows.
    """

    recipe: Recipe
    noise: np.ndarray
    seed: int
    fits: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def continues(self, recipe: Recipe, noise: np.ndarray, seed: int) -> bool:
        """Return whether these are trainings of a recipe under perturbations in this unit and by this seed.

        Other validation rows give another unit, in which other responses would have been perturbed.
        """
        if self.recipe is not recipe or self.seed != seed:
            return False
        return np.allclose(self.noise, noise, rtol=_SAME_UNIT, atol=0.0)

    def signs(self, number: int) -> np.ndarray:
        """Return the signs of a perturbation, (n, K), which do not depend on earlier draws."""
        rng = np.random.default_rng((self.seed, number))
        return rng.choice([-1.0, 1.0], size=self.noise.shape)

    def targets(self, problem: Problem, number: int) -> np.ndarray:
        """Return the responses of a training, as the recipe gets them; those of number 0 are unperturbed."""
        y = problem.targets
        if number:
            y = y + NUDGE * self.noise * self.signs(number)
        return y[:, 0].copy() if problem.squeeze else y.copy()

    def freedom(self, problem: Problem) -> GeneralisedFreedom:
        """Return the degrees of freedom from the finished trainings."""
        if not self.fits:
            return GeneralisedFreedom(np.zeros(0), float("nan"))
        base, held = self.fits[0]
        # A recipe may repeat rows by their weights. All copies have one response, whose derivative is counted once.
        rows, once = np.unique(held, return_index=True)
        base = base[once]
        gap = (base - problem.fitted_values[rows]) / self.noise[rows]
        estimates = [
            float(np.sum(self.signs(number)[rows] * (moved[once] - base) / (NUDGE * self.noise[rows])))
            for number, (moved, _) in enumerate(self.fits[1:], start=1)
        ]
        return GeneralisedFreedom(np.array(estimates), float(np.sqrt(np.mean(gap**2))))


def measure_freedom(problem: Problem, work: Retrainings, retrainings: int) -> GeneralisedFreedom:
    """Train once on the unperturbed responses, and so many times on perturbed ones; finished trainings are kept.

    Args:
        problem: The training problem.
        work: The finished trainings, to which new ones are appended.
        retrainings: Number of trainings under perturbed responses.

    Raises:
        InputError: When the recipe is none, or returns a model of other rows.
        Interrupted: On Ctrl-C; what is finished stays in ``work``.
    """
    check_recipe(work.recipe)
    X = given_inputs(problem)
    weights = problem.weights.copy() if np.any(problem.weights != 1.0) else None
    missing = range(len(work.fits), retrainings + 1)
    try:
        _together(problem, work, missing, X, weights)
        with bar("retrainings", len(missing)) as advance:
            for number in range(len(work.fits), retrainings + 1):
                y = work.targets(problem, number)
                fitted = fit_one(work.recipe, X, y, seed=work.seed, sample_weight=weights)
                work.fits.append(_predictions(fitted, y, weights))
                advance("")
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {len(work.fits)} of {retrainings + 1} trainings, which are kept: call "
            "linearised(recipe=...) of this model with the same recipe again to go on.",
            work.freedom(problem),
        ) from None
    return work.freedom(problem)


def _together(problem: Problem, work: Retrainings, missing: range, X: Any, weights: np.ndarray | None) -> None:
    """Make all missing trainings in one call, where the recipe can."""
    many: Callable[..., Any] | None = getattr(work.recipe, "many", None)
    if many is None or not missing:
        return
    targets = [work.targets(problem, number) for number in missing]
    each = None if weights is None else np.tile(weights, (len(missing), 1))
    fits = many(X, targets[0], seeds=[work.seed] * len(missing), sample_weights=each, targets=np.stack(targets))
    work.fits += [_predictions(fitted, y, weights) for fitted, y in zip(fits, targets, strict=True)]


def _predictions(fitted: Any, y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictions of a retrained model at the training rows that it contains, and their numbers."""
    model = check_fitted(fitted)
    with model.problem.scope():
        return np.asarray(model.problem.fitted_values), held_rows(model, y, weights)


def given_inputs(problem: Problem) -> Any:
    """Return the training inputs for a recipe: arrays, in the structure in which the model takes them."""
    if problem.scaling is not None:
        return np.array(problem.X)
    if isinstance(problem.autodiff, HeadAutodiff):
        raise InputError(
            'a model of parameters="last" keeps the inputs of its last layer and not those of the network, so that '
            "recipe= cannot train it again. Give validation=(X, y), or take the model without parameters=."
        )
    as_given = getattr(problem.autodiff, "as_given", None)
    return problem.X if as_given is None else as_given(problem.X)


def check_freedom(found: GeneralisedFreedom, rank: float) -> None:
    """Refuse degrees of freedom that no ridge penalty can have."""
    if not 0 < found.value < rank:
        raise InputError(
            f"the retrainings give {found.value:.3g} +- {found.error:.2g} generalised degrees of freedom, and a ridge "
            f"refit of the linearisation has between 0 and {rank:.4g}. Is the recipe the one that trained this model, "
            "with everything but the responses fixed by its seed? Raise retrainings=, or give validation=(X, y)."
        )
