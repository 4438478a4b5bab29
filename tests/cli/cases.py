"""A small table and a model of it, fitted once by the command line, for the tests of the commands."""

from __future__ import annotations

import atexit
import csv
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import vhat
from vhat.cli import app, saved_models

TARGET = "warmth"
NAMES = ["depth", "salt"]


def run(*arguments, **options):
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(each) for each in arguments], prog_name="vhat", **options)


def table(rows, seed=0):
    """A table with an identifier, two columns to learn from and a target."""
    rng = np.random.default_rng(seed)
    depth, salt = rng.uniform(0, 4, rows), rng.normal(35, 2, rows)
    warmth = 15 + 3 * np.cos(depth) - 0.4 * salt + 0.3 * rng.normal(size=rows)
    names = [f"00{row}" for row in range(rows)]  # text that must not become a number
    return pd.DataFrame({"name": names, "depth": depth, "salt": salt, TARGET: warmth})


def read(path):
    """Read a CSV file with Python's own, correctly rounded, floats; what is no number stays text."""
    with open(path, newline="") as file:
        names, *rows = csv.reader(file)
    return pd.DataFrame({name: _numbers(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def _numbers(column):
    try:
        return list(column) if column[0].startswith("00") else [float(value) for value in column]
    except ValueError:
        return list(column)


@functools.cache
def folder():
    """A directory that lasts as long as the tests."""
    made = Path(tempfile.mkdtemp(prefix="vhat-cli-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def data():
    """The table that is learned from, as a file."""
    file = folder() / "data.csv"
    table(60).to_csv(file, index=False)
    return file


@functools.cache
def fitted():
    """The result of ``vhat fit``, and the directory of its model."""
    model = folder() / "model"
    options = ("--target", TARGET, "--features", "depth,salt", "--hidden", "2", "--weight-decay", "0.01")
    done = run("fit", data(), *options, "--out", model, "--hold-out", "0.2", catch_exceptions=False)
    return done, model


def model():
    """The directory of the model."""
    return fitted()[1]


@functools.cache
def loaded():
    """The model itself, loaded once: what is compiled for it then serves every test."""
    return vhat.NetworkRegressor.load(model())


@pytest.fixture
def load_once(monkeypatch):
    """Let commands that ask for the model have the one that is loaded; other directories are read."""
    read_directory = saved_models.load
    monkeypatch.setattr(saved_models, "load", lambda place: loaded() if place == model() else read_directory(place))
