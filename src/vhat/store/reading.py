"""Read a saved directory. Sizes, types and checksums are checked before the content is used.

Every fault of the files is a :class:`vhat.StoreError`. If an unforeseen error of another type shows that a document is
malformed, the StoreError keeps it as its cause, so that a bug of this library can still be recognised.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from vhat.errors import StoreError, VhatError
from vhat.store.document import Document, join

__all__ = [
    "ARRAYS",
    "FORMAT",
    "MANIFEST",
    "MOST_MANIFEST",
    "POINTER",
    "VERSION",
    "as_folder",
    "explain_os_errors",
    "fingerprint",
    "kind_of",
    "own_version",
    "parse",
    "read",
    "read_pointer",
    "read_regular",
    "retry_while_open",
    "well_formed",
]

FORMAT = 1
"""Version of the file format: the one that is written, and the newest that can be read."""
POINTER = "vhat.json"
MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"
VERSION = re.compile(r"v\d{4,12}")
"""Pattern of the directory name of a version."""
MOST_POINTER = 1 << 16
"""Largest pointer that is read, in bytes. A pointer has about 150."""
MOST_MANIFEST = 1 << 29
"""Largest manifest, in bytes: enough for the names of ten million rows. Numbers are in the file of arrays."""
_ATTEMPTS = 5
"""Attempts at reading a model that other processes keep replacing."""
_WINDOWS = os.name == "nt"
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds between attempts at a file that another process has open, on Windows. A pointer is read in a millisecond."""
_RESTORE = "Restore the directory from a copy, or save the model again to a new one."

T = TypeVar("T")


def read(directory: str | os.PathLike[str], kind: str) -> Document:
    """Check the document that :func:`vhat.store.write` saved, and return it.

    Raises:
        StoreError: If there is none, or it is of another kind, of a newer format, truncated, changed or malformed.
    """
    folder = as_folder(directory)
    return _read_current(folder, lambda pointer: _read_version(folder, pointer, kind))


def kind_of(directory: str | os.PathLike[str]) -> str:
    """Return the kind of document in a saved directory, such as ``"fitted model"``.

    Raises:
        StoreError: If there is no such directory, or its manifest cannot be read.
    """
    folder = as_folder(directory)
    manifest = _read_current(folder, lambda pointer: _read_manifest(folder / pointer["current"] / MANIFEST, pointer))
    return str(manifest["kind"])


def fingerprint(directory: str | os.PathLike[str]) -> str:
    """Return the checksum that the pointer of a directory states. Every save has a checksum of its own.

    Raises:
        StoreError: If there is no such directory.
    """
    return str(read_pointer(as_folder(directory))["manifest_sha256"])


def _read_current(folder: Path, reader: Callable[[dict[str, Any]], T]) -> T:
    """Call a reader with the pointer, and again with the new pointer if another process has saved in the meantime."""
    for attempt in range(_ATTEMPTS):
        pointer = read_pointer(folder)
        try:
            with well_formed(folder), explain_os_errors(f"reading {folder} failed"):
                return reader(pointer)
        except StoreError:  # another process may have saved in the meantime, and removed this version
            if attempt == _ATTEMPTS - 1 or read_pointer(folder) == pointer:
                raise
    raise AssertionError("unreachable")


def as_folder(directory: Any) -> Path:
    """Return the path of a directory that the user gave.

    Raises:
        StoreError: If it is not a path, or not one that a file system accepts.
    """
    if not isinstance(directory, str | os.PathLike) or isinstance(os.fspath(directory), bytes):
        raise StoreError(f"{directory!r} is not the name of a directory. Give a path, such as 'model'.")
    if "\0" in os.fspath(directory):
        raise StoreError(f"{os.fspath(directory)!r} has a null character, which no file name can have.")
    return Path(directory)


@contextmanager
def well_formed(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an error that a malformed document causes into a StoreError, with that error as its cause.

    Errors of vhat pass unchanged, because their messages are specific. So do interrupts.
    """
    try:
        yield
    except VhatError:
        raise
    except MemoryError as error:
        raise StoreError(f"the memory does not suffice to read {folder}. {_RESTORE}") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{folder} does not hold a model as vhat describes it ({type(error).__name__}: {reason}), or the code "
            f"given with it fails. {_RESTORE}"
        ) from error


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    A pipe or a device would block, and a huge file would fill the memory.

    Raises:
        StoreError: If it is not a regular file, or larger.
        OSError: If it cannot be read.
    """
    _check_regular(path, most)
    return path.read_bytes()


def _check_regular(path: Path, most: int | None = None) -> int:
    """Check that a path is a regular file of at most ``most`` bytes, and return its size in bytes."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file. {_RESTORE}")
    if most is not None and found.st_size > most:
        raise StoreError(f"{path} has {found.st_size:,} bytes, and vhat writes no such file above {most:,}. {_RESTORE}")
    return found.st_size


def parse(text: bytes, path: Path) -> Any:
    """Parse a JSON document.

    Raises:
        StoreError: If the text is not JSON.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise StoreError(f"{path} is damaged: its brackets are nested too deeply. {_RESTORE}") from error
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}). {_RESTORE}") from error


