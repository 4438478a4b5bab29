"""The command ``vhat predict``: an interval for every row of a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vhat.cli.application import CANNOT_ANSWER, command
from vhat.cli.audit_warnings import warning
from vhat.cli.options import Data, Force, Model, Noise, Quiet, Separator, noise_level, split
from vhat.cli.terminal import console, note, on_terminal, silence
from vhat.errors import InputError
from vhat.level import level_text

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from vhat.cli.predict_stream import Asked, Tally
    from vhat.estimator import NetworkRegressor
    from vhat.tables.files import TableFile
    from vhat.tables.files.write import Form, Write

Target = Literal["mean", "observation"]
Bound = Literal["isoperimetric", "asymptotic", "tight", "chebyshev", "theorem", "sharp"]
_SHOWN = 20
"""Rows that are shown on a terminal; a file or a pipe gets all of them."""
_MOST_DECIMALS = 6
"""The most decimals in the table on a terminal; numbers that need more are shown with five significant digits."""


@command("vhat predict model new.csv --interval observation --out intervals.csv")
def predict(
    directory: Model,
    data: Data,
    delta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Probability of a miss: 0.05 asks for 95% confidence.")
    ] = 0.05,
    interval: Annotated[
        Target,
        typer.Option(
            metavar="mean|observation",
            help="For the mean of the prediction over the noise, by a bound; or for a new observation, calibrated.",
        ),
    ] = "mean",
    simultaneous: Annotated[
        bool, typer.Option("--simultaneous", help="One delta for all rows at once, by the union bound.")
    ] = False,
    bound: Annotated[
        Bound | None,
        typer.Option(
            metavar="NAME",
            help="A bound in place of calibration, or of isoperimetric for the mean: isoperimetric; asymptotic, the "
            "textbook's; tight, chebyshev; theorem, sharp, as published.",
        ),
    ] = None,
    noise: Noise = None,
    observation_noise: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Standard deviation of a new observation, if it is not the noise of the training rows.",
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Columns of the table to pass on, such as an identifier.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A .csv, .tsv, .parquet or .jsonl file; standard output by default."),
    ] = None,
    escape_formulas: Annotated[
        bool,
        typer.Option(
            "--escape-formulas",
            help="In CSV, put ' before kept text that a spreadsheet would run (it begins with =, +, - or @).",
        ),
    ] = False,
    engine: Annotated[
        Literal["local", "dask"] | None,
        typer.Option(metavar="local|dask", help="What computes the files of a directory; local by default."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a Dask cluster; by default one is started here.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, help="Number of files of a directory computed at a time, one process each."
        ),
    ] = None,
    separator: Separator = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a row.")] = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Compute an interval for every row of a table: center, lower, upper, standard_error, unsupported, status.

    Intervals of a new observation are calibrated: by the training rows, each left out in turn, or by the held-out rows
    of vhat calibrate. Columns are matched by name; others are ignored. Rows keep their order. A file of any size goes
    through in chunks. On a terminal the first rows are shown; a pipe or a file gets all of them. When rows have no
    interval (their status says why), the exit code is 3.

    DATA may be a directory of Parquet or CSV files: each goes to a Parquet file of its name in the directory --out, by
    --jobs processes or by a Dask cluster, and the same command goes on with a run that was stopped.
    """
    from vhat.cli import saved_models
    from vhat.cli.predict_stream import Asked, Tally, chunk_rows
    from vhat.tables.files import check_output, open_output, open_table

    if json and out is not None:
        raise InputError("--json prints to standard output; for a file, give --out a name that ends in .jsonl.")
    if Path(data).is_dir():
        from vhat.cli.directories.command import predict_directory

        predict_directory(
            directory,
            Path(data),
            Asked(delta, interval, bound, noise_level(noise), observation_noise),
            simultaneous=simultaneous,
            keep=keep,
            separator=separator,
            out=None if json else out,
            engine=engine or "local",
            scheduler=scheduler,
            jobs=jobs or 1,
            force=force,
            quiet=quiet,
        )
        return
    if engine or scheduler or jobs:
        raise InputError(f"--engine, --scheduler and --jobs are for directories of files, and {data} is not one.")
    form: Form
    if json:
        form = "jsonl"
    elif out is None:
        form = "csv"
    else:
        form = check_output(out, force=force)
    table = open_table(data, separator)
    if simultaneous and not table.rereadable:
        raise InputError(
            "--simultaneous shares delta among the rows, and how many there are must be known before the first; "
            f"{table.name} can be read only once. Give a file."
        )
    kept = _kept_columns(table, keep)
    level = noise_level(noise)
    network = saved_models.load(directory)
    columns = saved_models.input_columns(network, table)
    tally = Tally()
    with silence(quiet):
        # The progress bar is worth a pass over a file, but counting must not use up the rows of a pipe.
        bar_shown = out is not None and sys.stderr.isatty() and table.rereadable
        rows = table.count() if simultaneous or bar_shown else None
        chunks = ceil(rows / chunk_rows(network)) if rows else 0
        asked = Asked(delta, interval, bound, level, observation_noise, rows if simultaneous else None)
        work = _Work(network, table, columns, kept, asked, tally, chunks)
        if out is None and not json and on_terminal():
            preview = Preview()
            work.write_to(preview)
            console().print(preview.table(f"{level_text(delta)} intervals for {_COVERED[interval]}", tally.rows))
        else:
            types = {name: table.types.get(name) for name in kept}
            with open_output(out, form, force=force, types=types, escape_formulas=escape_formulas) as write:
                work.write_to(write)
        for sentence in _remarks(network, asked, tally, table):
            note(sentence)
        if doubt := warning(network.audited_, directory, noise=level):
            note(doubt)
    if tally.failed:
        raise typer.Exit(CANNOT_ANSWER)


