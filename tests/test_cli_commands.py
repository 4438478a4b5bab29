"""The command line from a table to intervals: what it prints and writes is what the library computes."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli_cases import NAMES, TARGET, fitted, folder, load_once, loaded, model, read, run, table  # noqa: F401
from vhat.cli import predict as predicting

pytestmark = pytest.mark.usefixtures("load_once")
NUMBERS = ["center", "lower", "upper", "standard_error", "unsupported"]


@pytest.fixture
def new(tmp_path):
    """New rows, the columns in another order, and the model's own directory beside them."""
    path = tmp_path / "new.csv"
    table(40, seed=1)[["salt", "name", "depth"]].to_csv(path, index=False)
    return path


def asked(path, **options):
    return loaded().predict_interval(read(path)[NAMES], **options)


def same(frame, band):
    for name in NUMBERS:
        np.testing.assert_array_equal(frame[name], getattr(band, name), err_msg=name)
    assert list(frame["status"]) == list(band.status)


def test_fit_saves_what_the_estimator_would_have_fitted():
    done, directory = fitted()
    assert done.exit_code == 0, done.output
    rows = table(60)
    held = np.random.default_rng(0).permutation(60)[:12]
    training = rows.drop(index=held)
    network = vhat.NetworkRegressor((2,), weight_decay=0.01).fit(training[NAMES], training[TARGET])
    loaded = vhat.NetworkRegressor.load(directory)
    np.testing.assert_array_equal(loaded.predict(rows[NAMES]), network.predict(rows[NAMES]))
    assert "12 rows kept apart" in done.output
    assert "2-2-1, tanh, 9 parameters" in done.output


def test_fit_prints_json_with_what_was_held_out(tmp_path):
    options = ("--target", TARGET, "--features", "depth,salt", "--hidden", "2", "--weight-decay", "0.01", "--json")
    done = run("fit", folder() / "data.csv", *options, "--hold-out", "0.2", "--out", tmp_path / "m")
    found = json.loads(done.stdout)
    rows = table(60).iloc[np.sort(np.random.default_rng(0).permutation(60)[:12])]
    band = asked_of(rows, target="observation")
    inside = (band.lower <= rows[TARGET]) & (rows[TARGET] <= band.upper)
    assert found["held_out"]["coverage"] == pytest.approx(inside.mean())
    assert found["held_out"]["error"] == pytest.approx(np.sqrt(np.mean((band.center - rows[TARGET]) ** 2)))
    assert found["rows"] == 48
    assert found["columns"] == NAMES


def asked_of(rows, **options):
    return loaded().predict_interval(rows[NAMES], **options)


def test_predict_writes_the_library_s_numbers_and_keeps_columns_as_they_were(new, tmp_path):
    out = tmp_path / "out.csv"
    done = run("predict", model(), new, "--keep", "name", "--out", out, "--delta", "0.1")
    assert done.exit_code == 0, done.output
    frame = read(out)
    assert list(frame.columns) == ["name", *NUMBERS, "status"]
    assert list(frame["name"]) == [f"00{row}" for row in range(40)]
    same(frame, asked(new, delta=0.1))
    assert done.stderr.startswith("Nominal 90% at each point taken alone")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("bound", ["asymptotic", "chebyshev"])
def test_predict_hands_its_options_on(new, tmp_path, bound):
    out = tmp_path / "out.csv"
    options = ("--interval", "observation", "--bound", bound, "--noise", "0.3", "--simultaneous")
    assert run("predict", model(), new, "--out", out, *options).exit_code == 0
    band = asked(new, target="observation", bound=bound, noise=0.3, simultaneous=True)
    same(read(out), band)


def test_predict_prints_csv_and_json_lines_to_a_pipe(new):
    plain, lines = run("predict", model(), new), run("predict", model(), new, "--json", "--keep", "name")
    band = asked(new)
    assert plain.stdout.splitlines()[0] == "center,lower,upper,standard_error,unsupported,status"
    assert float(plain.stdout.splitlines()[1].split(",")[0]) == band.center[0]
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [row["upper"] for row in rows] == list(band.upper)
    assert rows[7]["name"] == "007"


def test_predict_reads_parquet_and_writes_it(new, tmp_path):
    read(new).to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "out.parquet"
    done = run("predict", model(), tmp_path / "new.parquet", "--keep", "name,salt", "--out", out)
    assert done.exit_code == 0, done.output
    frame = pd.read_parquet(out)
    same(frame, asked(new))
    np.testing.assert_array_equal(frame["salt"], read(new)["salt"])


def test_predict_shows_the_first_rows_on_a_terminal(new, monkeypatch):
    monkeypatch.setattr(predicting, "on_terminal", lambda: True)
    done = run("predict", model(), new, "--keep", "name")
    assert done.exit_code == 0
    assert "20 more rows; --out FILE writes all of them." in done.stdout
    assert 0.1 < np.median(asked(new).standard_error[:20]) < 1  # so that two decimals show two digits of it
    assert f" {asked(new).lower[19]:.2f} " in done.stdout
    assert "0020" not in done.stdout


