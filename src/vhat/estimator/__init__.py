"""A network with intervals as a scikit-learn estimator: the class, what it says, and how it is saved."""

from vhat.estimator.regressor import NetworkRegressor

__all__ = ["NetworkRegressor"]
