"""The ridge penalty of a linearised model, and how it was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vhat.checks import check_count
from vhat.errors import InputError

__all__ = ["CHI_SQUARE", "EarlyStopping", "RidgeRefit", "Way"]

CHI_SQUARE = 3.84
"""95% quantile of a chi-square with one degree of freedom: threshold for twice the log-likelihood gain."""

Way = Literal["given", "validation", "retraining", "gradient descent"]


@dataclass(frozen=True)
class EarlyStopping:
    """Plain gradient descent that was stopped: ``linearised(vhat.EarlyStopping(step_size=0.1, steps=2000))``.

    T steps of size eta on a linear model shrink each direction about as much as ridge regression with
    ``lam = 1/(eta T)``. The model's own weight decay is added to it. There is no such rule for Adam: give validation
    rows or a recipe.

    Attributes:
        step_size: eta, for descent on ``1/(2n) sum |f - y|^2``. Torch's ``MSELoss`` has gradients 2/outputs times as
            large: multiply the learning rate by 2/outputs. With momentum beta multiply it by ``1/(1 - beta)``.
        steps: T.
    """

    step_size: float
    steps: int

    def __post_init__(self) -> None:
        size = self.step_size
        if not isinstance(size, int | float | np.number) or not (math.isfinite(size) and size > 0):
            raise InputError(f"step_size={size!r} is not a positive number.")
        check_count("steps", self.steps, least=1)

    @property
    def weight_decay(self) -> float:
        """``1/(eta T)``."""
        return 1.0 / (float(self.step_size) * int(self.steps))


@dataclass(frozen=True, eq=False)
class RidgeRefit:
    """The ridge penalty of a linearised model, and how it was chosen.

    Attributes:
        weight_decay: lam, (p,).
        way: ``"given"``; ``"validation"``, by the likelihood of validation rows; ``"retraining"``, matched to the
            generalised degrees of freedom; or ``"gradient descent"``, 1/(step size x steps).
        rows: Number of validation rows or of retrainings that determined it; 0 otherwise.
        freedom: Degrees of freedom ``tr S`` of the refit; NaN if lam was given. For ``"validation"`` their upper
            quartile under the likelihood, for ``"retraining"`` the estimate.
        freedom_mean: For ``"validation"``, their mean under the likelihood; else NaN.
        freedom_error: For ``"validation"``, their standard deviation under the likelihood; for ``"retraining"``, the
            standard error of the estimate; NaN if lam was given.
        gain: For ``"validation"``, twice the difference of the log-likelihood to that of an infinite lam; else NaN.
        at_end: Whether the likelihood is largest at an end of the grid of lam.
        path_rows: Number of training rows for which V was computed along lam; 0 if it was not.
        likelihood: ``"normal"`` or ``"t4"``.
        reproduced: For ``"retraining"``, the root mean square difference between the recipe's model and this one at the
            training rows, in noise levels; NaN otherwise.
    """

    weight_decay: np.ndarray
    way: Way = "given"
    rows: int = 0
    freedom: float = float("nan")
    freedom_mean: float = float("nan")
    freedom_error: float = float("nan")
    gain: float = float("nan")
    at_end: bool = False
    path_rows: int = 0
    likelihood: str = "normal"
    reproduced: float = float("nan")

    @property
    def identified(self) -> bool:
        """Whether the data determine lam: significantly different from an infinite lam or from no degrees of freedom.

        True if lam was given.
        """
        if self.way == "validation":
            return self.gain >= CHI_SQUARE and not self.at_end
        if self.way == "retraining":
            return self.freedom > 2 * self.freedom_error
        return True

    @property
    def told(self) -> str:
        """How lam was chosen, in words for a message."""
        low = float(self.weight_decay.min())
        high = float(self.weight_decay.max())
        size = f"lam = {low:.3g}" if low == high else f"lam from {low:.3g} to {high:.3g}"
        if self.way == "given":
            return f"{size} as given"
        if self.way == "gradient descent":
            return f"{size} by 1/(step size x steps) of gradient descent"
        if self.way == "retraining":
            freedom = f"{self.freedom:.3g} +- {self.freedom_error:.2g} degrees of freedom"
            caveat = "" if self.identified else ", WHICH THEY DO NOT IDENTIFY"
            return f"{size} matched to the {freedom} that {self.rows} retrainings under nudged responses gave{caveat}"
        if math.isnan(self.freedom_mean):  # saved by an earlier version, in which freedom was the mean
            freedom = f"{self.freedom:.3g} +- {self.freedom_error:.2g} degrees of freedom"
        else:
            freedom = (
                f"{self.freedom:.3g} degrees of freedom, the upper quartile of {self.freedom_mean:.3g} +- "
                f"{self.freedom_error:.2g}"
            )
        if self.identified:
            kind = "" if self.likelihood == "normal" else f"{self.likelihood} "
            return (
                f"{size} ({freedom}) by the {kind}likelihood of {self.rows:,} validation rows beside the training "
                "residuals"
            )
        return f"{size} ({freedom}), WHICH {self.rows:,} validation rows DO NOT IDENTIFY"
