"""Numbers written as text: one notation for a whole column.

A cell such as ``1,234`` is 1234 where the comma stands between thousands and 1.234 where it is the decimal sign. The
notation is therefore decided over all cells of a column, and a column that both fit is refused unless another column
of the same table decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vhat.tables.columns.texts import is_plain

__all__ = ["PLAIN", "Decimal", "Notation", "Survey", "survey"]

Decimal = Literal["point", "comma"]

_CURRENCY = r"US\$|[ACR]\$|[$€£¥₹₩₽₺₴]|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|AUD|CAD|NZD|BRL|kr\.?|zł|Kč"
_CELL = re.compile(
    rf"(?P<open>\()?(?P<sign>[+\-\u2212])?\s?(?P<before>{_CURRENCY})?\s?(?P<inner>[+\-\u2212])?"
    r"(?P<digits>[0-9.,'\u2019\s]*[0-9][0-9.,'\u2019]*)"
    rf"(?P<exponent>[eE][+\-]?[0-9]+)?\s?(?P<percent>%)?\s?(?P<after>{_CURRENCY})?(?P<close>\))?"
)
_DIGITS: dict[Decimal, re.Pattern[str]] = {
    "point": re.compile(
        r"(?:[1-9][0-9]{0,2}(?P<between>[,'\u2019\s])[0-9]{3}(?:(?P=between)[0-9]{3})*|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
    ),
    "comma": re.compile(
        r"(?:[1-9][0-9]{0,2}(?P<between>[.'\u2019\s])[0-9]{3}(?:(?P=between)[0-9]{3})*|[0-9]+)(?:,[0-9]*)?|,[0-9]+"
    ),
}
_SIGN: dict[Decimal, str] = {"point": ".", "comma": ","}
_LOGICAL = {"true": "1", "false": "0"}


class _Cell(NamedTuple):
    """A cell taken apart."""

    negative: bool
    digits: str
    exponent: str
    percent: bool
    currency: str


def _taken_apart(text: str) -> _Cell | None:
    """Separate signs from digits; None where the text is no number in any notation."""
    found = _CELL.fullmatch(_LOGICAL.get(text.lower(), text))
    if found is None or (found["open"] is None) != (found["close"] is None):
        return None
    signs = [sign for sign in (found["open"], found["sign"], found["inner"]) if sign]
    currencies = [sign for sign in (found["before"], found["after"]) if sign]
    if len(signs) > 1 or len(currencies) > 1 or (found["percent"] and (found["exponent"] or currencies)):
        return None
    negative = bool(signs) and signs[0] != "+"
    return _Cell(
        negative, found["digits"], found["exponent"] or "", bool(found["percent"]), (currencies or [""])[0].rstrip(".")
    )


def _number(cell: _Cell, decimal: Decimal) -> str | None:
    """Return the number as ``float`` reads it; a percent sign shifts the decimal sign, which rounds nothing."""
    found = _DIGITS[decimal].fullmatch(cell.digits)
    if found is None:
        return None
    digits = cell.digits if found["between"] is None else cell.digits.replace(found["between"], "")
    text = digits.replace(_SIGN[decimal], ".") + cell.exponent + ("e-2" if cell.percent else "")
    return f"-{text}" if cell.negative else text


def _grouped(cell: _Cell, decimal: Decimal) -> bool:
    """Whether a cell has a sign between thousands, read with a decimal sign."""
    found = _DIGITS[decimal].fullmatch(cell.digits)
    return found is not None and found["between"] is not None


def _may_be_either(cell: _Cell, decimal: Decimal) -> bool:
    """Whether the sign between thousands of a cell may as well be the decimal sign: 5,125 and not 5,125.0."""
    other: Decimal = "comma" if decimal == "point" else "point"
    return _grouped(cell, decimal) and _SIGN[other] in cell.digits and _number(cell, other) is not None


@dataclass(frozen=True)
class Notation:
    """How the numbers of a column are written.

    Attributes:
        decimal: The decimal sign.
        percent: Whether every cell has a percent sign: 12% is 0.12.
        currency: The currency sign that cells may have, or nothing.
        plain: Whether all cells were numbers as programs write them, which ``float`` reads.
        thousands: Whether some cell had a sign between thousands, or the user has said which sign is the decimal one.
            Where neither is so, a later cell such as 5,125 may be either number and is not read.
    """

    decimal: Decimal = "point"
    percent: bool = False
    currency: str = ""
    plain: bool = True
    thousands: bool = False

    def read(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers, NaN where a text is none in this notation, and which texts those are."""
        if self == PLAIN and is_plain(texts):
            try:
                return texts.astype(np.float64), np.zeros(len(texts), dtype=bool)
            except ValueError:
                pass
        known = {text: self._one(text) for text in dict.fromkeys(texts)}
        found = [known[text] for text in texts]
        bad = np.fromiter((number is None for number in found), dtype=bool, count=len(found))
        return np.array([np.nan if number is None else number for number in found], dtype=np.float64), bad

    def _one(self, text: str) -> float | None:
        cell = _taken_apart(text)
        if cell is None:
            return _not_finite(text)
        other_currency = cell.currency and self.currency and cell.currency != self.currency
        if cell.percent != self.percent or other_currency:
            return None
        number = _number(cell, self.decimal)
        return None if number is None or (not self.thousands and _may_be_either(cell, self.decimal)) else float(number)

    def either(self, text: str) -> tuple[float, float] | None:
        """Return the two numbers that a text may be where training has not told them apart; None where it is clear."""
        cell = _taken_apart(text)
        if cell is None or self.thousands or not _may_be_either(cell, self.decimal):
            return None
        point, comma = _number(cell, "point"), _number(cell, "comma")
        return None if point is None or comma is None else (float(point), float(comma))

    @property
    def told(self) -> str:
        """What differs from plain numbers, in words; empty where nothing does."""
        parts = (
            "decimal comma" if self.decimal == "comma" else "",
            "percent as hundredths" if self.percent else "",
            f"in {self.currency}" if self.currency else "",
        )
        return ", ".join(filter(None, parts)) or ("" if self.plain else "thousands apart")