_COVERED = {"mean": "the mean of the prediction", "observation": "a new observation"}
"""What the intervals of each ``--interval`` are for."""


@dataclass(frozen=True)
class _Work:
    """A table, a model, and the interval that is asked of every row.

    Attributes:
        network: The model.
        table: The table.
        columns: The columns that the model takes, in its order.
        kept: The columns to pass on.
        asked: The interval that is asked of every row.
        tally: Counts over the rows.
        chunks: Number of chunks, for the progress bar; 0 if it is not known.
    """

    network: NetworkRegressor
    table: TableFile
    columns: Sequence[str]
    kept: Sequence[str]
    asked: Asked
    tally: Tally
    chunks: int

    def write_to(self, write: Write) -> None:
        """Write the kept columns and the interval of every row."""
        from vhat.cli.predict_stream import intervals, result_columns
        from vhat.progress import bar

        with bar("chunks of rows", self.chunks) as advance:
            for chunk, band in intervals(self.network, self.table, self.columns, self.kept, self.asked, self.tally):
                write({name: chunk.columns[name] for name in self.kept} | result_columns(band))
                advance(f"{self.tally.rows:,} rows")


def _kept_columns(table: TableFile, keep: str | None) -> list[str]:
    """Return the columns that ``--keep`` names.

    Raises:
        InputError: For columns that the table does not have, and for names of columns of the result.
    """
    from vhat.cli.predict_stream import RESULTS
    from vhat.tables.files import require_columns

    names = [] if keep is None else split(keep, table.columns)
    require_columns(table, names, "which --keep asks for")
    # With several outputs the columns of the result are numbered.
    taken = [name for name in names if re.fullmatch(rf"({'|'.join(RESULTS)})(_\d+)?", name)]
    if taken:
        raise InputError(f"--keep {taken[0]}: the result has a column of that name. Rename it in {table.name} first.")
    return list(dict.fromkeys(names))


def _remarks(network: NetworkRegressor, asked: Asked, tally: Tally, table: TableFile) -> list[str]:
    """Return the guarantee and the caveats for standard error, one sentence each."""
    from vhat.cli.predict_stream import MOVED
    from vhat.estimator.columns import FAR

    remarks = []
    if asked.together is not None and tally.chunks > 1:
        remarks.append(
            f"All {tally.rows:,} rows at once at {level_text(asked.delta)}, by the union bound, which gives each row "
            f"delta = {asked.delta / asked.together:.3g}. What follows is said of one row with its share."
        )
    remarks.append(tally.guarantee)
    if tally.unsupported and tally.chunks > 1:
        remarks.append(
            f"The training data hardly speak for {tally.unsupported:,} of {tally.rows:,} rows (unsupported above 0.5): "
            "their error is bias, which the interval does not hold."
        )
    if tally.moved:
        remarks += [*tally.moved_warnings(table), f"The status of such rows is {MOVED!r}."]
    if tally.far:
        remarks += [*tally.far_warnings(table), f"The status of such rows is {FAR!r}."]
    if network.columns_ is not None:
        remarks += tally.filled.warnings(network.columns_, table.name, tally.rows)
    for status, count in tally.failed.items():
        remarks.append(f"warning: {count:,} of {tally.rows:,} rows have no interval; their status is {status!r}.")
    return remarks


@dataclass
class Preview:
    """The first rows of a result, for a terminal.

    Attributes:
        columns: The columns of the result, at most :data:`_SHOWN` rows.
    """

    columns: dict[str, list[Any]] = field(default_factory=dict)

    def __call__(self, columns: Mapping[str, np.ndarray]) -> None:
        """Add rows until there are enough."""
        for name, values in columns.items():
            have = self.columns.setdefault(name, [])
            have.extend(values[: _SHOWN - len(have)].tolist())

    def table(self, title: str, rows: int) -> Table:
        """Return the rows as a table for the terminal.

        Args:
            title: The title.
            rows: Number of rows of the whole result.
        """
        from rich import box
        from rich.table import Table

        shown = len(next(iter(self.columns.values())))
        more = None if rows == shown else f"{rows - shown:,} more rows; --out FILE writes all of them."
        table = Table(
            title=title,
            title_justify="left",
            caption=more,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
        )
        decimals = _decimals(self.columns.get("standard_error", []))
        for name, values in self.columns.items():
            numeric = isinstance(values[0], float)
            table.add_column(name.replace("_", " "), justify="right" if numeric else "left", no_wrap=numeric)
        for row in zip(*self.columns.values(), strict=True):
            table.add_row(*(_cell(name, value, decimals) for name, value in zip(self.columns, row, strict=True)))
        return table


def _decimals(errors: Sequence[float]) -> int | None:
    """Return the number of decimals that shows two digits of the median standard error; None if it is too large."""
    positive = sorted(error for error in errors if error > 0)
    if not positive:
        return None
    median = positive[len(positive) // 2]
    decimals = max(0, 1 - floor(log10(median)))
    if decimals > _MOST_DECIMALS:
        return None
    return decimals


def _cell(name: str, value: Any, decimals: int | None) -> str:
    """Return a cell of the table for the terminal.

    Args:
        name: The column.
        value: The value.
        decimals: Decimals of a number; None for five significant digits.
    """
    from rich.markup import escape

    if value is None:
        return ""
    if not isinstance(value, float):
        return escape(str(value))
    if name == "unsupported":
        from vhat.variance.weighted_norm import shown_share

        return f"{float(shown_share(value)):.0%}"
    if decimals is None:
        return f"{value:.5g}"
    return f"{value:,.{decimals}f}"
