"""One training problem at one parameter vector: the only interface between a framework and the mathematics.

Shapes in this module:

- ``n`` training rows, ``K`` outputs, ``p`` parameters, ``k`` right-hand sides;
- *p-space* arrays are the framework's own, float64, blocks of rows ``(k, p)``;
- *n-space* arrays are NumPy float64, ``(k, n, K)`` or ``(n, K)``.

The objective is ``L(theta) + 1/2 sum_j decay_j theta_j^2 - shift'theta`` with ``L = 1/n sum_i w_i l(f(x_i), y_i)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from vhat.checks import check_finite, column_names
from vhat.errors import ModelError
from vhat.models.leaves import leaf_rows, leaf_slices
from vhat.models.loaders import read_inputs
from vhat.models.loss import LossDerivatives
from vhat.models.protocols import Array, Autodiff, Curvature, Functional, Lazy, Linearised, ModelFacts, Point
from vhat.models.scaling import Scaling
from vhat.tables.rows import Rows

__all__ = [
    "Array",
    "Curvature",
    "Functional",
    "LossDerivatives",
    "ModelFacts",
    "Problem",
    "leaf_rows",
    "leaf_slices",
]


class _Reuse(NamedTuple):
    """Results that a new problem reuses from the problem it was derived from.

    Attributes:
        X: Training inputs, in the units of the model.
        y: Training responses, in the units of the model; None if the new problem has other responses.
        fitted: The predictions on these rows; None if the new problem has other parameters.
        block: The derivatives of the earlier problem. The framework reuses the parts that are unchanged.
    """

    X: Any
    y: np.ndarray | None
    fitted: Lazy[np.ndarray] | None
    block: Linearised


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A fitted model, its training data and its derivatives.

    Predictions, responses and their derivatives are in the user's units. With a ``scaling`` the model itself takes
    standardised data. The objective as a function of the parameters is the same in both units
    (:mod:`vhat.models.scaling`).

    Attributes:
        autodiff: The model as a function of its parameters.
        theta: The fitted parameters, p-space (p,).
        decay: The diagonal of the penalty's Hessian, lam, p-space (p,).
        X: The checked training inputs, in the form that ``take``, ``predict`` and ``gradients`` accept.
        targets: The responses, (n, K).
        weights: The weights of the training rows, (n,).
        memory: The memory budget in bytes.
        scaling: Conversion from the user's units to those of the model; None where both are the same.
        shift: Linear term of the penalty, whose gradient is ``decay * theta - shift``, p-space (p,); None is zero.
        source: The files from which all of X was read, with the training rows in the same order; else None.
        linearised: The model's derivatives at ``theta``, in the units of the model.
        n: Number of training rows.
        outputs: Number of outputs of the model, K.
        p: Number of trained parameters.
        squeeze: Whether the model returns ``(n,)``: results then have no output axis.
        linear: Whether the structure of the model proves its predictions affine in the parameters.
        scope: Returns the framework state (float64, no gradient tape) in which p-space arithmetic must run.
        native: Converts a NumPy array to p-space.
        numpy: Converts a p-space array to NumPy.
        reuse: Results of another problem to reuse.
    """

    autodiff: Autodiff
    theta: Array
    decay: Array
    X: Any
    targets: np.ndarray
    weights: np.ndarray
    memory: int
    scaling: Scaling | None = None
    shift: Array | None = None
    source: Rows | None = None
    linearised: Linearised = field(init=False)
    n: int = field(init=False)
    outputs: int = field(init=False)
    p: int = field(init=False)
    squeeze: bool = field(init=False)
    linear: bool = field(init=False)
    scope: Callable[[], AbstractContextManager[Any]] = field(init=False)
    native: Callable[[Any], Array] = field(init=False)
    numpy: Callable[[Any], np.ndarray] = field(init=False)
    reuse: InitVar[_Reuse | None] = None

    def __post_init__(self, reuse: _Reuse | None) -> None:
        """Set the sizes and prepare the derivatives; no derivative is computed yet."""
        n, outputs = self.targets.shape
        arrays = self.autodiff.arrays
        derived: dict[str, Any] = {
            "n": n,
            "outputs": outputs,
            "p": int(self.theta.shape[0]),
            "squeeze": self.autodiff.squeeze,
            "linear": self.autodiff.linear,
            "scope": arrays.scope,
            "native": arrays.native,
            "numpy": arrays.numpy,
        }
        for name, value in derived.items():  # the dataclass is frozen
            object.__setattr__(self, name, value)
        if reuse is None:
            X = self._standardised(self.X)
            y = self._responses(self.targets)
            point = Point(self.theta, self.decay, X, y, self.weights, self.memory)
            block = self.autodiff.linearise(point, None)
        else:
            # The framework reuses results by identity of these arrays, so they are passed on without a copy.
            y = self._responses(self.targets) if reuse.y is None else reuse.y
            point = Point(self.theta, self.decay, reuse.X, y, self.weights, self.memory, reuse.fitted)
            block = self.autodiff.linearise(point, reuse.block)
        object.__setattr__(self, "linearised", block)

    def __repr__(self) -> str:
        """Return the framework and the sizes."""
        return f"Problem({self.autodiff.framework}, n={self.n}, outputs={self.outputs}, p={self.p})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the fields that the problem was created from, without computed results.

        Arrays of the framework are stored as NumPy arrays: JAX would read them as float32 outside of its scope.
        """
        state = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        for name in _NATIVE_FIELDS:
            if state[name] is not None:
                state[name] = self.numpy(state[name])
        return _unpickle, (state,)

    # -- names -----------------------------------------------------------------------------
    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the user's arrays, in the order in which they fill the flat vector."""
        return self.autodiff.leaves

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Column names of X, where they are known; else None."""
        if self.scaling is not None:
            return self.scaling.columns
        return column_names(self.X) or self.autodiff.columns

    # -- problems derived from this one ----------------------------------------------------------
    def at(self, theta: Array) -> Problem:
        """Return the same problem at other parameters."""
        here = self.linearised
        reuse = _Reuse(here.point.X, here.point.y, None, here)
        return replace(self, autodiff=here.autodiff, theta=self.native(theta), reuse=reuse)

    def with_targets(self, y: np.ndarray) -> Problem:
        """Return the same problem with other responses, (n, K)."""
        here = self.linearised
        targets = np.array(y, dtype=np.float64).reshape(self.targets.shape)
        return replace(self, targets=targets, reuse=_Reuse(here.point.X, None, here.fitted, here))

    def with_decay(self, decay: Array) -> Problem:
        """Return the same problem with another weight decay, p-space (p,)."""
        here = self.linearised
        reuse = _Reuse(here.point.X, here.point.y, here.fitted, here)
        return replace(self, decay=self.native(decay), reuse=reuse)

    def read_from(self, source: Rows) -> Problem:
        """Return the same problem with ``source`` set to the files that its training rows were read from."""
        here = self.linearised
        return replace(self, source=source, reuse=_Reuse(here.point.X, here.point.y, here.fitted, here))

    def rows(self, index: np.ndarray) -> Problem:
        """Return the problem restricted to some training rows; its ``L`` is the mean over these."""
        here = self.linearised
        standardised = self.autodiff.take(here.point.X, index)
        return replace(
            self,
            autodiff=here.autodiff,
            X=standardised if self.scaling is None else self.X[index],
            targets=self.targets[index],
            weights=self.weights[index],
            source=None,
            reuse=_Reuse(standardised, None, _selected(here.fitted, index), here),
        )

    def in_model_units(self) -> Problem:
        """Return the problem on the standardised data, without a scaling."""
        here = self.linearised
        point = here.point
        reuse = _Reuse(point.X, point.y, here.fitted, here)
        return replace(self, X=point.X, targets=point.y, scaling=None, reuse=reuse)

    # -- the fitted model ------------------------------------------------------------------
    @property
    def params(self) -> Any:
        """The parameters in the user's own structure."""
        return self.autodiff.params(self.theta)

    @property
    def fitted_values(self) -> np.ndarray:
        """Predictions on the training rows, (n, K)."""
        fitted = self.linearised.fitted.result
        return fitted if self.scaling is None else self.scaling.predictions(fitted)

    @cached_property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss and its derivatives on the training rows."""
        derivatives = self.linearised.loss.result
        return derivatives if self.scaling is None else derivatives.in_unit(self.scaling.unit)

    def refuse_changed(self) -> None:
        """Raise if the model's predictions have changed since it was given.

        A framework whose models can be changed by the user implements ``refuse_changed``. There is no check for others.

        Raises:
            ModelError: With the size of the change.
        """
        check = getattr(self.autodiff, "refuse_changed", None)
        if check is not None:
            check()

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts, accuracy of its derivatives."""
        return self.linearised.facts()

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Return value and gradient of ``q(params)`` at the fitted parameters."""
        functional = self.autodiff.functional(self.theta, q)
        if self.scaling is None:
            return functional
        # The unit of a standardised model's parameters is estimated from the responses, so that no functional of
        # these parameters is linear in the responses.
        return replace(functional, affine=False)

    # -- test points -----------------------------------------------------------------------
    def inputs(self, x: Any) -> Any:
        """Check test inputs (shape, finite values, width), read from a DataLoader if given as one.

        The result stays in the user's units.

        Raises:
            InputError: Naming the rows or the width.
        """
        return self.check(read_inputs(self, x))

    def check(self, x: Any) -> Any:
        """Check test inputs that are not a DataLoader."""
        if self.scaling is not None:
            return self.scaling.check(x, self.X)
        return self.autodiff.check(x, self.X)

    def count(self, inputs: Any) -> int:
        """Return the number of rows in checked inputs."""
        return len(inputs) if self.scaling is not None else self.autodiff.count(inputs)

    def take(self, inputs: Any, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` of checked inputs."""
        if self.scaling is not None:
            return inputs[start:stop]
        return self.autodiff.take(inputs, slice(start, stop))

    def predict(self, inputs: Any) -> np.ndarray:
        """Return predictions at checked inputs, (m, K).

        Raises:
            ModelError: Naming the rows where they are not finite.
        """
        predictions = self.autodiff.predict(self.theta, self._standardised(inputs))
        check_finite("the model's prediction at x", predictions, ModelError)
        return predictions if self.scaling is None else self.scaling.predictions(predictions)

    def own_noise(self, inputs: Any) -> np.ndarray | None:
        """Return the standard deviation of a response that the model itself predicts, at checked inputs, (m, K).

        None for a model that predicts none. A framework whose models may have a variance head implements ``own_noise``.
        """
        predict_noise = getattr(self.autodiff, "own_noise", None)
        if predict_noise is None:
            return None
        noise: np.ndarray | None = predict_noise(self._standardised(inputs))
        if noise is None or self.scaling is None:
            return noise
        return noise * self.scaling.unit

    def gradients(self, inputs: Any) -> Array:
        """Return the gradient of every output at every input, p-space (m * K, p).

        Rows are ordered by input, then by output.
        """
        rows = self.linearised.row_gradients(self._standardised(inputs))
        if self.scaling is None:
            return rows
        unit = self._units(self.count(inputs))
        if self.linearised.rows_are_new:
            rows *= unit  # in place: the same numbers without a second array of this size
            return rows
        return rows * unit

    def factors(self, inputs: Any) -> Sequence[tuple[Array, ...]]:
        """Return the rows of ``gradients`` split by leaf: one tuple per leaf.

        A leaf is a 1-tuple of its gradients, (m * K, size). Where every gradient of a leaf of shape (a, b) is an outer
        product ``u w'``, a framework may return the pair u (m * K, a), w (m * K, b) instead.
        """
        factors = self.linearised.row_factors(self._standardised(inputs))
        if self.scaling is None:
            return factors
        unit = self._units(self.count(inputs))
        # Scaling the first factor scales the outer product.
        return [(leaf[0] * unit, *leaf[1:]) for leaf in factors]

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Indices of the leaves for which ``factors`` returns pairs."""
        return self.linearised.outer_leaves

    @property
    def factor_numbers(self) -> int:
        """Number of floats that ``factors`` returns for each output of a row."""
        return self.linearised.factor_numbers

    # -- derivatives over the training rows ----------------------------------------------------
    def objective(self) -> float:
        """Return ``L(theta)``, without the penalty."""
        return self.linearised.objective()

    def gradient(self) -> Array:
        """Return ``grad L(theta)``, without the penalty, p-space (p,)."""
        return self.linearised.gradient()

    def penalty(self) -> float:
        """Return ``1/2 sum_j decay_j theta_j^2 - shift'theta``."""
        quadratic = 0.5 * float((self.decay * self.theta * self.theta).sum())
        return quadratic if self.shift is None else quadratic - float((self.shift * self.theta).sum())

    def penalty_gradient(self) -> Array:
        """Return the gradient of the penalty, ``decay * theta - shift``, p-space (p,)."""
        gradient = self.decay * self.theta
        return gradient if self.shift is None else gradient - self.shift

    def product(self, v: Array, curvature: Curvature) -> Array:
        """Return ``H v``, or its Gauss-Newton part ``J'CJ v / n``, for each row of v: (k, p) to (k, p), no decay."""
        return self.linearised.product(v, curvature)

    def residual_product(self, v: np.ndarray, /) -> np.ndarray | None:
        """Return ``(H - J'CJ/n) v``, the residual part of the curvature, for each row of v, (k, p), in float32.

        NumPy in, NumPy out. None where the framework has nothing faster than ``product``.
        """
        return self.linearised.residual_product32(v)

    def diagonal(self) -> Array:
        """Return ``1/n sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,), the diagonal of the Gauss-Newton part."""
        return self.linearised.diagonal()

    def jvp(self, v: Array) -> np.ndarray:
        """Return ``J v`` for each row of v: p-space (k, p) to n-space (k, n, K)."""
        image = self.linearised.jvp(v)
        return image if self.scaling is None else image * self.scaling.unit

    def vjp(self, t: np.ndarray) -> Array:
        """Return ``J' t`` for each block of t: n-space (k, n, K) to p-space (k, p)."""
        return self.linearised.vjp(t if self.scaling is None else t * self.scaling.unit)

    # -- units -----------------------------------------------------------------------------
    def _standardised(self, inputs: Any) -> Any:
        """Convert checked inputs to the units of the model."""
        if self.scaling is None:
            return inputs
        rows = self.scaling.inputs(inputs)
        return self.autodiff.check(rows, rows)

    def _responses(self, y: np.ndarray) -> np.ndarray:
        """Convert responses to the units of the model."""
        return y if self.scaling is None else self.scaling.responses(y)

    def _units(self, rows: int) -> Array:
        """Return the unit of each (row, output) pair, p-space (rows * K, 1)."""
        assert self.scaling is not None
        return self.native(np.tile(self.scaling.unit, rows))[:, None]

    # -- arrays ----------------------------------------------------------------------------
    def padded(self, k: int) -> int:
        """Return the number of rows to which a block of k rows is padded, so that few shapes are compiled."""
        return self.autodiff.arrays.width(k)

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a pure function of p-space arrays, where the framework has a compiler."""
        return self.autodiff.arrays.compiled(step)


_NATIVE_FIELDS = ("theta", "decay", "shift")
"""Fields that are arrays of the framework."""


def _unpickle(state: dict[str, Any]) -> Problem:
    """Create a problem from the state returned by ``Problem.__reduce__``."""
    arrays = state["autodiff"].arrays
    native = {}
    with arrays.scope():
        for name in _NATIVE_FIELDS:
            if state[name] is not None:
                native[name] = arrays.native(state[name])
    return Problem(**(state | native))


def _selected(fitted: Lazy[np.ndarray], index: np.ndarray) -> Lazy[np.ndarray]:
    """Return the predictions of some rows. The first read computes the predictions of all rows."""
    return Lazy(lambda: fitted.result[index])
