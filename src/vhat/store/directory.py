"""A directory that holds one document, whole: what a crash leaves is the old one or the new one.

::

    model/
      vhat.json              the pointer: which version counts, and the SHA-256 of its manifest
      v0002/manifest.json    kind, versions of the libraries, SHA-256 of the arrays, the document itself
      v0002/arrays.safetensors
      vhat.json.lock         only while a process saves: keeps others from saving at the same time

A new version is written beside the old one and brought to the disk; then the pointer is renamed over the old pointer,
which the file system does at once or not at all; only then are old versions removed. Nothing in a file is ever
executed. The checksums find accidents. They are no signature: who can write to the directory can forge them.

The user may keep files and folders of any name here, ``v2023`` among them: they are never removed, moved or
overwritten. A version is removed when its manifest says that it was written as the directory of this very name, or
when the pointer that is replaced names it with the checksum of its manifest (versions without that entry). Its own
files are removed by their names, and the directory only where nothing else is in it. What a killed process left before
its manifest was complete does not say whose it is, and is left alone: an empty directory, or one with a few bytes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from vhat.atomic_files import write_new
from vhat.errors import StoreError
from vhat.store.document import Document, join, split

__all__ = ["FORMAT", "fingerprint", "kind_of", "read", "write"]

FORMAT = 1
"""The format that is written, and the newest that can be read."""
_POINTER, _MANIFEST, _ARRAYS = "vhat.json", "manifest.json", "arrays.safetensors"
_PARTS = (_POINTER, _ARRAYS, _MANIFEST)
"""All that is ever written into the directory of a version, in the order of removal: the manifest says whose it is."""
_FORMER_TEMPORARY = _POINTER + ".new"
"""What a killed process may have left before pointers were written inside the directory of their version."""
_LOCK = _POINTER + ".lock"
_VERSION = re.compile(r"v\d{4,}")
_ATTEMPTS = 5
_WINDOWS = os.name == "nt"
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds between attempts at a file that another process has open, on Windows; a pointer is read in a millisecond."""
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What a file system without locks answers, some network file systems among them."""

T = TypeVar("T")


def write(directory: str | os.PathLike[str], kind: str, document: Document) -> None:
    """Save a document, in the place of the one that the directory may hold.

    Args:
        directory: A new or empty directory, or one that this function has written.
        kind: What the document describes, such as ``"fitted model"``; :func:`read` asks for it.
        document: Dicts, lists, tuples, text, numbers, None and NumPy arrays, in any nesting.

    Raises:
        StoreError: When the directory is something else, or cannot be written; what it held is then as it was.
    """
    plain, arrays = split(document)
    folder = Path(directory)
    with _in_words(f"saving to {folder} failed"):
        _make(folder)
        with _locked(folder):
            replaced = _refuse_foreign(folder)
            version = _new_version(folder)
            try:
                seal = _write_version(version, kind, plain, arrays)
                _point(folder, version, seal)
            except BaseException:
                _discard(folder, version)
                raise
            for old in _versions(folder):
                if old != version and _is_ours(old, replaced):
                    _remove(old)


def read(directory: str | os.PathLike[str], kind: str) -> Document:
    """Return the document that :func:`write` saved, after checking it.

    Raises:
        StoreError: When there is none, or it is of another kind, of a newer format, truncated or changed.
    """
    folder = Path(directory)
    for attempt in range(_ATTEMPTS):
        pointer = _read_pointer(folder)
        try:
            with _in_words(f"reading {folder} failed"):
                return _read_version(folder, pointer, kind)
        except StoreError:  # another process may have saved, and removed this version, in the meantime
            if attempt == _ATTEMPTS - 1 or _read_pointer(folder) == pointer:
                raise
    raise AssertionError("unreachable")


def kind_of(directory: str | os.PathLike[str]) -> str:
    """Return what a directory that :func:`write` has written holds, such as ``"fitted model"``.

    Raises:
        StoreError: When there is no such directory, or its manifest cannot be read.
    """
    folder = Path(directory)
    with _in_words(f"reading {folder} failed"):
        return str(_read_manifest(folder, _read_pointer(folder))["kind"])


def fingerprint(directory: str | os.PathLike[str]) -> str:
    """Return the checksum of what a directory holds, as its pointer states it: another save has another one.

    Raises:
        StoreError: When there is no such directory.
    """
    return str(_read_pointer(Path(directory))["manifest_sha256"])


# -- writing -------------------------------------------------------------------------------------
def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; a model is saved as a directory. Give another name.")
    if not folder.exists():
        folder.mkdir(parents=True)
        _to_disk(folder.parent)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from saving here; the lock goes with the process, however it ends."""
    path = folder / _LOCK
    # ``fallback_to_soft`` would lock by the existence of a file, which a killed process leaves behind.
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StoreError(f"another process is saving to {folder} at this moment. Try again.") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        # Go on without a lock: renaming is still atomic.
    try:
        yield
    finally:
        # Remove the file before the lock is released. A process that has opened it meanwhile and gets the lock on the
        # removed file sees that it has no name any more, and gives it up. Windows cannot remove an open file; there
        # ``release`` removes it.
        with suppress(OSError):
            path.unlink()
        lock.release()


