"""Gradients of linear layers as outer products, noted while the module runs.

In ``z = F.linear(h, W, b)`` the gradient of an output in W is ``d (x) h`` and that in b is ``d``, the gradient in z.
Where a layer's parameters are used nowhere else, one pass over many rows gives h and d of all of them; the gradients
themselves, a matrix a row, are never formed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vhat.models.leaves import leaf_rows
from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import Linear, TorchModel, jacobian_blocks, recording, row_gradients

__all__ = ["find_linear", "kept_up", "outer_leaves", "row_factors"]

_ALIKE = 1e-9
"""Relative difference that rounding may leave between two sums over rows."""


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Note the input and the product of every linear layer that takes all rows, one vector each.

    Attributes:
        layers: The first call that each weight has met.
        vectors: What entered it, (m, a).
        products: What left it, (m, b), before anything worked on it in place.
        elsewhere: Parameters that met anything but the first call of their layer.
    """

    def __init__(self, parameters: Mapping[str, Any], rows: int) -> None:
        super().__init__()
        self._names, self._rows = {id(value): name for name, value in parameters.items()}, rows
        self.layers: dict[str, Linear] = {}
        self.vectors: dict[str, Any] = {}
        self.products: dict[str, Any] = {}
        self.elsewhere: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        met = [name for value in tree_leaves((args, kwargs)) if (name := self._names.get(id(value))) is not None]
        if not met:
            return func(*args, **kwargs)
        if func is functional.linear:
            found = self._linear(*args, **kwargs)
            if found is not None:
                return found
        self.elsewhere.update(met)
        return func(*args, **kwargs)

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002  (torch's name)
        name, own = self._names.get(id(weight)), self._names.get(id(bias))
        seen = {each for layer in self.layers.values() for each in layer}
        if name is None or name in seen or own in seen - {None} or input.ndim != 2 or len(input) != self._rows:
            return None
        product = functional.linear(input, weight, bias)
        self.layers[name], self.vectors[name], self.products[name] = Linear(name, own), input.detach(), product
        return product.clone()  # which the module may overwrite


def find_linear(model: TorchModel, theta: Any, rows: Rows) -> tuple[Linear, ...]:
    """Find the linear layers whose parameters are used once, each on all rows."""
    whole = [name for name in model.state.names if name not in model.state.slots]
    parameters = _parameters(model, theta, whole)
    watch = _Watch({name: parameters[name] for name in whole}, len(rows[0]))
    with recording(), watch:
        model.at(parameters, rows)
    return tuple(
        Linear(layer.weight, None if layer.bias in watch.elsewhere else layer.bias)
        for layer in watch.layers.values()
        if layer.weight not in watch.elsewhere
    )


def outer_leaves(model: TorchModel) -> frozenset[int]:
    """The numbers of the parameters that ``row_factors`` gives as pairs."""
    return frozenset(model.state.names.index(layer.weight) for layer in model.linear)


def kept_up(model: TorchModel, theta: Any, rows: Rows) -> TorchModel:
    """Return the model without its linear layers if so many rows do not go through them as a few did.

    A module may cut its rows into chunks of its own. To find that out block by block would cost the memory of full
    gradients where that of factors was planned.
    """
    if model.linear and _linear_factors(model, theta, rows) is None:
        return replace(model, linear=())
    return model


def row_factors(model: TorchModel, theta: Any, rows: Rows) -> list[tuple[Any, ...]]:
    """Return the gradients of every output of every row, parameter by parameter.

    Weights of ``model.linear`` have a pair (m * K, a), (m * K, b) of factors, other parameters (m * K, size).
    """
    names = model.state.names
    found = _linear_factors(model, theta, rows) if model.linear else None
    if found is None:
        return leaf_rows(row_gradients(model, theta, rows).flatten(0, 1), model.state.shapes)
    others = [name for name in names if name not in found]
    if others:
        blocks = [parts for _, parts in jacobian_blocks(model, theta, rows, others)]
        found |= {name: (torch.cat(part).flatten(0, 1),) for name, *part in zip(others, *blocks, strict=True)}
    return [found[name] for name in names]


def _linear_factors(model: TorchModel, theta: Any, rows: Rows) -> dict[str, tuple[Any, ...]] | None:
    """Return those of weights and biases of linear layers; None where these rows do not go through them as others did.

    Rows do not see each other, so the gradient of the sum over rows in z holds the gradient of each. But a module may
    sort them on the way, or a hook may change what autograd gives: one random combination of all rows is differentiated
    in the parameters themselves, and must be that of the outer products.
    """
    watched = [name for layer in model.linear for name in layer if name is not None]
    parameters = _parameters(model, theta, watched)
    watch = _Watch({name: parameters[name] for name in watched}, len(rows[0]))
    with recording():
        with watch:
            f = model.at(parameters, rows)
        if watch.elsewhere or set(watch.layers.values()) != set(model.linear):
            return None
        products = [watch.products[layer.weight] for layer in model.linear]
        slopes = [
            torch.autograd.grad(total, products, retain_graph=True, materialize_grads=True) for total in f.sum(dim=0)
        ]
        shares = torch.randn(f.shape, dtype=f.dtype, generator=torch.Generator().manual_seed(0)).to(f.device)
        weights = [parameters[layer.weight] for layer in model.linear]
        expected = torch.autograd.grad((shares * f).sum(), weights, materialize_grads=True)
    found: dict[str, tuple[Any, ...]] = {}
    for number, (weight, bias) in enumerate(model.linear):
        slope = torch.stack([each[number] for each in slopes], dim=1).flatten(0, 1)
        vector = watch.vectors[weight].repeat_interleave(model.outputs, dim=0)
        combined = (shares.reshape(-1, 1) * slope).T @ vector
        if not torch.allclose(combined, expected[number], rtol=_ALIKE, atol=_ALIKE * float(combined.abs().max())):
            return None
        found[weight] = (slope, vector)
        if bias is not None:
            found[bias] = (slope,)
    return found


def _parameters(model: TorchModel, theta: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the parameters by name, some of them as leaves of autograd."""
    parameters = {name: value.detach() for name, value in model.state.split(theta.detach()).items()}
    for name in names:
        parameters[name].requires_grad_()
    return parameters
