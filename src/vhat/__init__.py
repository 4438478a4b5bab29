"""Confidence intervals for the predictions of any differentiable regression model.

A fitted model and its training data go in; for every point asked about, an interval comes out, together with the
evidence that it may be believed. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhat import bounds, fit, metrics, plot, study
    from vhat.audit import Audit, Line
    from vhat.construct import from_curve_fit, from_jax, from_numpy, from_torch
    from vhat.errors import (
        ConvergenceWarning,
        CurvatureWarning,
        InputError,
        MemoryBudgetError,
        ModelError,
        NoiseError,
        NotConverged,
        NotMinimumWarning,
        NotPositiveDefinite,
        PolishError,
        VhatError,
        VhatWarning,
    )
    from vhat.fitted import FittedModel
    from vhat.interval import Interval
    from vhat.norm import WeightedNorm
    from vhat.solve import CG, Dense, Dual, Plan, Status
    from vhat.tail import Tail

__version__ = "0.1.0"

_HOMES = {
    "audit": ("Audit", "Line"),
    "construct": ("from_curve_fit", "from_jax", "from_numpy", "from_torch"),
    "errors": (
        "ConvergenceWarning",
        "CurvatureWarning",
        "InputError",
        "MemoryBudgetError",
        "ModelError",
        "NoiseError",
        "NotConverged",
        "NotMinimumWarning",
        "NotPositiveDefinite",
        "PolishError",
        "VhatError",
        "VhatWarning",
    ),
    "fitted": ("FittedModel",),
    "interval": ("Interval",),
    "norm": ("WeightedNorm",),
    "solve": ("CG", "Dense", "Dual", "Plan", "Status"),
    "tail": ("Tail",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bounds", "fit", "metrics", "plot", "study")

__all__ = [
    "CG",
    "Audit",
    "ConvergenceWarning",
    "CurvatureWarning",
    "Dense",
    "Dual",
    "FittedModel",
    "InputError",
    "Interval",
    "Line",
    "MemoryBudgetError",
    "ModelError",
    "NoiseError",
    "NotConverged",
    "NotMinimumWarning",
    "NotPositiveDefinite",
    "Plan",
    "PolishError",
    "Status",
    "Tail",
    "VhatError",
    "VhatWarning",
    "WeightedNorm",
    "bounds",
    "fit",
    "from_curve_fit",
    "from_jax",
    "from_numpy",
    "from_torch",
    "metrics",
    "plot",
    "study",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f"vhat.{name}")
    if name in _HOME:
        return getattr(import_module(f"vhat.{_HOME[name]}"), name)
    raise AttributeError(f"module 'vhat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
