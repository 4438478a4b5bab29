"""The lines of an audit, and the table that is printed of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["Audit", "Line", "Verdict", "share_sentences"]

Verdict = Literal["holds", "fails", "undecided", "assumed", "noted", "by construction"]


@dataclass(frozen=True)
class Line:
    """One assumption and what was found of it.

    Attributes:
        name: What is asked.
        value: What was measured, without unit unless ``meaning`` says otherwise; NaN where nothing can be.
        threshold: What the value is compared with; NaN where nothing is.
        verdict: ``"holds"``, ``"fails"``, ``"undecided"``, ``"assumed"`` (cannot be tested), ``"noted"`` or
            ``"by construction"`` (true of every model of this kind).
        remedy: What to do, or what follows.
        meaning: What the value is.
    """

    name: str
    value: float
    threshold: float
    verdict: Verdict
    remedy: str
    meaning: str

    def __str__(self) -> str:
        value, threshold = self.numbers
        compared = f" (threshold {threshold})" if threshold else ""
        measured = f": {self.meaning} is {value}{compared}" if value else ""
        return f"{self.name} {self.verdict}{measured}. {self.remedy}"

    @property
    def digits(self) -> int:
        """Three significant digits, or as many as it takes to tell the value from the threshold."""
        for digits in range(_DIGITS, _MOST_DIGITS):
            if isnan(self.value) or self.value == self.threshold:
                return digits
            if f"{self.value:.{digits}g}" != f"{self.threshold:.{digits}g}":
                return digits
        return _MOST_DIGITS

    @property
    def numbers(self) -> tuple[str, str]:
        """The value and the threshold with these digits; empty for NaN."""
        value = "" if isnan(self.value) else f"{self.value:.{self.digits}g}"
        threshold = "" if isnan(self.threshold) else f"{self.threshold:.{self.digits}g}"
        return value, threshold


_DIGITS = 3
"""Significant digits of a value and its threshold."""
_MOST_DIGITS = 17
"""Significant digits that tell any two numbers apart."""


@dataclass(frozen=True, repr=False)
class Audit:
    """The lines of an audit, by name: ``audit["stationarity"]``. Prints as a table.

    Attributes:
        lines: Every line, in order.
    """

    lines: tuple[Line, ...]

    def __getitem__(self, name: str) -> Line:
        """Return the line of that name.

        Raises:
            KeyError: For an unknown name, listing the known ones.
        """
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"{name!r}; the lines are {', '.join(repr(line.name) for line in self.lines)}")

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def holds(self) -> bool:
        """Whether every assumption that can be tested was found to hold."""
        return all(line.verdict not in ("fails", "undecided") for line in self.lines)

    def to_pandas(self) -> pd.DataFrame:
        """Return the lines as a table indexed by name."""
        import pandas as pd

        return pd.DataFrame([vars(line) for line in self.lines]).set_index("name")

    def __repr__(self) -> str:
        from io import StringIO

        from rich.console import Console

        console = Console(file=StringIO(), width=120, color_system=None)
        console.print(self)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def __rich__(self) -> object:
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        held = sum(line.verdict == "holds" for line in self.lines)
        failed = [line.name for line in self.lines if line.verdict in ("fails", "undecided")]
        summary = "nothing that can be tested fails" if self.holds else f"look at: {', '.join(failed)}"
        table = Table(title=f"Audit: {held} lines hold; {summary}", title_justify="left", show_lines=False)
        for name in ("line", "verdict", "value", "threshold", "what it is, and what follows"):
            table.add_column(name, no_wrap=name in ("line", "verdict"), justify="right" if name == "value" else "left")
        # Neighbours that say the same, such as what is true of every linearised model, share a row.
        rows = [(cells, [line.name for line in lines]) for cells, lines in groupby(self.lines, _cells)]
        texts, notes = share_sentences([cells.text for cells, _ in rows])
        for (cells, names), text in zip(rows, texts, strict=True):
            verdict = f"[{_COLOURS[cells.verdict]}]{cells.verdict}[/]"
            table.add_row("\n".join(names), verdict, cells.value, cells.threshold, escape(text))
        return Group(table, *(Text(f"[{number}] {note}") for number, note in enumerate(notes, start=1)))


_COLOURS: Mapping[Verdict, str] = MappingProxyType(
    {
        "holds": "green",
        "fails": "bold red",
        "undecided": "yellow",
        "assumed": "cyan",
        "noted": "dim",
        "by construction": "dim",
    }
)
"""Colour of each verdict in a printed table."""
_SHORT = 40
"""Characters up to which sentences are repeated in the table and not made a note."""
_SENTENCE_END = re.compile(r"(?<=[.!?]) +")


class _Cells(NamedTuple):
    """A row of the printed table beside its name."""

    verdict: Verdict
    value: str
    threshold: str
    text: str


def _cells(line: Line) -> _Cells:
    """Return what a row of the table says of a line, beside its name."""
    value, threshold = line.numbers
    return _Cells(line.verdict, value, threshold, ". ".join(filter(None, (line.meaning, line.remedy))))


def share_sentences(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Move sentences that several texts have in common to numbered notes.

    Args:
        texts: Texts of whole sentences.

    Returns:
        The texts, with ``[1]`` in place of the first note, and the notes. A note is a run of sentences that the same
        texts have in common.

    Examples:
        >>> advice = "Call the first function, which does nearly everything. Then the second."
        >>> share_sentences([f"It is cold. {advice}", f"It is warm. {advice}", "All is well."])[0]
        ['It is cold. [1]', 'It is warm. [1]', 'All is well.']
    """
    split = [_SENTENCE_END.split(text) for text in texts]
    users: dict[str, set[int]] = defaultdict(set)  # the texts that contain each sentence
    for number, sentences in enumerate(split):
        for sentence in sentences:
            users[sentence].add(number)
    notes: dict[str, int] = {}
    shortened = []
    for sentences in split:
        parts = []
        for using, run in groupby(sentences, users.__getitem__):
            text = " ".join(run)
            if len(using) > 1 and len(text) > _SHORT:
                number = notes.setdefault(text, len(notes) + 1)
                text = f"[{number}]"
            parts.append(text)
        shortened.append(" ".join(parts))
    return shortened, list(notes)
