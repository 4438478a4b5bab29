"""A report shows what the library returns, harms nobody, and refuses in words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import t as student

import vhat
from tests.report import cases
from vhat.report import collect, render
from vhat.report.options import Subject
from vhat.report.points import MAX_SHOWN
from vhat.report.slices import MAX_SLICES

DIGITS = 1e-5
"""Numbers on the page have six significant digits."""


@pytest.fixture(scope="module")
def subject():
    return cases.subject()


@pytest.fixture(scope="module")
def page(subject):
    return collect(subject, cases.options())


@pytest.fixture(scope="module")
def text(page):
    return render(page)


@pytest.fixture(scope="module")
def shown(text):
    """What the page itself holds, read back out of its HTML."""
    return json.loads(cases.Elements(text).scripts[0])


def test_intervals_on_the_page_are_those_of_the_library(subject, shown):
    fitted, (X, y) = subject.fitted, cases.table(60, 0)
    for group, rows, observed in (("training", X, y), ("held_out", *cases.table(30, 1))):
        found = shown["outputs"][0][group]
        band, fresh = fitted.interval(rows), fitted.interval(rows, target="observation")
        np.testing.assert_allclose(found["center"], band.center, rtol=DIGITS)
        np.testing.assert_allclose(found["half_width"], band.half_width, rtol=DIGITS)
        np.testing.assert_allclose(found["observation"], fresh.half_width, rtol=DIGITS)
        np.testing.assert_allclose(found["unsupported"], np.clip(band.unsupported, 0, 1), rtol=DIGITS, atol=1e-9)
        np.testing.assert_allclose(found["observed"], observed, rtol=DIGITS)
        assert found["abstain"] == band.abstain(max_unsupported=0.5).tolist()
    assert shown["guarantee"]["mean"] == fitted.interval(X).guarantee
    assert shown["guarantee"]["observation"] == fitted.interval(X, target="observation").guarantee
    assert shown["outputs"][0]["noise"] == pytest.approx(fitted.interval(X).noise, rel=DIGITS)


def test_slices_hold_all_but_one_column_of_a_training_row(subject, shown):
    X, _ = cases.table(60, 0)
    standard = (X - X.mean()) / X.std()
    central = int(np.argmin((standard**2).sum(axis=1)))
    row = X.iloc[central].to_numpy()
    assert shown["slice_row"] == f"row {central}"
    for line in shown["outputs"][0]["slices"]:
        points = np.repeat(row[None], len(line["grid"]), axis=0)
        points[:, line["column"]] = line["grid"]
        band = subject.fitted.interval(type(X)(points, columns=X.columns))
        np.testing.assert_allclose(line["center"], band.center, rtol=1e-4)  # the grid has six digits too
        np.testing.assert_allclose(line["half_width"], band.half_width, rtol=1e-3)


def test_distances_are_to_the_nearest_other_training_row(shown):
    X, _ = cases.table(60, 0)
    new, _ = cases.table(30, 1)
    scale = X.to_numpy().std(axis=0)
    among = cdist(X / scale, X / scale) + np.diag(np.full(60, np.inf))
    np.testing.assert_allclose(shown["outputs"][0]["training"]["distance"], among.min(axis=1), rtol=DIGITS)
    np.testing.assert_allclose(
        shown["outputs"][0]["held_out"]["distance"], cdist(new / scale, X / scale).min(axis=1), rtol=DIGITS
    )


def test_the_audit_on_the_page_is_the_audit(subject, shown):
    audit = subject.fitted.audit()
    assert shown["audit"]["holds"] == audit.holds
    assert [line["name"] for line in shown["audit"]["lines"]] == [line.name for line in audit]
    for line, found in zip(audit, shown["audit"]["lines"], strict=True):
        assert (found["verdict"], found["remedy"], found["meaning"]) == (line.verdict, line.remedy, line.meaning)
        assert (found["value"] is None) if np.isnan(line.value) else found["value"] == pytest.approx(line.value, DIGITS)


def test_calibration_counts_held_out_responses_inside_their_intervals(subject, shown):
    X, y = cases.table(30, 1)
    found = shown["outputs"][0]["calibration"]
    assert (found["source"], found["rows"]) == ("held-out", 30)
    for curve in found["curves"]:
        for level, share in zip(curve["level"], curve["coverage"], strict=True):
            band = subject.fitted.interval(X, 1 - level, bound=curve["bound"], target="observation")
            inside = sum(low <= each <= high for low, each, high in zip(band.lower, y, band.upper, strict=True))
            assert share == pytest.approx(inside / 30, rel=DIGITS)
    assert found["rms"] == pytest.approx(np.sqrt(np.mean((y - subject.fitted.predict(X)) ** 2)), rel=DIGITS)


def test_without_held_out_rows_the_training_rows_are_left_out_and_the_page_says_so(subject):
    found = collect(subject, cases.options(held_out=None))
    judged = found["outputs"][0]["calibration"]
    assert judged["source"] == "left-out"
    assert "no held-out rows were given" in judged["method"]
    assert "leave-one-out" in render(found)
    fitted, (X, y) = subject.fitted, cases.table(60, 0)
    left, df = fitted.leave_one_out(), fitted.interval(X).df
    spread = fitted.interval(X).noise * np.sqrt(1 + left.weighted_norm / 60)
    (curve,) = judged["curves"]
    for level, share in zip(curve["level"], curve["coverage"], strict=True):
        most = student.ppf((1 + level) / 2, df)
        assert share == pytest.approx(np.mean(np.abs(y - left.prediction) <= most * spread), rel=DIGITS)
    np.testing.assert_allclose(found["outputs"][0]["training"]["left_out"], left.prediction, rtol=DIGITS)
    assert judged["rms"] == pytest.approx(np.sqrt(np.mean((y - left.prediction) ** 2)), rel=DIGITS)


def test_influential_rows_are_those_with_the_largest_sensitivity(subject, shown):
    X, y = cases.table(60, 0)
    sensitivity = subject.fitted.sensitivity(X)
    found = shown["outputs"][0]["training"]["influence"]
    for point in range(60):
        best = np.sort(np.abs(sensitivity[point]))[::-1][:8]
        np.testing.assert_allclose(np.abs(found["sensitivity"][point]), best, rtol=DIGITS)
        np.testing.assert_allclose(
            found["sensitivity"][point], sensitivity[point, found["row"][point]], rtol=DIGITS, atol=1e-12
        )
        assert found["share"][point] == pytest.approx(np.sum(best**2) / np.sum(sensitivity[point] ** 2), rel=DIGITS)
        for row in found["row"][point]:
            influential = shown["outputs"][0]["influential_rows"][str(row)]
            assert influential == {"name": f"row {row}", "response": pytest.approx(y[row], rel=DIGITS)}


def test_without_a_row_a_linear_prediction_moves_as_its_refit_does():
    """The refit keeps 1/n and lam: the row's weight is zero."""
    rng = np.random.default_rng(3)
    X, lam = rng.normal(size=(25, 2)), 0.3
    y, weight = X @ [1.0, -2.0] + 0.5 * rng.normal(size=25), rng.uniform(0.5, 2.0, size=25)

    def ridge(w):
        return np.linalg.solve(X.T @ (w[:, None] * X) / 25 + lam * np.eye(2), X.T @ (w * y) / 25)

    fitted = vhat.from_numpy(
        lambda q, Z: Z @ q, ridge(weight), X, y, weight_decay=lam, sample_weight=weight, jac=lambda q, Z: Z
    )
    found = collect(cases.Subject(fitted), cases.Options(noise=0.5))["outputs"][0]["training"]["influence"]
    for point in (0, 7):
        for row, moved in zip(found["row"][point], found["without"][point], strict=True):
            refit = ridge(np.where(np.arange(25) == row, 0.0, weight))
            assert moved == pytest.approx(X[point] @ (refit - ridge(weight)), rel=1e-4)


