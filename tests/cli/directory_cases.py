"""Directories of files for the tests of predictions over them."""

from __future__ import annotations

import numpy as np

from tests.cli.cases import TARGET, model, run, table

RECORD = "_vhat_predict.jsonl"


def new_rows():
    """Rows to predict, with identifiers that a float cannot hold, some where the training data hardly speak."""
    frame = table(90, seed=3).drop(columns=TARGET)
    frame["id"] = np.arange(90) + 2**60
    frame.loc[::7, "depth"] += 40.0
    return frame


def in_parts(folder):
    """Three Parquet files of these rows, one of them without any, in directories that state a column."""
    rows = new_rows()
    for name, part in (("y=1/a", rows[:50]), ("y=1/b", rows[:0]), ("y=2/a", rows[50:])):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.to_parquet(path, index=False)
    (folder / "_SUCCESS").touch()
    return folder


def written(folder):
    """The bytes of all files of a result, its record among them."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def predict(*arguments, code=0):
    """Run the command, and return what it says on standard error."""
    done = run("predict", model(), *arguments)
    assert done.exit_code == code, done.output
    return " ".join(done.stderr.split())
