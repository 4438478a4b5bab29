"""Intervals under shift, beside every rival: ``python -m benchmarks.shift_league [--uci DIR]``.

Of each table and each of its inputs the middle third ("gap") or the top ("end") is left out. Five networks a split are
trained by Adam and stopped early; every method gets the same rows and, where it needs a network, these. Each finished
split is a line of ``shift_league.jsonl``: run it again to go on where it stopped. ``shift_league.md`` has the tables.
``--again`` measures vhat's own methods again, on every split that the file has, and keeps the rivals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.early_stopping import Recipe, Rows, Stack, train
from benchmarks.report import write_between
from benchmarks.rivals.foreign import Foreign, Unavailable
from benchmarks.shift import conformal, ours, probabilistic
from benchmarks.shift.bands import SIDES, Band, worth
from benchmarks.shift.figure import draw
from benchmarks.shift.report import SPLIT, for_docs, markdown
from benchmarks.shift.splits import Shift, splits, tables
from benchmarks.timing import Stopwatch

HERE = Path(__file__).parent
NETWORKS = 5
RECIPE = Recipe(hidden=(50,), step=3e-3, batch=32, epochs=1000, patience=50)
"""Fixed beforehand for all tables; the activation is an option."""


def bands(split: Shift, recipe: Recipe, rival: Foreign | None) -> Iterator[tuple[str, Band]]:
    """Yield the intervals of every method at the test rows, inside and then outside."""
    seeds = list(range(NETWORKS))
    began = time.process_time()
    stack = train(recipe, Rows(*split.rows["train"]), Rows(*split.rows["validation"]), seeds)
    # Five networks that are trained side by side cost hardly more than one; four of them are the ensemble's own.
    further = (time.process_time() - began) * (NETWORKS - 1) / NETWORKS
    yield SPLIT, conformal.split_conformal(split, stack)
    yield from ours.bands(split, stack.modules())
    f = _predictions(split, stack)
    yield "CV+", conformal.cross(split, recipe, seeds[0])
    yield "conformal by distance", conformal.by_distance(split, f)
    yield "conformal by ensemble", conformal.by_ensemble(split, f, further)
    yield "weighted conformal", conformal.weighted(split, f)
    yield "conformalised quantiles", conformal.quantile_regression(split, recipe, seeds)
    yield "Gaussian process", probabilistic.gaussian_process(split)
    yield "deep ensemble", probabilistic.ensemble(split, f, further)
    if rival is not None:
        yield from probabilistic.laplace(split, stack, rival)


def _predictions(split: Shift, stack: Stack) -> conformal.Predictions:
    parts = (("validation",), ("calibration",), ("inside", "outside"))
    return conformal.Predictions(*(stack.predict(split.X(*part)) for part in parts))


def score(split: Shift, found_bands: Iterable[tuple[str, Band]]) -> dict[str, Any]:
    """Return what methods are worth on one split; the first of them is split conformal."""
    y = split.y("inside", "outside")
    shifted = np.arange(len(y)) >= len(split.y("inside"))
    found: dict[str, Any] = {}
    matched = np.ones((2, NETWORKS))
    for name, band in found_bands:
        if name == SPLIT:  # the first: its widths are what the others are scaled to
            matched = np.stack([band.half[:, rows].mean(axis=1) for rows in (~shifted, shifted)])
        found[name] = worth(band, y, shifted, matched)
    return found


def measure(split: Shift, recipe: Recipe, rival: Foreign | None) -> dict[str, Any]:
    """Return what every method is worth on one split."""
    found = score(split, bands(split, recipe, rival))
    sizes = {part: len(rows[1]) for part, rows in split.rows.items()}
    return {"split": split.name, "activation": recipe.activation, "rows": sizes, "methods": found}


def run(folder: Path | None, file: Path, recipe: Recipe, only: tuple[str, ...], most: int) -> list[dict[str, Any]]:
    """Measure every split that the file does not have yet, and return all that it has."""
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(line["split"], line["activation"]) for line in kept}
    todo = [split for name, table in tables(folder).items() for split in splits(name, table)]
    # Column by column, so that what is there after an interruption is of all tables.
    todo.sort(key=lambda each: int(_name(each).split("/")[1]))
    todo = [each for each in todo if not only or _name(each).startswith(only)]
    todo = [each for each in todo if (_name(each), recipe.activation) not in done][:most]
    with ExitStack() as stack:
        rival = _laplace(stack)
        began = time.process_time()
        for number, split in enumerate(todo, 1):
            if isinstance(split, tuple):
                found: dict[str, Any] = {"split": split[0], "activation": recipe.activation, "skipped": split[1]}
            else:
                found = measure(split, recipe, rival)
            kept.append(_rounded(found))
            with file.open("a") as lines:
                lines.write(json.dumps(kept[-1]) + "\n")
            spent = (time.process_time() - began) / 60
            print(f"{number} of {len(todo)} ({spent:.1f} CPU min): {_told(kept[-1])}", flush=True)
    return kept


def run_again(folder: Path | None, file: Path, recipe: Recipe, only: tuple[str, ...]) -> list[dict[str, Any]]:
    """Measure vhat's own methods again on the splits of the file, and return all that it has then.

    A split on which split conformal is not what the file has is measured whole: training in single precision is not the
    same on every machine, and the networks are then not those of the rivals.
    """
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    known = {_name(split): split for name, table in tables(folder).items() for split in splits(name, table)}
    began = time.process_time()
    with ExitStack() as stack:
        rival = _laplace(stack)
        for line in kept:
            split = known.get(line["split"])
            if not isinstance(split, Shift) or line["activation"] != recipe.activation:
                continue
            if only and not line["split"].startswith(only):
                continue
            found = _own(split, recipe)
            if _equal(found[SPLIT], line["methods"][SPLIT]):
                line["methods"].update({name: own for name, own in found.items() if name != SPLIT})
            else:
                line.update(_rounded(measure(split, recipe, rival)))
                print(f"{line['split']}: measured whole, for the networks are others", flush=True)
            file.write_text("".join(json.dumps(each) + "\n" for each in kept))
            print(f"{(time.process_time() - began) / 60:.1f} CPU min: {_told(line)}", flush=True)
    return kept


def _own(split: Shift, recipe: Recipe) -> dict[str, Any]:
    """Return what split conformal and vhat's own methods are worth on one split."""
    stack = train(recipe, Rows(*split.rows["train"]), Rows(*split.rows["validation"]), list(range(NETWORKS)))
    first = conformal.split_conformal(split, stack)
    found: dict[str, Any] = _rounded(score(split, [(SPLIT, first), *ours.bands(split, stack.modules())]))
    return found


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two measurements of a method are the same but for rounding and CPU seconds."""
    return all(
        math.isclose(value, other[side][key], rel_tol=2e-3) for side in SIDES for key, value in one[side].items()
    )


def _name(split: Shift | tuple[str, str]) -> str:
    return split[0] if isinstance(split, tuple) else split.name


def _laplace(stack: ExitStack) -> Foreign | None:
    try:
        return stack.enter_context(Foreign("laplace_shift", {}, 0, Stopwatch("cpu")))
    except Unavailable as reason:
        print(f"laplace-torch: {reason}")
        return None


def _told(found: dict[str, Any]) -> str:
    if "skipped" in found:
        return f"{found['split']}: skipped, {found['skipped']}"
    conformal_, linearised = (found["methods"][name]["outside"] for name in (SPLIT, "linearised"))
    return (
        f"{found['split']}: Winkler {linearised['winkler']:.2f} linearised, {conformal_['winkler']:.2f} split; "
        f"coverage {linearised['coverage']:.2f}, {conformal_['coverage']:.2f}"
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value


def main() -> None:
    """Read the command line, measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uci", type=Path, help="folder with yacht, energy, concrete and airfoil")
    parser.add_argument("--activation", choices=("relu", "tanh"), default="relu")
    parser.add_argument("--only", action="append", default=[], help="splits whose names begin so, such as yacht/0")
    parser.add_argument("--most", type=int, default=10_000, help="how many splits to measure now")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of shift_league.jsonl and shift_league.md")
    parser.add_argument("--again", action="store_true", help="measure vhat's own methods again, keep the rivals")
    parser.add_argument("--report", action="store_true", help="write the tables of what is measured, and no more")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    file = options.out / "shift_league.jsonl"
    if options.report:
        found = [json.loads(line) for line in file.read_text().splitlines()]
    elif options.again:
        recipe = replace(RECIPE, activation=options.activation)
        found = run_again(options.uci, file, recipe, tuple(options.only))
    else:
        recipe = replace(RECIPE, activation=options.activation)
        found = run(options.uci, file, recipe, tuple(options.only), options.most)
    (options.out / "shift_league.md").write_text(markdown(found))
    draw(found, options.out / "shift_league.png")
    if options.out == HERE:
        write_between(HERE.parent / "docs" / "benchmarks.md", "shift league", for_docs(found))
    print(f"written: {options.out / 'shift_league.md'} and shift_league.png")


if __name__ == "__main__":
    main()
