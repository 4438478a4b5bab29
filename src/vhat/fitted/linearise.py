"""The penalty of a linearised model: given, or found by validation rows, by retraining, or from gradient descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.checks import as_numbers, check_choice, check_count
from vhat.errors import InputError
from vhat.fitted.generalised_freedom import Retrainings, check_freedom, measure_freedom
from vhat.models.problem import Problem
from vhat.variance.penalty_shape import penalty_shape
from vhat.variance.ridge_by_validation import choose_ridge
from vhat.variance.ridge_refit import EarlyStopping, RidgeRefit
from vhat.variance.spectrum import find_spectrum
from vhat.variance.validation import Validation
from vhat.variance.workspace import Workspace

__all__ = ["find_ridge"]

_INTERPOLATES = 1e-3
"""Root mean square of the training residuals, as a share of the responses' standard deviation, below which they cannot
be the unit of a perturbation."""


def find_ridge(
    work: Workspace,
    weight_decay: Any,
    validation: Validation | None,
    recipe: Any,
    *,
    likelihood: str,
    retrainings: int,
    seed: int,
) -> RidgeRefit:
    """Find the penalty of a linearisation.

    Call it outside the framework's scope: a recipe is the user's own training and must find the framework as they left
    it, with gradients recorded and in their precision.

    Args:
        work: The model that is linearised.
        weight_decay: A number, one per parameter, :class:`EarlyStopping`, or ``"auto"``.
        validation: Rows that training did not fit, or None.
        recipe: A recipe that trains the model again, or None.
        likelihood: ``"auto"``, ``"normal"`` or ``"t4"``.
        retrainings: How many times the recipe trains under perturbed responses.
        seed: Draws training rows and perturbations.

    Raises:
        InputError: For options that cannot be used, and for ``"auto"`` without validation rows and recipe.
    """
    check_choice("likelihood", likelihood, ("auto", "normal", "t4"))
    check_count("retrainings", retrainings, least=2)
    check_count("seed", seed)
    problem = work.problem
    if not (isinstance(weight_decay, str) and weight_decay == "auto"):
        if recipe is not None:
            raise InputError('recipe= finds the penalty and weight_decay= gives it. Leave weight_decay at "auto".')
        with problem.scope():
            return _given(problem, weight_decay)
    if recipe is not None:
        return _retrained(work, validation, recipe, retrainings, seed)
    if validation is None:
        raise InputError(
            'weight_decay="auto" needs rows that training did not fit or a way to train again: give validation=(X, y), '
            "recipe=, or a number for the ridge penalty lam."
        )
    with problem.scope():
        return choose_ridge(problem, validation, work.shape, likelihood=likelihood, seed=seed)


def _given(problem: Problem, weight_decay: Any) -> RidgeRefit:
    if isinstance(weight_decay, EarlyStopping):
        lam = weight_decay.weight_decay + problem.numpy(problem.decay)
        return RidgeRefit(lam, way="gradient descent")
    if isinstance(weight_decay, str):
        raise InputError(
            f"weight_decay={weight_decay!r} is not known. Give a positive number, or 'auto'; for gradient descent, "
            "vhat.EarlyStopping(step_size, steps)."
        )
    lam = as_numbers("weight_decay", weight_decay)
    if lam.shape not in ((), (problem.p,)):
        raise InputError(
            f"weight_decay has shape {lam.shape}; give one number, or one per parameter of the flat vector, shape "
            f"({problem.p},)."
        )
    lam = np.broadcast_to(lam, (problem.p,)).copy()
    if not (np.all(np.isfinite(lam)) and np.all(lam > 0)):
        raise InputError(f"weight_decay={weight_decay!r} is not a positive number, nor one per parameter.")
    return RidgeRefit(lam)


def _retrained(work: Workspace, validation: Validation | None, recipe: Any, retrainings: int, seed: int) -> RidgeRefit:
    """Match the penalty to the generalised degrees of freedom of a recipe."""
    problem = work.problem
    with problem.scope():
        unit = _perturbation_unit(work, validation)
    kept = work.kept("retrainings")
    if kept is None or not kept.continues(recipe, unit, seed):
        kept = Retrainings(recipe, unit, seed)
        work.renew("retrainings", kept)
    found = measure_freedom(problem, kept, retrainings)
    with problem.scope():
        shape = penalty_shape(problem)
        spectrum = find_spectrum(problem, np.sqrt(shape), seed)
    check_freedom(found, spectrum.rank)
    return RidgeRefit(
        weight_decay=spectrum.penalty(found.value) * shape,
        way="retraining",
        rows=found.estimates.size,
        freedom=found.value,
        freedom_error=found.error,
        reproduced=found.reproduced,
    )


def _perturbation_unit(work: Workspace, validation: Validation | None) -> np.ndarray:
    """Return the noise level in whose unit responses are perturbed, (n, K): validation errors, or training residuals.

    It need not be accurate: the size of a perturbation hardly matters between 0.1 and 0.3 noise levels.
    """
    problem = work.problem
    if validation is not None:
        size = np.sqrt(np.mean(validation.errors(problem) ** 2, axis=0))
    else:
        size = np.sqrt(np.mean((problem.fitted_values - problem.targets) ** 2, axis=0))
    if not np.all(size > _INTERPOLATES * np.std(problem.targets, axis=0)):
        raise InputError(
            "the model passes through its responses, so that their noise, by parts of which the recipe's responses are "
            "nudged, is not known. Give validation=(X, y), rows that training did not fit."
        )
    return size * work.shape
