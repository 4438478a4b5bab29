"""How a refusal calls the table, and how it writes the option that would decide."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

__all__ = ["Wording"]


@dataclass(frozen=True)
class Wording:
    """Words for messages about columns.

    Attributes:
        table: What the table is called.
        command: Whether the reader is at the command line; otherwise the reader writes Python.
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
