"""The tables of the shift league: what each method covers, how wide, and its Winkler score beside split conformal's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SPLIT = "split conformal"
NUMBERS = ("coverage", "width", "winkler", "matched", "matched overall")
RESAMPLES = 4000
"""Of the splits of each table, for the bootstrap intervals."""
KINDS = {"gap": "the middle third of one input left out", "end": "the top 15% of one input left out"}


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return all tables, for every activation that was measured."""
    text = ["# Intervals under shift", "", *HOW, "", *NAMES, "", *_left_out(lines)]
    for title, chosen, side in _groups(lines):
        text += [f"## {title}", "", _methods(chosen, side)]
        if side == "outside":
            text += [_tables(chosen)]
    return "\n".join(text)


def for_docs(lines: list[dict[str, Any]]) -> str:
    """Return what the documentation shows: the picture and one table a kind of split."""
    text = [
        "",
        "![Log Winkler ratios to split conformal, and coverage as given and at equal mean width, by method]"
        "(../benchmarks/shift_league.png)",
        "",
        *NAMES,
        "",
        *_left_out(lines),
    ]
    for title, chosen, side in _groups(lines):
        text += [f"**{title}**", "", _methods(chosen, side)]
    return "\n".join(text)


def _groups(lines: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]], str]]:
    """Yield the title, the splits and the side of every table."""
    for activation in sorted({line["activation"] for line in lines}):
        own = [line for line in lines if line["activation"] == activation and "methods" in line]
        for kind, told in KINDS.items():
            chosen = [line for line in own if line["split"].endswith(kind)]
            if chosen:
                yield f"{activation}: {kind} ({told}), {len(chosen)} splits", chosen, "outside"
        if own:
            yield f"{activation}: rows like the training rows, {len(own)} splits", own, "inside"


HOW = (
    "90% intervals for a new response. Five networks of 50 units a split, Adam, stopped early; every method has",
    "the same training, validation, calibration and test rows. Means over the splits of a table, then over tables.",
    "Width and Winkler score (smaller is better) are in standard deviations of the training responses.",
)
NAMES = (
    "- *log ratio*: mean logarithm of the method's Winkler score over that of split conformal on the same split,",
    "  with a 95% bootstrap interval over the splits of each table; below 0 the method is better.",
    "- *wins*: splits on which its Winkler score is below split conformal's; *best*: below that of every method.",
    "- *matched overall*: coverage after all widths of a split, with shift and without, are multiplied by one",
    "  number so that their mean is that of split conformal: whether the method is wider where there is shift.",
    "- *matched here*: the same for the rows of this table alone: whether it is wider at the rows that need it.",
    "- *CPU s*: seconds for one network's intervals, beyond the training of one network.",
)


def _left_out(lines: list[dict[str, Any]]) -> list[str]:
    skipped = sorted({line["split"] for line in lines if "skipped" in line})
    return [f"Left out, for the column has too few values: {', '.join(skipped)}.", ""] if skipped else []


def numbers_of(lines: list[dict[str, Any]], method: str, side: str, name: str) -> dict[str, np.ndarray]:
    """Return one number a split, by table."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if method in line["methods"]:
            found.setdefault(line["split"].split("/")[0], []).append(line["methods"][method][side][name])
    return {table: np.array(values) for table, values in found.items()}


def mean_over_tables(values: dict[str, np.ndarray]) -> float:
    """Return the mean over tables of the means over splits."""
    return float(np.mean([each.mean() for each in values.values()]))


def log_ratios(lines: list[dict[str, Any]], method: str, side: str) -> dict[str, np.ndarray]:
    """Return the logarithm of the Winkler score over split conformal's, one a split, by table."""
    own, other = (numbers_of(lines, name, side, "winkler") for name in (method, SPLIT))
    return {table: np.log(own[table] / other[table]) for table in own}


def bootstrap(values: dict[str, np.ndarray], seed: int = 0) -> tuple[float, float]:
    """Return a 95% interval of the mean over tables, the splits of each table drawn again."""
    rng = np.random.default_rng(seed)
    draws = [each[rng.integers(len(each), size=(RESAMPLES, len(each)))].mean(axis=1) for each in values.values()]
    low, high = np.quantile(np.mean(draws, axis=0), (0.025, 0.975))
    return float(low), float(high)


def _methods(lines: list[dict[str, Any]], side: str = "outside") -> str:
    """Return one row a method, the best log ratio first."""
    methods = [name for name in lines[0]["methods"] if all(name in line["methods"] for line in lines)]
    best = [min(methods, key=lambda name: line["methods"][name][side]["winkler"]) for line in lines]
    rows = []
    for method in methods:
        ratios = log_ratios(lines, method, side)
        low, high = bootstrap(ratios)
        wins = int(sum(np.sum(each < 0) for each in ratios.values()))
        seconds = float(np.mean([line["methods"][method]["seconds"] for line in lines]))
        numbers = {name: mean_over_tables(numbers_of(lines, method, side, name)) for name in NUMBERS}
        ratio = "0" if method == SPLIT else f"{mean_over_tables(ratios):+.3f} ({low:+.3f} to {high:+.3f})"
        shown = "" if method == SPLIT else f"{wins}"
        rows.append(
            (
                mean_over_tables(ratios),
                f"| {method} | {100 * numbers['coverage']:.1f} | {numbers['width']:.2f} | {numbers['winkler']:.2f} | "
                f"{ratio} | {shown} | {best.count(method)} | {100 * numbers['matched overall']:.1f} | "
                f"{100 * numbers['matched']:.1f} | {seconds:.2g} |",
            )
        )
    head = [
        "| method | coverage % | width | Winkler | log ratio (95%) | wins | best | matched overall % | "
        "matched here % | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(row for _, row in sorted(rows)), ""])


def _tables(lines: list[dict[str, Any]]) -> str:
    """Return the log ratios table by table."""
    methods = [name for name in lines[0]["methods"] if name != SPLIT and all(name in line["methods"] for line in lines)]
    tables = list(numbers_of(lines, SPLIT, "outside", "winkler"))
    head = [
        "Log ratio by table, with its 95% interval over the columns:",
        "",
        f"| method | {' | '.join(f'{table}' for table in tables)} |",
        "|---|" + "---|" * len(tables),
    ]
    rows = []
    for method in methods:
        cells = []
        for table, values in log_ratios(lines, method, "outside").items():
            low, high = bootstrap({table: values})
            cells.append(f"{values.mean():+.2f} ({low:+.2f} to {high:+.2f})")
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*head, *rows, ""])
