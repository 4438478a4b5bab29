"""A method that brings its own recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vhat.errors import InputError
from vhat.fit.many_fits import Recipe, check_recipe
from vhat.methods.base.method import FittedMethod, Method

__all__ = ["WithRecipe"]


@dataclass(frozen=True)
class WithRecipe:
    """A method trained by a recipe of its own, whatever recipe it is given.

    Some methods prescribe how a network is trained (:class:`MCDropout`, :class:`UnrolledDescent`); this lets them take
    part in a :func:`vhat.compare` whose recipe is another one.

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
            raise InputError(f"method={self.method!r} is no method: it has no fit(recipe, X, y, seed=...).")
        check_recipe(self.recipe)

    def fit(self, recipe: Recipe | None, X: Any, y: Any, *, seed: int = 0) -> FittedMethod:  # noqa: ARG002
        """Train the method by its own recipe.

        Args:
            recipe: Not used.
            X: Rows.
            y: Responses.
            seed: As in the method.
        """
        return self.method.fit(self.recipe, X, y, seed=seed)
