"""Cells, their results on disk, and the tables made from them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import Matern

import vhat
from vhat.errors import ConditioningWarning, InputError, StoreError
from vhat.fit import AdamW, Minimum, Network
from vhat.study import cached_recipe, exact_draw, selection
from vhat.study.cached_recipe import CachedRecipe
from vhat.study.cell import VERSIONS, Cell
from vhat.study.experiments import EXPERIMENTS, Plan, in_order, variants
from vhat.study.measure import measure, plain
from vhat.study.paper_cg import descend
from vhat.study.protocol import (
    ALPHA,
    DECAYS,
    PROTOCOL,
    draw,
    known_methods,
    level,
    make_method,
    make_recipe,
    make_truth,
)
from vhat.study.published import PUBLISHED
from vhat.study.results import Results, to_text
from vhat.study.summary import gaps, summarise
from vhat.study.tables import to_csv, to_latex, to_markdown
from vhat.study.truth import matern_kernel

CELL = Cell("published", "matern", d=10, n=100, lam=1e-3, method="proposed", trial=0)


def at(cell=CELL, **changes):
    return Cell(**(cell.config() | changes))


def result(cell, **metrics):
    """A result as the runs write it, with the metrics given."""
    names = ("mse", "mean width, near", "median width, near", "median half width, near", "winkler", "coverage")
    every = dict.fromkeys(names, 1.0) | {"validation winkler": 1.0} | metrics
    return to_text({"protocol": PROTOCOL, "cell": cell.config(), "status": "done", "metrics": every})


# -- cells ------------------------------------------------------------------------------------


def test_every_cell_of_the_study_has_a_name_of_its_own():
    cells = in_order([Plan(experiment) for experiment in EXPERIMENTS])
    assert len({cell.key for cell in cells}) == len(cells) == len(set(cells))


def test_methods_versions_and_decays_of_a_trial_share_data_and_trials_do_not():
    same = [CELL, at(method="bootstrap"), at(version="met"), at(lam=1e-5), at(steps=7)]
    assert len({cell.seed for cell in same}) == 1
    others = [at(trial=1), at(n=1000), at(d=100), at(truth="smooth")]
    assert len({cell.seed for cell in (CELL, *others)}) == 5


def test_seeds_do_not_depend_on_the_process():
    code = f"from vhat.study.cell import Cell; print(Cell(**{CELL.config()!r}).seeds)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == str(CELL.seeds)


def test_small_sizes_of_both_tables_come_first_and_figure_2_trial_by_trial():
    plans = [Plan(name, sizes=(100, 1000), trials=2) for name in ("table1", "table2", "figure2")]
    cells = in_order(plans)
    tables = [cell for plan in plans[:2] for cell in plan.cells()]
    assert set(cells[: len(tables)]) == set(tables)
    assert [cell.n for cell in cells[: len(tables)]] == sorted(cell.n for cell in tables)
    rest = [(cell.n, cell.trial) for cell in cells[len(tables) :]]
    assert rest == sorted(rest)
    assert {cell.d for cell in cells[:40]} == {10, 100}


def test_figure_2_shares_the_cells_of_the_tables():
    shared = set(Plan("figure2", sizes=(100,)).cells()) & set(Plan("table1", sizes=(100,)).cells())
    assert {(cell.lam, cell.method) for cell in shared} == {(1e-3, "proposed"), (1e-3, "bootstrap")}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"version": "best"}, "version"), ({"lam": 0.0}, "lam"), ({"n": 1}, "n=1"), ({"method": "A b"}, "method")],
)
def test_a_cell_that_cannot_be_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        at(**changes)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"bootstrap.*deep-ensemble"):
        make_method(at(method="oracle"))


def test_every_known_method_can_be_made_with_the_study_s_noise():
    for name in known_methods():
        made = make_method(at(method=name))
        assert getattr(made, "noise", 0.1) in (0.1, None)


# -- the protocol ---------------------------------------------------------------------------------


def test_training_and_validation_points_leave_the_box_and_test_points_do_not():
    data = draw(at(d=1, lam=1e-8, n=1000))
    assert np.abs(data.train.X).min() > 0.5
    assert np.abs(data.validation.X).min() > 0.5
    assert np.abs(data.test.X).min() < 0.05
    assert 0.55 < len(data.train.X) / 1000 < 0.69  # P(|z| > 1/2) = 0.617


def test_the_truth_is_one_function_and_trials_are_draws_of_the_data():
    one, other = draw(CELL), draw(at(trial=1))
    assert make_truth(CELL) == make_truth(at(trial=1))
    assert not np.isclose(one.train.X, other.train.X).any()
    np.testing.assert_allclose(one.train.truth, make_truth(CELL)(one.train.X))
    assert abs(np.std(one.train.y - one.train.truth) - 0.1) < 4 * 0.1 / np.sqrt(200)


def test_the_union_bound_is_over_the_test_points_and_belongs_to_the_proposed_method():
    assert level(CELL) == ALPHA / 100
    assert level(at(d=1, lam=1e-8)) == ALPHA / len(draw(at(d=1, lam=1e-8)).test.X)
    assert level(at(method="bootstrap")) == ALPHA


def test_exact_draws_have_the_kernel_as_their_covariance():
    x = np.array([[0.0, 0.0], [0.5, 0.0], [2.0, 1.0]])
    draws = np.array([exact_draw(x, seed=seed, length_scale=0.7, amplitude=2.0) for seed in range(4000)])
    kernel = 4.0 * Matern(length_scale=0.7, nu=1.5)(x)
    np.testing.assert_allclose(matern_kernel(x, x, length_scale=0.7, amplitude=2.0), kernel, rtol=1e-12)
    # The standard error of an estimated covariance is sqrt((k_ii k_jj + k_ij^2) / draws) <= 4 sqrt(2 / 4000).
    np.testing.assert_allclose(np.cov(draws.T), kernel, atol=4 * 4 * np.sqrt(2 / 4000))


@pytest.mark.parametrize(("truth", "low", "high"), [("matern", -0.1, 0.25), ("smooth", 0.75, 1.0)])
def test_the_published_truth_cannot_be_learned_in_ten_dimensions_and_the_smooth_one_can(truth, low, high):
    """Even the posterior mean under the true kernel, which no method can beat on average, explains this share."""
    cell = at(truth=truth, n=1000)
    data, f = draw(cell), make_truth(cell)
    kernel = {"length_scale": f.length_scale, "amplitude": f.amplitude}
    gram = matern_kernel(data.train.X, data.train.X, **kernel) + 0.01 * np.eye(len(data.train.X))
    mean = matern_kernel(data.test.X, data.train.X, **kernel) @ np.linalg.solve(gram, data.train.y)
    explained = 1 - np.mean((mean - data.test.truth) ** 2) / np.var(data.test.truth)
    assert low < explained < high


# -- the paper's iteration --------------------------------------------------------------------------


def small_fit(activation="tanh", polished=True):
    x = np.linspace(-2, 2, 30)[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * np.cos(60 * x[:, 0])
    if polished:
        return Minimum(Network((1, 6, 1), activation), weight_decay=1e-2)(x, y, seed=0)
    network = Network((1, 6, 1), activation)
    return vhat.from_jax(network, network.init(1), x, 5 * y, weight_decay=1e-6)


def dense_hessian(problem):
    columns = problem.numpy(problem.product(problem.native(np.eye(problem.p)), "hessian"))
    return columns + np.diag(problem.numpy(problem.decay))


def test_at_a_minimum_the_paper_s_iteration_agrees_with_a_dense_solve():
    problem = small_fit().problem
    with problem.scope():
        g = problem.gradients(problem.inputs(np.array([[0.3], [1.9]])))
        found = descend(problem, g)
        h = np.linalg.solve(dense_hessian(problem), problem.numpy(g).T).T
        J = problem.numpy(problem.gradients(problem.X))
    np.testing.assert_allclose(found.value, np.mean((h @ J.T) ** 2, axis=1), rtol=1e-8)
    assert not found.negative.any()
    assert (found.residual < 1e-9).all()
    assert (found.steps < 1000).all()


def test_where_the_hessian_is_indefinite_the_paper_s_iteration_walks_on_and_the_record_says_so():
    problem = small_fit(polished=False).problem
    with problem.scope():
        assert np.linalg.eigvalsh(dense_hessian(problem))[0] < -1e-3
        found = descend(problem, problem.gradients(problem.inputs(np.array([[0.3], [1.9]]))), iterations=40)
    assert (found.negative > 0).all()
    assert np.isfinite(found.value).all()


# -- fits that are remembered -----------------------------------------------------------------------


def test_a_remembered_fit_is_the_fit_to_the_last_bit_and_is_not_made_twice(tmp_path):
    x = np.linspace(-1, 1, 20)[:, None]
    y = x[:, 0] ** 2 + 0.1 * np.cos(40 * x[:, 0])
    inner, trained = Minimum(Network((1, 4, 1)), weight_decay=1e-2), []

    def recipe(X, y, *, seed, sample_weight=None):
        trained.append(seed)
        return inner(X, y, seed=seed, sample_weight=sample_weight)

    kept = CachedRecipe(recipe, tmp_path)
    first, again, other = kept(x, y, seed=0), kept(x, y, seed=0), kept(x, y, seed=0, sample_weight=np.full(20, 2.0))
    assert trained == [0, 0]
    np.testing.assert_array_equal(again.predict(x), first.predict(x))
    np.testing.assert_array_equal(again.interval(x, noise=0.1).upper, first.interval(x, noise=0.1).upper)
    assert np.abs(other.predict(x) - first.predict(x)).max() > 1e-6


def warned_fit(trained):
    """A recipe that warns, and writes down each training."""
    inner = AdamW(Network((1, 8, 1), "relu"), weight_decay=1e-3, steps=50)

    def recipe(X, y, *, seed, sample_weight=None):
        trained.append(seed)
        warnings.warn("hardly determined", ConditioningWarning, stacklevel=1)
        return inner(X, y, seed=seed, sample_weight=sample_weight)

    return recipe


def test_the_fit_to_the_data_is_shared_with_its_warnings_and_resamples_are_not(tmp_path):
    x = np.linspace(-1, 1, 20)[:, None]
    y, trained = x[:, 0] ** 2, []
    recipe = warned_fit(trained)
    one, other = (CachedRecipe(recipe, tmp_path / name, tmp_path / "shared") for name in ("one", "other"))
    with pytest.warns(ConditioningWarning, match="hardly determined"):
        first = one(x, y, seed=0)
    with pytest.warns(ConditioningWarning, match="hardly determined"):
        again = other(x, y, seed=0)
    assert trained == [0]
    # Training is in float32; the store keeps every bit of it.
    for layer, same in zip(first.params, again.params, strict=True):
        for name in layer:
            assert np.asarray(same[name]).dtype == np.asarray(layer[name]).dtype
            np.testing.assert_array_equal(same[name], layer[name])
            np.testing.assert_array_equal(np.asarray(layer[name], np.float32), layer[name])
    with pytest.warns(ConditioningWarning):
        one(x, y, seed=0, sample_weight=np.full(20, 2.0))
    with pytest.warns(ConditioningWarning):
        other(x, y, seed=0, sample_weight=np.full(20, 2.0))
    assert trained == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:hardly determined")
def test_a_damaged_fit_and_one_of_other_versions_are_trained_again(tmp_path):
    x = np.linspace(-1, 1, 20)[:, None]
    y, trained = x[:, 0] ** 2, []
    kept = CachedRecipe(warned_fit(trained), tmp_path, made_by="jax 1")
    first = kept(x, y, seed=0)
    (arrays,) = tmp_path.glob("*/v*/arrays.safetensors")
    arrays.write_bytes(arrays.read_bytes()[:-8])
    np.testing.assert_array_equal(kept(x, y, seed=0).predict(x), first.predict(x))
    assert trained == [0, 0]
    kept(x, y, seed=0)
    assert trained == [0, 0]
    CachedRecipe(kept.recipe, tmp_path, made_by="jax 2")(x, y, seed=0)
    assert trained == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:hardly determined")
def test_a_writer_that_is_killed_leaves_nothing_that_is_taken_for_a_fit(tmp_path, monkeypatch):
    x = np.linspace(-1, 1, 20)[:, None]
    y, trained = x[:, 0] ** 2, []
    kept = CachedRecipe(warned_fit(trained), tmp_path)

    def killed(folder, _kind, _document):
        (folder / "vhat.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cached_recipe, "write", killed)
        # A process that is killed cleans up nothing.
        patch.setattr(cached_recipe.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            kept(x, y, seed=0)
    assert list(tmp_path.glob(".*/vhat.json"))
    kept(x, y, seed=0)
    kept(x, y, seed=0)
    assert trained == [0, 0]


_TRAIN_SLOWLY = """
import sys, time
from pathlib import Path
import numpy as np
from vhat.fit import Adam, Network
from vhat.study.cached_recipe import CachedRecipe

