"""The command ``vhat compare``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vhat.cli.application import CANNOT_ANSWER, command
from vhat.cli.options import (
    ColumnKinds,
    Data,
    Features,
    Force,
    Hidden,
    Json,
    Quiet,
    Seed,
    Separator,
    WeightDecay,
    column_kinds,
    hidden_layers,
    split,
    weight_decay,
)
from vhat.cli.terminal import console, print_json, show, silence
from vhat.errors import InputError, Interrupted
from vhat.level import level_text

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from rich.table import Table

    from vhat.fitted.model import FittedModel
    from vhat.methods import Method
    from vhat.methods.comparison import Comparison

_METHODS = "proposed,conformal,gaussian-process,gradient-boosting,random-forest"
"""The methods that are compared by default."""


@command("vhat compare data.csv --target price --methods proposed,wald")
def compare(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            show_default=False,  # the default is one long word, which the help would cut off
            help=f"Methods to compare, or all; by default {_METHODS.replace(',', ', ')}. An unknown name lists all.",
        ),
    ] = _METHODS,
    features: Features = None,
    columns: ColumnKinds = None,
    delta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Probability of a miss: 0.05 asks every method for 95% intervals.")
    ] = 0.05,
    splits: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Number of random splits; each holds out a fifth of the rows.")
    ] = 5,
    hidden: Hidden = "32",
    decay: WeightDecay = "auto",
    jobs: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Number of processes.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for one row per method and split: .csv, .parquet or .jsonl."),
    ] = None,
    seed: Seed = 0,
    separator: Separator = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Compare several methods: intervals for new observations, trained on the same rows and tested on held-out rows.

    Methods that train a network use the same layers and weight decay; auto chooses the weight decay once, on the whole
    table. Columns are standardised first, for methods that measure distances. A method that cannot answer is listed
    with its reason.
    """
    import vhat
    from vhat.cli.training_rows import Rows, predictors
    from vhat.tables.files import check_output, open_output, open_table

    chosen = _read_methods(methods)
    form = None if out is None else check_output(out, force=force)
    table = open_table(data, separator)
    names = predictors(table, target, features)
    layers = hidden_layers(hidden)
    lam = weight_decay(decay)
    rows = Rows.read(table, names, target, kinds=column_kinds(columns))
    rows = rows.encoded(rows.columns)
    with silence(quiet):
        if lam == "auto":
            lam = vhat.NetworkRegressor(layers, random_state=seed).fit(rows.X, rows.y).weight_decay_
        recipe = partial(_train, hidden=layers, weight_decay=float(lam))
        try:
            comparison = vhat.compare(
                chosen, _standardised(rows.X), rows.y, recipe=recipe, delta=delta, splits=splits, seed=seed, n_jobs=jobs
            )
        except Interrupted as stop:
            if isinstance(stop.record, vhat.Comparison) and stop.record.outcomes and not json:
                show(_table(stop.record, table.name, float(lam)))
            raise
    if out is not None and form is not None:
        with open_output(out, form, force=force) as write:
            write({str(name): column.to_numpy() for name, column in comparison.table.items()})
    if json:
        print_json({"weight_decay": lam, "delta": delta, "outcomes": comparison.table.to_dict("records")})
    else:
        show(_table(comparison, table.name, float(lam)))
        _print_reasons(comparison)
    if all(outcome.interval is None for outcome in comparison.outcomes):
        raise typer.Exit(CANNOT_ANSWER)


def _train(
    X: np.ndarray,
    y: np.ndarray,
    *,
    seed: int,
    sample_weight: Any = None,
    hidden: tuple[int, ...],
    weight_decay: float,
) -> FittedModel:
    """Train the network of ``vhat fit`` on some rows, standardised on these rows: the recipe of the comparison."""
    from vhat.estimator import NetworkRegressor

    network = NetworkRegressor(hidden, weight_decay=weight_decay, random_state=seed)
    return network.fit(X, y, sample_weight).fitted_


def _standardised(X: pd.DataFrame) -> np.ndarray:
    """Return the columns centred and divided by their standard deviation, for methods that measure distances."""
    spread = X.std(ddof=0)
    return ((X - X.mean()) / spread.where(spread > 0, 1.0)).to_numpy()


def _read_methods(text: str) -> dict[str, Method]:
    """Read ``--methods``.

    Raises:
        InputError: For an unknown name, listing the known ones.
    """
    known = _known_methods()
    requested = list(known) if text == "all" else list(dict.fromkeys(split(text)))
    for name in requested:
        if name not in known:
            raise InputError(f"--methods {name}: there is no such method. There are {', '.join(known)}; or all.")
    return {name: known[name]() for name in requested}


def _known_methods() -> dict[str, Callable[[], Method]]:
    """Return the methods that need no options, by their names on the command line."""
    from vhat import methods

    kinds = {_dashed(name): getattr(methods, name) for name in methods.__all__}
    return {name: kind for name, kind in kinds.items() if _has_defaults(kind)}


def _has_defaults(kind: Any) -> bool:
    """Return whether a class is a dataclass whose fields all have defaults."""
    if not is_dataclass(kind):
        return False
    return all(field.default is not MISSING or field.default_factory is not MISSING for field in fields(kind))


def _dashed(name: str) -> str:
    """Return the name of a class in lower case with dashes: ``LinearizedLaplace`` becomes ``linearized-laplace``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def _table(comparison: Comparison, name: str, weight_decay: float) -> Table:
    """Return a comparison as a table, with the best Winkler score in bold.

    Args:
        comparison: The comparison.
        name: The name of the data.
        weight_decay: The weight decay of the networks.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{level_text(comparison.delta)} intervals for a new observation, {name}",
        caption=f"Means over {len(comparison.splits)} random splits, a fifth of the rows held out in each; \u00b1 is "
        "one standard error. Winkler score: width plus a penalty for misses; smaller is better. "
        f"Weight decay {weight_decay:.3g}.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("method", no_wrap=True)
    for column in ("coverage", "mean width", "Winkler", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    summary = comparison.summary()
    best = summary["winkler"].min()
    for method, mean in summary.iterrows():
        if not mean["answered"]:
            table.add_row(str(method), comparison.silence(str(method)), style="dim")
            continue
        name = str(method)
        if mean["answered"] < len(comparison.splits):
            name = f"{method} ({mean['answered']:.0f} of {len(comparison.splits)} splits)"
        coverage = f"{100 * mean['coverage']:.1f}%"
        if not isnan(mean["coverage_error"]):
            coverage += f" \u00b1 {100 * mean['coverage_error']:.1f}"
        table.add_row(
            name,
            coverage,
            f"{mean['mean_width']:.4g}",
            f"{mean['winkler']:.4g}",
            f"{mean['fit_seconds'] + mean['interval_seconds']:.1f}",
            style="bold" if mean["winkler"] == best else None,
        )
    return table


def _print_reasons(comparison: Comparison) -> None:
    """Print the reasons of methods that did not answer, each sentence once."""
    reasons = dict.fromkeys(f"{each.method}: {each.reason}" for each in comparison.outcomes if each.reason)
    for text in reasons:
        console().print(f"\n{text}", markup=False)
