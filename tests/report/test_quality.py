"""Accuracy, coverage by part and importance on a page, against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, binomtest, norm
from scipy.stats import t as student
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.inspection import permutation_importance
from sklearn.metrics import r2_score, root_mean_squared_error

import vhat
from tests.report import cases
from vhat.report import collect
from vhat.report.coverage_parts import CHANCE, count
from vhat.report.evaluation_rows import _coverage_given_noise, _coverage_given_scores
from vhat.report.findings import verdict
from vhat.report.importance import MAX_ROWS, REPEATS, importance
from vhat.report.options import Options, Subject

DIGITS = 1e-5


def line(q, Z):
    return q[0] + np.asarray(Z) @ q[1:]


def linear_table(rows, seed, slopes=(3.0, 1.0, 0.0), noise=1.0):
    """Columns of which the last takes two values."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(rows, len(slopes))), columns=[f"c{j}" for j in range(len(slopes))])
    X.iloc[:, -1] = rng.integers(0, 2, rows)
    return X, 5.0 + X.to_numpy() @ slopes + noise * rng.normal(size=rows)


def linear_fit(X, y, weight=None):
    root = np.ones(len(y)) if weight is None else np.sqrt(weight)
    design = np.column_stack([np.ones(len(X)), X])
    theta = np.linalg.lstsq(root[:, None] * design, root * y, rcond=None)[0]
    return vhat.from_numpy(
        line, theta, X, y, sample_weight=weight, jac=lambda q, Z: np.column_stack([np.ones(len(Z)), Z])
    )


def quality_of(fitted, **options):
    return collect(Subject(fitted), Options(**options))["outputs"][0]["quality"]


@pytest.fixture(scope="module")
def fitted():
    return linear_fit(*linear_table(120, 0))


@pytest.fixture(scope="module")
def held_out():
    return linear_table(90, 1)


@pytest.fixture(scope="module")
def found(fitted, held_out):
    return quality_of(fitted, held_out=held_out)


# -- accuracy ------------------------------------------------------------------------------------
def test_accuracy_on_held_out_rows_is_that_of_scikit_learn_and_so_is_the_mean(fitted, held_out, found):
    X, y = held_out
    told = found["accuracy"]
    assert (found["source"], told["rows"]) == ("held-out", 90)
    assert told["r2"] == pytest.approx(r2_score(y, fitted.predict(X)), rel=DIGITS)
    assert told["rms"] == pytest.approx(root_mean_squared_error(y, fitted.predict(X)), rel=DIGITS)
    mean = DummyRegressor().fit(*linear_table(120, 0)).predict(X)
    assert told["mean_rms"] == pytest.approx(root_mean_squared_error(y, mean), rel=DIGITS)
    assert told["mean_r2"] == pytest.approx(r2_score(y, mean), rel=DIGITS)
    assert told["bias"] == pytest.approx(np.mean(y - fitted.predict(X)), rel=DIGITS)


def test_boosted_trees_are_those_of_scikit_learn_on_the_same_training_rows(held_out, found):
    from sklearn.ensemble import HistGradientBoostingRegressor

    X, y = held_out
    trees = HistGradientBoostingRegressor(random_state=0).fit(*(part.to_numpy() for part in _frames(120, 0)))
    assert found["accuracy"]["trees_rms"] == pytest.approx(
        root_mean_squared_error(y, trees.predict(X.to_numpy())), 0.02
    )
    assert found["baseline"] == "fitted to the same training rows"


def _frames(rows, seed):
    X, y = linear_table(rows, seed)
    return X, pd.Series(y)


def test_left_out_rows_are_judged_by_models_that_did_not_see_them():
    X, y = linear_table(40, 2)
    weight = np.random.default_rng(3).uniform(0.5, 2.0, 40)
    weight[7] = 0.0  # a row that the loss does not see judges nothing
    told = quality_of(linear_fit(X, y, weight), noise=1.0)
    seen = np.flatnonzero(weight)
    predicted, mean = [], []
    for row in seen:
        others = np.setdiff1d(seen, [row])
        design = np.column_stack([np.ones(40), X]) * np.sqrt(weight)[:, None]
        theta = np.linalg.lstsq(design[others], (np.sqrt(weight) * y)[others], rcond=None)[0]
        predicted.append(line(theta, X.iloc[[row]])[0])
        mean.append(np.average(y[others], weights=weight[others]))
    assert (told["source"], told["accuracy"]["rows"]) == ("left-out", 39)
    assert told["accuracy"]["r2"] == pytest.approx(r2_score(y[seen], predicted), rel=1e-4)
    assert told["accuracy"]["mean_rms"] == pytest.approx(root_mean_squared_error(y[seen], mean), rel=DIGITS)
    assert told["accuracy"]["trees_rms"] is None
    assert "fewer than 100 rows" in told["baseline"]


