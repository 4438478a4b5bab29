"""Values far outside the range that a column had in training are named; those a little beyond it are not."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import vhat
from tests.cli.cases import run

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"load": RNG.uniform(0, 4, 60), "heat": RNG.uniform(-1, 1, 60)})
WEAR = pd.Series(TABLE["load"] - TABLE["heat"] + 0.1 * RNG.normal(size=60), name="wear")
SAID = "far outside"


@pytest.fixture(scope="module")
def network():
    return vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(TABLE, WEAR)


@pytest.mark.filterwarnings("ignore:the training data hardly speak:vhat.SupportWarning")
def test_a_row_far_outside_is_named_with_its_column_and_the_range(network):
    rows = pd.DataFrame({"load": [2.0, 9.0], "heat": [0.0, 0.0]})
    lower, upper = TABLE["load"].min(), TABLE["load"].max()
    expected = rf"column 'load' was between {lower:.6g} and {upper:.6g} in training and is far outside in row 1 \(9 in"
    with pytest.warns(vhat.SupportWarning, match=expected):
        band = network.predict_interval(rows)
    assert list(band.status) == ["converged", "outside training range"]
    with pytest.warns(vhat.SupportWarning, match="column 'heat' .* far outside in rows 0, 1"):
        network.predict(rows.assign(load=2.0, heat=-4.0))


def test_rows_a_little_beyond_the_range_are_not_named(network):
    width = np.ptp(TABLE["load"])
    rows = pd.DataFrame({"load": [TABLE["load"].max() + 0.49 * width], "heat": [0.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", vhat.SupportWarning)
        network.predict(rows)
        network.predict(TABLE)


def test_units_do_not_matter(network):
    other = vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(1e6 * TABLE + 5e6, WEAR)
    rows = pd.DataFrame({"load": np.linspace(-8, 12, 41), "heat": 0.0})
    inside = network.scaling_.far(rows.to_numpy())
    np.testing.assert_array_equal(other.scaling_.far((1e6 * rows + 5e6).to_numpy()), inside)
    assert inside.any()


def test_the_range_is_saved_with_the_model_and_rounded_outward_with_a_sketch(network, tmp_path):
    network.save(tmp_path / "model")
    again = vhat.NetworkRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.scaling_.upper, network.scaling_.upper)
    network.sketch().save(tmp_path / "sketch")
    rounded = vhat.NetworkRegressor.load(tmp_path / "sketch").scaling_
    assert np.all(rounded.upper > network.scaling_.upper)
    assert np.all(rounded.lower < network.scaling_.lower)
    assert np.all(rounded.upper - network.scaling_.upper <= network.scaling_.spread / 2)
    assert rounded.far(np.array([[12.0, 0.0]])).any()


def test_the_command_line_counts_such_rows_and_gives_them_a_status(network, tmp_path):
    network.save(tmp_path / "model")
    rows = pd.DataFrame({"load": [2.0, 9.0, 3.0, -7.0], "heat": 0.0})
    rows.to_csv(tmp_path / "new.csv", index=False)
    done = run("predict", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split())
    assert "column 'load' is far outside the range that it had in training in 2 rows" in told
    assert "(first in line 3)" in told
    status = pd.read_csv(tmp_path / "out.csv")["status"]
    assert list(status) == ["converged", "outside training range", "converged", "outside training range"]


NUMBERED = TABLE.assign(id=np.arange(1, 61))


def test_an_identifier_is_named_when_it_is_learned_from_and_when_later_rows_lie_beyond_it():
    network = vhat.NetworkRegressor((2,), weight_decay=1e-2)
    with pytest.warns(vhat.TableWarning, match=r"column 'id' looks like an identifier.*columns={'id': 'skip'}"):
        network.fit(NUMBERED, WEAR)
    rows = NUMBERED[:3].assign(id=[1001, 1002, 1003])
    with pytest.warns(vhat.SupportWarning, match=r"count the rows.*if it is an identifier, fit again with columns="):
        network.predict(rows)
    with pytest.warns(vhat.SupportWarning, match="column 'load' .* Do not rely on these rows.$"):
        network.predict(NUMBERED[:1].assign(load=99.0))


def test_copies_of_rows_do_not_hide_an_identifier():
    twice = pd.concat([NUMBERED, NUMBERED[:5]], ignore_index=True)
    wear = np.concatenate([np.asarray(WEAR), np.asarray(WEAR)[:5]])
    with pytest.warns(vhat.TableWarning, match="column 'id' looks like an identifier"):
        vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(twice, wear)


def test_a_quantity_that_counts_the_rows_is_not_named_where_the_user_says_number():
    network = vhat.NetworkRegressor((2,), weight_decay=1e-2, columns={"id": "number"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", vhat.TableWarning)
        network.fit(NUMBERED, WEAR)


def test_a_column_of_an_array_that_counts_the_rows_is_named_by_number():
    network = vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(NUMBERED.to_numpy(), WEAR)
    with pytest.warns(vhat.SupportWarning, match="if it is an identifier, fit without column 2 of X"):
        network.predict([[1.0, 0.0, 2000.0]])


@pytest.mark.filterwarnings("ignore:column 'id' looks like:vhat.TableWarning")
def test_the_command_line_names_the_call_that_leaves_an_identifier_out(tmp_path):
    vhat.NetworkRegressor((2,), weight_decay=1e-2).fit(NUMBERED, WEAR).save(tmp_path / "model")
    NUMBERED[:3].assign(id=5000).to_csv(tmp_path / "new.csv", index=False)
    done = run("predict", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert "if it is an identifier, fit again with --columns id=skip." in " ".join(done.stderr.split())
