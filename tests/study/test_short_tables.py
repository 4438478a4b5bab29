"""The tables on the page about the reproduction are read from the cells, trial by trial."""

from __future__ import annotations

import numpy as np
import pytest

from tests.study.test_figures import STUDY, store
from vhat.study.experiments import Plan, variants
from vhat.study.measure import plain
from vhat.study.results import Results, to_text
from vhat.study.short_tables import published_rows, variant_rows


def cells_of(table):
    return [[part.strip() for part in line.strip("|").split("|")] for line in table.splitlines()]


def test_rows_beside_the_published_ones_are_those_of_the_committed_cells():
    """Of the proposed method at d = 10 and n = 100: mean width 2.1295 ± 1.2149 is published, over five trials."""
    results = Results(STUDY)
    plan = Plan("table1", sizes=(100,), versions=("published",), truths=("matern",), methods=("proposed",))
    widths = np.array([results.read(cell)["metrics"]["mean width, near"] for cell in plan.cells()])
    error = np.sqrt(widths.var(ddof=1) / 5 + 1.2149**2 / 4)
    head, _, first, *_ = cells_of(published_rows(results))
    assert first[:4] == ["10", "proposed", "100", "5"]
    shown = first[head.index("mean width")]
    assert shown == f"{widths.mean():.3g} / 2.13 ({(widths.mean() - 2.1295) / error:+.1f})"


def test_variants_show_each_trial_and_how_the_iteration_went(tmp_path):
    results = Results(tmp_path)
    cells = [cell for cell in variants(trials=2).cells() if cell.d == 10 and cell.version == "penalised"]
    store(results, cells)
    for cell in cells:
        if cell.method == "paper-cg":
            found = results.read(cell) | {"descent": {"negative": [0, 3], "residual": [1e-3, 2.0 + cell.trial]}}
            results.write(cell, to_text(plain(found)))
    head, _, *rows = cells_of(variant_rows(results))
    trained = {row[2]: dict(zip(head, row, strict=True)) for row in rows if row[0] == "10" and row[1] != "published"}
    assert set(trained) == {"Gauss-Newton", "the paper's CG"}
    # Limits are the truth give or take 0.3, and 0.1 more in the second trial.
    assert trained["the paper's CG"]["mean width of each trial"] == "0.6, 0.8"
    assert trained["the paper's CG"]["points with negative curvature"] == "2 of 4"
    assert trained["the paper's CG"]["residual, median and largest"] == "1.0e+00, 3.0e+00"
    assert trained["Gauss-Newton"]["points with negative curvature"] == ""
    published = [row for row in rows if row[1] == "published"]
    assert [row[4] for row in published] == ["2.13 ± 1.2", "3.48 ± 4.6"]
    assert pytest.approx(0.7) == float(trained["Gauss-Newton"]["mean width"].split()[0])