def _refuse_foreign(folder: Path) -> dict[str, Any] | None:
    """Refuse a directory with anything in it, unless it is a saved model or what a first save left when it was killed.

    Returns:
        The pointer of the saved model, None where there is none.

    Raises:
        StoreError: Naming what was found.
    """
    if (folder / _POINTER).is_file():
        return _read_pointer(folder)  # a newer or damaged one is not written over
    parts = set(_PARTS)
    for found in folder.iterdir():
        version = _VERSION.fullmatch(found.name) and found.is_dir() and {part.name for part in found.iterdir()} <= parts
        if not version and found.name not in (_FORMER_TEMPORARY, _LOCK):
            raise StoreError(
                f"{folder} is not empty and was not saved by vhat (it holds {found.name}). Give a new directory; "
                "nothing was changed."
            )
    return None


def _versions(folder: Path) -> list[Path]:
    """Return all that has the name of a version, the user's own files and folders among them."""
    return [found for found in folder.iterdir() if _VERSION.fullmatch(found.name)]


def _new_version(folder: Path) -> Path:
    """Make a directory under a name that nothing has."""
    number = 1 + max((int(each.name[1:]) for each in _versions(folder)), default=0)
    while True:
        version = folder / f"v{number:04d}"
        try:
            version.mkdir()
        except FileExistsError:  # where case does not count in names, a V0002 of the user's has this name too
            number += 1
        else:
            return version


def _is_ours(version: Path, replaced: dict[str, Any] | None) -> bool:
    """Whether a directory with the name of a version was written by :func:`write`, under this name.

    Args:
        version: The directory.
        replaced: The pointer that was in force before, if any.
    """
    manifest = version / _MANIFEST
    if version.is_symlink() or manifest.is_symlink() or not manifest.is_file():
        return False
    try:
        text = manifest.read_bytes()
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    found = {"current": version.name, "manifest_sha256": hashlib.sha256(text).hexdigest()}
    if replaced is not None and found.items() <= replaced.items():
        return True
    # a copy that the user made of a version holds the name of the original
    return isinstance(content, dict) and content.get("directory") == version.name


def _remove(version: Path) -> None:
    """Remove the files of a version, and its directory where nothing else is in it."""
    for name in _PARTS:
        with suppress(OSError):
            (version / name).unlink()
    with suppress(OSError):
        version.rmdir()


def _write_version(folder: Path, kind: str, plain: Any, arrays: dict[str, Any]) -> str:
    """Write manifest and arrays, to the disk; return the SHA-256 of the manifest.

    The manifest comes first: it says whose directory this is, also when the process is killed while the arrays, which
    may be large, are written.
    """
    from safetensors.numpy import save

    content = save(arrays)
    manifest = {
        "kind": kind,
        "directory": folder.name,
        "versions": _library_versions(),
        "arrays": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
        "document": plain,
    }
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    write_new(folder / _MANIFEST, text)
    write_new(folder / _ARRAYS, content)
    _to_disk(folder)
    return hashlib.sha256(text).hexdigest()


def _point(folder: Path, version: Path, seal: str) -> None:
    """Let the pointer name a version: written in the directory just made, where no name is taken, and renamed."""
    pointer = {"format": "vhat", "format_version": FORMAT, "current": version.name, "manifest_sha256": seal}
    write_new(version / _POINTER, json.dumps(pointer, indent=1).encode())
    _patiently(lambda: (version / _POINTER).replace(folder / _POINTER))
    _to_disk(folder)


def _discard(folder: Path, version: Path) -> None:
    """Remove a version that failed, unless the pointer has reached it already."""
    with suppress(OSError, StoreError):
        if (folder / _POINTER).exists() and _read_pointer(folder)["current"] == version.name:
            return
        _remove(version)


