"""What a framework must offer, so that :class:`vhat.models.problem.Problem` can do the rest.

Three protocols, from the smallest to the largest:

- :class:`Arrays` makes and reads the framework's arrays;
- :class:`Autodiff` is one user's model as a function of its parameters: immutable, and it can be pickled;
- :class:`Linearised` has the derivatives at one parameter vector over one set of training rows. It owns whatever is
  expensive to make: chunks of rows on a device, recorded tapes, a Jacobian.

Shapes: ``n`` training rows, ``m`` test rows, ``K`` outputs, ``p`` parameters, ``k`` right-hand sides. *p-space* arrays
are the framework's own, float64, blocks of rows (k, p). *n-space* arrays are NumPy float64, (n, K) or (k, n, K).

To add a framework: write these three, and a function that checks what a user gives and returns a ``Problem``.
``tests/models/stranger.py`` is an example of a page each.
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
"""Per-row gradients are made in blocks of this size: fresh memory costs more than the arithmetic."""
_MOST_ROWS = 512
"""Rows of one such block at most, however few numbers each of them has."""


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


class Lazy(Generic[T]):
    """A value that is computed once, when it is first read.

    Two linearised blocks that agree in what the value depends on hold the same object: whichever asks first computes
    it for both. The function that computes it is dropped afterwards, with all that it refers to.

    Examples:
        >>> total = Lazy(lambda: sum(range(4)))
        >>> total.known
        False
        >>> total.result, total.known
        (6, True)
    """

    result: T
    """The value: an attribute like any other once it has been computed."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute

    @property
    def known(self) -> bool:
        """Whether the value has been computed."""
        return self._compute is None

    def __getattr__(self, name: str) -> T:
        """Compute the value: Python comes here where ``result`` is no attribute yet."""
        if name != "result":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        compute = self._compute
        if compute is not None:  # else another thread has just computed it
            self.result = compute()
            self._compute = None
        return self.result


@dataclass(frozen=True, eq=False)
class Point:
    """Where a model is linearised: parameters and training rows, in the units of the model.

    Attributes:
        theta: The parameters, p-space (p,).
        decay: The diagonal lam, p-space (p,).
        X: Checked training inputs.
        y: Responses, (n, K).
        weights: One a row, (n,).
        memory: Budget in bytes.
        fitted: The predictions at ``theta`` on ``X``, where another block has them or will have them.
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
        """How many training rows there are."""
        return len(self.y)

    def shared(self, before: Block | None, *names: str) -> Block | None:
        """Return an earlier block if it was made with the very same objects under these names, else None."""
        if before is None:
            return None
        same = all(getattr(before.point, name) is getattr(self, name) for name in names)
        return before if same else None


class Arrays(Protocol):
    """How arrays of a framework are made and read, and the state in which they are computed with."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the framework's state (float64, no gradient tape) in which p-space arithmetic must run."""

    def native(self, a: Any, /) -> Array:
        """Copy an array of NumPy or of the framework to p-space, float64."""

    def numpy(self, a: Any, /) -> np.ndarray:
        """Bring a p-space array to NumPy, float64."""

    def width(self, k: int, /) -> int:
        """Return the width to which a block of k rows is padded; k itself where no shape is compiled."""

    def compiled(self, step: Callable[..., Any], /) -> Callable[..., Any]:
        """Compile a pure function of p-space arrays; return it as it is where the framework cannot."""


