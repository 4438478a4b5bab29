"""``vhat fit``."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vhat.cli.application import command
from vhat.cli.audit_warnings import doubts, look_at, warning
from vhat.cli.column_lines import column_lines, column_remarks
from vhat.cli.encode_rows import Filled
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
    weight_decay,
)
from vhat.cli.terminal import facts, note, on_terminal, print_json, show, silence
from vhat.errors import VhatError, calling_rows
from vhat.progress import overall

if TYPE_CHECKING:
    from vhat.cli.training_rows import Rows
    from vhat.estimator import NetworkRegressor
    from vhat.evidence.audit import Audit

Activation = Literal["tanh", "softplus", "gelu", "silu", "relu"]
Recipe = Literal["minimum", "adam", "adamw", "gradient_descent"]
_LEVEL = 0.95
_PARTS = {"weight decay": 0.75, "audit": 0.15, "folds": 0.1}
"""Share of the time that each bar within a fit takes, about."""


@command("vhat fit data.csv --target price --hold-out 0.2 --out model")
def fit(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the model.")] = Path("model"),
    features: Features = None,
    columns: ColumnKinds = None,
    hidden: Hidden = "32",
    activation: Annotated[
        Activation, typer.Option(metavar="NAME", help="tanh, softplus, gelu, silu; or relu, whose kinks bar a minimum.")
    ] = "tanh",
    decay: WeightDecay = "auto",
    recipe: Annotated[
        Recipe,
        typer.Option(metavar="NAME", help="minimum, which intervals assume; or adam, adamw, gradient_descent."),
    ] = "minimum",
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="COLUMN", help="How much each row counts; all alike by default.")
    ] = None,
    log_target: Annotated[
        bool,
        typer.Option("--log-target", help="Fit the logarithm of a positive target; intervals are never negative."),
    ] = False,
    hold_out: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the rows to keep out of the fit and judge it by.")
    ] = 0.0,
    seed: Seed = 0,
    separator: Separator = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Train a network on a table, to a certified minimum, and save it.

    Columns may hold numbers, numbers written as text, dates, categories, yes and no, and gaps; what was decided for
    each is shown. Columns and target are standardised inside; what the model answers is in the units of the table.
    """
    from vhat.cli import saved_models
    from vhat.cli.training_rows import Rows, predictors
    from vhat.estimator import NetworkRegressor
    from vhat.estimator.held_out import keep
    from vhat.tables.files import open_table

    saved_models.check_place(out, force=force)
    table = open_table(data, separator)
    names = predictors(table, target, features, weights)
    asked = column_kinds(columns)
    network = NetworkRegressor(
        hidden_layers(hidden),
        activation=activation,
        weight_decay=weight_decay(decay),
        recipe=recipe,
        columns={name: kind for name, kind in asked.items() if name != target} or None,
        log_target=log_target,
        random_state=seed,
    )
    rows = Rows.read(table, names, target, weights, asked).counted()
    training, held = rows.split(hold_out, seed)
    with silence(quiet), overall("fit", _PARTS):
        training.fit(network, target)
        seen = training.findings(network, target)
        training = training.encoded(network.columns_)
        held = None if held is None else _encoded_apart(network, held, table.name)
        network.save(out)  # what comes now may take its time: Ctrl-C does not cost the training
        note(f"Saved to {out}; now its audit{'' if held is None else f', and the {len(held.y):,} rows kept apart'}.")
        found = _found(network, training, network.audit(), out) | {"findings": seen}
        network.calibrate()
        if held is not None:
            keep(network, held.X, held.y, held.names)
        network.save(out)  # with the audit and the calibration, so that vhat predict need not repeat them
        judged, refused = ({}, None) if held is None else _judged(network, training, held, seed)
        found |= judged
        if (json or not on_terminal()) and (doubt := warning(network.audited_, out)):
            note(doubt)
    if json:
        print_json(found)
    elif not quiet:
        show(facts(f"Fitted to {table.name}", _told(network, found, target)))
    if refused is not None:  # said last: the rest stands
        raise refused


def _found(network: NetworkRegressor, training: Rows, audit: Audit, out: Path) -> dict[str, Any]:
    """What the fit found, for scripts."""
    columns = network.columns_
    assert columns is not None  # the table has names
    varies = {name for at, name in enumerate(columns.outputs) if at not in network.constants_}
    used = [column.name for column in columns.columns if varies.intersection(column.outputs)]
    return {
        "model": str(out),
        "rows": len(training.y),
        "rows_without_target": training.without_target,
        "columns": used,
        "constant": [name for name in columns.needed if name not in used],
        "readings": {column.name: column.told for column in columns.columns},
        "remarks": column_remarks(columns),
        "parameters": network.fitted_.problem.p,
        "weight_decay": network.weight_decay_,
        "weight_decay_chosen": network.selection_ is not None,
        "target_sd": float(training.y.std()),
        "training_error": _error(network, training),
        "audit": {"holds": audit.holds, **doubts(audit)},
    }


