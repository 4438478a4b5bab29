"""Derivatives of a module over a chunk of rows: one recording serves products, Jacobians and their transposes.

Recording the gradient once and going backward through it for each right-hand side is the fastest eager way that was
measured: 0.6 to 2.1 plain gradients per Hessian product and 0.5 to 1.5 per Gauss-Newton product for one and two hidden
layers, where ``torch.func`` takes 3.4 to 4.8 by ``jvp(grad)``, 2.6 to 4.9 by ``vmap`` of it, and ten and more by
``linearize`` unless its trace is kept. It also needs no forward-mode rules, which attention and others lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vhat.models.protocols import Curvature
from vhat.models.torch.inputs import Rows, take_rows
from vhat.models.torch.model import TorchModel

__all__ = [
    "Tape",
    "cotangents_together",
    "jacobian_blocks",
    "recording",
    "row_gradients",
    "row_gradients_one_by_one",
    "rows_together",
    "tape_bytes_per_row",
    "written_bytes_per_row",
]

_BATCHED_BYTES = 2**22  # cotangents go backward together while their work stays in the cache

_MAPPED_BYTES = 2**24  # per-row gradients are made in blocks of this size: fresh memory costs more than arithmetic
_MOST_MAPPED = 512


@contextmanager
def recording() -> Iterator[None]:
    """Record for autograd, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


class Tape:
    """The chunk's predictions ``f`` and its share ``g = J'u`` of the gradient of L, recorded as functions of theta.

    ``u = first + C (f - f_hat)`` is the loss derivative to first order around the fitted values ``f_hat``, so the
    derivative of ``g`` in theta is the exact Hessian ``J'CJ + sum_i first_i hess f_i`` for any loss; the derivative of
    ``g`` in ``u`` is the transpose of ``J'``.

    Attributes:
        values: The predictions, (m, K).
        gradient: ``J' first``, (p,).
    """

    def __init__(self, model: TorchModel, theta: Any, rows: Rows, first: Any, curvature: Any, block: int = 1) -> None:
        """Record one chunk.

        Args:
            model: The module as a function.
            theta: Flat parameters, (p,).
            rows: The chunk's inputs, m rows.
            first: ``w l'/n`` at the fitted values, (m, K).
            curvature: ``w l''/n``, (m, K) or (m, K, K).
            block: How many cotangents go backward together.
        """
        self._curvature, self._block = curvature, block if model.batched else 1
        with recording():
            self._theta = theta.detach().requires_grad_()
            self._f = model(self._theta, rows)
            self._u = first + self._weigh(self._f - self._f.detach())
            (self._g,) = torch.autograd.grad(self._f, self._theta, self._u, create_graph=True)
        self.values, self.gradient = self._f.detach(), self._g.detach()

    def product(self, v: Any, curvature: Curvature) -> Any:
        """The chunk's share of ``H v``, or of its Gauss-Newton part, for each row of v: (k, p) to (k, p)."""
        if curvature == "hessian":
            return self._backward(self._g, self._theta, v)
        return self.vjp(self._weigh(self.jvp(v)))

    def jvp(self, v: Any) -> Any:
        """``J v``: (k, p) to (k, m, K)."""
        return self._backward(self._g, self._u, v)

    def vjp(self, t: Any) -> Any:
        """``J' t``: (k, m, K) to (k, p)."""
        return self._backward(self._f, self._theta, t)

    def _weigh(self, t: Any) -> Any:
        if self._curvature.ndim == 2:
            return self._curvature * t
        return torch.einsum("mij,...mj->...mi", self._curvature, t)

    def _backward(self, output: Any, source: Any, cotangents: Any) -> Any:
        def pull(cotangent: Any, batched: bool) -> Any:
            return torch.autograd.grad(output, source, cotangent, retain_graph=True, is_grads_batched=batched)[0]

        with torch.inference_mode(False):
            if self._block > 1 and len(cotangents) > 1:
                return torch.cat([pull(block, True) for block in torch.split(cotangents, self._block)])
            return torch.stack([pull(cotangent, False) for cotangent in cotangents])


