"""The last linear layer of a module as a problem of its own: everything before it runs once for each row.

The layer is found by use: the module runs on a few rows while every call of ``torch.nn.functional.linear`` is noted,
and the last of them whose parameters the predictions are affine in, by the operations that follow
(:mod:`vhat.models.torch.affine`), is the one. What it gives is verified on every row that is ever asked about: the
module's prediction must be that of the layer and the fixed affine map after it.
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

_ALIKE = 1e-9
"""Relative difference that rounding may leave between the module's prediction and that of its last layer."""
_NARROW_ALIKE = 1e-4
"""The same where the module computes in float32 on the way."""
_OTHERWISE = (
    "Name the parameters that count as trained, parameters=[names], and the module is run as a whole. It has {names}."
)


@dataclass(frozen=True, eq=False)
class TorchHead(HeadAutodiff):
    """The last layer of a module: see :class:`vhat.models.linear_head.HeadAutodiff`.

    Attributes:
        base: The module, with the parameters of the layer as its flat vector.
        layer: The names of the layer's parameters.
        theta: The parameters that the module was given with, at which the layer is verified.
        narrow: Whether the module computes in a narrower float than float64 on the way.
    """

    base: TorchAutodiff
    layer: Linear
    theta: Any
    narrow: bool

    stored_as = "torch_last_layer"

    def features(self, inputs: Rows, /) -> np.ndarray:
        """Run the module and return the inputs of its last layer, (m, q).

        Raises:
            ModelError: Where the prediction is not that of the layer.
        """
        model = self.base.model
        model.guard()
        found = np.empty((len(inputs[0]), self.head.inputs))
        blocks = slices(len(found), self.base.chunk_rows)
        with bar("rows through the network", len(blocks)) as advance:
            for block in blocks:
                rows = take_rows(inputs, block)
                with wrap_errors("evaluating the module at these inputs"), torch.inference_mode(False), torch.no_grad():
                    z, f = run(model, self.theta, rows, self.layer)
                found[block] = to_array(z)
                self._verify(self.theta, found[block], to_array(f))
                advance("")
        return found

    def _verify(self, theta: Any, z: np.ndarray, f: np.ndarray) -> None:
        """Compare the module's predictions with those of the layer.

        Raises:
            ModelError: Where they differ by more than rounding.
        """
        if not (np.isfinite(f).all() and np.isfinite(z).all()):
            return  # refused where the rows are named
        own = self.head.predict(self.arrays.numpy(theta), z)
        size = max(np.abs(f).max(), np.abs(self.head.offset).max(), np.abs(own).max())
        if np.any(np.abs(f - own) > (_NARROW_ALIKE if self.narrow else _ALIKE) * size):
            raise ModelError(
                f"the module's prediction is not always that of its last linear layer {self.layer.weight!r}: something "
                "else is added to it or multiplies it, in some rows. " + _other_ways(self.base.model.module)
            )

    def refuse_other_parameters(self) -> None:
        """Compare the module with the layer at other parameters as well, on a few rows.

        Raises:
            ModelError: Where they differ.
        """
        noise = torch.randn(len(self.theta), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        size = self.theta.square().mean().sqrt() + 1e-12
        moved = self.theta + size * noise.to(self.theta.device)
        with wrap_errors("evaluating the module"), torch.inference_mode(False), torch.no_grad():
            z, f = run(self.base.model, moved, self.sample, self.layer)
        self._verify(moved, to_array(z), to_array(f))

    def refuse_changed(self) -> None:
        """Refuse a module that no longer predicts what it predicted when it was given."""
        self.base.refuse_changed()

    def facts(self) -> ModelFacts:
        """Probe the module: whether it repeats itself, and where it leaves float64."""
        model = self.base.model
        with preserved_rng(model.state.device):
            repeatable = probe.is_repeatable(model, self.theta, self.sample)
            casts = probe.narrow_casts(model, self.theta, self.sample)
        accuracy = 1e-7 if casts else 1e-15
        return ModelFacts("torch", model.state.dtype, repeatable, casts, accuracy, accuracy)

    def write_to(self, module: Any, theta: Any) -> None:
        """Copy the layer's parameters into a module's own."""
        self.base.write_to(module, theta)


class _Layers(TorchFunctionMode):  # type: ignore[misc]
    """Note the calls of ``linear`` on the parameters of a module.

    Attributes:
        calls: The layers in the order in which they were called, each call once.
        vectors: The input of the last call of each weight.
        uses: How many operations each parameter has met.
    """

    def __init__(self, parameters: Mapping[str, Any], replaced: Any = None) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in parameters.items()}
        self._replaced = replaced
        self.calls: list[Linear] = []
        self.vectors: dict[str, Any] = {}
        self.products: dict[str, Any] = {}
        self.uses: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        met = [name for value in tree_leaves((args, kwargs)) if (name := self._names.get(id(value))) is not None]
        if not met:
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(output)):
            for name in met:
                self.uses[name] = self.uses.get(name, 0) + 1
        return self._linear(output, *args, **kwargs) if func is functional.linear else output

    def _linear(self, product: Any, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002  (torch's name)
        name = self._names.get(id(weight))
        if name is None:
            return product
        self.calls.append(Linear(name, self._names.get(id(bias))))
        self.vectors[name] = input.detach().clone()
        if self._replaced is not None:
            product = self._replaced(product)
        self.products[name] = product
        return product.clone()  # which the module may overwrite


def run(model: TorchModel, theta: Any, rows: Rows, layer: Linear, replaced: Any = None) -> tuple[Any, Any]:
    """Run the module and return the inputs of a layer, (m, q), and the predictions, (m, K).

    Args:
        model: The module with the layer's parameters as its flat vector.
        theta: These parameters, (p,).
        rows: Inputs.
        layer: The layer.
        replaced: What is put in the place of the layer's output, as a function of it.
    """
    trained = model.state.split(theta)
    own = {**trained, **{name: model.state.fixed[name] for name in layer if name in model.state.fixed}}
    with _Layers(own, replaced) as watch:
        f = model.at(trained, rows)
    if len(watch.calls) != 1 or watch.uses[layer.weight] != 1:
        raise ModelError(
            f"the last linear layer {layer.weight!r} is used {len(watch.calls)} times for these rows, and once for "
            "others. " + _other_ways(model.module)
        )
    return watch.vectors[layer.weight].reshape(len(rows[0]), -1), f


def find_head(module: Any, layout: Layout, rows: Rows, output: Any) -> tuple[TorchModel, Any, Linear, Head]:
    """Find the last linear layer of a module.

    Args:
        module: The module, in evaluation mode.
        layout: How its inputs are given.
        rows: A few rows of them.
        output: The prediction in what the module returns.

    Returns:
        The module as a function of the layer's parameters, these, the layer's names, and the layer.

    Raises:
        ModelError: Where there is none, or the module is random or mixes rows.
    """
    everything, flat = read_state(module, [name for name, _ in module.named_parameters()])
    whole = probe.probe_predictions(module, everything, flat, layout, rows, output)
    rows = probe.few_rows(rows)
    trained = everything.split(flat)
    with torch.inference_mode(False), torch.no_grad(), _Layers(trained) as watch:
        whole.at(trained, rows)
    for layer in reversed(dict.fromkeys(watch.calls)):
        used = watch.uses[layer.weight]
        if used > 1 or watch.vectors[layer.weight].numel() != len(rows[0]) * trained[layer.weight].shape[1]:
            continue
        names = _trained_of(layer, module, watch.uses)
        state, theta = read_state(module, names)
        model = replace(whole, state=state, affine=True)
        if is_affine(model, theta, rows):
            return model, theta, layer, _head(model, theta, rows, layer)
    found = listed([layer.weight for layer in dict.fromkeys(watch.calls)]) if watch.calls else "none"
    raise ModelError(
        "no linear layer was found that is used once, on one vector a row, and whose output is the module's "
        f"prediction up to a fixed affine map (layers called: {found}). " + _other_ways(module)
    )


def _trained_of(layer: Linear, module: Any, uses: dict[str, int]) -> list[str]:
    """Return the names of the layer's parameters that count as trained.

    A bias that is frozen while the weight is not stays so, and one that is used elsewhere is no bias of this layer.
    """
    own = dict(module.named_parameters())
    if layer.bias is None or uses[layer.bias] != 1:
        return [layer.weight]
    if own[layer.weight].requires_grad and not own[layer.bias].requires_grad:
        return [layer.weight]
    return [layer.weight, layer.bias]


def _head(model: TorchModel, theta: Any, rows: Rows, layer: Linear) -> Head:
    """Find the affine map after a layer: its matrix by derivatives, its offset by an output of zero."""
    state = model.state
    products: list[Any] = []

    def watched(product: Any) -> Any:
        products.append(product.detach().requires_grad_())
        return products[-1]

    with recording():
        _, f = run(model, theta, rows, layer, watched)
        slopes = [torch.autograd.grad(f[:, k].sum(), products[0], retain_graph=True)[0] for k in range(model.outputs)]
    with torch.inference_mode(False), torch.no_grad():
        z, zero = run(model, theta, rows, layer, torch.zeros_like)
    mixing = to_array(torch.stack([slope.reshape(len(f), -1)[0] for slope in slopes]))
    offset = to_array(zero[0]).copy()
    if layer.bias in state.fixed:
        offset += mixing @ to_array(state.fixed[layer.bias])
    weight = state.names.index(layer.weight)
    return Head(mixing, offset, int(z.shape[1]), state.shapes, weight)


def _other_ways(module: Any) -> str:
    return _OTHERWISE.format(names=listed([name for name, _ in module.named_parameters()]))
