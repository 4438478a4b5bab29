"""Does the derivative of the predictions jump near the parameters? Structure names candidates, values decide.

Along a line through the parameters a prediction of a smooth model has second differences ``f(t+h) - 2f(t) + f(t-h)``
of the order ``h^2``; one that crosses a kink has some of the order ``h``. The largest second difference is followed to
smaller and smaller h. This costs some fifty predictions of a few rows and no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vhat.models.problem import Problem

__all__ = ["Kinks", "find_kinks", "way_on"]

_REACH = 0.1
"""Length of a line on either side, as a share of each parameter: a change of this size switches some units of a
network, and leaves bounds that were set for safety alone."""
_GRID = 17
"""Points at which a line is looked at first."""
_SPACING = 2.0 / (_GRID - 1)
"""Their distance; the line runs from -1 to 1."""
_HALVINGS = 12
"""Halvings of h that follow: the last is some 4e-6 of the line, where second differences are far above rounding."""
_LAST = 4
"""Halvings over which the order of the second difference is judged."""
_FIRST_ORDER = (0.25, 4.0)
"""Factor by which ``(second difference)/h`` may change over the last four halvings. At a kink it is between 1/2 and 2
(the kink may stand up to h/2 from the middle), without one about 1/16, and 16 for rounding or a step."""
_ABOVE_ROUNDING = 1e3
"""Size of a second difference that counts, in units of the rounding of the values."""
_STRAIGHT = 0.1
"""Second differences on either side of a kink, as a share of that at the kink."""
_LINES = 3
"""Lines that are tried until one crosses a kink."""
_ROWS, _FEW_ROWS = 64, 8
"""Training rows that are predicted, and how many where the model is large."""
_LARGE = 100_000
"""Parameters above which a model counts as large."""
_EPS = float(np.finfo(np.float64).eps)
_PLAIN = {
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne"), "where"),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), "max_pool"),
    "prelu_kernel": "prelu",
    "rrelu_with_noise": "rrelu",
}
"""What a user calls operations that frameworks call otherwise."""


@dataclass(frozen=True)
class Kinks:
    """What is known of the kinks of a model near its parameters.

    Attributes:
        verdict: "kinked" where a derivative was seen to jump, "smooth" where the structure of the model has no kinked
            operation that acts on its parameters, else "unknown".
        names: The kinked operations, as far as the structure of the model shows them.
        jump: The largest jump of a prediction's slope that was followed, over the largest slope on that line; zero
            where none was found.
    """

    verdict: Literal["kinked", "smooth", "unknown"]
    names: tuple[str, ...] = ()
    jump: float = 0.0

    @property
    def told(self) -> str:
        """The kinks in words, for a sentence."""
        return f"kinks ({', '.join(self.names[:3])})" if self.names else "kinks"


def way_on(problem: Problem) -> str:
    """Say, in sentences, how to get intervals for a model with kinks as it is."""
    advice = "fitted.linearised(validation=(X, y)) takes the model as it is"
    if problem.autodiff.framework == "torch":
        advice += '; from_torch(..., parameters="last") holds all but its last linear layer fixed, and has no kinks'
    return f"{advice}."


def find_kinks(problem: Problem, seed: int = 0) -> Kinks:
    """Look for kinks within a tenth of the parameters.

    Args:
        problem: The training problem, at its parameters.
        seed: Draws the lines.

    Returns:
        "kinked" only where predictions were seen to bend at a point; "smooth" only by structure. A framework that
        shows no structure is left "unknown", without a look: its predictions may be dear.
    """
    operations = problem.autodiff.kinks
    if problem.linear or operations.none:
        return Kinks("smooth")
    names = tuple(dict.fromkeys(_PLAIN.get(name, name) for name in operations.names))
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
    """Draw a direction in which every parameter moves by about its own size; those at zero rest."""
    return _REACH * problem.numpy(problem.theta) * rng.standard_normal(problem.p)


def _jump(problem: Problem, direction: np.ndarray) -> float:
    """Return the jump of a slope along a line, relative to the largest slope; zero where none is found."""
    here = problem.linearised.point
    few = _ROWS if problem.p <= _LARGE else _FEW_ROWS
    index = np.unique(np.linspace(0, problem.n - 1, min(problem.n, few)).round().astype(int))
    rows = problem.autodiff.take(here.X, index)
    theta = problem.numpy(problem.theta)

    def values(t: float) -> np.ndarray:
        return problem.autodiff.predict(problem.native(theta + t * direction), rows).reshape(-1)

    line = np.array([values(t) for t in np.linspace(-1.0, 1.0, _GRID)])
    bends = _second_differences(line)
    if not np.all(np.isfinite(line)):
        return 0.0
    # What all of a line bends by is no kink: two layers make a prediction quadratic between its kinks.
    common = np.median(bends, axis=0)
    at, which = np.unravel_index(np.argmax(np.abs(bends - common)), bends.shape)
    slope = float(np.max(np.abs(np.diff(line, axis=0)))) / _SPACING
    start = -1.0 + _SPACING * (int(at) + 1)
    found = _follow(lambda t: values(t)[which], line[at : at + 3, which], start, float(common[which]))
    return found / slope


def _follow(value: Callable[[float], float], triple: np.ndarray, middle: float, common: float) -> float:
    """Follow a second difference to smaller spacings, and return the jump of the slope there; zero for no kink.

    Args:
        value: The prediction along the line.
        triple: Its values around ``middle``, at the spacing of the first grid.
        middle: Where to begin.
        common: The second difference, at that spacing, that is taken for the curvature of the whole line.
    """
    floor = _ABOVE_ROUNDING * _EPS * float(np.max(np.abs(triple)))
    h = _SPACING
    rates = []
    for _ in range(_HALVINGS):
        h /= 2
        five = np.array([triple[0], value(middle - h), triple[1], value(middle + h), triple[2]])
        bends = np.abs(_second_differences(five) - common * (h / _SPACING) ** 2)
        best = int(np.argmax(bends))
        if not bends[best] > floor:  # also where a value is not finite
            return 0.0
        middle += h * (best - 1)
        triple = five[best : best + 3]
        rates.append(float(bends[best]) / h)
    if not _FIRST_ORDER[0] <= rates[-1] / rates[-1 - _LAST] <= _FIRST_ORDER[1]:
        return 0.0
    # Beside a kink the line is straight. Rounding, of a model that computes in single precision, is all about.
    beside = [value(middle + h * k) for k in range(-6, -1)], [value(middle + h * k) for k in range(2, 7)]
    straight = max(float(np.max(np.abs(_second_differences(np.array(side))))) for side in beside)
    return rates[-1] if straight <= _STRAIGHT * h * rates[-1] else 0.0


def _second_differences(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = values[2:] - 2 * values[1:-1] + values[:-2]
    return found
