"""The scikit-learn estimator: a network with intervals, how it is calibrated, and how it is saved."""

from vhat.estimator.regressor import NetworkRegressor
from vhat.estimator.wrapped_estimators import interval_of

__all__ = ["NetworkRegressor", "interval_of"]
