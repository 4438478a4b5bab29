"""The scikit-learn estimator: train a network on a table, and compute intervals in the units of the table."""

from __future__ import annotations

import functools
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vhat.checks import check_choice, check_weights
from vhat.errors import InputError, MissingPackage, calling_rows
from vhat.estimator import calibration, log_target, messages, persistence, predictions
from vhat.estimator import columns as table_columns
from vhat.estimator.sketch_of import refuse_sketched, sketch_of
from vhat.estimator.sketched import sketched
from vhat.estimator.standardise import in_user_units
from vhat.estimator.weight_decay import Decay
from vhat.fitted.model import FittedModel
from vhat.models.networks import ACTIVATIONS
from vhat.models.scaling import Scaling
from vhat.progress import loss_recorded
from vhat.sketch.sketch import PROBES
from vhat.tables import validate
from vhat.tables.frames import as_pandas
from vhat.tables.row_names import RowNames

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise MissingPackage(
        "NetworkRegressor is a scikit-learn estimator, and scikit-learn 1.6 or newer is not installed. Install it: "
        'pip install "vhat[sklearn]", or pip install scikit-learn. The rest of vhat does without.'
    ) from error

if TYPE_CHECKING:
    import pandas as pd

    from vhat.estimator.held_out import HeldOutRows
    from vhat.evidence.audit import Audit
    from vhat.fit import Network, Selection
    from vhat.intervals.calibrate import Calibrated
    from vhat.intervals.interval import Interval
    from vhat.tables.columns import Column, Columns

__all__ = ["NetworkRegressor"]

_RECIPES = {"minimum": "Minimum", "adam": "Adam", "adamw": "AdamW", "gradient_descent": "GradientDescent"}


