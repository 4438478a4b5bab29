"""Which kind a column is, decided over all of its cells and, where these leave it open, by the other columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vhat.errors import InputError, name_rows
from vhat.tables.columns.dates import FORMATS, fitting_formats
from vhat.tables.columns.kinds import Category, Column, Date, Flag, Number, Skipped
from vhat.tables.columns.learn import learned
from vhat.tables.columns.notation import Decimal, Survey, survey
from vhat.tables.columns.texts import dtype_kind, present_texts, texts_of
from vhat.tables.columns.wording import Wording

__all__ = ["KINDS", "decide"]

KINDS = ("number", "decimal-point", "decimal-comma", "category", "date", "day-first", "month-first", "skip")
"""What a user may say that a column is."""
_FLAGS = (("true", "false"), ("yes", "no"))
_MOSTLY = 0.5
"""Share of readable cells above which a column is taken for numbers or dates with errors, and refused."""


@dataclass(frozen=True, eq=False)
class _Looked:
    """A column that was looked at.

    Attributes:
        name: Its name.
        series: Its cells.
        asked: What the user said that it is, or None.
        kind: What its type says.
        texts: Its cells as text, where it is text or was asked to be a category.
        survey: What these may mean as numbers; None for columns that are no text, or have no cell.
    """

    name: str
    series: Any
    asked: str | None
    kind: str
    texts: np.ndarray
    survey: Survey | None

    @property
    def present(self) -> np.ndarray:
        return present_texts(self.texts)


def decide(
    table: Mapping[str, Any], asked: Mapping[str, str], weights: np.ndarray, wording: Wording
) -> dict[str, Column]:
    """Decide what each column is.

    Args:
        table: pandas Series by name.
        asked: What the user says of some of them, one of :data:`KINDS`.
        weights: How much each row counts, for medians.
        wording: Words for messages.

    Raises:
        InputError: For a column whose cells fit two readings, or most of which fit one.
    """
    looked = [_look(name, series, asked.get(name)) for name, series in table.items()]
    evidence = _evidence(looked)
    return {each.name: learned(_decided(each, evidence, wording), each.series, weights, wording) for each in looked}


def _look(name: str, series: Any, asked: str | None) -> _Looked:
    kind = dtype_kind(series)
    # The levels of pandas' type category are texts too, where the user says that they are something else.
    read = kind == "text" or (kind == "category" and asked not in (None, "category"))
    texts = texts_of(series)[0] if read and asked != "skip" else np.empty(0, dtype=object)
    there = texts[present_texts(texts)]
    found = survey(there) if len(there) and asked not in ("category", "date", "day-first", "month-first") else None
    return _Looked(name, series, asked, kind, texts, found)


def _evidence(looked: Sequence[_Looked]) -> dict[Decimal, str]:
    """Return the decimal signs that some columns leave no doubt of, each with the name of such a column."""
    found: dict[Decimal, str] = {}
    for each in looked:
        decided: Decimal | None = None if each.survey is None else each.survey.decided
        if each.asked in ("decimal-point", "decimal-comma"):
            decided = "point" if each.asked == "decimal-point" else "comma"
        if decided is not None:
            found.setdefault(decided, each.name)
    return found


def _decided(each: _Looked, evidence: dict[Decimal, str], wording: Wording) -> Column:
    if each.asked == "skip":
        return Skipped(each.name)
    if each.asked is not None:
        return _as_asked(each, each.asked, evidence, wording)
    if each.kind != "text":
        return _of_type(each)
    if each.survey is None:
        return Skipped(each.name, reason="empty in all rows")
    return _of_text(each, evidence, wording)


def _of_type(each: _Looked) -> Column:
    """Return what the type of a column says, where that is enough."""
    if each.series.dtype.kind == "b":
        return Flag(each.name)
    kinds: dict[str, type[Column]] = {"time": Date, "category": Category}
    return kinds.get(each.kind, Number)(each.name)


def _as_asked(each: _Looked, asked: str, evidence: dict[Decimal, str], wording: Wording) -> Column:
    """Read a column as the user says; cells that do not fit then count as missing."""
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
        # What cannot be read in either way does not decide between them: the other cells do, or are refused.
        rest = np.array([text for text in each.texts[each.present] if text not in unreadable], dtype=object)
        if len(rest):
            return _as_asked(replace(each, survey=survey(rest)), asked, evidence, wording)
    fewest: Decimal = "comma" if len(odd["comma"]) < len(odd["point"]) else "point"
    said: dict[str, Decimal] = {"decimal-point": "point", "decimal-comma": "comma"}
    notation = each.survey.notation(said.get(asked, fewest))
    # a user who names the decimal sign has said what 5,125 is
    return Number(each.name, coerce=True, notation=replace(notation, thousands=asked in said or notation.thousands))


def _of_text(each: _Looked, evidence: dict[Decimal, str], wording: Wording) -> Column:
    """Tell numbers, dates, yes and no, and words apart."""
    found = each.survey
    assert found is not None
    words = {text.lower() for text in each.texts[each.present]}
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


def _settled(each: _Looked, evidence: dict[Decimal, str], wording: Wording) -> Number | None:
    """Return the reading as numbers; None where no notation fits all cells.

    Raises:
        InputError: Where two notations do, and no other column decides.
    """
    found = each.survey
    assert found is not None
    if not found.readings:
        return None
    _refuse_mixed(each, found, wording)
    if found.undecided is None or len(found.readings) == 1:
        return Number(each.name, notation=found.notation(found.readings[0]))
    others = {sign: name for sign, name in evidence.items() if name != each.name}
    if len(others) == 1:
        ((decimal, name),) = others.items()
        if found.plain and decimal == "point":
            return Number(each.name)
        said = f"{found.undecided!r} is read with a decimal {decimal}, as in column {name!r}"
        remark = f"{said}; if that is wrong: {wording.override(each.name, _other(decimal))}"
        return Number(each.name, notation=found.notation(decimal), remark=remark)
    if found.plain:
        thousands = f"{found.undecided!r} is read with a decimal point; if the point stands between thousands"
        return Number(each.name, remark=f"{thousands}: {wording.override(each.name, 'decimal-comma')}")
    readings = " and ".join(
        f"{found.notation(sign).read(np.array([found.undecided], dtype=object))[0][0]:.15g} with a decimal {sign}"
        for sign in found.readings
    )
    raise InputError(
        f"{wording.table}: column {each.name!r} holds numbers such as {found.undecided!r}, which is {readings}; no "
        f"cell decides. Say which: {wording.overrides(each.name, 'decimal-point', 'decimal-comma')}."
    )


def _other(decimal: Decimal) -> str:
    return "decimal-comma" if decimal == "point" else "decimal-point"


def _refuse_mixed(each: _Looked, found: Survey, wording: Wording) -> None:
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


def _refuse_odd(each: _Looked, odd: Sequence[str], whole: str, kind: str, wording: Wording) -> None:
    """Refuse a column most of whose cells fit one reading.

    Raises:
        InputError: Naming the first cell that does not fit, with the choices.
    """
    rows = np.flatnonzero(np.isin(each.texts.astype(str), odd))
    raise InputError(
        f"{wording.table}, {name_rows(rows[:1])}: column {each.name!r} holds {odd[0]!r} among {whole}"
        f"{f' (in {len(rows):,} cells such)' if len(rows) > 1 else ''}. Correct it; or say "
        f"{wording.override(each.name, kind)} to count what cannot be read as missing, "
        f"{wording.override(each.name, 'category')} or {wording.override(each.name, 'skip')}."
    )


def _dates_or_words(each: _Looked, wording: Wording) -> Column:
    different = list(dict.fromkeys(each.texts[each.present]))
    if not any(character.isdigit() for text in different for character in text):
        return Category(each.name)
    forms, odd = fitting_formats(different)
    if not forms and len(different) - len(odd) > _MOSTLY * len(different):
        _refuse_odd(each, odd, "dates", "date", wording)
    return _date(each, None, wording) if forms else Category(each.name)


def _date(each: _Looked, asked: str | None, wording: Wording) -> Date:
    """Read a column as dates.

    Raises:
        InputError: Where day and month may be exchanged, and where no format fits.
    """
    different = list(dict.fromkeys(each.texts[each.present]))
    forms, odd = fitting_formats(different)
    if asked == "date" and not forms and len(odd) < len(different):
        # What is no date does not decide between day and month: the other cells do, or are refused.
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
    from vhat.tables.columns.dates import read_dates

    return int(np.isnan(read_dates(texts, form)).sum())
