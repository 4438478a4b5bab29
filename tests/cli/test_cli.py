"""The command line itself: help, version, errors, completion, and the commands that need no table."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import vhat
from vhat.cli import app
from vhat.errors import InputError
from vhat.study import demo

runner = CliRunner()
COMMANDS = ("fit", "predict", "audit", "plan", "report", "compare", "demo", "study")


def test_version_is_the_installed_one():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"vhat {version('vhat')}\n"


def test_help_and_version_import_no_numerical_library():
    """Of every command, in one process: what one help loads, all of them would show."""
    code = (
        "import json, sys\n"
        "from vhat.cli import app\n"
        f"for line in [[], *([name] for name in {COMMANDS!r})]:\n"
        "    try: app([*line, '--help'])\n"
        "    except SystemExit as leave: assert not leave.code\n"
        "try: app(['--version'])\n"
        "except SystemExit as leave: assert not leave.code\n"
        "heavy = ('jax', 'torch', 'matplotlib', 'pandas', 'scipy', 'sklearn', 'pyarrow')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_in_its_help_that_the_command_line_accepts(name):
    shown = " ".join(runner.invoke(app, [name, "--help"]).output.split())
    example = re.search(r"Example: vhat (.*)$", shown).group(1).split()
    assert example[0] == name
    command = typer.main.get_command(app)
    for part in example[: 2 if name == "study" else 1]:
        command = command.commands[part]
    rest = example[2 if name == "study" else 1 :]
    command.make_context(name, list(rest))  # parses, runs nothing


@pytest.mark.parametrize("name", [*COMMANDS, "study figure1", "study tables", "study page"])
def test_help_fits_a_narrow_terminal(name, monkeypatch):
    """No switch seems to want a value, the example can be copied, and sentences end where the terminal does."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = runner.invoke(app, [*name.split(), "--help"]).output
    assert re.search(rf"^ Example: vhat {name}.*\n *\n", shown, re.MULTILINE)
    assert not re.search(r"--.*<(bool|str|int|path)", shown)
    assert "\u2026" not in shown  # nothing is cut off
    if name == "predict":
        assert re.search(
            r"A file of any size goes +\n through in chunks\. On a terminal the first rows are shown; ", shown
        )


def test_help_lists_the_commands_in_the_order_of_their_use():
    shown = runner.invoke(app, ["--help"]).output
    places = [re.search(rf"^\W*{name} ", shown, re.MULTILINE).start() for name in COMMANDS]
    assert places == sorted(places)


def test_the_shell_can_complete_commands():
    environment = os.environ | {"_VHAT_COMPLETE": "complete_bash", "COMP_WORDS": "vhat pre", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from vhat.cli import app; app(prog_name='vhat')"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout.split() == ["predict"]


def test_library_errors_are_one_sentence_and_exit_code_2(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise InputError("the data are empty.")

    monkeypatch.setattr(demo, "run", refuse)
    result = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == "vhat: the data are empty.\n"
    assert "Traceback" not in result.output


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_lets_the_error_through_wherever_it_stands(tmp_path, monkeypatch, place):
    def refuse(*_, **__):
        raise InputError("the data are empty.")

    monkeypatch.setattr(demo, "run", refuse)
    arguments = ["demo", "--out", str(tmp_path)]
    arguments.insert(place, "--debug")
    assert isinstance(runner.invoke(app, arguments).exception, InputError)


def test_control_c_is_exit_code_130_and_not_a_traceback(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", stop)
    result = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (130, "vhat: stopped.\n")


def test_an_output_that_is_a_file_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run", lambda seed: pytest.fail("worked before it looked"))
    (tmp_path / "taken").write_text("")
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "taken")])
    assert result.exit_code == 2
    assert "cannot be used as a directory" in result.stderr


def test_a_negative_seed_is_a_usage_error():
    assert runner.invoke(app, ["demo", "--seed", "-1"]).exit_code == 2


def test_demo_hands_its_options_on(tmp_path, monkeypatch):
    seen = SimpleNamespace()
    monkeypatch.setattr(demo, "show", lambda out, *, seed, console: seen.__dict__.update(out=out, seed=seed))
    assert runner.invoke(app, ["demo", "--out", str(tmp_path), "--seed", "3"]).exit_code == 0
    assert (seen.out, seen.seed) == (tmp_path, 3)


@pytest.mark.slow
def test_demo_certifies_a_minimum_and_draws_a_band_that_opens_in_the_gap(tmp_path, monkeypatch):
    found = []
    run = demo.run
    monkeypatch.setattr(demo, "run", lambda seed: found.append(run(seed)) or found[0])
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "new")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "new" / "band.png").read_bytes().startswith(b"\x89PNG")
    assert "certified minimum" in " ".join(result.output.split())
    (shown,) = found
    assert shown.fitted.audit().holds
    x, wide = shown.grid[:, 0], shown.band.half_width
    among = (np.abs(x) > 0.7) & (np.abs(x) < 1.5)
    assert wide[np.abs(x) < 0.1].min() > 3 * np.median(wide[among])
    assert shown.band.unsupported[np.abs(x) < 0.1].min() > 2 * np.median(shown.band.unsupported[among])
    assert vhat.metrics.coverage(shown.band.lower, shown.band.upper, shown.truth) > 0.9
