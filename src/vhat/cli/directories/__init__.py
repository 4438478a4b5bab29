"""Prediction of directories of files, by one process or by many.

- ``frames.py``: the pure function from a frame to its intervals;
- ``worker_models.py``: the models that a process keeps loaded;
- ``dataset.py``: the files of a directory;
- ``partition.py``: the intervals of one file;
- ``engines.py``: this process, several processes, or a Dask cluster;
- ``manifest.py``: the record of finished files, from which a stopped run continues;
- ``totals.py``: counts and warnings over all files;
- ``command.py``: ``vhat predict`` of a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhat.cli.directories.frames import FramePredictor

__all__ = ["FramePredictor"]


def __getattr__(name: str) -> Any:
    """Import ``FramePredictor`` on first use, because the command line imports this package to show its help."""
    if name == "FramePredictor":
        from vhat.cli.directories.frames import FramePredictor

        return FramePredictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
