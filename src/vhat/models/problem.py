"""One training problem at one parameter vector: the only seam between a framework and the mathematics.

Shapes, everywhere below:

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
    """What a problem takes over from the one that it was made of.

    Attributes:
        X: Training inputs, in the units of the model.
        y: Training responses, in the units of the model; None where the responses are others.
        fitted: The predictions on these rows; None where the parameters are others.
        block: The other problem's derivatives, of which a framework takes what has not changed.
    """

    X: Any
    y: np.ndarray | None
    fitted: Lazy[np.ndarray] | None
    block: Linearised


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A fitted model and its training data, seen through derivatives.

    Predictions, responses and their derivatives are in the units of the user. With a ``scaling`` the model itself sees
    standardised data; the objective, as a function of the parameters, is the same in both (:mod:`vhat.models.scaling`).

    Attributes:
        autodiff: The model as a function of its parameters.
        theta: The fitted parameters, p-space (p,).
        decay: The diagonal lam, p-space (p,).
        X: The checked training inputs: what ``take``, ``predict`` and ``gradients`` accept.
        targets: The responses, (n, K).
        weights: The weights of the training rows, (n,).
        memory: The budget in bytes.
        scaling: From the user's units to those of the model; None where both are the same.
        shift: What the penalty's gradient ``decay * theta - shift`` is reduced by, p-space (p,); None is zero.
        source: The files that hold the training rows, in their order, where X was read from them whole.
        linearised: The model's derivatives here, in its own units.
        n: How many training rows there are.
        outputs: How many outputs the model has, K.
        p: How many parameters were trained.
        squeeze: Whether the model returns ``(n,)``: results then have no output axis.
        linear: Whether the predictions are an affine function of the parameters, by the structure of the model.
        scope: Returns the framework state (float64, no gradient tape) in which p-space arithmetic must run.
        native: Brings a NumPy array to p-space.
        numpy: Brings a p-space array to NumPy.
        reuse: What is taken over from another problem.
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
        """Note the sizes and prepare the derivatives; none is computed yet."""
        n, outputs = self.targets.shape
        known: dict[str, Any] = {"n": n, "outputs": outputs, "p": int(self.theta.shape[0])}
        known |= {"squeeze": self.autodiff.squeeze, "linear": self.autodiff.linear}
        arrays = self.autodiff.arrays
        known |= {"scope": arrays.scope, "native": arrays.native, "numpy": arrays.numpy}
        for name, value in known.items():
            object.__setattr__(self, name, value)
        y = None if reuse is None else reuse.y
        point = Point(
            self.theta,
            self.decay,
            self._standardised(self.X) if reuse is None else reuse.X,
            self._responses(self.targets) if y is None else y,
            self.weights,
            self.memory,
            None if reuse is None else reuse.fitted,
        )
        block = self.autodiff.linearise(point, None if reuse is None else reuse.block)
        object.__setattr__(self, "linearised", block)

    def __repr__(self) -> str:
        """Say the sizes."""
        return f"Problem({self.autodiff.framework}, n={self.n}, outputs={self.outputs}, p={self.p})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle what the problem was made of, not what was computed.

        Arrays of the framework travel as NumPy: read outside its scope, they could lose half of their digits.
        """
        made_of = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        native = {name: None if made_of[name] is None else self.numpy(made_of[name]) for name in _NATIVE}
        return _restored, (made_of | native,)

    # -- names -----------------------------------------------------------------------------
    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the user's arrays, in the order in which they fill the flat vector."""
        return self.autodiff.leaves

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """The names of the columns of X, where they are known."""
        if self.scaling is not None:
            return self.scaling.columns
        return column_names(self.X) or self.autodiff.columns

    # -- the same problem elsewhere ------------------------------------------------------------
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
        """Return the same problem under another decay, p-space (p,)."""
        here = self.linearised
        reuse = _Reuse(here.point.X, here.point.y, here.fitted, here)
        return replace(self, decay=self.native(decay), reuse=reuse)

    def read_from(self, source: Rows) -> Problem:
        """Return the same problem, which knows the files that its training rows were read from."""
        here = self.linearised
        return replace(self, source=source, reuse=_Reuse(here.point.X, here.point.y, here.fitted, here))

    def rows(self, index: np.ndarray) -> Problem:
        """Return the problem of some training rows alone, with ``L`` the mean over these."""
        here = self.linearised
        standardised = self.autodiff.take(here.point.X, index)
        return replace(
            self,
            autodiff=here.autodiff,
            X=standardised if self.scaling is None else self.X[index],
            targets=self.targets[index],
            weights=self.weights[index],
            source=None,
            reuse=_Reuse(standardised, None, _some(here.fitted, index), here),
        )

    def in_model_units(self) -> Problem:
        """Return the problem on the data that the model itself sees."""
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
        found = self.linearised.fitted.result
        return found if self.scaling is None else self.scaling.predictions(found)

    @cached_property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss and its derivatives on the training rows."""
        own = self.linearised.loss.result
        return own if self.scaling is None else own.in_unit(self.scaling.unit)

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts, accuracy of its derivatives."""
        return self.linearised.facts()

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Value and gradient of ``q(params)`` at the fitted parameters."""
        found = self.autodiff.functional(self.theta, q)
        # The unit of a standardised model's parameters is taken from the responses: none is linear in them.
        return found if self.scaling is None else replace(found, affine=False)

    # -- test points -----------------------------------------------------------------------
    def inputs(self, x: Any) -> Any:
        """Check test inputs (shape, finite, width), or those of a torch DataLoader; they stay in the user's units.

        Raises:
            InputError: In a sentence that names the rows or the width.
        """
        return self.check(read_inputs(self, x))

    def check(self, x: Any) -> Any:
        """Check test inputs that came from no DataLoader, or have been read from one."""
        return self.autodiff.check(x, self.X) if self.scaling is None else self.scaling.check(x, self.X)

    def count(self, inputs: Any) -> int:
        """Return how many rows checked inputs hold."""
        return self.autodiff.count(inputs) if self.scaling is None else len(inputs)

    def take(self, inputs: Any, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` of checked inputs."""
        if self.scaling is not None:
            return inputs[start:stop]
        return self.autodiff.take(inputs, slice(start, stop))

    def predict(self, inputs: Any) -> np.ndarray:
        """Predictions at checked inputs, (m, K).

        Raises:
            ModelError: Naming the rows where they are not finite.
        """
        found = self.autodiff.predict(self.theta, self._standardised(inputs))
        check_finite("the model's prediction at x", found, ModelError)
        return found if self.scaling is None else self.scaling.predictions(found)

    def own_noise(self, inputs: Any) -> np.ndarray | None:
        """Standard deviation of a response at checked inputs as the model itself predicts it, (m, K).

        None for a model that predicts none. A framework whose models may have a variance head offers ``own_noise``.
        """
        own = getattr(self.autodiff, "own_noise", None)
        found: np.ndarray | None = None if own is None else own(self._standardised(inputs))
        return found if found is None or self.scaling is None else found * self.scaling.unit

    def gradients(self, inputs: Any) -> Array:
        """Rows ``grad f_o(x)``, p-space (m * K, p): the outputs of one input stand together."""
        found = self.linearised.row_gradients(self._standardised(inputs))
        if self.scaling is None:
            return found
        unit = self._units(self.count(inputs))
        if self.linearised.rows_are_new:
            found *= unit  # the same numbers, without a second array of their size
            return found
        return found * unit

    def factors(self, inputs: Any) -> Sequence[tuple[Array, ...]]:
        """The same rows leaf by leaf, (m * K, size) each.

        A front end that knows a matrix of parameters (a, b) to have gradients ``u (x) w`` gives the pair u (m * K, a),
        w (m * K, b) in place of them.
        """
        found = self.linearised.row_factors(self._standardised(inputs))
        if self.scaling is None:
            return found
        unit = self._units(self.count(inputs))
        return [(leaf[0] * unit, *leaf[1:]) for leaf in found]

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves for which ``factors`` gives pairs."""
        return self.linearised.outer_leaves

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``factors`` gives for each output of a row."""
        return self.linearised.factor_numbers

    # -- derivatives over the training rows ----------------------------------------------------
    def objective(self) -> float:
        """``L(theta)``, without the penalty."""
        return self.linearised.objective()

    def gradient(self) -> Array:
        """``grad L(theta)``, without the penalty, p-space (p,)."""
        return self.linearised.gradient()

    def penalty(self) -> float:
        """``1/2 sum_j decay_j theta_j^2 - shift'theta``."""
        half = 0.5 * float((self.decay * self.theta * self.theta).sum())
        return half if self.shift is None else half - float((self.shift * self.theta).sum())

    def penalty_gradient(self) -> Array:
        """The gradient of the penalty, ``decay * theta - shift``, p-space (p,)."""
        pull = self.decay * self.theta
        return pull if self.shift is None else pull - self.shift

    def product(self, v: Array, curvature: Curvature) -> Array:
        """``H v`` (or its Gauss-Newton part ``J'CJ v / n``) for each row of v, without decay: (k, p) to (k, p)."""
        return self.linearised.product(v, curvature)

    def residual_product(self, v: np.ndarray, /) -> np.ndarray | None:
        """``(H - J'CJ/n) v``, the residuals' share of the curvature, for each row of v, (k, p), in single precision.

        NumPy in, NumPy out. None where the framework has nothing faster than ``product`` to offer.
        """
        return self.linearised.residual_product32(v)

    def diagonal(self) -> Array:
        """``1/n sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,): the scale of the Gauss-Newton part."""
        return self.linearised.diagonal()

    def jvp(self, v: Array) -> np.ndarray:
        """``J v`` for each row of v: p-space (k, p) to n-space (k, n, K)."""
        found = self.linearised.jvp(v)
        return found if self.scaling is None else found * self.scaling.unit

    def vjp(self, t: np.ndarray) -> Array:
        """``J' t`` for each block of t: n-space (k, n, K) to p-space (k, p)."""
        return self.linearised.vjp(t if self.scaling is None else t * self.scaling.unit)

    # -- units -----------------------------------------------------------------------------
    def _standardised(self, inputs: Any) -> Any:
        """Bring checked inputs to the units of the model."""
        if self.scaling is None:
            return inputs
        rows = self.scaling.inputs(inputs)
        return self.autodiff.check(rows, rows)

    def _responses(self, y: np.ndarray) -> np.ndarray:
        return y if self.scaling is None else self.scaling.responses(y)

    def _units(self, rows: int) -> Array:
        """The unit of each (row, output) pair, p-space (rows * K, 1)."""
        assert self.scaling is not None
        return self.native(np.tile(self.scaling.unit, rows))[:, None]

    # -- arrays ----------------------------------------------------------------------------
    def padded(self, k: int) -> int:
        """The width to which a block of k rows is padded, so that few shapes are ever compiled."""
        return self.autodiff.arrays.width(k)

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a pure function of p-space arrays, where the framework can."""
        return self.autodiff.arrays.compiled(step)


_NATIVE = ("theta", "decay", "shift")
"""The fields that are arrays of the framework."""


def _restored(made_of: dict[str, Any]) -> Problem:
    """Make a problem again from what it was pickled as."""
    arrays = made_of["autodiff"].arrays
    with arrays.scope():
        native = {name: None if made_of[name] is None else arrays.native(made_of[name]) for name in _NATIVE}
    return Problem(**(made_of | native))


def _some(fitted: Lazy[np.ndarray], index: np.ndarray) -> Lazy[np.ndarray]:
    """Return the predictions of some rows, computed with those of all of them."""
    return Lazy(lambda: fitted.result[index])
