"""Search for the largest V over a sphere or a box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from vhat.checks import as_numbers
from vhat.errors import InputError

__all__ = ["Box", "Largest", "Region", "Sphere", "find_largest", "read_region"]

_ANGLES = 360
"""Number of points of the circle from which a search in two dimensions starts."""
_ALONG = {1: 401, 2: 33}
"""Number of points along each side of a box from which a search in one or two dimensions starts."""
_DRAWS = 512
"""Number of random points from which a search in more dimensions starts."""
_CORNERS = 10
"""Largest dimension in which all corners of a box are evaluated."""
_STARTS = 8
"""Number of the best points from which local searches start."""
_NEIGHBOURS = 8
"""Number of random points around each of them that a round evaluates."""
_ROUNDS = 24
"""Number of rounds of the local search. The radius is halved where a round finds nothing better."""
_FIRST_RADIUS = 0.25
"""Radius of the first round, as a share of the size of the region, in more than two dimensions."""


@dataclass(frozen=True)
class Sphere:
    """The unit sphere of R^d."""

    d: int

    @property
    def told(self) -> str:
        """The region in words."""
        return "both points of the unit sphere of R^1" if self.d == 1 else f"the unit sphere of R^{self.d}"

    def first(self, rng: np.random.Generator) -> tuple[np.ndarray, float, str]:
        """Return the first points, the radius of the local search (0 for none), and the points in words."""
        if self.d == 1:
            return np.array([[-1.0], [1.0]]), 0.0, "both points"
        if self.d == 2:
            angle = np.linspace(0.0, 2 * np.pi, _ANGLES, endpoint=False)
            return np.stack([np.cos(angle), np.sin(angle)], axis=1), 2 * np.pi / _ANGLES, f"{_ANGLES} angles"
        return self.inside(rng.standard_normal((_DRAWS, self.d))), _FIRST_RADIUS, f"{_DRAWS} random points"

    def step(self, points: np.ndarray, radius: Any, rng: np.random.Generator) -> np.ndarray:
        """Return a random neighbour of each point within its radius, a number or (m, 1)."""
        return self.inside(points + radius * rng.standard_normal(points.shape) / np.sqrt(self.d))

    def inside(self, points: np.ndarray) -> np.ndarray:
        """Bring points into the region."""
        return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Box:
    """The box between two corners, (d,) each."""

    lower: np.ndarray
    upper: np.ndarray

    @property
    def d(self) -> int:
        """The dimension."""
        return len(self.lower)

    @property
    def told(self) -> str:
        """The region in words."""
        return f"a box of {self.d} sides"

    def first(self, rng: np.random.Generator) -> tuple[np.ndarray, float, str]:
        """Return the first points, the radius of the local search as a share of the sides, and the points in words."""
        if self.d in _ALONG:
            count = _ALONG[self.d]
            axes = [np.linspace(low, high, count) for low, high in zip(self.lower, self.upper, strict=True)]
            grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.d)
            return grid, 1.0 / (count - 1), f"a grid of {len(grid)} points"
        drawn = rng.uniform(self.lower, self.upper, size=(_DRAWS, self.d))
        if self.d > _CORNERS:
            return drawn, _FIRST_RADIUS, f"{_DRAWS} random points"
        corners = np.array(list(product(*zip(self.lower, self.upper, strict=True))))
        return np.concatenate([corners, drawn]), _FIRST_RADIUS, f"all corners and {_DRAWS} random points"

    def step(self, points: np.ndarray, radius: Any, rng: np.random.Generator) -> np.ndarray:
        """Return a random neighbour of each point within its radius, a number or (m, 1)."""
        sides = self.upper - self.lower
        return np.clip(points + radius * sides * rng.standard_normal(points.shape), self.lower, self.upper)


Region = Sphere | Box


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest value that a search has found.

    Attributes:
        value: The value, a lower estimate of the supremum.
        at: The point, (d,).
        points: Number of points at which the function was evaluated.
        told: The method of the search, in words.
    """

    value: float
    at: np.ndarray
    points: int
    told: str


def read_region(region: Any, d: int) -> Region:
    """Return the region that a user names: ``"sphere"``, or the corners ``(lower, upper)`` of a box.

    Raises:
        InputError: For anything else, and for corners that do not fit the inputs.
    """
    if isinstance(region, str) and region == "sphere":
        return Sphere(d)
    if isinstance(region, str) or not isinstance(region, list | tuple) or len(region) != 2:
        raise InputError(f"region={region!r} is not known. Use 'sphere', or the corners (lower, upper) of a box.")
    lower, upper = (np.atleast_1d(as_numbers("region", corner)) for corner in region)
    fits = lower.shape == upper.shape == (d,)
    if not fits or not np.isfinite([lower, upper]).all() or not bool(np.all(lower <= upper)):
        raise InputError(
            f"region has corners of shapes {lower.shape} and {upper.shape}: give lower <= upper, finite, ({d},) each."
        )
    return Box(lower, upper)


def find_largest(evaluate: Callable[[np.ndarray], np.ndarray], region: Region, seed: int) -> Largest:
    """Search for the largest value of a function over a region.

    Args:
        evaluate: Points (m, d) to values (m,).
        region: Where to search.
        seed: Seed of random points.
    """
    rng = np.random.default_rng(seed)
    points, radius, told = region.first(rng)
    values = evaluate(points)
    count = len(points)
    if radius == 0:
        best = int(np.argmax(values))
        return Largest(float(values[best]), points[best], count, told)

    order = np.argsort(values)[::-1][:_STARTS]
    points = points[order]
    values = values[order]
    radii = np.full(len(points), radius)
    for _ in range(_ROUNDS):
        tried = np.concatenate([region.step(points, radii[:, None], rng) for _ in range(_NEIGHBOURS)])
        found = evaluate(tried).reshape(_NEIGHBOURS, -1)
        count += len(tried)
        which = np.argmax(found, axis=0)
        rows = np.arange(len(points))
        better = found[which, rows] > values
        values = np.where(better, found[which, rows], values)
        moved = tried.reshape(_NEIGHBOURS, len(points), -1)[which, rows]
        points = np.where(better[:, None], moved, points)
        radii = np.where(better, radii, radii / 2)
    best = int(np.argmax(values))
    how = f"{told} and local searches from the best {len(points)}, {count:,} points in all"
    return Largest(float(values[best]), points[best], count, how)