def _encoded_apart(network: NetworkRegressor, held: Rows, table: str) -> Rows:
    """Return the rows kept apart as the network sees them, and say what it does not know of them."""
    assert network.columns_ is not None  # the table has names
    filled = Filled()
    found = held.encoded(network.columns_, filled)
    for sentence in filled.told(network.columns_, f"the rows of {table} kept apart", len(held.y)):
        note(sentence)
    return found


def _judged(
    network: NetworkRegressor, training: Rows, held: Rows, seed: int
) -> tuple[dict[str, Any], VhatError | None]:
    """How the fit does on the rows that were kept apart, and why there are no intervals for them, if there are none."""
    import numpy as np

    from vhat import metrics
    from vhat.report.accuracy import baseline_errors

    weights = np.ones(len(training.y)) if training.weights is None else training.weights
    mean, trees = baseline_errors(
        training.X.to_numpy(dtype=float), training.y, weights, held.X.to_numpy(dtype=float), held.y, seed
    )
    with calling_rows(held.names):
        found = {"rows": len(held.y), "error": _error(network, held), "mean_error": mean, "trees_error": trees}
        try:
            band = network.predict_interval(held.X, 1 - _LEVEL, target="observation")
        except VhatError as error:
            return {"held_out": found}, error
    intervals = {
        "level": _LEVEL,
        "coverage": metrics.coverage(band.lower, band.upper, held.y),
        "mean_width": metrics.width(band.lower, band.upper).mean,
    }
    return {"held_out": found | intervals}, None


def _beside(held: dict[str, Any]) -> str:
    """Return the error on the rows kept apart beside those of two models that anyone could have had."""
    others = {"boosted trees": held["trees_error"], "the training mean": held["mean_error"]}
    told = ", ".join(f"{name} {error:.4g}" for name, error in others.items() if isfinite(error))
    return f"{held['error']:.4g} ({told})"


def _error(network: NetworkRegressor, rows: Rows) -> float:
    return float(((network.predict(rows.X) - rows.y) ** 2).mean() ** 0.5)


def _told(network: NetworkRegressor, found: dict[str, Any], target: str) -> dict[str, str]:
    """The same in words."""
    selection = network.selection_
    chosen = "" if selection is None else f", chosen by {selection.by.replace('_', '-')}"
    kind = network.activation if len(network.widths_) > 2 else "linear"
    lines = {
        "target": f"{target}, standard deviation {found['target_sd']:.4g}{', fitted as its log' * network.log_target}",
        "learned from": f"{found['rows']:,} rows, {len(found['columns'])} columns: {', '.join(found['columns'])}",
    }
    assert network.columns_ is not None
    lines |= column_lines(network.columns_)
    constant = [name for name in found["constant"] if network.columns_[name].outputs]  # the rest is in the lines
    if constant:
        same = f"{', '.join(constant)}: the same in all of these rows"
        lines["left out"] = "; ".join(filter(None, [lines.get("left out"), same]))
    if found["rows_without_target"]:
        lines["no target"] = f"in {found['rows_without_target']:,} of the rows read, which are left out"
    if found["remarks"] or found["findings"]:
        lines["look at"] = "\n".join([*found["remarks"], *found["findings"]])
    lines |= {
        "network": f"{'-'.join(map(str, network.widths_))}, {kind}, {found['parameters']:,} parameters",
        "weight decay": f"{found['weight_decay']:.3g}{chosen}",
        "error there": f"{found['training_error']:.4g} (root mean square), on the rows that it was fitted to",
    }
    if held := found.get("held_out"):
        lines["held out"] = f"error {_beside(held)} on {held['rows']:,} rows kept apart; " + (
            f"{held['coverage'] * held['rows']:.0f} of them within their {held['level']:.0%} interval, mean width "
            f"{held['mean_width']:.4g}"
            if "coverage" in held
            else "there are no intervals for them"
        )
    model, audit = found["model"], network.audited_
    assert audit is not None
    return lines | {"audit": f"{look_at(audit)}; vhat audit {model} shows every line", "saved to": model}
