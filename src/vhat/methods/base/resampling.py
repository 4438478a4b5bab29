"""Bootstrap resamples: weights for the rows, or new responses, of every refit."""

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

__all__ = ["KINDS", "Worlds", "draw_pairs", "draw_responses"]

KINDS = ("pairs", "residual", "wild", "parametric")


@dataclass(frozen=True, eq=False)
class Worlds:
    """What the refits are trained on; the rows X are the same.

    Attributes:
        weights: How often each row was drawn, (resamples, n), or None where every row counts once.
        targets: Responses, (resamples, n) or (resamples, n, outputs), or None where they are those of the data.
    """

    weights: np.ndarray | None = None
    targets: np.ndarray | None = None


def draw_pairs(n: int, resamples: int, rng: np.random.Generator) -> Worlds:
    """Draw n rows with replacement, inputs and responses together."""
    return Worlds(weights=rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64))


def draw_responses(
    kind: str,
    base: FittedModel,
    y: np.ndarray,
    resamples: int,
    rng: np.random.Generator,
    *,
    noise: float | None,
    adjust: bool,
) -> Worlds:
    """Draw responses about the fitted values, the inputs held fixed.

    Args:
        kind: ``"residual"``: residuals, centred, drawn with replacement; ``"wild"``: each row's own residual with a
            random sign; ``"parametric"``: Gaussian noise.
        base: The fit to the data.
        y: Responses, (n,) or (n, outputs).
        resamples: How many worlds.
        rng: The generator.
        noise: The noise level of ``"parametric"``, or None to estimate it.
        adjust: Divide residuals by ``sqrt(1 - leverage)``, which makes them as large as the noise.

    Raises:
        InputError: When there are no residuals, or a leverage of 1.
        NoiseError: When the noise has to be estimated and the fit interpolates.
    """
    require_residuals(base, f"resampling={kind!r}")
    fitted = base.problem.targets - residuals(base)
    n = len(y)
    if kind == "parametric":
        values = find_noise(base, noise).values
        errors = values * rng.standard_normal((resamples, *fitted.shape))
    else:
        pool = _adjusted(base) if adjust else residuals(base)
        if kind == "wild":
            errors = pool * rng.choice([-1.0, 1.0], size=(resamples, n, 1))
        else:
            errors = (pool - pool.mean(axis=0))[rng.integers(n, size=(resamples, n))]
    return Worlds(targets=(fitted + errors).reshape(resamples, *y.shape))


def _adjusted(base: FittedModel) -> np.ndarray:
    """Return the residuals of the fit, (n, K), each divided by ``sqrt(1 - leverage)``."""
    found = base.leave_one_out()
    bad = np.flatnonzero(found.status != Status.CONVERGED)
    if bad.size:
        raise InputError(
            f"residuals are divided by sqrt(1 - leverage), and {name_rows(bad)} decide their own prediction alone. Set "
            'adjust=False for residuals as they are, or use resampling="pairs".'
        )
    return residuals(base) / np.sqrt(1 - found.leverage)[:, None]
