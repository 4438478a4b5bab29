"""Derivatives of a torch module over its training rows, from recorded chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vhat.models.loss import LossDerivatives
from vhat.models.protocols import Curvature, Lazy, Linearised, ModelFacts, Point, slices
from vhat.models.torch import probe
from vhat.models.torch.inputs import Rows, preserved_rng
from vhat.models.torch.model import TorchModel, take_rows, wrap_errors
from vhat.models.torch.outer_products import outer_leaves, row_factors, verify_linear
from vhat.models.torch.row_gradients import row_gradients
from vhat.models.torch.tape import Tape

if TYPE_CHECKING:
    from vhat.models.torch.autodiff import TorchAutodiff

__all__ = ["TorchLinearised", "rows_in_chunk"]

_CHUNK_BYTES = 2**23
"""Memory of the tape of one chunk, in bytes, about the size of the cache."""
_MAX_CHUNK_ROWS = 2000
"""Upper limit on the rows of one chunk, for modules whose tapes take little memory."""
_TAPES_SHARE = 8
"""Tapes of all rows are kept between calls if they take at most 1/8 of the memory budget."""
_BATCHED_BYTES = 2**22
"""Memory of the cotangents in one backward pass, in bytes, small enough for the cache."""


def rows_in_chunk(row_bytes: int, memory: int) -> int:
    """Return the number of rows in one chunk, for tapes that take ``row_bytes`` per row."""
    budget = min(_CHUNK_BYTES, memory // _TAPES_SHARE)
    return max(1, min(_MAX_CHUNK_ROWS, budget // row_bytes))


class TorchLinearised(Linearised):
    """Derivatives of a module: see :class:`vhat.models.protocols.Linearised`.

    A tape depends on the first and second derivatives of the loss of its rows. A block with other parameters,
    responses or weights records tapes of its own, so that no outdated tape can be used.

    Attributes:
        keeps_tapes: Whether the tapes of all rows fit the budget and are kept between calls.
    """

    _autodiff: TorchAutodiff
    _tapes: Lazy[list[Tape]]
    """The tapes of all rows, if they are kept."""
    _verified: Lazy[TorchModel]
    """The model, with its ``linear`` layers verified on many rows."""

    def __init__(self, autodiff: TorchAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        self._chunk_rows = min(point.n, rows_in_chunk(autodiff.row_bytes, point.memory))
        self.keeps_tapes = point.n * autodiff.row_bytes <= point.memory // _TAPES_SHARE
        same_fit = point.shared(before if isinstance(before, TorchLinearised) else None, "theta", "X", "memory")
        self._verified = same_fit._verified if same_fit else Lazy(partial(_verified, autodiff, point, self._chunk_rows))
        same_loss = point.shared(same_fit, "y", "weights")
        parts = (autodiff, point, self.loss, self._chunk_rows)
        self._tapes = same_loss._tapes if same_loss else Lazy(partial(_record_all, *parts))
        self._diagonal: Any = same_loss._diagonal if same_loss else None

    @property
    def autodiff(self) -> TorchAutodiff:
        """The module, with verified ``linear`` layers if they are known: they do not depend on the parameters."""
        if self._autodiff.many_rows or not self._verified.known:
            return self._autodiff
        return replace(self._autodiff, model=self._verified.result, many_rows=True)

    def facts(self) -> ModelFacts:
        """Check again whether the module is deterministic, and return its properties."""
        model = self._autodiff.model
        with preserved_rng(model.state.device):
            deterministic = probe.is_repeatable(model, self.point.theta, self.point.X)
        accuracy = 1e-7 if model.narrow else 1e-15
        return ModelFacts("torch", model.state.dtype, deterministic, model.narrow, accuracy, accuracy)

    # -- gradients of single predictions ---------------------------------------------------------
    def row_gradients(self, inputs: Rows, /) -> Any:
        """Return per-row gradients of every output, (m * K, p)."""
        model = self._autodiff.model
        theta = self.point.theta
        model.guard()
        with wrap_errors("differentiating the module at these inputs"):
            return row_gradients(model, theta, inputs).reshape(-1, len(theta))

    def row_factors(self, inputs: Rows, /) -> list[tuple[Any, ...]]:
        """Return these gradients split by parameter, for linear layers the two factors of each outer product."""
        self._autodiff.model.guard()
        with wrap_errors("differentiating the module at these inputs"):
            # Not limited by the number of training rows: a sketch has three placeholder rows.
            blocks = slices(len(inputs[0]), self._autodiff.chunk_rows)
            parts = [row_factors(self._verified.result, self.point.theta, take_rows(inputs, block)) for block in blocks]
        if len(parts) == 1:
            return parts[0]
        # From blocks of leaves of factors to leaves of factors.
        return [tuple(map(torch.cat, zip(*leaf, strict=True))) for leaf in zip(*parts, strict=True)]

    @property
    def outer_leaves(self) -> frozenset[int]:
        """Indices of the parameters whose gradients are outer products."""
        return outer_leaves(self._verified.result)

    # -- sums over the training rows -----------------------------------------------------------
    def objective(self) -> float:
        """Return the loss."""
        if self.loss.known:
            return super().objective()
        # Values only: a line search does not need the derivatives of the loss.
        point = self.point
        return float(np.mean(self._autodiff.loss_values(self.fitted.result, point.y, point.weights)))

    def gradient(self) -> Any:
        """Return the gradient of the loss, (p,)."""
        return sum(tape.gradient for tape in self._chunks())

    def product(self, v: Any, curvature: Curvature, /) -> Any:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        return sum(map(Tape.product, self._chunks(), repeat(v), repeat(curvature)))

    def diagonal(self) -> Any:
        """Return the diagonal of the Gauss-Newton part, (p,). It is cached, as it costs a pass of per-row gradients."""
        self._autodiff.model.guard()
        if self._diagonal is None:
            self._diagonal = super().diagonal()
        return self._diagonal.clone()

    def jvp(self, v: Any, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        return self._autodiff.arrays.numpy(torch.cat(list(map(Tape.jvp, self._chunks(), repeat(v))), dim=1))

    def vjp(self, t: np.ndarray, /) -> Any:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        parts = torch.split(self._autodiff.arrays.native(t), self._chunk_rows, dim=1)
        return sum(tape.vjp(part) for tape, part in zip(self._chunks(), parts, strict=True))

    def _chunks(self) -> Iterable[Tape]:
        """Return the tapes of all chunks of rows: kept ones, or recorded one at a time if they do not fit."""
        self._autodiff.model.guard()
        if self.keeps_tapes:
            return self._tapes.result
        # A generator, so that only one tape is in memory at a time.
        return _record(self._autodiff, self.point, self.loss.result, self._chunk_rows)


def _record_all(autodiff: TorchAutodiff, point: Point, loss: Lazy[LossDerivatives], size: int) -> list[Tape]:
    """Return the tapes of all rows."""
    return list(_record(autodiff, point, loss.result, size))


def _record(autodiff: TorchAutodiff, point: Point, loss: LossDerivatives, size: int) -> Iterator[Tape]:
    """Yield the tapes of chunks of ``size`` rows."""
    first = autodiff.arrays.native(loss.first / point.n)
    curvature = autodiff.arrays.native(loss.curvature / point.n)
    cotangents = max(1, _BATCHED_BYTES // max(size * autodiff.row_bytes, 1))  # in one backward pass
    for block in slices(point.n, size):
        rows = take_rows(point.X, block)
        yield Tape(autodiff.model, point.theta, rows, first[block], curvature[block], cotangents)


def _verified(autodiff: TorchAutodiff, point: Point, rows: int) -> TorchModel:
    """Return the model with its ``linear`` layers verified on a whole chunk of rows."""
    if autodiff.many_rows:
        return autodiff.model
    with wrap_errors("differentiating the module"):
        return verify_linear(autodiff.model, point.theta, take_rows(point.X, slice(0, rows)))
