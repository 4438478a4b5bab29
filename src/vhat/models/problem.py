"""The contract between an autodiff framework and the mathematics: one training problem at one parameter vector.

Shapes, everywhere below:

- ``n`` training rows, ``K`` outputs, ``p`` parameters, ``k`` right-hand sides;
- *p-space* arrays are the framework's own, float64, blocks of rows ``(k, p)``;
- *n-space* arrays are NumPy float64, ``(k, n, K)`` or ``(n, K)``.

The objective is ``L(theta) + 1/2 sum_j decay_j theta_j^2`` with ``L = 1/n sum_i w_i l(f(x_i), y_i)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

__all__ = [
    "Array",
    "Curvature",
    "Functional",
    "LossDerivatives",
    "ModelFacts",
    "Problem",
    "diagonal_if_separable",
    "leaf_rows",
    "leaf_slices",
]

Array = Any
"""A framework's own array (jax.Array, torch.Tensor or numpy.ndarray)."""

Curvature = Literal["hessian", "ggn"]


@dataclass(frozen=True)
class LossDerivatives:
    """The loss of every training row and its derivatives at the fitted values, sample weights included.

    ``curvature`` and ``cross`` are ``(n, K)`` where the loss is a sum over outputs (the diagonal), else
    ``(n, K, K)``.

    Attributes:
        value: ``w_i l(f_i, y_i)``, shape (n,).
        first: ``w_i dl/df``, shape (n, K).
        curvature: ``w_i d2l/df df``; the weight of the Gauss-Newton part.
        cross: ``w_i d2l/df dy``, first index f, second y; the score weight before noise. Square loss: ``-w_i``.
        location: Whether ``l`` depends on ``f - y`` alone, so that ``f - y`` is a residual.
        square: Whether ``l`` is half the squared error by its name. A function of the user's counts as another loss:
            no finite number of values could tell a square from a loss that has other tails (Huber's).
    """

    value: np.ndarray
    first: np.ndarray
    curvature: np.ndarray
    cross: np.ndarray
    location: bool
    square: bool = False


@dataclass(frozen=True)
class Functional:
    """A functional ``q(theta)`` at the fitted parameters.

    Attributes:
        value: ``q(theta_hat)``, NumPy, shape () or (k,).
        gradient: Its gradient rows, p-space, shape (1, p) or (k, p).
        affine: Whether it is an affine function of the parameters, by the operations that it is made of.
    """

    value: np.ndarray
    gradient: Array
    affine: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """What a front end observed of the model itself.

    Attributes:
        framework: "jax", "torch" or "numpy".
        dtype: The dtype in which the parameters were given.
        deterministic: Two evaluations of the same rows agree exactly.
        narrow_casts: Operations inside the model that leave float64 (empty when there are none).
        accuracy: Relative accuracy of second derivatives: about 1e-15 for autodiff, more for differences.
        first_accuracy: The same of the Gauss-Newton part, which is made of first derivatives alone.
    """

    framework: str
    dtype: str
    deterministic: bool
    narrow_casts: tuple[str, ...]
    accuracy: float
    first_accuracy: float


