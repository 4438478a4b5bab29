"""A method combined with a recipe of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vhat.errors import InputError
from vhat.fit.many_fits import Recipe, check_recipe
from vhat.methods.base.method import FittedMethod, Method

__all__ = ["WithRecipe"]


@dataclass(frozen=True)
class WithRecipe:
    """A method that always trains by its own recipe and ignores the one passed to ``fit``.

    Some methods need a particular recipe (:class:`MCDropout`, :class:`UnrolledDescent`). This class lets them take part
    in a :func:`vhat.compare` with another recipe.

    Attributes:
        method: The method.
        recipe: Its recipe.

    Examples:
        >>> import numpy as np
        >>> from vhat.fit import GradientDescent, Network
        >>> from vhat.methods import UnrolledDescent
        >>> x = np.linspace(-1, 1, 12)[:, None]
        >>> method = WithRecipe(UnrolledDescent(), GradientDescent(Network((1, 1)), weight_decay=0.05))
        >>> method.fit(None, x, x[:, 0] + 0.1 * np.cos(40 * x[:, 0])).interval([[0.0]]).bound
        'unrolled descent (isoperimetric)'
    """

    method: Method
    recipe: Recipe

    def __post_init__(self) -> None:
        if isinstance(self.method, type) or not callable(getattr(self.method, "fit", None)):
            raise InputError(f"method={self.method!r} is not a method: it has no fit(recipe, X, y, seed=...).")
        check_recipe(self.recipe)

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> FittedMethod:  # noqa: ARG002
        """Train the method by its own recipe.

        Args:
            recipe: Not used.
            X: Rows.
            y: Responses.
            seed: Seed of the training and of all random draws.
        """
        return self.method.fit(self.recipe, X, y, seed=seed)
