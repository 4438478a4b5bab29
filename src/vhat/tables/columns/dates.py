"""Dates written as text: one order of day, month and year for a whole column, and days as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FORMATS", "days", "fitting_formats", "read_dates"]

FORMATS = {
    "iso": "year-month-day",
    "%Y/%m/%d": "year/month/day",
    "%d.%m.%Y": "day.month.year",
    "%d.%m.%Y %H:%M": "day.month.year hour:minute",
    "%d/%m/%Y": "day/month/year",
    "%m/%d/%Y": "month/day/year",
    "%d/%m/%Y %H:%M": "day/month/year hour:minute",
    "%m/%d/%Y %H:%M": "month/day/year hour:minute",
    "%d-%m-%Y": "day-month-year",
    "%m-%d-%Y": "month-day-year",
    "%d %b %Y": "day month year",
    "%d %B %Y": "day month year",
    "%b %d, %Y": "month day, year",
    "%B %d, %Y": "month day, year",
    "%d-%b-%Y": "day-month-year",
}
"""Formats that are tried, as pandas writes them, and what they are called."""


def fitting_formats(texts: list[str]) -> tuple[list[str], list[str]]:
    """Return the formats that fit all of some texts, and the texts that fit none of those that fit most of them.

    Args:
        texts: Different texts, at least one.
    """
    wrong = {form: _wrong(texts, form) for form in FORMATS if _may_be(texts, form)}
    fitting = [form for form, bad in wrong.items() if not bad]
    # "%d %b %Y" and "%d %B %Y" both fit the month May: the reading is the same
    same = [form for at, form in enumerate(fitting) if not any(_agree(texts, form, one) for one in fitting[:at])]
    least = min(wrong.values(), key=len, default=texts)
    return same, least


def _may_be(texts: list[str], form: str) -> bool:
    """Whether some of the first texts fit; most columns of text are no dates, and parsing all of them costs time."""
    first = texts[:50]
    return len(_wrong(first, form)) < len(first)


def _agree(texts: list[str], one: str, other: str) -> bool:
    return bool(np.array_equal(read_dates(texts, one), read_dates(texts, other)))


def _wrong(texts: list[str], form: str) -> list[str]:
    bad = np.isnan(read_dates(texts, form))
    return [text for text, is_bad in zip(texts, bad, strict=True) if is_bad]


def read_dates(texts: Any, form: str) -> np.ndarray:
    """Return days since 1970-01-01, NaN where a text is no date of this format."""
    import pandas as pd

    known = list(dict.fromkeys(texts))
    if form == "iso":
        # pandas takes bare numbers for ISO dates too: 2024, 20240105
        candidates = [text if "-" in text[1:] else None for text in known]
        parsed = pd.to_datetime(pd.Series(candidates, dtype=object), format="ISO8601", errors="coerce", utc=True)
    else:
        parsed = pd.to_datetime(pd.Series(known, dtype=object), format=form, errors="coerce", utc=True)
    number = dict(zip(known, days(parsed), strict=True))
    return np.array([number[text] for text in texts], dtype=np.float64)


def days(times: Any) -> np.ndarray:
    """Return a pandas Series of times as days since 1970-01-01 (UTC), or of durations as days; NaN where missing."""
    import pandas as pd

    if getattr(times.dtype, "kind", "") == "m":
        return (times / pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
    if getattr(times.dtype, "tz", None) is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    try:
        return ((times - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
    except (OverflowError, pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta):
        # Nanoseconds, in which pandas counts here, reach from 1677 to 2262.
        return _days_of_any_year(times)


def _days_of_any_year(times: Any) -> np.ndarray:
    """Return times as days since 1970-01-01, counted in microseconds; NaN where missing."""
    since = times.to_numpy(dtype="datetime64[us]") - np.datetime64(0, "us")
    found: np.ndarray = since / np.timedelta64(1, "D")
    return found
