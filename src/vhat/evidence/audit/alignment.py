"""The audit's lines on the weight decay that the parameters imply: at a minimum ``grad L = -lam theta``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vhat.evidence.audit.result import Line
from vhat.models.problem import Problem

__all__ = ["alignment_lines"]

_ALIGNED = 0.05
"""Largest difference of the ratio from 1."""
_PARALLEL = 0.9
"""Cosine between both gradients from which their ratio is that of two weight decays."""
_IDLE = 0.2
"""Ratio below which the decay hardly acted."""
_IDLE_DECAY = (
    "The decay hardly acted: too few steps, or decoupled decay (AdamW). AdamW shrinks the parameters beside its "
    "gradient step, and rests where the gradient balances the decay times the typical size of a gradient: its decay is "
    "no lam of a penalised loss, and this ratio is near 0. Pass the optimiser's weight_decay all the same: "
    "linearised() takes its proportions between parameters only, and finds the size of lam itself."
)
NAN = float("nan")


@dataclass(frozen=True)
class _Balance:
    """The gradient of the loss against that of the penalty, over the parameters that decay (over all, if none does).

    Attributes:
        implied: ``-<grad L, theta>/|theta|^2``, the lam at which both gradients cancel along theta.
        stated: ``sum_j lam_j theta_j^2/|theta|^2``, which is lam itself where it is one number.
        ratio: Implied over stated; infinite where nothing was stated.
        cosine: Cosine between ``-grad L`` and ``diag(lam) theta``, each parameter in the unit ``lam^-1/2`` of its
            decay.
    """

    implied: float
    stated: float
    ratio: float
    cosine: float

    @classmethod
    def of(cls, problem: Problem) -> _Balance:
        """Measure it at the parameters of a problem."""
        decay = problem.numpy(problem.decay)
        among = decay > 0 if decay.any() else np.ones(decay.shape, dtype=bool)
        theta = problem.numpy(problem.theta)[among]
        slope = problem.numpy(problem.gradient())[among]
        lam = decay[among] if decay.any() else np.ones(theta.shape)
        size = float(theta @ theta)
        push = -float(theta @ slope)  # of the loss, along theta
        pull = float(theta @ (lam * theta))  # of the penalty, along theta
        if not size > 0:
            return cls(NAN, NAN, NAN, NAN)
        lengths = float(np.linalg.norm(slope / np.sqrt(lam))) * pull**0.5
        cosine = push / lengths if lengths > 0 else 0.0
        if not decay.any():
            return cls(push / size, 0.0, float("inf"), cosine)
        return cls(push / size, pull / size, push / pull, cosine)


def alignment_lines(problem: Problem, stationary: bool, resolution: float, to_minimum: str) -> list[Line]:
    """Return the lines on the ratio of implied and stated decay, with its likely cause, and on the implied decay.

    Args:
        problem: The training problem.
        stationary: Whether the stationarity line holds.
        resolution: The rounding of the objective.
        to_minimum: What to do where the parameters are not a minimum, in sentences.
    """
    found = _Balance.of(problem)
    return [_ratio_line(problem, found, stationary, resolution, to_minimum), _implied_line(found)]


def _implied_line(found: _Balance) -> Line:
    return Line(
        "implied decay", found.implied, found.stated, "noted",
        'The threshold is the lam that was described (for loss="mse", outputs/2 times the decay).',
        "the lam with which the parameters that decay align, -<grad L, theta>/|theta|^2",
    )  # fmt: skip


def _ratio_line(problem: Problem, found: _Balance, stationary: bool, resolution: float, to_minimum: str) -> Line:
    meaning = "implied over stated decay"
    if np.isnan(found.ratio):
        remedy = "The parameters are zero, so that no decay pulls on them."
        return Line("alignment", NAN, NAN, "noted", remedy, meaning)
    if np.isinf(found.ratio):
        remedy = "No decay was described."
        if not stationary and found.cosine >= _PARALLEL:
            remedy += f" If one acted in training, it was lam = {found.implied:.3g}: pass it as weight_decay."
        return Line("alignment", NAN, NAN, "noted", remedy, meaning)
    if abs(found.ratio - 1) <= _ALIGNED:
        return Line("alignment", found.ratio, 1.0, "holds", "The pull of the data balances the decay.", meaning)
    decayed = float(problem.numpy(problem.theta**2) @ problem.numpy(problem.decay))
    if stationary and _ALIGNED * decayed <= resolution:
        remedy = "The decay is so weak that its pull is lost in rounding: the data alone decide."
        return Line("alignment", found.ratio, 1.0, "noted", remedy, meaning)
    return Line("alignment", found.ratio, 1.0, "fails", _remedy(problem, found, to_minimum), meaning)


def _remedy(problem: Problem, found: _Balance, to_minimum: str) -> str:
    """Name the mistakes that give this ratio, where the gradient of the loss has the direction of the penalty's."""
    if found.cosine >= _PARALLEL:
        causes = list(_causes(found.ratio, problem.outputs, problem.n))
        if causes:
            return " Or: ".join(causes[:2])
        return (
            f"The parameters are stationary for {found.ratio:.3g} times the decay described (lam = {found.implied:.3g} "
            f"in all). If training used that, pass it. {to_minimum}"
        )
    if abs(found.ratio) < _IDLE:
        return f"{_IDLE_DECAY} {to_minimum}"
    return f"The gradient of the loss does not point along the decay: training stopped short of a minimum. {to_minimum}"


def _causes(ratio: float, K: int, n: int) -> Iterator[str]:
    """Yield the mistakes that give this ratio, in words. The audit knows lam only, not which loss was named.

    Args:
        ratio: Implied over stated decay.
        K: Number of outputs.
        n: Number of training rows.
    """
    known = (
        (
            K / 2,
            f"The ratio is outputs/2 = {K / 2:g}: training used torch's MSELoss, a mean over rows and outputs without "
            'the half. Pass loss="mse".',
        ),
        (
            1 / 2 if K > 1 else NAN,  # with one output this is MSELoss
            "The ratio is 1/2: training used squares summed over outputs without the half, 1/n sum |f - y|^2. Halve "
            "weight_decay.",
        ),
        (
            2.0,
            "The ratio is 2: the penalty in training was lam |theta|^2, without the half. Double weight_decay.",
        ),
        (
            2 / K,
            f'The ratio is 2/outputs = {2 / K:g}: loss="mse" was passed for a model trained on the half squared error. '
            'Pass loss="half_mse".',
        ),
        (
            1 / n,
            f"The ratio is 1/n: training summed the half squares over the {n} rows. Divide weight_decay by n.",
        ),
        (
            1 / (2 * n),
            f"The ratio is 1/(2n): training summed the squares over the {n} rows (MSELoss with reduction='sum'). "
            "Divide weight_decay by 2n.",
        ),
    )
    return (text for factor, text in known if abs(ratio / factor - 1) <= _ALIGNED)