def test_quiet_predictions_say_nothing_on_standard_error(new, tmp_path):
    done = run("predict", model(), new, "--quiet", "--out", tmp_path / "out.csv")
    assert (done.exit_code, done.output) == (0, "")


def test_audit_holds_with_exit_code_0_and_prints_every_line():
    done, lines = run("audit", model()), run("audit", model(), "--json")
    assert done.exit_code == 0
    assert "nothing that can be tested fails" in done.stdout
    found = json.loads(lines.stdout)
    assert found["holds"] is True
    audit = loaded().audit()
    assert [line["name"] for line in found["lines"]] == [line.name for line in audit]
    assert all(line.name in done.stdout for line in audit)


def test_an_audit_that_fails_has_exit_code_3(tmp_path):
    """Few steps of AdamW end nowhere near a minimum."""
    rows = table(60)
    network = vhat.NetworkRegressor((2,), weight_decay=0.01, recipe="adamw")
    network.fit(rows[NAMES], rows[TARGET]).save(tmp_path / "early")
    done = run("audit", tmp_path / "early")
    assert done.exit_code == 3
    assert "Audit: look at stationarity" in done.stdout


def test_plan_counts_the_rows_and_names_the_solver(new):
    done, plain = run("plan", model(), new, "--json"), run("plan", model(), new)
    found = json.loads(done.stdout)
    assert found["rows"] == 40
    assert found["solver"] == "dense"
    assert found["memory_bytes"] == loaded().fitted_.plan(read(new)[NAMES]).memory
    assert "Plan for 40 rows" in plain.stdout


def test_compare_asks_every_method_and_shows_refusals(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise vhat.ModelError("there is [no] such posterior, and this sentence is long enough to be wrapped in print.")

    monkeypatch.setattr(vhat.methods.LinearizedLaplace, "fit", refuse)
    out = tmp_path / "found.csv"
    options = ("--hidden", "0", "--weight-decay", "0.01", "--splits", "2", "--features", "depth,salt", "--seed", "3")
    methods = ("--methods", "proposed,wald,linearized-laplace")
    done = run("compare", folder() / "data.csv", "--target", TARGET, *methods, *options, "--out", out)
    assert done.exit_code == 0, done.output
    frame = read(out)
    assert [(row.method, row.split, row.status) for row in frame.itertuples()] == [
        (name, split, status)
        for split in (0, 1)
        for name, status in (("proposed", "answered"), ("wald", "answered"), ("linearized-laplace", "refused"))
    ]
    shown = " ".join(done.stdout.split())
    for name in ("proposed", "wald"):
        assert f"{name} {100 * frame['coverage'][frame['method'] == name].mean():.1f}%" in shown
    assert "linearized-laplace: there is [no] such posterior, and this sentence is long" in shown


def test_comparison_holds_against_a_split_made_by_hand(tmp_path):
    """The first split of the seed, fitted and judged without the comparison."""
    options = ("--hidden", "0", "--weight-decay", "0.01", "--splits", "1", "--features", "depth,salt")
    done = run("compare", folder() / "data.csv", "--target", TARGET, "--methods", "proposed", *options, "--json")
    (found,) = json.loads(done.stdout)["outcomes"]
    rows = table(60)
    held = np.sort(np.random.default_rng([0, 0]).permutation(60)[:12])
    training = rows.drop(index=held)
    network = vhat.NetworkRegressor((), weight_decay=0.01).fit(training[NAMES], training[TARGET])
    band = network.predict_interval(rows.iloc[held][NAMES], target="observation")
    judge = rows.iloc[held][TARGET]
    assert found["coverage"] == pytest.approx(((band.lower <= judge) & (judge <= band.upper)).mean())
    assert found["mean_width"] == pytest.approx((band.upper - band.lower).mean(), rel=1e-6)


def test_a_model_without_names_takes_the_columns_in_their_order(tmp_path, new):
    rows = table(60)
    network = vhat.NetworkRegressor((2,), weight_decay=0.01).fit(rows[NAMES].to_numpy(), rows[TARGET].to_numpy())
    network.save(tmp_path / "nameless")
    points = read(new)[NAMES]
    points.rename(columns={"depth": "a", "salt": "b"}).to_csv(tmp_path / "two.csv", index=False)
    assert run("predict", tmp_path / "nameless", tmp_path / "two.csv", "--out", tmp_path / "out.csv").exit_code == 0
    same(read(tmp_path / "out.csv"), network.predict_interval(points.to_numpy()))
    done = run("predict", tmp_path / "nameless", new)
    assert done.exit_code == 2
    assert "trained with 2 columns without names" in done.stderr
