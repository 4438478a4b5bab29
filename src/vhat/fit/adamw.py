"""The paper's recipe: AdamW on the whole data set with a cosine schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vhat.fit.adam_steps import CosineAdam

__all__ = ["AdamW"]


@dataclass(frozen=True)
class AdamW(CosineAdam):
    """Train a network with AdamW, a cosine schedule and full batches.

    The decay is decoupled, ``theta -= rate (adam(grad L) + weight_decay theta)``: Adam's scaling does not apply to it,
    so that the end point is in general *not* a minimum of ``L + weight_decay/2 |theta|^2``. ``fitted.audit()`` measures
    the difference, ``fitted.polish()`` moves to a minimum.

    Attributes:
        network: The network to train.
        weight_decay: The decay, and lam of the fitted model.
        steps: Passes over the data.
        learning_rate: Initial learning rate; it falls to 0 along half a cosine.
        dtype: ``"float32"``, as in the paper, or ``"float64"``.

    Examples:
        >>> from vhat.fit import Network
        >>> AdamW(Network((1, 8, 1)), weight_decay=1e-3, steps=2_000).learning_rate
        0.001
    """

    _decoupled: ClassVar[bool] = True
