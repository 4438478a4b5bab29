"""Numbers as text for the page: short, and with no more digits than their uncertainty allows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["DIGITS", "distinct", "plain", "readable", "sentence", "share", "short"]

DIGITS = 12
"""Significant digits of the numbers behind the figures: enough for values that vary little around a large constant."""
_MIN_DIGITS = 4
"""Least number of significant digits of a value."""
_SPREAD_DIGITS = 5
"""Digits down to which a value is shown, counted from the first digit of the spread of its column."""


def plain(values: Any) -> Any:
    """Return numbers in a form that JSON has: twelve significant digits, and None for a number that is not finite."""
    if np.ndim(values) > 0:
        return [plain(value) for value in values]
    if isinstance(values, bool | np.bool_):
        return bool(values)
    if isinstance(values, int | np.integer):
        return int(values)
    value = float(values)
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def short(value: float | None, digits: int = 3) -> str:
    """Return a size with a number of significant digits, or with all digits before the decimal point.

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
    return _minus(f"{value:.0f}" if abs(value) >= 10**digits else f"{rounded:.{max(digits, 6)}g}")


def distinct(value: float | None, spread: float | None = None) -> str:
    """Return a value with enough digits to distinguish it from the other values of its column.

    Args:
        value: The value.
        spread: The standard deviation of its column.

    Examples:
        >>> distinct(151.0, 77.1), distinct(1234567.0, 3e5), distinct(1000152.4637, 0.7), distinct(0.0012345678, 20.0)
        ('151', '1234567', '1000152.4637', '0.001235')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    top = _exponent(abs(value))
    digits = _MIN_DIGITS
    if spread:
        digits = min(DIGITS, max(_MIN_DIGITS, top - _exponent(spread) + _SPREAD_DIGITS))
    if not -4 <= top < DIGITS:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return _minus(f"{float(mantissa):.{digits}g}e{int(power)}")
    text = f"{value:.{max(0, digits - 1 - top)}f}"
    return _minus(text.rstrip("0").rstrip(".") if "." in text else text)


def share(value: float | None) -> str:
    """Return a share with two decimal places.

    Examples:
        >>> share(0.3), share(None)
        ('0.30', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return _minus(f"{value:.2f}")


def readable(value: float | None, half_width: float | None) -> str:
    """Return a value and its half width, with two significant digits of the half width and as many decimal places.

    Examples:
        >>> readable(152.133, 14.24), readable(0.0012345, 0.0000123), readable(8.0, 0.0)
        ('152 ± 14', '0.001234 ± 0.000012', '8 ± 0')
        >>> readable(1234567.0, 43210.0), readable(3.21e-9, 4.4e-11)
        ('1235000 ± 43000', '3.210e-9 ± 0.044e-9')
    """
    if value is None or half_width is None or not all(map(math.isfinite, (value, half_width))):
        return f"{distinct(value)} (no interval)"
    if half_width <= 0:
        return f"{distinct(value)} ± 0"
    top = _exponent(max(abs(value), half_width))
    power = top if top < -5 or top > 8 else 0  # very small and very large numbers get an exponent
    places = 1 - _exponent(half_width) + power
    ending = f"e{power}" if power else ""
    return f"{_fixed(value / 10.0**power, places)}{ending} ± {_fixed(half_width / 10.0**power, places)}{ending}"


def _exponent(value: float) -> int:
    """Return the power of ten of the first significant digit."""
    return int(f"{value:e}".partition("e")[2])


def _fixed(value: float, places: int) -> str:
    """Return a number with some decimal places. If ``places`` is negative, round to tens, hundreds, and so on."""
    return _minus(f"{value:.{places}f}" if places >= 0 else f"{round(value, places):.0f}")


def _minus(text: str) -> str:
    """Replace the hyphen of a negative number by a minus sign. That of an exponent stays."""
    return text.replace("-", "−", 1) if text.startswith("-") else text


def sentence(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]