def test_the_widest_are_the_widest_and_the_weight_decay_curve_is_given(page):
    output = page["outputs"][0]
    every = output["training"]["half_width"] + output["held_out"]["half_width"]
    assert [point["half_width"] for point in output["widest"]] == sorted(every, reverse=True)[:10]
    assert page["curve"]["score"] == [3.0, 2.5, 2.75]
    assert page["curve"]["best"] == 1


def test_a_weight_decay_without_a_score_is_named_below_the_picture(subject):
    failed = replace(
        cases.curve(),
        score=np.array([np.inf, 2.5, 2.75]),
        status=np.array(["failed", "converged", "converged"], dtype=object),
        remark=np.array(["row 3 cannot be left out.", "", ""], dtype=object),
    )
    said = collect(replace(subject, curve=failed), cases.options())["curve"]["note"]
    assert "Less than the best weight decay, 0.1, may be better still" in said
    assert said.endswith("No score at 0.01: row 3 cannot be left out.")


def test_abstained_points_are_those_that_the_interval_abstains_from(subject):
    found = collect(subject, cases.options(max_unsupported=0.0))["outputs"][0]["abstained"]
    bands = [subject.fitted.interval(X) for X in (cases.table(60, 0)[0], cases.table(30, 1)[0])]
    assert found["count"] == sum(int(band.abstain(max_unsupported=0.0).sum()) for band in bands) > 0


