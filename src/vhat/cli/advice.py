"""Advice of the library that names calls of Python, in the options of the command line."""

from __future__ import annotations

import re

__all__ = ["in_options"]

_OPTIONS = {
    "network.calibrate(X_held_out, y_held_out) calibrates": "vhat calibrate MODEL HELD_OUT.csv calibrates",
    'bound="isoperimetric" asks': "--bound isoperimetric asks",
    "observation_noise= says": "--observation-noise says",
    "calibrate() goes back to leave-one-out": "vhat calibrate MODEL, without a table, goes back to leave-one-out",
    "Give held_out= other rows.": "Give --held-out other rows.",
    "or use calibrate('loo').": "or leave vhat calibrate out: vhat fit has calibrated by leave-one-out.",
}
"""What is Python in a message, and what to type here."""
_PYTHON = re.compile("|".join(map(re.escape, _OPTIONS)))


def in_options(advice: str) -> str:
    """Return a message with its calls of Python put as options and commands."""
    return _PYTHON.sub(lambda found: _OPTIONS[found[0]], advice)
