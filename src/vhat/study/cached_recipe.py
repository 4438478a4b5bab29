"""A recipe that caches its fits on disk, so that a killed run resumes, and several cells share the fits they need.

A fit is written under a temporary name and then renamed, so that a killed process leaves no incomplete fit. A fit is
locked while it is trained: a second process that needs it waits and then loads it. The lock is released when its
process ends.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from vhat import errors
from vhat.errors import StoreError, VhatWarning
from vhat.fit.many_fits import Recipe
from vhat.fitted.construct import assemble
from vhat.store import describe, read, restore, write

if TYPE_CHECKING:
    from vhat.fitted.model import FittedModel

__all__ = ["CachedRecipe"]

_KIND = "remembered fit"
"""The kind of document in the files of a cached fit."""


@dataclass(frozen=True)
class CachedRecipe:
    """Train by ``recipe``, once for each data set and seed.

    Attributes:
        recipe: The recipe.
        folder: Directory of the fits, each in a subdirectory.
        shared: Directory of the fits without sample weights, which other cells of the same data need too; None is
            ``folder``.
        made_by: Versions of the software that computes the fits; fits of other versions are ignored.
    """

    recipe: Recipe
    folder: Path
    shared: Path | None = None
    made_by: str = ""

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Return the cached fit, or train and cache it; in both cases emit the warnings of its training."""
        folder = self.folder
        if self.shared is not None and sample_weight is None:
            folder = self.shared
        path = folder / self._name(X, y, seed, sample_weight)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            cached = _load(path)
            if cached is not None:
                return cached
            with warnings.catch_warnings(record=True) as recorded:
                warnings.simplefilter("always")
                fitted = self.recipe(X, y, seed=seed, sample_weight=sample_weight)
            warned = [(each.category, str(each.message)) for each in recorded]
            _save(path, fitted, warned)
        _warn_again(warned)
        return fitted

    def _name(self, X: Any, y: Any, seed: int, sample_weight: Any) -> str:
        """Return a name of the fit: a hash of recipe, seed, versions and data."""
        digest = hashlib.sha256(f"{self.recipe!r} {seed} {self.made_by}".encode())
        for array in (X, y, () if sample_weight is None else sample_weight):
            digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
        return digest.hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, after waiting until no other process holds it."""
    lock = FileLock(path, fallback_to_soft=False)
    # The file system may have no locks, or another run may have removed the directory. Without a lock both processes
    # train, which only costs time.
    with suppress(OSError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _load(path: Path) -> FittedModel | None:
    """Return the fit stored at ``path``, or None if there is none; a damaged fit is removed."""
    if not path.is_dir():
        return None
    try:
        document: Any = read(path, _KIND)
        fitted = assemble(restore(document["fitted"]))
    except StoreError:
        shutil.rmtree(path, ignore_errors=True)
        return None
    _warn_again([(getattr(errors, name), message) for name, message in document["warnings"]])
    return fitted


def _save(path: Path, fitted: FittedModel, warned: Sequence[tuple[type[Warning], str]]) -> None:
    """Store a fit, with those warnings of its training that are this library's."""
    own = [[kind.__name__, message] for kind, message in warned if issubclass(kind, VhatWarning)]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".", dir=path.parent))
    try:
        write(temporary, _KIND, {"fitted": describe(fitted), "warnings": own})
        with suppress(OSError):  # without locks, another process may have stored the same fit
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _warn_again(warned: Sequence[tuple[type[Warning], str]]) -> None:
    """Emit recorded warnings."""
    for kind, message in warned:
        warnings.warn(message, kind, stacklevel=3)
