"""What a row costs: the bytes that a tape keeps for it, or that it writes on its way through the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vhat.models.torch.inputs import Rows
from vhat.models.torch.model import Tape, TorchModel, take_rows

__all__ = ["tape_bytes_per_row", "written_bytes_per_row"]


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