class NetworkRegressor(RegressorMixin, BaseEstimator):
    """A fully connected network, trained to a certified minimum, with a confidence interval for every prediction.

    Inputs and target are standardised inside, to mean 0 and standard deviation 1 over the training rows; predictions
    and intervals come back in the units of ``y``. Everything else that a fitted model can do is in ``fitted_``, in the
    same units: ``fitted_.leave_one_out()``, ``fitted_.acquire(pool, k)``.

    Args:
        hidden_layer_sizes: Units of each hidden layer; ``()`` is a linear model.
        activation: ``"tanh"``, ``"softplus"``, ``"gelu"`` or ``"silu"``; also ``"relu"``, which has kinks, for the
            recipes that do not certify a minimum.
        weight_decay: lam of ``1/(2n) sum_i (f_i - y_i)^2 + lam/2 |theta|^2`` in the *standardised* target, so that it
            does not depend on the units of the table; the penalty acts on biases too. ``"auto"`` chooses it over a grid
            of four decades by leave-one-out, without refitting for every row (five to ten fits); where leave-one-out is
            too rough, by cross-validation with five folds (about fifty fits). A list or array of numbers, such as
            ``numpy.logspace(-8, -4, 9)``, is the grid to choose from; the whole curve is in ``selection_``.
            :func:`vhat.fit.choose_weight_decay` has other ways. Each fit of a grid starts at the previous minimum, so
            that ``weight_decay_``, given as a number, may lead to another minimum.
        recipe: ``"minimum"`` (what intervals assume), ``"adam"``, ``"adamw"``, ``"gradient_descent"``; or
            ``recipe(network, weight_decay)`` that returns one of :mod:`vhat.fit`, such as
            ``functools.partial(vhat.fit.AdamW, steps=2000)``.
        columns: Kinds of some columns of a data frame, by name, in place of the kinds that ``fit`` would choose:
            ``"number"``, ``"decimal-point"``, ``"decimal-comma"``, ``"category"``, ``"date"``, ``"day-first"``,
            ``"month-first"`` or ``"skip"``. ``docs/messy-tables.md`` has the rules.
        log_target: Fit the logarithm of the target, for positive targets that are skewed or whose noise grows with
            them. Predictions and intervals come back in the units of y, never negative; the center is then exp of the
            mean of log y, a median. ``fitted_``, ``noise`` and the report are about log y.
        transform_skewed: Whether columns with a skewness beyond 1 are transformed by Yeo and Johnson's method before
            they enter the network, so that a few far rows do not take most of the range. Linear models take columns as
            they are. ``scaling_.transformed`` lists the transformed columns.
        random_state: Seed of the initial parameters. A number gives the same fit every time.

    Attributes:
        fitted_: The fitted model, in the units of the table: :class:`vhat.FittedModel`; of :meth:`sketch`, a
            :class:`vhat.Sketch`.
        weight_decay_: The lam that was used.
        selection_: How it was chosen (:class:`vhat.fit.Selection`, in standardised units), or None.
        scaling_: Means and standard deviations of the columns and of the target, and the powers of skewed columns.
        columns_: How the columns of a data frame were read (text, categories, dates, gaps), and which were left out;
            None for an array. ``print(network.columns_)`` shows one line per column, ``columns_.columns`` has one entry
            per column. ``fitted_`` takes the columns that :meth:`encode` returns.
        constants_: Columns that did not vary, by number, and their value: the model leaves them out.
        widths_: Units of each layer, from the columns that vary to the outputs.
        audited_: The last result of :meth:`audit` without a given noise level, or None; it is saved with the fit.
        calibrated_: The calibration of intervals of new responses (:class:`vhat.Calibrated`): by leave-one-out, made
            on the first request (by five refits where leave-one-out is too rough), or by the rows of :meth:`calibrate`;
            None before. It is saved with the fit.
        held_out_: The rows that ``vhat fit --hold-out`` kept apart, by which :meth:`report` tests the intervals; else
            None. They are saved with the fit.
        not_calibrated_: Why the training rows cannot calibrate this fit; empty where they can.
        rows_: The rows of the table that ``fitted_`` holds, by number: all but those of weight zero. Row i of
            ``fitted_.leave_one_out()`` or ``fitted_.sensitivity(x)`` is row ``rows_[i]`` of the table.
        row_names_: Names of these rows in a report: from the index of X for a data frame, from ``rows_`` for an array,
            by line of the file for ``vhat fit``.
        n_iter_: Steps of the last descent, which led to this fit.
        loss_curve_: The penalised objective in the standardised target after each of these steps; where many steps are
            compiled together (larger networks, the other recipes), after every few hundred. If the weight decay was
            chosen, the last descent starts at the fit of a candidate.
        n_features_in_: The number of columns of X.
        feature_names_in_: The names of these columns, if X was a data frame.
        target_column_: How ``vhat fit`` read a target that was text, or None.
        target_name_: The name of the target in a report, if y was a series with a name; or None.

    Examples:
        >>> import numpy as np, vhat
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-2, 2, size=(80, 1))
        >>> y = 100 + 20 * np.sin(2 * X[:, 0]) + rng.normal(size=80)
        >>> network = vhat.NetworkRegressor(hidden_layer_sizes=(8,), weight_decay=1e-3).fit(X, y)
        >>> band = network.predict_interval([[0.5]], delta=0.1, target="observation")
        >>> bool(band.lower[0] < 116.8 < band.upper[0])
        True
    """

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] = (32,),
        *,
        activation: str = "tanh",
        weight_decay: Any = "auto",
        recipe: str | Callable[..., Any] = "minimum",
        columns: Mapping[str, str] | None = None,
        log_target: bool = False,
        transform_skewed: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.weight_decay = weight_decay
        self.recipe = recipe
        self.columns = columns
        self.log_target = log_target
        self.transform_skewed = transform_skewed
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    # -- training ----------------------------------------------------------------------------
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NetworkRegressor:
        """Train on a table.

        Args:
            X: Numbers, (rows, columns), or a data frame of pandas, polars or Arrow, whose columns may also hold text,
                categories, dates, yes and no, and gaps: ``print(network.columns_)`` shows how each was read.
            y: The target, (rows,), or (rows, outputs).
            sample_weight: Weight of each row in the loss. A row with weight 2 is fitted like two copies of it; its
                noise is assumed to be that of the others. A row with weight 0 is left out (see ``rows_``).

        Returns:
            The estimator itself.

        Raises:
            InputError: For a table from which nothing can be learned, and for unknown options.
            PolishError: When no certified minimum can be reached, with a lam that would work.

        Warns:
            TableWarning: Of columns that are left out (constant, empty, or text that differs in every row), of columns
                of a data frame that look like identifiers, of fewer rows than columns, and of too few rows to choose
                the weight decay by.
        """
        self._fit(X, y, sample_weight, None)
        table_columns.warn_of_identifiers(self.columns_, as_pandas(X), as_pandas(y), self.columns)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, decided: Columns | None) -> NetworkRegressor:
        """Train on a table.

        Args:
            X: As in :meth:`fit`.
            y: As in :meth:`fit`.
            sample_weight: As in :meth:`fit`.
            decided: How to read the columns of X, where ``vhat fit`` has decided it by all rows of a file, held-out
                rows included; None to decide it by X.
        """
        X = as_pandas(X)
        y = as_pandas(y)
        target_name = getattr(y, "name", None)
        table = table_columns.read_training_table(self, X, y, sample_weight, decided)
        responses = np.asarray(table.y, dtype=np.float64)
        if responses.ndim == 2 and responses.shape[1] == 1:
            responses = responses[:, 0]
        if self.log_target:
            responses = log_target.log_of(responses)
        weights = check_weights(sample_weight, len(responses))
        rows = validate.weighted(table.X, responses, weights)
        kept = validate.check_table(rows, table.names)
        # The weight decay is chosen by leave-one-out, which has to leave out all copies of a row together.
        training = validate.merge_copies(rows)
        scaling = self._scaling(training, kept, table.columns)
        standardised = replace(training, X=scaling.inputs(training.X), y=scaling.responses(training.y))
        with loss_recorded() as record:
            trained = self._train(standardised)
        self.n_iter_ = record.steps
        self.loss_curve_ = record.losses
        self.columns_ = table.columns
        self.target_column_: Column | None = None
        self.scaling_ = scaling
        self.rows_ = np.flatnonzero(weights)
        self.row_names_ = RowNames.of(X, len(weights)).take(self.rows_)
        self.fitted_ = in_user_units(trained, scaling, rows, self.weight_decay_, table.names)
        self.constants_ = scaling.constants(rows.X)
        self.target_name_: str | None = target_name if isinstance(target_name, str) else None
        self.audited_: Audit | None = None
        self.calibrated_: Calibrated | None = None
        self.not_calibrated_ = ""
        self.held_out_: HeldOutRows | None = None
        return self

    def _scaling(self, rows: validate.TrainingRows, kept: np.ndarray, columns: Columns | None) -> Scaling:
        """Return how the rows are standardised.

        Args:
            rows: The training rows.
            kept: The columns that vary, as indices.
            columns: How a data frame was read, or None.
        """
        has_hidden_layers = bool(self._hidden())
        return Scaling.of(
            rows.X,
            rows.y,
            rows.weights,
            kept,
            powers=has_hidden_layers and self.transform_skewed,  # a linear model stays linear in the columns
            spreads=None if columns is None else columns.spreads,
        )

    def _train(self, rows: validate.TrainingRows) -> FittedModel:
        """Train on standardised rows, at the lam that was given or is chosen here."""
        outputs = 1 if rows.y.ndim == 1 else rows.y.shape[1]
        widths = (rows.X.shape[1], *self._hidden(), outputs)
        messages.refuse_size(widths)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        network = _network(widths, self.activation)
        seed = self._seed()
        recipe = functools.partial(self._recipe, network)
        decay = Decay.of(self.weight_decay)
        given = decay.number(len(rows.X))
        self.selection_: Selection | None = None
        if given is None:
            self.selection_ = decay.choose(recipe(1.0), rows.X, rows.y, sample_weight=rows.weights, seed=seed)
            self.weight_decay_ = self.selection_.weight_decay
            return self.selection_.trained
        self.weight_decay_ = given
        return _trained(recipe(given), rows, seed)

    @property
    def widths_(self) -> tuple[int, ...]:
        """Units of each layer of the network that was trained: columns that vary, hidden layers, outputs."""
        return (len(self.scaling_.kept), *self._hidden(), self.fitted_.problem.outputs)

    def _hidden(self) -> tuple[int, ...]:
        """Return the units of each hidden layer.

        Raises:
            InputError: For anything but positive integers.
        """
        sizes = self.hidden_layer_sizes
        units = tuple(sizes) if isinstance(sizes, list | tuple | np.ndarray | range) else (sizes,)
        if not all(isinstance(size, numbers.Integral) and size > 0 for size in units):
            raise InputError(f"hidden_layer_sizes={sizes!r} must be positive whole numbers, such as (32,) or (32, 16).")
        return tuple(int(size) for size in units)

    def _recipe(self, network: Network, weight_decay: float) -> Any:
        """Return the recipe that trains a network under a weight decay.

        Raises:
            InputError: For an unknown recipe, and for a function that returns no recipe.
        """
        from vhat import fit
        from vhat.fit.recipe import NetworkRecipe

        if callable(self.recipe):
            made = self.recipe(network, weight_decay)
        else:
            check_choice("recipe", self.recipe, tuple(_RECIPES))
            messages.refuse_kinks(self.recipe, network.activation)
            made = getattr(fit, _RECIPES[self.recipe])(network, weight_decay)
        if not isinstance(made, NetworkRecipe):
            raise InputError(
                f"recipe(network, weight_decay) returned {type(made).__name__}; it must return a recipe of vhat.fit, "
                "such as functools.partial(vhat.fit.AdamW, steps=2000) does. For a training loop of your own, end it "
                "in vhat.from_torch or vhat.from_jax."
            )
        return made

    def _seed(self) -> int:
        """Return ``random_state`` as an integer; a generator draws one."""
        if isinstance(self.random_state, numbers.Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    # -- predictions ---------------------------------------------------------------------------
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the target, (points,) or (points, outputs); with ``log_target``, exp of the mean of its logarithm.

        Args:
            X: Points, with the columns of the training table.
            return_std: Return the standard deviation of a new response as well, noise included, as
                ``sklearn.linear_model.BayesianRidge`` does: ``sqrt(noise^2 + standard_error^2)``, by the formula and
                not calibrated. That of the prediction alone is ``predict_interval(X).standard_error``.

        Returns:
            The predictions; with ``return_std`` the pair ``(predictions, standard deviations)``.
        """
        if return_std and self.log_target:
            raise InputError(
                "return_std=True with log_target: the target was fitted as its logarithm, and the standard deviation "
                "of that is none of the target. Use predict_quantiles(X), or predict_interval(X)."
            )
        points = self._points(X)
        center = self.fitted_.predict(points)
        if return_std:
            return center, predictions.standard_deviation(self, points)
        return np.exp(center) if self.log_target else center

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Predict quantiles of a new response, calibrated on each side on its own.

        They come from the signed errors of the training rows, each left out in turn, or of the rows of
        :meth:`calibrate`; the quantile of 0.5 is the prediction plus the median error. Skewed responses have skewed
        quantiles, whereas :meth:`predict_interval` is symmetric.

        Args:
            X: Points, with the columns of the training table.
            quantiles: Numbers between 0 and 1.

        Returns:
            (points, quantiles), or (points, outputs, quantiles).

        Raises:
            InputError: For points or quantiles that cannot be used.

        Warns:
            CalibrationWarning: Where they cannot be calibrated, so that they are those of Student's distribution.
        """
        points = self._points(X)
        with messages.warnings_reworded(self.recipe, self.activation):
            found = predictions.quantiles(self, points, quantiles)
        return np.exp(found) if self.log_target else found

    def predict_interval(
        self,
        X: Any,
        delta: float | None = None,
        *,
        confidence_level: float | None = None,
        target: str = "mean",
        bound: str | None = None,
        simultaneous: bool | str = False,
        noise: Any = None,
        observation_noise: Any = None,
    ) -> Interval:
        """Compute an interval for every prediction, in the units of the target.

        The interval is for the mean of the prediction over the noise in the training responses, or for a new response:
        ``docs/which-interval.md`` says which one answers which question. The interval of a new response is calibrated:
        its width comes from the errors of the training rows, each left out in turn, or of the held-out rows of
        :meth:`calibrate`, and includes bias. If the fit spends more than a tenth of a degree of freedom on each row,
        five refits without a fifth of the rows each replace leave-one-out. The interval of the mean does not include
        bias: where the training data say little about a row (``band.unsupported`` near 1) the error is bias, and
        ``band.abstain(max_unsupported=0.5)`` marks such rows.

        Args:
            X: Points, with the columns of the training table.
            delta: Probability of a miss: 0.05, the default, asks for 95% confidence.
            confidence_level: The same as ``1 - delta``, in place of it: 0.95.
            target: ``"mean"`` for the expected prediction, ``"observation"`` for a new response.
            bound: None for the isoperimetric bound of the mean, and for calibrated intervals of a new response. A name
                asks for a bound in either case: ``"isoperimetric"``, or ``"asymptotic"`` for the textbook width.
                :meth:`vhat.FittedModel.interval` has the table of all bounds, and more options:
                ``fitted_.interval(X, ...)``.
            simultaneous: As in :meth:`vhat.FittedModel.interval`; of calibrated intervals, the union bound alone.
            noise: Standard deviation of the target's noise where it is known, in the units of y; with ``log_target``,
                of log y, and so is ``observation_noise``. None estimates it;
                ``"weights"`` does so with the sample weights of ``fit`` as inverse variances, ``"equal"`` with equal
                noise in every row whatever the weights. One number per row of ``fit`` (those in ``rows_``) for noise
                that differs between them.
            observation_noise: Standard deviation of a new response, for ``target="observation"``: a number or one per
                row of X. Needed where ``noise`` differs between the training rows.

        Returns:
            The interval, with its evidence in ``guarantee``, and the index of X in ``to_pandas()``.

        Raises:
            InputError: For points or options that cannot be used.
            NoiseError: When the noise has to be estimated and the fit interpolates.

        Warns:
            SupportWarning: Of rows about which the training data say little and, once, of a fit that weight decay
                determines: there the error is bias, which is not in the width. Of rows far outside the training range
                of a column; their status says so too.
            NoiseWarning: Once, of sample weights that vary where ``noise`` does not say what they mean.
            NotMinimumWarning: Once, of a recipe that did not end at a minimum.
            CalibrationWarning: Where the training rows cannot calibrate the intervals of new responses, so that the
                bound gives them: a fit that is no minimum or depends on single rows, too few rows for delta, new
                responses with other noise.
        """
        delta = predictions.check_level(delta, confidence_level)
        asked = self._read_points(X)
        options: dict[str, Any] = {"simultaneous": simultaneous, "noise": noise, "observation_noise": observation_noise}
        with messages.warnings_reworded(self.recipe, self.activation):
            if target == "observation" and bound is None:
                band = calibration.observation_interval(self, asked.numbers, delta, **options)
            else:
                chosen = bound or calibration.BOUND
                band = self.fitted_.interval(asked.numbers, delta, target=target, bound=chosen, **options)
        model = sketch_of(self) or self.fitted_.workspace
        messages.warn_of_support(band, first=model.first)
        far = np.asarray(self.scaling_.far(asked.numbers).any(axis=1))
        band = replace(band, index=X.index if hasattr(X, "iloc") else None)
        band = asked.with_status(band, far)
        return log_target.in_own_units(band) if self.log_target else band

    def summary_frame(self, X: Any, alpha: float = 0.05, *, bound: str | None = None, noise: Any = None) -> Any:
        """Return predictions and both intervals in a table with the columns of statsmodels.

        Args:
            X: Points, with the columns of the training table.
            alpha: Probability of a miss of each interval, the ``delta`` of :meth:`predict_interval`.
            bound: As in :meth:`predict_interval`: by default the bound of the mean, and calibration for a response.
            noise: As in :meth:`predict_interval`.

        Returns:
            ``mean``, ``mean_se``, ``mean_ci_lower``, ``mean_ci_upper``, ``obs_ci_lower``, ``obs_ci_upper``: a data
            frame of pandas with the index of X, or of polars or Arrow where X is one.
        """
        return predictions.summary_frame(self, X, alpha, {"bound": bound, "noise": noise})

    def calibrate(self, X: Any = None, y: Any = None, *, noise_shape: str = calibration.VARYING) -> NetworkRegressor:
        """Calibrate the intervals of new responses, by held-out rows or, without any, by leave-one-out.

        ``predict_interval(X, target="observation")`` calibrates by leave-one-out itself when it is first asked.

        Args:
            X: Inputs of rows that training did not see; None for leave-one-out.
            y: Their responses.
            noise_shape: ``"prediction"``: the noise may vary with the prediction, where the errors of left-out training
                rows show that it does; ``"constant"``: it is the same everywhere.

        Returns:
            The estimator itself, with the calibration in ``calibrated_``: saved with it, and gone with the next fit.

        Raises:
            InputError: For rows that cannot be used, or that training saw.
            NoiseError: When the fit interpolates, so that its noise is not known.

        Warns:
            CalibrationWarning: Of a few rows that are copies of training rows; of a fit that leave-one-out cannot
                calibrate (``not_calibrated_`` says why).

        Examples:
            >>> import numpy as np, vhat
            >>> rng = np.random.default_rng(0)
            >>> X = rng.uniform(-2, 2, size=(120, 1))
            >>> y = 100 + 20 * np.sin(2 * X[:, 0]) + rng.normal(size=120)
            >>> network = vhat.NetworkRegressor(hidden_layer_sizes=(8,), weight_decay=1e-3).fit(X[:80], y[:80])
            >>> network.calibrate(X[80:], y[80:]).predict_interval([[0.5]], target="observation").bound
            'split'
        """
        check_is_fitted(self)
        if X is None:
            refuse_sketched(self, "calibrate() without rows")
        with messages.warnings_reworded(self.recipe, self.activation):
            calibration.calibrate(self, X, y, noise_shape=noise_shape)
        return self

    def audit(self, *, noise: Any = None, refits: int = 0) -> Audit:
        """Check what the intervals assume, one line an assumption: see :meth:`vhat.FittedModel.audit`.

        A sketch returns the audit of the model that it was made of.
        """
        check_is_fitted(self)
        if sketch_of(self) is not None and self.audited_ is not None and noise is None and not refits:
            return self.audited_
        refuse_sketched(self, "another audit")
        with calling_rows(self.row_names_):
            found = self.fitted_.audit(noise=noise, refits=refits)
        if noise is None:
            self.audited_ = found
        return found

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        delta: float = 0.05,
        held_out: tuple[Any, Any] | None = None,
        response: str | tuple[str, ...] | None = None,
        noise: Any = None,
        max_unsupported: float = 0.5,
        refits: int = 0,
        seed: int = 0,
        force: bool = False,
    ) -> Path:
        """Write one self-contained HTML file about this fit: see :meth:`vhat.FittedModel.report` and docs/report.md.

        Without ``response`` the page calls y by ``target_name_``, without ``held_out`` the rows of ``held_out_`` judge
        the intervals. Those of a new response are calibrated, as by :meth:`predict_interval`. Rows that training saw
        are refused as held-out rows.
        """
        from vhat.estimator.report import write
        from vhat.report import Options

        check_is_fitted(self)
        refuse_sketched(self, "report()")
        options = Options(delta, held_out, response, noise, max_unsupported, refits, seed)
        return write(self, path, options, force=force)

    def sketch(self, probes: int = PROBES, *, seed: int = 0) -> NetworkRegressor:
        """Return an estimator that gives the same predictions and intervals without its training rows.

        It is for deployment: :meth:`save` then writes no row of the training table, and a prediction costs the same
        however many there were. Calibration and audit are made first where they were not yet, and kept. The ranges of
        the columns, beyond which rows have a status, are rounded outward to half standard deviations.

        Args:
            probes: Random probes, where the network has more than 2,000 parameters: see
                :meth:`vhat.FittedModel.sketch`. With fewer, V stays exact.
            seed: Draws them.

        Returns:
            An estimator whose ``fitted_`` is a :class:`vhat.Sketch`. It predicts, calibrates by held-out rows, and has
            the audit of before; :meth:`report` needs the training rows and refuses.
        """
        check_is_fitted(self)
        with messages.warnings_reworded(self.recipe, self.activation):
            return sketched(self, probes, seed)

    def encode(self, X: Any) -> pd.DataFrame:
        """Return a table as inputs of the network, before they are standardised: the columns that ``fitted_`` takes.

        Args:
            X: A table with the columns of the training table.
        """
        import pandas as pd

        points = self._points(X)
        names = None if self.columns_ is None else list(self.columns_.network_inputs)
        return pd.DataFrame(points, columns=names, index=X.index if hasattr(X, "iloc") else None)

    def _points(self, X: Any) -> np.ndarray:
        """Return points as inputs of the network, (points, inputs)."""
        return self._read_points(X).numbers

    def _read_points(self, X: Any) -> table_columns.Points:
        """Return points as inputs of the network, with a status for those with replaced cells."""
        check_is_fitted(self)
        return table_columns.read_points(self, as_pandas(X))

    # -- on disk -------------------------------------------------------------------------------
    def save(self, directory: str | os.PathLike[str], *, factorisation: bool = False) -> None:
        """Save for :meth:`load`: parameters, scaling, column names and training data; safetensors and JSON, no pickle.

        A model in the directory is replaced without asking. If this call is interrupted, the old model stays: the new
        one is written beside it as the next version (``v0002``), then ``vhat.json`` is pointed to it, and only then is
        the old version removed. No history is kept: give a new directory to keep both.

        Args:
            directory: A new or empty directory, or one that was saved to before; one that holds anything else is
                refused.
            factorisation: Save the factorised matrix or kernel too, so that it is not computed again.

        Raises:
            StoreError: When the directory cannot be written, or an option is an object that cannot be saved.
        """
        check_is_fitted(self)
        persistence.save(self, directory, factorisation=factorisation)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], *, recipe: Callable[..., Any] | None = None) -> NetworkRegressor:
        """Load an estimator that :meth:`save` has saved: it predicts as it did.

        Args:
            directory: The directory.
            recipe: The recipe, where it was a function: code is not saved.

        Raises:
            StoreError: When there is no such estimator, or it is damaged.
        """
        return persistence.load(cls, directory, recipe)


def _trained(recipe: Any, rows: validate.TrainingRows, seed: int) -> FittedModel:
    """Train by a recipe: with dense steps if network and table are small, else as the recipe is written."""
    from vhat.fit.small_tables import fit_small, is_served

    if is_served(recipe, len(rows.X)):
        return fit_small(recipe, rows.X, rows.y, seed=seed, sample_weight=rows.weights)
    trained: FittedModel = recipe(rows.X, rows.y, seed=seed, sample_weight=rows.weights)
    return trained


@functools.lru_cache(maxsize=64)
def _network(widths: tuple[int, ...], activation: str) -> Network:
    """Return the one network of these widths, so that all fits share its compiled functions."""
    from vhat.fit import Network

    return Network(widths, activation)