def test_names_are_text_wherever_they_stand(text, shown):
    """A name that closes the script, opens a tag or ends an attribute is shown, never obeyed."""
    page = cases.Elements(text)
    assert [attrs.get("type") for tag, attrs in page.found if tag == "script"] == ["application/json", None, None]
    tags = {tag for tag, _ in page.found}
    assert not tags & {"img", "i", "iframe", "object"}
    assert not [attrs for _, attrs in page.found if any(name.startswith("on") for name in attrs)]
    assert shown["columns"] == list(cases.HOSTILE)
    assert shown["outputs"][0]["name"] == "<i>yield</i> (kg)"
    assert "&lt;b&gt;none&lt;/b&gt;" in text


def test_the_page_names_no_other_place(text):
    page = cases.Elements(text)
    links = [attrs.get(name, "") for _, attrs in page.found for name in ("src", "href") if name in attrs]
    assert links
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert "@import" not in text
    assert "url(http" not in text
    policies = [attrs["content"] for tag, attrs in page.found if tag == "meta" and "http-equiv" in attrs]
    assert policies[0].startswith("default-src 'none'")


def test_many_rows_and_columns_are_thinned_and_the_page_says_so():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(MAX_SHOWN + 200, MAX_SLICES + 2))
    slopes = np.arange(1.0, MAX_SLICES + 3)
    y = X @ slopes + rng.normal(size=len(X))
    theta = np.linalg.lstsq(X, y, rcond=None)[0]
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, theta, X, y, jac=lambda q, Z: Z)
    found = collect(cases.Subject(fitted), cases.Options(held_out=(X + 0.1, y)))
    assert len(found["outputs"][0]["training"]["name"]) == len(found["outputs"][0]["held_out"]["name"]) == MAX_SHOWN
    assert found["outputs"][0]["calibration"]["rows"] == len(X)
    assert sorted(line["column"] for line in found["outputs"][0]["slices"]) == list(range(2, MAX_SLICES + 2))
    page = render(found)
    assert len(page.encode()) < 1_000_000
    for note in (f"{MAX_SHOWN} of {len(X)} training rows", f"{MAX_SHOWN} of {len(X)} held-out", f"{MAX_SLICES} of"):
        assert note in page


def test_every_output_has_its_own_numbers():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(40, 2))
    y = np.stack([X @ [1.0, 2.0], X @ [30.0, -10.0]], axis=1) + rng.normal(size=(40, 2)) * [0.1, 5.0]

    def two(q, Z):
        return np.stack([Z @ q[:2], Z @ q[2:]], axis=1)

    theta = np.linalg.lstsq(X, y, rcond=None)[0].T.ravel()
    fitted = vhat.from_numpy(two, theta, X, y)
    found = collect(cases.Subject(fitted), cases.Options(response=("first", "second")))
    band = fitted.interval(X)
    for k, name in enumerate(("first", "second")):
        output = found["outputs"][k]
        assert output["name"] == name
        np.testing.assert_allclose(output["training"]["half_width"], band.half_width[:, k], rtol=DIGITS)
        sensitivity = np.abs(fitted.sensitivity(X[:1])[0, k, :, k])
        assert output["training"]["influence"]["row"][0][0] == int(np.argmax(sensitivity))
    assert render(found).count('class="output') >= 2
    with pytest.raises(vhat.InputError, match="3 outputs"):
        collect(cases.Subject(fitted), cases.Options(response=("a", "b", "c")))


def test_a_model_without_intervals_is_reported_with_its_audit_and_the_reason():
    X = np.linspace(0, 1, 3)
    y = np.array([0.0, 1.0, 0.5])
    powers = np.stack([np.ones(3), X, X**2], axis=1)
    fitted = vhat.from_numpy(lambda q, Z: Z @ q, np.linalg.solve(powers, y), powers, y, jac=lambda q, Z: Z)
    found = collect(cases.Subject(fitted), cases.Options())
    with pytest.raises(vhat.NoiseError) as refused:
        fitted.interval(powers)
    assert found["no_intervals"] == str(refused.value)
    assert "There are no intervals." in render(found)
    assert found["audit"]["lines"]


