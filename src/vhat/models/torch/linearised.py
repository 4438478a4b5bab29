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
from vhat.models.torch.model import Tape, TorchModel, row_gradients, take_rows, wrap_errors
from vhat.models.torch.outer_products import kept_up, outer_leaves, row_factors

if TYPE_CHECKING:
    from vhat.models.torch.autodiff import TorchAutodiff

__all__ = ["TorchLinearised", "rows_in_chunk"]

_CHUNK_BYTES = 2**23
"""What the tape of one chunk may keep, to stay near the cache."""
_MOST_ROWS = 2000
"""Rows of one chunk at most."""
_TAPES_SHARE = 8
"""Tapes are kept for the next call where all of them take at most this part (1/8) of the budget."""
_BATCHED_BYTES = 2**22
"""Cotangents go backward together while what they take stays in the cache."""


def rows_in_chunk(row_bytes: int, memory: int) -> int:
    """Return how many rows are recorded at a time, when a tape keeps ``row_bytes`` for each."""
    budget = min(_CHUNK_BYTES, memory // _TAPES_SHARE)
    return max(1, min(_MOST_ROWS, budget // row_bytes))


class TorchLinearised(Linearised):
    """Derivatives of a module: see :class:`vhat.models.protocols.Linearised`.

    A tape holds the first derivative and the curvature of the loss of its rows. A block with other parameters,
    responses or weights is another block with tapes of its own: none can be stale.

    Attributes:
        keeps_tapes: Whether the budget allows to keep the tapes of all rows for the next call.
    """

    _autodiff: TorchAutodiff
    _kept: Lazy[list[Tape]]
    _factored: Lazy[TorchModel]
    """The model with those of its linear layers whose gradients are outer products on many rows as well."""

    def __init__(self, autodiff: TorchAutodiff, point: Point, before: Linearised | None) -> None:
        super().__init__(autodiff, point)
        self._chunk_rows = min(point.n, rows_in_chunk(autodiff.row_bytes, point.memory))
        self.keeps_tapes = point.n * autodiff.row_bytes <= point.memory // _TAPES_SHARE
        here = point.shared(before if isinstance(before, TorchLinearised) else None, "theta", "X", "memory")
        self._factored = here._factored if here else Lazy(partial(_factored, autodiff, point, self._chunk_rows))
        again = point.shared(here, "y", "weights")
        parts = (autodiff, point, self.loss, self._chunk_rows)
        self._kept = again._kept if again else Lazy(partial(_recorded, *parts))
        self._diagonal: Any = again._diagonal if again else None

    @property
    def autodiff(self) -> TorchAutodiff:
        """The module; which of its layers many rows go through does not depend on where the parameters are."""
        known = self._factored.known and not self._autodiff.many_rows
        return replace(self._autodiff, model=self._factored.result, many_rows=True) if known else self._autodiff

    def facts(self) -> ModelFacts:
        """Probe again whether the module repeats itself; where it leaves float64 was found at the door."""
        model, point = self._autodiff.model, self.point
        with preserved_rng(model.state.device):
            repeatable = probe.is_repeatable(model, point.theta, point.X)
        accuracy = 1e-7 if model.narrow else 1e-15
        return ModelFacts("torch", model.state.dtype, repeatable, model.narrow, accuracy, accuracy)

    # -- gradients of single predictions ---------------------------------------------------------
    def row_gradients(self, inputs: Rows, /) -> Any:
        """Return per-row gradients of every output, (m * K, p)."""
        model, theta = self._autodiff.model, self.point.theta
        model.guard()
        with wrap_errors("differentiating the module at these inputs"):
            return row_gradients(model, theta, inputs).reshape(-1, len(theta))

    def row_factors(self, inputs: Rows, /) -> list[tuple[Any, ...]]:
        """Return the same leaf by leaf, linear layers as the two factors of each outer product."""
        self._autodiff.model.guard()
        with wrap_errors("differentiating the module at these inputs"):
            blocks = slices(len(inputs[0]), self._chunk_rows)
            parts = [row_factors(self._factored.result, self.point.theta, take_rows(inputs, block)) for block in blocks]
        if len(parts) == 1:
            return parts[0]
        return [tuple(map(torch.cat, zip(*leaf, strict=True))) for leaf in zip(*parts, strict=True)]

    @property
    def outer_leaves(self) -> frozenset[int]:
        """The numbers of the parameters whose gradients are outer products."""
        return outer_leaves(self._factored.result)

    # -- sums over the training rows -----------------------------------------------------------
    def objective(self) -> float:
        """Return the loss."""
        if self.loss.known:
            return super().objective()
        point = self.point
        return float(np.mean(self._autodiff.loss_values(self.fitted.result, point.y, point.weights)))

    def gradient(self) -> Any:
        """Return the gradient of the loss, (p,)."""
        return sum(tape.gradient for tape in self._tapes())

    def product(self, v: Any, curvature: Curvature, /) -> Any:
        """Return ``H v`` or its Gauss-Newton part for each row of v, without decay."""
        return sum(map(Tape.product, self._tapes(), repeat(v), repeat(curvature)))

    def diagonal(self) -> Any:
        """Return the diagonal of the Gauss-Newton part, (p,); kept, for it costs a pass of per-row gradients."""
        self._autodiff.model.guard()
        if self._diagonal is None:
            self._diagonal = super().diagonal()
        return self._diagonal.clone()

    def jvp(self, v: Any, /) -> np.ndarray:
        """Return ``J v`` for each row of v: (k, p) to (k, n, K)."""
        return self._autodiff.arrays.numpy(torch.cat(list(map(Tape.jvp, self._tapes(), repeat(v))), dim=1))

    def vjp(self, t: np.ndarray, /) -> Any:
        """Return ``J' t`` for each block of t: (k, n, K) to (k, p)."""
        parts = torch.split(self._autodiff.arrays.native(t), self._chunk_rows, dim=1)
        return sum(tape.vjp(part) for tape, part in zip(self._tapes(), parts, strict=True))

    def _tapes(self) -> Iterable[Tape]:
        """Return the recorded chunks, kept where they fit, else recorded one by one."""
        self._autodiff.model.guard()
        if self.keeps_tapes:
            return self._kept.result
        return _record(self._autodiff, self.point, self.loss.result, self._chunk_rows)


def _recorded(autodiff: TorchAutodiff, point: Point, loss: Lazy[LossDerivatives], size: int) -> list[Tape]:
    return list(_record(autodiff, point, loss.result, size))


def _record(autodiff: TorchAutodiff, point: Point, loss: LossDerivatives, size: int) -> Iterator[Tape]:
    """Record the training rows, ``size`` at a time."""
    first, curvature = (autodiff.arrays.native(part / point.n) for part in (loss.first, loss.curvature))
    together = max(1, _BATCHED_BYTES // max(size * autodiff.row_bytes, 1))  # cotangents that go backward at once
    for block in slices(point.n, size):
        rows = take_rows(point.X, block)
        yield Tape(autodiff.model, point.theta, rows, first[block], curvature[block], together)


def _factored(autodiff: TorchAutodiff, point: Point, rows: int) -> TorchModel:
    if autodiff.many_rows:
        return autodiff.model
    with wrap_errors("differentiating the module"):
        return kept_up(autodiff.model, point.theta, take_rows(point.X, slice(0, rows)))
