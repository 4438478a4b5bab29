"""Read numbers written as text, in one notation for a whole column.

A cell such as ``1,234`` is 1234 if the comma separates thousands, and 1.234 if it is the decimal sign. The notation is
therefore decided over all cells of a column. A column that fits both notations is refused, unless another column of the
same table decides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vhat.tables.columns.texts import is_plain

__all__ = ["PLAIN", "Decimal", "Notation", "Survey", "common_unit", "survey", "without_unit"]

Decimal = Literal["point", "comma"]
"""The decimal sign."""

_CURRENCY = r"US\$|[ACR]\$|[$€£¥₹₩₽₺₴]|USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|AUD|CAD|NZD|BRL|kr\.?|zł|Kč"
_CELL = re.compile(
    rf"(?P<open>\()?(?P<sign>[+\-\u2212])?\s?(?P<before>{_CURRENCY})?\s?(?P<inner>[+\-\u2212])?"
    r"(?P<digits>[0-9.,'\u2019\s]*[0-9][0-9.,'\u2019]*)"
    rf"(?P<exponent>[eE][+\-]?[0-9]+)?\s?(?P<percent>%)?\s?(?P<after>{_CURRENCY})?(?P<close>\))?"
)
"""A whole cell: sign or parentheses, currency before or after, digits and the signs between them, exponent, percent."""
_DIGITS: dict[Decimal, re.Pattern[str]] = {
    "point": re.compile(
        r"(?:[1-9][0-9]{0,2}(?P<between>[,'\u2019\s])[0-9]{3}(?:(?P=between)[0-9]{3})*|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
    ),
    "comma": re.compile(
        r"(?:[1-9][0-9]{0,2}(?P<between>[.'\u2019\s])[0-9]{3}(?:(?P=between)[0-9]{3})*|[0-9]+)(?:,[0-9]*)?|,[0-9]+"
    ),
}
"""The digits of a cell by decimal sign; ``between`` is what stands between thousands, the same sign throughout."""
_SIGN: dict[Decimal, str] = {"point": ".", "comma": ","}
_UNIT = re.compile(
    r"(?P<number>[^A-Za-z]*[0-9][.,]?)(?P<blank>\s*)"
    r"(?P<unit>[°\u00b5]?[^\W\d_]{1,8}[23]?(?:[/·*][^\W\d_]{1,8}[23]?)?\.?)"
)
"""A number with a unit after it: 3.5 kg, 15,44kg, 80 km/h, 12 m². Superscript digits count as letters."""
_LOGICAL = {"true": "1", "false": "0"}


class _Cell(NamedTuple):
    """The parts of a cell: sign, digits with the signs between them, exponent, percent sign and currency."""

    negative: bool
    digits: str
    exponent: str
    percent: bool
    currency: str


def _split(text: str) -> _Cell | None:
    """Split a text into the parts of a number; return None where it is no number in any notation."""
    match = _CELL.fullmatch(_LOGICAL.get(text.lower(), text))
    if match is None or (match["open"] is None) != (match["close"] is None):
        return None
    signs = [sign for sign in (match["open"], match["sign"], match["inner"]) if sign]
    currencies = [sign for sign in (match["before"], match["after"]) if sign]
    if len(signs) > 1 or len(currencies) > 1:
        return None
    if match["percent"] and (match["exponent"] or currencies):
        return None
    return _Cell(
        negative=bool(signs) and signs[0] != "+",  # an opening parenthesis is a minus sign
        digits=match["digits"],
        exponent=match["exponent"] or "",
        percent=bool(match["percent"]),
        currency=currencies[0].rstrip(".") if currencies else "",
    )


def _number(cell: _Cell, decimal: Decimal) -> str | None:
    """Return the number as ``float`` reads it; None where the digits do not fit the decimal sign.

    A percent sign becomes an exponent, which shifts the decimal sign and rounds nothing.
    """
    match = _DIGITS[decimal].fullmatch(cell.digits)
    if match is None:
        return None
    digits = cell.digits
    if match["between"] is not None:
        digits = digits.replace(match["between"], "")
    text = digits.replace(_SIGN[decimal], ".") + cell.exponent
    if cell.percent:
        text += "e-2"
    return f"-{text}" if cell.negative else text


def _number_and_unit(text: str) -> tuple[str, str] | None:
    """Split a text into a number and the unit after it; return None for any other text.

    A single letter is a unit only after a blank: 12A is a code.
    """
    match = _UNIT.fullmatch(text)
    if match is None or _split(text) is not None or _split(match["number"]) is None:
        return None
    if len(match["unit"]) == 1 and not match["blank"]:
        return None
    return match["number"], match["unit"]


def without_unit(text: str, unit: str) -> str:
    """Return the number of a text with this unit; any other text as it is.

    Examples:
        >>> without_unit("15,44 kg", "kg"), without_unit("5 g", "kg")
        ('15,44', '5 g')
    """
    found = _number_and_unit(text)
    return found[0] if found is not None and found[1] == unit else text


def common_unit(texts: Iterable[str]) -> str:
    """Return the unit that more than half of the different texts have after a number; empty where there is none."""
    different = list(dict.fromkeys(texts))
    if _all_floats(different):
        return ""
    split = [_number_and_unit(text) for text in different]
    counts = Counter(found[1] for found in split if found is not None)
    if not counts:
        return ""
    unit, times = counts.most_common(1)[0]
    return unit if 2 * times > len(different) else ""


def _other(decimal: Decimal) -> Decimal:
    return "comma" if decimal == "point" else "point"


def _grouped(cell: _Cell, decimal: Decimal) -> bool:
    """Return whether the other decimal sign stands between thousands: the comma of 1,234.5."""
    match = _DIGITS[decimal].fullmatch(cell.digits)
    return match is not None and match["between"] == _SIGN[_other(decimal)]


def _is_ambiguous(cell: _Cell, decimal: Decimal) -> bool:
    """Return whether the sign between thousands may as well be the decimal sign: in 5,125, and not in 5,125.0."""
    return _grouped(cell, decimal) and _number(cell, _other(decimal)) is not None


@dataclass(frozen=True)
class Notation:
    """How the numbers of a column are written.

    Attributes:
        decimal: The decimal sign.
        percent: Whether every cell has a percent sign: 12% is 0.12.
        currency: The currency sign that cells may have, or an empty text.
        plain: Whether all training cells were numbers as programs write them, which ``float`` reads.
        thousands: Whether the other decimal sign stood between thousands in some training cell, or the user has said
            which sign is the decimal one. Otherwise a later cell such as 5,125 is ambiguous, and is not read.
        unit: The unit that cells may have after the number, or an empty text. It is removed.
    """

    decimal: Decimal = "point"
    percent: bool = False
    currency: str = ""
    plain: bool = True
    thousands: bool = False
    unit: str = ""

    def read(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers, and which texts are none in this notation: NaN stands for these."""
        if self == PLAIN and is_plain(texts):
            try:
                return texts.astype(np.float64), np.zeros(len(texts), dtype=bool)
            except ValueError:
                pass  # some text needs a closer look
        number_of = {text: self._read_one(text) for text in dict.fromkeys(texts)}
        found = [number_of[text] for text in texts]
        bad = np.fromiter((number is None for number in found), dtype=bool, count=len(found))
        return np.array([np.nan if number is None else number for number in found], dtype=np.float64), bad

    def _read_one(self, text: str) -> float | None:
        """Return the number; None where the text is none in this notation, or is ambiguous."""
        text = self._bare(text)
        cell = _split(text)
        if cell is None:
            return _infinite(text)
        if cell.percent != self.percent:
            return None
        if cell.currency and self.currency and cell.currency != self.currency:
            return None
        if not self.thousands and _is_ambiguous(cell, self.decimal):
            return None
        number = _number(cell, self.decimal)
        return None if number is None else float(number)

    def _bare(self, text: str) -> str:
        return without_unit(text, self.unit) if self.unit else text

    def both_readings(self, text: str) -> tuple[float, float] | None:
        """Return the number with a decimal point and with a decimal comma, of an ambiguous text; None for any other."""
        cell = _split(self._bare(text))
        if cell is None or self.thousands or not _is_ambiguous(cell, self.decimal):
            return None
        point = _number(cell, "point")
        comma = _number(cell, "comma")
        return None if point is None or comma is None else (float(point), float(comma))

    @property
    def told(self) -> str:
        """What differs from plain numbers, in words; empty where nothing does."""
        parts = []
        if self.decimal == "comma":
            parts.append("decimal comma")
        if self.percent:
            parts.append("percent as hundredths")
        if self.currency:
            parts.append(f"in {self.currency}")
        if self.unit:
            parts.append(f"unit {self.unit} removed")
        if not parts and not self.plain:
            parts.append("thousands apart")
        return ", ".join(parts)


