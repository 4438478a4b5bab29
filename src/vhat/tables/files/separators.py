"""What may stand between the columns of a text file, and how to tell that it was not what was said."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["WORDS", "likely_other"]

WORDS = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}
"""Separators that a file may have, as they are given on the command line."""


def likely_other(names: Sequence[str]) -> str | None:
    """Return the separator that the names of columns hold as often as there are names, or more; None where none is."""
    counts = {sign: sum(name.count(sign) for name in names) for sign in WORDS}
    most = max(counts, key=lambda sign: counts[sign])
    return most if counts[most] >= len(names) else None
