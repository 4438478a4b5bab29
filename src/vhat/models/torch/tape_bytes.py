"""Measurement of memory per row: the bytes that a tape keeps for a row, or that a forward pass writes for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import TorchModel, take_rows
from vhat.models.torch.tape import Tape

__all__ = ["tape_bytes_per_row", "written_bytes_per_row"]


def tape_bytes_per_row(model: TorchModel, theta: Any, rows: Rows) -> int:
    """Return the memory that a tape keeps for one row, in bytes."""

    def kept(count: int) -> int:
        """Return the size of the tensors that autograd saves for this number of rows."""
        total = 0

        def pack(tensor: Any) -> Any:
            nonlocal total
            total += min(tensor.nbytes, tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            record(count)
        return total

    def written(count: int) -> int:
        """Return the size of all results of operations for this number of rows."""
        with _Written() as results:
            record(count)
        return results.total

    def record(count: int) -> None:
        ones = torch.ones(count, model.outputs, dtype=torch.float64, device=theta.device)
        Tape(model, theta, take_rows(rows, slice(0, count)), ones, ones)

    try:
        found = _per_row(kept, len(rows[0]))
    except RuntimeError:  # torch.func inside the module does not allow hooks
        found = _per_row(written, len(rows[0]))
    return max(found, 8 * model.outputs)


def _per_row(measure: Callable[[int], int], m: int) -> int:
    """Return the memory per row as the difference between m rows and half of them, or that of a single row.

    The difference leaves out what does not depend on the number of rows, such as views of the parameters.
    """
    if m == 1:
        return measure(1)
    return (measure(m) - measure(m // 2)) // (m - m // 2)


def written_bytes_per_row(model: TorchModel, theta: Any, rows: Rows) -> int:
    """Return the memory that a forward pass writes for one row, in bytes."""

    def written(count: int) -> int:
        with torch.inference_mode(False), torch.no_grad(), _Written() as results:
            model(theta, take_rows(rows, slice(0, count)))
        return results.total

    return int(max(8 * model.outputs, _per_row(written, len(rows[0]))))


class _Written(TorchDispatchMode):  # type: ignore[misc]
    """Sum of the sizes of all results of operations, in bytes: an upper bound on what a tape keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.total += sum(leaf.nbytes for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        return output
