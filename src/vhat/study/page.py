"""The page on the reproduction: its words are written by hand, its numbers come from the results.

A part between ``<!-- study: NAME -->`` and ``<!-- end -->`` is made anew from the results; everything else is left as
it is. The names are those of :data:`PARTS`.
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
    """Fill the parts of a page from the results in ``out``.

    Raises:
        InputError: When the page does not exist or names a part that there is not.
    """
    if not page.is_file():
        raise InputError(f"{page} does not exist. Give a page with parts such as <!-- study: table1 --> <!-- end -->.")
    write_whole(page, fill(page.read_text(encoding="utf-8"), Results(Path(out))).encode())


def fill(text: str, results: Results) -> str:
    """Return the text with every part made from the results."""

    def made(part: re.Match[str]) -> str:
        name = part["name"]
        if name not in PARTS:
            raise InputError(f"the page names a part {name!r}. Known are {', '.join(PARTS)}.")
        return f"{part[1]}\n{PARTS[name](results).strip()}\n\n{part[3]}"

    return _PART.sub(made, text)


def _table(experiment: Experiment) -> Callable[[Results], str]:
    def made(results: Results) -> str:
        cells = Plan(experiment).cells()
        return to_markdown(table_rows(cells, results), gaps(cells, results))

    return made


def _chosen(results: Results) -> str:
    return selection.to_markdown(selection.choose(Plan("figure2").cells(), results))


def _regions(results: Results) -> str:
    return regions.to_markdown(Plan("figure1").cells(), results)


def _missing(experiment: Experiment) -> Callable[[Results], str]:
    def made(results: Results) -> str:
        lines = gaps(Plan(experiment).cells(), results).lines()
        return "\n\n".join(lines) or "Every cell of this figure is there."

    return made


def _evidence(results: Results) -> str:
    """How near the fits of the proposed method are to a minimum, over trials."""
    lines = [
        "| version | truth | d | n | trials | training MSE | gradient of the loss | pull of the decay | imbalance |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    cells = [cell for name in ("table1", "table2") for cell in Plan(name, methods=("proposed",)).cells()]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        result = results.read(cell)
        if result is not None and result["status"] == "done":
            groups.setdefault((cell.version, cell.truth, cell.d, cell.n), []).append(result["fit"])
    for place, fits in groups.items():
        names = ("training mse", "gradient of the loss", "pull of the decay", "alignment")
        medians = [f"{np.median([fit[name] for fit in fits]):.1e}" for name in names]
        lines.append(f"| {' | '.join(map(str, place))} | {len(fits)} | {' | '.join(medians)} |")
    return "\n".join(lines)


def _audits(results: Results) -> str:
    """The audit of the first trial of each version at d = 10 and the smallest n, and of figure 1."""
    shown = []
    for experiment in ("table1", "figure1"):
        for version in ("published", "met"):
            plan = Plan(experiment, sizes=(100,), trials=1, versions=(version,), methods=("proposed",))
            shown += [_audit(cell, results) for cell in plan.cells()[:1]]
    return "\n\n".join(shown)


def _audit(cell: Cell, results: Results) -> str:
    result = results.read(cell)
    head = f"Cell `{cell.key}`:"
    if result is None or result["status"] != "done":
        return f"{head} missing."
    lines = [head, "", "| line | verdict | value | what it is |", "|---|---|---|---|"]
    for line in result["audit"]:
        value = "" if line["value"] is None else f"{line['value']:.3g}"
        lines.append(
            f"| {line['name']} | {line['verdict']} | {value} | {line['meaning'].replace('|', chr(92) + '|')} |"
        )
    return "\n".join(lines)


def _versions(results: Results) -> str:
    """The versions by which the cells that are there were computed."""
    kinds: dict[str, int] = {}
    for result in results.every():
        text = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        kinds[text] = kinds.get(text, 0) + 1
    return "\n".join(f"- {count} cells: {text}" for text, count in kinds.items()) or "No cell is there yet."


PARTS: dict[str, Callable[[Results], str]] = {
    "table1": _table("table1"),
    "table2": _table("table2"),
    "published": short_tables.published_rows,
    "variants": short_tables.variant_rows,
    "unshared": delta_per_point.to_markdown,
    "selection": _chosen,
    "figure1": _regions,
    "figure1-missing": _missing("figure1"),
    "figure2-missing": _missing("figure2"),
    "evidence": _evidence,
    "audits": _audits,
    "versions": _versions,
}
"""The parts that a page can have, and how each is made."""