def test_the_interval_of_a_left_out_row_is_that_of_the_refit_without_it():
    X, y = linear_table(30, 4)
    fitted = linear_fit(X, y)
    drawn = quality_of(fitted)["residuals"]
    band = fitted.interval(X)
    design = np.column_stack([np.ones(30), X])
    for row in (0, 11):
        others = np.setdiff1d(np.arange(30), [row])
        gram = np.linalg.inv(design[others].T @ design[others])
        theta = gram @ design[others].T @ y[others]
        half = student.ppf(0.975, band.df) * band.noise * np.sqrt(1 + design[row] @ gram @ design[row])
        assert drawn["prediction"][row] == pytest.approx(design[row] @ theta, rel=1e-4)
        assert drawn["residual"][row] == pytest.approx(y[row] - design[row] @ theta, rel=1e-4)
        assert drawn["high"][row] == pytest.approx(half, rel=1e-4)
        assert drawn["low"][row] == pytest.approx(-half, rel=1e-4)


def test_cross_validated_trees_do_not_explain_noise():
    X, y = linear_table(120, 5, slopes=(0.0, 0.0, 0.0))
    told = quality_of(linear_fit(X, y))
    assert told["baseline"] == "5-fold cross-validation"
    assert told["accuracy"]["trees_r2"] < 0.0
    assert told["accuracy"]["r2"] < 0.1


def test_no_number_but_the_unit_changes_with_the_unit_of_the_response(held_out, found):
    X, y = linear_table(120, 0)
    other = quality_of(linear_fit(X, 1000.0 * y + 1e6), held_out=(held_out[0], 1000.0 * held_out[1] + 1e6))
    for name in ("r2", "mean_r2", "trees_r2"):
        assert other["accuracy"][name] == pytest.approx(found["accuracy"][name], abs=1e-4)
    for name in ("rms", "mean_rms", "trees_rms", "bias", "bias_error"):
        assert other["accuracy"][name] == pytest.approx(1000 * found["accuracy"][name], rel=1e-3)
    assert [part["inside"] for part in other["parts"]] == [part["inside"] for part in found["parts"]]
    np.testing.assert_allclose(other["importance"]["increase"], 1000 * np.array(found["importance"]["increase"]), 1e-4)


# -- importance ----------------------------------------------------------------------------------
def test_importance_agrees_with_scikit_learn_within_its_spread(fitted, held_out, found):
    class Frozen(RegressorMixin, BaseEstimator):
        def fit(self, X, y):
            return self

        def predict(self, X):
            return fitted.predict(X)

    told = found["importance"]
    assert told["name"] == ["c0", "c1", "c2"]
    assert (told["rows"], told["repeats"], told["others"]) == (90, REPEATS, 0)
    other = permutation_importance(
        Frozen(), *held_out, scoring="neg_root_mean_squared_error", n_repeats=60, random_state=3
    )
    for column, (mean, spread) in enumerate(zip(told["increase"], told["spread"], strict=True)):
        error = other.importances_std[column] * np.sqrt(1 / REPEATS + 1 / 60)
        assert mean == pytest.approx(other.importances_mean[column], abs=4 * error)
        assert 0.3 * other.importances_std[column] < spread < 2.5 * other.importances_std[column]
    assert told["rms"] == pytest.approx(found["accuracy"]["rms"], rel=DIGITS)


