"""Held-out error of the default network beside a tuned MLPRegressor: ``python -m benchmarks.table_errors --uci DIR``.

Ten splits of scikit-learn's diabetes data and of the UCI tables in DIR. Errors are root mean squares over the rows that
are kept apart, in standard deviations of the training responses. Every method sees the same training rows and nothing
else. One split of one table is done by all methods before the next one begins; what is finished is kept in ``.cache``,
so that the same line goes on where it was stopped. ``--table`` and ``--split`` choose what is done, such as
``--table diabetes --split 0``. Prints means and standard errors of all that is kept, and writes them to
``table_errors.json`` and ``table_errors.md`` once every split of some table is there.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import SPLITS, Split, Table, diabetes, uci

HERE = Path(__file__).parent
KEPT = HERE / ".cache" / "table_errors.json"
UNITS = 32
"""Hidden units of both networks: the default of NetworkRegressor."""
FOLDS = 3
"""Of the cross-validation that tunes MLPRegressor."""
GRID = {
    "activation": ["relu", "tanh"],
    "alpha": [1e-4, 1e-3, 1e-2, 1e-1, 1.0],
    "learning_rate_init": [1e-3, 1e-2],
}
"""What is tuned of it: thirty fits of it a split and activation, by mean squared error."""
PASSES = 1000
"""The most passes over the training rows of one such fit."""


def network(split: Split) -> np.ndarray:
    """``vhat.NetworkRegressor()`` as it comes."""
    import vhat

    return np.asarray(vhat.NetworkRegressor().fit(split.X, split.y).predict(split.X_test))


def tuned_mlp(split: Split) -> np.ndarray:
    """MLPRegressor of the same size on standardised columns and responses, tuned by cross-validation."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.model_selection import GridSearchCV
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    base = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(UNITS,), max_iter=PASSES, random_state=0))
    scaled = TransformedTargetRegressor(base, transformer=StandardScaler())
    grid = {f"regressor__mlpregressor__{name}": values for name, values in GRID.items()}
    search = GridSearchCV(scaled, grid, scoring="neg_mean_squared_error", cv=FOLDS)
    return np.asarray(search.fit(split.X, split.y).predict(split.X_test))


def random_forest(split: Split) -> np.ndarray:
    """scikit-learn's random forest as it comes."""
    from sklearn.ensemble import RandomForestRegressor

    return np.asarray(RandomForestRegressor(random_state=0).fit(split.X, split.y).predict(split.X_test))


def boosted_trees(split: Split) -> np.ndarray:
    """scikit-learn's histogram gradient boosting as it comes."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return np.asarray(HistGradientBoostingRegressor(random_state=0).fit(split.X, split.y).predict(split.X_test))


METHODS: dict[str, Callable[[Split], np.ndarray]] = {
    "vhat.NetworkRegressor()": network,
    "MLPRegressor, tuned": tuned_mlp,
    "random forest": random_forest,
    "gradient boosting": boosted_trees,
}


def main() -> None:
    """Measure what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uci", type=Path, default=None, help="folder with a folder for each UCI table")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this one (may be repeated)")
    parser.add_argument("--table", action="append", help="only this table (may be repeated)")
    parser.add_argument("--split", action="append", type=int, help="only this split (may be repeated)")
    parser.add_argument("--splits", type=int, default=SPLITS, help="the first so many splits")
    options = parser.parse_args()
    tables: dict[str, Table] = {"diabetes": diabetes()}
    if options.uci is not None:
        tables |= {folder.name: uci(folder) for folder in sorted(options.uci.iterdir()) if folder.is_dir()}
    if unknown := set(options.table or ()) - set(tables):
        parser.error(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(tables)}")
    found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for name in options.table or tables:
        for number, split in enumerate(tables[name].splits(options.splits)):
            if options.split is not None and number not in options.split:
                continue
            for method in options.method or METHODS:
                key = f"{name}/{number}/{method}"
                if key not in found:
                    found = _kept(key, _measured(METHODS[method], split))
                    print(key, found[key], flush=True)
    print(markdown(found))
    if any(_whole(found, name) for name in tables):  # a few splits do not replace a table of all of them
        (HERE / "table_errors.json").write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
        (HERE / "table_errors.md").write_text(markdown(found))


def _whole(found: dict[str, Any], name: str) -> bool:
    """Whether every method has done every split of a table."""
    return all(f"{name}/{number}/{method}" in found for number in range(SPLITS) for method in METHODS)


def _measured(method: Callable[[Split], np.ndarray], split: Split) -> dict[str, float]:
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prediction = method(split)
    seconds = time.process_time() - started
    return {"error": float(np.sqrt(np.mean((prediction - split.y_test) ** 2))), "seconds": round(seconds, 1)}


def _kept(key: str, entry: dict[str, float]) -> dict[str, Any]:
    """Add an entry to what is kept, which another run may have added to meanwhile."""
    found: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found[key] = entry
    KEPT.parent.mkdir(exist_ok=True)
    # by way of a second file, so that a run that is stopped here leaves the first one whole
    beside = KEPT.with_suffix(".new")
    beside.write_text(json.dumps(found, indent=1))
    beside.replace(KEPT)
    return found


def markdown(found: dict[str, dict[str, float]]) -> str:
    """Means over the splits with standard errors, and how the network's error compares, split by split."""
    lines = [
        "Held-out error (root mean square over rows that are kept apart, in standard deviations of the training",
        "responses): mean over the splits and, in brackets, its standard error. The last column is the mean difference",
        f"to a tuned MLPRegressor with {UNITS} units, split by split. Seconds are CPU seconds of one split.",
        "",
        "| table | method | error | seconds | minus MLPRegressor |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(key.split("/")[0] for key in found):
        for method in METHODS:
            errors = _errors(found, name, method)
            if not errors:
                continue
            values = np.array(list(errors.values()))
            seconds = np.mean([found[f"{name}/{at}/{method}"]["seconds"] for at in errors])
            rival = _errors(found, name, "MLPRegressor, tuned")
            both = np.array([errors[at] - rival[at] for at in errors if at in rival])
            beside = "" if method == "MLPRegressor, tuned" or not both.size else _mean(both)
            lines.append(f"| {name} | {method} | {_mean(values)} | {seconds:.1f} | {beside} |")
    return "\n".join(lines) + "\n"


def _errors(found: dict[str, dict[str, float]], name: str, method: str) -> dict[str, float]:
    parts = {key: entry["error"] for key, entry in found.items() if key.startswith(f"{name}/")}
    return {key.split("/")[1]: error for key, error in parts.items() if key.split("/", 2)[2] == method}


def _mean(values: np.ndarray) -> str:
    if len(values) < 2:
        return f"{np.mean(values):.3f} (one split)"
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ({error:.3f})"


if __name__ == "__main__":
    main()
