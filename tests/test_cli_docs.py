"""The commands that the page on the command line prints run as they are printed, one after the other."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli_cases import read, run

PAGE = Path(__file__).parent.parent / "docs" / "command-line.md"
COMMANDS = re.findall(r"^\$ (.*)$", PAGE.read_text(), re.MULTILINE)


def perform(line):
    """Run a line in this process, with its redirections: starting Python anew for each would take minutes."""
    words = shlex.split(line)
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
    assert done.exit_code == 0, f"{line}\n{done.output}"
    if ">" in files:
        files[">"].write_text(done.stdout)
    return done


@pytest.mark.slow
def test_the_transcript_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = {line.split()[1]: perform(line) for line in COMMANDS}
    assert {"fit", "audit", "predict", "plan", "compare"} <= set(done)
    frame = read("intervals.csv")
    assert list(frame["patient"]) == [float(row) for row in range(400, 442)]
    assert (frame["lower"] < frame["center"]).all()
    lines = [json.loads(line) for line in Path("intervals.jsonl").read_text().splitlines()]
    assert [row["center"] for row in lines] == list(frame["center"])
    assert all(row["lower"] < low for row, low in zip(lines, frame["lower"], strict=True))


def test_the_page_names_every_command_and_every_exit_code():
    from vhat.cli import app, application

    text = PAGE.read_text()
    for command in app.registered_commands:
        assert f"`vhat {command.callback.__name__}" in text
    for code in (0, application.UNEXPECTED, application.CANNOT_USE, application.CANNOT_ANSWER, application.STOPPED):
        assert f"\n| {code} |" in text