class Slow:
    def __call__(self, X, y, *, seed, sample_weight=None):
        (Path(sys.argv[1]) / f"trained-{sys.argv[2]}").touch()
        time.sleep(2.0)
        return Adam(Network((1, 3, 1)), weight_decay=1e-2, steps=5)(X, y, seed=seed)
    def __repr__(self):
        return "Slow()"

x = np.linspace(-1, 1, 9)[:, None]
fitted = CachedRecipe(Slow(), Path(sys.argv[1]) / "kept")(x, x[:, 0] ** 2, seed=0)
print(fitted.predict(x).tobytes().hex())
"""


def test_two_processes_that_need_one_fit_train_it_once(tmp_path):
    command = [sys.executable, "-c", _TRAIN_SLOWLY, str(tmp_path)]
    both = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
    assert len(list(tmp_path.glob("trained-*"))) == 1


# -- results on disk ---------------------------------------------------------------------------------


def test_a_file_half_written_counts_as_missing(tmp_path):
    results = Results(tmp_path)
    results.write(CELL, result(CELL))
    other = at(trial=1)
    (tmp_path / "cells" / f".{other.key}.json.123").write_text('{"cell": ')
    assert results.missing([CELL, other]) == [other]


def test_a_damaged_file_and_one_of_another_cell_are_refused_in_words(tmp_path):
    results = Results(tmp_path)
    results.write(CELL, result(CELL)[:-20])
    with pytest.raises(StoreError, match="damaged"):
        results.read(CELL)
    results.write(CELL, result(at(trial=1)))
    with pytest.raises(StoreError, match="another cell"):
        results.read(CELL)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda text: text.replace('"coverage": 0.99', '"coverage": 0.98'), "has been changed since it was written"),
        (lambda text: text.replace('"coverage": 0.99,', ""), "has been changed since it was written"),
        (lambda text: text.replace('"coverage": 0.99', '"coverage": NaN'), "is damaged"),
        (lambda text: text.replace('"sha256"', '"md5"'), "has no checksum"),
        (lambda _: "[1]", "has no checksum"),
    ],
    ids=["a number", "a number less", "no number", "no checksum", "a list"],
)
def test_a_finished_cell_that_was_changed_is_refused_with_its_name_and_the_remedy(tmp_path, changed, said):
    results = Results(tmp_path)
    results.write(CELL, result(CELL, coverage=0.99))
    path = results.path(CELL)
    path.write_text(changed(path.read_text()))
    for reading in (lambda: results.read(CELL), lambda: results.missing([CELL]), results.every):
        with pytest.raises(StoreError, match=f"{CELL.key}.*{said}.*Delete it; the next run computes it again"):
            reading()
    path.unlink()
    assert results.missing([CELL]) == [CELL]


def test_the_checksum_is_that_of_the_values_whatever_their_layout(tmp_path):
    results = Results(tmp_path)
    results.write(CELL, result(CELL, coverage=0.1 + 0.2))
    found = results.read(CELL)
    assert "sha256" not in found
    assert found["metrics"]["coverage"] == 0.1 + 0.2
    content = json.loads(results.path(CELL).read_text())
    results.path(CELL).write_text(json.dumps(dict(reversed(content.items())), indent=4))
    assert results.read(CELL) == found
    assert to_text(content) == to_text(found)


def test_every_committed_cell_carries_its_checksum():
    stored = Results(Path(__file__).parents[2] / "study" / "results")
    assert len(stored.every()) >= 158


def test_results_of_another_protocol_are_computed_again(tmp_path):
    results = Results(tmp_path)
    results.write(CELL, to_text(json.loads(result(CELL)) | {"protocol": PROTOCOL + 1}))
    assert results.missing([CELL]) == [CELL]


def test_what_json_has_no_number_for_becomes_null():
    assert plain({"a": np.array([1.0, np.nan]), "b": np.float32(0.5), "c": np.int64(3)}) == {
        "a": [1.0, None],
        "b": 0.5,
        "c": 3,
    }


# -- tables -------------------------------------------------------------------------------------------


def table(tmp_path, coverages, **changes):
    plan = Plan("table1", sizes=(100,), trials=5, versions=("published",), truths=("matern",), **changes)
    results = Results(tmp_path)
    for trial, share in enumerate(coverages):
        results.write(at(trial=trial, steps=plan.steps), result(at(trial=trial, steps=plan.steps), coverage=share))
    cells = plan.cells()
    return summarise(cells, results), gaps(cells, results)


def test_means_spreads_and_differences_are_those_of_the_definition(tmp_path):
    """Two trials of 99 and three of 100 are the published 99.60 with a standard deviation of 0.49."""
    rows, _ = table(tmp_path, [0.99, 1.0, 1.0, 0.99, 1.0])
    cover = rows[0].ours["coverage %"]
    assert (round(cover.mean, 10), round(cover.sd, 2)) == (99.6, 0.49)
    assert abs(rows[0].difference("coverage %")) < 1e-9
    assert rows[0].difference("median half width") == pytest.approx((1.0 - 0.5162) / (0.0920 / 2))  # ours do not vary
    lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
    line = next(each for each in lines if each["metric"] == "test MSE" and each["method"] == "proposed")
    assert float(line["difference in standard errors"]) == pytest.approx((1.0 - 0.0312) / (0.0046 / 2))
    assert (line["trials"], line["lam"]) == ("5", "1e-3")


def test_differences_are_in_standard_errors_as_scipy_s_welch_test_has_them(tmp_path):
    from scipy.stats import ttest_ind_from_stats

    shares = np.array([0.97, 1.0, 0.98, 0.95])
    rows, _ = table(tmp_path, shares)
    # SciPy takes standard deviations that divide by k - 1; the published one, 0.49, divides by the number of trials.
    theirs = (99.60, 0.49 * np.sqrt(5 / 4), 5)
    ours = (100 * shares.mean(), 100 * shares.std(ddof=1), 4)
    expected = ttest_ind_from_stats(*ours, *theirs, equal_var=False).statistic
    assert rows[0].difference("coverage %") == pytest.approx(expected)


def test_one_trial_is_judged_by_the_published_spread(tmp_path):
    rows, _ = table(tmp_path, [0.97])
    spread = 0.49 * np.sqrt(5 / 4)
    assert rows[0].difference("coverage %") == pytest.approx((97.0 - 99.60) / (spread * np.sqrt(1 + 1 / 5)))


def test_a_version_with_lam_inside_the_loss_is_adam_on_the_same_network_and_data():
    from vhat.fit import Adam, AdamW

    recipe, published = make_recipe(at(version="penalised")), make_recipe(CELL)
    assert isinstance(recipe, Adam)
    assert isinstance(published, AdamW)
    assert (recipe.network, recipe.weight_decay, recipe.steps) == (
        published.network,
        published.weight_decay,
        published.steps,
    )
    assert at(version="penalised").seed == CELL.seed
    assert make_method(at(version="penalised")) == make_method(CELL)


def test_variants_are_the_paper_s_iteration_and_lam_inside_the_loss_at_the_smallest_n():
    cells = variants(trials=2).cells()
    kinds = {(cell.version, cell.method, cell.d) for cell in cells}
    assert kinds == {
        (version, method, d)
        for version in ("published", "penalised")
        for method in ("proposed", "paper-cg", "bootstrap")
        for d in (10, 100)
    }
    assert {(cell.n, cell.truth) for cell in cells} == {(100, "matern")}
    iterated = next(cell for cell in cells if cell.method == "paper-cg")
    np.testing.assert_array_equal(draw(iterated).test.X, draw(at(method="proposed")).test.X)  # every test point
    assert level(iterated) == level(CELL)


def test_missing_trials_are_listed_on_every_table(tmp_path):
    rows, missing = table(tmp_path, [1.0, 1.0])
    for text in (to_markdown(rows, missing), to_latex(rows, missing)):
        assert "Missing cells, 8 of 10" in text
        assert "proposed, lam 1e-3, trials 2-4" in text
        assert "bootstrap, lam 1e-3, trials 0-4" in text
        assert "REDUCED" not in text


def test_what_is_missing_at_several_places_is_said_once(tmp_path):
    sizes = [at(version=version, n=n, trial=trial) for version in VERSIONS for n in (100, 1000) for trial in (0, 1)]
    (line,) = gaps([*sizes, at(version="met", n=10_000, trial=3)], Results(tmp_path)).lines()
    assert line == (
        "Missing cells, 9 of 9: published matern d=10 n=100, 1000 and met matern d=10 n=100, 1000: proposed, lam 1e-3, "
        "trials 0-1; met matern d=10 n=10000: proposed, lam 1e-3, trial 3."
    )


def test_rows_without_ours_and_without_published_values_are_left_to_the_list(tmp_path):
    cells = [at(truth="smooth"), at(n=20_000)]
    text = to_markdown(summarise(cells, Results(tmp_path)), gaps(cells, Results(tmp_path)))
    assert "20000 (0 of 1) | ours | missing" in text
    assert "can be learned" not in text
    assert "published smooth d=10 n=100 and" in text


def test_reduced_steps_are_stamped_on_every_table(tmp_path):
    rows, missing = table(tmp_path, [1.0] * 5, steps=300)
    for text in (to_markdown(rows, missing), to_latex(rows, missing)):
        assert "REDUCED: trained for 300 steps instead of the paper's 10,000" in text
    assert all(line["steps"] == "300" for line in csv.DictReader(io.StringIO(to_csv(rows))))


def test_a_failed_cell_is_named_with_its_reason_and_is_not_averaged(tmp_path):
    results = Results(tmp_path)
    failed = {"protocol": PROTOCOL, "cell": CELL.config(), "status": "failed", "reason": "PolishError: no minimum."}
    results.write(CELL, to_text(failed))
    results.write(at(trial=1), result(at(trial=1), coverage=0.5))
    cells = [CELL, at(trial=1)]
    (row,), missing = summarise(cells, results), gaps(cells, results)
    assert (row.done, row.asked, row.ours["coverage %"].mean) == (1, 2, 50.0)
    assert "PolishError: no minimum." in to_markdown([row], missing)


def test_a_trial_without_every_width_leaves_no_mean_width(tmp_path):
    results = Results(tmp_path)
    results.write(CELL, result(CELL, **{"mean width, near": None}))
    results.write(at(trial=1), result(at(trial=1)))
    (row,) = summarise([CELL, at(trial=1)], results)
    assert row.ours["mean width"] is None
    assert row.ours["test MSE"] is not None


def test_published_rows_are_those_of_both_tables():
    assert len(PUBLISHED) == 16
    assert PUBLISHED[100, "bootstrap", 20000]["winkler"] == (10.4342, 2.1573)
    assert PUBLISHED[10, "proposed", 1000]["mean width"] == (0.4846, 0.0120)


def test_lam_is_chosen_by_the_mean_validation_score_of_shared_trials(tmp_path):
    results, cells = Results(tmp_path), [at(lam=lam, trial=trial) for lam in DECAYS for trial in (0, 1)]
    for cell in cells[:-1]:  # the last decay lacks trial 1, so that trial 0 decides
        score = 1.0 if (cell.lam, cell.trial) == (1e-4, 0) else 2.0
        results.write(cell, result(cell, **{"validation winkler": score}))
    (choice,) = selection.choose(cells, results)
    assert (choice.best, choice.trials) == (1e-4, 1)
    assert "**1.00**" in selection.to_markdown([choice])


def test_the_paper_s_lam_is_compared_with_the_best_on_the_same_trials(tmp_path):
    from scipy.stats import ttest_rel

    results, cells = Results(tmp_path), [at(lam=lam, trial=trial) for lam in DECAYS for trial in range(4)]
    scores = np.random.default_rng(0).uniform(2, 3, 4)
    gains = np.array([0.5, 0.6, 0.4, 0.7])
    for cell in cells:
        score = scores[cell.trial] - (gains[cell.trial] if cell.lam == 1e-2 else 0.0)
        results.write(cell, result(cell, **{"validation winkler": score}))
    (choice,) = selection.choose(cells, results)
    assert choice.best == 1e-2
    assert choice.behind_best(1e-3) == pytest.approx(ttest_rel(scores, scores - gains).statistic)
    assert choice.behind_best(1e-2) is None
    assert selection.to_markdown([choice]).splitlines()[-1].endswith(f"| {choice.behind_best(1e-3):.1f} |")


# -- a cell -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_every_assumption_met_the_figure_s_cell_says_so():
    """One dimension: certified, wide in the gap and at the ends, narrow over the data, and the truth inside."""
    cell = Cell("met", "matern", d=1, n=100, lam=1e-5, method="proposed", trial=0)
    found = measure(cell)
    assert found["status"] == "done"
    assert found["warnings"] == []
    assert found["fit"]["relative gradient"] < 1e-9
    assert found["fit"]["smallest eigenvalue, without unit"] > 0
    assert found["fit"]["alignment"] < 1e-6
    assert {line["name"]: line["verdict"] for line in found["audit"]}["stationarity"] == "holds"
    x = draw(cell).test.X[:, 0]
    wide = np.subtract(found["test"]["upper"], found["test"]["lower"])
    over = wide[(np.abs(x) > 0.6) & (np.abs(x) < 1.2)]
    assert np.median(wide[np.abs(x) < 0.3]) > 1.5 * np.median(over)
    assert np.median(wide[np.abs(x) > 2.7]) > 3 * np.median(over)
    assert found["metrics"]["coverage"] > 0.8
    assert {name: value for name, value in json.loads(to_text(found)).items() if name != "sha256"} == found


@pytest.mark.slow
@pytest.mark.parametrize(("version", "d", "lam"), [("published", 10, 1e-3), ("met", 1, 1e-5)], ids=["published", "met"])
def test_cells_that_share_a_fit_are_the_same_bytes_as_alone(tmp_path, version, d, lam):
    """The second cell loads the fit that the first one trained, whichever comes first."""
    proposed = Cell(version, "matern", d=d, n=100, lam=lam, method="proposed", trial=0, steps=100)
    bootstrap = at(proposed, method="bootstrap")
    alone = to_text(measure(proposed))
    by_bootstrap = to_text(measure(bootstrap, tmp_path / "a"))
    assert to_text(measure(proposed, tmp_path / "a")) == alone
    assert to_text(measure(proposed, tmp_path / "b")) == alone
    (kept,) = (tmp_path / "b" / proposed.fit_key).glob("*/vhat.json")
    written = kept.stat().st_mtime_ns
    assert to_text(measure(bootstrap, tmp_path / "b")) == by_bootstrap
    assert kept.stat().st_mtime_ns == written
