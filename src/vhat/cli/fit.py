"""The command ``vhat fit``."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vhat.cli.application import command
from vhat.cli.audit_warnings import doubtful_lines, summary, warning
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
"""Confidence level of the intervals by which held-out rows judge the fit."""
_PARTS = {"weight decay": 0.75, "audit": 0.15, "folds": 0.1}
"""Approximate share of the time of each stage, for the progress bar of the whole fit."""


@command("vhat fit data.csv --target price --hold-out 0.2 --out model")
def fit(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the model.")] = Path("model"),
    features: Features = None,
    columns: ColumnKinds = None,
    hidden: Hidden = "32",
    activation: Annotated[
        Activation,
        typer.Option(
            metavar="NAME",
            help="Activation function: tanh, softplus, gelu, silu; or relu, whose kinks prevent a certified minimum.",
        ),
    ] = "tanh",
    decay: WeightDecay = "auto",
    recipe: Annotated[
        Recipe,
        typer.Option(
            metavar="NAME",
            help="How to train: minimum, which the intervals assume; or adam, adamw, gradient_descent.",
        ),
    ] = "minimum",
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="COLUMN", help="Column of row weights; by default all rows weigh the same."),
    ] = None,
    log_target: Annotated[
        bool,
        typer.Option(
            "--log-target", help="Fit the logarithm of a positive target, so that intervals are never negative."
        ),
    ] = False,
    hold_out: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of the rows to hold out of the fit and test it on, such as 0.2."),
    ] = 0.0,
    seed: Seed = 0,
    separator: Separator = None,
    json: Json = False,
    quiet: Quiet = False,
    force: Force = False,
) -> None:
    """Train a network on a table to a certified minimum of its loss, and save it.

    Columns may hold numbers, numbers written as text, dates, categories, yes and no, and empty cells; the output shows
    how each column was read. Columns and target are standardised internally. Predictions and intervals are in the units
    of the table.
    """
    from vhat.cli import saved_models
    from vhat.cli.training_rows import Rows, predictors
    from vhat.estimator import NetworkRegressor
    from vhat.tables.files import open_table

    saved_models.check_place(out, force=force)
    table = open_table(data, separator)
    names = predictors(table, target, features, weights)
    kinds = column_kinds(columns)
    network = NetworkRegressor(
        hidden_layers(hidden),
        activation=activation,
        weight_decay=weight_decay(decay),
        recipe=recipe,
        columns={name: kind for name, kind in kinds.items() if name != target} or None,
        log_target=log_target,
        random_state=seed,
    )
    rows = Rows.read(table, names, target, weights, kinds).counted()
    training, held = rows.split(hold_out, seed)
    with silence(quiet), overall("fit", _PARTS):
        result, refusal = _train_and_test(network, training, held, target, out, table.name, seed)
        if json or not on_terminal():
            text = warning(network.audited_, out)
            if text:
                note(text)
    if json:
        print_json(result)
    elif not quiet:
        show(facts(f"Fitted to {table.name}", _summary(network, result, target)))
    if refusal is not None:  # raised last: the model and its audit are of use without intervals for the held-out rows
        raise refusal


def _train_and_test(
    network: NetworkRegressor, training: Rows, held: Rows | None, target: str, out: Path, table: str, seed: int
) -> tuple[dict[str, Any], VhatError | None]:
    """Train, audit, calibrate and save a network, and test it on held-out rows.

    Args:
        network: The network.
        training: The training rows.
        held: The held-out rows, or None.
        target: The column of the target.
        out: The directory of the model.
        table: The name of the table in messages.
        seed: Seed of the boosted trees with which the network is compared.

    Returns:
        The result, and the error if there are no intervals for the held-out rows.
    """
    from vhat.estimator.held_out import keep

    training.fit(network, target)
    findings = training.findings(network, target, held)
    training = training.encoded(network.columns_)
    if held is not None:
        held = _encode_held_out(network, held, table)
    network.save(out)  # the next steps may take long: after Ctrl-C the trained model is there
    note(_next_steps(out, held))
    result = _result(network, training, network.audit(), out) | {"findings": findings}
    network.calibrate()
    if held is not None:
        keep(network, held.X, held.y, held.names)
    network.save(out)  # with the audit and the calibration, so that vhat predict need not repeat them
    if held is None:
        return result, None
    result["held_out"], refusal = _test_on_held_out(network, training, held, seed)
    return result, refusal


def _next_steps(out: Path, held: Rows | None) -> str:
    """Return the message after training: where the model is, and what is computed next."""
    if held is None:
        return f"Saved to {out}; next: its audit."
    return f"Saved to {out}; next: its audit, and a test on the {len(held.y):,} held-out rows."


def _result(network: NetworkRegressor, training: Rows, audit: Audit, out: Path) -> dict[str, Any]:
    """Return the result of the fit, as ``--json`` prints it.

    Args:
        network: The trained network.
        training: The training rows, encoded.
        audit: The audit of the network.
        out: The directory of the model.
    """
    columns = network.columns_
    assert columns is not None  # the table has names
    varies = {name for at, name in enumerate(columns.network_inputs) if at not in network.constants_}
    used = [column.name for column in columns.columns if varies.intersection(column.network_inputs)]
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
        "audit": {"holds": audit.holds, **doubtful_lines(audit)},
    }


def _encode_held_out(network: NetworkRegressor, held: Rows, table: str) -> Rows:
    """Return the held-out rows encoded as inputs of the network, and print warnings about filled cells."""
    assert network.columns_ is not None  # the table has names
    filled = Filled()
    encoded = held.encoded(network.columns_, filled)
    for text in filled.warnings(network.columns_, f"the held-out rows of {table}", len(held.y)):
        note(text)
    return encoded


def _test_on_held_out(
    network: NetworkRegressor, training: Rows, held: Rows, seed: int
) -> tuple[dict[str, Any], VhatError | None]:
    """Return errors and coverage on the held-out rows, and the error if there are no intervals for them."""
    import numpy as np

    from vhat import metrics
    from vhat.report.accuracy import baseline_errors

    weights = np.ones(len(training.y)) if training.weights is None else training.weights
    mean, trees = baseline_errors(
        training.X.to_numpy(dtype=float), training.y, weights, held.X.to_numpy(dtype=float), held.y, seed
    )
    with calling_rows(held.names):
        result = {"rows": len(held.y), "error": _error(network, held), "mean_error": mean, "trees_error": trees}
        try:
            band = network.predict_interval(held.X, 1 - _LEVEL, target="observation")
        except VhatError as error:
            return result, error
    intervals = {
        "level": _LEVEL,
        "coverage": metrics.coverage(band.lower, band.upper, held.y),
        "mean_width": metrics.width(band.lower, band.upper).mean,
    }
    return result | intervals, None


def _error(network: NetworkRegressor, rows: Rows) -> float:
    """Return the root mean square error of the predictions."""
    return float(((network.predict(rows.X) - rows.y) ** 2).mean() ** 0.5)


def _summary(network: NetworkRegressor, result: dict[str, Any], target: str) -> dict[str, str]:
    """Return the result of the fit as lines for the terminal, by their labels.

    Args:
        network: The trained network.
        result: The result, as :func:`_result` returned it.
        target: The column of the target.
    """
    columns = network.columns_
    audit = network.audited_
    assert columns is not None  # the table has names
    assert audit is not None
    scale = ", fitted as its log" if network.log_target else ""
    used = ", ".join(result["columns"])
    lines = {
        "target": f"{target}, standard deviation {result['target_sd']:.4g}{scale}",
        "trained on": f"{result['rows']:,} rows, {len(result['columns'])} columns: {used}",
    }
    lines |= column_lines(columns)
    # A table of numbers without gaps has no lines of its columns; else constant columns are among these lines.
    constant = [name for name in result["constant"] if columns.plain or not columns[name].left_out]
    if constant:
        same = f"{', '.join(constant)}: the same in all of these rows"
        lines["left out"] = "; ".join(filter(None, [lines.get("left out"), same]))
    if result["rows_without_target"]:
        lines["no target"] = f"in {result['rows_without_target']:,} of the rows read, which are left out"
    if result["remarks"] or result["findings"]:
        lines["check"] = "\n".join([*result["remarks"], *result["findings"]])
    lines["network"] = _network_line(network, result)
    lines["weight decay"] = _weight_decay_line(network, result)
    lines["training error"] = f"{result['training_error']:.4g} (root mean square), on the training rows"
    if "held_out" in result:
        lines["held out"] = _held_out_line(result["held_out"])
    model = result["model"]
    lines["audit"] = f"{summary(audit)}; vhat audit {model} shows every line"
    lines["saved to"] = model
    return lines


def _network_line(network: NetworkRegressor, result: dict[str, Any]) -> str:
    """Return widths, activation and number of parameters of the network."""
    activation = network.activation if len(network.widths_) > 2 else "linear"  # widths_ includes input and output
    return f"{'-'.join(map(str, network.widths_))}, {activation}, {result['parameters']:,} parameters"


def _weight_decay_line(network: NetworkRegressor, result: dict[str, Any]) -> str:
    """Return the weight decay, and how it was chosen if it was."""
    if network.selection_ is None:
        return f"{result['weight_decay']:.3g}"
    return f"{result['weight_decay']:.3g}, chosen by {network.selection_.by.replace('_', '-')}"


def _held_out_line(held: dict[str, Any]) -> str:
    """Return errors and coverage on the held-out rows, beside the errors of two simple models."""
    others = {"boosted trees": held["trees_error"], "the training mean": held["mean_error"]}
    listed = ", ".join(f"{name} {error:.4g}" for name, error in others.items() if isfinite(error))
    errors = f"error {held['error']:.4g} ({listed}) on {held['rows']:,} held-out rows"
    if "coverage" not in held:
        return f"{errors}; there are no intervals for them"
    covered = f"{held['coverage'] * held['rows']:.0f} of them within their {held['level']:.0%} interval"
    return f"{errors}; {covered}, mean width {held['mean_width']:.4g}"
