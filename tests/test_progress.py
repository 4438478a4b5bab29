"""What long work shows: a plan and one bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import io
import re
import sys
import time

import numpy as np
import pytest

import vhat
from vhat.linalg.curvature.definiteness import smallest_eigenvalue
from vhat.models.numpy import numpy_problem
from vhat.progress import announce, bar, listen, overall

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 5))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch):
    """Make standard error a terminal, from within the test: pytest sets its own before each."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return sys.stderr


@pytest.fixture
def fitted():
    theta = np.linalg.solve(X.T @ X / 20 + 0.1 * np.eye(5), X.T @ X.sum(axis=1) / 20)
    derivatives = {"jac": lambda q, Z: Z, "hess": lambda q, Z: np.zeros((len(Z), 5, 5))}
    return vhat.from_numpy(lambda q, Z: Z @ q, theta, X, X.sum(axis=1), weight_decay=0.1, **derivatives)


@pytest.fixture(scope="module")
def curved():
    """A curve at its minimum: not linear, so that nothing is left out."""
    y = 2.0 * np.exp(-0.5 * X[:, 0]) + 0.1 * X[:, 1]
    fitted = vhat.from_numpy(lambda q, Z: q[0] * np.exp(-q[1] * Z[:, 0]), [2.0, 0.5], X, y, weight_decay=1e-3)
    return fitted.polish()


def test_silent_where_there_is_no_terminal(monkeypatch, fitted):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    announce("a plan")
    with bar("work", 2, patience=0.0) as advance:
        advance("a note")
    fitted.weighted_norm(RNG.normal(size=(500, 5)), solver=vhat.CG())
    assert sys.stderr.getvalue() == ""


def test_work_of_several_bars_has_one_bar_that_never_goes_back(monkeypatch):
    terminal = open_terminal(monkeypatch)
    with overall("fit", {"grid": 3, "audit": 1}, patience=0.0):
        for label, total in (("grid", 2), ("grid", 2), ("grid", 4), ("other", 1), ("audit", 2)):
            with bar(label, total, patience=0.0) as advance:
                for _ in range(total):
                    advance("")
    shares = [int(share) for share in re.findall(r"(\d+)%", terminal.getvalue())]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert "other" not in terminal.getvalue()
    assert terminal.getvalue().count("100%") <= 2  # rich draws a bar once more when it ends


def test_overall_is_silent_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with overall("fit", {"grid": 1}, patience=0.0), bar("grid", 1, patience=0.0) as advance:
        advance("")
    assert sys.stderr.getvalue() == ""


def test_a_bar_within_a_bar_is_a_note_on_it(monkeypatch):
    terminal = open_terminal(monkeypatch)
    with bar("points", 3, patience=0.0) as outer:
        outer("")
        with bar("steps", 7, patience=0.0) as inner:
            inner("")
            inner("2 rows to go")
    shown = terminal.getvalue()
    assert "points" in shown
    assert "steps 2/7, 2 rows to go" in shown
    assert "33%" in shown
    with bar("later", 0, patience=0.0) as again:  # the outer bar has gone
        again("by itself")
    assert "later" in terminal.getvalue()
    assert "%" not in terminal.getvalue().split("later", maxsplit=1)[1]  # no share of what has no known end


def test_work_of_a_moment_shows_no_bar(monkeypatch, fitted):
    terminal = open_terminal(monkeypatch)
    fitted.weighted_norm(X)
    assert terminal.getvalue() == ""


def test_long_work_shows_its_plan_first_and_once(monkeypatch, fitted):
    terminal = open_terminal(monkeypatch)
    few, many = X[:3], RNG.normal(size=(300, 5))
    assert fitted.plan(few, solver=vhat.CG()).gradients < 2000 < fitted.plan(many, solver=vhat.CG()).gradients
    fitted.weighted_norm(few, solver=vhat.CG())
    assert terminal.getvalue() == ""
    for _ in range(2):
        fitted.weighted_norm(many, solver=vhat.CG())
    assert terminal.getvalue() == f"{fitted.plan(many, solver=vhat.CG())}\n"


