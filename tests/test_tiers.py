"""The tiers take every test once, and the record of costs names tests that exist."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import tiers

ROOT = Path(__file__).parents[1]


@dataclass
class Item:
    """As much of a test as the tiers look at."""

    nodeid: str
    marks: tuple[str, ...] = ()
    params: dict[str, object] = field(default_factory=dict)

    @property
    def callspec(self) -> SimpleNamespace:
        return SimpleNamespace(params=self.params)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


COSTS = {"cheap": 1.0, "long": 5.0, "longest": 60.0, "wanted": 7.0}
ITEMS = [
    Item("unknown"),
    Item("cheap"),
    Item("marked", ("slow",)),
    Item("long"),
    Item("wanted", ("core",)),
    *(Item(f"numpy{k}", params={"framework": "numpy"}) for k in range(20)),
    *(Item(f"jax{k}", params={"framework": "jax"}) for k in range(100)),
    *(Item(f"torch{k}", params={"frontend": "torch"}) for k in range(100)),
    *(Item(f"longest{k}") for k in range(30)),
]


@pytest.fixture
def recorded(monkeypatch):
    costs = COSTS | {f"longest{k}": 60.0 for k in range(30)}
    monkeypatch.setattr(tiers, "read_costs", lambda: costs)


def names(tier, number=0):
    return {item.nodeid for item in tiers.select(ITEMS, tier, number)[0]}


@pytest.mark.usefixtures("recorded")
def test_the_tiers_share_no_test_and_leave_none_out():
    parts = [names("core"), names("slow"), *(names("dear", number) for number in range(tiers.SLICES))]
    together = set().union(*parts)
    assert sum(map(len, parts)) == len(together)
    assert together == names("all") == {item.nodeid for item in ITEMS}


@pytest.mark.usefixtures("recorded")
def test_cost_and_marks_decide():
    core, slow = names("core"), names("slow")
    assert {"unknown", "cheap", "wanted"} <= core
    assert {"marked", "long"} <= slow


@pytest.mark.usefixtures("recorded")
def test_numpy_has_every_case_in_the_core_and_the_others_a_sample():
    core = names("core")
    assert {f"numpy{k}" for k in range(20)} <= core
    for framework in ("jax", "torch"):
        assert 10 <= sum(name.startswith(framework) for name in core) <= 45


@pytest.mark.usefixtures("recorded")
def test_each_dear_test_runs_at_one_commit_in_five():
    runs = [name for number in range(tiers.SLICES) for name in names("dear", number)]
    assert sorted(runs) == sorted(f"longest{k}" for k in range(30))
    assert 0 <= tiers.slice_of_commit() < tiers.SLICES


def test_costs_are_recorded_and_read_again(tmp_path, monkeypatch):
    record = tmp_path / "costs.gw0"
    record.write_text('["a", 0.1, 0.1]\n["b", 3.25, 4.0]\n')
    monkeypatch.setattr(tiers, "COSTS", tmp_path / "costs.json")
    tiers.write_costs([record])
    assert tiers.read_costs() == {"b": 3.25}


@pytest.mark.slow
def test_every_recorded_test_exists():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(tiers.read_costs()) <= set(ended.stdout.splitlines())
