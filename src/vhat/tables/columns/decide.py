"""Decide which kind a column is, by all of its cells and, if these leave it open, by the other columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.errors import InputError, name_rows
from vhat.tables.columns.dates import FORMATS, fitting_formats, read_dates
from vhat.tables.columns.kinds import Category, Column, Date, Flag, Number, Skipped
from vhat.tables.columns.learn import learned
from vhat.tables.columns.notation import Decimal, Survey, common_unit, survey, without_unit
from vhat.tables.columns.texts import dtype_kind, present_texts, texts_of
from vhat.tables.columns.wording import Wording

__all__ = ["KINDS", "decide"]

KINDS = ("number", "decimal-point", "decimal-comma", "category", "date", "day-first", "month-first", "skip")
"""Kinds that a user may ask for."""
_FLAGS = (("true", "false"), ("yes", "no"))
"""Pairs of words for 1 and 0, in lower case."""
_NUMBERS = ("number", "decimal-point", "decimal-comma")
"""Those of them that read numbers."""
_MOST_LEVELS = 40
"""Different texts up to which a column is a category if some are numbers with a unit and others are not: 1 day, 2 days.
So many levels have an input of their own."""
_MOSTLY = 0.5
"""Share of readable texts above which a column counts as numbers or dates with errors, and is refused."""


@dataclass(frozen=True, eq=False)
class _Surveyed:
    """A column whose kind is not decided yet.

    Attributes:
        name: The name of the column.
        series: Its cells.
        asked: The kind that the user asked for, one of :data:`KINDS`, or None.
        kind: The kind that the dtype says, of :func:`vhat.tables.columns.texts.dtype_kind`.
        texts: The cells as text; empty unless the column is read as text. Numbers are without their unit.
        unit: The unit that was removed from numbers; empty where there is none.
        survey: What the texts may mean as numbers; None where they are not read as numbers, or all are missing.
    """

    name: str
    series: Any
    asked: str | None
    kind: str
    texts: np.ndarray
    survey: Survey | None
    unit: str = ""

    @property
    def present(self) -> np.ndarray:
        """Which cells hold a value."""
        return present_texts(self.texts)

    @property
    def different(self) -> list[str]:
        """The different texts, in the order of the rows."""
        return list(dict.fromkeys(self.texts[self.present]))


def decide(
    table: Mapping[str, Any], asked: Mapping[str, str], weights: np.ndarray, wording: Wording
) -> dict[str, Column]:
    """Decide the kind of each column.

    Args:
        table: pandas Series by name.
        asked: The kinds that the user asks for, by name, of :data:`KINDS`.
        weights: Weight of each row, for medians.
        wording: Words for messages.

    Raises:
        InputError: For a column whose cells fit two readings, and one most of whose cells fit a single reading.
    """
    surveyed = [_survey_column(name, series, asked.get(name)) for name, series in table.items()]
    evidence = _evidence(surveyed)
    columns = {}
    for each in surveyed:
        column = _decided(each, evidence, wording)
        if isinstance(column, Number) and each.unit:
            column = replace(column, notation=replace(column.notation, unit=each.unit))
        columns[each.name] = learned(column, each.series, weights, wording)
        if each.asked in _NUMBERS and isinstance(columns[each.name], Skipped) and each.present.any():
            _refuse_unreadable(each, each.asked, wording)
    return columns


def _refuse_unreadable(each: _Surveyed, asked: str, wording: Wording) -> None:
    """Refuse a column that the user calls numbers, and of which no cell is a number.

    Raises:
        InputError: Naming the first cell.
    """
    row = int(np.flatnonzero(each.present)[0])
    sign = "" if asked == "number" else f" with a decimal {asked.removeprefix('decimal-')}"
    raise InputError(
        f"{wording.table}, {name_rows([row])}: column {each.name!r} was to hold numbers{sign}, and none is, such "
        f"as {each.texts[row]!r}. Correct the cells; or say {wording.override(each.name, 'category')} or "
        f"{wording.override(each.name, 'skip')}."
    )


def _survey_column(name: str, series: Any, asked: str | None) -> _Surveyed:
    kind = dtype_kind(series)
    # The levels of pandas' dtype category are text too, if the user asks for another kind.
    is_text = kind == "text" or (kind == "category" and asked not in (None, "category"))
    texts = texts_of(series)[0] if is_text and asked != "skip" else np.empty(0, dtype=object)
    present = texts[present_texts(texts)]
    if not len(present) or asked in ("category", "date", "day-first", "month-first"):
        return _Surveyed(name, series, asked, kind, texts, None)
    found = survey(present)
    unit = "" if found.readings else common_unit(present)
    if not unit:
        return _Surveyed(name, series, asked, kind, texts, found)
    numbers = np.fromiter((without_unit(text, unit) for text in texts), dtype=object, count=len(texts))
    surveyed = _Surveyed(name, series, asked, kind, numbers, survey(numbers[present_texts(texts)]), unit)
    if asked is None and not _may_be_numbers(surveyed):
        return _Surveyed(name, series, asked, kind, texts, found)
    return surveyed


def _may_be_numbers(each: _Surveyed) -> bool:
    """Return whether a column with a unit is one of numbers, with errors or without, and not a small category."""
    assert each.survey is not None
    return bool(each.survey.readings) or len(each.different) > _MOST_LEVELS


def _evidence(columns: Sequence[_Surveyed]) -> dict[Decimal, str]:
    """Return the decimal signs of columns that leave no doubt, each with the name of the first such column."""
    found: dict[Decimal, str] = {}
    for each in columns:
        decided: Decimal | None = None
        if each.asked == "decimal-point":
            decided = "point"
        elif each.asked == "decimal-comma":
            decided = "comma"
        elif each.survey is not None:
            decided = each.survey.decided
        if decided is not None:
            found.setdefault(decided, each.name)
    return found


def _decided(each: _Surveyed, evidence: dict[Decimal, str], wording: Wording) -> Column:
    """Return the column with its kind: as asked, by its dtype, or by its texts."""
    if each.asked == "skip":
        return Skipped(each.name)
    if each.asked is not None:
        return _as_asked(each, each.asked, evidence, wording)
    if each.kind != "text":
        return _of_type(each)
    if each.survey is None:
        return Skipped(each.name, reason="empty in all rows")
    return _of_text(each, evidence, wording)


def _of_type(each: _Surveyed) -> Column:
    """Return the column of a dtype that decides the kind."""
    if each.series.dtype.kind == "b":
        return Flag(each.name)
    kinds: dict[str, type[Column]] = {"time": Date, "category": Category}
    return kinds.get(each.kind, Number)(each.name)


def _as_asked(each: _Surveyed, asked: str, evidence: dict[Decimal, str], wording: Wording) -> Column:
    """Return the column of the kind that the user asks for; cells that do not fit then count as missing."""
    if asked == "category":
        return Category(each.name)
    if asked in ("date", "day-first", "month-first"):
        return Date(each.name) if each.kind == "time" else _date(each, asked, wording)
    if each.survey is None:
        return Number(each.name)
    settled = _settled(each, evidence, wording) if asked == "number" else None
    if settled is not None:
        return replace(settled, coerce=True)
    odd = each.survey.odd
    unreadable = set(odd["comma"]) & set(odd["point"])
    if asked == "number" and unreadable:
        # A cell that is no number either way does not decide between the notations: the other cells do.
        rest = np.array([text for text in each.texts[each.present] if text not in unreadable], dtype=object)
        if len(rest):
            return _as_asked(replace(each, survey=survey(rest)), asked, evidence, wording)
    decimal: Decimal
    if asked == "number":  # the sign that reads more cells
        decimal = "comma" if len(odd["comma"]) < len(odd["point"]) else "point"
        notation = each.survey.notation(decimal)
    else:
        decimal = "comma" if asked == "decimal-comma" else "point"
        # A user who names the decimal sign has said what 5,125 is.
        notation = replace(each.survey.notation(decimal), thousands=True)
    return Number(each.name, coerce=True, notation=notation)


def _of_text(each: _Surveyed, evidence: dict[Decimal, str], wording: Wording) -> Column:
    """Tell numbers, dates, yes/no and words apart."""
    found = each.survey
    assert found is not None
    words = {text.lower() for text in each.different}
    for yes, no in _FLAGS:
        if words == {yes, no}:
            return Flag(each.name, yes=yes, no=no)
    if found.readings:
        settled = _settled(each, evidence, wording)
        assert settled is not None
        return settled
    odd = min(found.odd.values(), key=len)
    if found.count - len(odd) > _MOSTLY * found.count:
        _refuse_odd(each, odd, "numbers", "number", wording)
    return _dates_or_words(each, wording)


def _settled(each: _Surveyed, evidence: dict[Decimal, str], wording: Wording) -> Number | None:
    """Return the column as numbers; None where no notation fits all cells.

    Raises:
        InputError: Where two notations fit and no other column decides; where cells are in different units.
    """
    found = each.survey
    assert found is not None
    if not found.readings:
        return None
    _refuse_mixed(each, found, wording)
    if found.undecided is None or len(found.readings) == 1:
        return Number(each.name, notation=found.notation(found.readings[0]))
    others = {decimal: name for decimal, name in evidence.items() if name != each.name}
    if len(others) == 1:
        ((decimal, name),) = others.items()
        return _as_in_another(each, found, decimal, name, wording)
    if found.plain:
        # Programs write numbers so: the point is the decimal sign until something speaks against it.
        doubt = f"{found.undecided!r} is read with a decimal point; if the point stands between thousands"
        return Number(each.name, remark=f"{doubt}: {wording.override(each.name, 'decimal-comma')}")
    readings = " and ".join(f"{_value(found, decimal):.15g} with a decimal {decimal}" for decimal in found.readings)
    raise InputError(
        f"{wording.table}: column {each.name!r} holds numbers such as {found.undecided!r}, which is {readings}; no "
        f"cell decides. Say which: {wording.overrides(each.name, 'decimal-point', 'decimal-comma')}."
    )


def _as_in_another(each: _Surveyed, found: Survey, decimal: Decimal, other: str, wording: Wording) -> Number:
    """Return the column as numbers with the decimal sign of another column, and a remark that says so."""
    if found.plain and decimal == "point":
        return Number(each.name)
    opposite = "decimal-comma" if decimal == "point" else "decimal-point"
    remark = (
        f"{found.undecided!r} is read with a decimal {decimal}, as in column {other!r}; if that is wrong: "
        f"{wording.override(each.name, opposite)}"
    )
    return Number(each.name, notation=found.notation(decimal), remark=remark)


def _value(found: Survey, decimal: Decimal) -> float:
    """Return the number that the undecided text is with a decimal sign."""
    numbers, _ = found.notation(decimal).read(np.array([found.undecided], dtype=object))
    return float(numbers[0])


def _refuse_mixed(each: _Surveyed, found: Survey, wording: Wording) -> None:
    """Refuse numbers in different units.

    Raises:
        InputError: For percent signs in some cells, and for two currencies.
    """
    if 0 < found.percents < found.count:
        raise InputError(
            f"{wording.table}: column {each.name!r} has a percent sign in some cells and none in others, so that 12 "
            f"may be 12 or 0.12. Write all of them alike, or leave it out: {wording.override(each.name, 'skip')}."
        )
    if len(found.currencies) > 1:
        raise InputError(
            f"{wording.table}: column {each.name!r} mixes the currencies {' and '.join(found.currencies)}. Convert "
            f"them to one, or leave the column out: {wording.override(each.name, 'skip')}."
        )


def _refuse_odd(each: _Surveyed, odd: Sequence[str], whole: str, kind: str, wording: Wording) -> None:
    """Refuse a column most of whose cells fit one reading.

    Args:
        each: The column.
        odd: The texts that do not fit.
        whole: What the other cells are: ``"numbers"`` or ``"dates"``.
        kind: The kind, of :data:`KINDS`, that reads them as missing.
        wording: Words for the message.

    Raises:
        InputError: Naming the first cell that does not fit, with the choices.
    """
    rows = np.flatnonzero(np.isin(each.texts.astype(str), odd))
    count = f" (in {len(rows):,} cells such)" if len(rows) > 1 else ""
    raise InputError(
        f"{wording.table}, {name_rows(rows[:1])}: column {each.name!r} holds {odd[0]!r} among {whole}{count}. Correct "
        "it; or say "
        f"{wording.override(each.name, kind)} to count what cannot be read as missing, "
        f"{wording.override(each.name, 'category')} or {wording.override(each.name, 'skip')}."
    )


def _dates_or_words(each: _Surveyed, wording: Wording) -> Column:
    """Return the column as dates if one format fits all cells, else as a category.

    Raises:
        InputError: Where most cells are dates, and where day and month may be exchanged.
    """
    different = each.different
    if not any(character.isdigit() for text in different for character in text):
        return Category(each.name)
    forms, odd = fitting_formats(different)
    if not forms and len(different) - len(odd) > _MOSTLY * len(different):
        _refuse_odd(each, odd, "dates", "date", wording)
    return _date(each, None, wording) if forms else Category(each.name)


def _date(each: _Surveyed, asked: str | None, wording: Wording) -> Date:
    """Return the column as dates.

    Args:
        each: The column.
        asked: ``"date"``, ``"day-first"`` or ``"month-first"``; None where the user has not said that these are dates.
        wording: Words for messages.

    Raises:
        InputError: Where day and month may be exchanged, and where no format fits.
    """
    different = each.different
    forms, odd = fitting_formats(different)
    if asked == "date" and not forms and len(odd) < len(different):
        # A cell that is no date does not decide between day and month: the other cells do.
        forms, _ = fitting_formats([text for text in different if text not in odd])
    if asked in ("day-first", "month-first"):
        wanted = "%d" if asked == "day-first" else "%m"
        forms = [form for form in FORMATS if form.startswith(wanted)]
        best = min(forms, key=lambda form: _unread(different, form))
        if _unread(different, best) < len(different):
            return Date(each.name, form=best, coerce=True)
        forms = []
    if len(forms) > 1:
        raise InputError(
            f"{wording.table}: column {each.name!r} holds dates such as {different[0]!r}, in which day and month may "
            f"be exchanged; no cell decides. Say which: {wording.overrides(each.name, 'day-first', 'month-first')}."
        )
    if forms:
        return Date(each.name, form=forms[0], coerce=asked is not None)
    if len(odd) < len(different) and asked is not None:
        return Date(each.name, form=min(FORMATS, key=lambda form: _unread(different, form)), coerce=True)
    raise InputError(
        f"{wording.table}: column {each.name!r} was to hold dates, and {odd[0] if odd else 'nothing'!r} is none that "
        f"is known. Write dates as 2024-01-31, or leave the column out: {wording.override(each.name, 'skip')}."
    )


def _unread(texts: list[str], form: str) -> int:
    """Return how many texts a format does not read."""
    return int(np.isnan(read_dates(texts, form)).sum())