def test_the_bar_of_many_points_counts_their_blocks(monkeypatch, fitted):
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr("vhat.variance.weighted_norm.bar", lambda label, total: bar(label, total, patience=0.0))
    fitted.weighted_norm(RNG.normal(size=(500, 5)))
    assert "points" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_a_bar_appears_in_the_middle_of_a_long_step(monkeypatch):
    """One call of LAPACK may last for minutes: no step ends, and a person waits."""
    terminal = open_terminal(monkeypatch)
    with bar("factorisation", 1, patience=0.05):
        deadline = time.monotonic() + 20.0
        while "factorisation" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "factorisation" in terminal.getvalue()
    after = terminal.getvalue()
    time.sleep(0.2)
    assert terminal.getvalue() == after  # nothing is written once the work is over


def test_a_bar_of_work_that_ends_in_time_never_appears(monkeypatch):
    terminal = open_terminal(monkeypatch)
    with bar("work", 3, patience=0.3) as advance:
        advance("")
    time.sleep(0.5)
    assert terminal.getvalue() == ""


def heard(work):
    """The labels of all bars, with their last step and total."""
    found = {}
    with listen(lambda label, step, total, note: found.__setitem__(label, (step, total))):
        work()
    return found


STEPS = {
    "Hessian": lambda fitted: fitted.weighted_norm(X, solver=vhat.Dense(), curvature="hessian"),
    "Gauss-Newton matrix": lambda fitted: fitted.weighted_norm(X, solver=vhat.Primal(), curvature="ggn"),
    "gradients of the training rows": lambda fitted: fitted.weighted_norm(X, solver=vhat.Dual(), curvature="ggn"),
    "kernel": lambda fitted: fitted.weighted_norm(X, solver=vhat.Dual(), curvature="ggn"),
    "points": lambda fitted: fitted.weighted_norm(X),
    "rows left out": lambda fitted: fitted.leave_one_out(),
    "pool": lambda fitted: fitted.acquire(X, 2),
    "redraws": lambda fitted: fitted.interval(X[:2], bound="theorem", tail="estimated"),
    "refits": lambda fitted: fitted.audit(refits=2),
    "audit": lambda fitted: fitted.audit(),
}


@pytest.mark.parametrize(
    "label", [pytest.param(label, marks=[pytest.mark.slow] * (label == "redraws")) for label in STEPS]
)
def test_every_long_step_counts_to_an_end_that_is_known(label, curved):
    curved.release()  # what another test has made
    step, total = heard(lambda: STEPS[label](curved))[label]
    assert 0 < step <= total + 1
    assert step == total or label == "audit"


def test_the_search_for_the_smallest_eigenvalue_is_shown(monkeypatch):
    monkeypatch.setattr("vhat.linalg.curvature.definiteness._DENSE", 0)
    problem = numpy_problem(lambda q, Z: Z @ q, np.ones(5), X, X.sum(axis=1), weight_decay=0.1, jac=lambda Z: Z)
    found = heard(lambda: smallest_eigenvalue(problem, "hessian"))
    assert 0 < found["smallest eigenvalue"][0] <= found["smallest eigenvalue"][1]


def test_an_audit_is_one_bar(monkeypatch, curved):
    """What takes long inside is a note on it."""
    terminal = open_terminal(monkeypatch)
    monkeypatch.setattr("vhat.evidence.audit.audit.bar", lambda label, total: bar(label, total, patience=0.0))
    curved.audit(refits=1)
    shown = terminal.getvalue()
    assert "audit" in shown
    assert "gaussian noise" in shown  # the last line
    assert not any(line.startswith(("Hessian", "refits", "rows left out")) for line in shown.splitlines())