def read_pointer(folder: Path) -> dict[str, Any]:
    """Read and check the pointer of a saved directory.

    Raises:
        StoreError: If there is none, or it is damaged or of a newer format.
    """
    path = folder / POINTER
    try:
        pointer = parse(retry_while_open(lambda: read_regular(path, MOST_POINTER)), path)
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():  # Windows raises FileNotFoundError here, other systems NotADirectoryError
            raise StoreError(f"{folder} is a file; give the directory that the model was saved to.") from None
        missing = "there is no such directory" if not folder.exists() else f"it has no {POINTER}"
        raise StoreError(f"{folder} holds no model saved by vhat: {missing}.") from None
    except OSError as error:
        raise StoreError(f"reading {path} failed: {error.strerror}.") from error
    if not isinstance(pointer, dict) or pointer.get("format") != "vhat":
        raise StoreError(f"{path} was not written by vhat. Give the directory that a model was saved to.")
    version = pointer.get("format_version")
    if isinstance(version, int) and version > FORMAT:
        raise StoreError(
            f"{folder} was saved in format {version}, and vhat {own_version()} knows format {FORMAT}. Update vhat."
        )
    current = pointer.get("current")
    checksum = pointer.get("manifest_sha256")
    if version != FORMAT or not isinstance(checksum, str) or not VERSION.fullmatch(str(current)):
        raise StoreError(f"{path} is damaged: it does not name a version. {_RESTORE}")
    return pointer


def _read_version(folder: Path, pointer: dict[str, Any], kind: str) -> Document:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    version = folder / pointer["current"]
    manifest = _read_manifest(version / MANIFEST, pointer)
    if manifest["kind"] != kind:
        raise StoreError(f"{folder} holds a {manifest['kind']}, not a {kind}. {_load_call(folder, manifest['kind'])}")
    _check_arrays(version / ARRAYS, manifest["arrays"])
    try:
        document: Document = join(manifest["document"], load_file(version / ARRAYS))
    except SafetensorError as error:
        raise StoreError(f"{version / ARRAYS} cannot be read: {error}. {_RESTORE}") from error
    return document


def _load_call(folder: Path, kind: str) -> str:
    """Return the call that loads a document of this kind, as a sentence."""
    if kind == "NetworkRegressor":
        return f"Use vhat.NetworkRegressor.load({str(folder)!r})."
    return f"Use vhat.load({str(folder)!r}), with model= where it is your own code."


def _read_manifest(path: Path, pointer: dict[str, Any]) -> dict[str, Any]:
    text = read_regular(path, MOST_MANIFEST)
    if hashlib.sha256(text).hexdigest() != pointer["manifest_sha256"]:
        raise StoreError(f"{path} is not as it was saved: its checksum differs. {_RESTORE}")
    manifest: dict[str, Any] = parse(text, path)
    _check_manifest(manifest, path)
    return manifest


def _check_manifest(manifest: Any, path: Path) -> None:
    """Check that a manifest has the entries that reading needs."""
    arrays = manifest.get("arrays") if isinstance(manifest, dict) else None
    complete = (
        isinstance(arrays, dict)
        and type(arrays.get("bytes")) is int
        and isinstance(arrays.get("sha256"), str)
        and isinstance(manifest.get("kind"), str)
        and isinstance(manifest.get("document"), dict)
    )
    if not complete:
        raise StoreError(f"{path} is damaged: it lacks its kind, its document or the size of its arrays. {_RESTORE}")


def _check_arrays(path: Path, expected: dict[str, Any]) -> None:
    """Check size and checksum of the file of arrays."""
    size = _check_regular(path)
    if size != expected["bytes"]:
        kind = "truncated" if size < expected["bytes"] else "longer than it was saved"
        raise StoreError(f"{path} is {kind}: {size:,} bytes of {expected['bytes']:,}. {_RESTORE}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected["sha256"]:
        raise StoreError(f"{path} is not as it was saved: its checksum differs. {_RESTORE}")


def retry_while_open(action: Callable[[], T]) -> T:
    """Call a function that renames, replaces or reads a file; on Windows, retry while another process has it open."""
    pauses = _PAUSES if _WINDOWS else ()
    for pause in pauses:
        try:
            return action()
        except PermissionError:
            time.sleep(pause)
    return action()


def own_version() -> str:
    """Return the version of this library."""
    from vhat import __version__

    return __version__


_REMEDIES = {
    errno.ENOSPC: "The disk is full: make room, or leave the factorisation out.",
    errno.EDQUOT: "The quota is used up: make room, or leave the factorisation out.",
    errno.EACCES: "There is no permission: give a directory of your own.",
    errno.EPERM: "There is no permission: give a directory of your own.",
    errno.EROFS: "The file system is read-only: give another directory.",
    errno.ENOENT: "Files are missing that the directory should hold.",
}
"""What to do about an error of the operating system, by its code."""


@contextmanager
def explain_os_errors(action: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what failed, where, and what to do.

    Args:
        action: The beginning of the message, such as ``"saving to model failed"``.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        where = f" ({error.filename})" if error.filename else ""
        raise StoreError(f"{action}: {error.strerror or error}{where}. {remedy}".strip()) from error
