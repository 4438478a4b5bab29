"""Protocols that a framework implements; :class:`vhat.models.problem.Problem` uses nothing else of it.

There are three, from the smallest to the largest:

- :class:`Arrays` creates and converts the framework's arrays;
- :class:`Autodiff` is a user's model as a function of its parameters. It is immutable and can be pickled;
- :class:`Linearised` holds the derivatives at one parameter vector over one set of training rows. It owns everything
  that is expensive to create: chunks of rows on a device, recorded tapes, a Jacobian.

Shapes: ``n`` training rows, ``m`` test rows, ``K`` outputs, ``p`` parameters, ``k`` right-hand sides. *p-space* arrays
are the framework's own, float64, blocks of rows (k, p). *n-space* arrays are NumPy float64, (n, K) or (k, n, K).

To add a framework, implement the three protocols and write a function that checks the user's arguments and returns a
``Problem``. ``tests/models/example_framework.py`` is an example; each protocol takes about a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, Literal, Protocol, TypeVar

import array_api_compat
import numpy as np

from vhat.models.kinks import KinkedOperations
from vhat.models.leaves import leaf_rows
from vhat.models.loss import LossDerivatives

__all__ = [
    "Array",
    "Arrays",
    "Autodiff",
    "Curvature",
    "Functional",
    "Lazy",
    "Linearised",
    "ModelFacts",
    "Point",
    "slices",
]

Array = Any
"""A framework's own array (jax.Array, torch.Tensor or numpy.ndarray)."""

Curvature = Literal["hessian", "ggn"]
Block = TypeVar("Block", bound="Linearised")
T = TypeVar("T")

_BLOCK_BYTES = 2**24
"""Size of one block of per-row gradients, in bytes. Allocating larger blocks costs more time than the arithmetic."""
_MAX_BLOCK_ROWS = 512
"""Upper limit on the rows of one block, for models with few parameters."""


@dataclass(frozen=True)
class Functional:
    """Value and gradient of a functional ``q(theta)`` at the fitted parameters.

    Attributes:
        value: ``q(theta_hat)``, NumPy, shape () or (k,).
        gradient: One gradient per value of ``q``, p-space, shape (1, p) or (k, p).
        affine: Whether ``q`` is proved to be an affine function of the parameters, from its traced operations.
    """

    value: np.ndarray
    gradient: Array
    affine: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model, measured when it was probed.

    Attributes:
        framework: "jax", "torch" or "numpy".
        dtype: The dtype in which the parameters were given.
        deterministic: Whether two evaluations of the same rows agree exactly.
        narrow_casts: Operations inside the model that leave float64 (empty when there are none).
        accuracy: Relative error of second derivatives: about 1e-15 for autodiff, larger for finite differences.
        first_accuracy: Relative error of the Gauss-Newton part, which needs first derivatives only.
    """

    framework: str
    dtype: str
    deterministic: bool
    narrow_casts: tuple[str, ...]
    accuracy: float
    first_accuracy: float


class Lazy(Generic[T]):
    """A value that is computed once, when it is first read.

    Two linearised blocks share one ``Lazy`` where the value depends only on data that both have in common. The first
    read, by either block, computes the value for both. The function that computes it is released afterwards, together
    with everything that it refers to.

    Examples:
        >>> total = Lazy(lambda: sum(range(4)))
        >>> total.known
        False
        >>> total.result, total.known
        (6, True)
    """

    result: T
    """The value. After the first read this is an ordinary attribute."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute

    @property
    def known(self) -> bool:
        """Whether the value has been computed."""
        return self._compute is None

    def __getattr__(self, name: str) -> T:
        """Compute ``result``. Python calls this method only while ``result`` is not set."""
        if name != "result":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        compute = self._compute
        if compute is not None:  # None when another thread has just computed the value
            self.result = compute()
            self._compute = None
        return self.result


@dataclass(frozen=True, eq=False)
class Point:
    """Where a model is linearised: parameters and training rows, in the units of the model.

    Attributes:
        theta: The parameters, p-space (p,).
        decay: The diagonal of the penalty's Hessian, lam, p-space (p,).
        X: Checked training inputs.
        y: Responses, (n, K).
        weights: One per row, (n,).
        memory: Budget in bytes.
        fitted: The predictions at ``theta`` on ``X``, shared with another block; None where no block shares them.
    """

    theta: Array
    decay: Array
    X: Any = field(repr=False)
    y: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    memory: int
    fitted: Lazy[np.ndarray] | None = field(default=None, repr=False)

    @cached_property
    def n(self) -> int:
        """Number of training rows."""
        return len(self.y)

    def shared(self, before: Block | None, *names: str) -> Block | None:
        """Return ``before`` if its point has the same objects (``is``) in these fields, else None."""
        if before is None:
            return None
        same = all(getattr(before.point, name) is getattr(self, name) for name in names)
        return before if same else None


