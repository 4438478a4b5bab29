"""The record of a directory of results: the request, and the finished files.

``_vhat_predict.jsonl`` has one JSON document per line. The first line is the request: the options and the model. Each
further line is a finished file, appended after its intervals have been written. A killed process leaves at most an
incomplete last line, which is ignored. Readers of Parquet skip names that begin with ``_``.
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
"""Version of the format of the record."""
_REMEDY = "Give another --out, or --force to compute again what does not agree."


@dataclass
class Results:
    """A directory of results that this process may write to.

    Attributes:
        folder: The directory.
        request: The options and the model, in a form that JSON can hold.
        finished: The finished files, by name.
    """

    folder: Path
    request: Mapping[str, Any]
    finished: dict[str, Finished] = field(default_factory=dict)

    def add(self, finished: Finished) -> None:
        """Append a finished file to the record, and flush it to the disk."""
        self.finished[finished.name] = finished
        with (self.folder / _RECORD).open("a", encoding="utf-8") as file:
            file.write(json.dumps(finished.record()) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write(self) -> None:
        """Replace the record by a new one, with the finished files sorted by name."""
        with replacing(self.folder / _RECORD) as file:
            lines = [self.request, *(self.finished[name].record() for name in sorted(self.finished))]
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())


@contextmanager
def open_results(
    folder: Path, request: Mapping[str, Any], partitions: Sequence[Partition], *, force: bool
) -> Iterator[Results]:
    """Yield the directory of results, with the finished files of an earlier run that agree with the request.

    Args:
        folder: A new or empty directory, or one of an earlier run.
        request: The options and the model.
        partitions: The input files.
        force: Whether to discard results that do not agree.

    Raises:
        InputError: If the directory holds something else or results that do not agree, or another process uses it.
    """
    _make_directory(folder)
    with _locked(folder):
        results = Results(folder, {"format": "vhat predict", "format_version": _FORMAT, **request})
        record = _read(folder / _RECORD)
        if record is None:
            _check_empty(folder)
        else:
            earlier_request, finished = record
            _remove_temporary(folder)
            results.finished = _reusable(results, earlier_request, finished, partitions, force=force)
        results.write()
        try:
            yield results
        finally:
            _remove_temporary(folder)
            with suppress(OSError):  # an error here must not hide the error of the run itself
                results.write()


def _make_directory(folder: Path) -> None:
    """Create the directory of the results where there is none."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file; intervals of a directory are written to a directory.")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made: {error.strerror}. Give another directory.") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing here. The operating system releases the lock of a killed process."""
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


def _check_empty(folder: Path) -> None:
    """Refuse a directory that holds anything: it has no record, so that vhat has not written it."""
    others = sorted(each.name for each in folder.iterdir() if each.name != _LOCK)
    if others:
        raise InputError(
            f"--out {folder} is not empty (it holds {others[0]}), and vhat predict has not written it. Give a new "
            "directory."
        )


def _read(path: Path) -> tuple[dict[str, Any], list[Finished]] | None:
    """Return the request and the finished files of a record; None if there is no record.

    The request is empty if the process was killed before the first line was complete.
    """
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
    """Remove temporary files of killed workers. A worker that still runs on another machine then fails at its end."""
    for path in folder.rglob(".vhat-*.part"):
        with suppress(OSError):
            path.unlink()


def _reusable(
    results: Results,
    earlier_request: Mapping[str, Any],
    finished: list[Finished],
    partitions: Sequence[Partition],
    *,
    force: bool,
) -> dict[str, Finished]:
    """Return the finished files of an earlier run that a new run would write again without a difference.

    Args:
        results: The directory, with the current request.
        earlier_request: The request of the earlier run.
        finished: The files that the earlier run finished.
        partitions: The input files.
        force: Whether to discard results that do not agree.

    Raises:
        InputError: If results do not agree and ``force`` is not given.
    """
    current = {each.name: each for each in partitions}
    differing = [key for key in results.request if earlier_request.get(key) != results.request[key]]
    changed = []
    gone = []
    for each in finished:
        if each.name not in current:
            gone.append(each.name)
        elif not _is_of(each, current[each.name]):
            changed.append(each.name)
    if not force:
        if finished and differing:
            _refuse_other_request(results, earlier_request, differing)
        _refuse_other_inputs(results, changed, gone)
    for name in gone:
        with suppress(OSError):
            (results.folder / Partition("", name, 0, 0).output).unlink()
    if differing:
        return {}
    reusable = {}
    for each in finished:
        if each.name in gone or each.name in changed:
            continue
        if _is_written(results.folder / current[each.name].output, each):
            reusable[each.name] = each
    return reusable


def _is_of(finished: Finished, partition: Partition) -> bool:
    """Return whether an input file is still the one that was read."""
    return (finished.size, finished.modified) == (partition.size, partition.modified)


def _is_written(path: Path, finished: Finished) -> bool:
    """Return whether the file of the intervals exists, with the recorded size."""
    try:
        return path.stat().st_size == finished.written
    except OSError:
        return False


def _refuse_other_request(results: Results, earlier_request: Mapping[str, Any], differing: list[str]) -> None:
    """Raise an InputError that names the options in which an earlier request differs from the current one."""
    folder = results.folder
    if "model" in differing:
        raise InputError(
            f"--out {folder} holds intervals of another model, or of this one before it was saved anew. {_REMEDY}"
        )
    pairs = [f"{key} {earlier_request.get(key)} there, {results.request[key]} here" for key in differing]
    raise InputError(f"--out {folder} holds intervals for another request: {'; '.join(pairs)}. {_REMEDY}")


def _refuse_other_inputs(results: Results, changed: list[str], gone: list[str]) -> None:
    """Raise an InputError if input files have changed or do not exist any more."""
    folder = results.folder
    if changed:
        raise InputError(
            f"{_files(changed)} changed since the intervals in --out {folder} were computed (first {changed[0]}). "
            f"{_REMEDY}"
        )
    if gone:
        raise InputError(
            f"--out {folder} holds intervals of {len(gone):,} input file{'s' * (len(gone) > 1)} not there any more "
            f"(first {gone[0]}). Give another --out, or --force to remove them."
        )


def _files(names: list[str]) -> str:
    return "1 input file was" if len(names) == 1 else f"{len(names):,} input files were"
