"""The two tables of the page on the reproduction: our rows with the published ones, and the variants at n = 100."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vhat.study.cell import Cell
from vhat.study.experiments import Plan, variants
from vhat.study.protocol import PAPER_CG
from vhat.study.published import PUBLISHED, Value
from vhat.study.results import Results
from vhat.study.summary import COLUMNS, Column, Row, summarise

__all__ = ["published_rows", "variant_rows"]

_SHOWN = tuple(column for column in COLUMNS if column.title != "median width")
_TRAINING = {"published": "AdamW", "penalised": "Adam on L_lam"}
_NORMS = {"proposed": "Gauss-Newton", PAPER_CG: "the paper's CG", "bootstrap": "bootstrap"}


def published_rows(results: Results) -> str:
    """Return a table of our and the published means of every column, with the difference in standard errors."""
    lines = [
        f"| d | method | n | trials | {' | '.join(column.title for column in _SHOWN)} |",
        f"|{'---|' * (4 + len(_SHOWN))}",
    ]
    for name in ("table1", "table2"):
        plan = Plan(name, versions=("published",), truths=("matern",))
        rows = summarise(plan.cells(), results)
        for row in sorted(rows, key=lambda row: (plan.methods.index(row.method), row.first.n)):
            if row.done:
                head = f"| {row.first.d} | {row.method} | {row.first.n:,} | {row.done} |"
                lines.append(f"{head} {' | '.join(_compared(row, column) for column in _SHOWN)} |")
    return "\n".join(lines)


def _compared(row: Row, column: Column) -> str:
    """Return text such as ``0.98 / 2.13 (-1.9)``: ours, published, difference in standard errors."""
    ours = row.ours[column.title]
    published = row.published.get(column.title)
    if ours is None or published is None:
        return ""
    difference = row.difference(column.title)
    shown = "" if difference is None else f" ({difference:+.1f})"
    return f"{ours.mean:.3g} / {published.mean:.3g}{shown}"


def variant_rows(results: Results) -> str:
    """Return a table of the variants at n = 100: widths of each trial, means over trials, and the paper's iteration."""
    lines = [
        "| d | trained by | V by | mean width of each trial | mean width | median half width | interval score "
        "| coverage % | points with negative curvature | residual, median and largest |",
        f"|{'---|' * 10}",
    ]
    cells = variants().cells()
    for d in sorted({cell.d for cell in cells}):
        for row in summarise([cell for cell in cells if cell.d == d], results):
            if row.done and row.method != "bootstrap":
                lines.append(_variant(row, cells, results))
        published = PUBLISHED[d, "proposed", 100]
        values = [_spread(published[column.published]) for column in _SHOWN[1:]]
        lines.append(f"| {d} | published | | | {' | '.join(values)} | | |")
    return "\n".join(lines)


def _variant(row: Row, cells: Sequence[Cell], results: Results) -> str:
    """Return a line of the table of variants."""
    first = row.first
    trials = [cell for cell in cells if (cell.d, cell.version, cell.method) == (first.d, first.version, first.method)]
    done = [result for result in results.found(trials) if result["status"] == "done"]
    widths = ", ".join(f"{result['metrics']['mean width, near']:.3g}" for result in done)
    values = [_spread(row.ours[column.title]) for column in _SHOWN[1:]]
    head = f"| {first.d} | {_TRAINING[first.version]} | {_NORMS[row.method]} | {widths} |"
    return f"{head} {' | '.join(values)} | {_iteration(done)} |"


def _iteration(done: Sequence[dict[str, Any]]) -> str:
    """Return two table cells: points of all trials with negative curvature, and the residuals of the iteration."""
    descents = [result["descent"] for result in done if "descent" in result]
    if not descents:
        return " | "
    negative = np.concatenate([descent["negative"] for descent in descents])
    residual = np.concatenate([np.asarray(descent["residual"], dtype=float) for descent in descents])
    return f"{int(np.sum(negative > 0))} of {len(negative)} | {np.median(residual):.1e}, {np.max(residual):.1e}"


def _spread(value: Value | None) -> str:
    """Return a mean with its standard deviation as text."""
    if value is None:
        return "missing"
    if value.sd is None:
        return f"{value.mean:.3g}"
    return f"{value.mean:.3g} ± {value.sd:.2g}"
