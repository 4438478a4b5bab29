"""Checks of losses and functionals that all frameworks share."""

from __future__ import annotations

import numpy as np

from vhat.checks import check_finite
from vhat.errors import InputError, ModelError, name_rows
from vhat.models.loss import LossDerivatives

__all__ = ["refuse_flat_functional", "refuse_functional", "refuse_loss"]


def refuse_loss(derivatives: LossDerivatives) -> None:
    """Raise unless the loss and its derivatives are finite and its second derivative is nonzero in some row.

    Raises:
        ModelError: Naming the rows.
    """
    parts = (derivatives.value, derivatives.first, derivatives.curvature, derivatives.cross)
    bad = np.any([~np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in parts], axis=0)
    if bad.any():
        raise ModelError(f"the loss or its derivatives are not finite in {name_rows(np.flatnonzero(bad))}.")
    if not derivatives.curvature.any():
        raise ModelError(
            "the loss has no second derivative in any row (an absolute error, a threshold?). Give a twice "
            "differentiable one, such as log(cosh(f - y))."
        )


def refuse_functional(value: np.ndarray, again: np.ndarray) -> None:
    """Raise unless the value of a functional is real, finite and reproducible.

    Args:
        value: The functional at the fitted parameters, () or (k,).
        again: A second evaluation at the same parameters.

    Raises:
        InputError: When the value has more than one axis, is not real or not finite.
        ModelError: When the two evaluations differ.
    """
    if value.ndim > 1 or not value.size:
        raise InputError(f"the functional returned shape {value.shape}; return a scalar or one axis (k,).")
    if np.iscomplexobj(value):
        raise InputError(f"the functional returned dtype {value.dtype}; return real numbers.")
    check_finite("the functional", np.atleast_1d(value))
    if not np.array_equal(value, again):
        raise ModelError("two evaluations of the functional differ. Fix its random state.")


def refuse_flat_functional(gradient: np.ndarray) -> None:
    """Raise if a gradient of a functional is exactly zero: its interval would have width zero.

    Args:
        gradient: One row per value of the functional, (k, p).

    Raises:
        InputError: Naming the values whose gradient is exactly zero.
    """
    flat = np.flatnonzero(~gradient.any(axis=1))
    if flat.size:
        which = "it" if len(gradient) == 1 else name_rows(flat, noun="value")
        raise InputError(
            f"the functional has a gradient of exactly zero: {which} does not depend on the parameters, or is not "
            "differentiable (rounding, a threshold, a stopped gradient?). Leave constants out, and smooth the rest."
        )
