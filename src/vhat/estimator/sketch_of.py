"""Tell whether an estimator has its training rows, or is a sketch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vhat.errors import InputError
from vhat.sketch.sketch import Sketch

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor

__all__ = ["refuse_sketched", "sketch_of"]


def sketch_of(network: NetworkRegressor) -> Sketch | None:
    """Return the sketch of an estimator without training rows; None for one that has them."""
    fitted: Any = network.fitted_
    return fitted if isinstance(fitted, Sketch) else None


def refuse_sketched(network: NetworkRegressor, what: str) -> None:
    """Refuse what needs training rows.

    Args:
        network: The estimator.
        what: The call, such as ``"report()"``.

    Raises:
        InputError: For a sketch.
    """
    if sketch_of(network) is not None:
        raise InputError(f"{what} needs the training rows, which a sketch does not have. Ask the model it was made of.")
