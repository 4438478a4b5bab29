"""Arguments and options that several commands share, and the functions that read their text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vhat.errors import InputError

__all__ = [
    "ColumnKinds",
    "Data",
    "Features",
    "Force",
    "Hidden",
    "Json",
    "Model",
    "Noise",
    "Quiet",
    "Seed",
    "Separator",
    "WeightDecay",
    "checked_text",
    "column_kinds",
    "hidden_layers",
    "noise_level",
    "split",
    "weight_decay",
]

Data = Annotated[str, typer.Argument(metavar="DATA", help="CSV, Parquet or Excel file; - for CSV on standard input.")]
Model = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a model saved by vhat fit.")]
Separator = Annotated[
    str | None, typer.Option(metavar="CHAR", help="Character between the columns of a CSV file; a comma by default.")
]
Features = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Columns to predict from; by default all except the target.")
]
ColumnKinds = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A=KIND,...",
        help="Kinds of columns, where vhat reads them wrongly: number, decimal-point, decimal-comma, category, date, "
        "day-first, month-first, or skip to leave a column out.",
    ),
]
Hidden = Annotated[str, typer.Option(metavar="32,16,...", help="Units in each hidden layer; 0 for a linear model.")]
WeightDecay = Annotated[
    str,
    typer.Option(
        "--weight-decay",
        metavar="auto|NUMBER",
        help="Strength of the weight decay, for a standardised target; auto chooses it by the error on left-out rows.",
    ),
]
Noise = Annotated[
    str | None,
    typer.Option(
        "--noise",
        metavar="NUMBER|weights|equal",
        help="Standard deviation of the noise in the target; estimated from the residuals by default. weights: "
        "estimated, with the weights of vhat fit as inverse variances. equal: estimated, the same in every row "
        "whatever the weights.",
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="NUMBER", min=0, help="Seed of all random numbers: the same seed gives the same result.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]


def split(text: str, known: Sequence[str] = ()) -> list[str]:
    """Split a list at its commas. A text that is a known name as a whole, commas included, is one entry."""
    if text in known:
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def column_kinds(text: str | None) -> dict[str, str]:
    """Read ``--columns``.

    Raises:
        InputError: If the text is not a list of names and kinds, such as ``zip=category,id=skip``.
    """
    pairs = [part.rpartition("=") for part in split(text or "")]
    for name, sign, kind in pairs:
        if not (sign and name and kind):
            raise InputError(f"--columns {kind!r}: give names and kinds, such as --columns zip=category,id=skip.")
    return {name.strip(): kind.strip() for name, _, kind in pairs}


def hidden_layers(text: str) -> tuple[int, ...]:
    """Read ``--hidden``.

    Raises:
        InputError: If the text is not a list of whole numbers.
    """
    try:
        sizes = tuple(int(part) for part in split(text))
    except ValueError:
        raise InputError(f"--hidden {text!r} is not a list of whole numbers, such as 32 or 32,16.") from None
    if not sizes:
        raise InputError(
            "--hidden is empty. Give units of each hidden layer, such as 32 or 32,16; 0 for a linear model."
        )
    return () if sizes == (0,) else sizes


def checked_text(option: str, text: str | None) -> str | None:
    """Return a text of the command line, after a check that it is valid UTF-8.

    Raises:
        InputError: If it is not. Python reads bytes that are not UTF-8 as lone surrogates.
    """
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{option} {text!r} is not text in UTF-8. Give text in UTF-8.")
    return text


def noise_level(text: str | None) -> float | str | None:
    """Read ``--noise``.

    Raises:
        InputError: If the text is not a number, ``weights`` or ``equal``.
    """
    if text in (None, "weights", "equal"):
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--noise {text!r} is neither a number nor weights or equal.") from None


def weight_decay(text: str) -> float | str:
    """Read ``--weight-decay``.

    Raises:
        InputError: If the text is not a number or ``auto``.
    """
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--weight-decay {text!r} is neither a number nor auto.") from None
