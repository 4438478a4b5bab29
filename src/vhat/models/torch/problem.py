"""A torch module and its training data at one parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from vhat.checks import Loss, check_finite
from vhat.errors import InputError, ModelError, VhatError
from vhat.models.problem import Curvature, Functional, LossDerivatives, ModelFacts
from vhat.models.torch import probe
from vhat.models.torch.affine import is_affine
from vhat.models.torch.data_loader import is_loader
from vhat.models.torch.derivatives import Tape, cotangents_together, recording, row_gradients, rows_together
from vhat.models.torch.inputs import Rows, check_rows, plain, preserved_rng, take_rows, to_array
from vhat.models.torch.loss import loss_derivatives, loss_values
from vhat.models.torch.model import TorchModel, in_words
from vhat.models.torch.outer_products import factor_numbers, kept_up, outer_leaves, row_factors
from vhat.models.validate import refuse_flat_functional, refuse_functional

__all__ = ["TorchProblem", "unwrapped"]

_CHUNK_BYTES = 2**23  # what one chunk's tape may keep, to stay near the cache
_MOST_ROWS = 2000


@dataclass(eq=False, repr=False)
class TorchProblem:
    """A module and its training data at one parameter vector: see :class:`vhat.models.problem.Problem`."""

    model: TorchModel
    theta: Any
    decay: Any
    X: Rows
    y: Any
    weights: Any
    loss: Loss
    memory: int
    row_bytes: int
    target_key: str | None = None
    n: int = field(init=False)
    outputs: int = field(init=False)
    p: int = field(init=False)
    squeeze: bool = field(init=False)

    def __post_init__(self) -> None:
        """Note the sizes."""
        self.n, self.outputs = self.y.shape
        self.p, self.squeeze = len(self.theta), self.model.squeeze

    def __repr__(self) -> str:
        """Say the sizes."""
        return f"TorchProblem(n={self.n}, outputs={self.outputs}, p={self.p})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave tapes and whatever else can be computed again out of copies and pickles."""
        computed = ("_kept_tapes", "_fitted", "loss_derivatives")
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the trained parameters, in the order of the flat vector."""
        return self.model.state.shapes

    @property
    def linear(self) -> bool:
        """Whether the predictions are an affine function of the trained parameters, as the module's operations show."""
        return self.model.affine

    # -- the fitted model --------------------------------------------------------------------
    @property
    def params(self) -> dict[str, Any]:
        """All parameters by name, trained and frozen, float64."""
        state = self.model.state
        both = {**state.split(self.theta), **{name: state.fixed[name] for name in state.frozen}}
        return {name: value.detach().clone() for name, value in both.items()}

    @property
    def targets(self) -> np.ndarray:
        """The responses, (n, K)."""
        return self.numpy(self.y)

    @cached_property
    def _fitted(self) -> Any:
        return self._predict(self.X)

    @property
    def fitted_values(self) -> np.ndarray:
        """Predictions on the training rows, (n, K)."""
        return self.numpy(self._fitted)

    @cached_property
    def loss_derivatives(self) -> LossDerivatives:
        """The loss and its derivatives on the training rows."""
        return loss_derivatives(self.loss, self._fitted, self.y, self.weights, self.squeeze)

    def facts(self) -> ModelFacts:
        """Probe the module again: whether it repeats itself, and where it leaves float64."""
        with preserved_rng(self.theta.device):
            repeatable = probe.is_repeatable(self.model, self.theta, self.X)
            casts = probe.narrow_casts(self.model, self.theta, self.X)
        accuracy = 1e-7 if casts else 1e-15
        return ModelFacts("torch", self.model.state.dtype, repeatable, casts, accuracy, accuracy)

    def at(self, theta: Any) -> TorchProblem:
        """Return the same problem at other parameters, sharing the data."""
        moved = replace(self, theta=self.native(theta))
        if "_factored" in self.__dict__:
            # Which layers many rows go through does not depend on where the parameters are.
            moved.__dict__["_factored"] = self._factored
        return moved

    def with_targets(self, y: np.ndarray) -> TorchProblem:
        """Return the same problem with other responses, sharing everything else."""
        moved = replace(self, y=self.native(y).reshape(self.y.shape))
        if "_fitted" in self.__dict__:
            moved.__dict__["_fitted"] = self._fitted
        return moved

    def with_decay(self, decay: Any) -> TorchProblem:
        """Return the same problem under another decay, (p,)."""
        return replace(self, decay=self.native(decay))

    def rows(self, index: np.ndarray) -> TorchProblem:
        """Return the problem of some training rows alone."""
        chosen = torch.as_tensor(index, device=self.theta.device)
        return replace(self, X=take_rows(self.X, chosen), y=self.y[chosen], weights=self.weights[chosen])

    def write_to(self, module: Any) -> None:
        """Copy the trained parameters into a module's own, in place and in its dtype.

        Raises:
            InputError: When the module lacks one of them, or its shape differs.
        """
        own = dict(unwrapped(module).named_parameters())
        trained = self.model.state.split(self.theta)
        unfit = [name for name, value in trained.items() if name not in own or own[name].shape != value.shape]
        if unfit:
            raise InputError(f"the module has no parameter of this name and shape: {', '.join(unfit)}.")
        with torch.inference_mode(False), torch.no_grad():
            for name, value in trained.items():
                own[name].copy_(value)

    # -- test points -------------------------------------------------------------------------
    def inputs(self, x: Any) -> Rows:
        """Check test inputs and bring them to the module's device."""
        if is_loader(x):
            raise InputError(
                f"x is a {type(x).__name__}; give test inputs as tensors, in the structure of the module's."
            )
        return check_rows(x, self.model.layout, self.theta.device, self.target_key)

    def count(self, inputs: Rows) -> int:
        """Return how many rows checked inputs hold."""
        return len(inputs[0])

    def take(self, inputs: Rows, start: int, stop: int) -> Rows:
        """Return rows of checked inputs."""
        return take_rows(inputs, slice(start, stop))

    def predict(self, inputs: Rows) -> np.ndarray:
        """Predictions at checked inputs, (m, K)."""
        with in_words("evaluating the module at these inputs"):
            values = self.numpy(self._predict(inputs))
        check_finite("the model's prediction at x", values, ModelError)
        return values

    def gradients(self, inputs: Rows) -> Any:
        """Per-row gradients of every output, (m * K, p)."""
        self.model.guard()
        with in_words("differentiating the module at these inputs"):
            return row_gradients(self.model, self.theta, inputs).reshape(-1, self.p)

    def factors(self, inputs: Rows) -> list[tuple[Any, ...]]:
        """The same leaf by leaf, linear layers as the two factors of each outer product."""
        self.model.guard()
        with in_words("differentiating the module at these inputs"):
            blocks = _slices(len(inputs[0]), self._chunk_rows)
            parts = [row_factors(self._factored, self.theta, take_rows(inputs, block)) for block in blocks]
        if len(parts) == 1:
            return parts[0]
        return [tuple(map(torch.cat, zip(*leaf, strict=True))) for leaf in zip(*parts, strict=True)]

    @cached_property
    def _factored(self) -> TorchModel:
        """The model with those of its linear layers whose gradients are outer products on many rows as well."""
        with in_words("differentiating the module"):
            return kept_up(self.model, self.theta, take_rows(self.X, slice(0, self._chunk_rows)))

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the parameters whose gradients are outer products."""
        return outer_leaves(self._factored)

    @property
    def factor_numbers(self) -> int:
        """How many numbers ``factors`` gives for each output of a row."""
        return factor_numbers(self._factored)

    def functional(self, q: Callable[[Any], Any]) -> Functional:
        """Value and gradient of ``q(tensors)``: all parameters and buffers by name, float64."""
        state = self.model.state
        with recording(), preserved_rng(self.theta.device):
            leaf = self.theta.detach().requires_grad_()
            try:
                value, again = (q({**state.split(leaf), **state.fixed}) for _ in range(2))
                _check_differentiable(value)
                refuse_functional(to_array(value), to_array(again))
                rows = [torch.autograd.grad(part, leaf, retain_graph=True)[0] for part in value.reshape(-1)]
            except VhatError:
                raise
            except Exception as error:
                raise InputError(
                    f"the functional failed: {type(error).__name__}: {error} (it is given float64 tensors by parameter "
                    "name; inputs inside it must be float64 too)."
                ) from error
        gradient = torch.stack(rows)
        refuse_flat_functional(to_array(gradient))
        with preserved_rng(self.theta.device):
            affine = is_affine(lambda theta, _: q({**state.split(theta), **state.fixed}), self.theta, ())
        return Functional(self.numpy(value), gradient, affine)

    # -- derivatives over the training rows ------------------------------------------------------
    def objective(self) -> float:
        """The loss, without the penalty."""
        return float(loss_values(self.loss, self._fitted, self.y, self.weights, self.squeeze).sum() / self.n)

    def gradient(self) -> Any:
        """The gradient of the loss, without the penalty, (p,)."""
        return sum(tape.gradient for tape in self._tapes())

    def product(self, v: Any, curvature: Curvature) -> Any:
        """``H v`` or its Gauss-Newton part for each row of v, without decay."""
        return sum(tape.product(v, curvature) for tape in self._tapes())

    def residual_product(self, _: np.ndarray, /) -> np.ndarray | None:
        """Nothing faster than ``product`` is known for eager torch."""
        return None

    @cached_property
    def _diagonal(self) -> Any:
        self.model.guard()
        curvature = self.loss_derivatives.curvature
        own = curvature if curvature.ndim == 2 else np.einsum("ijj->ij", curvature)
        weights = self.native(np.maximum(own, 0.0) / self.n)
        total = torch.zeros_like(self.theta)
        for block in _slices(self.n, rows_together(self.factor_numbers * self.outputs)):
            leaves = self.factors(take_rows(self.X, block))
            total += torch.cat([_weighted_squares(weights[block].reshape(-1), *leaf) for leaf in leaves])
        return total

    def diagonal(self) -> Any:
        """``1/n sum_i sum_a max(C_i[a, a], 0) g_ia^2``, (p,); kept, for it costs a pass of per-row gradients."""
        return self._diagonal.clone()

    def jvp(self, v: Any) -> np.ndarray:
        """``J v`` for each row of v: (k, p) to (k, n, K)."""
        return self.numpy(torch.cat([tape.jvp(v) for tape in self._tapes()], dim=1))

    def vjp(self, t: np.ndarray) -> Any:
        """``J' t`` for each block of t: (k, n, K) to (k, p)."""
        parts = torch.split(self.native(t), self._chunk_rows, dim=1)
        return sum(tape.vjp(part) for tape, part in zip(self._tapes(), parts, strict=True))

    @property
    def _chunk_rows(self) -> int:
        budget = min(_CHUNK_BYTES, self.memory // 8)
        return max(1, min(self.n, _MOST_ROWS, max(budget // self.row_bytes, 1)))

    def _tapes(self) -> Iterable[Tape]:
        """Yield the recorded chunks; they are kept for the next call where they fit."""
        self.model.guard()
        if "_kept_tapes" in self.__dict__:
            return self.__dict__["_kept_tapes"]  # type: ignore[no-any-return]
        tapes = self._record()
        if self.n * self.row_bytes <= self.memory // 8:
            tapes = self.__dict__["_kept_tapes"] = list(tapes)
        return tapes

    def _record(self) -> Any:
        size, derivatives = self._chunk_rows, self.loss_derivatives
        first, curvature = (self.native(part / self.n) for part in (derivatives.first, derivatives.curvature))
        together = cotangents_together(size * self.row_bytes)
        for block in _slices(self.n, size):
            rows = take_rows(self.X, block)
            yield Tape(self.model, self.theta, rows, first[block], curvature[block], together)

    def _predict(self, rows: Rows) -> Any:
        self.model.guard()
        with torch.inference_mode(False), torch.no_grad():
            blocks = _slices(len(rows[0]), self._chunk_rows)
            return torch.cat([self.model(self.theta, take_rows(rows, block)).detach() for block in blocks])

    # -- arrays ------------------------------------------------------------------------------
    def scope(self) -> AbstractContextManager[Any]:
        """No gradient tape: p-space arithmetic is plain."""
        return torch.no_grad()  # type: ignore[no-any-return]

    def native(self, a: Any) -> Any:
        """Bring an array to a float64 tensor on the module's device, copied."""
        with torch.inference_mode(False):
            if isinstance(a, torch.Tensor):
                return a.detach().to(device=self.theta.device, dtype=torch.float64, copy=True)
            return torch.tensor(np.asarray(a), dtype=torch.float64, device=self.theta.device)

    def numpy(self, a: Any) -> np.ndarray:
        """Bring a tensor to NumPy."""
        return np.asarray(plain(a), dtype=np.float64)

    def padded(self, k: int) -> int:
        """Nothing is compiled, so no block is padded."""
        return k

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Eager torch compiles nothing."""
        return step


def unwrapped(module: Any) -> Any:
    """A compiled module cannot be differentiated twice; what it was made of can, under the same parameter names."""
    return module._orig_mod if type(module).__name__ == "OptimizedModule" else module


def _check_differentiable(value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise InputError(f"the functional returned {type(value).__name__}; return a tensor, a scalar or of shape (k,).")
    if not value.requires_grad:
        raise InputError("the functional does not depend on any trainable parameter through autograd.")


def _weighted_squares(weights: Any, *parts: Any) -> Any:
    """Sum the squares of rows, or of the outer products of two, (size,)."""
    if len(parts) == 1:
        return weights @ parts[0].square()
    return ((weights[:, None] * parts[0].square()).T @ parts[1].square()).reshape(-1)


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