@pytest.mark.parametrize(("columns", "parameters"), [(4, 10), (500, 10), (40, 10**6)])
def test_shuffles_are_bounded_in_rows_and_in_work(columns, parameters):
    asked = []

    def predict(rows):
        asked.append(len(rows))
        return rows[:, :1]

    values = np.random.default_rng(0).normal(size=(1000, columns))
    blocks = {f"c{j}": np.array([j]) for j in range(columns)}
    told = importance(predict, values, values[:, :1], blocks, parameters=parameters, seed=0)
    assert told.rows >= 20
    assert sum(asked) <= min(MAX_ROWS, 2e10 / parameters) + told.rows
    assert max(asked) <= 20_000
    assert np.all(told.increase[1:] == 0)
    assert told.increase[0, 0] > 1


def test_a_model_too_costly_or_rows_too_few_have_no_importance():
    values = np.zeros((30, 3))
    blocks = {"a": np.array([0]), "b": np.array([1])}
    for rows, parameters in ((30, 10**9), (19, 5)):
        few = values[:rows]
        assert importance(lambda Z: Z[:, :1], few, few[:, :1], blocks, parameters=parameters, seed=0) is None


def test_columns_that_encode_one_column_are_shuffled_and_grouped_together():
    rng = np.random.default_rng(6)

    def made(rows):
        town = rng.integers(0, 3, rows)
        X = pd.DataFrame({"size": rng.normal(size=rows)} | {f"town = {k}": (town == k).astype(float) for k in range(3)})
        return X, X["size"].to_numpy() + np.array([0.0, 4.0, -4.0])[town] + rng.normal(size=rows)

    X, y = made(90)
    design = X.to_numpy()
    fitted = vhat.from_numpy(
        lambda q, Z: np.asarray(Z) @ q, np.linalg.lstsq(design, y, rcond=None)[0], X, y, jac=lambda q, Z: np.asarray(Z)
    )
    new, observed = made(120)
    options = Options(held_out=(new, observed))
    told = collect(Subject(fitted, sources=("size", "town", "town", "town")), options)["outputs"][0]["quality"]
    assert told["importance"]["name"] == ["town", "size"]
    parts = {part["label"]: part["rows"] for part in told["parts"] if part["of"] == "town"}
    assert parts == {f"= {k}": int(new[f"town = {k}"].sum()) for k in range(3)}
    # a shuffled town is another town with its own mean; shuffled marks would name two towns or none
    town = new.iloc[:, 1:].to_numpy() @ np.array([0.0, 4.0, -4.0])
    others = np.stack([rng.permutation(town) for _ in range(50)], axis=1)
    shuffled = (observed - new["size"].to_numpy())[:, None] - others
    assert told["importance"]["increase"][0] == pytest.approx(np.sqrt(np.mean(shuffled**2)) - 1, rel=0.15)


# -- coverage by part ----------------------------------------------------------------------------
def test_parts_count_the_rows_of_a_fifth_and_of_a_group(fitted, held_out, found):
    X, y = held_out
    band = fitted.interval(X, target="observation")
    table = X.assign(inside=(band.lower <= y) & (y <= band.upper), prediction=band.center)
    assert found["coverage"]["inside"] == table["inside"].sum()
    for of, by in (("prediction", pd.qcut(table["prediction"], 5)), ("c0", pd.qcut(X["c0"], 5)), ("c2", X["c2"])):
        grouped = table.groupby(by, observed=True)["inside"]
        told = [part for part in found["parts"] if part["of"] == of]
        assert [part["rows"] for part in told] == grouped.count().tolist()
        assert [part["inside"] for part in told] == grouped.sum().tolist()
    assert {part["of"] for part in found["parts"]} == {"prediction", "c0", "c2"}
    labels = [part["label"] for part in found["parts"] if part["of"] == "c2"]
    assert labels == ["= 0", "= 1"]


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("tests", [1, 12])
def test_what_is_called_off_is_as_rare_as_two_standard_errors_for_all_parts_together(two_sided, tests):
    rows, level = 40, 0.9
    chance = 0.0
    for inside in range(rows + 1):
        part = count(np.arange(rows) < inside, np.array([level]), two_sided=two_sided, tests=tests)
        chance += binom.pmf(inside, rows, level) * bool(part.off)
        ends = binomtest(inside, rows).proportion_ci(1 - CHANCE, method="exact")
        assert (part.low, part.high) == pytest.approx((ends.low, ends.high), abs=1e-9)
        if not two_sided:
            assert part.chance == pytest.approx(binom.cdf(inside, rows, level), rel=1e-9)
            assert part.off != "high"
    assert 0 < chance <= CHANCE / tests


