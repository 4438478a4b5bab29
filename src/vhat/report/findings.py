"""Findings against a fit, as sentences, and the verdict at the head of the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vhat.report.accuracy import Accuracy
from vhat.report.coverage_parts import Part, count
from vhat.report.evaluation_rows import EvaluationRows
from vhat.report.numbers import short

__all__ = ["findings", "verdict"]

_BIASED = 3.0
"""Number of standard errors above which the mean residual is called a bias."""
_FEW = 20
"""With fewer evaluation rows, errors are not tested, and coverage is not called good: all of 20 rows lie inside their
95% intervals with probability 0.36."""
_NAMED = 2
"""Number of parts of the rows that a sentence names."""


@dataclass(frozen=True)
class _Finding:
    """A finding against the fit.

    Attributes:
        name: Its name in the verdict.
        text: A sentence with the numbers.
        remedy: What to do.
    """

    name: str
    text: str
    remedy: str


def findings(
    evaluation: EvaluationRows, errors: Accuracy | None, total: Part | None, tested: list[Part], level: str
) -> list[dict[str, str]]:
    """Return the findings of the evaluation rows of one output against the fit: name, text and remedy of each.

    Args:
        evaluation: The rows.
        errors: Their errors, or None if no row has a prediction.
        total: Coverage over all rows, or None if there are no intervals.
        tested: Coverage of each part of the rows.
        level: The nominal level, as text.
    """
    found = []
    if errors is not None and errors.rows >= _FEW:
        found += _error_findings(errors, held_out=evaluation.source == "held-out")
    found += _coverage_findings(evaluation, total, tested, level)
    return [dict(vars(finding)) for finding in found]


def _error_findings(errors: Accuracy, *, held_out: bool) -> list[_Finding]:
    """Return findings on the size and on the mean of the errors."""
    kind = "held-out" if held_out else "left-out"
    found = []
    if errors.rms > errors.mean_rms:
        text = (
            f"The error on {kind} rows, {short(errors.rms)}, is larger than that of the mean of the training "
            f"responses, {short(errors.mean_rms)}."
        )
        found.append(_Finding("accuracy", text, "Do not use these predictions; predict the mean."))
    if abs(errors.bias) > _BIASED * errors.bias_error:
        side = "above" if errors.bias > 0 else "below"
        text = (
            f"{kind.capitalize()} responses lie {short(abs(errors.bias))} {side} their predictions on average "
            f"(standard error {short(errors.bias_error, 2)})."
        )
        remedy = "Try less weight decay."
        if held_out:
            remedy = "Train on rows like these, or with less weight decay."
        found.append(_Finding("bias", text, remedy))
    return found


def _coverage_findings(
    evaluation: EvaluationRows, total: Part | None, tested: list[Part], level: str
) -> list[_Finding]:
    """Return findings on the coverage of all rows and of parts of them."""
    held_out = evaluation.source == "held-out"
    kind = "held-out" if held_out else "left-out"
    found = []
    total_is_off = total is not None and total.off != "" and not evaluation.circular
    if total is not None and total_is_off:
        side = "Too few" if total.off == "low" else "Too many"
        text = f"{side} {kind} responses lie inside their {level} interval: {_counted(total)}."
        rows = "rows like these" if held_out else "rows that training did not use"
        found.append(_Finding("coverage", text, f"Calibrate on {rows}: calibrate(X, y), or vhat calibrate."))
    # Parts that cover too little are named first.
    off = sorted((part for part in tested if part.off), key=lambda part: (part.off != "low", part.chance))
    if total is not None and total_is_off:
        off = [part for part in off if not _explained_by_total(part, total, len(tested))]
    if off:
        remedy = "The noise or the fit differs there: see the residuals."
        found.append(_Finding("coverage by group", _parts_text(off, kind), remedy))
    return found


def _explained_by_total(part: Part, total: Part, tests: int) -> bool:
    """Return whether the share of a part differs from the share of all rows by no more than chance explains."""
    inside = np.arange(part.rows) < part.inside
    return not count(inside, np.array([total.share]), two_sided=True, tests=tests).off


def _parts_text(off: list[Part], kind: str) -> str:
    """Return a sentence that names the first parts whose coverage is off."""
    named = "; ".join(f"{part.named}: {_counted(part)}" for part in off[:_NAMED])
    more = f"; and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
    return f"Coverage of {kind} responses is clearly off in parts of the data ({named}{more})."


def _counted(part: Part) -> str:
    return f"{part.inside} of {part.rows}"


def verdict(audit: dict[str, Any], outputs: list[dict[str, Any]], no_intervals: str) -> dict[str, Any]:
    """Return the verdict of the page. It is ``"good"`` only if everything was tested, and nothing was found.

    Args:
        audit: The audit, as plain data.
        outputs: The outputs, as plain data, with their ``quality``.
        no_intervals: Why there are no intervals; empty if there are.

    Returns:
        ``kind``: ``"good"``; ``"look"`` if something was found; or ``"open"`` if nothing was found and coverage was
        not tested. ``names``: what to look at. ``findings``. ``not_tested``: what was not tested, and why.
    """
    found = []
    for output in outputs:
        prefix = f"{output['name']}: " if len(outputs) > 1 else ""
        for finding in output["quality"]["findings"]:
            found.append(finding | {"text": prefix + finding["text"]})
    names = [*audit["failed"], *dict.fromkeys(finding["name"] for finding in found)]
    not_tested = "" if no_intervals else _not_tested(outputs)
    if no_intervals or found or not audit["holds"]:
        kind = "look"
    elif not_tested:
        kind = "open"
    else:
        kind = "good"
    return {"kind": kind, "names": names, "findings": found, "not_tested": not_tested}


def _not_tested(outputs: list[dict[str, Any]]) -> str:
    """Return why coverage was not tested, without a full stop; empty if it was tested for all outputs."""
    for output in outputs:
        coverage = output["quality"]["coverage"]
        doubt = output["quality"]["doubt"]
        if doubt:
            return f"A test of the coverage of new responses needs held-out rows: {doubt}"
        if coverage is None:
            return "Whether the intervals cover new responses was not tested"
        if coverage["rows"] < _FEW:
            rows = "1 row is" if coverage["rows"] == 1 else f"{coverage['rows']} rows are"
            return f"{rows} too few to test whether the intervals cover new responses"
    return ""
