"""Reading a saved directory: every size, type and checksum is examined before what it guards is used.

Whatever is wrong with the files is a :class:`vhat.StoreError`. Where an unforeseen error of another type is the sign of
a malformed document, the StoreError has it as its cause, so that a fault of this library can still be told apart.
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
    "fingerprint",
    "in_words",
    "kind_of",
    "own_version",
    "parse",
    "patiently",
    "read",
    "read_pointer",
    "read_regular",
    "well_formed",
]

FORMAT = 1
"""The format that is written, and the newest that can be read."""
POINTER, MANIFEST, ARRAYS = "vhat.json", "manifest.json", "arrays.safetensors"
VERSION = re.compile(r"v\d{4,12}")
"""The name of a version."""
MOST_POINTER = 1 << 16
"""Bytes; a pointer has some 150."""
MOST_MANIFEST = 1 << 29
"""Bytes of a manifest, enough for the names of ten million rows; numbers stand in the file of arrays."""
_ATTEMPTS = 5
_WINDOWS = os.name == "nt"
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds between attempts at a file that another process has open, on Windows; a pointer is read in a millisecond."""
_RESTORE = "Restore the directory from a copy, or save the model again to a new one."

T = TypeVar("T")


def read(directory: str | os.PathLike[str], kind: str) -> Document:
    """Return the document that :func:`vhat.store.write` saved, after checking it.

    Raises:
        StoreError: When there is none, or it is of another kind, of a newer format, truncated, changed or malformed.
    """
    folder = as_folder(directory)
    return _of_current(folder, lambda pointer: _read_version(folder, pointer, kind))


def kind_of(directory: str | os.PathLike[str]) -> str:
    """Return what a saved directory holds, such as ``"fitted model"``.

    Raises:
        StoreError: When there is no such directory, or its manifest cannot be read.
    """
    folder = as_folder(directory)
    manifest = _of_current(folder, lambda pointer: _read_manifest(folder / pointer["current"] / MANIFEST, pointer))
    return str(manifest["kind"])


def fingerprint(directory: str | os.PathLike[str]) -> str:
    """Return the checksum of what a directory holds, as its pointer states it: another save has another one.

    Raises:
        StoreError: When there is no such directory.
    """
    return str(read_pointer(as_folder(directory))["manifest_sha256"])


def _of_current(folder: Path, take: Callable[[dict[str, Any]], T]) -> T:
    """Read something of the version that the pointer names; again where another process has replaced it meanwhile."""
    for attempt in range(_ATTEMPTS):
        pointer = read_pointer(folder)
        try:
            with well_formed(folder), in_words(f"reading {folder} failed"):
                return take(pointer)
        except StoreError:  # another process may have saved, and removed this version, in the meantime
            if attempt == _ATTEMPTS - 1 or read_pointer(folder) == pointer:
                raise
    raise AssertionError("unreachable")


def as_folder(directory: Any) -> Path:
    """Return the path of a directory that a user has named.

    Raises:
        StoreError: For what is no path, or a path that no file system takes.
    """
    if not isinstance(directory, str | os.PathLike) or isinstance(os.fspath(directory), bytes):
        raise StoreError(f"{directory!r} is not the name of a directory. Give a path, such as 'model'.")
    if "\0" in os.fspath(directory):
        raise StoreError(f"{os.fspath(directory)!r} has a null character, which no file name can have.")
    return Path(directory)


@contextmanager
def well_formed(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what a malformed document makes Python raise into a StoreError with that error as its cause.

    Errors of vhat pass: they have their own words. So do interrupts.
    """
    try:
        yield
    except VhatError:
        raise
    except MemoryError as error:
        raise StoreError(f"the memory does not suffice to read {folder}. {_RESTORE}") from error
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{folder} does not hold a model as vhat describes it ({type(error).__name__}: {said}), or the code given "
            f"with it fails. {_RESTORE}"
        ) from error


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file: a pipe or a device would block, and a huge file fill the memory.

    Raises:
        StoreError: For what is no regular file, and for one of more than ``most`` bytes.
        OSError: When it cannot be read.
    """
    _check_regular(path, most)
    return path.read_bytes()


def _check_regular(path: Path, most: int | None = None) -> int:
    """Return the size of a regular file in bytes."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file. {_RESTORE}")
    if most is not None and found.st_size > most:
        raise StoreError(f"{path} has {found.st_size:,} bytes, and vhat writes no such file above {most:,}. {_RESTORE}")
    return found.st_size


def parse(text: bytes, path: Path) -> Any:
    """Return a JSON document.

    Raises:
        StoreError: When it is none.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise StoreError(f"{path} is damaged: its brackets are nested too deeply. {_RESTORE}") from error
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}). {_RESTORE}") from error


def read_pointer(folder: Path) -> dict[str, Any]:
    """Return the checked pointer of a saved directory.

    Raises:
        StoreError: When there is none, it is damaged, or of a newer format.
    """
    path = folder / POINTER
    try:
        pointer = parse(patiently(lambda: read_regular(path, MOST_POINTER)), path)
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():  # of which Windows says that the file in it is not found
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
    current, seal = pointer.get("current"), pointer.get("manifest_sha256")
    if version != FORMAT or not isinstance(seal, str) or not VERSION.fullmatch(str(current)):
        raise StoreError(f"{path} is damaged: it does not name a version. {_RESTORE}")
    return pointer


def _read_version(folder: Path, pointer: dict[str, Any], kind: str) -> Document:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    version = folder / pointer["current"]
    manifest = _read_manifest(version / MANIFEST, pointer)
    if manifest["kind"] != kind:
        raise StoreError(f"{folder} holds a {manifest['kind']}, not a {kind}. {_loaded_by(folder, manifest['kind'])}")
    _check_arrays(version / ARRAYS, manifest["arrays"])
    try:
        document: Document = join(manifest["document"], load_file(version / ARRAYS))
    except SafetensorError as error:
        raise StoreError(f"{version / ARRAYS} cannot be read: {error}. {_RESTORE}") from error
    return document


def _loaded_by(folder: Path, kind: str) -> str:
    """Return the call that loads what a directory holds."""
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
    """Refuse a manifest without the entries that reading needs."""
    arrays = manifest.get("arrays") if isinstance(manifest, dict) else None
    whole = (
        isinstance(arrays, dict)
        and type(arrays.get("bytes")) is int
        and isinstance(arrays.get("sha256"), str)
        and isinstance(manifest.get("kind"), str)
        and isinstance(manifest.get("document"), dict)
    )
    if not whole:
        raise StoreError(f"{path} is damaged: it lacks its kind, its document or the size of its arrays. {_RESTORE}")


def _check_arrays(path: Path, expected: dict[str, Any]) -> None:
    size = _check_regular(path)
    if size != expected["bytes"]:
        kind = "truncated" if size < expected["bytes"] else "longer than it was saved"
        raise StoreError(f"{path} is {kind}: {size:,} bytes of {expected['bytes']:,}. {_RESTORE}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected["sha256"]:
        raise StoreError(f"{path} is not as it was saved: its checksum differs. {_RESTORE}")


def patiently(act: Callable[[], T]) -> T:
    """Call a function; on Windows, again while another process has the file open that it renames, replaces or reads."""
    for pause in _PAUSES if _WINDOWS else ():
        try:
            return act()
        except PermissionError:
            time.sleep(pause)
    return act()


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


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn what the operating system raises into a sentence."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        where = f" ({error.filename})" if error.filename else ""
        raise StoreError(f"{doing}: {error.strerror or error}{where}. {remedy}".strip()) from error