def _to_disk(folder: Path) -> None:
    """Bring the entries of a directory to the disk; Windows opens no directory, and has them in its journal."""
    if _WINDOWS:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _patiently(act: Callable[[], T]) -> T:
    """Call a function; on Windows, again while another process has the file open that it renames, replaces or reads."""
    for pause in _PAUSES if _WINDOWS else ():
        try:
            return act()
        except PermissionError:
            time.sleep(pause)
    return act()


def _library_versions() -> dict[str, str]:
    """The versions of what computed the document; of the frameworks, those that were in use."""
    names = ["numpy", "scipy", "safetensors", *(name for name in ("jax", "jaxlib", "torch") if name in sys.modules)]
    return {"vhat": _own_version(), "python": platform.python_version()} | {n: metadata.version(n) for n in names}


def _own_version() -> str:
    from vhat import __version__

    return __version__


# -- reading -------------------------------------------------------------------------------------
def _read_pointer(folder: Path) -> dict[str, Any]:
    path = folder / _POINTER
    try:
        pointer = json.loads(_patiently(path.read_bytes))
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():  # of which Windows says that the file in it is not found
            raise StoreError(f"{folder} is a file; give the directory that the model was saved to.") from None
        missing = "there is no such directory" if not folder.exists() else f"it has no {_POINTER}"
        raise StoreError(f"{folder} holds no model saved by vhat: {missing}.") from None
    except OSError as error:
        raise StoreError(f"reading {path} failed: {error.strerror}.") from error
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}). {_RESTORE}") from error
    if not isinstance(pointer, dict) or pointer.get("format") != "vhat":
        raise StoreError(f"{path} was not written by vhat. Give the directory that a model was saved to.")
    version = pointer.get("format_version")
    if isinstance(version, int) and version > FORMAT:
        raise StoreError(
            f"{folder} was saved in format {version}, and vhat {_own_version()} knows format {FORMAT}. Update vhat."
        )
    current, seal = pointer.get("current"), pointer.get("manifest_sha256")
    if version != FORMAT or not isinstance(seal, str) or not _VERSION.fullmatch(str(current)):
        raise StoreError(f"{path} is damaged: it does not name a version. {_RESTORE}")
    return pointer


_RESTORE = "Restore the directory from a copy, or save the model again to a new one."


def _read_version(folder: Path, pointer: dict[str, Any], kind: str) -> Document:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    version = folder / pointer["current"]
    manifest = _read_manifest(folder, pointer)
    if manifest["kind"] != kind:
        raise StoreError(f"{folder} holds a {manifest['kind']}, not a {kind}. Load it as what it is.")
    _check_arrays(version / _ARRAYS, manifest["arrays"])
    try:
        document: Document = join(manifest["document"], load_file(version / _ARRAYS))
    except SafetensorError as error:
        raise StoreError(f"{version / _ARRAYS} cannot be read: {error}. {_RESTORE}") from error
    return document


def _read_manifest(folder: Path, pointer: dict[str, Any]) -> dict[str, Any]:
    path = folder / pointer["current"] / _MANIFEST
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != pointer["manifest_sha256"]:
        raise StoreError(f"{path} is not as it was saved: its checksum differs. {_RESTORE}")
    manifest: dict[str, Any] = json.loads(text)
    return manifest


def _check_arrays(path: Path, expected: dict[str, Any]) -> None:
    size = path.stat().st_size
    if size != expected["bytes"]:
        kind = "truncated" if size < expected["bytes"] else "longer than it was saved"
        raise StoreError(f"{path} is {kind}: {size:,} bytes of {expected['bytes']:,}. {_RESTORE}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected["sha256"]:
        raise StoreError(f"{path} is not as it was saved: its checksum differs. {_RESTORE}")


_REMEDIES = {
    errno.ENOSPC: "The disk is full: make room, or leave the factorisation out.",
    errno.EDQUOT: "The quota is used up: make room, or leave the factorisation out.",
    errno.EACCES: "There is no permission: give a directory of your own.",
    errno.EPERM: "There is no permission: give a directory of your own.",
    errno.EROFS: "The file system is read-only: give another directory.",
    errno.ENOENT: "Files are missing that the directory should hold.",
}


@contextmanager
def _in_words(doing: str) -> Iterator[None]:
    """Turn what the operating system raises into a sentence."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        where = f" ({error.filename})" if error.filename else ""
        raise StoreError(f"{doing}: {error.strerror or error}{where}. {remedy}".strip()) from error
