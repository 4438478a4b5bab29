"""A network with intervals as a scikit-learn estimator: the class, what it says, and how it is saved."""

from vhat.estimator.regressor import NetworkRegressor
from vhat.estimator.wrapped_estimators import interval_of

__all__ = ["NetworkRegressor", "interval_of"]
