"""Compare what the cases recorded on two commits, and print what differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from guard_cases.record import Entry

__all__ = ["Finding", "compare", "table"]

SHOWN = 20
"""Differing entries of a case that are printed without ``--verbose``."""


@dataclass(frozen=True)
class Finding:
    """One entry of one case on both commits.

    Attributes:
        case: The case.
        quantity: The entry's name.
        difference: Largest difference of two numbers over the largest magnitude in either array, or over the entry's
            scale where that is more; NaN for texts and for arrays that cannot be subtracted.
        equal: Whether it counts as equal under the rules of the comparison.
        verdict: ``"equal"``, or what differs.
    """

    case: str
    quantity: str
    difference: float
    equal: bool
    verdict: str


Cases = Mapping[str, Mapping[str, Entry]]


def compare(before: Cases, after: Cases, *, rtol: float = 0.0, ignore_words: bool = False) -> list[Finding]:
    """Compare two records, entry by entry.

    Args:
        before: Entries of every case on one commit.
        after: The same on the other commit.
        rtol: 0 asks for equal bits (NaN equals NaN). Above 0, numbers may differ by so much of the largest magnitude of
            their array, or of their scale; counts of iterations and printed tables are not compared.
        ignore_words: Compare numbers and statuses only, not the texts for people.

    Returns:
        One finding for each entry of either record, in the order of the cases.
    """
    found = []
    for case in _ordered(before, after):
        first = before.get(case, {})
        second = after.get(case, {})
        for name in _ordered(first, second):
            difference, verdict = _judge(first.get(name), second.get(name), rtol, ignore_words)
            equal = verdict in ("equal", "not compared")
            found.append(Finding(case, name, difference, equal, verdict))
    return found


def _ordered(first: Iterable[str], second: Iterable[str]) -> list[str]:
    """Return the names in either, each once."""
    return list(dict.fromkeys([*first, *second]))


def _judge(before: Entry | None, after: Entry | None, rtol: float, ignore_words: bool) -> tuple[float, str]:
    """Return the relative difference and the verdict of one entry."""
    kinds = {entry.kind for entry in (before, after) if entry is not None}
    if ignore_words and kinds & {"words", "printed"}:
        return float("nan"), "not compared"
    if before is None:
        return float("nan"), "only after"
    if after is None:
        return float("nan"), "only before"
    difference = float("nan")
    if isinstance(before.value, str) or isinstance(after.value, str):
        verdict = _judge_text(before.value, after.value)
    else:
        difference, verdict = _judge_arrays(before.value, after.value, max(before.scale, after.scale), rtol)
    # where the arithmetic was reorganised, one more iteration is no error, nor is a printed digit
    if rtol > 0 and kinds <= {"count", "printed"} and verdict != "equal":
        return difference, "not compared"
    return difference, verdict


def _judge_text(before: np.ndarray | str, after: np.ndarray | str) -> str:
    if not (isinstance(before, str) and isinstance(after, str)):
        return f"{_shown(before)} became {_shown(after)}"
    if before == after:
        return "equal"
    return _first_change(before, after)


def _shown(value: np.ndarray | str) -> str:
    return repr(value) if isinstance(value, str) else f"an array of shape {value.shape}"


def _first_change(before: str, after: str) -> str:
    """Quote two texts from shortly before the first character that differs."""
    shorter = min(len(before), len(after))
    at = next((k for k in range(shorter) if before[k] != after[k]), shorter)
    first = max(0, at - 15)
    return f"{before[first : at + 45]!r} became {after[first : at + 45]!r}"


def _judge_arrays(before: np.ndarray, after: np.ndarray, scale: float, rtol: float) -> tuple[float, str]:
    if before.shape != after.shape:
        return float("nan"), f"shape {before.shape} became {after.shape}"
    difference = _relative_difference(before, after, scale)
    if rtol > 0:
        return difference, "equal" if difference <= rtol else "different"
    if before.dtype != after.dtype:
        return difference, f"{before.dtype} became {after.dtype}"
    return difference, "equal" if _same_bits(before, after) else "different"


def _relative_difference(before: np.ndarray, after: np.ndarray, scale: float) -> float:
    """Return the largest difference relative to the arrays' largest magnitude, or to ``scale`` where that is more.

    Infinity where one value is NaN or infinite and the other is not the same.
    """
    a = before.astype(np.float64)
    b = after.astype(np.float64)
    differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not differ.any():
        return 0.0
    if not (np.isfinite(a[differ]).all() and np.isfinite(b[differ]).all()):
        return float("inf")
    both = np.abs(np.concatenate([a.ravel(), b.ravel()]))
    largest = both[np.isfinite(both)].max()
    return float(np.abs(a[differ] - b[differ]).max() / max(largest, scale))


def _same_bits(before: np.ndarray, after: np.ndarray) -> bool:
    """Compare bytes, but any NaN equals any NaN; 0.0 and -0.0 are different."""
    if before.tobytes() == after.tobytes():
        return True
    missing = np.isnan(before)
    if not np.array_equal(missing, np.isnan(after)):
        return False
    return before[~missing].tobytes() == after[~missing].tobytes()


# -- the table -------------------------------------------------------------------------------------


def table(findings: list[Finding], *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a table: one a case, and one for each entry that differs (for every entry if ``verbose``)."""
    yield f"{'case':<22} {'quantity':<44} {'difference':>10}  verdict"
    for case in dict.fromkeys(finding.case for finding in findings):
        own = [finding for finding in findings if finding.case == case]
        yield _summary(case, own)
        shown = own if verbose else [finding for finding in own if not finding.equal][:SHOWN]
        for finding in shown:
            yield f"{'':<22} {finding.quantity:<44} {_number(finding.difference):>10}  {finding.verdict}"
        hidden = sum(not finding.equal for finding in own) - len(shown)
        if hidden > 0:
            yield f"{'':<22} ... and {hidden} more (--verbose shows them)"


def _summary(case: str, own: list[Finding]) -> str:
    """Describe one case in one line."""
    different = sum(not finding.equal for finding in own)
    skipped = sum(finding.verdict == "not compared" for finding in own)
    compared = [finding.difference for finding in own if finding.verdict != "not compared"]
    sizes = [size for size in compared if not np.isnan(size)]
    verdict = f"{different} DIFFERENT" if different else "equal"
    if skipped:
        verdict += f", {skipped} not compared"
    return f"{case:<22} {f'{len(own)} entries':<44} {_number(max(sizes, default=float('nan'))):>10}  {verdict}"


def _number(value: float) -> str:
    if np.isnan(value):
        return ""
    return "0" if value == 0 else f"{value:.1e}"
