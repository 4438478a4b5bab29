"""What speaks against a fit, in sentences, and the verdict that stands at the head of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from vhat.report.accuracy import Accuracy
from vhat.report.coverage_parts import Part, count
from vhat.report.judged_rows import JudgedRows
from vhat.report.numbers import short

__all__ = ["findings", "verdict"]

_BIASED = 3.0
"""Standard errors by which the mean residual must differ from zero to be called a bias."""
_FEW = 20
"""Judged rows below which nothing is called good or bad of errors, and nothing good of coverage: all of 20 rows lie
inside 95% intervals in one case of three."""
_NAMED = 2
"""Parts of the rows that a sentence names."""


def findings(
    judges: JudgedRows, found: Accuracy | None, total: Part | None, counted: list[Part], level: str
) -> list[dict[str, str]]:
    """Return what the judged rows of one output say against the fit, each with a name, a sentence and a remedy.

    Args:
        judges: The rows.
        found: Their errors.
        total: How many of them lie inside their intervals.
        counted: The same by part.
        level: The level that is claimed, as text.
    """
    held = judges.source == "held-out"
    kind = "held-out" if held else "left-out"
    made = []
    if found is not None and found.rows < _FEW:
        found = None
    if found is not None and found.rms > found.mean_rms:
        said = (
            f"The error on {kind} rows, {short(found.rms)}, is larger than that of the mean of the training responses, "
            f"{short(found.mean_rms)}."
        )
        made.append(_finding("accuracy", said, "Do not use these predictions; predict the mean."))
    if found is not None and abs(found.bias) > _BIASED * found.bias_error:
        side = "above" if found.bias > 0 else "below"
        said = (
            f"{kind.capitalize()} responses lie {short(abs(found.bias))} {side} their predictions on average (standard "
            f"error {short(found.bias_error, 2)})."
        )
        remedy = "Train on rows like these, or with less weight decay." if held else "Try less weight decay."
        made.append(_finding("bias", said, remedy))
    if total is not None and total.off and not judges.circular:
        side = "Too few" if total.off == "low" else "Too many"
        said = f"{side} {kind} responses lie inside their {level} interval: {_counted(total)}."
        rows = "rows like these" if held else "rows that training did not see"
        made.append(_finding("coverage", said, f"Calibrate by {rows}: calibrate(X, y), or vhat calibrate."))
    # those that cover too little are named first
    off = sorted((part for part in counted if part.off), key=lambda part: (part.off != "low", part.chance))
    if total is not None and any(each["name"] == "coverage" for each in made):
        off = [part for part in off if not _explained(part, total, len(counted))]
    if off:
        remedy = "The noise or the fit differs there: see the residuals."
        made.append(_finding("coverage by group", _parts(off, kind), remedy))
    return made


def _finding(name: str, said: str, remedy: str) -> dict[str, str]:
    return {"name": name, "said": said, "remedy": remedy}


def _explained(part: Part, total: Part, looked: int) -> bool:
    """Whether a part is off because all rows are: its share differs from theirs by chance at most."""
    inside = np.arange(part.rows) < part.inside
    return not count(inside, np.array([total.share]), aimed=True, looked=looked).off


def _parts(off: list[Part], kind: str) -> str:
    named = "; ".join(f"{part.named}: {_counted(part)}" for part in off[:_NAMED])
    more = f"; and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
    return f"Coverage of {kind} responses is clearly off in parts ({named}{more})."


def _counted(part: Part) -> str:
    return f"{part.inside} of {part.rows}"


def verdict(audit: dict[str, Any], outputs: list[dict[str, Any]], trouble: str) -> dict[str, Any]:
    """Return the verdict of the page: ``"good"`` only where all that was asked for was tested, and holds.

    Args:
        audit: The audit, as plain data.
        outputs: The outputs, as plain data, with their ``quality``.
        trouble: Why there are no intervals; empty where there are.

    Returns:
        ``kind`` (``"good"``; ``"look"`` where something was found; ``"open"`` where nothing was found and coverage
        was not tested), ``names`` of what to look at, the ``findings``, and in ``open`` what was not tested.
    """
    found = []
    for output in outputs:
        of = f"{output['name']}: " if len(outputs) > 1 else ""
        found += [each | {"said": of + each["said"]} for each in output["quality"]["findings"]]
    names = [*audit["failed"], *dict.fromkeys(each["name"] for each in found)]
    missing = "" if trouble else _not_tested(outputs)
    kind = "look" if trouble or found or not audit["holds"] else "open" if missing else "good"
    return {"kind": kind, "names": names, "findings": found, "open": missing}


def _not_tested(outputs: list[dict[str, Any]]) -> str:
    """Return why coverage counts for nothing, without a full stop; empty where it was tested on all outputs."""
    for output in outputs:
        coverage = output["quality"]["coverage"]
        doubt = output["quality"]["doubt"]
        if doubt:
            return f"Coverage of new responses asks for held-out rows: {doubt}"
        if coverage is None:
            return "Whether the intervals cover new responses was not tested"
        if coverage["rows"] < _FEW:
            rows = "1 row is" if coverage["rows"] == 1 else f"{coverage['rows']} rows are"
            return f"{rows} too few to test whether the intervals cover new responses"
    return ""
