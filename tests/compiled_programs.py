"""Compiled JAX programs, kept between runs of the tests: one directory for each process, seeded by a copy.

Processes must not write to one directory: a program that another process has written half of would be read as if it
were whole. Each worker therefore begins with a copy of the shared directory, and when all have ended the programs that
are new are copied back, each under a temporary name first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

_CHECKOUT = hashlib.sha256(str(Path(__file__).resolve()).encode()).hexdigest()[:8]
_ROOT = Path(tempfile.gettempdir()) / f"vhat-test-xla-{_CHECKOUT}"
_SHARED = _ROOT / "shared"


def own_directory() -> Path:
    """Return this process's own directory, filled with the programs of earlier runs."""
    own = _ROOT / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    _copy_new(_SHARED, own)
    return own


def share() -> None:
    """Copy what the workers have compiled to the directory from which the next run starts."""
    for own in sorted(_ROOT.iterdir()):
        if own != _SHARED:
            _copy_new(own, _SHARED)


def _copy_new(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        return
    for program in source.iterdir():
        place = target / program.name
        if program.is_file() and not place.exists():
            temporary = target / f".{program.name}.{os.getpid()}"
            shutil.copyfile(program, temporary)
            temporary.replace(place)
