"""Confidence intervals for the predictions of any differentiable regression model.

A fitted model and its training data go in; for every point asked about, an interval comes out, together with the
evidence that it may be believed. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhat import bounds, fit, methods, metrics, mlflow, plot, study
    from vhat.errors import (
        CalibrationWarning,
        ConditioningWarning,
        ConvergenceWarning,
        CurvatureWarning,
        EarlyStoppingWarning,
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
    from vhat.estimator import NetworkRegressor, interval_of
    from vhat.evidence.acquire import Acquisition
    from vhat.evidence.audit import Audit, Line
    from vhat.evidence.fisher import FisherInformation
    from vhat.evidence.leave_one_out import LeaveOneOut
    from vhat.fitted.construct import from_curve_fit, from_jax, from_numpy, from_torch, load
    from vhat.fitted.model import FittedModel
    from vhat.fitted.noise_loss import NoiseLossInterval, NoiseLossModel, from_noise_loss
    from vhat.intervals.calibrate import Calibrated
    from vhat.intervals.confidence_set import ConfidenceSet, Ellipse
    from vhat.intervals.estimated_tail import EstimatedTail, Redraws
    from vhat.intervals.interval import Interval
    from vhat.intervals.tail import Tail
    from vhat.intervals.uniform import UniformBound
    from vhat.linalg.solvers import CG, Dense, Dual, MinimumNorm, Nystrom, Plan, Primal, Status
    from vhat.methods.comparison import Comparison, compare
    from vhat.sketch.sketch import Sketch
    from vhat.tables.rows import Rows
    from vhat.variance.ridge_refit import EarlyStopping
    from vhat.variance.weighted_norm import WeightedNorm

__version__ = "0.2.0"

_HOMES = {
    "errors": (
        "CalibrationWarning",
        "ConditioningWarning",
        "ConvergenceWarning",
        "CurvatureWarning",
        "EarlyStoppingWarning",
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
    "estimator": ("NetworkRegressor", "interval_of"),
    "evidence.acquire": ("Acquisition",),
    "evidence.audit": ("Audit", "Line"),
    "evidence.fisher": ("FisherInformation",),
    "evidence.leave_one_out": ("LeaveOneOut",),
    "fitted.construct": ("from_curve_fit", "from_jax", "from_numpy", "from_torch", "load"),
    "fitted.model": ("FittedModel",),
    "fitted.noise_loss": ("NoiseLossInterval", "NoiseLossModel", "from_noise_loss"),
    "intervals.calibrate": ("Calibrated",),
    "intervals.confidence_set": ("ConfidenceSet", "Ellipse"),
    "intervals.estimated_tail": ("EstimatedTail", "Redraws"),
    "intervals.interval": ("Interval",),
    "intervals.tail": ("Tail",),
    "intervals.uniform": ("UniformBound",),
    "linalg.solvers": ("CG", "Dense", "Dual", "MinimumNorm", "Nystrom", "Plan", "Primal", "Status"),
    "methods.comparison": ("Comparison", "compare"),
    "sketch.sketch": ("Sketch",),
    "tables.rows": ("Rows",),
    "variance.ridge_refit": ("EarlyStopping",),
    "variance.weighted_norm": ("WeightedNorm",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bounds", "fit", "methods", "metrics", "mlflow", "plot", "study")

__all__ = [
    "CG",
    "Acquisition",
    "Audit",
    "Calibrated",
    "CalibrationWarning",
    "Comparison",
    "ConditioningWarning",
    "ConfidenceSet",
    "ConvergenceWarning",
    "CurvatureWarning",
    "Dense",
    "Dual",
    "EarlyStopping",
    "EarlyStoppingWarning",
    "Ellipse",
    "EstimatedTail",
    "FisherInformation",
    "FittedModel",
    "FixedParameterWarning",
    "InputError",
    "Interrupted",
    "Interval",
    "LeaveOneOut",
    "LeverageWarning",
    "Line",
    "MemoryBudgetError",
    "MinimumNorm",
    "MissingPackage",
    "ModelError",
    "NetworkRegressor",
    "NoiseError",
    "NoiseLossInterval",
    "NoiseLossModel",
    "NoiseWarning",
    "NotConverged",
    "NotMinimumWarning",
    "NotPositiveDefinite",
    "Nystrom",
    "Plan",
    "PolishError",
    "Primal",
    "Redraws",
    "Rows",
    "SelectionWarning",
    "Sketch",
    "Status",
    "StoreError",
    "SupportWarning",
    "TableWarning",
    "Tail",
    "UniformBound",
    "VhatError",
    "VhatWarning",
    "WeightedNorm",
    "bounds",
    "compare",
    "fit",
    "from_curve_fit",
    "from_jax",
    "from_noise_loss",
    "from_numpy",
    "from_torch",
    "interval_of",
    "load",
    "methods",
    "metrics",
    "mlflow",
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
