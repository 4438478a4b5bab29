"""Values that are computed when they are first asked for, and shared by those that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Lazy"]

T = TypeVar("T")


class Lazy(Generic[T]):
    """A value that is computed once, at the first call.

    Two linearised blocks that agree in what the value depends on hold the same object: whichever asks first computes
    it for both. The function that computes it is dropped afterwards, with all that it refers to.

    Examples:
        >>> total = Lazy(lambda: sum(range(4)))
        >>> total.known
        False
        >>> total(), total.known
        (6, True)
    """

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute
        self._value: T

    @property
    def known(self) -> bool:
        """Whether the value has been computed."""
        return self._compute is None

    def __call__(self) -> T:
        """Return the value."""
        if self._compute is not None:
            self._value = self._compute()
            self._compute = None
        return self._value
