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
    in_words,
    own_version,
    parse,
    patiently,
    read_pointer,
    read_regular,
)

__all__ = ["write"]

_PARTS = (POINTER, ARRAYS, MANIFEST)
"""All that is ever written into the directory of a version, in the order of removal: the manifest says whose it is."""
_FORMER_TEMPORARY = POINTER + ".new"
"""What a killed process may have left before pointers were written inside the directory of their version."""
_LOCK = POINTER + ".lock"
_LAST = 10**11
"""Versions are numbered below this; a folder of the user's with a longer number is passed over."""
_WINDOWS = os.name == "nt"
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What a file system without locks answers, some network file systems among them."""


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
    folder = as_folder(directory)
    with in_words(f"saving to {folder} failed"):
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
    if (folder / POINTER).is_file():
        return read_pointer(folder)  # a newer or damaged one is not written over
    parts = set(_PARTS)
    for found in folder.iterdir():
        version = VERSION.fullmatch(found.name) and found.is_dir() and {part.name for part in found.iterdir()} <= parts
        if not version and found.name not in (_FORMER_TEMPORARY, _LOCK):
            raise StoreError(
                f"{folder} is not empty and was not saved by vhat (it holds {found.name}). Give a new directory; "
                "nothing was changed."
            )
    return None


def _versions(folder: Path) -> list[Path]:
    """Return all that has the name of a version, the user's own files and folders among them."""
    return [found for found in folder.iterdir() if VERSION.fullmatch(found.name)]


def _new_version(folder: Path) -> Path:
    """Make a directory under a name that nothing has."""
    taken = (int(each.name[1:]) for each in _versions(folder))
    number = 1 + max((each for each in taken if each < _LAST), default=0)
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
    manifest = version / MANIFEST
    if version.is_symlink() or manifest.is_symlink() or not manifest.is_file():
        return False
    try:
        text = read_regular(manifest, MOST_MANIFEST)
        content = parse(text, manifest)
    except (OSError, StoreError):
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
    if len(text) > MOST_MANIFEST:
        raise StoreError(
            f"names and texts of this model take {len(text):,} bytes, and a model that is saved may have "
            f"{MOST_MANIFEST:,}. Leave out columns of text, or give rows shorter names."
        )
    write_new(folder / MANIFEST, text)
    write_new(folder / ARRAYS, content)
    _to_disk(folder)
    return hashlib.sha256(text).hexdigest()


def _point(folder: Path, version: Path, seal: str) -> None:
    """Let the pointer name a version: written in the directory just made, where no name is taken, and renamed."""
    pointer = {"format": "vhat", "format_version": FORMAT, "current": version.name, "manifest_sha256": seal}
    write_new(version / POINTER, json.dumps(pointer, indent=1).encode())
    patiently(lambda: (version / POINTER).replace(folder / POINTER))
    _to_disk(folder)


def _discard(folder: Path, version: Path) -> None:
    """Remove a version that failed, unless the pointer has reached it already."""
    with suppress(OSError, StoreError):
        if (folder / POINTER).exists() and read_pointer(folder)["current"] == version.name:
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


def _library_versions() -> dict[str, str]:
    """The versions of what computed the document; of the frameworks, those that were in use."""
    names = ["numpy", "scipy", "safetensors", *(name for name in ("jax", "jaxlib", "torch") if name in sys.modules)]
    return {"vhat": own_version(), "python": platform.python_version()} | {n: metadata.version(n) for n in names}
