"""Confidence intervals for the predictions of any differentiable regression model.

A fitted model and its training data go in; for every point asked about, an interval comes out, together with the
evidence that it may be believed. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhat import bounds, fit, methods, metrics, plot, study
    from vhat.evidence.acquire import Acquisition
    from vhat.evidence.audit import Audit, Line
    from vhat.intervals.calibrate import Calibrated
    from vhat.methods.comparison import Comparison, compare
    from vhat.fitted.construct import from_curve_fit, from_jax, from_numpy, from_torch
    from vhat.errors import (
        CalibrationWarning,
        ConditioningWarning,
        ConvergenceWarning,
        CurvatureWarning,
        FixedParameterWarning,
        InputError,
        Interrupted,
        LeverageWarning,
        MemoryBudgetError,
        MissingPackage,
        ModelError,
        NoiseError,
        NoiseWarning,
        NotConverged,
        NotMinimumWarning,
        NotPositiveDefinite,
        PolishError,
        SelectionWarning,
        StoreError,
        SupportWarning,
        TableWarning,
        VhatError,
        VhatWarning,
    )
    from vhat.intervals.estimated_tail import EstimatedTail, Redraws
    from vhat.estimator import NetworkRegressor
    from vhat.fitted.model import FittedModel
    from vhat.intervals.interval import Interval
    from vhat.evidence.leave_one_out import LeaveOneOut
    from vhat.variance.weighted_norm import WeightedNorm
    from vhat.linalg.solvers import CG, Dense, Dual, Nystrom, Plan, Status
    from vhat.store import load
    from vhat.intervals.tail import Tail

__version__ = "0.1.0"

_HOMES = {
    "acquire": ("Acquisition",),
    "audit": ("Audit", "Line"),
    "calibrate": ("Calibrated",),
    "comparison": ("Comparison", "compare"),
    "construct": ("from_curve_fit", "from_jax", "from_numpy", "from_torch"),
    "errors": (
        "CalibrationWarning",
        "ConditioningWarning",
        "ConvergenceWarning",
        "CurvatureWarning",
        "FixedParameterWarning",
        "InputError",
        "Interrupted",
        "LeverageWarning",
        "MemoryBudgetError",
        "MissingPackage",
        "ModelError",
        "NoiseError",
        "NoiseWarning",
        "NotConverged",
        "NotMinimumWarning",
        "NotPositiveDefinite",
        "PolishError",
        "SelectionWarning",
        "StoreError",
        "SupportWarning",
        "TableWarning",
        "VhatError",
        "VhatWarning",
    ),
    "estimated_tail": ("EstimatedTail", "Redraws"),
    "estimator": ("NetworkRegressor",),
    "fitted": ("FittedModel",),
    "interval": ("Interval",),
    "leave_one_out": ("LeaveOneOut",),
    "norm": ("WeightedNorm",),
    "solve": ("CG", "Dense", "Dual", "Nystrom", "Plan", "Status"),
    "store": ("load",),
    "tail": ("Tail",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bounds", "fit", "methods", "metrics", "plot", "study")

__all__ = [
    "CG",
    "Acquisition",
    "Audit",
    "Calibrated",
    "CalibrationWarning",
    "Comparison",
    "ConditioningWarning",
    "ConvergenceWarning",
    "CurvatureWarning",
    "Dense",
    "Dual",
    "EstimatedTail",
    "FittedModel",
    "FixedParameterWarning",
    "InputError",
    "Interrupted",
    "Interval",
    "LeaveOneOut",
    "LeverageWarning",
    "Line",
    "MemoryBudgetError",
    "MissingPackage",
    "ModelError",
    "NetworkRegressor",
    "NoiseError",
    "NoiseWarning",
    "NotConverged",
    "NotMinimumWarning",
    "NotPositiveDefinite",
    "Nystrom",
    "Plan",
    "PolishError",
    "Redraws",
    "SelectionWarning",
    "Status",
    "StoreError",
    "SupportWarning",
    "TableWarning",
    "Tail",
    "VhatError",
    "VhatWarning",
    "WeightedNorm",
    "bounds",
    "compare",
    "fit",
    "from_curve_fit",
    "from_jax",
    "from_numpy",
    "from_torch",
    "load",
    "methods",
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
