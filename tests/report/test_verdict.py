"""The box at the head of a page, read in Chromium: green only where nothing speaks against the fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.report import cases
from tests.report.conftest import look
from vhat.report import collect, render

BOXES = """
    const first = document.querySelector('.key b'), shown = [...document.querySelectorAll('.banner')]
        .filter(box => box.offsetHeight > 0);
    const before = shown.filter(box => !first || box.compareDocumentPosition(first) & Node.DOCUMENT_POSITION_FOLLOWING);
    return {before: before.map(box => box.className), all: shown.map(box => box.className),
            text: before.map(box => box.innerText).join(' ')};
"""


def smooth_table(rows, seed, *, unequal=False, shift=0.0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"load": rng.uniform(0, 4, rows), "heat": rng.normal(size=rows), "site": rng.integers(0, 2, rows)})
    # by a column that the prediction does not follow: noise that varies with the prediction is allowed for
    noise = 0.2 + 0.6 * X["site"] if unequal else 0.5
    y = 4 * np.tanh(X["load"] - 2) + X["heat"] + noise * rng.normal(size=rows) + shift
    return X, pd.Series(y, name="wear")


def network(rows, **changed):
    return vhat.NetworkRegressor((3,), weight_decay=0.01).fit(*smooth_table(rows, 0, **changed))


def open_page(browser, path):
    look(browser, 1200, "light")
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "true"
    return browser.execute_script(BOXES)


@pytest.fixture(scope="module")
def good():
    return network(90)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    held_out = smooth_table(400, 2, unequal=True)
    path = tmp_path_factory.mktemp("unequal") / "r.html"
    return network(200, unequal=True).report(path, delta=0.2, held_out=held_out)


def test_a_good_fit_has_a_green_box_and_no_other(browser, good, tmp_path):
    found = open_page(browser, good.report(tmp_path / "r.html", held_out=smooth_table(150, 1)))
    assert found["all"] == ["banner good"]
    assert "Everything that can be tested holds" in found["text"]


def test_a_fit_whose_held_out_mean_is_shifted_has_no_green_box(browser, good, tmp_path):
    path = good.report(tmp_path / "r.html", held_out=smooth_table(150, 1, shift=0.3))
    assert cases.data_of(path)["audit"]["holds"]  # training rows know nothing of it
    found = open_page(browser, path)
    assert found["before"] == ["banner look"]
    assert "banner good" not in found["all"]
    assert "above their predictions on average" in found["text"]


def test_a_heteroscedastic_fit_has_no_green_box_and_shows_where(browser, unequal):
    found = open_page(browser, unequal)
    assert found["before"] == ["banner look"]
    assert "banner good" not in found["all"]
    assert "coverage by group" in found["text"]
    quality = cases.data_of(unequal)["outputs"][0]["quality"]
    off = [part for part in quality["parts"] if part["off"]]
    assert off
    count = "return document.querySelectorAll('#fig-parts .marks ' + arguments[0]).length"
    assert browser.execute_script(count, "path.astray") == len(off)
    assert browser.execute_script(count, "circle.chosen") == len(quality["parts"]) + 1 - len(off)
    assert browser.execute_script(count, "line.error") == len(quality["parts"]) + 1


def test_residuals_and_importance_are_drawn_to_scale(browser, unequal):
    open_page(browser, unequal)
    quality = cases.data_of(unequal)["outputs"][0]["quality"]
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('#fig-residuals .marks path.unseen')]"
        ".map(mark => { const box = mark.getBoundingClientRect(); return box.y + box.height / 2; })"
    )
    residual = quality["residuals"]["residual"]
    assert len(drawn) == len(residual) == 400
    assert np.corrcoef(drawn, residual)[0, 1] == pytest.approx(-1, abs=1e-6)
    missed = [not low <= each <= high for low, each, high in _ends(quality["residuals"])]
    rings = browser.execute_script("return document.querySelectorAll('#fig-residuals .marks .missed').length")
    assert rings == sum(missed) > 0
    bars = browser.execute_script(
        "return [...document.querySelectorAll('#fig-importance .marks rect')]"
        ".map(bar => Number(bar.getAttribute('width')))"
    )
    increase = np.abs(quality["importance"]["increase"])
    np.testing.assert_allclose(bars, bars[0] * increase / increase[0], atol=0.6)


def _ends(residuals):
    return zip(residuals["low"], residuals["residual"], residuals["high"], strict=True)


def test_one_box_stands_before_the_first_number_however_much_was_warned_of(browser, tmp_path):
    X, y = cases.table(40, 0)
    rough = vhat.from_numpy(cases.bent, [90.0, 150.0, 1.0, 45.0], X, y, weight_decay=1e-6)
    with pytest.warns(vhat.NotMinimumWarning):
        page = collect(cases.Subject(rough), cases.Options())
    (tmp_path / "r.html").write_text(render(page), encoding="utf-8")
    found = open_page(browser, tmp_path / "r.html")
    assert found["before"] == ["banner look"]
    assert page["warnings"]
    text = browser.execute_script("return document.getElementById('short').innerText")
    assert all(said in text for said in page["warnings"])


def test_captions_have_at_most_two_lines_on_a_desk(browser, unequal):
    open_page(browser, unequal)
    lines = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('figcaption')].map(each => [each.closest('figure').id,"
        "each.getBoundingClientRect().height / parseFloat(getComputedStyle(each).lineHeight)]))"
    )
    assert len(lines) >= 9
    assert {name: count for name, count in lines.items() if count > 2.05} == {}
