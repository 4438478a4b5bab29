"""The last linear layer of a module as a problem of its own; the rest of the module runs once for each row.

To find the layer, the module runs on a few rows and every call of ``torch.nn.functional.linear`` is recorded. The layer
is the last one for whose parameters the traced operations prove the predictions affine
(:mod:`vhat.models.torch.affine`). The result is verified on every row that is used later: the module's prediction must
equal that of the layer and the fixed affine map after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vhat.errors import ModelError
from vhat.models.linear_head import Head, HeadAutodiff
from vhat.models.protocols import ModelFacts, slices
from vhat.models.selection import listed
from vhat.models.torch import probe
from vhat.models.torch.affine import is_affine
from vhat.models.torch.arrays import to_array
from vhat.models.torch.autodiff import TorchAutodiff
from vhat.models.torch.inputs import Layout, Rows, preserved_rng
from vhat.models.torch.model import Linear, TorchModel, recording, take_rows, wrap_errors
from vhat.models.torch.read_state import read_state
from vhat.progress import bar

__all__ = ["TorchHead", "find_head"]

_TOLERANCE = 1e-9
"""Largest relative difference between the module's prediction and that of its last layer, in float64."""
_FLOAT32_TOLERANCE = 1e-4
"""The same for a module that computes in float32."""


