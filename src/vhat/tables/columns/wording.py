"""Name the table, and the option that decides how a column is read, in messages."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

__all__ = ["Wording"]


@dataclass(frozen=True)
class Wording:
    """Words for messages about columns.

    Attributes:
        table: The name of the table.
        command: Whether the message is read at the command line; otherwise it is read by someone who writes Python.
    """

    table: str = "X"
    command: bool = False

    def override(self, name: str, kind: str) -> str:
        """Return the option that reads a column as a kind.

        Examples:
            >>> Wording().override("zip", "category")
            "columns={'zip': 'category'}"
            >>> Wording(command=True).override("zip", "category")
            '--columns zip=category'
            >>> Wording(command=True).override("Order No", "skip")
            "--columns 'Order No=skip'"
        """
        if self.command:
            return f"--columns {shlex.quote(f'{name}={kind}')}"
        return f"columns={{{name!r}: {kind!r}}}"

    def overrides(self, name: str, *kinds: str) -> str:
        """Return several such options, as alternatives."""
        return ", or ".join(self.override(name, kind) for kind in kinds)