def test_held_out_rows_are_not_blamed_for_a_level_that_few_training_rows_have_set():
    """Exact t intervals keep 95% over draws of both kinds of rows; with the noise of one draw they keep a bit less."""
    rng = np.random.default_rng(11)
    df, rows, draws = 10, 200, 4000
    ratio = np.sqrt(rng.chisquare(df, draws) / df)
    inside = rng.binomial(rows, 2 * norm.cdf(student.ppf(0.975, df) * ratio) - 1)
    shares = {}
    for name, coverage in (("given noise", _coverage_given_noise(df, 0.05)), ("known", np.array([0.95]))):
        off = {each: count(np.arange(rows) < each, coverage, two_sided=True).off != "" for each in np.unique(inside)}
        shares[name] = np.mean([off[each] for each in inside])
    assert shares["given noise"] < CHANCE + 3 * np.sqrt(CHANCE / draws)
    assert shares["known"] > 0.3


@pytest.mark.parametrize("rows", [200, 5000])
def test_calibrated_intervals_are_called_off_as_often_as_chance_has_it(rows):
    """400 scores set a level that is itself a draw: many held-out rows tell it from 95%, and it is not wrong."""
    rng = np.random.default_rng(13)
    scores, draws = 400, 4000
    rank = int(np.ceil(0.95 * (scores + 1) - 1e-9))
    inside = rng.binomial(rows, rng.beta(rank, scores + 1 - rank, draws))
    coverage = _coverage_given_scores(scores, 0.05)
    off = {each: count(np.arange(rows) < each, coverage, two_sided=True).off for each in np.unique(inside)}
    share = np.mean([off[each] != "" for each in inside])
    assert share < CHANCE + 3 * np.sqrt(CHANCE / draws)


def test_rows_that_are_left_out_of_one_fit_tell_as_much_as_its_residual_degrees_of_freedom():
    """Least squares with 20 parameters on 60 rows, calibrated by leave-one-out, in closed form."""
    rng = np.random.default_rng(17)
    n, p, rows, draws = 60, 20, 1000, 1500
    rank = int(np.ceil(0.95 * (n + 1) - 1e-9))
    new = rng.normal(size=(300, p))
    inside = np.empty(draws, dtype=int)
    for draw in range(draws):
        q, r = np.linalg.qr(rng.normal(size=(n, p)))
        noise = rng.normal(size=n)
        error = np.linalg.solve(r, q.T @ noise)  # of the coefficients
        scores = np.abs(noise - q @ (q.T @ noise)) / np.sqrt(1 - np.sum(q**2, axis=1))
        half = np.sort(scores)[rank - 1] * np.sqrt(1 + np.sum(np.linalg.solve(r.T, new.T) ** 2, axis=0))
        bias = new @ error
        inside[draw] = rng.binomial(rows, np.mean(norm.cdf(half - bias) - norm.cdf(-half - bias)))
    shares = {}
    for name, freedom in (("rows", None), ("degrees of freedom", n - p)):
        coverage = _coverage_given_scores(n, 0.05, freedom)
        off = {each: count(np.arange(rows) < each, coverage, two_sided=True).off != "" for each in np.unique(inside)}
        shares[name] = np.mean([off[each] for each in inside])
    assert shares["degrees of freedom"] < CHANCE + 3 * np.sqrt(CHANCE / draws)
    assert shares["rows"] > shares["degrees of freedom"] + 3 * np.sqrt(CHANCE / draws)


def test_intervals_that_cover_far_too_little_are_not_excused_by_the_training_rows():
    assert count(np.arange(200) < 181, _coverage_given_noise(20, 0.05), two_sided=True).off == ""
    assert count(np.arange(200) < 165, _coverage_given_noise(20, 0.05), two_sided=True).off == "low"
    assert count(np.arange(5000) < 4550, _coverage_given_scores(400, 0.05), two_sided=True).off == "low"