def cotangents_together(tape_bytes: int) -> int:
    """How many cotangents to send backward at once through a tape of this size."""
    return max(1, _BATCHED_BYTES // max(tape_bytes, 1))


def tape_bytes_per_row(model: TorchModel, theta: Any, rows: Rows) -> int:
    """Measure what a tape keeps for one row, by the difference between a shorter and a longer chunk."""

    def kept(count: int) -> int:
        total = 0

        def pack(tensor: Any) -> Any:
            nonlocal total
            total += min(tensor.nbytes, tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            record(count)
        return total

    def written(count: int) -> int:
        with _Written() as watch:
            record(count)
        return watch.total

    def record(count: int) -> None:
        ones = torch.ones(count, model.outputs, dtype=torch.float64, device=theta.device)
        Tape(model, theta, take_rows(rows, slice(0, count)), ones, ones)

    def per_row(measure: Callable[[int], int]) -> int:
        m = len(rows[0])
        return (measure(m) - measure(m // 2)) // (m - m // 2) if m > 1 else measure(1)

    try:
        found = per_row(kept)
    except RuntimeError:  # torch.func in the module allows no hooks
        found = per_row(written)
    return max(found, 8 * model.outputs)


def written_bytes_per_row(model: TorchModel, theta: Any, rows: Rows) -> int:
    """Measure what one row writes on its way through the module."""

    def written(count: int) -> int:
        with torch.inference_mode(False), torch.no_grad(), _Written() as watch:
            model(theta, take_rows(rows, slice(0, count)))
        return watch.total

    # By the difference between fewer and more rows: views of the parameters are counted in both.
    m = len(rows[0])
    found = (written(m) - written(m // 2)) // (m - m // 2) if m > 1 else written(1)
    return int(max(8 * model.outputs, found))


class _Written(TorchDispatchMode):  # type: ignore[misc]
    """Adds up what every operation gives, which is more than a tape keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.total += sum(leaf.nbytes for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        return output


def rows_together(numbers: int) -> int:
    """How many rows to differentiate at once where each gives so many numbers."""
    return min(_MOST_MAPPED, max(1, _MAPPED_BYTES // (8 * numbers)))


def jacobian_blocks(
    model: TorchModel, theta: Any, rows: Rows, names: Sequence[str]
) -> Iterator[tuple[slice, list[Any]]]:
    """Yield cache-sized blocks of rows with their Jacobian, parameter by parameter: (m, K, size of the parameter).

    Args:
        model: A module that ``torch.vmap`` can map.
        theta: Flat parameters, (p,).
        rows: Inputs.
        names: The parameters that are asked for.
    """
    state = model.state
    trained = state.pieces(theta.detach())
    asked = {name: trained[name] for name in names}

    def one(asked: dict[str, Any], row: Rows) -> Any:
        return model.at(state.filled({**trained, **asked}), tuple(value[None] for value in row))[0]

    size = rows_together(sum(value.numel() for value in asked.values()) * model.outputs)
    for start in range(0, len(rows[0]), size):
        block = slice(start, min(start + size, len(rows[0])))
        with torch.inference_mode(False):
            jacobian = torch.vmap(torch.func.jacrev(one), in_dims=(None, 0))
            parts = jacobian(asked, take_rows(rows, block))
        shape = (block.stop - start, model.outputs, -1)
        yield block, [parts[name].reshape(shape) for name in names]


def row_gradients(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """Gradients of every output of every row, (m, K, p)."""
    if not model.mapped:
        return row_gradients_one_by_one(model, theta, rows)
    found = torch.empty(len(rows[0]), model.outputs, len(theta), dtype=torch.float64, device=theta.device)
    for block, parts in jacobian_blocks(model, theta, rows, model.state.names):
        torch.cat(parts, dim=2, out=found[block])
    return found


def row_gradients_one_by_one(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """The same without ``vmap``, for modules that it cannot map (recurrent kernels, branches on values)."""
    found = []
    with recording():
        leaf = theta.detach().requires_grad_()
        for index in range(len(rows[0])):
            f = model(leaf, take_rows(rows, slice(index, index + 1)))[0]
            found.append(torch.stack([torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in f]))
    return torch.stack(found)
