"""Detect tables whose first line is data and not column names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["lacks_header"]


def lacks_header(names: Sequence[str]) -> bool:
    """Return whether column names look like a row of data: more than half of them are numbers.

    Increasing whole numbers count as names: years, or the column numbers that pandas writes.

    Examples:
        >>> lacks_header(["12.5", "35", "Ulm"])
        True
        >>> lacks_header(["0", "1", "2"]), lacks_header(["country", "2022", "2023"])
        (False, False)
    """
    parsed = [_number(name) for name in names]
    numbers = [number for number in parsed if number is not None]
    if 2 * len(numbers) <= len(names):
        return False
    whole = all(number.is_integer() for number in numbers)
    increasing = all(a < b for a, b in pairwise(numbers))
    return not (whole and increasing)


def _number(text: str) -> float | None:
    """Return the number that a text holds, with a decimal point or a decimal comma; None for other text."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None