@dataclass(frozen=True, eq=False)
class TorchHead(HeadAutodiff):
    """The last layer of a module: see :class:`vhat.models.linear_head.HeadAutodiff`.

    Attributes:
        base: The module, with the parameters of the layer as its flat vector.
        layer: The names of the layer's parameters.
        theta: The fitted parameters of the layer, at which it is verified.
        narrow: Whether the module computes in a narrower float than float64.
    """

    base: TorchAutodiff
    layer: Linear
    theta: Any
    narrow: bool

    stored_as = "torch_last_layer"

    def features(self, inputs: Rows, /) -> np.ndarray:
        """Evaluate the module and return the inputs of its last layer, (m, q).

        Raises:
            ModelError: If a prediction is not that of the layer.
        """
        model = self.base.model
        model.guard()
        features = np.empty((len(inputs[0]), self.head.inputs))
        blocks = slices(len(features), self.base.chunk_rows)
        with bar("rows through the network", len(blocks)) as advance:
            for block in blocks:
                rows = take_rows(inputs, block)
                with wrap_errors("evaluating the module at these inputs"), torch.inference_mode(False), torch.no_grad():
                    z, f = run(model, self.theta, rows, self.layer)
                features[block] = to_array(z)
                self._verify(self.theta, features[block], to_array(f))
                advance("")
        return features

    def _verify(self, theta: Any, z: np.ndarray, f: np.ndarray) -> None:
        """Compare the module's predictions f with those of the layer with inputs z.

        Raises:
            ModelError: If they differ by more than rounding.
        """
        if not (np.isfinite(f).all() and np.isfinite(z).all()):
            return  # a later check raises, and names the rows
        of_layer = self.head.predict(self.arrays.numpy(theta), z)
        size = max(np.abs(f).max(), np.abs(self.head.offset).max(), np.abs(of_layer).max())
        tolerance = _FLOAT32_TOLERANCE if self.narrow else _TOLERANCE
        if np.any(np.abs(f - of_layer) > tolerance * size):
            raise ModelError(
                f"the module's prediction is not always that of its last linear layer {self.layer.weight!r}: something "
                "else is added to it or multiplies it, in some rows. " + _remedy(self.base.model.module)
            )

    def refuse_other_parameters(self) -> None:
        """Compare the module with the layer at other, random parameters as well, on a few rows.

        Raises:
            ModelError: If they differ.
        """
        noise = torch.randn(len(self.theta), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        size = self.theta.square().mean().sqrt() + 1e-12
        other = self.theta + size * noise.to(self.theta.device)
        with wrap_errors("evaluating the module"), torch.inference_mode(False), torch.no_grad():
            z, f = run(self.base.model, other, self.sample, self.layer)
        self._verify(other, to_array(z), to_array(f))

    def refuse_changed(self) -> None:
        """Raise if the module's predictions have changed since it was given."""
        self.base.refuse_changed()

    def facts(self) -> ModelFacts:
        """Probe the module: whether it is deterministic, and which operations leave float64."""
        model = self.base.model
        with preserved_rng(model.state.device):
            deterministic = probe.is_repeatable(model, self.theta, self.sample)
            casts = probe.narrow_casts(model, self.theta, self.sample)
        accuracy = 1e-7 if casts else 1e-15
        return ModelFacts("torch", model.state.dtype, deterministic, casts, accuracy, accuracy)

    def write_to(self, module: Any, theta: Any) -> None:
        """Copy the layer's parameters into those of a module."""
        self.base.write_to(module, theta)


class _LinearCalls(TorchFunctionMode):  # type: ignore[misc]
    """Record the calls of ``linear`` with parameters of a module.

    Attributes:
        calls: The called layers, in order, one entry per call.
        inputs: The input of the last call with each weight.
        uses: Number of operations with each parameter.
    """

    def __init__(self, parameters: Mapping[str, Any], replacement: Any = None) -> None:
        """Start without calls.

        Args:
            parameters: The parameters by name.
            replacement: Function of a layer's output whose result replaces the output; None for no replacement.
        """
        super().__init__()
        self._names = {id(value): name for name, value in parameters.items()}
        self._replacement = replacement
        self.calls: list[Linear] = []
        self.inputs: dict[str, Any] = {}
        self.uses: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = [name for value in tree_leaves((args, kwargs)) if (name := self._names.get(id(value))) is not None]
        output = func(*args, **kwargs)
        if not used:
            return output
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
            for name in used:
                self.uses[name] = self.uses.get(name, 0) + 1
        return self._linear(output, *args, **kwargs) if func is functional.linear else output

    def _linear(self, product: Any, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002  (torch's name)
        """Record a call and return its output or the replacement."""
        name = self._names.get(id(weight))
        if name is None:
            return product
        self.calls.append(Linear(name, self._names.get(id(bias))))
        self.inputs[name] = input.detach().clone()
        if self._replacement is not None:
            product = self._replacement(product)
        return product.clone()  # the module may overwrite its copy


def run(model: TorchModel, theta: Any, rows: Rows, layer: Linear, replacement: Any = None) -> tuple[Any, Any]:
    """Evaluate the module and return the inputs of a layer, (m, q), and the predictions, (m, K).

    Args:
        model: The module with the layer's parameters as its flat vector.
        theta: These parameters, (p,).
        rows: Inputs.
        layer: The layer.
        replacement: Function of the layer's output whose result replaces the output.
    """
    trained = model.state.split(theta)
    own = {**trained, **{name: model.state.fixed[name] for name in layer if name in model.state.fixed}}
    with _LinearCalls(own, replacement) as recorded:
        f = model.at(trained, rows)
    if len(recorded.calls) != 1 or recorded.uses[layer.weight] != 1:
        raise ModelError(
            f"the last linear layer {layer.weight!r} is used {len(recorded.calls)} times for these rows, and once for "
            "others. " + _remedy(model.module)
        )
    return recorded.inputs[layer.weight].reshape(len(rows[0]), -1), f


def find_head(module: Any, layout: Layout, rows: Rows, output: Any) -> tuple[TorchModel, Any, Linear, Head]:
    """Find the last linear layer of a module.

    Args:
        module: The module, in evaluation mode.
        layout: Structure of its inputs.
        rows: A few rows of inputs.
        output: The user's ``output=``, which selects the prediction in the return value.

    Returns:
        The module as a function of the layer's parameters, these parameters, their names, and the layer.

    Raises:
        ModelError: If there is none, or the module is random or mixes rows.
    """
    all_parameters, flat = read_state(module, [name for name, _ in module.named_parameters()])
    whole = probe.probe_predictions(module, all_parameters, flat, layout, rows, output)
    rows = probe.few_rows(rows)
    parameters = all_parameters.split(flat)
    with torch.inference_mode(False), torch.no_grad(), _LinearCalls(parameters) as recorded:
        whole.at(parameters, rows)
    layers = dict.fromkeys(recorded.calls)  # without repetitions, in order
    for layer in reversed(layers):
        if recorded.uses[layer.weight] > 1:
            continue
        if recorded.inputs[layer.weight].numel() != len(rows[0]) * parameters[layer.weight].shape[1]:
            continue  # not one vector per row
        state, theta = read_state(module, _trained_names(layer, module, recorded.uses))
        model = replace(whole, state=state, affine=True)
        if is_affine(model, theta, rows):
            return model, theta, layer, _head(model, theta, rows, layer)
    found = listed([layer.weight for layer in layers]) or "none"
    raise ModelError(
        "no linear layer was found that is used once, on one vector per row, and whose output is the module's "
        f"prediction up to a fixed affine map (layers called: {found}). " + _remedy(module)
    )


def _trained_names(layer: Linear, module: Any, uses: dict[str, int]) -> list[str]:
    """Return the names of the layer's parameters that count as trained.

    A frozen bias stays fixed, unless the weight is frozen too. A bias with another use does not belong to the layer.
    """
    own = dict(module.named_parameters())
    if layer.bias is None or uses[layer.bias] != 1:
        return [layer.weight]
    if own[layer.weight].requires_grad and not own[layer.bias].requires_grad:
        return [layer.weight]
    return [layer.weight, layer.bias]


def _head(model: TorchModel, theta: Any, rows: Rows, layer: Linear) -> Head:
    """Return the layer with the affine map after it: M from derivatives, c from the prediction at a zero output."""
    state = model.state
    products: list[Any] = []

    def as_leaf(product: Any) -> Any:
        """Cut the graph at the layer's output, to differentiate in it."""
        products.append(product.detach().requires_grad_())
        return products[-1]

    with recording():
        _, f = run(model, theta, rows, layer, as_leaf)
        gradients = [
            torch.autograd.grad(f[:, k].sum(), products[0], retain_graph=True)[0] for k in range(model.outputs)
        ]
    with torch.inference_mode(False), torch.no_grad():
        z, f_at_zero = run(model, theta, rows, layer, torch.zeros_like)
    # M and c are the same for all rows, so the first one is taken.
    mixing = to_array(torch.stack([gradient.reshape(len(f), -1)[0] for gradient in gradients]))
    offset = to_array(f_at_zero[0]).copy()
    if layer.bias in state.fixed:  # a fixed bias b is part of c: M (W z + b) + c
        offset += mixing @ to_array(state.fixed[layer.bias])
    weight = state.names.index(layer.weight)
    return Head(mixing, offset, int(z.shape[1]), state.shapes, weight)


def _remedy(module: Any) -> str:
    names = listed([name for name, _ in module.named_parameters()])
    return (
        "Name the parameters that count as trained, parameters=[names], and the module is run as a whole. It has "
        f"{names}."
    )