PLAIN = Notation()
"""Digits with a decimal point, as programs write them."""


def _infinite(text: str) -> float | None:
    """Read the words inf and infinity: the check of the numbers then refuses them as infinite."""
    if text.isascii() and text.strip("+-").lower() in ("inf", "infinity"):
        return float(text)
    return None


@dataclass(frozen=True)
class Survey:
    """What the different texts of a column may mean as numbers.

    Attributes:
        count: How many different texts there are.
        odd: By decimal sign, the texts that are no number with it.
        undecided: A text that is a number with either sign, and not the same one; None where there is none.
        plain: Whether ``float`` reads all of them.
        percents: How many have a percent sign.
        currencies: The currency signs among them.
        grouped: By decimal sign, whether in some text the other one stands between thousands.
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
        """The only decimal sign that fits; None where both fit, none fits, or the sign makes no difference."""
        if self.undecided is None or len(self.readings) != 1:
            return None
        return self.readings[0]

    def notation(self, decimal: Decimal) -> Notation:
        """Return the notation with a decimal sign."""
        return Notation(
            decimal,
            percent=self.percents > 0,
            currency=self.currencies[0] if self.currencies else "",
            plain=self.plain and decimal == "point",
            thousands=self.grouped[decimal],
        )


def survey(texts: Iterable[str]) -> Survey:
    """Return what the texts of a column may mean as numbers."""
    different = list(dict.fromkeys(texts))
    if _all_floats(different):
        return _plain_survey(different)
    cells = {text: cell for text in different if (cell := _split(text)) is not None}
    undecided = None
    for text, cell in cells.items():
        if _number(cell, "point") != _number(cell, "comma"):
            undecided = text
            break
    currencies = dict.fromkeys(cell.currency for cell in cells.values() if cell.currency)
    return Survey(
        len(different),
        odd={decimal: _no_numbers(different, cells, decimal) for decimal in _SIGN},
        undecided=undecided,
        plain=False,
        percents=sum(cell.percent for cell in cells.values()),
        currencies=tuple(currencies),
        grouped={decimal: any(_grouped(cell, decimal) for cell in cells.values()) for decimal in _SIGN},
    )


def _no_numbers(texts: list[str], cells: Mapping[str, _Cell], decimal: Decimal) -> tuple[str, ...]:
    """Return the texts that are no number with a decimal sign."""
    odd = []
    for text in texts:
        if _infinite(text) is not None:
            continue
        if text not in cells or _number(cells[text], decimal) is None:
            odd.append(text)
    return tuple(odd)


def _plain_survey(different: list[str]) -> Survey:
    """Survey texts that ``float`` reads; most columns are such, and their first text with a point decides."""
    not_with_comma = next((text for text in different if not _DIGITS["comma"].fullmatch(text.lstrip("+-"))), None)
    with_point = next((text for text in different if "." in text), None)
    return Survey(
        len(different),
        odd={"point": (), "comma": () if not_with_comma is None else (not_with_comma,)},
        undecided=with_point,
        plain=True,
        percents=0,
        currencies=(),
        grouped={"point": False, "comma": with_point is not None},
    )


def _all_floats(texts: list[str]) -> bool:
    if not is_plain(texts):
        return False
    try:
        np.array(texts, dtype=object).astype(np.float64)
    except ValueError:
        return False
    return True
