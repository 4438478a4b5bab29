"""The command line from a table to intervals: what it prints and writes is what the library computes."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import vhat
from tests.cli.cases import NAMES, TARGET, data, fitted, folder, load_once, loaded, model, read, run, table  # noqa: F401
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
    assert "12 held-out rows" in done.output
    assert "2-2-1, tanh, 9 parameters" in done.output


def test_fit_prints_json_with_what_was_held_out(tmp_path):
    options = ("--target", TARGET, "--features", "depth,salt", "--hidden", "2", "--weight-decay", "0.01", "--json")
    done = run("fit", data(), *options, "--hold-out", "0.2", "--out", tmp_path / "m")
    found = json.loads(done.stdout)
    rows = table(60).iloc[np.sort(np.random.default_rng(0).permutation(60)[:12])]
    band = asked_of(rows, target="observation")
    inside = (band.lower <= rows[TARGET]) & (rows[TARGET] <= band.upper)
    assert found["held_out"]["coverage"] == pytest.approx(inside.mean())
    assert found["held_out"]["error"] == pytest.approx(np.sqrt(np.mean((band.center - rows[TARGET]) ** 2)))
    assert found["rows"] == 48
    others = table(60).drop(index=rows.index)
    of_mean = np.sqrt(np.mean((rows[TARGET] - others[TARGET].mean()) ** 2))
    assert found["held_out"]["mean_error"] == pytest.approx(of_mean)
    assert found["held_out"]["trees_error"] is None  # too few rows for trees
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


def test_a_level_is_never_rounded_to_certainty(new, tmp_path, monkeypatch):
    done = run("predict", model(), new, "--delta", "1e-9", "--out", tmp_path / "out.csv")
    assert "Nominal 99.9999999% at each point" in " ".join(done.stderr.split())
    monkeypatch.setattr(predicting, "on_terminal", lambda: True)
    shown = run("predict", model(), new, "--delta", "1e-9").stdout
    assert "99.9999999% intervals for the mean of the prediction" in " ".join(shown.split())


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


@pytest.fixture(scope="module")
def early():
    """What ``vhat fit`` said of a model that few steps of AdamW leave nowhere near a minimum, and its directory."""
    options = ("--target", TARGET, "--features", "depth,salt", "--hidden", "2", "--weight-decay", "0.01")
    done = run("fit", data(), *options, "--recipe", "adamw", "--json", "--out", folder() / "early")
    assert done.exit_code == 0, done.output
    return done, folder() / "early"


def test_an_audit_that_fails_has_exit_code_3_and_advises_in_options(early):
    done = run("audit", early[1])
    assert done.exit_code == 3
    assert "Audit: look at stationarity" in done.stdout
    shown = " ".join(done.stdout.split())
    assert "Fit with --recipe minimum" in shown
    assert "polish" not in shown.lower()


def test_lines_of_the_audit_that_do_not_hold_are_told_by_fit_and_by_predict(early, new, tmp_path):
    done, directory = early
    lines = json.loads(run("audit", directory, "--json").stdout)["lines"]
    failed = [line["name"] for line in lines if line["verdict"] == "fails"]
    undecided = [line["name"] for line in lines if line["verdict"] == "undecided"]
    assert "stationarity" in failed
    assert json.loads(done.stdout)["audit"] == {"holds": False, "fails": failed, "undecided": undecided}
    loud = run("predict", directory, new, "--out", tmp_path / "out.csv")
    quiet = run("predict", directory, new, "--out", tmp_path / "quiet.csv", "--quiet")
    for said in (done.stderr, loud.stderr):
        text = " ".join(said.split())
        assert f"warning: in the audit of this model {' and '.join(failed)} failed" in text
        assert f"vhat audit {directory} says why" in text
    assert quiet.output == ""
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "quiet.csv").read_bytes()


def test_predictions_do_not_repeat_the_audit_and_say_nothing_of_one_that_holds(new, tmp_path, monkeypatch):
    monkeypatch.setattr(vhat.FittedModel, "audit", lambda *_, **__: pytest.fail("audited again"))
    done = run("predict", model(), new, "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert "audit" not in done.stderr


def test_a_noise_level_that_was_given_settles_the_line_about_its_estimate():
    from vhat.cli.audit_warnings import warning
    from vhat.evidence.audit import Audit, Line

    unsure = Audit((Line("noise", 0.02, 0.01, "undecided", "Give noise=.", ""),))
    assert warning(unsure, "model").startswith("warning: in the audit of this model noise could not be decided;")
    assert warning(unsure, "model", noise=0.3) is None
    assert "saved without an audit; vhat audit model makes one" in warning(None, "model")


def test_the_audit_is_saved_with_the_model_and_forgotten_by_another_fit():
    saved = vhat.NetworkRegressor.load(model())
    for line, again in zip(saved.audited_, saved.audit(), strict=True):
        assert (line.name, line.verdict, line.meaning) == (again.name, again.verdict, again.meaning)
    rows = table(60)
    assert saved.fit(rows[NAMES], rows[TARGET]).audited_ is None
    saved.audit(noise=0.3)  # says nothing of the level that intervals would estimate
    assert saved.audited_ is None


def test_a_fit_is_summed_up_also_where_rows_kept_apart_get_no_intervals(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise vhat.NoiseError("the fit interpolates. Give noise=.")

    monkeypatch.setattr(vhat.NetworkRegressor, "predict_interval", refuse)
    options = ("--target", TARGET, "--features", "depth,salt", "--hidden", "0", "--weight-decay", "0.01")
    done = run("fit", data(), *options, "--hold-out", "0.2", "--out", tmp_path / "m")
    assert done.exit_code == 3
    assert "2-1, linear, 3 parameters" in done.stdout
    assert "on 12 held-out rows; there are no intervals for them" in " ".join(done.stdout.split())
    assert done.stderr.splitlines()[-1] == "vhat: the fit interpolates. Give noise=."
    assert vhat.NetworkRegressor.load(tmp_path / "m").audited_ is not None


def test_what_goes_to_a_file_says_where_the_model_is_and_ends_its_lines_without_blanks():
    done, directory = fitted()
    assert " ".join(done.stderr.split()).startswith(
        f"Saved to {directory}; next: its audit, and a test on the 12 held-out rows."
    )
    assert "audit           nothing that can be tested fails" in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


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
    done = run("compare", data(), "--target", TARGET, *methods, *options, "--out", out)
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
    done = run("compare", data(), "--target", TARGET, "--methods", "proposed", *options, "--json")
    (found,) = json.loads(done.stdout)["outcomes"]
    rows = table(60)
    held = np.sort(np.random.default_rng([0, 0]).permutation(60)[:12])
    training = rows.drop(index=held)
    network = vhat.NetworkRegressor((), weight_decay=0.01).fit(training[NAMES], training[TARGET])
    band = network.predict_interval(rows.iloc[held][NAMES], target="observation", bound="isoperimetric")
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


def test_rows_of_weight_zero_are_neither_learned_from_nor_judged_by(tmp_path):
    rows = table(60).assign(count=1.0)
    outliers = rows[:10].assign(count=0.0, **{TARGET: 1e6})
    options = ("--target", TARGET, "--features", "depth,salt", "--hidden", "0", "--weight-decay", "0.01", "--json")
    found = {}
    for name, frame in {"without": rows, "with": pd.concat([outliers, rows])}.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        done = run(
            "fit",
            tmp_path / f"{name}.csv",
            *options,
            "--weights",
            "count",
            "--hold-out",
            "0.2",
            "--out",
            tmp_path / name,
        )
        assert done.exit_code == 0, done.output
        found[name] = json.loads(done.stdout) | {"model": ""}
    assert found["with"] == found["without"]


@pytest.mark.slow
def test_weights_that_are_inverse_variances_give_weighted_least_squares(tmp_path):
    """What the audit advises for unequal noise, followed to the end, against statsmodels."""
    rng = np.random.default_rng(0)
    rows = table(60)[[*NAMES, TARGET]]
    spread = np.where(rows["depth"] > 2, 3.0, 0.3)
    rows[TARGET] = 1 + rows["depth"] - 0.4 * rows["salt"] + spread * rng.standard_normal(60)
    rows.assign(w=1 / spread**2).to_csv(tmp_path / "data.csv", index=False)
    rows[:5].to_csv(tmp_path / "new.csv", index=False)
    model, out = tmp_path / "model", tmp_path / "out.csv"
    options = ("--target", TARGET, "--hidden", "0", "--weight-decay", "0")
    assert run("fit", tmp_path / "data.csv", *options, "--weights", "w", "--out", model).exit_code == 0
    done = run("predict", model, tmp_path / "new.csv", "--noise", "weights", "--out", out)
    assert done.exit_code == 0, done.output
    assert "vhat audit" in done.stderr
    assert "--noise weights" in done.stderr
    design = sm.add_constant(rows[NAMES].to_numpy())
    found = sm.WLS(rows[TARGET], design, weights=1 / spread**2).fit().get_prediction(design[:5])
    frame = read(out)
    np.testing.assert_allclose(frame[["lower", "upper"]], found.conf_int(alpha=0.05), rtol=1e-6)

    observed = ("predict", model, tmp_path / "new.csv", "--noise", "weights", "--interval", "observation", "--force")
    assert run(*observed, "--out", out).exit_code == 2  # the noise of a new row is not known
    by_bound = ("--observation-noise", "3", "--bound", "isoperimetric", "--out", out)
    assert run(*observed, *by_bound).exit_code == 0
    assert (read(out)["upper"] - read(out)["lower"] > 2 * 1.9 * 3.0).all()

    equal, weighted = (" ".join(run("audit", model, "--noise", word).stdout.split()) for word in ("equal", "weights"))
    assert "fails unequal noise" in equal
    assert "Add a column of 1/noise^2, fit with --weights COLUMN, and give --noise weights." in equal
    assert "holds unequal noise" in weighted


def test_a_noise_level_that_is_no_number_is_refused(new):
    done = run("predict", model(), new, "--noise", "much")
    assert done.exit_code == 2
    assert "--noise 'much' is neither a number nor weights or equal" in done.stderr
