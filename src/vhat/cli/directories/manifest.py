"""The record of a directory of results: what was asked, and which files are finished.

``_vhat_predict.jsonl`` has one JSON document a line: first what was asked, by which model, then one line a finished
file, added once its intervals are in their place. A process that is killed leaves at most half a line at the end, which
counts for nothing. Readers of Parquet pass over names that begin with ``_``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vhat.atomic_files import replacing
from vhat.cli.directories.dataset import Partition
from vhat.cli.directories.partition import Finished
from vhat.errors import InputError

__all__ = ["Results", "open_results"]

_RECORD = "_vhat_predict.jsonl"
_LOCK = "_vhat_predict.lock"
_FORMAT = 1
_AGAIN = "Give another --out, or --force to compute again what does not agree."


@dataclass
class Results:
    """A directory of results that this process may write to.

    Attributes:
        folder: The directory.
        asked: What is asked, and of which model, as JSON can hold it.
        finished: The files that are finished, by name.
    """

    folder: Path
    asked: Mapping[str, Any]
    finished: dict[str, Finished] = field(default_factory=dict)

    def add(self, finished: Finished) -> None:
        """Record a finished file, on the disk."""
        self.finished[finished.name] = finished
        with (self.folder / _RECORD).open("a", encoding="utf-8") as file:
            file.write(json.dumps(finished.record()) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write(self) -> None:
        """Write the whole record, finished files in the order of their names, in place of the one that is there."""
        with replacing(self.folder / _RECORD) as file:
            lines = [self.asked, *(self.finished[name].record() for name in sorted(self.finished))]
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())


@contextmanager
def open_results(
    folder: Path, asked: Mapping[str, Any], partitions: Sequence[Partition], *, force: bool
) -> Iterator[Results]:
    """Yield the directory of results with the finished files that agree with what is asked now.

    Args:
        folder: A new or empty directory, or one of an earlier run.
        asked: What is asked, and of which model.
        partitions: The files that there are.
        force: Whether to give up results that do not agree.

    Raises:
        InputError: When the directory holds something else, results that do not agree, or another process is at it.
    """
    _make(folder)
    with _locked(folder):
        results = Results(folder, {"format": "vhat predict", "format_version": _FORMAT, **asked})
        found = _read(folder / _RECORD)
        if found is None:
            _refuse_foreign(folder)
        else:
            before, finished = found
            _remove_temporary(folder)
            results.finished = _agreeing(results, before, finished, partitions, force=force)
        results.write()
        try:
            yield results
        finally:
            _remove_temporary(folder)
            with suppress(OSError):  # an error of the run itself must not be hidden by one of its record
                results.write()


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; intervals of a directory are written to a directory.")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}. Give another directory.") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing here; the lock goes with the process, however it ends."""
    path = folder / _LOCK
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"another vhat predict is writing to {folder} at this moment. Wait for it.") from None
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written: {error.strerror}. Give another directory.") from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


def _refuse_foreign(folder: Path) -> None:
    others = sorted(each.name for each in folder.iterdir() if each.name != _LOCK)
    if others:
        raise InputError(
            f"--out {folder} is not empty (it holds {others[0]}), and vhat predict has not written it. Give a new "
            "directory."
        )


def _read(path: Path) -> tuple[dict[str, Any], list[Finished]] | None:
    """Return what was asked and what is finished; None where there is no record, or nothing but half a first line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}. Give another --out.") from None
    if not lines:
        return {}, []
    try:
        first, *rest = [json.loads(line) for line in lines]
        version = first["format_version"]
        if version > _FORMAT:
            raise InputError(f"{path} was written by a newer vhat. Update vhat, or give another --out.")
        return first, [Finished.of_record(record) for record in rest]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({error}). Give another --out.") from None


def _remove_temporary(folder: Path) -> None:
    """Remove what killed workers have left; a task that still runs somewhere, for nobody, fails when it is done."""
    for path in folder.rglob(".vhat-*.part"):
        with suppress(OSError):
            path.unlink()


def _agreeing(
    results: Results,
    before: Mapping[str, Any],
    finished: list[Finished],
    partitions: Sequence[Partition],
    *,
    force: bool,
) -> dict[str, Finished]:
    """Return the finished files that are as a run from the beginning would make them.

    Raises:
        InputError: Where something does not agree, without ``force``.
    """
    current = {each.name: each for each in partitions}
    differing = [key for key in results.asked if before.get(key) != results.asked[key]]
    changed = [each.name for each in finished if each.name in current and not _is_of(each, current[each.name])]
    gone = [each.name for each in finished if each.name not in current]
    if not force:
        _refuse(results, before, differing if finished else [], changed, gone)
    for name in gone:
        with suppress(OSError):
            (results.folder / Partition("", name, 0, 0).output).unlink()
    if differing:
        return {}
    kept = [each for each in finished if each.name in current and each.name not in changed]
    return {each.name: each for each in kept if _is_there(results.folder / current[each.name].output, each)}


def _is_of(finished: Finished, partition: Partition) -> bool:
    return (finished.size, finished.modified) == (partition.size, partition.modified)


def _is_there(path: Path, finished: Finished) -> bool:
    try:
        return path.stat().st_size == finished.written
    except OSError:
        return False


def _refuse(
    results: Results, before: Mapping[str, Any], differing: list[str], changed: list[str], gone: list[str]
) -> None:
    folder = results.folder
    if "model" in differing:
        raise InputError(
            f"--out {folder} holds intervals of another model, or of this one before it was saved anew. {_AGAIN}"
        )
    if differing:
        said = "; ".join(f"{key} {before.get(key)} there, {results.asked[key]} here" for key in differing)
        raise InputError(f"--out {folder} holds intervals for another request: {said}. {_AGAIN}")
    if changed:
        raise InputError(
            f"{_files(changed)} changed since the intervals in --out {folder} were computed (first {changed[0]}). "
            f"{_AGAIN}"
        )
    if gone:
        raise InputError(
            f"--out {folder} holds intervals of {len(gone):,} input file{'s' * (len(gone) > 1)} not there any more "
            f"(first {gone[0]}). Give another --out, or --force to remove them."
        )


def _files(names: list[str]) -> str:
    return "1 input file was" if len(names) == 1 else f"{len(names):,} input files were"
