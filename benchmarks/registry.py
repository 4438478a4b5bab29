"""What a row of the benchmark is, and the list of all rows.

A new row is a function of a :class:`Run` that returns a :class:`Measurement`, under the decorator :func:`row`, in a
file of :mod:`benchmarks.rows`. Nothing else has to be told about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.problems import Setting, Trained, load
from benchmarks.timing import Stopwatch


@dataclass(frozen=True)
class Goal:
    """What a row is to reach.

    Attributes:
        text: As it is printed.
        reached: Whether a value does.
    """

    text: str
    reached: Callable[[float], bool]


def at_least(value: float) -> Goal:
    """Not below ``value``."""
    return Goal(f"≥ {value:g}", lambda found: found >= value)


def at_most(value: float) -> Goal:
    """Not above ``value``."""
    return Goal(f"≤ {value:g}", lambda found: found <= value)


def within_factor(value: float) -> Goal:
    """A ratio between 1/value and value."""
    return Goal(f"1/{value:g} to {value:g}", lambda found: 1 / value <= found <= value)


@dataclass(frozen=True)
class Measurement:
    """What a row found.

    Attributes:
        value: The number, or None where it could not be measured.
        how: How it was measured, in a sentence or two; or why it could not be.
        error: Largest relative error of our V against dense linear algebra, where there is one.
        rival_error: The same of the rival.
        details: Times and counts behind the number.
    """

    value: float | None
    how: str
    error: float | None = None
    rival_error: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """How to measure: passed to every row.

    Attributes:
        quick: Small sizes and few repetitions: checks that the code runs, measures nothing of interest.
        watch: The clock.
        uci: Where the UCI tables are, if anywhere.
        kept: The row as an earlier run measured it, if one did.
    """

    quick: bool
    watch: Stopwatch
    uci: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    def load(self, setting: Setting) -> Trained:
        """A trained network: the setting, or something small in its place."""
        if self.quick:
            hidden = (256,) if len(setting.hidden) == 1 else (60, 50)
            setting = replace(setting, n=200, hidden=hidden, steps=min(setting.steps, 3000))
        self.watch.say(f"data and parameters of {setting.name}")
        return load(setting)

    def count(self, number: int, quick: int = 2) -> int:
        """How many points or repetitions."""
        return min(number, quick) if self.quick else number


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What ``--only`` takes.
        title: As it is printed.
        unit: Of the value: "x" for a ratio of times.
        goal: What is to be reached, if anything.
        measure: Does the work.
    """

    name: str
    title: str
    unit: str
    goal: Goal | None
    measure: Callable[[Run], Measurement]

    def record(self, run: Run) -> dict[str, Any]:
        """Measure, and return what goes into the results; a row that fails says why."""
        try:
            found = self.measure(run)
        except Exception as error:
            found = Measurement(None, f"failed: {type(error).__name__}: {error}")
        finite = found.value is not None and math.isfinite(found.value)
        return {
            "name": self.name,
            "title": self.title,
            "measured": found.value,
            "unit": self.unit,
            "goal": self.goal.text if self.goal else None,
            "reached": finite and self.goal.reached(found.value) if self.goal and found.value is not None else None,
            "error": found.error,
            "rival_error": found.rival_error,
            "how": found.how,
            "details": found.details,
        }


ROWS: dict[str, Row] = {}


def row(name: str, title: str, *, unit: str = "x", goal: Goal | None = None) -> Callable[[Any], Any]:
    """Register the function below as a row."""

    def register(measure: Callable[[Run], Measurement]) -> Callable[[Run], Measurement]:
        if name in ROWS:
            raise ValueError(f"there are two rows called {name}")
        ROWS[name] = Row(name, title, unit, goal, measure)
        return measure

    return register
