"""The command ``vhat predict`` for a directory of files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import vhat.errors
from vhat.cli.application import CANNOT_ANSWER
from vhat.cli.audit_warnings import warning
from vhat.cli.directories.dataset import Partition, find_partitions, open_partition
from vhat.cli.directories.engines import Engine, Work, compute
from vhat.cli.directories.frames import FramePredictor
from vhat.cli.directories.manifest import Results, open_results
from vhat.cli.directories.totals import joined_tally
from vhat.cli.directories.worker_models import loaded_model
from vhat.cli.options import split
from vhat.cli.predict_stream import RESULTS, Asked
from vhat.cli.terminal import note, silence
from vhat.errors import InputError, Interrupted, VhatWarning
from vhat.progress import bar

if TYPE_CHECKING:
    from vhat.estimator import NetworkRegressor

__all__ = ["predict_directory"]


@dataclass(frozen=True)
class _Dataset:
    """The files of a directory.

    Attributes:
        name: The directory as the user gave it, for messages.
        partitions: Its files, sorted by name.
    """

    name: str
    partitions: Sequence[Partition]

    def rows(self) -> int:
        """Return the number of rows of all files."""
        return sum(open_partition(each).count() for each in self.partitions)


def predict_directory(
    model: Path,
    data: Path,
    asked: Asked,
    *,
    simultaneous: bool,
    keep: str | None,
    separator: str | None,
    out: Path | None,
    engine: Engine,
    scheduler: str | None,
    jobs: int,
    force: bool,
    quiet: bool,
) -> None:
    """Write the intervals of every file of a directory to a file of the same name in another directory.

    Args:
        model: The directory of the model.
        data: The directory of the files.
        asked: The options of the intervals; ``together`` is filled in here.
        simultaneous: Whether delta is shared by all rows of all files.
        keep: The option ``--keep``: columns to pass on.
        separator: The character between the columns of CSV files.
        out: The directory of the results.
        engine: ``"local"`` or ``"dask"``.
        scheduler: The address of a Dask scheduler.
        jobs: The number of processes.
        force: Whether to discard earlier results that do not agree with the current options.
        quiet: Whether to print errors only.

    Raises:
        InputError: For files and options that cannot be used.
        Interrupted: After Ctrl-C. Finished files are kept.
        typer.Exit: If rows have no interval.
    """
    from vhat.checks import check_delta
    from vhat.cli.predict import _remarks
    from vhat.store.reading import fingerprint

    check_delta(asked.delta)
    target = _check_options(data, out, engine, scheduler)
    directory = str(model.resolve())
    checksum = fingerprint(directory)
    network = loaded_model(directory, checksum)
    dataset = _Dataset(str(data), find_partitions(data, separator))
    kept = _check_columns(network, dataset, keep)
    asked = Asked(**vars(asked) | {"together": dataset.rows() if simultaneous else None})
    # The union bound over all rows and outputs divides delta between them.
    intervals = 1 if asked.together is None else max(1, asked.together * network.fitted_.problem.outputs)
    predict = FramePredictor(
        directory,
        asked.delta / intervals,
        asked.target,
        asked.bound,
        asked.noise,
        asked.observation_noise,
        kept,
        checksum,
    )
    request = {"vhat": vhat.__version__, "model": checksum, **vars(asked), "keep": list(kept), "separator": separator}
    with silence(quiet), open_results(target, request, dataset.partitions, force=force) as results:
        finished_before = len(results.finished)
        remaining = [each for each in dataset.partitions if each.name not in results.finished]
        work = Work(predict, remaining, str(target))
        _compute(work, results, engine, jobs, scheduler, total=len(dataset.partitions))
        files = [results.finished[each.name] for each in dataset.partitions]
        tally = joined_tally(files, together=simultaneous)
        if not tally.rows:
            raise InputError(f"the files of {data} have column names and no rows.")
        for kind, message in dict.fromkeys(each for file in files for each in file.warnings):
            warnings.warn(message, getattr(vhat.errors, kind, VhatWarning), stacklevel=2)
        note(_summary(len(files), tally.rows, out, finished_before))
        table: Any = dataset  # the remarks use nothing but the name of a table
        for text in [*_remarks(network, asked, tally, table), warning(network.audited_, model, noise=asked.noise)]:
            if text:
                note(text)
    if tally.failed:
        raise typer.Exit(CANNOT_ANSWER)


def _summary(files: int, rows: int, out: Path | None, finished_before: int) -> str:
    """Return a sentence on the finished run."""
    noun = "file" if files == 1 else "files"
    text = f"Intervals of {rows:,} rows of {files:,} {noun} are in {out}"
    if finished_before:
        text += f"; {finished_before:,} were there already"
    return f"{text}."


def _check_options(data: Path, out: Path | None, engine: Engine, scheduler: str | None) -> Path:
    """Return the directory of the results, an absolute path.

    Raises:
        InputError: If there is none, or if it lies within the directory of the files or the other way round.
    """
    if out is None:
        raise InputError(f"{data} is a directory: give --out a directory for the files of its intervals.")
    if scheduler is not None and engine != "dask":
        raise InputError(f"--scheduler {scheduler} has no use without --engine dask.")
    target = out.resolve()
    source = data.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise InputError(f"--out {out} and {data} lie within each other. Give a directory beside it.")
    return target


def _check_columns(network: NetworkRegressor, dataset: _Dataset, keep: str | None) -> tuple[str, ...]:
    """Check the columns of every file before anything is computed, and return the columns to keep.

    Raises:
        InputError: For a file that cannot be read or lacks columns, and for columns that differ between files.
    """
    first: Any = None
    kept: tuple[str, ...] = ()
    for partition in dataset.partitions:
        table = open_partition(partition)
        if first is None:
            first = table
            kept = _kept(dataset, keep, table.columns)
        FramePredictor("", keep=kept).columns_of(network, table)
        if not hasattr(network, "feature_names_in_") and table.columns != first.columns:
            raise InputError(
                f"{table.name} has the columns {', '.join(table.columns)} and {first.name} has "
                f"{', '.join(first.columns)}: the model knows columns by their order, which must be the "
                "same in all files."
            )
        for name in kept:
            if table.types.get(name) != first.types.get(name):
                raise InputError(
                    f"--keep {name}: the column is {_type(table, name)} in {table.name} and {_type(first, name)} in "
                    f"{first.name}. Give it one type in all files."
                )
    return kept


def _type(table: Any, name: str) -> str:
    return str(table.types.get(name, "text"))


def _kept(dataset: _Dataset, keep: str | None, columns: Sequence[str]) -> tuple[str, ...]:
    """Read ``--keep``, and refuse names that are columns of the result already."""
    names = tuple(dict.fromkeys([] if keep is None else split(keep, columns)))
    in_directory_names = {key for each in dataset.partitions for key in each.keys}
    for name in names:
        if name in in_directory_names:
            raise InputError(f"--keep {name}: it is part of the directory names, which the result repeats.")
        numbered = any(name.startswith(f"{result}_") and name[-1].isdigit() for result in RESULTS)
        if name in RESULTS or numbered:
            raise InputError(f"--keep {name}: the result has a column of that name. Rename it in the files first.")
    return names


def _compute(work: Work, results: Results, engine: Engine, jobs: int, scheduler: str | None, *, total: int) -> None:
    """Compute the remaining files, and record each file when it is finished.

    Raises:
        Interrupted: After Ctrl-C.
        InputError: If a file cannot be used, with the number of finished files.
    """
    rows = sum(each.tally.rows for each in results.finished.values())
    finishing = compute(work, engine, jobs, scheduler)
    try:
        with bar("files", len(work.partitions)) as advance:
            for finished in finishing:
                results.add(finished)
                rows += finished.tally.rows
                advance(f"{rows:,} rows")
    except KeyboardInterrupt:
        raise Interrupted(f"{_progress(results, total)}: the same command continues with the others", None) from None
    except InputError as error:
        raise InputError(f"{error} {_progress(results, total)}: the same command continues with the others.") from error
    finally:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C while processes are being ended
            getattr(finishing, "close", lambda: None)()


def _progress(results: Results, total: int) -> str:
    """Return a clause on how many files are finished."""
    return f"{len(results.finished):,} of {total:,} files are finished and kept in {results.folder}"
