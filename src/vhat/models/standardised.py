"""A model that was fitted to standardised data, in the units of the user.

The network sees ``z = (x - center) / spread`` and learns ``t = (y - shift) / unit``. The user asks at x and wants an
answer in the unit of y: ``f_user(x) = shift + unit f(z)``. As a function of the parameters, the objective is the same,

    1/n sum_i w_i |(f_user(x_i) - y_i) / unit|^2 / 2  +  lam/2 |theta|^2,

so gradients, curvature, decay and minimum are those of the standardised problem; only what belongs to predictions and
responses changes its unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from vhat.checks import as_numbers, column_names, match_columns
from vhat.errors import InputError
from vhat.models.problem import Array, Curvature, Functional, LossDerivatives, ModelFacts, Problem
from vhat.tables import validate

__all__ = ["Scaling", "StandardisedProblem"]


@dataclass(frozen=True, eq=False)
class Scaling:
    """How inputs and responses are standardised.

    Attributes:
        kept: The columns that the model sees, as indices.
        center: Their means.
        spread: Their standard deviations.
        shift: The mean of each response, (K,).
        unit: The standard deviation of each response, (K,).
    """

    kept: np.ndarray
    center: np.ndarray
    spread: np.ndarray
    shift: np.ndarray
    unit: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray, kept: np.ndarray) -> Scaling:
        """Measure means and standard deviations over weighted rows."""
        moments = [_moments(column, weights) for column in X[:, kept].T]
        responses = [_moments(column, weights) for column in y.reshape(len(y), -1).T]
        center, spread = (np.array(part) for part in zip(*moments, strict=True))
        shift, unit = (np.array(part) for part in zip(*responses, strict=True))
        return cls(kept, center, spread, shift, unit)

    def inputs(self, X: np.ndarray) -> np.ndarray:
        """Standardise inputs, (m, d) to (m, kept)."""
        standardised: np.ndarray = (X[:, self.kept] - self.center) / self.spread
        return standardised

    def constants(self, X: np.ndarray) -> dict[int, float]:
        """Columns that do not vary in the training inputs X, by number, and their value: the model leaves them out."""
        return {int(at): float(X[0, at]) for at in np.setdiff1d(np.arange(X.shape[1]), self.kept)}

    def responses(self, y: np.ndarray) -> np.ndarray:
        """Standardise responses, (n,) or (n, K)."""
        shift, unit = (self.shift[0], self.unit[0]) if y.ndim == 1 else (self.shift, self.unit)
        standardised: np.ndarray = (y - shift) / unit
        return standardised


def _moments(column: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation; taken of numbers of order one, so that no square overflows."""
    size = float(np.abs(column).max())
    scaled = column / size
    mean = float(np.average(scaled, weights=weights))
    return size * mean, size * float(np.sqrt(np.average((scaled - mean) ** 2, weights=weights)))


