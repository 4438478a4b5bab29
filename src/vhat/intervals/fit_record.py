"""The properties of a fit on which all of its intervals rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vhat.errors import NotConverged
from vhat.evidence.audit import Verdict, moved_by
from vhat.evidence.audit.input_columns import is_last_layer
from vhat.intervals.prepare import at_minimum, warn_of_weights
from vhat.models.problem import Problem
from vhat.variance.noise import Noise
from vhat.variance.ridge_refit import RidgeRefit
from vhat.variance.weighted_norm import MOSTLY
from vhat.variance.workspace import Chosen, Workspace

__all__ = ["FitRecord", "find_noise", "record_fit", "with_undetermined"]


@dataclass(frozen=True, eq=False)
class FitRecord:
    """What was measured, checked and assumed of a fit.

    Attributes:
        rows: Number of training rows, n.
        squeeze: Whether predictions have no output axis.
        chosen: The curvature in use, the sign of its smallest eigenvalue, and the reason for a fallback.
        solver: The name of the solver.
        noise: The noise of the training responses.
        stationary: Verdict of the audit on whether the gradient vanishes.
        distance: The distance to the minimum over the threshold of this verdict, inversely proportional to the noise
            level. NaN where it was not compared with the noise.
        matched: Whether the sample weights are the inverse variances of the noise, up to a factor.
        decay_from_data: Whether the weight decay, or its unit, is known to come from these responses.
        moved: How far polish moved the training predictions, in noise levels; None where it was not called.
        undetermined: The share of the training predictions' freedom that the data do not determine, where that is more
            than half; else None.
        refit: The ridge refit, where the model is the linearisation of another; else None.
        own_factor: The noise over what the model's own variance head predicts, (K,); None where it is not a multiple of
            that.
        held_fixed: Whether some parameters of the model are held fixed, which may have been trained on these responses.
        linear: Whether predictions are linear in the responses by structure: a linear model under the squared error.
        last_layer: Whether the model is a last layer under the squared error, whose minimum is the solution of one
            linear system.
        linear_by_test: Whether the user said that predictions are linear in the parameters and a test at other
            parameters agreed, where the structure of the model cannot show it.
        usual_unsupported: For a linearised model, the average of ``unsupported`` at its training rows, NaN where the
            solves for it did not converge; 0 for any other model.
    """

    rows: int
    squeeze: bool
    chosen: Chosen
    solver: str
    noise: Noise
    stationary: Verdict
    distance: float
    matched: bool
    decay_from_data: bool
    moved: float | None
    undetermined: float | None
    refit: RidgeRefit | None
    own_factor: np.ndarray | None
    held_fixed: bool
    linear: bool
    last_layer: bool = False
    linear_by_test: bool = False
    usual_unsupported: float = 0.0

    @cached_property
    def variance_head(self) -> bool:
        """Whether the noise is a multiple of what the model's own variance head predicts."""
        return self.own_factor is not None

    def without_rows(self) -> FitRecord:
        """Return the same without arrays of the length of the training data."""
        return replace(self, noise=replace(self.noise, values=self.noise.values[:0]))


def record_fit(
    work: Workspace, chosen: Chosen, solver: str, level: Noise, seed: int, given: Problem | None
) -> FitRecord:
    """Return the record of a fit, and warn once where its parameters are not a minimum.

    ``undetermined`` is added by :func:`with_undetermined` after the solves, so that Ctrl-C there keeps them.

    Args:
        work: The fitted model.
        chosen: The curvature in use.
        solver: The name of the solver in use.
        level: The noise in use.
        seed: Seed of random probes.
        given: The model before it was polished, or None.
    """
    problem = work.problem
    line = at_minimum(work, level, chosen, seed)
    return FitRecord(
        rows=problem.n,
        squeeze=problem.squeeze,
        chosen=chosen,
        solver=solver,
        noise=level,
        stationary=line.verdict,
        distance=line.value / line.threshold,
        matched=work.weights_match(level),
        decay_from_data=work.decay_from_data,
        moved=None if given is None else moved_by(given, problem, level),
        undetermined=None,
        refit=work.refit,
        own_factor=work.own_factor(level),
        held_fixed=bool(getattr(problem.autodiff, "held_fixed", False)),
        linear=problem.linear and problem.loss_derivatives.square,
        last_layer=is_last_layer(problem) and problem.loss_derivatives.square,
        linear_by_test=problem.linear and bool(getattr(problem.autodiff, "linear_by_test", False)),
    )


def find_noise(work: Workspace, noise: object, chosen: Chosen, seed: int) -> Noise:
    """Return the noise that was given, or its estimate; warn of sample weights whose meaning was not said."""
    if noise is None:
        warn_of_weights(work)
    return work.noise(noise, chosen.curvature, seed)


def with_undetermined(fit: FitRecord, work: Workspace, seed: int) -> FitRecord:
    """Return the record with the share of the fit's freedom that the data do not determine, where it exceeds one half.

    The share needs the traces of the smoother. The record is returned unchanged where these would be expensive. For a
    linearised model the share is that at which the ridge penalty keeps the refit at the model's own predictions. It is
    always recorded, as the usual value at training rows, with which ``unsupported`` is compared.
    """
    linearised = fit.refit is not None
    if not (linearised or fit.noise.estimated or work.solver.forms_matrix):
        return fit
    try:
        freedom = work.residual_freedom(fit.chosen.curvature, seed)
    except NotConverged:
        # The intervals themselves are finished: only the remark on them is missing.
        return replace(fit, usual_unsupported=float("nan")) if linearised else fit
    if linearised:
        return replace(fit, usual_unsupported=max(freedom.undetermined(len(freedom.effective)), 0.0))
    share = freedom.undetermined(work.problem.p)
    return replace(fit, undetermined=share) if share > MOSTLY else fit
