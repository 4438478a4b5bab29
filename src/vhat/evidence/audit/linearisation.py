"""The audit's lines on a linearised model: what holds by construction, the noise, and the ridge penalty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vhat.evidence.audit.result import Line
from vhat.variance.noise import Noise
from vhat.variance.ridge_refit import CHI_SQUARE, RidgeRefit

__all__ = ["constructed_lines", "noise_of_fitted_rows", "refit_lines"]

_APART = 1.0
"""Largest root mean square difference, in noise levels, between the recipe's own model and the given one at which both
count as trainings of the same kind, with the same degrees of freedom."""
NAN = float("nan")


def constructed_lines() -> list[Line]:
    """Return the lines that hold for every linearisation."""
    remedy = "A linearisation is smooth, and its minimum is at the parameters of the model."
    names = ("stationarity", "alignment", "smallest eigenvalue", "residual curvature", "smoothness", "basin", "tail")
    return [Line(name, NAN, NAN, "by construction", remedy, "") for name in names]


def noise_of_fitted_rows(line: Line, refit: RidgeRefit, level: Noise | None) -> Line:
    """Return the noise line of a linearisation, undecided where the level rests on rows that training fitted.

    It may rest on them where retraining has measured the degrees of freedom that training used.
    """
    if level is None or not level.estimated or level.validation_rows or refit.way == "retraining":
        return line
    size = np.array2string(level.level, precision=4) if level.level.size > 1 else f"{level.overall:.4g}"
    remedy = (
        f"The level {size} was {level.source}, at rows that training fitted: it is too small where the model is "
        "overfitted. Give validation=(X, y) to linearised(), call fitted.with_validation(X, y), or give noise=."
    )
    return replace(line, verdict="undecided", remedy=remedy)


def refit_lines(refit: RidgeRefit) -> list[Line]:
    """Return the lines on what the width of a linearisation rests on."""
    remedy = "Training again, with another seed or on other responses, may vary more or less than this refit."
    meaning = "whether a refit of the linearisation stands for training"
    return [_penalty_line(refit), Line("linearisation", NAN, NAN, "assumed", remedy, meaning)]


def _penalty_line(refit: RidgeRefit) -> Line:
    told = f"The width rests on {refit.told}."
    if refit.way == "validation":
        meaning = "twice the log-likelihood of validation rows and training residuals over that of an infinite lam"
        if refit.identified:
            return Line("ridge penalty", refit.gain, CHI_SQUARE, "holds", told, meaning)
        remedy = (
            f"{told} The errors of these rows are hardly larger than the training residuals and do not grow with V, or "
            "there are too few of them to tell how much a refit varies. Give more validation rows, recipe= to "
            "retrain, or weight_decay= yourself; fitted.calibrate() needs no lam."
        )
        return Line("ridge penalty", refit.gain, CHI_SQUARE, "fails", remedy, meaning)
    if refit.way == "retraining":
        meaning = "standard error of the degrees of freedom, as a share of them"
        share = refit.freedom_error / refit.freedom
        if not refit.identified:
            remedy = f"{told} Raise retrainings=, or give validation=(X, y) in place of recipe=."
            return Line("ridge penalty", share, 0.5, "fails", remedy, meaning)
        if refit.reproduced > _APART:
            told = (
                f"{told} The recipe's own model is {refit.reproduced:.2g} noise levels from this one at the training "
                "rows: is it the recipe that trained it?"
            )
            return Line("ridge penalty", share, 0.5, "undecided", told, meaning)
        return Line("ridge penalty", share, 0.5, "holds", told, meaning)
    return Line("ridge penalty", NAN, NAN, "assumed", told, "")
