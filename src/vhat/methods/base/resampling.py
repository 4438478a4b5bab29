"""Bootstrap resamples: row weights, or new responses, for every refit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vhat.errors import InputError, name_rows
from vhat.linalg.solvers import Status
from vhat.methods.base.method import find_noise, residuals
from vhat.methods.base.requirements import require_residuals

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["KINDS", "ResampledData", "draw_pairs", "draw_responses"]

KINDS = ("pairs", "residual", "wild", "parametric")


@dataclass(frozen=True, eq=False)
class ResampledData:
    """The training data of all refits; the rows X are those of the data.

    Attributes:
        weights: Number of times each row was drawn, (resamples, n); None if every row counts once.
        targets: Responses, (resamples, n) or (resamples, n, outputs); None for those of the data.
    """

    weights: np.ndarray | None = None
    targets: np.ndarray | None = None


def draw_pairs(n: int, resamples: int, rng: np.random.Generator) -> ResampledData:
    """Draw n rows with replacement, inputs and responses together, for each resample."""
    return ResampledData(weights=rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64))


def draw_responses(
    kind: str,
    base: FittedModel,
    y: np.ndarray,
    resamples: int,
    rng: np.random.Generator,
    *,
    noise: float | None,
    adjust: bool,
) -> ResampledData:
    """Draw responses about the fitted values, with the inputs held fixed.

    Args:
        kind: ``"residual"``: centred residuals, drawn with replacement; ``"wild"``: each row's own residual with a
            random sign; ``"parametric"``: Gaussian noise.
        base: The fit to the data.
        y: Responses, (n,) or (n, outputs).
        resamples: Number of resamples.
        rng: The generator.
        noise: Noise level of ``"parametric"``; None estimates it.
        adjust: Whether to divide residuals by ``sqrt(1 - leverage)``, which makes them as large as the noise.

    Raises:
        InputError: When the loss has no residuals, or a row has leverage 1.
        NoiseError: When the noise must be estimated and the fit interpolates.
    """
    require_residuals(base, f"resampling={kind!r}")
    fitted = base.problem.targets - residuals(base)
    n = len(y)
    if kind == "parametric":
        values = find_noise(base, noise).values
        errors = values * rng.standard_normal((resamples, *fitted.shape))
    else:
        pool = _adjusted_residuals(base) if adjust else residuals(base)
        if kind == "wild":
            # One sign per row: the outputs of a row keep their correlation.
            errors = pool * rng.choice([-1.0, 1.0], size=(resamples, n, 1))
        else:
            errors = (pool - pool.mean(axis=0))[rng.integers(n, size=(resamples, n))]
    return ResampledData(targets=(fitted + errors).reshape(resamples, *y.shape))


def _adjusted_residuals(base: FittedModel) -> np.ndarray:
    """Return the residuals of the fit, each divided by ``sqrt(1 - leverage)``, (n, K).

    Raises:
        InputError: When a row has no leave-one-out prediction.
    """
    left_out = base.leave_one_out()
    bad = np.flatnonzero(left_out.status != Status.CONVERGED)
    if bad.size:
        raise InputError(
            f"residuals are divided by sqrt(1 - leverage), and {name_rows(bad)} have no leave-one-out prediction, as "
            'with a leverage of 1. Set adjust=False for unadjusted residuals, or use resampling="pairs".'
        )
    return residuals(base) / np.sqrt(1 - left_out.leverage)[:, None]
