"""The published rows of the proposed method with the full delta at each test point, instead of a shared one.

The paper says that delta is divided by the number of test points. Some of its rows are closer to intervals without this
division, others are not. The table of :func:`to_markdown` shows both, without a conclusion. Nothing is trained or
solved again: the results of the cells contain their weighted norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vhat import bounds
from vhat.study.cell import Cell
from vhat.study.experiments import Plan
from vhat.study.measure import score
from vhat.study.protocol import ALPHA, NOISE, draw, level
from vhat.study.published import PUBLISHED, Value
from vhat.study.results import Results
from vhat.study.stored_norms import with_half
from vhat.study.summary import COLUMNS, Column, difference_in_errors, mean_over_trials

__all__ = ["rescore", "to_markdown"]

_COLUMNS = tuple(column for column in COLUMNS if column.title not in ("test MSE", "median width"))
"""The columns that depend on delta; of median width and median half width only one is shown."""


def rescore(cell: Cell, result: dict[str, Any], delta: float) -> dict[str, Any]:
    """Return the metrics of a published cell of the proposed method at another delta."""
    data = draw(cell)
    test = result["test"]
    norms = np.asarray(test["weighted norm"], dtype=float)
    half = bounds.theorem(norms, len(data.train.X), NOISE, delta, v=1.0, c=1.0)
    return score(with_half(test, half), data.test, data.train)


def to_markdown(results: Results) -> str:
    """Return a table of shared delta, delta for each point, and the published values.

    Differences from the published values are in standard errors.
    """
    titles = " | ".join(column.title for column in _COLUMNS)
    lines = [f"| d | n | trials | delta | {titles} |", f"|{'---|' * (4 + len(_COLUMNS))}"]
    cells = [
        cell
        for name in ("table1", "table2")
        for cell in Plan(name, methods=("proposed",), versions=("published",), truths=("matern",)).cells()
    ]
    for d, n in dict.fromkeys((cell.d, cell.n) for cell in cells):
        found = [(cell, results.read(cell)) for cell in cells if (cell.d, cell.n) == (d, n)]
        done = [(cell, result) for cell, result in found if result is not None and result["status"] == "done"]
        if not done:
            continue
        published = PUBLISHED[(d, "proposed", n)]
        for text, each in (("shared", level(done[0][0])), ("for each point", ALPHA)):
            metrics = [rescore(cell, result, each) for cell, result in done]
            values = [_compared(metrics, column, published[column.published]) for column in _COLUMNS]
            lines.append(f"| {d} | {n} | {len(done)} | {text}, {each:g} | {' | '.join(values)} |")
        values = [_text(published[column.published]) for column in _COLUMNS]
        lines.append(f"| | | | published | {' | '.join(values)} |")
    return "\n".join(lines)


def _compared(metrics: Sequence[dict[str, Any]], column: Column, published: Value) -> str:
    """Return a mean over trials as text, with its difference from the published one in standard errors."""
    ours = mean_over_trials(metrics, column)
    difference = difference_in_errors(ours, len(metrics), published)
    if difference is None:
        return _text(ours)
    return f"{_text(ours)} ({difference:+.1f})"


def _text(value: Value | None) -> str:
    """Return a mean with its standard deviation as text."""
    if value is None:
        return "missing"
    if value.sd is None:
        return f"{value.mean:.4g}"
    return f"{value.mean:.4g} ± {value.sd:.2g}"
