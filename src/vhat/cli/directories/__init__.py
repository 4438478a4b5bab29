"""Prediction over directories of files: one pure function, frame to frame and file to file, and who calls it where.

``frames.py`` holds the function, ``worker_models.py`` the models that a process keeps loaded, ``dataset.py`` the files
of a directory, ``partition.py`` the work on one of them, ``engines.py`` who does it, ``manifest.py`` the record of what
is finished, and ``command.py`` what ``vhat predict`` does with a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vhat.cli.directories.frames import FramePredictor

__all__ = ["FramePredictor"]


def __getattr__(name: str) -> Any:
    """Import the function when it is asked for: the command line imports this package to show its help."""
    if name == "FramePredictor":
        from vhat.cli.directories.frames import FramePredictor

        return FramePredictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
