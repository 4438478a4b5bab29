"""``vhat compare``."""

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


@command("vhat compare data.csv --target price --methods proposed,wald")
def compare(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            show_default=False,  # as one word it would be cut off
            help=f"Methods, or all; by default {_METHODS.replace(',', ', ')}. A name that is not known lists the rest.",
        ),
    ] = _METHODS,
    features: Features = None,
    columns: ColumnKinds = None,
    delta: Annotated[
        float, typer.Option(metavar="NUMBER", help="Probability of a miss that every method is to claim.")
    ] = 0.05,
    splits: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Random splits; each keeps a fifth of the rows apart.")
    ] = 5,
    hidden: Hidden = "32",
    decay: WeightDecay = "auto",
    jobs: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Processes.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one row a method and split: .csv, .parquet, .jsonl.")
    ] = None,
    seed: Seed = 0,
    separator: Separator = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Ask several methods for intervals of a new observation, on the same rows, and judge them by rows kept apart.

    Those that train do so with the same network and weight decay; auto chooses it once, on the whole table. Columns
    are standardised first, for methods that measure distances. A method that cannot answer is shown with its reason.
    """
    import vhat
    from vhat.cli.training_rows import Rows, predictors
    from vhat.tables.files import check_output, open_output, open_table

    chosen = _named(methods)
    form = None if out is None else check_output(out, force=force)
    table = open_table(data, separator)
    names = predictors(table, target, features)
    layers, lam = hidden_layers(hidden), weight_decay(decay)
    rows = Rows.read(table, names, target, asked=column_kinds(columns))
    rows = rows.encoded(rows.columns)
    with silence(quiet):
        if lam == "auto":
            lam = vhat.NetworkRegressor(layers, random_state=seed).fit(rows.X, rows.y).weight_decay_
        recipe = partial(_train, hidden=layers, weight_decay=float(lam))
        try:
            found = vhat.compare(
                chosen, _standardised(rows.X), rows.y, recipe=recipe, delta=delta, splits=splits, seed=seed, n_jobs=jobs
            )
        except Interrupted as stop:
            if isinstance(stop.record, vhat.Comparison) and stop.record.outcomes and not json:
                show(_shown(stop.record, table.name, float(lam)))
            raise
    if out is not None and form is not None:
        with open_output(out, form, force=force) as write:
            write({str(name): column.to_numpy() for name, column in found.table.items()})
    if json:
        print_json({"weight_decay": lam, "delta": delta, "outcomes": found.table.to_dict("records")})
    else:
        show(_shown(found, table.name, float(lam)))
        _print_reasons(found)
    if all(each.interval is None for each in found.outcomes):
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
    """A recipe: what ``vhat fit`` trains, standardised on the rows at hand."""
    from vhat.estimator import NetworkRegressor

    network = NetworkRegressor(hidden, weight_decay=weight_decay, random_state=seed)
    return network.fit(X, y, sample_weight).fitted_


def _standardised(X: pd.DataFrame) -> np.ndarray:
    """The columns in units of their own spread, for methods that measure distances between rows."""
    spread = X.std(ddof=0)
    return ((X - X.mean()) / spread.where(spread > 0, 1.0)).to_numpy()


def _named(text: str) -> dict[str, Method]:
    """Read ``--methods``.

    Raises:
        InputError: For a name that is not known, listing those that are.
    """
    known = _known()
    asked = list(known) if text == "all" else list(dict.fromkeys(split(text)))
    for name in asked:
        if name not in known:
            raise InputError(f"--methods {name}: there is no such method. There are {', '.join(known)}; or all.")
    return {name: known[name]() for name in asked}


def _known() -> dict[str, Callable[[], Method]]:
    """The methods that need no options, by the name that they have on the command line."""
    from vhat import methods

    kinds = {_dashed(name): getattr(methods, name) for name in methods.__all__}
    return {name: kind for name, kind in kinds.items() if _needs_nothing(kind)}


def _needs_nothing(kind: Any) -> bool:
    return is_dataclass(kind) and all(
        each.default is not MISSING or each.default_factory is not MISSING for each in fields(kind)
    )


def _dashed(name: str) -> str:
    """``LinearizedLaplace`` to ``linearized-laplace``, ``MCDropout`` to ``mc-dropout``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def _shown(found: Comparison, name: str, weight_decay: float) -> Table:
    """The comparison as a table, the best Winkler score in bold."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{level_text(found.delta)} intervals for a new observation, {name}",
        caption=f"Means over {len(found.splits)} random splits, a fifth of the rows kept apart in each; \u00b1 is one "
        "standard error. "
        f"Winkler: width plus what misses cost, smaller is better. Weight decay {weight_decay:.3g}.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("method", no_wrap=True)
    for column in ("coverage", "mean width", "Winkler", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    summary = found.summary()
    best = summary["winkler"].min()
    for method, mean in summary.iterrows():
        if not mean["answered"]:
            table.add_row(str(method), found.silence(str(method)), style="dim")
            continue
        fewer = mean["answered"] < len(found.splits)
        error = "" if isnan(mean["coverage_error"]) else f" \u00b1 {100 * mean['coverage_error']:.1f}"
        table.add_row(
            f"{method} ({mean['answered']:.0f} of {len(found.splits)} splits)" if fewer else str(method),
            f"{100 * mean['coverage']:.1f}%{error}",
            *(f"{mean[column]:.4g}" for column in ("mean_width", "winkler")),
            f"{mean['fit_seconds'] + mean['interval_seconds']:.1f}",
            style="bold" if mean["winkler"] == best else None,
        )
    return table


def _print_reasons(found: Comparison) -> None:
    """Say what methods that refused have said, each sentence once."""
    reasons = dict.fromkeys(f"{each.method}: {each.reason}" for each in found.outcomes if each.reason)
    for text in reasons:
        console().print(f"\n{text}", markup=False)
