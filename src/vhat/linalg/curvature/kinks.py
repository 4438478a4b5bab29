"""Find kinks: jumps of the derivative of predictions near the parameters.

The structure of the model gives the candidates, and values of predictions decide. Along a line through the parameters,
a prediction of a smooth model has second differences ``f(t+h) - 2f(t) + f(t-h)`` of order ``h^2``. If the line crosses
a kink, some are of order ``h``. The largest second difference is followed to smaller and smaller h. This takes about
fifty predictions of a few rows and no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vhat.models.problem import Problem

__all__ = ["Kinks", "find_kinks", "way_on"]

_REACH = 0.1
"""Half length of a line, relative to each parameter. A change of this size switches some units of a network, but does
not reach bounds that were set for safety only."""
_GRID = 17
"""Points of the first grid on a line."""
_SPACING = 2.0 / (_GRID - 1)
"""Distance of these points; the line runs from -1 to 1."""
_HALVINGS = 12
"""Halvings of h: the last h is about 4e-6 of the line, where second differences are still far above rounding."""
_LAST_HALVINGS = 4
"""Halvings from which the order of the second difference is determined."""
_FIRST_ORDER = (0.25, 4.0)
"""Range of the factor by which ``(second difference)/h`` changes over the last four halvings at a kink. There it is
between 1/2 and 2 (the kink is within h/2 of the middle), without a kink about 1/16, and 16 for rounding or a jump."""
_ABOVE_ROUNDING = 1e3
"""Smallest second difference that counts, in units of the rounding of the values."""
_STRAIGHT = 0.1
"""Largest second difference on either side of a kink, relative to that at the kink."""
_LINES = 3
"""Number of lines that are tried until one crosses a kink."""
_ROWS = 64
"""Number of training rows that are predicted."""
_ROWS_OF_LARGE = 8
"""The same for a large model."""
_LARGE = 100_000
"""Number of parameters above which a model is large."""
_EPS = float(np.finfo(np.float64).eps)
_COMMON_NAMES = {
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne"), "where"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), "max_pool"),
    "prelu_kernel": "prelu",
    "rrelu_with_noise": "rrelu",
}
"""Common names of operations that frameworks name differently."""


@dataclass(frozen=True)
class Kinks:
    """Kinks of a model near its parameters.

    Attributes:
        verdict: "kinked" if a jump of a derivative was found; "smooth" if the structure of the model has no kinked
            operation that acts on its parameters; else "unknown".
        names: The kinked operations in the structure of the model, as far as the framework shows it.
        jump: The jump of a prediction's slope at the kink found, relative to the largest slope on that line; zero if
            none was found.
    """

    verdict: Literal["kinked", "smooth", "unknown"]
    names: tuple[str, ...] = ()
    jump: float = 0.0

    @property
    def told(self) -> str:
        """The kinks in words, for a message."""
        return f"kinks ({', '.join(self.names[:3])})" if self.names else "kinks"


def way_on(problem: Problem) -> str:
    """Return advice, in sentences, on intervals for a model with kinks as it is."""
    advice = "fitted.linearised(validation=(X, y)) takes the model as it is"
    if problem.autodiff.framework == "torch":
        advice += '; from_torch(..., parameters="last") holds all but its last linear layer fixed, and has no kinks'
    return f"{advice}."


def find_kinks(problem: Problem, seed: int = 0) -> Kinks:
    """Search for kinks within a relative distance of 0.1 from the parameters.

    Args:
        problem: The training problem, at its parameters.
        seed: Seed of the lines.

    Returns:
        The verdict is "kinked" only if predictions have a kink, and "smooth" only by structure. For a framework that
        shows no structure it is "unknown", without a search: predictions may be expensive.
    """
    operations = problem.autodiff.kinks
    if problem.linear or operations.none:
        return Kinks("smooth")
    names = tuple(dict.fromkeys(_COMMON_NAMES.get(name, name) for name in operations.names))
    if not names:
        return Kinks("unknown")
    rng = np.random.default_rng(seed)
    with problem.scope(), np.errstate(all="ignore"):
        for _ in range(_LINES):  # a line may cross no kink
            jump = _jump(problem, _direction(problem, rng))
            if jump > 0:
                return Kinks("kinked", names, jump)
    return Kinks("unknown", names)


def _direction(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """Return a random direction: each parameter changes by about a tenth of its value; parameters at zero do not."""
    return _REACH * problem.numpy(problem.theta) * rng.standard_normal(problem.p)


def _jump(problem: Problem, direction: np.ndarray) -> float:
    """Return the jump of a slope along a line, relative to the largest slope; zero if there is none."""
    here = problem.linearised.point
    count = _ROWS if problem.p <= _LARGE else _ROWS_OF_LARGE
    index = np.unique(np.linspace(0, problem.n - 1, min(problem.n, count)).round().astype(int))
    rows = problem.autodiff.take(here.X, index)
    theta = problem.numpy(problem.theta)

    def values(t: float) -> np.ndarray:
        return problem.autodiff.predict(problem.native(theta + t * direction), rows).reshape(-1)

    line = np.array([values(t) for t in np.linspace(-1.0, 1.0, _GRID)])
    differences = _second_differences(line)
    if not np.all(np.isfinite(line)):
        return 0.0
    # The curvature common to the whole line is not a kink: with two layers, predictions are quadratic between kinks.
    common = np.median(differences, axis=0)
    at, which = np.unravel_index(np.argmax(np.abs(differences - common)), differences.shape)
    slope = float(np.max(np.abs(np.diff(line, axis=0)))) / _SPACING
    start = -1.0 + _SPACING * (int(at) + 1)
    found = _follow(lambda t: values(t)[which], line[at : at + 3, which], start, float(common[which]))
    # Predictions may be constant along the line: those of a network whose parameters are all zero are.
    return found / slope if slope > 0 else 0.0


def _follow(value: Callable[[float], float], triple: np.ndarray, middle: float, common: float) -> float:
    """Follow a second difference to smaller spacings, and return the jump of the slope there; zero without a kink.

    Args:
        value: The prediction along the line.
        triple: Its values around ``middle``, at the spacing of the first grid.
        middle: Where to start.
        common: The second difference of the whole line at that spacing, which is subtracted.
    """
    floor = _ABOVE_ROUNDING * _EPS * float(np.max(np.abs(triple)))
    h = _SPACING
    rates = []
    for _ in range(_HALVINGS):
        h /= 2
        five = np.array([triple[0], value(middle - h), triple[1], value(middle + h), triple[2]])
        differences = np.abs(_second_differences(five) - common * (h / _SPACING) ** 2)
        best = int(np.argmax(differences))
        if not differences[best] > floor:  # True for NaN also
            return 0.0
        middle += h * (best - 1)
        triple = five[best : best + 3]
        rates.append(float(differences[best]) / h)
    if not _FIRST_ORDER[0] <= rates[-1] / rates[-1 - _LAST_HALVINGS] <= _FIRST_ORDER[1]:
        return 0.0
    # On both sides of a kink the line is straight. Rounding of a model in single precision is everywhere instead.
    left = np.array([value(middle + h * k) for k in range(-6, -1)])
    right = np.array([value(middle + h * k) for k in range(2, 7)])
    largest = max(float(np.max(np.abs(_second_differences(side)))) for side in (left, right))
    return rates[-1] if largest <= _STRAIGHT * h * rates[-1] else 0.0


def _second_differences(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = values[2:] - 2 * values[1:-1] + values[:-2]
    return found