PLAIN = Notation()
"""Digits with a decimal point, as programs write them."""


def _not_finite(text: str) -> float | None:
    """Read the words inf and infinity, which the check of the numbers then refuses as infinite."""
    if text.isascii() and text.strip("+-").lower() in ("inf", "infinity"):
        return float(text)
    return None


@dataclass(frozen=True)
class Survey:
    """What the different texts of a column may mean as numbers.

    Attributes:
        count: How many there are.
        odd: Those that are no number with a decimal point, and those that are none with a decimal comma.
        undecided: A text that both readings fit with different numbers, or None.
        plain: Whether ``float`` reads all of them.
        percents: How many have a percent sign.
        currencies: The currency signs among them.
        grouped: Whether some have a sign between thousands, read with each decimal sign.
    """

    count: int
    odd: dict[Decimal, tuple[str, ...]]
    undecided: str | None
    plain: bool
    percents: int
    currencies: tuple[str, ...]
    grouped: dict[Decimal, bool]

    @property
    def readings(self) -> tuple[Decimal, ...]:
        """The decimal signs with which every text is a number."""
        return tuple(decimal for decimal in _SIGN if not self.odd[decimal])

    @property
    def decided(self) -> Decimal | None:
        """The decimal sign where the texts leave one alone; None where there is none, or it makes no difference."""
        if self.undecided is None or not self.readings:
            return None
        return self.readings[0] if len(self.readings) == 1 else None

    def notation(self, decimal: Decimal) -> Notation:
        """Return the notation with a decimal sign."""
        plain = self.plain and decimal == "point"
        return Notation(decimal, self.percents > 0, (self.currencies or ("",))[0], plain, self.grouped[decimal])


def survey(texts: Iterable[str]) -> Survey:
    """Look at the different texts of a column."""
    different = list(dict.fromkeys(texts))
    if _all_floats(different):
        return _plain_survey(different)
    cells = {text: _taken_apart(text) for text in different}
    read = {
        text: {decimal: _number(cell, decimal) for decimal in _SIGN} for text, cell in cells.items() if cell is not None
    }
    odd: dict[Decimal, tuple[str, ...]] = {
        decimal: tuple(
            text
            for text in different
            if _not_finite(text) is None and (text not in read or read[text][decimal] is None)
        )
        for decimal in _SIGN
    }
    numbers = [cell for cell in cells.values() if cell is not None]
    return Survey(
        len(different),
        odd,
        next((text for text, found in read.items() if found["point"] != found["comma"]), None),
        False,
        sum(cell.percent for cell in numbers),
        tuple(dict.fromkeys(cell.currency for cell in numbers if cell.currency)),
        {decimal: any(_grouped(cell, decimal) for cell in numbers) for decimal in _SIGN},
    )


def _plain_survey(different: list[str]) -> Survey:
    """Look at texts that ``float`` reads; most columns are such, and their first text with a point decides."""
    no_comma = next((text for text in different if not _DIGITS["comma"].fullmatch(text.lstrip("+-"))), None)
    grouped = next((text for text in different if "." in text), None)
    odd: dict[Decimal, tuple[str, ...]] = {"point": (), "comma": () if no_comma is None else (no_comma,)}
    return Survey(len(different), odd, grouped, True, 0, (), {"point": False, "comma": grouped is not None})


def _all_floats(texts: list[str]) -> bool:
    if not is_plain(texts):
        return False
    try:
        np.array(texts, dtype=object).astype(np.float64)
    except ValueError:
        return False
    return True
