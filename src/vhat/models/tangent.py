"""The linearisation of a model at its parameters, as a model in its own right.

At the anchor ``a`` the tangent model is ``f(x; a) + g(x)'(theta - a)``, with ``g(x)`` the gradient of the prediction
at ``a``. Its penalty is ``lam/2 |theta|^2 - shift'theta`` with ``shift = grad L(a) + lam a``. Then:

- the tangent model is linear in its parameters, and its objective has its minimum exactly at ``a``;
- its predictions at ``a`` are those of the original model, however that model was trained;
- a refit to other responses is a ridge regression on the gradients.
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
"""Memory for the gradients of one block of predicted rows, in bytes."""


@dataclass(frozen=True, eq=False)
class TangentAutodiff:
    """The tangent model of a problem at its parameters: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        base: The linearised problem, in the units of the model. Its ``theta`` is the anchor.
    """

    base: Problem

    linear = True
    kinks = NO_KINKS

    def origin(self, tangent: Problem) -> Problem:
        """Return the original problem, with the user's data and scaling of the tangent problem."""
        return replace(self.base, X=tangent.X, targets=tangent.targets, scaling=tangent.scaling)

    @property
    def framework(self) -> str:
        """Name of the framework of the original model."""
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
        """Shapes of the user's arrays."""
        return self.base.autodiff.leaves

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Column names of the training inputs."""
        return self.base.autodiff.columns

    @property
    def input_structure(self) -> tuple[str, tuple[str, ...]] | None:
        """Structure of the training inputs (one array, tuple or dict), where the original model knows it."""
        structure: tuple[str, tuple[str, ...]] | None = getattr(self.base.autodiff, "input_structure", None)
        return structure

    @property
    def target_key(self) -> str | None:
        """Key of the responses in dict batches."""
        key: str | None = getattr(self.base.autodiff, "target_key", None)
        return key

    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs as the original model does."""
        return self.base.autodiff.check(x, X)

    def count(self, inputs: Any, /) -> int:
        """Return the number of rows in checked inputs."""
        return self.base.autodiff.count(inputs)

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return some rows of checked inputs."""
        return self.base.autodiff.take(inputs, index)

    def refuse_changed(self) -> None:
        """Raise if the original model's predictions have changed since it was given."""
        self.base.refuse_changed()

    def predict(self, theta: Array, inputs: Any, /) -> np.ndarray:
        """Return ``f(x; a) + g(x)'(theta - a)`` at checked inputs, (m, K)."""
        base = self.base
        at_anchor = base.autodiff.predict(base.theta, inputs)
        step = theta - base.theta
        if not base.numpy(step).any():
            return at_anchor  # no gradients needed
        outputs = at_anchor.shape[1]
        block_rows = max(1, _BLOCK_BYTES // (8 * base.p * outputs))
        changes = []
        for rows in slices(len(at_anchor), block_rows):
            gradients = base.linearised.row_gradients(self.take(inputs, rows))
            changes.append(base.numpy(gradients @ step).reshape(-1, outputs))
        return at_anchor + np.concatenate(changes)

    def own_noise(self, inputs: Any, /) -> np.ndarray | None:
        """Return the standard deviation of a response that the original model predicts; None if it predicts none."""
        predict_noise = getattr(self.base.autodiff, "own_noise", None)
        if predict_noise is None:
            return None
        noise: np.ndarray | None = predict_noise(inputs)
        return noise

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
        """Return the derivatives of the tangent model. They do not depend on the parameters."""
        return TangentLinearised(self, point, before)


class TangentLinearised(Linearised):
    """Derivatives of a tangent model: those of the original model at the anchor."""

    _autodiff: TangentAutodiff

    def __init__(self, autodiff: TangentAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        self._block = self._at_anchor(before)

    def _at_anchor(self, before: Linearised | None) -> Linearised:
        """Return the original model's derivatives at the anchor, on the rows of this point.

        Args:
            before: A block to reuse. If it has the same rows, only parameters or decay differ, and the derivatives at
                the anchor are unchanged.
        """
        base = self._autodiff.base
        point = self.point
        earlier = point.shared(before if isinstance(before, TangentLinearised) else None, "X", "y", "weights")
        if earlier is not None:
            return earlier._block
        known = base.linearised if before is None else before
        if isinstance(known, TangentLinearised):
            known = known._block
        anchor = Point(
            base.theta,
            known.point.decay,
            point.X,
            point.y,
            point.weights,
            point.memory,
            known.fitted if known.point.X is point.X else None,
        )
        return base.autodiff.linearise(anchor, known)

    def facts(self) -> ModelFacts:
        """Probe the original model. Both accuracies are that of first derivatives: second ones are not used."""
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
        """Return the gradients of the original model's predictions at the anchor, (m * K, p)."""
        return self._block.row_gradients(inputs)

    def row_factors(self, inputs: Any, /) -> Any:
        """Return these gradients split by leaf."""
        return self._block.row_factors(inputs)

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Indices of the leaves for which ``row_factors`` returns pairs."""
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
        # Away from the anchor the weights C of the loss differ from those of the anchor's block.
        return self.gauss_newton(v)

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return zero: the second derivatives of a linear model vanish."""
        return np.zeros_like(v)

    def diagonal(self) -> Array:
        """Return the diagonal of the Gauss-Newton part, (p,)."""
        if self.point.theta is self._autodiff.base.theta:
            return self._block.diagonal()
        return super().diagonal()


def tangent_problem(problem: Problem, decay: Array) -> Problem:
    """Return the problem of the tangent model at a problem's parameters, which are its minimum.

    Args:
        problem: The problem of the original model.
        decay: The diagonal lam of the ridge penalty, p-space (p,).
    """
    # With this linear term the gradient of the penalised objective, grad L + decay * theta - shift, is zero at theta.
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
