"""The problem of a module's last linear layer. Data are read in one pass, and only the layer's inputs are kept."""

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
from vhat.models.torch.options import TorchOptions
from vhat.models.torch.reference import record_reference
from vhat.models.torch.tape_bytes import written_bytes_per_row
from vhat.models.validate import refuse_loss
from vhat.progress import bar
from vhat.tables.rows import Rows as FileRows
from vhat.tables.rows import check_responses

__all__ = ["last_layer_problem", "make_head"]

_SAMPLE_ROWS = 64
"""Number of rows on which the module is probed. They are kept."""
_CHUNK_BYTES = 2**24
"""Memory that a forward pass of one chunk of rows may write, in bytes."""
_MAX_CHUNK_ROWS = 4096
"""Upper limit on the rows of one forward pass, for modules that write little per row."""
_N_SPACE_ARRAYS = 12
"""Number of (n, K) arrays that an interval needs in addition to the layer's inputs."""

Batches = Iterator[tuple[Any, Any]]
"""Batches of inputs and responses."""


def last_layer_problem(module: Any, X: Any, y: Any, options: TorchOptions) -> Problem:
    """Return the problem of a module's last linear layer; all other parameters are held fixed.

    Args:
        module: A module in evaluation mode.
        X: Training inputs, or a DataLoader or Dataset, which is read batch by batch.
        y: Responses; None with a DataLoader.
        options: The other options.

    Raises:
        InputError: For data, decay or options that cannot be used.
        ModelError: For a module that cannot be used, or has no last linear layer.
        MemoryBudgetError: When the layer's inputs exceed the budget.
    """
    count, batches = _batches(X, y, options.target_key)
    first = next(batches, None)
    if first is None:
        raise InputError("the DataLoader has no rows; give at least one.")
    device = next(iter(module.parameters()), torch.empty(0)).device
    with preserved_rng(device), torch.inference_mode(False):
        layout, rows = read_rows(first[0], device)
        sample = probe.few_rows(rows, _SAMPLE_ROWS)
        autodiff = make_head(module, layout, sample, options.row_loss, options.target_key, options.output)
        features, targets = _read(autodiff, layout, chain([(rows, first[1])], batches), count, options.memory)
        n = len(features)
        outputs = len(autodiff.head.mixing)
        problem = Problem(
            autodiff=autodiff,
            theta=autodiff.theta,
            decay=decay_of(options.weight_decay, autodiff.base.model.state) * decay_factor(options.loss, outputs),
            X=(features,),
            targets=check_targets(targets, (n,) if autodiff.squeeze else (n, outputs)),
            weights=check_weights(plain(options.sample_weight), n),
            memory=options.memory,
        )
    check_finite("the model's prediction on X", problem.fitted_values, ModelError)
    refuse_loss(problem.loss_derivatives)
    return problem


def make_head(module: Any, layout: Layout, sample: Rows, loss: Loss, target_key: str | None, output: Any) -> TorchHead:
    """Identify the last layer of a module on a few rows, and return it with the number of rows per forward pass."""
    model, theta, layer, head = find_head(module, layout, sample, output)
    with wrap_errors("evaluating the module"):
        row_bytes = written_bytes_per_row(model, theta, probe.few_rows(sample))
        casts = probe.narrow_casts(model, theta, sample)
        reference = record_reference(model, theta, sample, casts)
    chunk_rows = max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))
    base = TorchAutodiff(model, loss, row_bytes, chunk_rows, target_key, references=(reference,))
    autodiff = TorchHead(base, head, sample, layer, theta, narrow=bool(casts))
    autodiff.refuse_other_parameters()
    return autodiff


def _batches(X: Any, y: Any, target_key: str | None) -> tuple[int | None, Batches]:
    """Return the number of rows, None if unknown, and the rows in batches."""
    if isinstance(X, FileRows):
        check_responses(X, y, "from_torch(module, rows, parameters='last')")
        return len(X), iter(X)
    if is_loader(X):
        if y is not None:
            raise InputError("X is a DataLoader, which contains the targets; leave y out.")
        return stream_loader(X, target_key)
    if y is None and isinstance(X, Mapping) and target_key in X:
        y = X[target_key]
        X = {key: value for key, value in X.items() if key != target_key}
    if y is None:
        raise InputError("y is missing; give the responses, or a DataLoader that yields (x, y).")
    return None, iter([(X, y)])


