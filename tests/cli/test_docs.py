"""The commands that the page on the command line prints run as they are printed, one after the other."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import vhat
from tests.cli.cases import read, run
from vhat.cli import application

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", PAGE.read_text(), re.MULTILINE)
"""Each line with what the page prints below it."""
CODE = "; echo $?"


def perform(line, printed):
    """Run a line in this process, with its redirections: starting Python anew for each would take minutes."""
    words = shlex.split(line.removesuffix(CODE))
    files = {}
    for mark in ("<", ">"):
        if mark in words:
            at = words.index(mark)
            files[mark] = Path(words[at + 1])
            del words[at : at + 2]
    if words[:2] == ["python", "-c"]:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(words[2], {})
        return None
    assert words[0] == "vhat"
    done = run(*words[1:], input=files["<"].read_bytes() if "<" in files else None, catch_exceptions=False)
    if line.endswith(CODE):
        assert f"{done.stderr}{done.exit_code}\n" == printed
        return done
    # An audit with a line that fails ends with 3; the page shows the same verdict as the command.
    failed = "look at " in printed
    expected = application.CANNOT_ANSWER if failed and words[1] == "audit" else 0
    assert done.exit_code == expected, f"{line}\n{done.output}"
    for verdict in re.findall(r"^(?:audit +|Audit: ).*", printed, re.MULTILINE):
        assert verdict in done.stdout
    if ">" in files:
        files[">"].write_text(done.stdout)
    return done


@pytest.mark.slow
def test_the_transcript_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = {line.split()[1]: perform(line, printed) for line, printed in COMMANDS}
    assert {"fit", "audit", "predict", "report", "plan", "compare"} <= set(done)
    assert "s6 (20 missing, filled with the median 91 and marked)" in " ".join(done["fit"].stdout.split())
    assert "categories      bmi (3 levels)" in done["fit"].stdout
    assert "13-1, linear" in done["fit"].stdout  # nine columns, three classes, and the mark of the gaps
    frame = read("intervals.csv")
    assert list(frame["patient"]) == [float(row) for row in range(400, 442)]
    assert (frame["lower"] < frame["center"]).all()
    lines = [json.loads(line) for line in Path("intervals.jsonl").read_text().splitlines()]
    assert [row["center"] for row in lines] == list(frame["center"])
    assert all(row["lower"] < low for row, low in zip(lines, frame["lower"], strict=True))


def test_the_page_names_every_command_and_every_exit_code():
    from vhat.cli import app

    text = PAGE.read_text()
    for command in app.registered_commands:
        assert f"`vhat {command.callback.__name__}" in text
    for code in (0, application.UNEXPECTED, application.CANNOT_USE, application.CANNOT_ANSWER, application.STOPPED):
        assert f"\n| {code} |" in text


def test_the_pages_on_reports_and_on_commands_follow_one_table():
    report = (PAGE.parent / "report.md").read_text()
    lines = [line for line, _ in COMMANDS]
    shown = re.findall(r"^vhat .*$", report, re.MULTILINE)
    assert shown
    assert set(shown) <= set(lines)


def test_the_page_on_reading_explains_what_is_printed_of_a_fit_that_amplifies():
    """On a circle near its centre a fitted value moves further than the responses do."""
    on_circle = vhat.from_numpy(lambda q, Z: Z @ [np.cos(q[0]), np.sin(q[0])], [0.0], np.eye(2), [0.05, 0.0])
    phrase = on_circle.interval(np.eye(2)).noise_source.split(": ")[1].rstrip(")")
    assert phrase.lower() in (PAGE.parent / "reading.md").read_text().lower()
