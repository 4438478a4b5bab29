"""Numbers and sentences as a page shows them: short, and never more digits than their uncertainty allows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["DIGITS", "plain", "readable", "sentence", "share", "short", "told"]

DIGITS = 12
"""Significant digits of the numbers behind the drawings: enough for what varies beside a large constant."""
_LEAST = 4
_OF_SPREAD = 5
"""Digits of a value, and of the spread of its like, that tell it from its neighbours."""


def plain(values: Any) -> Any:
    """Return numbers as JSON knows them: twelve significant digits, None for what is not finite."""
    if np.ndim(values) > 0:
        return [plain(value) for value in values]
    if isinstance(values, bool | np.bool_):
        return bool(values)
    if isinstance(values, int | np.integer):
        return int(values)
    value = float(values)
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def short(value: float | None, digits: int = 3) -> str:
    """Return a size with so many significant digits, or all digits before its point.

    Examples:
        >>> short(54.2637), short(12345.6), short(1234567.0), short(-3.1e-10), short(None)
        ('54.3', '12346', '1.23e6', '−3.1e-10', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if not 1e-4 <= abs(value) < 1e6:
        mantissa, _, power = f"{rounded:.{digits - 1}e}".partition("e")
        return _minus(f"{float(mantissa):g}e{int(power)}")
    return _minus(f"{value:.0f}" if abs(value) >= 10**digits else f"{rounded:g}")


def told(value: float | None, spread: float | None = None) -> str:
    """Return a value with as many digits as it takes to tell it from its like, which have this spread.

    Examples:
        >>> told(151.0, 77.1), told(1234567.0, 3e5), told(1000152.4637, 0.7), told(0.0012345678, 20.0)
        ('151', '1234567', '1000152.4637', '0.001235')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    top = _exponent(abs(value))
    digits = min(DIGITS, max(_LEAST, top - _exponent(spread) + _OF_SPREAD if spread else _LEAST))
    if not -4 <= top < DIGITS:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return _minus(f"{float(mantissa):.{digits}g}e{int(power)}")
    text = f"{value:.{max(0, digits - 1 - top)}f}"
    return _minus(text.rstrip("0").rstrip(".") if "." in text else text)


def share(value: float | None) -> str:
    """Return a share with two places.

    Examples:
        >>> share(0.3), share(None)
        ('0.30', '–')
    """
    return "–" if value is None or not math.isfinite(value) else _minus(f"{value:.2f}")


def readable(value: float | None, half_width: float | None) -> str:
    """Return a value with its half width: two significant digits of the half width, and as many places of the value.

    Examples:
        >>> readable(152.133, 14.24), readable(0.0012345, 0.0000123), readable(8.0, 0.0)
        ('152 ± 14', '0.001234 ± 0.000012', '8 ± 0')
        >>> readable(1234567.0, 43210.0), readable(3.21e-9, 4.4e-11)
        ('1235000 ± 43000', '3.210e-9 ± 0.044e-9')
    """
    if value is None or half_width is None or not all(map(math.isfinite, (value, half_width))):
        return f"{told(value)} (no interval)"
    if half_width <= 0:
        return f"{told(value)} ± 0"
    top = _exponent(max(abs(value), half_width))
    power = top if top < -5 or top > 8 else 0
    places = 1 - _exponent(half_width) + power
    ending = f"e{power}" if power else ""
    return f"{_fixed(value / 10.0**power, places)}{ending} ± {_fixed(half_width / 10.0**power, places)}{ending}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _fixed(value: float, places: int) -> str:
    """Round to so many places after the point, or to tens and hundreds where they are below zero."""
    return _minus(f"{value:.{places}f}" if places >= 0 else f"{round(value, places):.0f}")


def _minus(text: str) -> str:
    """Write a minus as long as a plus; the one of an exponent stays as it is."""
    return text.replace("-", "−", 1) if text.startswith("-") else text


def sentence(text: str) -> str:
    """Begin with a capital letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]
