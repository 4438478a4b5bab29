import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import vhat
from vhat import demo
from vhat.cli import app
from vhat.errors import InputError

runner = CliRunner()


def test_version_is_the_installed_one():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"vhat {version('vhat')}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_and_version_import_neither_jax_nor_torch(arguments):
    code = (
        "import sys\n"
        "from vhat.cli import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as leave: assert not leave.code\n"
        "assert not {'jax', 'torch', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "vhat" in done.stdout or "demo" in done.stdout


def test_library_errors_are_one_sentence_and_exit_code_2(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise InputError("the data are empty.")

    monkeypatch.setattr(demo, "run", refuse)
    result = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr == "vhat: the data are empty.\n"
    assert "Traceback" not in result.output


def test_debug_lets_the_error_through(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise InputError("the data are empty.")

    monkeypatch.setattr(demo, "run", refuse)
    result = runner.invoke(app, ["--debug", "demo", "--out", str(tmp_path)])
    assert isinstance(result.exception, InputError)


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
