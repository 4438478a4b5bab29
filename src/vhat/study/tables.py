"""Tables of our rows and the published ones in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import groupby

from vhat.study.cell import STEPS, Cell, decay_text
from vhat.study.published import Value
from vhat.study.stored_norms import ISOPERIMETRIC, comparison
from vhat.study.summary import COLUMNS, Column, Gaps, Row

__all__ = ["to_csv", "to_latex", "to_markdown"]

_VERSIONS = {
    "published": "as published (ReLU, AdamW; `theorem` with v = c = 1, Gauss-Newton curvature, known noise)",
    "penalised": "as published, but lam inside the loss (ReLU, Adam on L_lam; `theorem` with v = c = 1, known noise)",
    "met": "at a minimum (GELU, gradient and curvature checked; `proposed` by `tight`, exact Hessian, known noise)",
}
_TRUTHS = {
    "matern": "the paper's truth",
    "smooth": "a truth that can be learned (length scale 10, amplitude 1)",
}
_NOTE = (
    "Means over trials ± standard deviations. Widths are on test points near the training data (the published filter). "
    "The published column is compared with the median width and with the median half width. Difference: ours less "
    "published, in standard errors of the difference of both means; one trial is taken to vary as the published ones."
)
_HEAD = (
    *("version", "truth", "d", "n", "lam", "method", "steps", "trials", "failed", "metric", "mean", "sd"),
    *("published mean", "published sd", "difference in standard errors"),
)


def to_markdown(rows: Sequence[Row], missing: Gaps) -> str:
    """Return one table for each version and truth, with notes and missing cells below."""
    lines = [*_markdown_tables(rows), "", _NOTE]
    note = _isoperimetric_note(rows)
    if note:
        lines += ["", note]
    return "\n".join(lines) + missing.notes() + "\n"


def _isoperimetric_note(rows: Sequence[Row]) -> str:
    """Return the note on the isoperimetric bound; empty if no row shows it."""
    shown = [row for row in rows if row.method == ISOPERIMETRIC and row.done]
    return comparison(shown[0].first) if shown else ""


def _markdown_tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of all tables."""
    for first, group in _grouped(rows):
        yield f"\n{_heading(first)}\n"
        yield f"| method | n | | {' | '.join(column.title for column in COLUMNS)} |"
        yield f"|---|---|---|{'---|' * len(COLUMNS)}"
        for row in group:
            for name, texts in _lines(row):
                head = f"{row.method} | {row.first.n} ({row.done} of {row.asked})" if name == "ours" else " | "
                yield f"| {head} | {name} | {' | '.join(texts)} |"


def to_latex(rows: Sequence[Row], missing: Gaps) -> str:
    """Return one ``tabular`` for each version and truth (package booktabs), with notes and missing cells below."""
    parts = ["% Made by `vhat study`."]
    for first, group in _grouped(rows):
        parts.append(f"% {_heading(first)}")
        parts.append(r"\begin{tabular}{llr" + "r" * len(COLUMNS) + "}")
        titles = " & ".join(column.title.replace("%", r"\%") for column in COLUMNS)
        parts += [r"\toprule", rf"method & $n$ & & {titles} \\"]
        for row in group:
            parts.append(r"\midrule")
            for name, texts in _lines(row):
                head = f"{row.method} & {row.first.n}" if name == "ours" else " & "
                cells = " & ".join(_in_latex(text) for text in texts)
                parts.append(rf"{head} & {name} & {cells} \\")
        parts += [r"\bottomrule", r"\end{tabular}", r"\par"]
    notes = [_isoperimetric_note(rows).replace("`", ""), *missing.lines()]
    parts += [_escaped(line) + r"\par" for line in notes if line]
    return "\n".join(parts) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """Return one line for each row and column, with all digits."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for row in rows:
        cell = row.first
        head = (cell.version, cell.truth, cell.d, cell.n, decay_text(cell.lam), row.method, cell.steps)
        for column in COLUMNS:
            ours = _numbers(row.ours[column.title])
            published = _numbers(row.published.get(column.title))
            difference = _number(row.difference(column.title))
            writer.writerow([*head, row.done, len(row.failed), column.title, *ours, *published, difference])
    return text.getvalue()


def _grouped(rows: Sequence[Row]) -> Iterator[tuple[Cell, list[Row]]]:
    """Yield the rows of each truth, version and d, sorted by method and size; empty rows are left out."""

    def order(row: Row) -> tuple[int, int, int]:
        cell = row.first
        return (list(_TRUTHS).index(cell.truth), list(_VERSIONS).index(cell.version), cell.d)

    for _, group in groupby(sorted(rows, key=order), key=order):
        every = list(group)
        # Before empty rows are left out, so that the order of the methods does not depend on them.
        methods = list(dict.fromkeys(row.method for row in every))
        members = [row for row in every if row.done or row.published]
        members.sort(key=lambda row: (methods.index(row.method), row.first.n))
        if members:
            yield members[0].first, members


def _heading(cell: Cell) -> str:
    """Return the heading of a table."""
    reduced = "" if cell.steps == STEPS else f" REDUCED to {cell.steps:,} steps."
    return f"d = {cell.d}, lam = {decay_text(cell.lam)}, {_TRUTHS[cell.truth]}, {_VERSIONS[cell.version]}.{reduced}"


def _lines(row: Row) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of a row: ours and, if there are published values, these and the differences."""
    yield "ours", [_text(row.ours[column.title], column) if row.done else "missing" for column in COLUMNS]
    if row.published:
        yield "published", [_text(row.published[column.title], column) for column in COLUMNS]
    if row.published and row.done:
        differences = [row.difference(column.title) for column in COLUMNS]
        yield "difference", ["" if value is None else f"{value:+.1f}" for value in differences]


def _text(value: Value | None, column: Column) -> str:
    """Return a mean as text, with its standard deviation if it has one."""
    if value is None:
        return "no width"
    return " ± ".join(f"{number:.{column.digits}f}" for number in value if number is not None)


def _numbers(value: Value | None) -> list[str]:
    """Return mean and standard deviation with all digits, empty text if missing."""
    if value is None:
        return ["", ""]
    return [_number(value.mean), _number(value.sd)]


def _number(value: float | None) -> str:
    """Return a number with all digits, empty text for None."""
    return "" if value is None else repr(float(value))


def _in_latex(text: str) -> str:
    """Return numbers in math mode, words as they are."""
    if not text or text[0].isalpha():
        return text
    return "$" + text.replace("±", r"\pm") + "$"


def _escaped(text: str) -> str:
    """Return text with LaTeX's special characters escaped."""
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
