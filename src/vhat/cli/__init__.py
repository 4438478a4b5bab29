"""The command ``vhat``, one file a command.

A new command is a new file here that decorates a function with :func:`vhat.cli.application.command`; it is found by
itself. Such a file imports nothing numerical at its top: ``vhat --help`` must stay quick.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from vhat.cli.application import app

__all__ = ["app"]

_ORDER = ("fit", "predict", "calibrate", "audit", "plan", "report", "sketch", "compare", "demo", "study")
"""The order of the help; commands that are not named follow."""

_found = [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]
for _name in [*(name for name in _ORDER if name in _found), *(name for name in _found if name not in _ORDER)]:
    import_module(f"{__name__}.{_name}")