class Problem(Protocol):
    """A fitted model and its training data, seen through derivatives. A contract: no behaviour lives here."""

    @property
    def n(self) -> int:
        """How many training rows there are."""

    @property
    def outputs(self) -> int:
        """How many outputs the model has, K."""

    @property
    def p(self) -> int:
        """How many parameters were trained."""

    @property
    def squeeze(self) -> bool:
        """Whether the model returns ``(n,)``: results then have no output axis."""

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of the parameters.

        By the structure of the model and not by a probe at one point: False where that is not proved.
        """

    @property
    def theta(self) -> Array:
        """The fitted parameters, p-space (p,)."""

    @property
    def decay(self) -> Array:
        """The diagonal lam, p-space (p,)."""

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the user's arrays, in the order in which they fill the flat vector."""

    @property
    def memory(self) -> int:
        """The budget in bytes."""

    @property
    def weights(self) -> Any:
        """The weights of the training rows, (n,), an array of NumPy or of the framework."""

    @property
    def X(self) -> Any:
        """The checked training inputs: what ``take``, ``predict`` and ``gradients`` accept."""

    # -- the fitted model ------------------------------------------------------------------
    @property
    def params(self) -> Any:
        """The parameters in the user's own structure."""

    @property
    def targets(self) -> np.ndarray:
        """The responses, (n, K)."""

    @property
    def fitted_values(self) -> np.ndarray:
        """Predictions on the training rows, (n, K)."""

    @property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss and its derivatives on the training rows."""

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts."""

    def at(self, theta: Array) -> Problem:
        """Return the same problem at other parameters."""

    def with_targets(self, y: np.ndarray) -> Problem:
        """Return the same problem with other responses, (n, K)."""

    def with_decay(self, decay: Array) -> Problem:
        """Return the same problem under another decay, p-space (p,)."""

    def rows(self, index: np.ndarray) -> Problem:
        """Return the problem of some training rows alone, with ``L`` the mean over these."""

    # -- test points -----------------------------------------------------------------------
    def inputs(self, x: Any) -> Any:
        """Check test inputs (shape, finite, width) and bring them to the framework.

        Raises:
            InputError: In a sentence that names the rows or the width.
        """

    def count(self, inputs: Any) -> int:
        """Return how many rows checked inputs hold."""

    def take(self, inputs: Any, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` of checked inputs."""

    def predict(self, inputs: Any) -> np.ndarray:
        """Predictions at checked inputs, (m, K)."""

    def gradients(self, inputs: Any) -> Array:
        """Rows ``grad f_o(x)``, p-space (m * K, p): the outputs of one input stand together."""

    def factors(self, inputs: Any) -> Sequence[tuple[Array, ...]]:
        """The same rows leaf by leaf, (m * K, size) each.

        A front end that knows a matrix of parameters (a, b) to have gradients ``u (x) w`` gives the pair u (m * K, a),
        w (m * K, b) in place of them.
        """

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves for which ``factors`` gives pairs."""

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``factors`` gives for each output of a row."""

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Value and gradient of ``q(params)`` at the fitted parameters."""

    # -- derivatives over the training rows ----------------------------------------------------
    def objective(self) -> float:
        """``L(theta)``, without the penalty."""

    def gradient(self) -> Array:
        """``grad L(theta)``, without the penalty, p-space (p,)."""

    def product(self, v: Array, curvature: Curvature) -> Array:
        """``H v`` (or its Gauss-Newton part ``J'CJ v / n``) for each row of v, without decay: (k, p) to (k, p)."""

    def residual_product(self, v: np.ndarray, /) -> np.ndarray | None:
        """``(H - J'CJ/n) v``, the residuals' share of the curvature, for each row of v, (k, p), in single precision.

        NumPy in, NumPy out. None where the framework has nothing faster than ``product`` to offer.
        """

    def diagonal(self) -> Array:
        """``1/n sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,): the scale of the Gauss-Newton part."""

    def jvp(self, v: Array) -> np.ndarray:
        """``J v`` for each row of v: p-space (k, p) to n-space (k, n, K)."""

    def vjp(self, t: np.ndarray) -> Array:
        """``J' t`` for each block of t: n-space (k, n, K) to p-space (k, p)."""

    # -- arrays ----------------------------------------------------------------------------
    def scope(self) -> AbstractContextManager[Any]:
        """The framework state (float64, no gradient tape) in which p-space arithmetic must run."""

    def native(self, a: np.ndarray) -> Array:
        """Bring a NumPy array to p-space."""

    def numpy(self, a: Array) -> np.ndarray:
        """Bring a p-space array to NumPy."""

    def padded(self, k: int) -> int:
        """The width to which a block of k rows is padded, so that few shapes are ever compiled."""

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a pure function of p-space arrays, where the framework can."""


def diagonal_if_separable(blocks: np.ndarray) -> np.ndarray:
    """Return the diagonals (n, K) of per-row matrices (n, K, K) when nothing stands beside them, else the blocks."""
    diagonal = np.einsum("ijj->ij", blocks)
    beside = blocks - diagonal[:, :, None] * np.eye(blocks.shape[1])
    return blocks if beside.any() else diagonal.copy()


def leaf_rows(g: Array, leaves: Sequence[tuple[int, ...]]) -> list[tuple[Array, ...]]:
    """Cut gradient rows (k, p) into those of each leaf, (k, size)."""
    return [(g[:, where],) for where in leaf_slices(leaves)]


def leaf_slices(leaves: Sequence[tuple[int, ...]]) -> list[slice]:
    """Where each leaf stands in the flat vector."""
    stops = np.cumsum([0, *(int(np.prod(shape)) for shape in leaves)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(stops)]
