"""A module and its data as the problem of its last linear layer, read in one pass: only the layer's inputs are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from vhat.checks import Loss, check_finite, check_targets, check_weights, decay_factor
from vhat.errors import InputError, MemoryBudgetError, ModelError, name_rows
from vhat.models.problem import Problem
from vhat.models.torch import probe
from vhat.models.torch.arrays import plain
from vhat.models.torch.autodiff import TorchAutodiff
from vhat.models.torch.data_loader import is_loader, stream_loader
from vhat.models.torch.decay import decay_of
from vhat.models.torch.inputs import Layout, Rows, check_rows, preserved_rng, read_rows
from vhat.models.torch.last_layer import TorchHead, find_head
from vhat.models.torch.model import wrap_errors
from vhat.models.torch.reference import record_reference
from vhat.models.torch.tape_bytes import written_bytes_per_row
from vhat.models.validate import refuse_loss
from vhat.progress import bar
from vhat.tables.rows import Rows as FileRows
from vhat.tables.rows import check_responses

__all__ = ["last_layer_problem", "make_head"]

_SAMPLE = 64
"""Rows on which the module is probed; they are kept."""
_CHUNK_BYTES = 2**24
"""What a pass over some rows may write, to stay near the cache."""
_MOST_ROWS = 4096
"""Rows that go through the module together at most."""
_N_SPACE = 12
"""Arrays of a number per row and output that an interval needs beside the layer's inputs."""

Batches = Iterator[tuple[Any, Any]]
"""Inputs and responses of some rows."""


def last_layer_problem(
    module: Any,
    X: Any,
    y: Any,
    *,
    weight_decay: Any,
    loss: Any,
    sample_weight: Any,
    target_key: str | None,
    output: Any,
    memory: int,
) -> Problem:
    """Make the problem of a module's last linear layer; everything before it is held fixed.

    Args:
        module: A module in evaluation mode.
        X: Training inputs, or a DataLoader or Dataset, which is read batch by batch.
        y: Responses; None with a DataLoader.
        weight_decay: lam, as in :func:`vhat.models.torch.build.torch_problem`.
        loss: As there.
        sample_weight: As there.
        target_key: As there.
        output: As there.
        memory: Budget in bytes.

    Raises:
        InputError: For data, decay or options that cannot be used.
        ModelError: For a module that cannot be used, or has no last linear layer.
        MemoryBudgetError: When the layer's inputs do not fit.
    """
    count, batches = _batches(X, y, target_key)
    first = next(batches, None)
    if first is None:
        raise InputError("the DataLoader has no rows; give at least one.")
    named: Loss = "half_mse" if isinstance(loss, str) else loss
    device = next(iter(module.parameters()), torch.empty(0)).device
    with preserved_rng(device), torch.inference_mode(False):
        layout, rows = read_rows(first[0], device)
        autodiff = make_head(module, layout, probe.few_rows(rows, _SAMPLE), named, target_key, output)
        Z, targets = _read(autodiff, layout, chain([(rows, first[1])], batches), count, memory)
        n = len(Z)
        shape = (n,) if autodiff.squeeze else (n, len(autodiff.head.mixing))
        problem = Problem(
            autodiff=autodiff,
            theta=autodiff.theta,
            decay=decay_of(weight_decay, autodiff.base.model.state) * decay_factor(loss, len(autodiff.head.mixing)),
            X=(Z,),
            targets=check_targets(targets, shape),
            weights=check_weights(plain(sample_weight), n),
            memory=memory,
        )
    check_finite("the model's prediction on X", problem.fitted_values, ModelError)
    refuse_loss(problem.loss_derivatives)
    return problem


