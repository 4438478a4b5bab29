"""What stands out in a training table is named, whatever its units, and nothing is where nothing does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from vhat.tables.columns import Columns, Wording
from vhat.tables.findings import findings, log_would_help, skewness
from vhat.tables.identifiers import looks_like_identifier
from vhat.tables.row_names import RowNames

ROWS = 60


def said(frame, y=None):
    y = np.random.default_rng(9).normal(size=len(frame)) if y is None else y
    names = RowNames(np.arange(len(frame)) + 2, "line")
    return findings(frame, y, Columns.of(frame), names, "price", Wording("data.csv", command=True))


def usual(**columns):
    return pd.DataFrame({"a": np.random.default_rng(1).normal(size=ROWS), **columns})


def test_copies_of_rows_are_counted():
    frame = usual(b=["x", "y"] * 30)
    twice = pd.concat([frame, frame[:3]], ignore_index=True)
    y = np.arange(ROWS, dtype=float)
    (text,) = said(twice, np.concatenate([y, y[:3]]))
    assert text.startswith("3 rows are copies of an earlier one in every column and the target")
    assert not said(twice, np.concatenate([y, y[:3] + 0.5]))  # the same inputs with another target are no copies


@pytest.mark.parametrize(
    "numbers", [np.arange(ROWS) * 3 + 7, -np.arange(ROWS), [str(1000 + row) for row in range(ROWS)]]
)
def test_whole_numbers_in_order_are_named_as_an_identifier(numbers):
    (text,) = said(usual(id=numbers))
    assert text.startswith("column 'id' looks like an identifier")
    assert "--columns id=skip" in text


@pytest.mark.parametrize("numbers", [np.arange(ROWS) // 2, np.arange(ROWS) + 0.5, np.arange(ROWS)[::-1] % 7])
def test_other_numbers_are_no_identifier(numbers):
    assert not said(usual(id=numbers))


def test_codes_with_leading_zeros_are_named():
    (text,) = said(usual(zip=[f"{row % 7:05d}" for row in range(ROWS)]))
    assert text == (
        "column 'zip' has leading zeros ('00000') and is read as a number; if these are codes: --columns zip=category"
    )


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e9])
def test_a_gross_outlier_is_named_by_its_row_in_any_unit(unit):
    frame = usual()
    values = np.random.default_rng(2).normal(size=ROWS) * unit
    values[17] = 90.0 * unit
    (text,) = said(frame.assign(a=values))
    assert text.startswith(f"column 'a' has a gross outlier, {90 * unit:.5g} in line 19 (more than 10 interquartile")
    (text,) = said(frame, values)
    assert text.startswith("the target 'price' has a gross outlier")


@pytest.mark.parametrize("law", [stats.norm(), stats.expon(), stats.lognorm(1.5), stats.t(8), stats.poisson(3)])
def test_samples_without_errors_have_no_gross_outlier(law):
    values = law.rvs(size=2000, random_state=3).astype(float)
    assert not [text for text in said(pd.DataFrame({"a": values, "b": values[::-1]}), values) if "outlier" in text]


def test_skewness_is_that_of_scipy():
    values = np.random.default_rng(4).gamma(2.0, size=500)
    assert skewness(values) == pytest.approx(stats.skew(values), rel=1e-12)
    assert skewness(np.full(5, 2.0)) == 0.0


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_the_log_of_a_target_is_offered_where_it_is_positive_and_skewed(unit):
    rng = np.random.default_rng(5)
    assert log_would_help(np.exp(rng.normal(size=200)) * unit)
    assert not log_would_help(rng.normal(loc=20, size=200) * unit)
    assert not log_would_help((np.exp(rng.normal(size=200)) - 0.5) * unit)
    assert not log_would_help(rng.uniform(1e-3, 1, size=200) * unit)


def test_numbers_of_rows_in_any_order_are_an_identifier_and_sparse_ones_are_not():
    rng = np.random.default_rng(6)
    kept = rng.permutation(np.arange(1, 101))[:80]  # a random part of a table that is numbered 1 to 100
    assert looks_like_identifier(kept.astype(float))
    assert not looks_like_identifier(kept[:10].astype(float))
    assert not looks_like_identifier(rng.permutation(np.arange(0, 4000, 50)).astype(float))
    assert not looks_like_identifier(np.append(kept, kept[0]).astype(float))


def test_an_identifier_that_the_user_calls_a_number_is_not_named():
    frame = usual(id=np.arange(ROWS))
    y = np.random.default_rng(9).normal(size=ROWS)
    columns = Columns.of(frame, {"id": "number"})
    assert not findings(frame, y, columns, RowNames(np.arange(ROWS)), "price", Wording(), asked={"id": "number"})


def test_a_positive_value_whose_decimal_sign_was_lost_is_named():
    area = np.random.default_rng(7).uniform(60, 180, ROWS).round(2)
    area[4] *= 100
    (text,) = said(usual(area=area))
    assert text.startswith(f"column 'area' has a gross outlier, {area[4]:.5g} in line 6")


def test_copies_of_rows_do_not_hide_an_identifier():
    frame = usual(id=np.arange(ROWS) + 1000)
    y = np.arange(ROWS, dtype=float)
    twice = pd.concat([frame, frame[:5]], ignore_index=True)
    texts = said(twice, np.concatenate([y, y[:5]]))
    assert any(text.startswith("column 'id' looks like an identifier") for text in texts)
    # The same number in rows that differ elsewhere is no identifier.
    texts = said(twice, np.concatenate([y, y[:5] + 0.5]))
    assert not any("identifier" in text for text in texts)
