"""A recipe that keeps its fits on disk: killed work goes on where it was, and cells share a fit that all of them need.

A fit is written under a temporary name and renamed, so that a killed writer leaves nothing that would be taken for a
fit. A fit is locked while it is trained: a second process that needs it waits and loads it. The lock ends with the
process that holds it.
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

__all__ = ["Remembered"]

_KIND = "remembered fit"


@dataclass(frozen=True)
class Remembered:
    """Train by ``recipe``, once for each data set and seed.

    Attributes:
        recipe: How to train.
        folder: Where fits are kept, each in a directory of its own.
        shared: Where fits without sample weights are kept, which other cells of the same data need too; None keeps
            them in ``folder``.
        made_by: The versions of what computes the fits; fits of other versions are not used.
    """

    recipe: Recipe
    folder: Path
    shared: Path | None = None
    made_by: str = ""

    def __call__(self, X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> FittedModel:
        """Return the fit that was kept, or train and keep it; either way with the warnings of its training."""
        folder = self.folder
        if self.shared is not None and sample_weight is None:
            folder = self.shared
        place = folder / self._name(X, y, seed, sample_weight)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            kept = _load(place)
            if kept is not None:
                return kept
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fitted = self.recipe(X, y, seed=seed, sample_weight=sample_weight)
            said = [(each.category, str(each.message)) for each in caught]
            _save(place, fitted, said)
        _repeat(said)
        return fitted

    def _name(self, X: Any, y: Any, seed: int, sample_weight: Any) -> str:
        """A name made from everything that the fit depends on."""
        digest = hashlib.sha256(f"{self.recipe!r} {seed} {self.made_by}".encode())
        for array in (X, y, () if sample_weight is None else sample_weight):
            digest.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
        return digest.hexdigest()[:24]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process trains this fit."""
    lock = FileLock(path, fallback_to_soft=False)
    # Without a lock both processes train, which costs time and nothing else: where a file system has no locks, or where
    # another run has removed the directory.
    with suppress(OSError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _load(place: Path) -> FittedModel | None:
    """Return the fit kept at ``place``; None where there is none, or what is there is damaged, which is removed."""
    if not place.is_dir():
        return None
    try:
        document: Any = read(place, _KIND)
        fitted = assemble(restore(document["fitted"]))
    except StoreError:
        shutil.rmtree(place, ignore_errors=True)
        return None
    _repeat([(getattr(errors, name), message) for name, message in document["warnings"]])
    return fitted


def _save(place: Path, fitted: FittedModel, said: Sequence[tuple[type[Warning], str]]) -> None:
    """Keep a fit and the library's warnings of its training."""
    own = [[kind.__name__, message] for kind, message in said if issubclass(kind, VhatWarning)]
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    try:
        write(temporary, _KIND, {"fitted": describe(fitted), "warnings": own})
        with suppress(OSError):  # another process, where there are no locks, has put the same fit there
            temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _repeat(said: Sequence[tuple[type[Warning], str]]) -> None:
    for kind, message in said:
        warnings.warn(message, kind, stacklevel=3)
