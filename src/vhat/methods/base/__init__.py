"""The base classes of all methods, and of a method of your own.

Subclass :class:`BaseMethod` for the options, and :class:`FittedToModel` or :class:`BaseFitted` for the fitted method.
"Write a method of your own" in the documentation shows one in full.
"""

from __future__ import annotations

from vhat.methods.base.answering import Answer, BaseFitted, FittedToModel, Question
from vhat.methods.base.ensemble import Ensemble
from vhat.methods.base.fitting import BaseMethod, MethodWithoutRecipe, Training
from vhat.methods.base.guarantee import Claim, Target
from vhat.methods.base.limits import Limits, normal_limits
from vhat.methods.base.local_error import left_out_predictions
from vhat.methods.base.method import find_noise, residuals

__all__ = [
    "Answer",
    "BaseFitted",
    "BaseMethod",
    "Claim",
    "Ensemble",
    "FittedToModel",
    "Limits",
    "MethodWithoutRecipe",
    "Question",
    "Target",
    "Training",
    "find_noise",
    "left_out_predictions",
    "normal_limits",
    "residuals",
]
