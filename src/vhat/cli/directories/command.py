"""``vhat predict`` of a directory of files."""

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
from vhat.cli.directories.engines import Engine, Work, computed
from vhat.cli.directories.frames import FramePredictor
from vhat.cli.directories.manifest import Results, open_results
from vhat.cli.directories.totals import joined
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
    """The files of a directory, by the name that messages have for it.

    Attributes:
        name: The directory, as it was given.
        partitions: Its files, by name.
    """

    name: str
    partitions: Sequence[Partition]

    def rows(self) -> int:
        """Count the rows of all files."""
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
    """Write the intervals of every file of a directory to a file of the same name in another.

    Args:
        model: The directory of the model.
        data: The directory of the files.
        asked: What is asked of every row; ``together`` is filled in here.
        simultaneous: Whether delta is for all rows of all files at once.
        keep: Columns to pass on, as they were typed.
        separator: What stands between the columns of CSV files.
        out: The directory of the results.
        engine: Who computes.
        scheduler: The address of a Dask scheduler.
        jobs: Processes at a time.
        force: Whether to give up results that do not agree with what is asked now.
        quiet: Whether to say nothing but errors.

    Raises:
        InputError: For what cannot be used.
        Interrupted: After Ctrl-C; what is finished is kept.
        typer.Exit: When rows have no interval.
    """
    from vhat.checks import check_delta
    from vhat.cli.predict import _remarks
    from vhat.store.reading import fingerprint

    check_delta(asked.delta)
    target = _check_options(data, out, engine, scheduler)
    directory = str(model.resolve())
    mark = fingerprint(directory)
    network = loaded_model(directory, mark)
    dataset = _Dataset(str(data), find_partitions(data, separator))
    kept = _check_columns(network, dataset, keep)
    asked = Asked(**vars(asked) | {"together": dataset.rows() if simultaneous else None})
    share = 1 if asked.together is None else max(1, asked.together * network.fitted_.problem.outputs)
    predict = FramePredictor(
        directory, asked.delta / share, asked.target, asked.bound, asked.noise, asked.observation_noise, kept, mark
    )
    said = {"vhat": vhat.__version__, "model": mark, **vars(asked), "keep": list(kept), "separator": separator}
    with silence(quiet), open_results(target, said, dataset.partitions, force=force) as results:
        before = len(results.finished)
        left = [each for each in dataset.partitions if each.name not in results.finished]
        _compute(Work(predict, left, str(target)), results, engine, jobs, scheduler, total=len(dataset.partitions))
        files = [results.finished[each.name] for each in dataset.partitions]
        tally = joined(files, together=simultaneous)
        if not tally.rows:
            raise InputError(f"the files of {data} have column names and no rows.")
        for kind, message in dict.fromkeys(each for file in files for each in file.warnings):
            warnings.warn(message, getattr(vhat.errors, kind, VhatWarning), stacklevel=2)
        note(f"{_told(len(files), tally.rows)} in {out}{f'; {before:,} were there already' if before else ''}.")
        table: Any = dataset  # of a table, the remarks need the name
        for sentence in _remarks(network, asked, tally, table):
            note(sentence)
        if doubt := warning(network.audited_, model, noise=asked.noise):
            note(doubt)
    if tally.failed:
        raise typer.Exit(CANNOT_ANSWER)


def _told(files: int, rows: int) -> str:
    return f"Intervals of {rows:,} rows of {files:,} {'file' if files == 1 else 'files'} are"


def _check_options(data: Path, out: Path | None, engine: Engine, scheduler: str | None) -> Path:
    """Return the directory of the results, an absolute path.

    Raises:
        InputError: When there is none, or it would be among the files that are read.
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
    """Look at the columns of every file before any work is done, and return those to keep.

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
    names = tuple(dict.fromkeys([] if keep is None else split(keep, columns)))
    stated = {key for each in dataset.partitions for key in each.keys}
    for name in names:
        if name in stated:
            raise InputError(f"--keep {name}: the names of the directories state it, and those of the result do too.")
        if name in RESULTS or any(name.startswith(f"{result}_") and name[-1].isdigit() for result in RESULTS):
            raise InputError(f"--keep {name}: the result has a column of that name. Rename it in the files first.")
    return names


def _compute(work: Work, results: Results, engine: Engine, jobs: int, scheduler: str | None, *, total: int) -> None:
    """Compute what is left, and record each file as it is finished.

    Raises:
        Interrupted: After Ctrl-C.
        InputError: When a file cannot be used, with how many are finished.
    """
    rows = sum(each.tally.rows for each in results.finished.values())
    finishing = computed(work, engine, jobs, scheduler)
    try:
        with bar("files", len(work.partitions)) as advance:
            for finished in finishing:
                results.add(finished)
                rows += finished.tally.rows
                advance(f"{rows:,} rows")
    except KeyboardInterrupt:
        raise Interrupted(f"{_so_far(results, total)}: the same command goes on with the others", None) from None
    except InputError as error:
        raise InputError(f"{error} {_so_far(results, total)}: the same command goes on.") from error
    finally:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C while processes are ended
            getattr(finishing, "close", lambda: None)()


def _so_far(results: Results, total: int) -> str:
    return f"{len(results.finished):,} of {total:,} files are finished and kept in {results.folder}"
