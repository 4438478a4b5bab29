"""tools/guard.py: two commits are told apart by a single bit, and a run leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vhat

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))  # which Python does by itself for a script

import guard  # noqa: E402
import guard_cases  # noqa: E402
import guard_compare  # noqa: E402
from guard_cases import record  # noqa: E402
from guard_cases.record import Entry  # noqa: E402

BASE = {
    "V": Entry("number", np.array([0.5, np.nan, 2.0])),
    "residual": Entry("number", np.array([1e-16]), scale=1.0),
    "steps": Entry("count", np.array([7, 8])),
    "verdict": Entry("status", "holds"),
    "remedy": Entry("words", "Call polish()."),
    "printed": Entry("printed", "residual 1e-16"),
}


def different(after, **options):
    """The entries that are judged different from BASE, with their verdict."""
    found = guard_compare.compare({"case": BASE}, {"case": after}, **options)
    return {finding.quantity: finding.verdict for finding in found if not finding.equal}


def changed(name, value):
    return {**BASE, name: replace(BASE[name], value=value)}


# -- comparing -----------------------------------------------------------------------------------


def test_equal_records_are_equal_and_nan_equals_nan():
    assert different({name: replace(entry) for name, entry in BASE.items()}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("V", np.array([np.nextafter(0.5, 1), np.nan, 2.0])),
        ("V", np.array([0.5, np.nan, np.nan])),
        ("V", np.array([0.5, 1.0, 2.0])),
        ("V", np.array([0.5, np.nan, np.inf])),
        ("V", np.array([0.5, np.nan, 2.0], dtype=np.float32)),
        ("V", np.array([[0.5, np.nan, 2.0]])),
        ("V", "None"),
        ("residual", np.array([2e-16])),
        ("steps", np.array([7, 9])),
        ("verdict", "fails"),
        ("remedy", "Call polish() first."),
        ("printed", "residual 2e-16"),
    ],
)
def test_one_changed_entry_is_found_and_no_other(name, value):
    assert list(different(changed(name, value))) == [name]


def test_the_sign_of_a_zero_is_a_bit_too():
    zero = {"case": {"V": Entry("number", np.array([0.0]))}}
    negative = {"case": {"V": Entry("number", np.array([-0.0]))}}
    assert not guard_compare.compare(zero, negative)[0].equal
    assert guard_compare.compare(zero, negative, rtol=1e-10)[0].equal


def test_an_entry_that_is_on_one_side_only_is_found():
    fewer = {name: entry for name, entry in BASE.items() if name != "V"}
    assert different(fewer) == {"V": "only before"}
    assert different({**BASE, "W": BASE["V"]}) == {"W": "only after"}


def test_a_changed_shape_and_a_changed_text_are_quoted():
    assert different(changed("V", np.array([0.5, np.nan]))) == {"V": "shape (3,) became (2,)"}
    assert different(changed("verdict", "fails")) == {"verdict": "'holds' became 'fails'"}


def test_a_tolerance_is_relative_to_the_largest_magnitude_or_to_the_scale_of_the_entry():
    moved = np.array([0.5 + 1e-12, np.nan, 2.0])
    assert different(changed("V", moved), rtol=1e-12) == {}
    assert list(different(changed("V", moved), rtol=1e-13)) == ["V"]
    assert different(changed("residual", np.array([5e-12])), rtol=1e-10) == {}
    assert list(different(changed("residual", np.array([5e-10])), rtol=1e-10)) == ["residual"]


def test_a_tolerance_is_for_numbers_iterations_and_printed_tables_alone():
    assert different(changed("printed", "residual 2e-16"), rtol=1e-10) == {}
    assert different(changed("steps", np.array([7, 9])), rtol=1e-10) == {}
    assert list(different(changed("verdict", "fails"), rtol=1.0)) == ["verdict"]
    assert list(different(changed("remedy", "Other words."), rtol=1.0)) == ["remedy"]
    assert list(different(changed("V", np.array([0.5, 1.0, 2.0])), rtol=1.0)) == ["V"]  # NaN became a number
    assert list(different(changed("V", np.array([0.5, np.nan])), rtol=1.0)) == ["V"]


def test_words_can_be_left_out_and_statuses_cannot():
    fewer = {name: entry for name, entry in BASE.items() if name != "remedy"}
    assert different(fewer, ignore_words=True) == {}
    assert different(changed("remedy", "Other words."), ignore_words=True) == {}
    assert different(changed("printed", "residual 2e-16"), ignore_words=True) == {}
    assert list(different(changed("verdict", "fails"), ignore_words=True)) == ["verdict"]


def test_the_table_names_what_differs_and_by_how_much():
    found = guard_compare.compare({"case": BASE}, {"case": changed("V", np.array([0.5, np.nan, 2.02]))})
    lines = list(guard_compare.table(found))
    assert "1 DIFFERENT" in lines[1]
    assert lines[2].split() == ["V", "9.9e-03", "different"]
    assert len(lines) == 3


# -- recording -----------------------------------------------------------------------------------


def test_a_case_gives_the_same_bits_twice_and_a_last_digit_of_v_is_found(monkeypatch):
    first = {"numpy/ridge": guard_cases.run("numpy/ridge")}
    again = {"numpy/ridge": guard_cases.run("numpy/ridge")}
    assert all(finding.equal for finding in guard_compare.compare(first, again))

    exact = vhat.FittedModel.weighted_norm

    def moved(self, *args, **options):
        found = exact(self, *args, **options)
        return replace(found, value=found.value + 1e-13)

    monkeypatch.setattr(vhat.FittedModel, "weighted_norm", moved)
    wrong = {"numpy/ridge": guard_cases.run("numpy/ridge")}
    found = [finding for finding in guard_compare.compare(first, wrong) if not finding.equal]
    assert [finding.quantity for finding in found] == ["V: value", "shortcut: value"]
    assert all(0 < finding.difference < 1e-12 for finding in found)
    assert all(finding.equal for finding in guard_compare.compare(first, wrong, rtol=1e-10))


def test_a_case_records_every_line_of_the_audit_and_each_result():
    entries = guard_cases.run("numpy/ridge")
    assert entries["audit: smallest eigenvalue: verdict"].value == "holds"
    assert entries["V: value"].value.shape == (5,)
    assert entries["leave one out: residual"].value.shape == (24,)
    assert entries["covariance: value"].value.shape == (3, 3)
    assert not [name for name in entries if name.endswith(": error")]


def test_warnings_are_recorded_by_category_and_text():
    entries = guard_cases.run("numpy/decay")
    assert entries["interval: warnings"] == Entry("status", "NotMinimumWarning")
    assert entries["interval: warning texts"].kind == "words"
    assert "not a minimum" in str(entries["interval: warning texts"].value)
    assert entries["V: warnings"] == Entry("status", "")


def test_a_step_that_raises_is_recorded_and_the_case_goes_on():
    entries = guard_cases.run("numpy/refusals")
    assert entries["delta: error"] == Entry("status", "InputError")
    assert "1.5" in str(entries["delta: error text"].value)
    assert entries["noise: error"] == Entry("status", "InputError")


def test_a_case_that_raises_outside_its_steps_is_recorded(monkeypatch):
    monkeypatch.delattr(vhat.FittedModel, "weighted_norm")
    assert guard_cases.run("numpy/ridge")["V: error"] == Entry("status", "AttributeError")
    monkeypatch.setattr(vhat, "from_numpy", lambda *_, **__: 1 / 0, raising=False)
    assert guard_cases.run("numpy/ridge")["case: error"] == Entry("status", "ZeroDivisionError")


def test_records_come_back_from_disk_as_they_were(tmp_path):
    record.save({"case": BASE}, tmp_path)
    assert different(record.load(tmp_path)["case"]) == {}


def test_every_framework_has_cases_and_a_pattern_chooses_among_them():
    assert {name.partition("/")[0] for name in guard_cases.names()} == {"numpy", "torch", "jax"}
    assert guard_cases.names("ridge") == ["numpy/ridge", "torch/ridge", "jax/ridge"]
    assert guard_cases.names("numpy/r*")
    assert all(name.startswith("numpy/r") for name in guard_cases.names("numpy/r*"))


# -- revisions -----------------------------------------------------------------------------------


FORMULA = """
import numpy as np
def chebyshev(norm, n, noise, delta):
    return noise * np.sqrt(norm / n / delta) * {factor}
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose vhat has one formula, in two commits that differ by 1e-13 of it."""
    package = tmp_path / "repository" / "src" / "vhat"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    root = package.parent.parent
    _git(root, "init", "--quiet")
    _git(root, "config", "user.name", "nobody")
    _git(root, "config", "user.email", "nobody@example.org")
    for factor in ("1.0", "(1 + 1e-13)"):
        (package / "bounds.py").write_text(FORMULA.format(factor=factor))
        _git(root, "add", "-A")
        _git(root, "commit", "--quiet", "--message", factor)
    monkeypatch.setattr(guard, "ROOT", root)
    return root


def _git(root, *arguments):
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def _worktrees(root):
    return len(_git(root, "worktree", "list").splitlines())


def test_one_commit_against_itself_is_equal(repository, capfd):
    assert guard.main(["HEAD", "HEAD", "--cases", "formulas"]) == 0
    assert "0 different" in capfd.readouterr().out
    assert _worktrees(repository) == 1


def test_a_changed_constant_is_found_between_commits_and_in_the_working_tree(repository, capfd):
    assert guard.main(["HEAD~1", "HEAD", "--cases", "numpy/formulas"]) == 1
    printed = capfd.readouterr().out
    assert "chebyshev: value" in printed
    assert "1 different" in printed
    assert guard.main(["HEAD~1", "--cases", "numpy/formulas"]) == 1
    assert guard.main(["HEAD~1", "--cases", "numpy/formulas", "--rtol", "1e-10"]) == 0
    assert _worktrees(repository) == 1


def test_what_cannot_be_run_is_told_from_what_differs(repository, capfd):
    assert guard.main(["no-such-revision", "--cases", "numpy/formulas"]) == 2
    assert guard.main(["HEAD", "--cases", "no-such-case"]) == 2
    (repository / "src" / "vhat" / "__init__.py").write_text("1 / 0")
    assert guard.main(["HEAD", "--cases", "numpy/formulas"]) == 2
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert _worktrees(repository) == 1


def test_another_vhat_than_that_of_the_revision_is_refused(repository, capfd):
    for file in (repository / "src" / "vhat").iterdir():
        file.unlink()
    assert guard.main(["HEAD", "--cases", "numpy/formulas"]) == 2
    assert "not inside" in capfd.readouterr().err


INTERRUPTIBLE = """
import pathlib, signal, sys
import guard
guard.ROOT = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, guard._interrupt)
sys.exit(guard.main(["HEAD", "--cases", "numpy/formulas"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_worktree_and_no_process(repository, tmp_path, number):
    started = tmp_path / "started"
    slow = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n"
    (repository / "src" / "vhat" / "__init__.py").write_text(slow)
    _git(repository, "commit", "--all", "--quiet", "--message", "slow")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, str(repository)], cwd=TOOLS, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (started.exists() and started.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _worktrees(repository) == 2
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2, errors
    assert "interrupted" in errors
    assert _worktrees(repository) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