def test_rows_with_noise_of_their_own_have_no_interval_of_a_new_response():
    x = np.linspace(0, 4, 30)
    sigma = 0.01 * (1 + x)
    y = 2.0 * np.exp(-x) + sigma * np.random.default_rng(0).normal(size=30)
    fitted = vhat.from_curve_fit(lambda x, a, b: a * np.exp(-b * x), [2.0, 1.0], x, y, sigma=sigma).polish()
    found = collect(cases.Subject(fitted, columns=("time (s)",)), cases.Options())
    assert found["columns"] == ["time (s)"]
    assert "observation_noise" in found["guarantee"]["no_observation"]
    assert found["outputs"][0]["training"]["observation"] is None
    assert "There are no intervals of a new response" in render(found)
    with pytest.raises(vhat.InputError, match="columns names 2 columns"):
        collect(cases.Subject(fitted, columns=("a", "b")), cases.Options())


def test_inputs_that_are_no_columns_are_shown_without_slices():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(30, 2, 2))
    y = X.sum(axis=(1, 2)) + 0.1 * rng.normal(size=30)
    fitted = vhat.from_numpy(lambda q, Z: q[0] * Z.sum(axis=(1, 2)), [1.0], X, y).polish()
    found = collect(cases.Subject(fitted), cases.Options())
    np.testing.assert_allclose(
        found["outputs"][0]["training"]["half_width"], fitted.interval(X).half_width, rtol=DIGITS
    )
    assert found["outputs"][0]["slices"] == []
    assert "no slices" in " ".join(found["notes"])


def test_what_the_library_warns_of_is_on_the_page_and_warned_of_again():
    X, y = cases.table(40, 0)
    fitted = vhat.from_numpy(cases.bent, [90.0, 150.0, 1.0, 45.0], X, y, weight_decay=1e-6)
    with pytest.warns(vhat.NotMinimumWarning):
        found = collect(cases.Subject(fitted), cases.Options())
    assert any("not a minimum" in said for said in found["warnings"])
    assert "stationarity" in found["audit"]["failed"]
    assert "Look at: " in render(found)


def test_a_file_is_written_whole_and_never_over_another_unasked(tmp_path):
    fitted = cases.bent_fit(30, ("a", "b", "c"))
    path = tmp_path / "report.html"
    assert fitted.report(path, response="y (m)") == path
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert cases.data_of(path)["columns"] == ["a", "b", "c"]
    with pytest.raises(vhat.InputError, match=r"is there already.*--force"):
        fitted.report(path)
    fitted.report(path, response="z (m)", force=True)
    assert cases.data_of(path)["responses"] == ["z (m)"]
    with pytest.raises(vhat.InputError, match="is a directory"):
        fitted.report(tmp_path)
    with pytest.raises(vhat.InputError, match="is not a directory"):
        fitted.report(tmp_path / "no" / "report.html")


