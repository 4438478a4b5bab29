"""The lines of an audit and the table that they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd


__all__ = ["Audit", "Line", "Verdict"]

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
        compared = "" if isnan(self.threshold) else f" (threshold {self.threshold:.3g})"
        measured = "" if isnan(self.value) else f": {self.meaning} is {self.value:.3g}{compared}"
        return f"{self.name} {self.verdict}{measured}. {self.remedy}"


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
        from rich.markup import escape
        from rich.table import Table

        held = sum(line.verdict == "holds" for line in self.lines)
        failed = [line.name for line in self.lines if line.verdict in ("fails", "undecided")]
        summary = "nothing that can be tested fails" if self.holds else f"look at: {', '.join(failed)}"
        table = Table(title=f"Audit: {held} lines hold; {summary}", title_justify="left", show_lines=False)
        for name in ("line", "verdict", "value", "threshold", "what it is, and what follows"):
            table.add_column(name, no_wrap=name in ("line", "verdict"), justify="right" if name == "value" else "left")
        colours = {
            "holds": "green",
            "fails": "bold red",
            "undecided": "yellow",
            "assumed": "cyan",
            "noted": "dim",
            "by construction": "dim",
        }
        # Neighbours that say the same, such as what is true of every linearised model, share a row.
        for (verdict, *cells), lines in groupby(self.lines, _cells):
            names = "\n".join(line.name for line in lines)
            table.add_row(names, f"[{colours[verdict]}]{verdict}[/]", *map(escape, cells))
        return table


def _cells(line: Line) -> tuple[str, ...]:
    """Return what a row of the table says of a line, beside its name."""
    numbers = ["" if isnan(number) else f"{number:.3g}" for number in (line.value, line.threshold)]
    return line.verdict, *numbers, ". ".join(filter(None, (line.meaning, line.remedy)))
