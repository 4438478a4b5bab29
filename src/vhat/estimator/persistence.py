"""Save and load an estimator: its options, what it has learned, and the fitted model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np

from vhat.errors import MissingPackage, StoreError, VhatError
from vhat.estimator import calibration
from vhat.estimator.held_out import HeldOutRows
from vhat.estimator.sketch_of import sketch_of
from vhat.evidence.audit import Audit, Line
from vhat.schema import build, check
from vhat.sketch.persistence import describe_sketch, restore_sketch
from vhat.tables.columns import Columns
from vhat.tables.row_names import RowNames

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor
    from vhat.fit import Selection
    from vhat.fitted.model import FittedModel

__all__ = ["KIND", "load", "save"]

KIND = "NetworkRegressor"
"""The kind of content that a directory with a saved estimator declares."""
_NUMBERS = ("weight_decay", "score", "standard_error", "relative_gradient")
_WORDS = ("status", "remark")
"""Columns of the curve of a selection that are saved: arrays of numbers, and lists of text."""


class _Names(TypedDict):
    labels: np.ndarray | list[str]
    noun: str
    origin: str


class _Rows(TypedDict):
    X: np.ndarray
    y: np.ndarray
    names: dict[str, Any]


class _Calibration(TypedDict):
    found: dict[str, Any] | None
    not_calibrated: str


class _Descent(TypedDict):
    steps: int
    losses: np.ndarray


class _Selection(TypedDict):
    by: str
    measure: str
    status: list[str]
    remark: list[str]


class _Saved(TypedDict):
    """The entries of a saved estimator; entries that earlier versions did not write may be missing."""

    params: dict[str, Any]
    weight_decay: float
    columns: int
    names: list[str] | None
    constants: dict[int, float]
    fitted: dict[str, Any] | None
    sketch: NotRequired[dict[str, Any] | None]
    encoder: NotRequired[list[dict[str, Any]] | None]
    target_column: NotRequired[list[dict[str, Any]] | None]
    target: NotRequired[str | None]
    rows: NotRequired[np.ndarray]
    row_names: NotRequired[dict[str, Any] | None]
    selection: NotRequired[dict[str, Any] | None]
    audit: NotRequired[list[dict[str, Any]] | None]
    calibration: NotRequired[dict[str, Any] | None]
    descent: NotRequired[dict[str, Any]]
    held_out: NotRequired[dict[str, Any] | None]


def save(estimator: NetworkRegressor, directory: str | os.PathLike[str], *, factorisation: bool) -> None:
    """Save a fitted estimator: see :meth:`vhat.NetworkRegressor.save`."""
    from vhat.store import describe, write
    from vhat.store.document import is_plain

    recipe = None if callable(estimator.recipe) else estimator.recipe
    params = {**estimator.get_params(deep=False), "recipe": recipe}
    for name, value in params.items():
        if not is_plain(value):
            raise StoreError(f"{name}={value!r} is an object that cannot be saved. Set it to a number.")
    names = getattr(estimator, "feature_names_in_", None)
    sketch = sketch_of(estimator)
    document = {
        "params": params,
        "weight_decay": estimator.weight_decay_,
        "columns": estimator.n_features_in_,
        "encoder": _optional(estimator.columns_, Columns.describe),
        "target_column": _optional(estimator.target_column_, lambda column: Columns((column,)).describe()),
        "names": _optional(names, list),
        "target": estimator.target_name_,
        "constants": estimator.constants_,
        "rows": estimator.rows_,
        "row_names": _describe_names(estimator.row_names_),
        "fitted": describe(estimator.fitted_, factorisation=factorisation) if sketch is None else None,
        "sketch": _optional(sketch, describe_sketch),
        "selection": _optional(estimator.selection_, _describe_selection),
        "audit": _optional(estimator.audited_, lambda audit: [vars(line) for line in audit]),
        "calibration": calibration.describe(estimator),
        "descent": {"steps": estimator.n_iter_, "losses": np.array(estimator.loss_curve_, dtype=np.float64)},
        "held_out": _optional(estimator.held_out_, _describe_rows),
    }
    write(directory, KIND, document)


def _optional(value: Any, describe: Callable[[Any], Any]) -> Any:
    """Return a value as plain data, and None as None."""
    return None if value is None else describe(value)


def load(
    cls: type[NetworkRegressor], directory: str | os.PathLike[str], recipe: Callable[..., Any] | None
) -> NetworkRegressor:
    """Load an estimator: see :meth:`vhat.NetworkRegressor.load`."""
    from vhat.store import read, well_formed

    saved = read(directory, KIND)
    check(_Saved, saved, "estimator")
    params = dict(saved["params"])
    if "recipe" not in params:
        raise StoreError("the saved estimator is malformed: its options have no entry recipe.")
    if recipe is None and params["recipe"] is None:
        raise StoreError(
            "the recipe of this estimator was a function, which is not saved. Give load(..., recipe=your function)."
        )
    if recipe is not None and params["recipe"] is not None:
        raise StoreError(f"the recipe of this estimator was {params['recipe']!r}, which was saved. Leave recipe= out.")
    if recipe is not None:
        params["recipe"] = recipe
    with well_formed(directory):
        try:
            return _restore(cls(**params), saved)
        except (StoreError, MissingPackage):
            raise
        except VhatError as error:  # a saved estimator takes no options, so that the file must be at fault
            raise StoreError(f"{directory} does not hold an estimator that can be used: {error}") from error


def _restore(loaded: NetworkRegressor, saved: dict[str, Any]) -> NetworkRegressor:
    """Return an estimator with the saved options and everything that it had learned."""
    from vhat.fitted.construct import assemble
    from vhat.store import restore

    sketch = saved.get("sketch")
    fitted: Any = assemble(restore(saved["fitted"])) if sketch is None else restore_sketch(sketch)
    loaded.fitted_ = fitted
    scaling = loaded.fitted_.problem.scaling
    if scaling is None:
        raise StoreError("the saved estimator is malformed: its model has no scaling.")
    loaded.scaling_ = scaling
    loaded.weight_decay_ = saved["weight_decay"]
    loaded.selection_ = _restore_selection(saved.get("selection"), loaded.fitted_, loaded.weight_decay_)
    loaded.constants_ = saved["constants"]
    loaded.n_features_in_ = saved["columns"]
    encoder = saved.get("encoder")
    loaded.columns_ = None if encoder is None else Columns.restore(encoder)
    target = saved.get("target_column")
    loaded.target_column_ = None if target is None else Columns.restore(target).columns[0]
    loaded.target_name_ = saved.get("target")
    lines = saved.get("audit")
    loaded.audited_ = None if lines is None else Audit(tuple(build(Line, line) for line in lines))
    if saved.get("calibration") is not None:
        check(_Calibration, saved["calibration"], "calibration")
    calibration.restore(loaded, saved.get("calibration"))
    if "descent" in saved:
        check(_Descent, saved["descent"], "record of the descent")
        loaded.n_iter_ = saved["descent"]["steps"]
        loaded.loss_curve_ = saved["descent"]["losses"].tolist()
    loaded.held_out_ = _restore_rows(saved.get("held_out"))
    loaded.rows_ = saved.get("rows", np.arange(loaded.fitted_.problem.n))
    loaded.row_names_ = _restore_names(saved.get("row_names"), loaded.rows_)
    if saved["names"] is not None:
        loaded.feature_names_in_ = np.array(saved["names"], dtype=object)
    _check_columns(loaded, saved["names"])
    return loaded


def _check_columns(loaded: NetworkRegressor, names: list[str] | None) -> None:
    """Refuse names of columns that differ from those of the encoder, or are not one per column."""
    if names is None:
        return
    encoded = None if loaded.columns_ is None else list(loaded.columns_.names)
    if len(names) != loaded.n_features_in_ or (encoded is not None and names != encoded):
        raise StoreError(f"the saved estimator is malformed: its columns are called {names} and encoded as {encoded}.")


def _describe_names(names: RowNames) -> dict[str, Any]:
    """Return names of rows as plain data: integer labels as an array, text as a list."""
    labels = names.labels.tolist() if names.labels.dtype == object else names.labels
    return {"labels": labels, "noun": names.noun, "origin": names.origin}


def _restore_names(saved: dict[str, Any] | None, rows: np.ndarray) -> RowNames:
    """Return the saved names of rows; numbers in the table for a model that was saved without names."""
    if saved is None:
        return RowNames(rows)
    check(_Names, saved, "names of rows")
    labels = saved["labels"]
    if len(labels) != len(rows):
        raise StoreError(f"the saved names of rows are malformed: there are {len(labels)} for {len(rows)} rows.")
    kind = object if isinstance(labels, list) else labels.dtype
    return RowNames(np.array(labels, dtype=kind), saved["noun"], saved["origin"])


def _describe_rows(rows: HeldOutRows) -> dict[str, Any]:
    """Return held-out rows as plain data."""
    return {"X": rows.X, "y": rows.y, "names": _describe_names(rows.names)}


def _restore_rows(saved: dict[str, Any] | None) -> HeldOutRows | None:
    """Return the saved held-out rows; None for a model that was saved without them."""
    if saved is None:
        return None
    check(_Rows, saved, "rows kept apart")
    return HeldOutRows(saved["X"], saved["y"], _restore_names(saved["names"], np.arange(len(saved["X"]))))


def _describe_selection(selection: Selection) -> dict[str, Any]:
    """Return the curve as plain data; the model under the chosen lam is the fitted one, and is not saved twice."""
    curve = selection.curve
    numbers = {name: getattr(curve, name) for name in _NUMBERS}
    words = {name: getattr(curve, name).astype(str).tolist() for name in _WORDS}
    return {"by": selection.by, "measure": curve.measure, **numbers, **words}


def _restore_selection(saved: dict[str, Any] | None, fitted: FittedModel, weight_decay: float) -> Selection | None:
    """Return the saved selection; its model is the fitted one in standardised units."""
    from vhat.fit import Curve, Selection
    from vhat.fitted.model import FittedModel

    if saved is None:
        return None
    check(_Selection, saved, "choice of the weight decay")
    words = {name: np.array(saved[name], dtype=object) for name in _WORDS}
    curve = build(Curve, {"measure": saved["measure"], **{name: saved[name] for name in _NUMBERS}}, **words)
    base, record = fitted.problem.in_model_units(), fitted.polished
    trained = FittedModel(base, polished=None if record is None else replace(record, problem=base))
    return Selection(weight_decay, trained, curve, saved["by"])
