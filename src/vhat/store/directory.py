"""Write a document to a directory atomically: after a crash the directory holds the old document or the new one.

::

    model/
      vhat.json              the pointer: the current version, and the SHA-256 of its manifest
      v0002/manifest.json    kind, versions of the libraries, SHA-256 of the arrays, the document itself
      v0002/arrays.safetensors
      vhat.json.lock         exists only during a save: a second process cannot save at the same time

A save has three steps. The new version is written beside the old one and flushed to the disk. Then the new pointer is
renamed over the old pointer; a rename is atomic. Old versions are removed last.

No file is ever executed. The checksums detect accidental damage. They are not a signature: anyone who can write to the
directory can forge them.

The user may keep files and folders of any name here, such as ``v2023``. They are never removed, moved or overwritten. A
version is removed only if its manifest names this directory as the one it was written to, or if the replaced pointer
names it with the checksum of its manifest (older versions, whose manifest has no such entry). Files of a version are
removed by name, and its directory only if nothing else is in it. A process that is killed before its manifest is
complete leaves an empty directory, or one with a few bytes. Such a directory does not say who made it and stays.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vhat.atomic_files import write_new
from vhat.errors import StoreError
from vhat.store.document import Document, split
from vhat.store.reading import (
    ARRAYS,
    FORMAT,
    MANIFEST,
    MOST_MANIFEST,
    POINTER,
    VERSION,
    as_folder,
    explain_os_errors,
    own_version,
    parse,
    read_pointer,
    read_regular,
    retry_while_open,
)

__all__ = ["write"]

_PARTS = (POINTER, ARRAYS, MANIFEST)
"""Every file of a version, in the order of removal. The manifest is last, because it marks the version as ours."""
_FORMER_TEMPORARY = POINTER + ".new"
"""A leftover of earlier releases, which wrote the new pointer here. A killed process may have left one."""
_LOCK = POINTER + ".lock"
_MAX_VERSION = 10**11
"""Version numbers stay below this. A longer number belongs to a folder of the user, and is ignored."""
_WINDOWS = os.name == "nt"
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Error codes of a file system without locks, such as some network file systems."""


def write(directory: str | os.PathLike[str], kind: str, document: Document) -> None:
    """Save a document, and replace the one that the directory holds, if any.

    Args:
        directory: A new or empty directory, or one that this function wrote.
        kind: What the document describes, such as ``"fitted model"``; :func:`read` requires the same kind.
        document: Dicts, lists, tuples, text, numbers, None and NumPy arrays, in any nesting.

    Raises:
        StoreError: If the directory holds something else, or cannot be written. Its content is then unchanged.
    """
    plain, arrays = split(document)
    folder = as_folder(directory)
    with explain_os_errors(f"saving to {folder} failed"):
        _make_directory(folder)
        with _locked(folder):
            old_pointer = _check_own(folder)
            version = _new_version(folder)
            try:
                checksum = _write_version(version, kind, plain, arrays)
                _replace_pointer(folder, version, checksum)
            except BaseException:  # Ctrl-C must not leave a half-written version either
                _discard(folder, version)
                raise
            for old in _versions(folder):
                if old != version and _is_own_version(old, old_pointer):
                    _remove(old)


def _make_directory(folder: Path) -> None:
    """Create the directory where there is none, and flush its entry in the parent to the disk."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; a model is saved as a directory. Give another name.")
    if not folder.exists():
        folder.mkdir(parents=True)
        _sync_directory(folder.parent)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from saving here. The operating system releases the lock of a killed process."""
    path = folder / _LOCK
    # ``fallback_to_soft`` would lock by the existence of a file. A killed process leaves that file behind, and nobody
    # could save again.
    lock = FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise StoreError(f"another process is saving to {folder} at this moment. Try again.") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        # The file system has no locks. Continue without one: the rename is still atomic.
    try:
        yield
    finally:
        # Remove the file before the lock is released. A second process may have opened the file in the meantime and get
        # the lock on the removed file; filelock then sees that the file has no name any more and starts again. Windows
        # cannot remove an open file; there ``release`` removes it.
        with suppress(OSError):
            path.unlink()
        lock.release()


