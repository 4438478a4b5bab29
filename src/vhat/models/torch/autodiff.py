"""A torch module and its loss as functions of a flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from vhat.checks import Loss
from vhat.errors import InputError, ModelError, VhatError
from vhat.models.kinks import KinkedOperations
from vhat.models.loss import LossDerivatives
from vhat.models.protocols import Functional, Linearised, Point, slices
from vhat.models.torch import loss as losses
from vhat.models.torch.affine import is_affine
from vhat.models.torch.arrays import TorchArrays, to_array
from vhat.models.torch.inputs import Rows, check_rows, preserved_rng
from vhat.models.torch.linearised import TorchLinearised
from vhat.models.torch.model import TorchModel, recording, take_rows, wrap_errors
from vhat.models.torch.reference import Reference
from vhat.models.torch.variance_head import VarianceHead
from vhat.models.validate import refuse_flat_functional, refuse_functional

__all__ = ["TorchAutodiff", "unwrapped"]

_WRAPPED_ATTRIBUTE = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Wrapper classes of torch, with the attribute that holds the wrapped module."""


@dataclass(frozen=True, eq=False)
class TorchAutodiff:
    """A module: see :class:`vhat.models.protocols.Autodiff`.

    Attributes:
        model: The module as a pure function.
        named_loss: ``"half_mse"``, or the user's loss of one row.
        row_bytes: Memory of a tape per row, in bytes.
        chunk_rows: Number of rows that are evaluated at a time.
        target_key: Key of the target in a DataLoader's dict batches.
        head: The variance head, if the loss is the Gaussian negative log-likelihood; else None.
        many_rows: Whether the ``linear`` layers of ``model`` have been verified on many rows.
        references: Predictions of the module, and of its variance head, when it was given.
    """

    model: TorchModel
    named_loss: Loss
    row_bytes: int
    chunk_rows: int
    target_key: str | None = None
    many_rows: bool = False
    head: VarianceHead | None = None
    references: tuple[Reference, ...] = ()

    framework = "torch"

    @cached_property
    def arrays(self) -> TorchArrays:
        """Tensors on the module's device."""
        return TorchArrays(self.model.state.device)

    @property
    def squeeze(self) -> bool:
        """Whether the module returns (n,)."""
        return self.model.squeeze

    @property
    def linear(self) -> bool:
        """Whether the module's operations prove the predictions affine in the trained parameters."""
        return self.model.affine

    @property
    def held_fixed(self) -> bool:
        """Whether some of the module's parameters are held fixed, which may have been trained on the same responses."""
        return self.model.state.selected or bool(self.model.state.frozen)

    @property
    def kinks(self) -> KinkedOperations:
        """The kinked operations on values that depend on the trained parameters."""
        return self.model.kinks

    @property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the trained parameters, in the order of the flat vector."""
        return self.model.state.shapes

    @property
    def columns(self) -> tuple[Any, ...] | None:
        """Column names, if the inputs were one data frame; else None."""
        names = self.model.layout.columns
        return names[0] if len(names) == 1 else None

    @property
    def input_structure(self) -> tuple[str, tuple[str, ...]]:
        """Structure of the training inputs, "one", "tuple" or "dict", and the name of each tensor."""
        return self.model.layout.kind, self.model.layout.names

    # -- inputs ------------------------------------------------------------------------------
    def check(self, x: Any, _: Rows, /) -> Rows:
        """Check test inputs and copy them to the module's device."""
        return check_rows(x, self.model.layout, self.model.state.device, self.target_key)

    def as_given(self, inputs: Rows, /) -> Any:
        """Return checked inputs as NumPy arrays in the user's structure."""
        layout = self.model.layout
        parts = tuple(to_array(part) for part in inputs)
        if layout.kind == "dict":
            return dict(zip(layout.names, parts, strict=True))
        return parts if layout.kind == "tuple" else parts[0]

    def count(self, inputs: Rows, /) -> int:
        """Return how many rows checked inputs hold."""
        return len(inputs[0])

    def take(self, inputs: Rows, index: Any, /) -> Rows:
        """Return some rows of checked inputs."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.model.state.device)
        return take_rows(inputs, index)

    # -- values ------------------------------------------------------------------------------
    def refuse_changed(self) -> None:
        """Raise if the module's predictions have changed since it was given.

        Raises:
            ModelError: With the size of the change.
        """
        for reference in self.references:
            reference.refuse_changed()

    def referenced_on(self, rows: Rows) -> TorchAutodiff:
        """Return the same model with reference predictions at other rows, so that no training row is kept.

        The result has no references if the module cannot be evaluated at these rows.
        """
        try:
            references = tuple(reference.on(rows) for reference in self.references)
        except Exception:  # the module may raise any error at rows for which it is not intended
            references = ()
        return replace(self, references=references)

    def predict(self, theta: Any, inputs: Rows, /) -> np.ndarray:
        """Return predictions at checked inputs, (m, K)."""
        self.model.guard()
        with wrap_errors("evaluating the module at these inputs"), torch.inference_mode(False), torch.no_grad():
            blocks = slices(len(inputs[0]), self.chunk_rows)
            predictions = torch.cat([self.model(theta, take_rows(inputs, block)).detach() for block in blocks])
        return self.arrays.numpy(predictions)

    def own_noise(self, inputs: Rows, /) -> np.ndarray | None:
        """Return the standard deviation of a response that the variance head predicts, (m, 1); None without one."""
        return None if self.head is None else self.head.deviation(inputs)

    def loss(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> LossDerivatives:
        """Return the loss of each row and its derivatives."""
        native = self.arrays.native
        return losses.loss_derivatives(self.named_loss, native(f), native(y), native(weights), self.squeeze)

    def loss_values(self, f: np.ndarray, y: np.ndarray, weights: np.ndarray, /) -> np.ndarray:
        """Return the loss of each row, (n,)."""
        native = self.arrays.native
        return losses.loss_values(self.named_loss, native(f), native(y), native(weights), self.squeeze)

    def params(self, theta: Any, /) -> dict[str, Any]:
        """Return all parameters by name, trained and frozen, float64."""
        state = self.model.state
        parameters = {**state.split(theta), **{name: state.fixed[name] for name in state.frozen}}
        return {name: value.detach().clone() for name, value in parameters.items()}

    def functional(self, theta: Any, q: Callable[[Any], Any], /) -> Functional:
        """Return value and gradient of ``q(tensors)``, of all parameters and buffers by name, float64."""
        state = self.model.state
        with recording(), preserved_rng(theta.device):
            leaf = theta.detach().requires_grad_()
            try:
                value = q({**state.split(leaf), **state.fixed})
                again = q({**state.split(leaf), **state.fixed})
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
        with preserved_rng(theta.device):
            affine = is_affine(lambda theta, _: q({**state.split(theta), **state.fixed}), theta, ())
        return Functional(self.arrays.numpy(value), gradient, affine)

    def write_to(self, module: Any, theta: Any) -> None:
        """Copy the trained parameters into those of a module, in place and in its dtype.

        Raises:
            InputError: When the module does not have one of them, or has it in another shape.
        """
        own = dict(unwrapped(module).named_parameters())
        trained = self.model.state.split(theta)
        unfit = [name for name, value in trained.items() if name not in own or own[name].shape != value.shape]
        if unfit:
            raise InputError(f"the module has no parameter of this name and shape: {', '.join(unfit)}.")
        with torch.inference_mode(False), torch.no_grad():
            for name, value in trained.items():
                own[name].copy_(value)

    # -- derivatives -------------------------------------------------------------------------
    def linearise(self, point: Point, before: Linearised | None, /) -> TorchLinearised:
        """Return the derivatives at a point; no tape is recorded yet."""
        return TorchLinearised(self, point, before)


def unwrapped(module: Any) -> Any:
    """Return the module inside a compiled or parallel module or a skorch net, or the module itself.

    A compiled module cannot be differentiated twice. The original module can, and has the same parameter names.

    Raises:
        ModelError: For a skorch net that was not fitted.
    """
    if not isinstance(module, torch.nn.Module) and hasattr(module, "initialize") and hasattr(module, "module"):
        if not isinstance(getattr(module, "module_", None), torch.nn.Module):
            raise ModelError(f"the {type(module).__name__} has no module_ yet: call net.fit(X, y) first.")
        module = module.module_
    while type(module).__name__ in _WRAPPED_ATTRIBUTE:
        module = getattr(module, _WRAPPED_ATTRIBUTE[type(module).__name__])
    return module


def _check_differentiable(value: Any) -> None:
    """Raise unless the value of a functional is a tensor that depends on the parameters."""
    if not isinstance(value, torch.Tensor):
        raise InputError(f"the functional returned {type(value).__name__}; return a tensor, a scalar or of shape (k,).")
    if not value.requires_grad:
        raise InputError("the functional does not depend on any trainable parameter through autograd.")
