"""Read dates written as text, in one order of day, month and year for a whole column, as numbers of days."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FORMATS", "fitting_formats", "read_dates", "to_days"]

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
"""Formats that are tried, in pandas' notation, and their names in messages."""
_SAMPLE = 50
"""Texts by which a format is ruled out: most columns of text are no dates, and parsing all of them is slow."""


def fitting_formats(texts: list[str]) -> tuple[list[str], list[str]]:
    """Return the formats that read all of some texts, and the texts that the best format cannot read.

    Args:
        texts: Different texts, at least one.

    Returns:
        The formats, without those that give the same dates as an earlier one; and the texts that are unreadable in the
        format that reads the most.
    """
    unreadable = {form: _unreadable(texts, form) for form in FORMATS if _reads_some(texts[:_SAMPLE], form)}
    fitting = [form for form, failed in unreadable.items() if not failed]
    # "%d %b %Y" and "%d %B %Y" both read the month May, with the same result.
    different: list[str] = []
    for at, form in enumerate(fitting):
        if not any(_agree(texts, form, earlier) for earlier in fitting[:at]):
            different.append(form)
    fewest = min(unreadable.values(), key=len, default=texts)
    return different, fewest


def _reads_some(texts: list[str], form: str) -> bool:
    return len(_unreadable(texts, form)) < len(texts)


def _agree(texts: list[str], one: str, other: str) -> bool:
    return bool(np.array_equal(read_dates(texts, one), read_dates(texts, other)))


def _unreadable(texts: list[str], form: str) -> list[str]:
    failed = np.isnan(read_dates(texts, form))
    return [text for text, has_failed in zip(texts, failed, strict=True) if has_failed]


def read_dates(texts: Any, form: str) -> np.ndarray:
    """Return days since 1970-01-01 (UTC), NaN where a text is no date of this format."""
    different = list(dict.fromkeys(texts))
    if form == "iso":
        # Without a hyphen, pandas takes bare numbers for ISO dates: 2024, 20240105.
        candidates = [text if "-" in text[1:] else None for text in different]
        parsed = _parsed(candidates, "ISO8601")
    else:
        parsed = _parsed(different, form)
    day_of = dict(zip(different, to_days(parsed), strict=True))
    return np.array([day_of[text] for text in texts], dtype=np.float64)


def _parsed(texts: list[Any], form: str) -> Any:
    """Return texts, None where there is none, as a pandas Series of times; NaT where a text does not fit the format."""
    import pandas as pd

    return pd.to_datetime(pd.Series(texts, dtype=object), format=form, errors="coerce", utc=True)


def to_days(times: Any) -> np.ndarray:
    """Return a pandas Series of times as days since 1970-01-01 (UTC), or of durations as days; NaN where missing."""
    import pandas as pd

    if getattr(times.dtype, "tz", None) is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    values = times.to_numpy()
    if np.datetime_data(values.dtype)[0] in ("s", "ms"):
        # pandas would count these in finer units, which overflow in years beyond 290,000.
        return _count_days(values)
    if values.dtype.kind == "m":
        return (times / pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        return ((times - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
    except (OverflowError, pd.errors.OutOfBoundsDatetime, pd.errors.OutOfBoundsTimedelta):
        # pandas counts nanoseconds here, which reach from 1677 to 2262 only.
        return _count_days(values)


def _count_days(values: np.ndarray) -> np.ndarray:
    """Return times or durations as days, counted in their own unit; NaN where missing."""
    unit: Any = np.datetime_data(values.dtype)[0]
    units_per_day = np.timedelta64(1, "D") // np.timedelta64(1, unit)
    days: np.ndarray = values.astype(np.int64) / units_per_day
    days[np.isnat(values)] = np.nan
    return days
