"""The command line ``vhat``, one file per command.

To add a command, add a file here with a function under the decorator :func:`vhat.cli.application.command`; every file
of the package is imported. Such a file imports no numerical library at its top, so that ``vhat --help`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from vhat.cli.application import app

__all__ = ["app"]

_ORDER = ("fit", "predict", "calibrate", "audit", "plan", "report", "sketch", "compare", "demo", "study")
"""Order of the commands in the help. Commands that are not listed follow."""

_modules = [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]
_ordered = [name for name in _ORDER if name in _modules]
_others = [name for name in _modules if name not in _ORDER]
for _name in _ordered + _others:
    import_module(f"{__name__}.{_name}")
