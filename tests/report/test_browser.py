"""A report as a reader sees it: opened in Chromium, from the disk, with nothing else at hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import vhat
from tests.report import cases
from tests.report.conftest import look
from vhat.report import collect, render
from vhat.report.numbers import distinct, readable, short

FIGURES = (
    "fig-predictions",
    "fig-residuals",
    "fig-importance",
    "fig-slices",
    "fig-width",
    "fig-unsupported",
    "fig-calibration",
    "fig-parts",
    "fig-influence",
    "fig-decay",
)
NUMBERS = [(152.13, 14.2), (-0.00123, 1.2e-5), (1.23e7, 4e5), (3.2e-9, 4.4e-11), (8.0, 0.0), (1e10, 3e8), (99.96, 0.5)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(collect(cases.subject(), cases.options())), encoding="utf-8")
    return path


@pytest.fixture
def page(browser, report):
    """The report, opened afresh at the width of a desk, in light colours."""
    look(browser, 1200, "light")
    browser.get(report.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.drawn") == "true"
    return browser


def move_to(browser, selector, *, click=False):
    """Bring the pointer over the middle of an element, as the operating system would."""
    from selenium.webdriver.common.by import By

    spot = browser.find_element(By.CSS_SELECTOR, selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", spot)
    at = browser.execute_script(
        "const r = arguments[0].getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}", spot
    )
    for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
        browser.execute_cdp_cmd(
            "Input.dispatchMouseEvent", {"type": kind, **at, "button": "left" if click else "none", "clickCount": 1}
        )


def test_nothing_is_fetched_and_nothing_complains(browser, report):
    for log in ("performance", "browser"):
        browser.get_log(log)
    browser.get(report.as_uri())
    browser.execute_script(
        "document.querySelectorAll('select').forEach(each => each.dispatchEvent(new Event('change')))"
    )
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    assert report.as_uri() in asked
    assert [url for url in asked if url.split(":")[0] not in ("file", "data")] == []
    assert {url for url in asked if url.startswith("file:")} == {report.as_uri()}
    assert browser.get_log("browser") == []


def test_every_figure_is_drawn_with_finite_marks(page):
    found = page.execute_script("return [...document.querySelectorAll('figure')].map(each => each.id)")
    assert sorted(found) == sorted(FIGURES)
    for name in FIGURES:
        marks = page.execute_script(
            """
            const names = ['x', 'y', 'x1', 'x2', 'y1', 'y2', 'cx', 'cy', 'r', 'width', 'height', 'd'];
            const marks = [...document.querySelectorAll('#' + arguments[0] + ' .marks [class]:not(g)')];
            return marks.map(mark => names.map(name => mark.getAttribute(name)).filter(value => value !== null));
            """,
            name,
        )
        assert len(marks) >= 3, name
        written = " ".join(value for mark in marks for value in mark)
        assert not any(word in written for word in ("NaN", "Infinity", "undefined", "null")), name
        boxes = page.execute_script(
            "return [...document.querySelectorAll('#' + arguments[0] + ' .marks [class]:not(g)')]"
            ".map(mark => mark.getBoundingClientRect()).filter(box => box.width + box.height > 0).length",
            name,
        )
        assert boxes >= 3, name


def test_a_dot_under_the_pointer_tells_its_numbers(page, report):
    move_to(page, "#fig-predictions .marks path.unseen")
    tip = page.execute_script(
        "const t = document.querySelector('#fig-predictions .tip'); return t.hidden ? '' : t.innerText"
    )
    assert tip.startswith("Held-out row ")
    output = cases.data_of(report)["outputs"][0]
    group = output["held_out"]
    at = group["name"].index(tip.split("\n")[0].removeprefix("Held-out "))
    assert readable(group["center"][at], group["half_width"][at]) in tip
    assert distinct(group["observed"][at], output["spread"]) in tip


def test_a_click_on_a_dot_shows_which_rows_it_depends_on(page, report):
    move_to(page, "#fig-predictions .marks circle.seen", click=True)
    kind, at = page.execute_script("return document.getElementById('choose-point').value").split(" ")
    output = cases.data_of(report)["outputs"][0]
    influence = output["training" if kind == "training" else "held_out"]["influence"]
    listed = page.execute_script(
        "return [...document.querySelectorAll('#influence-table tbody tr')].map(row => row.cells[0].textContent)"
    )
    assert listed == [output["influential_rows"][str(row)]["name"] for row in influence["row"][int(at)]]


def test_zoom_and_back(page):
    ticks = (
        "return [...document.querySelectorAll('#fig-predictions .axes text')].map(each => each.textContent).join(' ')"
    )
    before = page.execute_script(ticks)
    page.execute_script("document.querySelector('#fig-predictions [data-zoom=in]').click()")
    assert page.execute_script(ticks) != before
    page.execute_script("document.querySelector('#fig-predictions [data-zoom=reset]').click()")
    assert page.execute_script(ticks) == before


SHOWN = """
    const figure = document.getElementById(arguments[0]), drawing = figure.querySelector('.plot svg');
    const box = drawing.getBoundingClientRect();
    const of = selector => [...figure.querySelectorAll('.marks ' + selector)].map(mark => mark.getBoundingClientRect());
    const middle = box => box.y + box.height / 2, inside = one => middle(one) >= box.top && middle(one) <= box.bottom;
    const dots = of('circle.seen').filter(inside).map(middle), said = figure.querySelector('.beyond');
    return {spread: (Math.max(...dots) - Math.min(...dots)) / box.height, said: said.hidden ? '' : said.textContent,
            triangles: figure.querySelectorAll('.marks path[transform]').length, seen: dots.length,
            named: drawing.getAttribute('aria-label')};