@pytest.mark.parametrize("scores", [19, 90, 400])
def test_the_coverage_of_calibrated_intervals_varies_as_order_statistics_do(scores):
    rng = np.random.default_rng(12)
    rank = int(np.ceil(0.95 * (scores + 1) - 1e-9))
    drawn = np.sort(rng.uniform(size=(4000, scores)), axis=1)[:, rank - 1]
    told = _coverage_given_scores(scores, 0.05)
    assert np.mean(told) == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / np.sqrt(4000))
    assert np.std(told) == pytest.approx(np.std(drawn), rel=0.08)


# -- the verdict ---------------------------------------------------------------------------------
def judged(findings=(), rows=50, coverage=True, doubt=""):
    return {
        "name": "y",
        "quality": {"findings": list(findings), "coverage": {"rows": rows} if coverage else None, "doubt": doubt},
    }


@pytest.mark.parametrize(
    ("holds", "output", "trouble", "kind"),
    [
        (True, judged(), "", "good"),
        (False, judged(), "", "look"),
        (True, judged([{"name": "bias", "text": "s", "remedy": "r"}]), "", "look"),
        (True, judged(coverage=False), "", "open"),
        (True, judged(rows=19), "", "open"),
        (True, judged(doubt="leverages are high"), "", "open"),
        (True, judged(), "no noise", "look"),
    ],
)
def test_the_verdict_is_good_only_where_everything_was_tested_and_holds(holds, output, trouble, kind):
    audit = {"holds": holds, "failed": [] if holds else ["noise"]}
    assert verdict(audit, [output], trouble)["kind"] == kind
    assert verdict(audit, [judged(), output], trouble)["kind"] == kind


def spoiled(kind, y, X, fitted):
    """Held-out responses that the fit is wrong for."""
    rng = np.random.default_rng(9)
    if kind == "bias":
        return y + 1.0
    if kind == "coverage by group":
        # one in five misses in one group and none in the other: right on the whole
        band = fitted.interval(X, 0.1, target="observation")
        missed = (X["c2"] == 1) & (rng.permutation(len(X)) % 5 == 0)
        return band.center + rng.choice([-1, 1], len(X)) * band.half_width * np.where(missed, 1.1, 0.5)
    if kind == "coverage":
        return fitted.predict(X) + 2.5 * rng.normal(size=len(X))
    return 5.0 - (y - 5.0)  # accuracy: worse than the mean


@pytest.fixture(scope="module")
def small():
    return linear_fit(*linear_table(90, 0))


def test_a_right_model_is_called_good(small):
    page = collect(Subject(small), Options(held_out=linear_table(300, 8)))
    assert page["audit"]["holds"]
    assert page["verdict"] == {"kind": "good", "names": [], "findings": [], "not_tested": ""}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bias", "coverage", "coverage by group", "accuracy"])
def test_a_fault_that_the_audit_of_training_rows_cannot_see_is_found_on_held_out_rows(kind, small):
    X, y = linear_table(300, 8)
    page = collect(Subject(small), Options(0.1, (X, spoiled(kind, y, X, small))))
    assert page["audit"]["holds"]
    assert page["verdict"]["kind"] == "look"
    assert kind in page["verdict"]["names"]
    if kind == "coverage by group":
        assert page["verdict"]["names"] == [kind]
        assert "c2 = 1" in page["verdict"]["findings"][0]["text"]


def test_one_row_condemns_nothing_and_proves_nothing(small):
    X = linear_table(5, 8)[0]
    page = collect(Subject(small), Options(held_out=(X[:1], small.predict(X[:1]) + 1.0)))
    assert page["verdict"]["kind"] == "open"
    assert page["verdict"]["not_tested"].startswith("1 row is too few")


def test_rows_without_an_interval_of_a_new_response_leave_the_verdict_open():
    x = np.linspace(0, 4, 30)
    sigma = 0.01 * (1 + x)
    y = 2.0 * np.exp(-x) + sigma * np.random.default_rng(0).normal(size=30)
    fitted = vhat.from_curve_fit(lambda x, a, b: a * np.exp(-b * x), [2.0, 1.0], x, y, sigma=sigma).polish()
    page = collect(Subject(fitted), cases.Options())
    told = page["outputs"][0]["quality"]
    assert told["accuracy"]["r2"] > 0.9
    assert (told["coverage"], told["parts"]) == (None, [])
    assert told["residuals"]["low"] is None
    assert page["verdict"]["kind"] == ("open" if page["audit"]["holds"] else "look")
