"""Gradients of single predictions of a module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import TorchModel, recording, take_rows

__all__ = ["jacobian_blocks", "row_gradients", "row_gradients_one_by_one"]

_BLOCK_BYTES = 2**24
"""Size of one block of per-row gradients, in bytes. Allocating larger blocks costs more time than the arithmetic."""
_MAX_BLOCK_ROWS = 512
"""Upper limit on the rows of one block, for modules with few parameters."""


def jacobian_blocks(
    model: TorchModel, theta: Any, rows: Rows, names: Sequence[str]
) -> Iterator[tuple[slice, list[Any]]]:
    """Yield blocks of rows with their Jacobian by parameter, (m, K, size of the parameter) each.

    Args:
        model: A module that ``torch.vmap`` can map over rows.
        theta: Flat parameters, (p,).
        rows: Inputs.
        names: The parameters in which to differentiate.
    """
    state = model.state
    trained = state.trained_parts(theta.detach())
    varied = {name: trained[name] for name in names}

    def predict_row(varied: dict[str, Any], row: Rows) -> Any:
        # The module takes whole rows, so a single row is passed as a block of one.
        return model.at(state.complete({**trained, **varied}), tuple(value[None] for value in row))[0]

    row_numbers = sum(value.numel() for value in varied.values()) * model.outputs
    size = min(_MAX_BLOCK_ROWS, max(1, _BLOCK_BYTES // (8 * row_numbers)))
    for start in range(0, len(rows[0]), size):
        block = slice(start, min(start + size, len(rows[0])))
        with torch.inference_mode(False):
            jacobian = torch.vmap(torch.func.jacrev(predict_row), in_dims=(None, 0))
            parts = jacobian(varied, take_rows(rows, block))
        shape = (block.stop - start, model.outputs, -1)
        yield block, [parts[name].reshape(shape) for name in names]


def row_gradients(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """Return the gradients of every output of every row, (m, K, p)."""
    if not model.mapped:
        return row_gradients_one_by_one(model, theta, rows)
    gradients = torch.empty(len(rows[0]), model.outputs, len(theta), dtype=torch.float64, device=theta.device)
    for block, parts in jacobian_blocks(model, theta, rows, model.state.names):
        torch.cat(parts, dim=2, out=gradients[block])  # in place, without another copy of the block
    return gradients


def row_gradients_one_by_one(model: TorchModel, theta: Any, rows: Rows) -> Any:
    """Return the same without ``vmap``, for modules that it cannot map (recurrent kernels, branches on values)."""
    gradients = []
    with recording():
        leaf = theta.detach().requires_grad_()
        for index in range(len(rows[0])):
            f = model(leaf, take_rows(rows, slice(index, index + 1)))[0]
            gradients.append(torch.stack([torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in f]))
    return torch.stack(gradients)
