"""Store saved models as MLflow models of the ``python_function`` flavour, which predict the intervals of a data frame.

MLflow stores a copy of the saved directory and the options, without pickle. The directory of a sketch contains no
training rows::

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
"""Options of a FramePredictor, which are stored with the model."""


def save_model(directory: str | os.PathLike[str], path: str | os.PathLike[str], **options: Any) -> None:
    """Save a model for ``mlflow.pyfunc.load_model``.

    Args:
        directory: A directory written by ``network.save``, ``network.sketch().save`` or ``vhat sketch --out``.
        path: The directory for MLflow. It must not exist.
        options: Options of ``FramePredictor``: ``delta``, ``target``, ``bound``, ``noise``, ``observation_noise``,
            ``keep``. All others are passed to ``mlflow.pyfunc.save_model``.

    Raises:
        InputError: For options that cannot be used.
        StoreError: If there is no saved model.
        MissingPackage: If MLflow is not installed.
    """
    _pyfunc().save_model(path=os.fspath(path), **_arguments(directory, options))


def log_model(directory: str | os.PathLike[str], name: str = "model", **options: Any) -> Any:
    """Log a model to the active run of MLflow, and return the ``ModelInfo`` of MLflow.

    Args:
        directory: As in :func:`save_model`.
        name: The name of the model in MLflow.
        options: As in :func:`save_model`; all others are passed to ``mlflow.pyfunc.log_model``.

    Raises:
        InputError: For options that cannot be used.
        StoreError: If there is no saved model.
        MissingPackage: If MLflow is not installed.
    """
    return _pyfunc().log_model(name=name, **_arguments(directory, options))


@dataclass(frozen=True)
class _PythonModel:
    """The object from which MLflow requests predictions."""

    predictor: FramePredictor

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return the intervals of the rows of a data frame.

        Raises:
            InputError: If the rows are not a data frame, or if parameters are given: there are none.
        """
        if not hasattr(frame, "iloc"):
            raise InputError(f"rows came as {type(frame).__name__}; give a pandas DataFrame with the training columns.")
        if params:
            raise InputError(f"params={dict(params)!r}: the options were given to save_model, and there are no others.")
        return self.predictor(frame)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> _PythonModel:
    """Return the model that MLflow stored. MLflow finds this function by its name."""
    return _PythonModel(_predictor(path, dict(model_config or {})))


def _predictor(directory: str, options: Mapping[str, Any]) -> FramePredictor:
    return FramePredictor(directory, **{**options, "keep": tuple(options.get("keep", ()))})


def _arguments(directory: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for MLflow.

    Raises:
        InputError: For options that cannot be used.
        StoreError: If there is no saved model.
    """
    from vhat.store.reading import fingerprint

    own = {name: options[name] for name in _OPTIONS if name in options}
    others = {name: value for name, value in options.items() if name not in _OPTIONS}
    path = os.fspath(directory)
    predictor = _predictor(path, own)  # raises for options that cannot be used
    fingerprint(path)  # raises if there is no model
    return {
        "loader_module": __name__,
        "data_path": path,
        "model_config": own | {"keep": list(predictor.keep)},
        "pip_requirements": [f"vhat[sklearn,parquet]=={__version__}"],
        **others,
    }


def _pyfunc() -> Any:
    try:
        from mlflow import pyfunc
    except ImportError as error:
        raise MissingPackage('MLflow is not installed. Install it: pip install "vhat[mlflow]".') from error
    return pyfunc
