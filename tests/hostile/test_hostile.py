"""A few hostile cases of each kind, every failure that was ever kept, and whether failures would be seen."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import vhat
from tests.hostile import __main__ as campaign
from tests.hostile import calls, files, ridge
from tests.hostile.outcome import Outcome, limited

KEPT = sorted(campaign.CASES.glob("*.json"))
SEED = 2026


def expect(kind, case):
    if kind == "requests":
        pytest.importorskip("fastapi")
        pytest.importorskip("httpx")
    found = campaign.KINDS[kind].run(case)
    assert not found.fails, f"{json.dumps(case)[:400]}: {found.name}: {found.told[:400]}"
    return found.name


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_a_failure_that_was_kept_does_not_come_back(path):
    kept = json.loads(path.read_text())
    expect(kept["kind"], kept["case"])


@pytest.mark.core
def test_hostile_calls_are_refused_or_answered_by_the_closed_form():
    found = [expect("calls", campaign.case_of("calls", SEED, number)) for number in range(120)]
    assert {"refused", "answered"} <= set(found)


@pytest.mark.core
def test_hostile_calls_of_linearisations_and_sketches_are_refused_or_answered_by_the_closed_form():
    cases = [campaign.case_of("derived", SEED, number) for number in range(100)]
    found = [expect("derived", case) for case in cases if case["front"] == "numpy"]
    assert {"refused", "answered"} <= set(found)


@pytest.mark.core
def test_hostile_requests_are_refused_or_answered_by_the_closed_form():
    found = [expect("requests", campaign.case_of("requests", SEED, number)) for number in range(60)]
    assert {"refused", "answered"} <= set(found)


@pytest.mark.slow
def test_messy_tables_are_refused_or_answered_by_the_closed_form():
    found = [expect("tables", campaign.case_of("tables", SEED, number)) for number in range(8)]
    assert {"refused", "answered"} <= set(found)


@pytest.mark.core
def test_damaged_and_forged_models_are_refused_or_are_models():
    models = ("ridge", "weighted", "estimator", "sketch", "linearised", "deployed")
    found = [expect("files", files.draw(random.Random(f"{SEED} {number}"), models)) for number in range(120)]
    assert {"refused", "same"} <= set(found)


@pytest.mark.core
def test_hostile_commands_end_in_a_sentence():
    found = [expect("commands", campaign.case_of("commands", SEED, number)) for number in range(12)]
    assert "refused" in found


@pytest.mark.core
def test_signals_leave_the_old_model_or_the_new_one():
    for number in range(6):
        expect("kills", campaign.case_of("kills", SEED, number))


@pytest.mark.slow
@pytest.mark.parametrize("kind", campaign.KINDS)
def test_more_of_each_kind(kind):
    for number in range(20 if kind == "tables" else 60):  # of several commands each
        expect(kind, campaign.case_of(kind, SEED + 1, number))


# -- whether failures would be seen --------------------------------------------------------------------
def raises(error):
    raise error


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda: [1.0, 2.0], "answered"),
        (lambda: [1.0, 2.1], "wrong"),
        (lambda: [1.0, np.nan], "wrong"),
        (lambda: raises(vhat.InputError("a sentence of some words")), "refused"),
        (lambda: raises(vhat.InputError("no")), "mute"),
        (lambda: raises(KeyError("x")), "raw"),
    ],
)
def test_outcomes_are_told_apart(ask, name):
    assert limited(ask, np.array([1.0, 2.0])).name == name


def test_nan_without_a_warning_is_a_failure():
    assert limited(lambda: [np.nan], None).name == "mute"


def test_the_oracle_is_the_model(monkeypatch):
    band = ridge.from_numpy().interval(ridge.POINTS)
    np.testing.assert_allclose([band.lower, band.upper], ridge.limits(ridge.X, ridge.Y, ridge.LAM, ridge.POINTS))
    monkeypatch.setattr(ridge, "limits", lambda *_: (band.lower + 1, band.upper))
    assert calls.run({"act": "data", "front": "numpy", "what": "X", "how": "list"}).name == "wrong"


def test_a_campaign_goes_on_where_it_stopped_and_keeps_failures(tmp_path, monkeypatch, capsys):
    asked = []

    def run(case):
        asked.append(case)
        return Outcome("raw" if len(asked) == 3 else "refused", "words")

    monkeypatch.setattr(calls, "run", run)
    monkeypatch.setattr(campaign, "CASES", tmp_path / "cases")
    monkeypatch.setattr(campaign.keep, "__defaults__", (tmp_path / "cases",))
    options = ["--seed", "3", "--state", str(tmp_path / "state")]
    assert campaign.main(["--calls", "2", *options]) == 0
    assert campaign.main(["--calls", "5", *options]) == 1
    assert asked == [campaign.case_of("calls", 3, number) for number in range(5)]
    assert "calls: 5 of 5; refused 4, raw 1" in capsys.readouterr().out
    (kept,) = (tmp_path / "cases").iterdir()
    assert json.loads(kept.read_text())["case"] == asked[2]
