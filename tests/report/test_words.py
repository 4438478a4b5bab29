"""What a report calls rows, levels and numbers, and what it says that its guarantee is about."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.report import cases
from vhat.checks import check_finite
from vhat.errors import InputError, calling_rows, name_rows
from vhat.report import collect, render
from vhat.report.numbers import distinct
from vhat.report.options import Subject
from vhat.tables.row_names import RowNames


@pytest.fixture(scope="module")
def subject():
    return cases.subject()


# -- what rows are called ----------------------------------------------------------------------
def test_rows_of_a_data_frame_are_called_by_its_index(tmp_path):
    """After rows were dropped the index still has the numbers of the table; drawn rows keep theirs too."""
    X, y = cases.table(90, 0, ("a", "b", "c"))
    kept = X.drop(index=range(0, 90, 3))
    fitted = vhat.from_numpy(cases.bent, [90.0, 180.0, 1.2, 40.0], kept, y[kept.index], weight_decay=1e-6).polish()
    new, observed = cases.table(30, 1, ("a", "b", "c"))
    new.index = [f"B{k}" for k in range(30)]
    new.index.name = "bed"
    found = collect(Subject(fitted), cases.options(held_out=(new, observed)))
    output = found["outputs"][0]
    assert output["training"]["name"] == [f"row {row}" for row in kept.index]
    assert output["held_out"]["name"] == [f"bed B{k}" for k in range(30)]
    for point in output["widest"]:
        number = point["name"].split()[1]
        assert point["observed"] == pytest.approx(y[int(number)] if number.isdigit() else observed[int(number[1:])])
    for row in output["influential_rows"].values():
        assert row["response"] == pytest.approx(y[int(row["name"].split()[1])])
    said = "Training rows are named by the index of the data frame; held-out rows by the index of the data frame, bed."
    assert said in render(found)


def test_warnings_on_the_page_call_rows_as_the_page_does(monkeypatch):
    """The library counts the points that it was asked about; a reader of the page has the table before him."""
    fitted, names = cases.bent_fit(60, ("a", "b", "c")), RowNames(np.arange(60) * 2 + 2, "line")
    answer = type(fitted).interval

    def failing(self, x, *args, **options):
        told = f"2 of 60 predictions have no interval ({name_rows([0, 7])})."
        warnings.warn(told, vhat.ConvergenceWarning, stacklevel=2)
        return answer(self, x, *args, **options)

    monkeypatch.setattr(type(fitted), "interval", failing)
    X, y = cases.table(30, 1, ("a", "b", "c"))
    beds = RowNames(np.array([f"B{k}" for k in range(30)], dtype=object), "bed")
    with pytest.warns(vhat.ConvergenceWarning) as warned:
        found = collect(Subject(fitted, rows=names), cases.options(held_out=(X, y), held_out_rows=beds))
    told = {said[said.index("(") :] for said in found["warnings"]}
    first, other = (f"a = {found['outputs'][0]['slices'][0]['grid'][k]:.4g}" for k in (0, 7))
    assert told == {"(lines 2, 16).", "(beds B0, B7).", f"(slices {first}, {other})."}
    assert {str(each.message) for each in warned} == set(found["warnings"])


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (None, ["row 0", "row 1", "row 2"]),
        ([5, 3, 9], ["row 5", "row 3", "row 9"]),
        (pd.Index(["x", "x", "y"], name="site"), ["site x", "site x", "site y"]),
        (
            pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)], names=["site", "visit"]),
            ["site, visit x, 1", "site, visit x, 2", "site, visit y, 1"],
        ),
    ],
)
def test_names_of_rows_come_from_the_index(labels, named):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=labels)
    assert list(RowNames.of(frame, 3)) == named
    assert list(RowNames.of(frame, 3).take(np.array([2, 0]))) == [named[2], named[0]]
    assert list(RowNames.of(frame.to_numpy(), 3)) == ["row 0", "row 1", "row 2"]


# -- levels --------------------------------------------------------------------------------------
@pytest.mark.parametrize("delta", [0.050001, 0.0500000001, 0.05])
def test_a_level_next_to_a_usual_one_stands_once(subject, delta):
    found = collect(subject, cases.options(delta=delta))
    X, y = cases.table(30, 1)
    band = subject.fitted.interval(X, delta, target="observation")
    inside = int(np.sum((band.lower <= y) & (y <= band.upper)))
    text = render(found)
    assert len(re.findall(r"responses inside their [\d.]+% interval", text)) == 1
    assert f"<b>{inside} of 30</b>" in text
    for curve in found["outputs"][0]["calibration"]["curves"]:
        assert len(curve["level"]) == 7
        assert len(set(curve["nominal"])) == 7
        assert curve["level"][curve["asked"]] == pytest.approx(1 - delta, abs=1e-12)


def test_a_level_that_is_nearly_certain_is_not_called_certain(subject):
    text = render(collect(subject, cases.options(delta=1e-9)))
    assert "Nominal 99.9999999% at each point" in text
    assert "typical 99.9999999% interval of the prediction" in text
    assert not re.search(r"\b100% interval|Nominal 100%", text)


def test_the_page_says_what_its_guarantee_is_about(subject):
    found = collect(subject, cases.options(delta=0.1))
    words = " ".join(re.sub(r"<[^>]*>", "", render(found)).split())
    lead = "What the 90% interval of the prediction of &lt;i&gt;yield&lt;/i&gt; (kg) guarantees, at each of the 60 "
    assert f"{lead}training rows shown, one at a time and not for all at once: Nominal 90% at each point" in words
    assert "This guarantee is not about single responses." in words
    assert "interval of a new response (isoperimetric): counted, not guaranteed" in words
    assert "They test the guarantee and are not part of it." in words


# -- numbers -------------------------------------------------------------------------------------
def test_values_next_to_each_other_are_told_apart_whatever_their_size():
    rng = np.random.default_rng(0)
    for size in (1e-7, 1.0, 2e6, 3e9):
        for spread in (1e-4 * size, size):
            values = size + spread * rng.integers(-2000, 2000, size=500) / 1000
            texts = [distinct(value, spread) for value in values]
            assert len(set(texts)) == len(set(values.tolist()))
            numbers = [float(text.replace("\u2212", "-")) for text in texts]
            np.testing.assert_allclose(numbers, values, rtol=0, atol=1e-4 * spread)


def test_a_large_response_is_listed_with_its_digits():
    x = np.linspace(-1, 1, 40)[:, None]
    y = 4_000_000 + 300 * x[:, 0] + np.round(100 * np.random.default_rng(0).standard_normal(40))
    design = np.column_stack([np.ones(40), x])
    theta = np.linalg.lstsq(design, y, rcond=None)[0]
    fitted = vhat.from_numpy(
        lambda q, Z: q[0] + Z[:, 0] * q[1], theta, x, y, jac=lambda q, Z: np.c_[np.ones(len(Z)), Z]
    )
    found = collect(Subject(fitted), cases.options(held_out=None))
    first = found["outputs"][0]["widest"][0]
    assert f'<td class="number">{distinct(y[int(first["name"].split()[1])], 200.0)}</td>' in render(found)
    assert len(distinct(y[0], 200.0)) >= 7


# -- residuals that speak against the model --------------------------------------------------------
def test_the_verdict_is_not_green_where_the_noise_is_unequal_or_a_row_is_wild_and_both_are_named():
    X = cases.table(60, 0, ("dose", "age", "time"))[0]
    rng = np.random.default_rng(6)
    quiet = 100 * cases.bent([1.0, 2.0, 1.5, 0.5], X) + 20 * rng.normal(size=60)
    X.index = [f"P{at:02d}" for at in range(60)]
    X.index.name = "patient"

    def words(y):
        fitted = vhat.from_numpy(cases.bent, [90.0, 180.0, 1.2, 40.0], X, y, weight_decay=1e-6).polish()
        return " ".join(render(collect(cases.Subject(fitted), cases.Options())).split())

    good = words(quiet)
    assert '<p class="banner good">' in good
    wild = quiet.copy()
    wild[7] += 300.0
    told = words(wild)
    assert '<p class="banner good">' not in told
    assert re.search(r"<strong>Look at: [^.<]*outliers\.</strong>", told)
    assert "Begin with patient P07" in told or "does not explain patient P07: up to" in told
    spread = quiet + 60 * np.exp(1.0 * X["age"].to_numpy()) * rng.normal(size=60)
    told = words(spread)
    assert '<p class="banner good">' not in told
    assert "with column age in its top fifth" in told


def test_messages_call_rows_by_their_names_inside_the_block_and_nowhere_else():
    names = RowNames(np.array([7, 9, 12]), "line")
    assert name_rows([0, 2]) == "rows 0, 2"
    with calling_rows(names):
        assert name_rows([0, 2]) == "lines 7, 12"
        assert name_rows([1]) == "line 9"
        assert name_rows([0], noun="fit") == "fit 0"
        assert name_rows([1, 3]) == "rows 1, 3"  # a row that the table does not have: these are other rows
        with calling_rows(None):
            assert name_rows([1]) == "row 1"
        with pytest.raises(InputError, match="in line 12"):
            check_finite("x", np.array([1.0, 2.0, np.nan]), InputError)
    assert name_rows([1]) == "row 1"
