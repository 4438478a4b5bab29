"""Saved models of tables as MLflow models of the ``python_function`` flavour: a frame in, its intervals out.

What MLflow keeps is a copy of the saved directory and the options, and no pickle. Save a sketch, and no training row is
in it::

    network.sketch().save("deployed")
    vhat.mlflow.save_model("deployed", "packed", delta=0.1, target="observation")
    mlflow.pyfunc.load_model("packed").predict(frame)  # center, lower, upper, standard_error, unsupported, status
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vhat import __version__
from vhat.cli.directories import FramePredictor
from vhat.errors import InputError, MissingPackage

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["log_model", "save_model"]

_OPTIONS = ("delta", "target", "bound", "noise", "observation_noise", "keep")
"""Fields of a FramePredictor that are kept with the model."""


def save_model(directory: str | os.PathLike[str], path: str | os.PathLike[str], **options: Any) -> None:
    """Save a model for ``mlflow.pyfunc.load_model``.

    Args:
        directory: What ``network.save`` or ``network.sketch().save`` or ``vhat sketch --out`` has written.
        path: Where MLflow's directory goes; it must not exist.
        options: What is asked of every row, as in ``FramePredictor``: ``delta``, ``target``, ``bound``, ``noise``,
            ``observation_noise``, ``keep``. All others go to ``mlflow.pyfunc.save_model``.

    Raises:
        InputError: For options that cannot be used.
        StoreError: When there is no saved model.
        MissingPackage: Without MLflow.
    """
    _pyfunc().save_model(path=os.fspath(path), **_arguments(directory, options))


def log_model(directory: str | os.PathLike[str], name: str = "model", **options: Any) -> Any:
    """Log a model to the run of MLflow that is active, and return what MLflow knows of it.

    Args:
        directory: As in :func:`save_model`.
        name: Under which MLflow keeps it.
        options: As in :func:`save_model`; all others go to ``mlflow.pyfunc.log_model``.

    Raises:
        InputError: For options that cannot be used.
        StoreError: When there is no saved model.
        MissingPackage: Without MLflow.
    """
    return _pyfunc().log_model(name=name, **_arguments(directory, options))


@dataclass(frozen=True)
class _Packed:
    """What MLflow asks for predictions."""

    predictor: FramePredictor

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return the intervals of some rows.

        Raises:
            InputError: For rows that are no data frame, and for parameters, of which there are none.
        """
        if not hasattr(frame, "iloc"):
            raise InputError(f"rows came as {type(frame).__name__}; give a pandas DataFrame with the training columns.")
        if params:
            raise InputError(f"params={dict(params)!r}: the options were given to save_model, and there are no others.")
        return self.predictor(frame)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> _Packed:
    """Return the model that MLflow has kept; MLflow calls this by its name."""
    return _Packed(_predictor(path, dict(model_config or {})))


def _predictor(directory: str, options: Mapping[str, Any]) -> FramePredictor:
    return FramePredictor(directory, **{**options, "keep": tuple(options.get("keep", ()))})


def _arguments(directory: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MLflow is called with.

    Raises:
        InputError: For options that cannot be used.
        StoreError: When there is no saved model.
    """
    from vhat.store.reading import fingerprint

    own = {name: options[name] for name in _OPTIONS if name in options}
    others = {name: value for name, value in options.items() if name not in _OPTIONS}
    place = os.fspath(directory)
    asked = _predictor(place, own)  # checks the options
    fingerprint(place)  # checks that there is a model
    requirements = {"pip_requirements": [f"vhat[sklearn,parquet]=={__version__}"]}
    return {
        "loader_module": __name__,
        "data_path": place,
        "model_config": own | {"keep": list(asked.keep)},
        **requirements,
        **others,
    }


def _pyfunc() -> Any:
    try:
        from mlflow import pyfunc
    except ImportError as error:
        raise MissingPackage('MLflow is not installed. Install it: pip install "vhat[mlflow]".') from error
    return pyfunc
