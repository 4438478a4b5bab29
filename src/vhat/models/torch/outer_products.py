"""Gradients of linear layers as outer products, from one pass of the module over many rows.

In ``z = F.linear(h, W, b)`` let d be the gradient of an output in z. Its gradient in W is the outer product of d and h,
and its gradient in b is d. If the layer's parameters are used nowhere else, one pass computes h and d of all rows. The
gradients themselves, one matrix per row, are never formed.
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
from vhat.models.torch.model import Linear, TorchModel, recording
from vhat.models.torch.row_gradients import jacobian_blocks, row_gradients

__all__ = ["find_linear", "outer_leaves", "row_factors", "verify_linear"]

_TOLERANCE = 1e-9
"""Largest relative difference, due to rounding, between two sums over rows."""


class _LinearCalls(TorchFunctionMode):  # type: ignore[misc]
    """Record input and output of every linear layer that is called once, with one vector for each row.

    Attributes:
        layers: The first call with each weight, by the name of the weight.
        inputs: Its input h, (m, a).
        products: Its output z, (m, b), as recorded by autograd.
        other_uses: Names of parameters that have any other use than the first call of their layer.
    """

    def __init__(self, parameters: Mapping[str, Any], rows: int) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in parameters.items()}
        self._rows = rows
        self.layers: dict[str, Linear] = {}
        self.inputs: dict[str, Any] = {}
        self.products: dict[str, Any] = {}
        self.other_uses: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        used = [name for value in tree_leaves((args, kwargs)) if (name := self._names.get(id(value))) is not None]
        if not used:
            return func(*args, **kwargs)
        if func is functional.linear:
            output = self._linear(*args, **kwargs)
            if output is not None:
                return output
        self.other_uses.update(used)
        return func(*args, **kwargs)

    def _linear(self, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002  (torch's name)
        """Record the call and return its output; None if it is not a first call with one vector for each row."""
        weight_name = self._names.get(id(weight))
        bias_name = self._names.get(id(bias))
        called = {name for layer in self.layers.values() for name in layer if name is not None}
        if weight_name is None or weight_name in called or bias_name in called:
            return None
        if input.ndim != 2 or len(input) != self._rows:
            return None
        product = functional.linear(input, weight, bias)
        self.layers[weight_name] = Linear(weight_name, bias_name)
        self.inputs[weight_name] = input.detach()
        self.products[weight_name] = product
        return product.clone()  # the module may overwrite its copy


def find_linear(model: TorchModel, theta: Any, rows: Rows) -> tuple[Linear, ...]:
    """Find the linear layers whose parameters are used once, each with one vector for each row."""
    whole = [name for name in model.state.names if name not in model.state.slots]
    parameters = _parameters(model, theta, whole)
    calls = _LinearCalls({name: parameters[name] for name in whole}, len(rows[0]))
    with recording(), calls:
        model.at(parameters, rows)
    found = []
    for layer in calls.layers.values():
        if layer.weight not in calls.other_uses:
            found.append(Linear(layer.weight, None if layer.bias in calls.other_uses else layer.bias))
    return tuple(found)


def outer_leaves(model: TorchModel) -> frozenset[int]:
    """Return the indices of the parameters for which ``row_factors`` returns pairs."""
    return frozenset(model.state.names.index(layer.weight) for layer in model.linear)


def verify_linear(model: TorchModel, theta: Any, rows: Rows) -> TorchModel:
    """Return the model, without ``linear`` layers if the factors are not those of the gradients on these rows.

    The layers were found on a few rows, and a module may divide many rows into chunks. To detect this in every block
    would need the memory of full gradients where only that of factors was planned.
    """
    if model.linear and _linear_factors(model, theta, rows) is None:
        return replace(model, linear=())
    return model


def row_factors(model: TorchModel, theta: Any, rows: Rows) -> list[tuple[Any, ...]]:
    """Return the gradients of every output of every row, by parameter.

    For weights of ``model.linear`` the pair of factors (m * K, a), (m * K, b), for other parameters (m * K, size).
    """
    names = model.state.names
    factors = _linear_factors(model, theta, rows) if model.linear else None
    if factors is None:
        return leaf_rows(row_gradients(model, theta, rows).flatten(0, 1), model.state.shapes)
    others = [name for name in names if name not in factors]
    if others:
        blocks = [parts for _, parts in jacobian_blocks(model, theta, rows, others)]
        for name, *parts in zip(others, *blocks, strict=True):
            factors[name] = (torch.cat(parts).flatten(0, 1),)
    return [factors[name] for name in names]


def _linear_factors(model: TorchModel, theta: Any, rows: Rows) -> dict[str, tuple[Any, ...]] | None:
    """Return the gradients in weights and biases of linear layers by name; None if the layers are used in another way.

    Predictions of different rows are independent, so the gradient of their sum in z contains the gradient of each row.
    This fails if a module sorts its rows, or a hook changes gradients. Therefore a random combination of all rows is
    also differentiated in the parameters themselves, and must equal the combination of the outer products.
    """
    names = [name for layer in model.linear for name in layer if name is not None]
    parameters = _parameters(model, theta, names)
    calls = _LinearCalls({name: parameters[name] for name in names}, len(rows[0]))
    with recording():
        with calls:
            f = model.at(parameters, rows)
        if calls.other_uses or set(calls.layers.values()) != set(model.linear):
            return None
        products = [calls.products[layer.weight] for layer in model.linear]
        gradients = [
            torch.autograd.grad(total, products, retain_graph=True, materialize_grads=True) for total in f.sum(dim=0)
        ]
        coefficients = torch.randn(f.shape, dtype=f.dtype, generator=torch.Generator().manual_seed(0)).to(f.device)
        weights = [parameters[layer.weight] for layer in model.linear]
        expected = torch.autograd.grad((coefficients * f).sum(), weights, materialize_grads=True)
    factors: dict[str, tuple[Any, ...]] = {}
    for number, (weight, bias) in enumerate(model.linear):
        d = torch.stack([each[number] for each in gradients], dim=1).flatten(0, 1)
        h = calls.inputs[weight].repeat_interleave(model.outputs, dim=0)
        combined = (coefficients.reshape(-1, 1) * d).T @ h
        atol = _TOLERANCE * float(combined.abs().max())
        if not torch.allclose(combined, expected[number], rtol=_TOLERANCE, atol=atol):
            return None
        factors[weight] = (d, h)
        if bias is not None:
            factors[bias] = (d,)
    return factors


def _parameters(model: TorchModel, theta: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the parameters by name; those in ``names`` require gradients."""
    parameters = {name: value.detach() for name, value in model.state.split(theta.detach()).items()}
    for name in names:
        parameters[name].requires_grad_()
    return parameters
