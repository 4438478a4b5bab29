"""What long work shows: a plan and one bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import vhat
from vhat.progress import announce, bar

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


def test_silent_where_there_is_no_terminal(monkeypatch, fitted):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    announce("a plan")
    with bar("work", 2, patience=0.0) as advance:
        advance("a note")
    fitted.weighted_norm(RNG.normal(size=(500, 5)), solver=vhat.CG())
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
