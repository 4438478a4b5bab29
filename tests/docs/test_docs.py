"""The examples of the documentation run as they are printed, and show what the text says that they show."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import vhat

DOCS = Path(__file__).parents[2] / "docs"


def run(page):
    """Run a page's examples one after the other in one namespace, with the library's warnings as errors."""
    names: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", vhat.VhatWarning)
        for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
            exec(compile(block, page, "exec"), names)
    return names


def test_which_interval_shows_that_only_the_calibrated_one_holds_where_the_model_is_wrong(capsys):
    names = run("which-interval.md")
    truth = np.sin(2 * names["x_new"])
    coverage = vhat.metrics.coverage
    assert coverage(names["mean"].lower, names["mean"].upper, truth) < 0.2
    assert coverage(names["observation"].lower, names["observation"].upper, names["y_new"]) < 0.5
    # given 99 calibration rows the coverage of new rows is Beta(95, 5): 0.95 +- 0.022
    assert coverage(names["safe"].lower, names["safe"].upper, names["y_new"]) == pytest.approx(0.95, abs=0.065)
    ratio = names["safe"].half_width.mean() / names["observation"].half_width.mean()
    assert 4 < ratio < 5  # the page: more than four times
    assert 0 < names["doubtful"].sum() < names["doubtful"].size
    residual = names["fitted"].leave_one_out().residual
    assert np.sqrt(np.mean(residual**2)) > 4 * 0.1
    assert "missed with probability at most delta" in capsys.readouterr().out


@pytest.mark.slow
def test_the_decision_page_ends_each_case_in_a_call_that_runs(capsys):
    names = run("which-call.md")
    assert names["new_response"].noise_source == "estimated from 200 validation rows"
    assert names["regressor"].columns_["city"].told == "category: 3 levels"
    area = 5.0 * 0.8 * np.sqrt(2 * np.pi)  # of the peak that was drawn
    assert names["area_below"].center == pytest.approx(area, abs=4 * float(names["area_below"].standard_error))
    errors = np.sqrt(np.diag(names["pcov"]))
    by_vhat = names["curve"].functional(lambda q: q, bound="asymptotic", curvature="ggn").standard_error
    np.testing.assert_allclose(by_vhat, errors, rtol=1e-3)
    assert names["region"].contains(names["popt"])
    np.testing.assert_allclose(names["V"] / 60, np.sum(names["sensitivity"] ** 2, axis=-1), rtol=1e-6)
    assert [each.status for each in names["found"].outcomes] == ["answered"] * 3
    assert "by the delta method" in capsys.readouterr().out


def test_comparing_shows_a_refusal_among_answers_and_bootstraps_a_loop_of_torch(capsys):
    names = run("comparing.md")
    status = {each.method: each.status for each in names["found"].outcomes}
    assert status == dict.fromkeys(("Proposed", "Wald", "LinearizedLaplace"), "answered") | {"Conformal": "refused"}
    shown = [axis for axis in names["panels"].axes if axis.get_visible()]
    assert [axis.get_title(loc="left") for axis in shown] == list(status)
    assert shown[-1].texts[0].get_text().startswith("Conformal('split') gives")
    assert len(names["frame"]) == 4
    assert names["own"].target == "observation"
    assert [each.status for each in names["own"].outcomes] == ["answered"] * 3
    printed = capsys.readouterr().out
    assert "Conformal: Conformal('split') gives no interval for target='mean'" in printed


def test_writing_a_method_shows_a_jackknife_that_equals_the_one_by_refits(capsys):
    names = run("writing-a-method.md")
    assert [(each.method, each.status) for each in names["found"].outcomes] == [
        (name, "answered") for name in ("Jackknife", "Wald", "Proposed")
    ]
    assert "Gaussian noise in a new response, given" in capsys.readouterr().out
    # for a linear model first-order leave-one-out is exact: least squares without each row in turn
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    y = X @ [1.0, -0.5] + 0.3 * rng.normal(size=20)
    points = np.array([[0.3, -0.2], [1.0, 0.5]])

    def recipe(X, y, *, seed, sample_weight=None):
        theta = np.linalg.lstsq(X, y)[0]
        return vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda q, Z: Z)

    band = names["Jackknife"]().fit(recipe, X, y).interval(points)
    rows = [np.arange(20) != i for i in range(20)]
    without = np.stack([points @ np.linalg.lstsq(X[kept], y[kept])[0] for kept in rows])
    expected = np.sqrt(19 / 20 * np.sum((without - without.mean(axis=0)) ** 2, axis=0))
    np.testing.assert_allclose(band.standard_error, expected, rtol=1e-8)
    np.testing.assert_allclose(band.half_width, 1.959963984540054 * expected, rtol=1e-8)


def test_comparing_has_every_method_in_its_table():
    text = (DOCS / "comparing.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))
    concrete = {name for name in vhat.methods.__all__ if not getattr(getattr(vhat.methods, name), "_is_protocol", 0)}
    assert rows == concrete - {"WithRecipe"}


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_call_that_a_page_names_exists(page):
    text = (DOCS / page).read_text()
    for name in set(re.findall(r"`fitted\.(\w+)", text)):
        assert hasattr(vhat.FittedModel, name), name
    for name in set(re.findall(r"`band\.(\w+)", text)):
        assert name in vhat.Interval.__dataclass_fields__ or hasattr(vhat.Interval, name), name
    for name in set(re.findall(r"`vhat\.([a-zA-Z]\w*)", text)):
        assert hasattr(vhat, name), name


@pytest.mark.slow
def test_a_trained_network_has_intervals_for_new_responses_without_a_warning(capsys):
    names = run("trained-network.md")
    band = names["band"]
    assert band.noise_source == "estimated from 200 validation rows"
    with names["torch"].no_grad():
        np.testing.assert_allclose(band.center, names["module"](names["X_val"][:5]).numpy(), rtol=1e-5)
    assert "the center is the model's own prediction" in band.guarantee
    assert "Guaranteed" not in band.guarantee
    assert "split conformal" in capsys.readouterr().out
