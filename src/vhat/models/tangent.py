"""The linearisation of a model around its parameters, as a model of its own: linear, at its minimum by construction.

Around ``a`` the tangent model is ``f(x; a) + g(x)'(theta - a)`` with ``g(x)`` the gradient of the prediction at a.
Under the penalty ``lam/2 |theta|^2 - shift'theta`` with ``shift = grad L(a) + lam a``, a itself is the minimum of its
objective: the predictions are those of the model that was given, whatever it was trained with, and refits under other
responses are ridge regressions on the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.models.kinks import NO_KINKS
from vhat.models.loss import LossDerivatives
from vhat.models.problem import Problem
from vhat.models.protocols import Array, Arrays, Curvature, Functional, Linearised, ModelFacts, Point, slices

__all__ = ["TangentAutodiff", "tangent_problem"]

_BLOCK_BYTES = 2**26
"""What the gradients of rows that are predicted together may take."""


@dataclass(frozen=True, eq=False)
class TangentAutodiff:
    """The tangent model of a problem at its parameters: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        base: The problem that is linearised, in the units of the model.
    """

    base: Problem

    linear = True
    kinks = NO_KINKS

    def origin(self, tangent: Problem) -> Problem:
        """Return the problem that was linearised, in the units of the user of its tangent model."""
        return replace(self.base, X=tangent.X, targets=tangent.targets, scaling=tangent.scaling)

    @property
    def framework(self) -> str:
        """The name of the framework of the model that is linearised."""
        return self.base.autodiff.framework

    @property
    def arrays(self) -> Arrays:
        """The framework's arrays."""
        return self.base.autodiff.arrays

    @property
    def squeeze(self) -> bool:
        """Whether the model returns ``(n,)``."""
        return self.base.autodiff.squeeze

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the user's arrays."""
        return self.base.autodiff.leaves

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """The names of the columns of the training inputs."""
        return self.base.autodiff.columns

    @property
    def input_structure(self) -> tuple[str, tuple[str, ...]] | None:
        """How the training inputs of the model were given, where it knows."""
        found: tuple[str, tuple[str, ...]] | None = getattr(self.base.autodiff, "input_structure", None)
        return found

    @property
    def target_key(self) -> str | None:
        """The key of the responses in dict batches."""
        found: str | None = getattr(self.base.autodiff, "target_key", None)
        return found

    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs as the model itself does."""
        return self.base.autodiff.check(x, X)

    def count(self, inputs: Any, /) -> int:
        """Return how many rows checked inputs hold."""
        return self.base.autodiff.count(inputs)

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return some rows of checked inputs."""
        return self.base.autodiff.take(inputs, index)

    def predict(self, theta: Array, inputs: Any, /) -> np.ndarray:
        """Return ``f(x; a) + g(x)'(theta - a)`` at checked inputs, (m, K)."""
        base = self.base
        found = base.autodiff.predict(base.theta, inputs)
        move = theta - base.theta
        if not base.numpy(move).any():
            return found
        outputs = found.shape[1]
        step = max(1, _BLOCK_BYTES // (8 * base.p * outputs))
        moved = []
        for rows in slices(len(found), step):
            gradients = base.linearised.row_gradients(self.take(inputs, rows))
            moved.append(base.numpy(gradients @ move).reshape(-1, outputs))
        return found + np.concatenate(moved)

    def own_noise(self, inputs: Any, /) -> np.ndarray | None:
        """Return the standard deviation of a response as the model that is linearised predicts it."""
        own = getattr(self.base.autodiff, "own_noise", None)
        found: np.ndarray | None = None if own is None else own(inputs)
        return found

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of the model and its derivatives."""
        return self.base.autodiff.loss(f, y, weights)

    def params(self, theta: Array, /) -> Any:
        """Return the parameters in the user's own structure."""
        return self.base.autodiff.params(theta)

    def functional(self, theta: Array, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``."""
        return self.base.autodiff.functional(theta, q)

    def linearise(self, point: Point, before: Linearised | None, /) -> TangentLinearised:
        """Return the derivatives of the tangent model, which are the same at all parameters."""
        return TangentLinearised(self, point, before)


class TangentLinearised(Linearised):
    """Derivatives of a tangent model: those of the model at the parameters around which it was linearised."""

    _autodiff: TangentAutodiff

    def __init__(self, autodiff: TangentAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        self._block = self._at_anchor(before)

    def _at_anchor(self, before: Linearised | None) -> Linearised:
        """Return the derivatives of the model on these rows; taken over where only parameters or decay differ."""
        base, point = self._autodiff.base, self.point
        earlier = point.shared(before if isinstance(before, TangentLinearised) else None, "X", "y", "weights")
        if earlier is not None:
            return earlier._block
        known = base.linearised if before is None else before
        if isinstance(known, TangentLinearised):
            known = known._block
        own = known.point
        same_rows = own.X is point.X
        anchored = Point(
            base.theta,
            own.decay,
            point.X,
            own.y if own.y is point.y else point.y,
            point.weights,
            point.memory,
            known.fitted if same_rows else None,
        )
        return base.autodiff.linearise(anchored, known)

    def facts(self) -> ModelFacts:
        """Probe the model that is linearised; only its first derivatives matter."""
        facts = self._block.facts()
        return ModelFacts(
            facts.framework,
            facts.dtype,
            facts.deterministic,
            facts.narrow_casts,
            facts.first_accuracy,
            facts.first_accuracy,
        )

    def row_gradients(self, inputs: Any, /) -> Array:
        """Return the gradients of the model's predictions at the anchor, (m * K, p)."""
        return self._block.row_gradients(inputs)

    def row_factors(self, inputs: Any, /) -> Any:
        """Return the same leaf by leaf."""
        return self._block.row_factors(inputs)

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves for which ``row_factors`` gives pairs."""
        return self._block.outer_leaves

    def jvp(self, v: Array, /) -> np.ndarray:
        """Return ``J v`` for each row of v."""
        return self._block.jvp(v)

    def vjp(self, t: np.ndarray, /) -> Array:
        """Return ``J' t`` for each block of t."""
        return self._block.vjp(t)

    def product(self, v: Array, curvature: Curvature, /) -> Array:
        """Return ``J'CJ v / n``, which is the Hessian of a tangent model, for each row of v."""
        del curvature
        if self.point.theta is self._autodiff.base.theta:
            return self._block.product(v, "ggn")
        return self.gauss_newton(v)

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return zero: the residuals have no share in the curvature."""
        return np.zeros_like(v)

    def diagonal(self) -> Array:
        """Return the diagonal of the Gauss-Newton part, (p,)."""
        if self.point.theta is self._autodiff.base.theta:
            return self._block.diagonal()
        return super().diagonal()


def tangent_problem(problem: Problem, decay: Array) -> Problem:
    """Return the tangent model of a problem at its parameters, of which they are the minimum.

    Args:
        problem: The problem of the model.
        decay: The diagonal lam of the ridge penalty, p-space (p,).
    """
    shift = problem.gradient() + decay * problem.theta
    return Problem(
        TangentAutodiff(problem.in_model_units()),
        problem.theta,
        decay,
        problem.X,
        problem.targets,
        problem.weights,
        problem.memory,
        problem.scaling,
        shift,
        problem.source,
    )