class Arrays(Protocol):
    """Creation and conversion of a framework's arrays, and the state in which p-space arithmetic runs."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context manager that sets the state for p-space arithmetic: float64, no gradient tape."""

    def native(self, a: Any, /) -> Array:
        """Copy an array of NumPy or of the framework to p-space, float64."""

    def numpy(self, a: Any, /) -> np.ndarray:
        """Convert a p-space array to NumPy, float64."""

    def width(self, k: int, /) -> int:
        """Return the number of rows to which a block of k rows is padded; k where no shape is compiled."""

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Compile a pure function of p-space arrays; return it unchanged where the framework has no compiler."""


class Autodiff(Protocol):
    """A user's model and loss as functions of a flat parameter vector. Immutable; can be pickled."""

    @property
    def framework(self) -> str:
        """Name of the framework, as stored in saved models."""

    @property
    def arrays(self) -> Arrays:
        """The framework's arrays."""

    @property
    def squeeze(self) -> bool:
        """Whether the model returns ``(n,)``: results then have no output axis."""

    @property
    def linear(self) -> bool:
        """Whether the predictions are proved to be an affine function of the parameters.

        The proof uses the structure of the model, not a probe at one point. False where there is no proof.
        """

    @property
    def kinks(self) -> KinkedOperations:
        """Kinked operations (ReLU, abs, max) on parameter-dependent values, as far as the structure shows them."""

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the user's arrays, in the order in which they fill the flat vector."""

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Column names of the training inputs, where they were one table with names; else None."""

    # -- inputs ----------------------------------------------------------------------------
    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs against the checked training inputs X (shape, finite values, width).

        Raises:
            InputError: Naming the rows or the width.
        """

    def count(self, inputs: Any, /) -> int:
        """Return the number of rows in checked inputs."""

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return rows of checked inputs, selected by a slice or an array of row numbers."""

    # -- values ----------------------------------------------------------------------------
    def predict(self, theta: Array, inputs: Any, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K). Values that are not finite are returned as they are."""

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives, f and y of shape (n, K)."""

    def params(self, theta: Array, /) -> Any:
        """Return the parameters in the user's own structure."""

    def functional(self, theta: Array, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``."""

    # -- derivatives -----------------------------------------------------------------------
    def linearise(self, point: Point, before: Linearised | None, /) -> Linearised:
        """Return the derivatives at a point. Each of them is computed on first use.

        Args:
            point: Parameters and training rows.
            before: A block of this model at another point. Results that depend only on fields which both points share
                (``point.shared``) can be reused from it.
        """


class Linearised(ABC):
    """Derivatives of a model at one point, over its training rows.

    A framework has to implement ``facts``, ``row_gradients``, ``jvp``, ``vjp`` and ``product``. The other methods are
    derived from these five; a framework may override them with something faster.

    Attributes:
        point: Parameters and training rows.
        fitted: The predictions on the training rows, (n, K).
        loss: The loss of the training rows and its derivatives at ``fitted``.
    """

    point: Point
    fitted: Lazy[np.ndarray]
    loss: Lazy[LossDerivatives]

    def __init__(self, autodiff: Autodiff, point: Point, predicted: Callable[[], np.ndarray] | None = None, /) -> None:
        """Store the model and the point; nothing is computed.

        Args:
            autodiff: The model.
            point: Parameters and training rows.
            predicted: Function that returns the predictions on the training rows; None for ``autodiff.predict``.
        """
        self._autodiff = autodiff
        self.point = point
        self.fitted = point.fitted or Lazy(predicted or partial(_predict_training_rows, autodiff, point))
        self.loss = Lazy(partial(_loss_of_training_rows, autodiff, point, self.fitted))

    @property
    def autodiff(self) -> Autodiff:
        """The model to use at nearby points, including settings that this block has determined (step sizes)."""
        return self._autodiff

    @abstractmethod
    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts, and accuracy of its derivatives."""

    # -- gradients of single predictions ------------------------------------------------------
    @abstractmethod
    def row_gradients(self, inputs: Any, /) -> Array:
        """Return the gradient of every output at every input, p-space (m * K, p).

        Rows are ordered by input, then by output.
        """

    def row_factors(self, inputs: Any, /) -> Sequence[tuple[Array, ...]]:
        """Return the rows of ``row_gradients`` split by leaf: one tuple per leaf.

        A leaf is a 1-tuple of its gradients, (m * K, size). Where every gradient of a leaf of shape (a, b) is an outer
        product ``u w'``, a framework may return the pair u (m * K, a), w (m * K, b) instead.
        """
        return leaf_rows(self.row_gradients(inputs), self._autodiff.leaves)

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Indices of the leaves for which ``row_factors`` returns pairs."""
        return frozenset()

    @property
    def rows_are_new(self) -> bool:
        """Whether ``row_gradients`` returns a new NumPy array on every call, which the caller may overwrite."""
        return False

    # -- sums over the training rows ----------------------------------------------------------
    @abstractmethod
    def jvp(self, v: Array, /) -> np.ndarray:
        """Return ``J v`` for each row of v: p-space (k, p) to n-space (k, n, K)."""

    @abstractmethod
    def vjp(self, t: np.ndarray, /) -> Array:
        """Return ``J' t`` for each block of t: n-space (k, n, K) to p-space (k, p)."""

    @abstractmethod
    def product(self, v: Array, curvature: Curvature, /) -> Array:
        """Return ``H v``, or its Gauss-Newton part ``J'CJ v / n``, for each row of v. Weight decay is not included."""

    def gauss_newton(self, v: Array, /) -> Array:
        """Return ``J'CJ v / n`` for each row of v."""
        return self.vjp(self.loss.result.weigh(self.jvp(v))) / self.point.n

    def objective(self) -> float:
        """Return ``L(theta)``; not finite if the model or the loss is not finite in some row."""
        return float(np.mean(self.loss.result.value))

    def gradient(self) -> Array:
        """Return ``grad L(theta)``, p-space (p,)."""
        return self.vjp(self.loss.result.first[None])[0] / self.point.n

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return ``(H - J'CJ/n) v`` in single precision, NumPy in and out; None where that is not faster."""
        del v
        return None

    def diagonal(self) -> Array:
        """Return ``1/n sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,), the diagonal of the Gauss-Newton part.

        Negative second derivatives of the loss are replaced by zero, so that the result can serve as a scale.
        """
        point = self.point
        autodiff = self._autodiff
        weights = np.maximum(self.loss.result.own_curvature, 0.0) / point.n
        xp = array_api_compat.array_namespace(point.theta)
        total = xp.zeros_like(point.theta)
        rows = _BLOCK_BYTES // (8 * self.factor_numbers * weights.shape[1])
        for block in slices(point.n, min(_MAX_BLOCK_ROWS, max(1, rows))):
            w = autodiff.arrays.native(weights[block].reshape(-1))
            leaves = self.row_factors(autodiff.take(point.X, block))
            total = total + xp.concat([_weighted_squares(w, *leaf) for leaf in leaves])
        return total

    @property
    def factor_numbers(self) -> int:
        """Number of floats that ``row_factors`` returns for each output of a row."""
        total = 0
        for number, shape in enumerate(self._autodiff.leaves):
            # An outer product of an (a, b) leaf takes a + b numbers in place of a * b.
            total += sum(shape) if number in self.outer_leaves else int(np.prod(shape))
        return total


def _predict_training_rows(autodiff: Autodiff, point: Point) -> np.ndarray:
    # The result is kept, so it must be float64 even if the first read happens outside of the framework's scope.
    with autodiff.arrays.scope():
        return autodiff.predict(point.theta, point.X)


def _loss_of_training_rows(autodiff: Autodiff, point: Point, fitted: Lazy[np.ndarray]) -> LossDerivatives:
    return autodiff.loss(fitted.result, point.y, point.weights)


def _weighted_squares(weights: Array, *parts: Array) -> Array:
    """Return ``sum_i weights_i g_i^2``, (size,), for the gradients g_i of one leaf.

    Args:
        weights: One per gradient, (rows,).
        parts: The gradients, (rows, size); or the factors u and w of outer products ``u_i w_i'``.
    """
    if len(parts) == 1:
        return weights @ parts[0] ** 2
    u, w = parts
    # (u_a w_b)^2 = u_a^2 w_b^2, so the outer products are never formed.
    return ((weights[:, None] * u**2).T @ w**2).reshape(-1)


def slices(n: int, size: int) -> list[slice]:
    """Return slices that cover n rows in blocks of ``size``; the last block may be smaller."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