def _check_own(folder: Path) -> dict[str, Any] | None:
    """Check that the directory is empty, holds a saved model, or holds only what a killed first save left.

    Returns:
        The pointer of the saved model, or None if there is none.

    Raises:
        StoreError: Naming the entry that vhat did not write.
    """
    if (folder / POINTER).is_file():
        return read_pointer(folder)  # raises for a newer or damaged pointer, which must not be overwritten
    for entry in folder.iterdir():
        if entry.name not in (_FORMER_TEMPORARY, _LOCK) and not _looks_like_version(entry):
            raise StoreError(
                f"{folder} is not empty and was not saved by vhat (it holds {entry.name}). Give a new directory; "
                "nothing was changed."
            )
    return None


def _looks_like_version(path: Path) -> bool:
    """Return whether a directory has the name of a version, and no files but those of a version."""
    if VERSION.fullmatch(path.name) is None or not path.is_dir():
        return False
    return {part.name for part in path.iterdir()} <= set(_PARTS)


def _versions(folder: Path) -> list[Path]:
    """Return every path with the name of a version. Some may be files or folders of the user."""
    return [found for found in folder.iterdir() if VERSION.fullmatch(found.name)]


def _new_version(folder: Path) -> Path:
    """Make the directory of a new version, under a name that is not taken."""
    taken = [int(path.name[1:]) for path in _versions(folder)]
    number = 1 + max((each for each in taken if each < _MAX_VERSION), default=0)
    while True:
        version = folder / f"v{number:04d}"
        try:
            version.mkdir()
        except FileExistsError:  # on a case-insensitive file system, the user's V0002 has this name too
            number += 1
        else:
            return version


def _is_own_version(version: Path, old_pointer: dict[str, Any] | None) -> bool:
    """Return whether :func:`write` wrote this directory, under this name.

    Args:
        version: A path with the name of a version.
        old_pointer: The pointer before this save, if any.
    """
    manifest = version / MANIFEST
    if version.is_symlink() or manifest.is_symlink() or not manifest.is_file():
        return False
    try:
        text = read_regular(manifest, MOST_MANIFEST)
        content = parse(text, manifest)
    except (OSError, StoreError):
        return False
    entry = {"current": version.name, "manifest_sha256": hashlib.sha256(text).hexdigest()}
    if old_pointer is not None and entry.items() <= old_pointer.items():
        return True
    # If the user copied a version to another name, the manifest still holds the name of the original.
    return isinstance(content, dict) and content.get("directory") == version.name


def _remove(version: Path) -> None:
    """Remove the files of a version, and its directory if nothing else is in it."""
    for name in _PARTS:
        with suppress(OSError):
            (version / name).unlink()
    with suppress(OSError):
        version.rmdir()


def _write_version(folder: Path, kind: str, plain: Any, arrays: dict[str, Any]) -> str:
    """Write manifest and arrays, flush them to the disk, and return the SHA-256 of the manifest.

    The manifest is written first, because it marks the directory as ours. If the process is killed during the arrays,
    which may be large, the next save can then remove the directory.
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
    if len(text) > MOST_MANIFEST:
        raise StoreError(
            f"names and texts of this model take {len(text):,} bytes, and a model that is saved may have "
            f"{MOST_MANIFEST:,}. Leave out columns of text, or give rows shorter names."
        )
    write_new(folder / MANIFEST, text)
    write_new(folder / ARRAYS, content)
    _sync_directory(folder)
    return hashlib.sha256(text).hexdigest()


def _replace_pointer(folder: Path, version: Path, checksum: str) -> None:
    """Make a version the current one, by an atomic rename of its pointer over the old pointer.

    The new pointer is first written to the directory of the version, which is new, so that its name is free there.
    """
    pointer = {"format": "vhat", "format_version": FORMAT, "current": version.name, "manifest_sha256": checksum}
    write_new(version / POINTER, json.dumps(pointer, indent=1).encode())
    retry_while_open(lambda: (version / POINTER).replace(folder / POINTER))
    _sync_directory(folder)


def _discard(folder: Path, version: Path) -> None:
    """Remove a version whose save failed, unless the pointer names it already."""
    with suppress(OSError, StoreError):
        if (folder / POINTER).exists() and read_pointer(folder)["current"] == version.name:
            return
        _remove(version)


def _sync_directory(folder: Path) -> None:
    """Flush the entries of a directory to the disk. Windows cannot open a directory; it journals entries."""
    if _WINDOWS:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _library_versions() -> dict[str, str]:
    """Return the versions of the libraries that computed the document. A framework counts only if it was imported."""
    frameworks = [name for name in ("jax", "jaxlib", "torch") if name in sys.modules]
    installed = {name: metadata.version(name) for name in ["numpy", "scipy", "safetensors", *frameworks]}
    return {"vhat": own_version(), "python": platform.python_version()} | installed
