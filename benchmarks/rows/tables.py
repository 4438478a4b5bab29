"""Real tables: what the estimator's intervals for a new response are worth beside MAPIE's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vhat
from benchmarks.registry import Measurement, Run, row
from benchmarks.rivals.foreign import Foreign, Unavailable
from benchmarks.tables import DELTA, SPLITS, Split, Table, diabetes, standard_error, summary, uci, worth

UCI = ("yacht", "energy", "concrete", "airfoil")
PLAIN, ASYMPTOTIC, LEFT_OUT = "vhat, isoperimetric", "vhat, asymptotic", "vhat, calibrated"
CROSS, HALVED = "MAPIE, CV+", "MAPIE, split"
HOW = (
    "NetworkRegressor() with its defaults (32 tanh units, weight decay by leave-one-out, a certified minimum): "
    'predict_interval(target="observation") by the isoperimetric bound, by the asymptotic one, and calibrated, the '
    "default: by leave-one-out, or by five refits where the fit leans on single rows. "
    "MAPIE 1.6 around scikit-learn's MLPRegressor of the same size on standardised data, L-BFGS, alpha by 3-fold "
    "cross-validation over the same range: CV+ with ten folds, and split conformal with a quarter of the rows for "
    "calibration (the time of the search is counted with CV+). Width and Winkler score are in standard deviations of "
    "the training target."
)


def _ours(split: Split, run: Run) -> dict[str, dict[str, float]]:
    """Every interval of one fit; training is counted in each."""
    made: dict[str, Any] = {}

    def timed(work: Callable[[], Any], name: str) -> float:
        def run_it() -> None:
            made[name] = work()

        return run.watch.seconds(run_it)

    def interval(bound: str | None) -> Callable[[], Any]:
        return lambda: made["network"].predict_interval(split.X_test, DELTA, target="observation", bound=bound)

    training = timed(lambda: vhat.NetworkRegressor().fit(split.X, split.y), "network")
    bands = {
        PLAIN: interval("isoperimetric"),
        ASYMPTOTIC: interval("asymptotic"),
        LEFT_OUT: interval(None),
    }
    found = {}
    for name, work in bands.items():
        seconds = training + timed(work, name)
        found[name] = worth(made[name].lower, made[name].upper, split.y_test) | {"seconds": seconds}
    return found


def _theirs(split: Split, run: Run) -> dict[str, dict[str, float]]:
    """Both of MAPIE's; nothing where its environment is missing."""
    found = {}
    options = {"iterations": 50} if run.quick else {}
    with Foreign("mapie", {"X": split.X, "y": split.y, "X_test": split.X_test}, 0, run.watch, **options) as rival:
        for name, method in ((CROSS, "cross"), (HALVED, "split")):
            seconds, (lower, upper) = rival.call(method, delta=DELTA)
            found[name] = worth(lower, upper, split.y_test) | {"seconds": seconds}
    return found


def _kept(run: Run) -> dict[str, dict[str, float]]:
    """MAPIE's as an earlier run measured them on the same splits."""
    if run.quick:
        return {}
    methods = run.kept.get("details", {}).get("methods", {})
    return {name: methods[name] for name in (CROSS, HALVED) if name in methods}


def _measure(table: Table, run: Run) -> Measurement:
    found, missing = [], ""
    for number, split in enumerate(table.splits(run.count(SPLITS)), 1):
        run.watch.say(f"split {number}: {len(split.y)} rows, {split.X.shape[1]} columns")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vhat.VhatWarning)
            each = _ours(split, run)
        try:
            each |= _theirs(split, run)
        except Unavailable as reason:
            missing = str(reason)
        found.append(each)
    complete = [name for name in found[0] if all(name in each for each in found)]
    methods = summary([{name: each[name] for name in complete} for each in found])
    when, note = "", f" MAPIE: {missing}." if missing else ""
    if missing and (kept := _kept(run)):
        methods |= kept
        when = run.kept["details"].get("rivals measured", f"{run.kept['date']}, {run.kept['processor']}")
        note = f" MAPIE's values are those of an earlier run ({when}), on the same splits ({missing})."
    shape = f"{table.X.shape[0]} rows, {table.X.shape[1]} columns, {len(found)} splits, delta = {DELTA:g}. "
    told = "; ".join(
        f"{name} {got['coverage']:.1f}%, width {got['width']:.3g}, Winkler {got['winkler']:.3g}"
        for name, got in methods.items()
    )
    default = methods[PLAIN]
    compared = {
        "coverage": default["coverage"],
        "standard error of coverage": standard_error(default, len(found)),
        "winkler over asymptotic": default["winkler"] / methods[ASYMPTOTIC]["winkler"],
    }
    details = {"methods": methods, "default bound": compared} | ({"rivals measured": when} if when else {})
    return Measurement(default["coverage"], f"{shape}{told}. {HOW}{note}", details=details)


@row("diabetes", "coverage of 90% intervals for a new response by the default bound: diabetes", unit="%")
def diabetes_row(run: Run) -> Measurement:
    return _measure(diabetes(), run)


def _uci_row(name: str) -> None:
    @row(f"uci-{name}", f"the same on UCI {name}", unit="%")
    def measure(run: Run) -> Measurement:
        if run.uci is None:
            return Measurement(None, "not measured: give --uci DIR, with a folder for each table")
        return _measure(uci(Path(run.uci) / name), run)


for name in UCI:
    _uci_row(name)