@dataclass(frozen=True, eq=False)
class StandardisedProblem:
    """A problem on standardised data seen in the units of the user: see :class:`vhat.models.problem.Problem`.

    Attributes:
        base: The problem that was fitted.
        scaling: From the user's units to those of ``base``.
        X: Training inputs in the user's units, (n, d).
        targets: Training responses in the user's units, (n, K).
        columns: The names of the columns, or None.
    """

    base: Problem
    scaling: Scaling
    X: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    columns: tuple[Any, ...] | None = None

    # -- sizes -----------------------------------------------------------------------------
    @property
    def n(self) -> int:
        """How many training rows there are."""
        return self.base.n

    @property
    def outputs(self) -> int:
        """How many outputs the model has."""
        return self.base.outputs

    @property
    def p(self) -> int:
        """How many parameters were trained."""
        return self.base.p

    @property
    def squeeze(self) -> bool:
        """Whether predictions are (n,)."""
        return self.base.squeeze

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of the parameters: a change of units leaves that as it is."""
        return self.base.linear

    @property
    def theta(self) -> Array:
        """The fitted parameters."""
        return self.base.theta

    @property
    def decay(self) -> Array:
        """The diagonal lam, that of the standardised responses."""
        return self.base.decay

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the trained arrays."""
        return self.base.leaves

    @property
    def memory(self) -> int:
        """The budget in bytes."""
        return self.base.memory

    @property
    def weights(self) -> Any:
        """The weights of the training rows."""
        return self.base.weights

    # -- the fitted model --------------------------------------------------------------------
    @property
    def params(self) -> Any:
        """The parameters in their own structure: those of the standardised model."""
        return self.base.params

    @cached_property
    def fitted_values(self) -> np.ndarray:
        """Predictions on the training rows, (n, K)."""
        return self._predictions(self.base.fitted_values)

    @cached_property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss, of which the standardised response is the argument, and its derivatives in the user's units."""
        loss, unit = self.base.loss_derivatives, self.scaling.unit
        pairs = unit**2 if loss.curvature.ndim == 2 else unit[:, None] * unit
        crossed = unit**2 if loss.cross.ndim == 2 else unit[:, None] * unit
        return replace(loss, first=loss.first / unit, curvature=loss.curvature / pairs, cross=loss.cross / crossed)

    def facts(self) -> ModelFacts:
        """Probe the model: determinism, dtype, casts."""
        return self.base.facts()

    def at(self, theta: Array) -> StandardisedProblem:
        """Return the same problem at other parameters."""
        return replace(self, base=self.base.at(theta))

    def with_targets(self, y: np.ndarray) -> StandardisedProblem:
        """Return the same problem with other responses, in the user's units."""
        targets = np.asarray(y, dtype=np.float64).reshape(self.targets.shape)
        return replace(self, base=self.base.with_targets(self.scaling.responses(targets)), targets=targets)

    def with_decay(self, decay: Array) -> StandardisedProblem:
        """Return the same problem under another decay."""
        return replace(self, base=self.base.with_decay(decay))

    def rows(self, index: np.ndarray) -> StandardisedProblem:
        """Return the problem of some training rows alone."""
        return replace(self, base=self.base.rows(index), X=self.X[index], targets=self.targets[index])

    # -- test points -------------------------------------------------------------------------
    def inputs(self, x: Any) -> np.ndarray:
        """Check test inputs; they stay in the user's units.

        A data frame is matched by the names of its columns, in any order.

        Raises:
            InputError: For another number of columns, other names, text, or numbers that are not finite, naming the
                columns and rows.

        Warns:
            TableWarning: Of points at which a column differs that was constant in training.
        """
        validate.refuse_text(x)
        matched = match_columns("x", x, self.columns)
        if column_names(matched) is not None:  # yes and no beside numbers, and numbers that may be missing
            matched = matched.to_numpy(dtype=np.float64, na_value=np.nan)
        rows = as_numbers("x", matched)
        d = self.X.shape[1]
        if rows.ndim != 2 or rows.shape[1] != d:
            hint = " For a single point give x[None]." if rows.shape == (d,) else ""
            raise InputError(
                f"x has shape {rows.shape}; the training inputs have {d} columns, so give (points, {d}).{hint}"
            )
        validate.refuse_missing(rows, self.columns)
        validate.warn_of_moved(rows, self.scaling.constants(self.X), self.columns)
        return rows

    def count(self, inputs: np.ndarray) -> int:
        """Return how many rows checked inputs hold."""
        return len(inputs)

    def take(self, inputs: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return rows of checked inputs."""
        return inputs[start:stop]

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Predictions at checked inputs, (m, K), in the user's units."""
        return self._predictions(self.base.predict(self._standardised(inputs)))

    def gradients(self, inputs: np.ndarray) -> Array:
        """Per-row gradients of every output, (m * K, p), in the user's units."""
        found = self.base.gradients(self._standardised(inputs))
        return found * self.base.native(np.tile(self.scaling.unit, len(inputs)))[:, None]

    def factors(self, inputs: np.ndarray) -> Sequence[tuple[Array, ...]]:
        """The same leaf by leaf, where the base knows it as outer products."""
        unit = self.base.native(np.tile(self.scaling.unit, len(inputs)))[:, None]
        return [(leaf[0] * unit, *leaf[1:]) for leaf in self.base.factors(self._standardised(inputs))]

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the leaves for which ``factors`` gives pairs."""
        return self.base.outer_leaves

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``factors`` gives for each output of a row."""
        return self.base.factor_numbers

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Value and gradient of ``q(params)``.

        The unit of these parameters is taken from the responses, so that none is linear in them.
        """
        return replace(self.base.functional(q), affine=False)

    def _standardised(self, inputs: np.ndarray) -> Any:
        return self.base.inputs(self.scaling.inputs(inputs))

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.scaling.shift + self.scaling.unit * f
        return found

    # -- derivatives over the training rows ------------------------------------------------------
    def objective(self) -> float:
        """The loss, without the penalty."""
        return self.base.objective()

    def gradient(self) -> Array:
        """The gradient of the loss, without the penalty."""
        return self.base.gradient()

    def product(self, v: Array, curvature: Curvature) -> Array:
        """``H v`` or its Gauss-Newton part for each row of v, without decay."""
        return self.base.product(v, curvature)

    def residual_product(self, v: np.ndarray, /) -> np.ndarray | None:
        """``(H - J'CJ/n) v`` for each row of v, in single precision, where the framework can."""
        return self.base.residual_product(v)

    def diagonal(self) -> Array:
        """The diagonal of the Gauss-Newton part."""
        return self.base.diagonal()

    def jvp(self, v: Array) -> np.ndarray:
        """``J v`` for each row of v, in the user's units."""
        return self.base.jvp(v) * self.scaling.unit

    def vjp(self, t: np.ndarray) -> Array:
        """``J' t`` for each block of t, J in the user's units."""
        return self.base.vjp(t * self.scaling.unit)

    # -- arrays ------------------------------------------------------------------------------
    def scope(self) -> AbstractContextManager[Any]:
        """The framework state in which p-space arithmetic must run."""
        return self.base.scope()

    def native(self, a: np.ndarray) -> Array:
        """Bring a NumPy array to p-space."""
        return self.base.native(a)

    def numpy(self, a: Any) -> np.ndarray:
        """Bring a p-space array to NumPy."""
        return self.base.numpy(a)

    def padded(self, k: int) -> int:
        """The width to which a block of k rows is padded."""
        return self.base.padded(k)

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a pure function of p-space arrays, where the framework can."""
        return self.base.compiled(step)
