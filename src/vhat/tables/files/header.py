"""Whether the first line of a table names its columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["lacks_header"]


def lacks_header(names: Sequence[str]) -> bool:
    """Return whether names look like a row of data: most are numbers that nobody would name columns by.

    Whole numbers that increase are names: years, or the numbers of columns that pandas writes.

    Examples:
        >>> lacks_header(["12.5", "35", "Ulm"])
        True
        >>> lacks_header(["0", "1", "2"]), lacks_header(["country", "2022", "2023"])
        (False, False)
    """
    found = [_number(name) for name in names]
    numbers = [number for number in found if number is not None]
    if 2 * len(numbers) <= len(names):
        return False
    counted = all(number.is_integer() for number in numbers) and all(a < b for a, b in pairwise(numbers))
    return not counted


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None
