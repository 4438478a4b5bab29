"""What the audit that was saved with a model leaves in doubt, for commands that do not audit themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vhat.evidence.audit import Audit

__all__ = ["doubts", "look_at", "warning"]


def doubts(audit: Audit, *, noise_given: bool = False) -> dict[str, list[str]]:
    """Return the names of the lines that fail and of those that are undecided.

    Args:
        audit: The audit, made without the noise level.
        noise_given: Whether the noise level was given since: the line about its estimate is then no matter.
    """
    lines = [line for line in audit if not (noise_given and line.name == "noise")]
    return {verdict: [line.name for line in lines if line.verdict == verdict] for verdict in ("fails", "undecided")}


def look_at(audit: Audit) -> str:
    """Return the head of an audit: the lines to look at, if any."""
    names = [line.name for line in audit if line.verdict in ("fails", "undecided")]
    return f"look at {', '.join(names)}" if names else "nothing that can be tested fails"


def warning(audit: Audit | None, directory: Path, *, noise: float | str | None = None) -> str | None:
    """Return the sentence that a user of the model's intervals should read; None where there is no doubt."""
    if audit is None:
        return f"This model was saved without an audit; vhat audit {directory} makes one."
    if noise == "weights":
        made = f"vhat audit {directory} --noise weights makes one for noise by weights"
        return f"The audit saved with this model takes the noise as equal in every row; {made}."
    found = doubts(audit, noise_given=isinstance(noise, float))
    parts = [f"{_listed(names)} {_FOUND[verdict]}" for verdict, names in found.items() if names]
    if not parts:
        return None
    return f"warning: in the audit of this model {', '.join(parts)}; vhat audit {directory} says why, and what to do."


def _listed(names: list[str]) -> str:
    """Return names with commas, and "and" before the last."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


_FOUND = {"fails": "failed", "undecided": "could not be decided"}
