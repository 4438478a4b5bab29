"""Format a confidence level as text, without rounding it to 100%."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["level_text"]

_PLACES = 4
"""Smallest number of decimal places before trailing zeros are removed."""
_DIGITS = 2
"""Significant digits of the distance to 100% or 0% that are shown at least."""
_SMALLEST = 1e-12
"""Smallest delta shown as a percentage; more nines cannot be counted at a glance."""


def level_text(delta: float) -> str:
    """Return the level of an interval that misses with probability ``delta``, with enough digits to differ from 100%.

    Args:
        delta: Between 0 and 1.

    Examples:
        >>> level_text(0.05), level_text(0.050001), level_text(0.05 / 700), level_text(1e-9)
        ('95%', '94.9999%', '99.9929%', '99.9999999%')
        >>> level_text(1e-20), level_text(0.999999)
        ('1 - 1e-20', '0.0001%')
    """
    if 0 < delta < _SMALLEST:
        return f"1 - {delta:g}"
    missing = 100 * Decimal(float(delta))
    places = max(_PLACES, _DIGITS - 1 - min(missing.adjusted(), (100 - missing).adjusted()))
    text = f"{100 - missing:.{places}f}"
    return f"{text.rstrip('0').rstrip('.')}%"
