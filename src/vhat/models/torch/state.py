"""The tensors of a module, in float64, divided into trained and fixed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

__all__ = ["State", "TrainedRows"]


@dataclass(frozen=True)
class TrainedRows:
    """The trained rows of a parameter whose other rows are held fixed.

    Attributes:
        rows: The indices of the trained rows, (k,).
        base: The whole parameter, in float64.
    """

    rows: Any
    base: Any

    def select(self, whole: Any) -> Any:
        """Return the trained rows of the whole parameter."""
        return whole[self.rows]

    def insert(self, part: Any) -> Any:
        """Return the whole parameter with these values in its trained rows."""
        return self.base.index_copy(0, self.rows, part)


@dataclass(frozen=True)
class State:
    """The tensors of a module, in float64, divided into trained and fixed ones.

    Attributes:
        names: Names of the trained parameters, tied ones once.
        shapes: Their shapes.
        fixed: Frozen parameters and buffers by name.
        frozen: Names of the frozen parameters among ``fixed``.
        device: The device of all tensors.
        dtype: The dtype in which the trained parameters were given.
        selected: Whether ``parameters=`` has selected the trained ones; otherwise they are those that require a
            gradient.
        slots: Parameters with only some rows trained. Their entries in ``shapes`` are the shapes of these rows.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    fixed: dict[str, Any]
    frozen: tuple[str, ...]
    device: Any
    dtype: str
    selected: bool = False
    slots: dict[str, TrainedRows] = field(default_factory=dict, kw_only=True)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of trained values of each parameter."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    def split(self, theta: Any) -> dict[str, Any]:
        """Return the trained parameters by name; views of the flat vector, if all of their rows are trained."""
        parts = self.trained_parts(theta)
        return self.complete(parts) if self.slots else parts

    def trained_parts(self, theta: Any) -> dict[str, Any]:
        """Return the trained part of each parameter by name, as a view of the flat vector."""
        parts = map(torch.reshape, torch.split(theta, self.sizes), self.shapes)
        return dict(zip(self.names, parts, strict=True))

    def complete(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Return the whole parameters by name, given their trained parts."""
        return {name: self.slots[name].insert(part) if name in self.slots else part for name, part in parts.items()}

    def hold(self, free: Sequence[str], slots: dict[str, TrainedRows], values: dict[str, Any]) -> State:
        """Return the state with only some of the trained parameters trained and the others held fixed.

        Args:
            free: Names of the parameters that stay trained.
            slots: Those with only some rows trained.
            values: All trained parameters by name.
        """
        held = {name: value for name, value in values.items() if name not in free}
        shapes = []
        for name in free:
            part = slots[name].select(values[name]) if name in slots else values[name]
            shapes.append(tuple(part.shape))
        return replace(
            self,
            names=tuple(free),
            shapes=tuple(shapes),
            fixed={**self.fixed, **held},
            frozen=(*self.frozen, *held),
            slots=slots,
        )
