"""Summaries of the audit that is saved with a model, for commands that do not compute an audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vhat.evidence.audit import Audit

__all__ = ["doubtful_lines", "summary", "warning"]

_VERDICTS = {"fails": "failed", "undecided": "could not be decided"}
"""The verdicts that a user should look at, and their words in a sentence."""


def doubtful_lines(audit: Audit, *, noise_given: bool = False) -> dict[str, list[str]]:
    """Return the names of the lines that fail, and of those that are undecided, by verdict.

    Args:
        audit: The audit. It was made with an estimated noise level.
        noise_given: Whether the user now gives the noise level. The line about its estimate is then left out.
    """
    lines = [line for line in audit if not (noise_given and line.name == "noise")]
    return {verdict: [line.name for line in lines if line.verdict == verdict] for verdict in _VERDICTS}


def summary(audit: Audit) -> str:
    """Return the result of an audit in a few words: the lines to look at, if any."""
    names = [line.name for line in audit if line.verdict in _VERDICTS]
    return f"look at {', '.join(names)}" if names else "nothing that can be tested fails"


def warning(audit: Audit | None, directory: Path, *, noise: float | str | None = None) -> str | None:
    """Return a warning about the model for users of its intervals, or None if its audit leaves no doubt.

    Args:
        audit: The saved audit, or None if there is none.
        directory: The directory of the model.
        noise: The option ``--noise`` of the command.
    """
    if audit is None:
        return f"This model was saved without an audit; vhat audit {directory} makes one."
    if noise == "weights":
        return (
            "The audit saved with this model takes the noise as equal in every row; "
            f"vhat audit {directory} --noise weights makes one for noise by weights."
        )
    names_by_verdict = doubtful_lines(audit, noise_given=isinstance(noise, float))
    parts = [f"{_listed(names)} {_VERDICTS[verdict]}" for verdict, names in names_by_verdict.items() if names]
    if not parts:
        return None
    return f"warning: in the audit of this model {', '.join(parts)}; vhat audit {directory} says why, and what to do."


def _listed(names: list[str]) -> str:
    """Return names with commas, and "and" before the last."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"
