"""Adam on the penalised objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vhat.fit.adam_steps import CosineAdam

__all__ = ["Adam"]


@dataclass(frozen=True)
class Adam(CosineAdam):
    """Train a network with Adam on ``L_lam = L + lam/2 |theta|^2``, a cosine schedule and full batches.

    The decay is part of the loss, so that training aims at a minimum of ``L_lam``. In float32, and with a learning rate
    that ends at 0, it stops a little before. ``fitted.polish()`` moves to the minimum; :class:`Minimum` does both.

    Attributes:
        network: The network to train.
        weight_decay: lam of the objective and of the fitted model.
        steps: Passes over the data.
        learning_rate: Initial learning rate; it falls to 0 along half a cosine.
        dtype: ``"float32"`` or ``"float64"``.

    Examples:
        >>> from vhat.fit import Network
        >>> Adam(Network((1, 8, 1)), weight_decay=1e-3, steps=2_000).learning_rate
        0.001
    """

    _decoupled: ClassVar[bool] = False