def test_a_file_that_appears_while_a_report_is_computed_is_not_written_over(tmp_path, monkeypatch):
    path = tmp_path / "report.html"

    def slow(page):
        path.write_text("precious")
        return render(page)

    monkeypatch.setattr("vhat.report.page.render", slow)
    with pytest.raises(vhat.InputError, match=r"is there already.*--force"):
        cases.bent_fit(30, ("a", "b", "c")).report(path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"delta": 1.5}, "delta"),
        ({"max_unsupported": 2}, "share between 0 and 1"),
        ({"held_out": 3}, "a pair"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_that_cannot_be_used_are_refused(wrong, said):
    with pytest.raises(vhat.InputError, match=said):
        cases.Options(**wrong)


def test_held_out_rows_that_do_not_fit_are_refused(subject):
    X, y = cases.table(30, 1)
    with pytest.raises(vhat.InputError, match="held_out has 30 rows"):
        collect(subject, cases.options(held_out=(X, y[:-1])))
    with pytest.raises(vhat.InputError, match="NaN"):
        collect(subject, cases.options(held_out=(X, np.where(np.arange(30) == 3, np.nan, y))))


@pytest.mark.parametrize("front_end", ["jax", "torch"])
def test_every_front_end_keeps_the_names_of_its_columns_and_its_numbers(front_end):
    X, y = cases.table(30, 0, ("a", "b", "c"))
    theta = np.linalg.lstsq(X.to_numpy(), y, rcond=None)[0]
    if front_end == "jax":
        fitted = vhat.from_jax(lambda q, Z: Z @ q, theta, X, y, weight_decay=0.0)
    else:
        import torch

        line = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
        line.weight.data[:] = torch.tensor(theta)
        fitted = vhat.from_torch(line, X, y[:, None], weight_decay=0.0)
    found = collect(cases.Subject(fitted), cases.Options())
    assert found["columns"] == ["a", "b", "c"]
    Z = X.to_numpy()
    variance = np.sum((y - Z @ theta) ** 2) / 27
    error = np.sqrt(variance * np.sum((Z @ np.linalg.inv(Z.T @ Z)) * Z, axis=1))
    half = np.array(found["outputs"][0]["training"]["half_width"])
    band = fitted.interval(X)
    multiplier = float(band.half_width.ravel()[0] / band.standard_error.ravel()[0])
    np.testing.assert_allclose(half, multiplier * error, rtol=DIGITS)


def test_models_of_several_inputs_are_refused_in_words():
    rng = np.random.default_rng(0)
    X = {"a": rng.normal(size=(20, 1)), "b": rng.normal(size=(20, 1))}
    y = X["a"][:, 0] + 0.1 * rng.normal(size=20)
    fitted = vhat.from_jax(lambda q, Z: q[0] * Z["a"][:, 0] + q[1] * Z["b"][:, 0], np.ones(2), X, y, weight_decay=0.0)
    with pytest.raises(vhat.InputError, match="one table of numbers"):
        collect(cases.Subject(fitted), cases.Options())


def test_a_large_constant_in_the_responses_costs_no_digits():
    """Pascals about 101325: rounded to six digits, predictions would be off by more than their intervals."""
    x = np.linspace(-1, 1, 40)[:, None]
    y = 1e6 + x[:, 0] + 0.1 * np.random.default_rng(0).standard_normal(40)
    design = np.column_stack([np.ones(40), x])
    theta = np.linalg.lstsq(design, y, rcond=None)[0]
    fitted = vhat.from_jax(lambda q, X: q[0] + X[:, 0] * q[1], theta, x, y, weight_decay=0.0)
    found = collect(Subject(fitted), cases.options(held_out=None))["outputs"][0]["training"]
    np.testing.assert_allclose(found["center"], design @ theta, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["observed"], y, rtol=0, atol=1e-5)


def dose_response(x, bottom, top, ec50, slope):
    return bottom + (top - bottom) / (1 + (x / ec50) ** (-slope))


def dose_fit():
    x = np.geomspace(0.05, 50, 40)
    truth = [0.1, 2.0, 2.0, 1.3]
    y = dose_response(x, *truth) + 0.03 * np.random.default_rng(0).standard_normal(40)
    return vhat.from_curve_fit(dose_response, truth, x, y, 0.03 * np.ones(40)).polish()


def test_slices_of_a_positive_column_stay_positive_and_the_curve_of_doses_has_a_report(tmp_path):
    fitted = dose_fit()
    fitted.report(str(tmp_path / "curve.html"))
    (line,) = cases.data_of(tmp_path / "curve.html")["outputs"][0]["slices"]
    assert 0 < line["grid"][0] < 0.05
    assert line["grid"][-1] > 50


def test_points_of_slices_without_a_finite_prediction_are_left_out():
    x = np.linspace(-1.0, 1.0, 40)
    y = np.sqrt(1.2 + x) + 0.01 * np.random.default_rng(0).standard_normal(40)
    fitted = vhat.from_curve_fit(lambda x, a, b: a * np.sqrt(1.2 + x) + b, [1.0, 0.0], x, y).polish()
    (line,) = collect(Subject(fitted), cases.Options())["outputs"][0]["slices"]
    assert -1.2 <= line["grid"][0] <= -1.0
    assert line["grid"][-1] > 1.0
    assert np.all(np.isfinite(line["center"]))


def test_a_value_and_its_threshold_have_digits_that_tell_them_apart(page):
    lines = [{**line, "value": 0.27712, "threshold": 0.27694, "digits": 4} for line in page["audit"]["lines"]]
    text = render({**page, "audit": {**page["audit"], "lines": lines}})
    assert 'data-label="value">0.2771<' in text
    assert 'data-label="threshold">0.2769<' in text
