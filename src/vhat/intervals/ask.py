"""Questions about predictions and functionals, from what a user gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.intervals.build import Question
from vhat.intervals.fingerprint import fingerprint
from vhat.intervals.options import Options
from vhat.models.loaders import read_inputs
from vhat.models.problem import Array, Problem
from vhat.variance.weighted_norm import gradient_blocks

__all__ = ["about_functional", "about_predictions", "checked_inputs", "shaped"]


def about_predictions(problem: Problem, x: Any, options: Options, *, shortcut: bool = False) -> Question:
    """Return the question of which interval the predictions at x have.

    Args:
        problem: The model; its training rows are not looked at.
        x: Test inputs, shaped like the training inputs, or a torch DataLoader or Dataset of them.
        options: The options of the interval.
        shortcut: Whether ``c g'h`` stands for V.

    Raises:
        InputError: For inputs that cannot be used.
        ModelError: When the model has changed since it was given.
    """
    problem.refuse_changed()
    x = read_inputs(problem, x)
    inputs = problem.check(x)

    def sides(problem: Problem) -> Iterable[Array]:
        return gradient_blocks(problem, inputs)

    own = problem.own_noise(inputs) if options.target == "observation" else None
    return Question(
        options,
        shaped(problem, problem.predict(inputs)),
        sides,
        points=np.asarray(inputs) if isinstance(inputs, np.ndarray) else _as_array(x),
        index=x.index if hasattr(x, "iloc") else None,
        shortcut=shortcut,
        own_noise=None if own is None else shaped(problem, own),
        key=fingerprint(inputs),
    )


def about_functional(problem: Problem, q: Callable[[Any], Any], options: Options) -> Question:
    """Return the question of which interval a functional of the parameters has.

    Args:
        problem: The model.
        q: ``q(params)`` in the user's own structure, returning a scalar or (k,).
        options: The options of the interval.

    Raises:
        InputError: When q returns something else, or is not differentiable.
    """

    def sides(problem: Problem) -> Iterable[Array]:
        return [problem.functional(q).gradient]

    found = problem.functional(q)
    return Question(options, found.value, sides, predictions=False, affine=found.affine)


def checked_inputs(problem: Problem, name: str, x: Any) -> Any:
    """Check inputs that the user knows by another name than x.

    Raises:
        InputError: Under that name.
    """
    try:
        return problem.inputs(x)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def shaped(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Give flat rows the shape that the model's predictions have: (points,) or (points, outputs)."""
    columns = rows.reshape(-1, problem.outputs)
    return columns[:, 0].copy() if problem.squeeze else columns.copy()


def _as_array(x: Any) -> np.ndarray | None:
    """Keep points for plotting where they are one numeric array."""
    try:
        array = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return array