"""


def test_a_far_row_does_not_flatten_the_others_and_is_counted_in_words(browser, page, tmp_path):
    usual = page.execute_script(SHOWN, "fig-predictions")
    assert (usual["said"], usual["triangles"], usual["seen"]) == ("", 0, 60)
    X, y = cases.table(30, 1)
    X.iloc[7, 1] = 400.0  # far in the inputs, so that its prediction and its distance are far too
    far = tmp_path / "far.html"
    observed = y + 1e6 * (np.arange(30) == 3)
    far.write_text(render(collect(cases.subject(), cases.options(held_out=(X, observed)))), encoding="utf-8")
    browser.get(far.as_uri())
    found = browser.execute_script(SHOWN, "fig-predictions")
    assert found["spread"] > 0.8 * usual["spread"]
    assert found["said"].startswith("2 points lie far beyond this view (1 above, 1 to the right)")
    assert "2 points lie far beyond" in found["named"]
    assert (found["triangles"], found["seen"]) == (2, 60)
    move_to(browser, "#fig-predictions .marks path[transform]")
    tip = browser.execute_script("return document.querySelector('#fig-predictions .tip').innerText")
    assert tip.startswith("Held-out row 3\n")
    assert distinct(observed[3], 200.0) in tip
    for name in ("fig-width", "fig-unsupported"):
        assert browser.execute_script(SHOWN, name)["said"].startswith("1 point lies far beyond this view")
    press = "document.querySelector('#fig-predictions [data-zoom=reset]').click()"
    browser.execute_script(press)
    everything = browser.execute_script(SHOWN, "fig-predictions")
    assert (everything["said"], everything["triangles"]) == ("", 0)
    assert everything["spread"] < 0.01
    browser.execute_script(press)
    assert browser.execute_script(SHOWN, "fig-predictions") == found | {"spread": pytest.approx(found["spread"], 1e-4)}


def test_values_above_a_million_are_told_with_the_digits_that_differ(browser, tmp_path):
    """Pascals: the page holds twelve digits, and what is under the pointer must not have fewer than tell rows apart."""
    X, y = cases.table(40, 0, ("a", "b", "c"))
    y = 4e6 + np.round(y)
    design = np.column_stack([np.ones(40), X["a"]])

    def line(q, Z):
        return q[0] + q[1] * np.asarray(Z)[:, 0]

    fitted = vhat.from_numpy(line, np.linalg.lstsq(design, y, rcond=None)[0], X, y)
    path = tmp_path / "large.html"
    path.write_text(render(collect(cases.Subject(fitted), cases.Options())), encoding="utf-8")
    browser.get(path.as_uri())
    move_to(browser, "#fig-predictions .marks circle.seen")
    tip = browser.execute_script("return document.querySelector('#fig-predictions .tip').innerText").split("\n")
    row = int(tip[0].removeprefix("Training row "))
    assert tip[tip.index("observed") + 1] == f"{y[row]:.0f}"


def test_the_dark_has_other_colours_and_as_much_contrast(page):
    colours = """
        const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
        return [of('body', 'backgroundColor'), of('body', 'color'), of('.center', 'stroke'), of('figcaption', 'color'),
                of('.verdict.holds', 'color')];
    """
    light = page.execute_script(colours)
    look(page, 1200, "dark")
    dark = page.execute_script(colours)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    for ground, *inks in (light, dark):
        for ink in inks:
            assert contrast(ground, ink) >= 4.5


def contrast(one, other):
    """The contrast of WCAG 2 between two CSS colours."""

    def luminance(colour):
        parts = [int(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted(luminance(each) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_a_phone_scrolls_in_one_direction(browser, report):
    look(browser, 360, "light")
    browser.get(report.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('section, figure, svg, select, h1')]"
        ".filter(each => each.getBoundingClientRect().right > 361).map(each => each.tagName + each.id)"
    )
    assert beyond == []


def test_a_hostile_name_is_shown_as_it_was_written(page):
    named = page.execute_script("return [...document.querySelectorAll('#choose-slice option')].map(each => each.text)")
    assert named == list(cases.HOSTILE)
    assert page.execute_script("return document.querySelectorAll('img, script').length") == 3


def test_numbers_are_written_alike_by_both_languages(page):
    for value, half in NUMBERS:
        assert page.execute_script("return Numbers.readable(...arguments)", value, half) == readable(value, half)
    for value in (54.2637, 12345.6, 1234567.0, -3.1e-10, 0.00012345, 0, 999.6):
        assert page.execute_script("return Numbers.short(arguments[0])", value) == short(value)
    for value in (54.2637, -1234567.25, 1000152.4637, 3.1e-10, 0.00012345, 0, 999.96, 7.25e12, 151.0, 120.0, -3e6):
        for spread in (0, 0.7, 77.1, 3e5, 1e-12):
            assert page.execute_script("return Numbers.distinct(...arguments)", value, spread) == distinct(
                value, spread
            )
