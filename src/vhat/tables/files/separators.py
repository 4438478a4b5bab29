"""Column separators of text files, and how a wrong one shows in the names of the columns."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["WORDS", "likely_other"]

WORDS = {";": "';'", "\t": "tab", "|": "'|'", ",": "','"}
"""Known separators, and how each is written on the command line."""


def likely_other(names: Sequence[str]) -> str | None:
    """Return the known separator that occurs most often within column names; None if it occurs less than once a name.

    A table that was split at the wrong character has names such as ``"a;b;c"``.
    """
    counts = {sign: sum(name.count(sign) for name in names) for sign in WORDS}
    most = max(counts, key=lambda sign: counts[sign])
    if counts[most] < len(names):
        return None
    return most
