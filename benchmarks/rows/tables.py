"""Real tables: what the estimator's intervals for a new response are worth beside MAPIE's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vhat
from benchmarks.registry import Measurement, Run, row
from benchmarks.tables import DELTA, SPLITS, Split, Table, diabetes, standard_error, summary, uci, worth

UCI = ("yacht", "energy", "concrete", "airfoil")
PLAIN, ASYMPTOTIC, LEFT_OUT = "vhat, isoperimetric", "vhat, asymptotic", "vhat, calibrated (default)"
CROSS, HALVED, TREES = "MAPIE CV+, same network", "MAPIE split, same network", "MAPIE CV+, gradient boosting"
HOW = (
    "NetworkRegressor() with its defaults (32 tanh units, weight decay by leave-one-out, a certified minimum): "
    'predict_interval(target="observation"), which is calibrated by leave-one-out or five refits, and '
    "fitted_.interval(...) by the isoperimetric bound and by the asymptotic one. MAPIE 1.6 around the same network at "
    "the same weight decay: CV+ "
    "with five folds, and split conformal with a quarter of the rows for calibration; and CV+ with five folds around "
    "scikit-learn's HistGradientBoostingRegressor as it comes. Width and Winkler score are in standard deviations of "
    "the training target; the seconds of every method around the network hold the choice of its weight decay."
)


def _found(split: Split, run: Run) -> dict[str, dict[str, float]]:
    """Every interval of one split."""
    made: dict[str, Any] = {}

    def timed(work: Callable[[], Any], name: str) -> float:
        def run_it() -> None:
            made[name] = work()

        return run.watch.seconds(run_it)

    def bound(name: str) -> Callable[[], Any]:
        return lambda: made["network"].fitted_.interval(split.X_test, DELTA, target="observation", bound=name)

    def refitted(X: Any, y: Any, *, seed: int, sample_weight: Any = None) -> Any:
        network = vhat.NetworkRegressor(weight_decay=made["network"].weight_decay_, random_state=seed)
        return network.fit(X, y, sample_weight).fitted_

    def rival(method: Any) -> Callable[[], Any]:
        return lambda: method.fit(refitted, split.X, split.y).interval(split.X_test, DELTA, target="observation")

    training = timed(lambda: vhat.NetworkRegressor().fit(split.X, split.y), "network")
    bands = {
        LEFT_OUT: lambda: made["network"].predict_interval(split.X_test, DELTA, target="observation"),
        PLAIN: bound("isoperimetric"),
        ASYMPTOTIC: bound("asymptotic"),
        CROSS: rival(vhat.methods.Conformal("cv+")),
        HALVED: rival(vhat.methods.Conformal("split", share=0.25)),
        TREES: rival(vhat.methods.GradientBoosting("cv+")),
    }
    found = {}
    for name, work in bands.items():
        seconds = timed(work, name) + (0.0 if name == TREES else training)
        found[name] = worth(made[name].lower, made[name].upper, split.y_test) | {"seconds": seconds}
    return found


def _measure(table: Table, run: Run) -> Measurement:
    found = []
    for number, split in enumerate(table.splits(run.count(SPLITS)), 1):
        run.watch.say(f"split {number}: {len(split.y)} rows, {split.X.shape[1]} columns")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vhat.VhatWarning)
            found.append(_found(split, run))
    methods = summary(found)
    shape = f"{table.X.shape[0]} rows, {table.X.shape[1]} columns, {len(found)} splits, delta = {DELTA:g}. "
    told = "; ".join(
        f"{name} {got['coverage']:.1f}%, width {got['width']:.3g}, Winkler {got['winkler']:.3g}"
        for name, got in methods.items()
    )
    bound = methods[PLAIN]
    compared = {
        "coverage": bound["coverage"],
        "standard error of coverage": standard_error(bound, len(found)),
        "winkler over asymptotic": bound["winkler"] / methods[ASYMPTOTIC]["winkler"],
    }
    details = {"methods": methods, "default bound": compared}
    return Measurement(methods[LEFT_OUT]["coverage"], f"{shape}{told}. {HOW}", details=details)


@row("diabetes", "coverage of 90% intervals for a new response, the default: diabetes", unit="%")
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