def make_head(module: Any, layout: Layout, sample: Rows, loss: Loss, target_key: str | None, output: Any) -> TorchHead:
    """Find the last layer of a module on a few rows, and how many rows may go through the module together."""
    model, theta, layer, head = find_head(module, layout, sample, output)
    with wrap_errors("evaluating the module"):
        row_bytes = written_bytes_per_row(model, theta, probe.few_rows(sample))
        casts = probe.narrow_casts(model, theta, sample)
        reference = record_reference(model, theta, sample, casts)
    together = max(1, min(_MOST_ROWS, _CHUNK_BYTES // row_bytes))
    base = TorchAutodiff(model, loss, row_bytes, together, target_key, references=(reference,))
    autodiff = TorchHead(base, head, sample, layer, theta, narrow=bool(casts))
    autodiff.refuse_other_parameters()
    return autodiff


def _batches(X: Any, y: Any, target_key: str | None) -> tuple[int | None, Batches]:
    """Return how many rows there are, where that is known, and the rows in batches."""
    if isinstance(X, FileRows):
        check_responses(X, y, "from_torch(module, rows, parameters='last')")
        return len(X), iter(X)
    if is_loader(X):
        if y is not None:
            raise InputError("X is a DataLoader, which brings its targets; leave y out.")
        return stream_loader(X, target_key)
    if y is None and isinstance(X, Mapping) and target_key in X:
        X, y = {key: value for key, value in X.items() if key != target_key}, X[target_key]
    if y is None:
        raise InputError("y is missing; give the responses, or a DataLoader that yields (x, y).")
    return None, iter([(X, y)])


def _read(
    autodiff: TorchHead, layout: Layout, batches: Batches, count: int | None, memory: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of the layer, (n, q), and the responses as they came; nothing else is kept.

    Raises:
        InputError: For rows of another layout than the first, or that are not finite.
        MemoryBudgetError: When they do not fit.
    """
    first = next(batches)
    kept = _Growing(count, autodiff.head.inputs, memory, len(autodiff.head.mixing))
    targets = [np.asarray(plain(first[1]))]
    kept.add(_checked(autodiff.features(first[0]), 0))
    more = 0 if count is None else -(-count // kept.rows) - 1
    with bar("rows through the network", more) as advance:
        for x, y in batches:
            try:
                rows = check_rows(x, layout, autodiff.base.model.state.device)
            except InputError as error:
                raise InputError(f"in the batch that starts with row {kept.rows}: {error}") from None
            kept.add(_checked(autodiff.features(rows), kept.rows))
            targets.append(np.asarray(plain(y)))
            advance("")
    shapes = {target.shape[1:] for target in targets}
    if len(shapes) > 1:
        raise InputError(f"the DataLoader's targets have rows of different shapes ({sorted(shapes)}).")
    return kept.whole(), targets[0] if len(targets) == 1 else np.concatenate(targets)


def _checked(z: np.ndarray, start: int) -> np.ndarray:
    """Refuse inputs of the layer that are not finite, by the numbers of their rows."""
    bad = np.flatnonzero(~np.isfinite(z).all(axis=1))
    if bad.size:
        raise ModelError(
            f"the inputs of the last layer have NaN or infinite values in {name_rows(start + bad)}. Remove or repair "
            "these rows."
        )
    return z


class _Growing:
    """A matrix that is filled block by block: allocated once where the number of rows is known."""

    def __init__(self, count: int | None, columns: int, memory: int, outputs: int) -> None:
        self.rows = 0
        self._columns = columns
        self._row_bytes = 8 * (columns + _N_SPACE * outputs)
        self._memory = memory
        self._refuse_beyond(count or 0)
        self._matrix = np.empty((count or 0, columns))

    def add(self, block: np.ndarray) -> None:
        """Append some rows."""
        end = self.rows + len(block)
        if end > len(self._matrix):
            self._refuse_beyond(end)
            self._grow(end)
        self._matrix[self.rows : end] = block
        self.rows = end

    def whole(self) -> np.ndarray:
        """Return the rows that were added."""
        return self._matrix[: self.rows]

    def _grow(self, rows: int) -> None:
        """Make room for half as many rows again."""
        room = np.empty((rows if self.rows == 0 else max(rows, self.rows * 3 // 2), self._matrix.shape[1]))
        room[: self.rows] = self._matrix[: self.rows]
        self._matrix = room

    def _refuse_beyond(self, rows: int) -> None:
        need = rows * self._row_bytes
        if need > self._memory:
            raise MemoryBudgetError(
                f"the inputs of the last layer, {self._columns} numbers a row, take {need / 1e9:.3g} GB for "
                f"{rows:,} rows, and the budget is {self._memory / 1e9:.3g} GB. Give a larger memory, or fewer rows."
            )
