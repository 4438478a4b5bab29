"""Evidence for the method's assumptions at a fit, as plain values for a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["audit_lines", "evidence"]


def evidence(fitted: FittedModel) -> dict[str, Any]:
    """Return diagnostics of how close the parameters are to a minimum, cheap enough for every cell.

    The alignment ``|grad L + lam theta| / (lam |theta|)`` is 0 at a minimum and 1 where the decay never acted.
    """
    problem = fitted.problem
    with problem.scope():
        slope = problem.numpy(problem.gradient())
        pull = problem.numpy(problem.penalty_gradient())
        residuals = problem.fitted_values - problem.targets
    found: dict[str, Any] = {
        "parameters": problem.p,
        "training mse": float(np.mean(residuals**2)),
        "gradient of the loss": float(np.linalg.norm(slope)),
        "pull of the decay": float(np.linalg.norm(pull)),
        "alignment": float(np.linalg.norm(slope + pull) / np.linalg.norm(pull)),
    }
    if fitted.polished is not None:
        found["relative gradient"] = fitted.polished.relative_gradient
        found["smallest eigenvalue, without unit"] = fitted.polished.definiteness.value
    return found


def audit_lines(fitted: FittedModel, noise: float) -> list[dict[str, Any]]:
    """Return the lines of the audit as dictionaries."""
    names = ("name", "verdict", "value", "threshold", "meaning", "remedy")
    return [{name: getattr(line, name) for name in names} for line in fitted.audit(noise=noise)]
