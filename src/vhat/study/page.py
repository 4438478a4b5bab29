"""The pages on the reproduction: text written by hand, with numbers from the results.

The parts between ``<!-- study: NAME -->`` and ``<!-- end -->`` are replaced by text made from the results; the rest of
the page stays. The names are those of :data:`PARTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vhat.errors import InputError
from vhat.study import delta_per_point, regions, selection, short_tables
from vhat.study.cell import Cell
from vhat.study.experiments import Experiment, Plan
from vhat.study.results import Results, write_whole
from vhat.study.summary import gaps, table_rows
from vhat.study.tables import to_markdown

__all__ = ["PARTS", "fill", "refresh"]

_PART = re.compile(r"(<!-- study: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refresh(page: Path, out: Path) -> None:
    """Replace the parts of a page by those made from the results in ``out``.

    Raises:
        InputError: When the page does not exist, or names an unknown part.
    """
    if not page.is_file():
        raise InputError(f"{page} does not exist. Give a page with parts such as <!-- study: table1 --> <!-- end -->.")
    write_whole(page, fill(page.read_text(encoding="utf-8"), Results(Path(out))).encode())


def fill(text: str, results: Results) -> str:
    """Return the text of a page with its parts made from the results.

    Raises:
        InputError: When the text names an unknown part.
    """

    def replacement(part: re.Match[str]) -> str:
        name = part["name"]
        if name not in PARTS:
            raise InputError(f"the page names a part {name!r}. Known are {', '.join(PARTS)}.")
        return f"{part[1]}\n{PARTS[name](results).strip()}\n\n{part[3]}"

    return _PART.sub(replacement, text)


def _table(experiment: Experiment) -> Callable[[Results], str]:
    """Return a function that makes the table of an experiment."""

    def make(results: Results) -> str:
        cells = Plan(experiment).cells()
        return to_markdown(table_rows(cells, results), gaps(cells, results))

    return make


def _selection(results: Results) -> str:
    """Return the table of the choice of lam."""
    return selection.to_markdown(selection.choose(Plan("figure2").cells(), results))


def _regions(results: Results) -> str:
    """Return the table below figure 1."""
    return regions.to_markdown(Plan("figure1").cells(), results)


def _missing(experiment: Experiment) -> Callable[[Results], str]:
    """Return a function that lists the missing cells of a figure."""

    def make(results: Results) -> str:
        lines = gaps(Plan(experiment).cells(), results).lines()
        return "\n\n".join(lines) or "Every cell of this figure is there."

    return make


def _evidence(results: Results) -> str:
    """Return a table of medians over trials that show how close the proposed method's fits are to a minimum."""
    lines = [
        "| version | truth | d | n | trials | training MSE | gradient of the loss | pull of the decay | imbalance |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = ("training mse", "gradient of the loss", "pull of the decay", "alignment")
    cells = [cell for name in ("table1", "table2") for cell in Plan(name, methods=("proposed",)).cells()]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        result = results.read(cell)
        if result is not None and result["status"] == "done":
            groups.setdefault((cell.version, cell.truth, cell.d, cell.n), []).append(result["fit"])
    for group, fits in groups.items():
        medians = [f"{np.median([fit[name] for fit in fits]):.1e}" for name in names]
        lines.append(f"| {' | '.join(map(str, group))} | {len(fits)} | {' | '.join(medians)} |")
    return "\n".join(lines)


def _audits(results: Results) -> str:
    """Return the audits of the first trial of each version, at n = 100, for d = 10 and for figure 1."""
    audits = []
    for experiment in ("table1", "figure1"):
        for version in ("published", "met"):
            plan = Plan(experiment, sizes=(100,), trials=1, versions=(version,), methods=("proposed",))
            audits += [_audit(cell, results) for cell in plan.cells()[:1]]
    return "\n\n".join(audits)


def _audit(cell: Cell, results: Results) -> str:
    """Return the audit of a cell as a table."""
    result = results.read(cell)
    head = f"Cell `{cell.key}`:"
    if result is None or result["status"] != "done":
        return f"{head} missing."
    lines = [head, "", "| line | verdict | value | what it is |", "|---|---|---|---|"]
    for line in result["audit"]:
        value = "" if line["value"] is None else f"{line['value']:.3g}"
        meaning = line["meaning"].replace("|", r"\|")
        lines.append(f"| {line['name']} | {line['verdict']} | {value} | {meaning} |")
    return "\n".join(lines)


def _versions(results: Results) -> str:
    """Return the software versions of the stored cells, with the number of cells of each."""
    counts: dict[str, int] = {}
    for result in results.every():
        text = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        counts[text] = counts.get(text, 0) + 1
    return "\n".join(f"- {count} cells: {text}" for text, count in counts.items()) or "No cell is there yet."


PARTS: dict[str, Callable[[Results], str]] = {
    "table1": _table("table1"),
    "table2": _table("table2"),
    "published": short_tables.published_rows,
    "variants": short_tables.variant_rows,
    "unshared": delta_per_point.to_markdown,
    "selection": _selection,
    "figure1": _regions,
    "figure1-missing": _missing("figure1"),
    "figure2-missing": _missing("figure2"),
    "evidence": _evidence,
    "audits": _audits,
    "versions": _versions,
}
"""The known parts of a page, with the function that makes each."""