class Autodiff(Protocol):
    """A user's model and loss as functions of a flat parameter vector. Immutable; can be pickled."""

    @property
    def framework(self) -> str:
        """The name of the framework, under which models are saved."""

    @property
    def arrays(self) -> Arrays:
        """The framework's arrays."""

    @property
    def squeeze(self) -> bool:
        """Whether the model returns ``(n,)``: results then have no output axis."""

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of the parameters.

        By the structure of the model and not by a probe at one point: False where that is not proved.
        """

    @property
    def kinks(self) -> KinkedOperations:
        """The kinked operations (ReLU, abs, max) that act on the parameters, as far as the structure shows them."""

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the user's arrays, in the order in which they fill the flat vector."""

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """The names of the columns, where the training inputs were one table with names."""

    # -- inputs ----------------------------------------------------------------------------
    def check(self, x: Any, X: Any, /) -> Any:
        """Check test inputs against the checked training inputs X (shape, finite, width).

        Raises:
            InputError: In a sentence that names the rows or the width.
        """

    def count(self, inputs: Any, /) -> int:
        """Return how many rows checked inputs hold."""

    def take(self, inputs: Any, index: Any, /) -> Any:
        """Return some rows of checked inputs: those of a slice, or of an array of row numbers."""

    # -- values ----------------------------------------------------------------------------
    def predict(self, theta: Array, inputs: Any, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K), finite or not."""

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives, f and y of shape (n, K)."""

    def params(self, theta: Array, /) -> Any:
        """Return the parameters in the user's own structure."""

    def functional(self, theta: Array, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(params)``."""

    # -- derivatives -----------------------------------------------------------------------
    def linearise(self, point: Point, before: Linearised | None, /) -> Linearised:
        """Return the derivatives at a point; nothing expensive is done before one of them is asked for.

        Args:
            point: Parameters and training rows.
            before: A block of this model at another point. Whatever depends only on what both points have in common
                (``point.shared``) can be taken over from it.
        """


class Linearised(ABC):
    """Derivatives of a model at one point, over its training rows.

    A framework has to write ``facts``, ``row_gradients``, ``jvp``, ``vjp`` and ``product``. All else is derived from
    these, and may be replaced by something faster.

    Attributes:
        point: Parameters and training rows.
        fitted: The predictions on the training rows, (n, K).
        loss: The loss and its derivatives there.
    """

    point: Point
    fitted: Lazy[np.ndarray]
    loss: Lazy[LossDerivatives]

    def __init__(self, autodiff: Autodiff, point: Point, predicted: Callable[[], np.ndarray] | None = None, /) -> None:
        """Note the model and the point.

        Args:
            autodiff: The model.
            point: Parameters and training rows.
            predicted: What returns the predictions on the training rows; by default ``autodiff.predict``.
        """
        self._autodiff, self.point = autodiff, point
        self.fitted = point.fitted or Lazy(predicted or partial(_predicted, autodiff, point))
        self.loss = Lazy(partial(_loss, autodiff, point, self.fitted))

    @property
    def autodiff(self) -> Autodiff:
        """The model for points nearby, with whatever this block has learned of it."""
        return self._autodiff

    @abstractmethod
    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts, and how accurate its derivatives are."""

    # -- gradients of single predictions ------------------------------------------------------
    @abstractmethod
    def row_gradients(self, inputs: Any, /) -> Array:
        """Return rows ``grad f_o(x)``, p-space (m * K, p): the outputs of one input stand together."""

    def row_factors(self, inputs: Any, /) -> Sequence[tuple[Array, ...]]:
        """Return the same rows leaf by leaf, (m * K, size) each.

        A framework that knows a matrix of parameters (a, b) to have gradients ``u (x) w`` gives the pair u (m * K, a),
        w (m * K, b) in place of them.
        """
        return leaf_rows(self.row_gradients(inputs), self._autodiff.leaves)

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves for which ``row_factors`` gives pairs."""
        return frozenset()

    @property
    def rows_are_new(self) -> bool:
        """Whether ``row_gradients`` gives a NumPy array that nobody else holds: its caller may write to it."""
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
        """Return ``H v``, or its Gauss-Newton part ``J'CJ v / n``, for each row of v, without decay."""

    def gauss_newton(self, v: Array, /) -> Array:
        """Return ``J'CJ v / n`` for each row of v."""
        return self.vjp(self.loss.result.weigh(self.jvp(v))) / self.point.n

    def objective(self) -> float:
        """Return ``L(theta)``, not finite where model or loss are not."""
        return float(np.mean(self.loss.result.value))

    def gradient(self) -> Array:
        """Return ``grad L(theta)``, p-space (p,)."""
        return self.vjp(self.loss.result.first[None])[0] / self.point.n

    def residual_product32(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return ``(H - J'CJ/n) v`` in single precision, NumPy in and out, where that is faster; else None."""
        del v
        return None

    def diagonal(self) -> Array:
        """Return ``1/n sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,): the scale of the Gauss-Newton part."""
        point, autodiff = self.point, self._autodiff
        weights = np.maximum(self.loss.result.own_curvature, 0.0) / point.n
        xp = array_api_compat.array_namespace(point.theta)
        total = xp.zeros_like(point.theta)
        rows = _BLOCK_BYTES // (8 * self.factor_numbers * weights.shape[1])
        for block in slices(point.n, min(_MOST_ROWS, max(1, rows))):
            w = autodiff.arrays.native(weights[block].reshape(-1))
            leaves = self.row_factors(autodiff.take(point.X, block))
            total = total + xp.concat([_weighted_squares(w, *leaf) for leaf in leaves])
        return total

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``row_factors`` gives for each output of a row."""
        outer, shapes = self.outer_leaves, enumerate(self._autodiff.leaves)
        return sum(sum(shape) if number in outer else int(np.prod(shape)) for number, shape in shapes)


def _predicted(autodiff: Autodiff, point: Point) -> np.ndarray:
    with autodiff.arrays.scope():  # what is kept must be double, whoever asks first
        return autodiff.predict(point.theta, point.X)


def _loss(autodiff: Autodiff, point: Point, fitted: Lazy[np.ndarray]) -> LossDerivatives:
    return autodiff.loss(fitted.result, point.y, point.weights)


def _weighted_squares(weights: Array, *parts: Array) -> Array:
    """Sum the squares of rows, or of the outer products of two, (size,)."""
    if len(parts) == 1:
        return weights @ parts[0] ** 2
    u, w = parts
    return ((weights[:, None] * u**2).T @ w**2).reshape(-1)


def slices(n: int, size: int) -> list[slice]:
    """Cut n rows into blocks of ``size``."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