def _read(
    autodiff: TorchHead, layout: Layout, batches: Batches, count: int | None, memory: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of the layer, (n, q), and the responses. Nothing else is kept.

    Raises:
        InputError: For rows of another layout than the first batch, or that are not finite.
        MemoryBudgetError: When they exceed the budget.
    """
    first_rows, first_targets = next(batches)
    features = _GrowingMatrix(count, autodiff.head.inputs, memory, len(autodiff.head.mixing))
    targets = [np.asarray(plain(first_targets))]
    features.add(_check_features(autodiff.features(first_rows), 0))
    remaining = 0 if count is None else -(-count // features.rows) - 1  # batches
    with bar("rows through the network", remaining) as advance:
        for x, y in batches:
            try:
                rows = check_rows(x, layout, autodiff.base.model.state.device)
            except InputError as error:
                raise InputError(f"in the batch that starts with row {features.rows}: {error}") from None
            features.add(_check_features(autodiff.features(rows), features.rows))
            targets.append(np.asarray(plain(y)))
            advance("")
    shapes = {target.shape[1:] for target in targets}
    if len(shapes) > 1:
        raise InputError(f"the DataLoader's targets have rows of different shapes ({sorted(shapes)}).")
    return features.whole(), targets[0] if len(targets) == 1 else np.concatenate(targets)


def _check_features(z: np.ndarray, start: int) -> np.ndarray:
    """Return inputs of the layer if they are finite; raise and name the rows otherwise.

    Args:
        z: The inputs of the layer at some rows.
        start: The number of the first of these rows.
    """
    bad = np.flatnonzero(~np.isfinite(z).all(axis=1))
    if bad.size:
        raise ModelError(
            f"the inputs of the last layer have NaN or infinite values in {name_rows(start + bad)}. Remove or repair "
            "these rows."
        )
    return z


class _GrowingMatrix:
    """A matrix to which blocks of rows are appended.

    Attributes:
        rows: Number of rows appended so far.
    """

    def __init__(self, count: int | None, columns: int, memory: int, outputs: int) -> None:
        """Allocate the matrix, if the number of rows is known.

        Args:
            count: The number of rows, or None.
            columns: The number of columns.
            memory: Budget in bytes.
            outputs: Number of outputs of the model.
        """
        self.rows = 0
        self._columns = columns
        self._row_bytes = 8 * (columns + _N_SPACE_ARRAYS * outputs)
        self._memory = memory
        self._check_budget(count or 0)
        self._matrix = np.empty((count or 0, columns))

    def add(self, block: np.ndarray) -> None:
        """Append some rows."""
        end = self.rows + len(block)
        if end > len(self._matrix):
            self._check_budget(end)
            self._grow(end)
        self._matrix[self.rows : end] = block
        self.rows = end

    def whole(self) -> np.ndarray:
        """Return the rows that were appended."""
        return self._matrix[: self.rows]

    def _grow(self, rows: int) -> None:
        """Allocate memory for ``rows`` rows, or for half as many rows again if that is more.

        With geometric growth, the total cost of the copies is proportional to the number of rows.
        """
        capacity = rows if self.rows == 0 else max(rows, self.rows * 3 // 2)
        larger = np.empty((capacity, self._columns))
        larger[: self.rows] = self._matrix[: self.rows]
        self._matrix = larger

    def _check_budget(self, rows: int) -> None:
        """Raise if this number of rows exceeds the budget."""
        need = rows * self._row_bytes
        if need > self._memory:
            raise MemoryBudgetError(
                f"the inputs of the last layer, {self._columns} numbers per row, take {need / 1e9:.3g} GB for "
                f"{rows:,} rows, and the budget is {self._memory / 1e9:.3g} GB. Give a larger memory, or fewer rows."
            )
