"""Values that are computed when they are first asked for, and shared by those that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Lazy"]

T = TypeVar("T")


class Lazy(Generic[T]):
    """A value that is computed once, when it is first read.

    Two linearised blocks that agree in what the value depends on hold the same object: whichever asks first computes
    it for both. The function that computes it is dropped afterwards, with all that it refers to.

    Examples:
        >>> total = Lazy(lambda: sum(range(4)))
        >>> total.known
        False
        >>> total.result, total.known
        (6, True)
    """

    result: T
    """The value: an attribute like any other once it has been computed."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute

    @property
    def known(self) -> bool:
        """Whether the value has been computed."""
        return self._compute is None

    def __getattr__(self, name: str) -> T:
        """Compute the value: Python comes here where ``result`` is no attribute yet."""
        if name != "result":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._compute is not None:  # else another thread has just computed it
            self.result = self._compute()
            self._compute = None
        return self.result
