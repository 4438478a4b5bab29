"""Pytrees of parameters and of inputs: flattening, checks, weight decay."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vhat.checks import as_numbers, as_real, check_finite, check_nonnegative, column_names, match_columns, refuse_masked
from vhat.errors import FixedParameterWarning, InputError, ModelError, VhatError
from vhat.models.jax.paths import completed, leaf_paths
from vhat.models.leaves import leaf_slices

__all__ = [
    "Layout",
    "Static",
    "as_inputs",
    "columns_of",
    "decay_vector",
    "flatten",
    "leaf_paths",
    "match_inputs",
    "shapes_of",
    "trainable_paths",
    "wrap_errors",
]


_MAX_LISTED = 5
"""Number of leaves that a warning lists."""


@dataclass(frozen=True, eq=False)
class Static:
    """An object as a static argument of a compiled function. An object without a hash is compared by identity.

    Equal networks share compilations; two functions are equal only if they are the same object.
    """

    value: Any

    @property
    def _key(self) -> Any:
        try:
            hash(self.value)
        except TypeError:
            return id(self.value)
        return self.value

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or bool(self._key == other._key)


@dataclass(frozen=True)
class Layout:
    """Positions of the leaves of the user's pytree in a flat parameter vector. Equal layouts share compilations.

    Attributes:
        treedef: The structure of the tree.
        shapes: One entry per leaf: the shape of a trained array, ``None`` for an array that is held fixed, or a
            ``Static`` object (an activation function, a flag).
    """

    treedef: Any
    shapes: tuple[tuple[int, ...] | Static | None, ...]

    @property
    def trained(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the trained leaves."""
        return tuple(shape for shape in self.shapes if isinstance(shape, tuple))

    def unflatten(self, theta: Any, fixed: tuple[Any, ...]) -> Any:
        """Return the user's pytree with the trained leaves from ``theta``, (p,)."""
        return self.fill(self.split(theta), fixed)

    def split(self, theta: Any) -> list[Any]:
        """Split ``theta``, (p,), into the trained leaves."""
        return [theta[at].reshape(shape) for shape, at in zip(self.trained, leaf_slices(self.trained), strict=True)]

    def fill(self, trained: Sequence[Any], fixed: tuple[Any, ...]) -> Any:
        """Return the user's pytree with these trained leaves and fixed arrays."""
        trained_leaves = iter(trained)
        fixed_arrays = iter(fixed)
        leaves = []
        for shape in self.shapes:
            if isinstance(shape, Static):
                leaves.append(shape.value)
            elif shape is None:
                leaves.append(next(fixed_arrays))
            else:
                leaves.append(next(trained_leaves))
        return jax.tree.unflatten(self.treedef, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, float | np.ndarray | np.generic | jax.Array)


def _is_foreign(dtype: Any) -> bool:
    """Return whether a dtype belongs to neither NumPy nor JAX, such as that of a torch tensor."""
    try:
        jnp.issubdtype(dtype, jnp.floating)
    except TypeError:
        return True
    return False


def _is_trained(leaf: Any) -> bool:
    return _is_array(leaf) and bool(jnp.issubdtype(np.asarray(leaf).dtype, jnp.floating))


def flatten(params: Any, selected: Collection[str] | None = None) -> tuple[np.ndarray, Layout, tuple[Any, ...], str]:
    """Return ``theta`` (p,) float64, its layout, the fixed arrays, and the dtype of the parameters.

    Floating-point leaves are trained, or those of them that are selected by name. Other floating-point leaves and
    integer arrays are fixed arrays. All other leaves (functions, flags, Python integers) are static.
    """
    leaves, treedef = jax.tree.flatten(params)
    shapes: list[tuple[int, ...] | Static | None] = []
    trained = []
    fixed = []
    dtypes = set()
    for name, leaf in zip(leaf_paths(params), leaves, strict=True):
        _check_leaf(leaf, name)
        if _is_trained(leaf) and (selected is None or name in selected):
            trained.append(np.asarray(leaf, dtype=np.float64))
            shapes.append(trained[-1].shape)
            dtypes.add(str(np.asarray(leaf).dtype))
        elif _is_trained(leaf):
            fixed.append(np.asarray(leaf, dtype=np.float64))
            shapes.append(None)
        elif _is_array(leaf):
            fixed.append(leaf)
            shapes.append(None)
        else:
            shapes.append(Static(leaf))
    if not trained:
        raise InputError("params has no floating-point array: there is nothing that training could have moved.")
    _warn_of_integers(params)
    theta = np.concatenate([leaf.ravel() for leaf in trained])
    if not np.all(np.isfinite(theta)):
        raise InputError(
            f"params has {int(np.sum(~np.isfinite(theta)))} NaN or infinite values: the training has diverged."
        )
    return theta, Layout(treedef, tuple(shapes)), tuple(fixed), "+".join(sorted(dtypes))


def _check_leaf(leaf: Any, name: str) -> None:
    """Raise for a leaf that is an array of another library, complex or masked."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and _is_foreign(dtype):
        raise InputError(
            f"params has a {type(leaf).__module__}.{type(leaf).__qualname__} at {name or 'its root'}; give arrays of "
            "JAX or NumPy."
        )
    if dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating):
        raise InputError("params has a complex leaf; vhat needs real parameters. Split it into two real ones.")
    refuse_masked("params", leaf)


def _warn_of_integers(params: Any) -> None:
    """Warn of numbers in params that are held fixed because they were written without a decimal point."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    found = [
        f"params{jax.tree_util.keystr(path)} = {leaf}"
        for path, leaf in leaves
        if isinstance(leaf, int | np.integer) and not isinstance(leaf, bool)
    ]
    if not found:
        return
    some = ", ".join(found[:_MAX_LISTED])
    if len(found) > _MAX_LISTED:
        some += f" and {len(found) - _MAX_LISTED} more"
    warnings.warn(
        f"held fixed, because they are whole numbers: {some}. A parameter that was trained must be a float, such as "
        f"{found[0].split(' = ')[1]}.0; otherwise every interval is too narrow.",
        FixedParameterWarning,
        stacklevel=4,
    )


def trainable_paths(params: Any) -> list[str]:
    """Return the names of the floating-point leaves."""
    leaves = zip(leaf_paths(params), jax.tree.leaves(params), strict=True)
    return [name for name, leaf in leaves if _is_trained(leaf)]


def decay_vector(weight_decay: Any, params: Any, selected: Collection[str] | None = None) -> np.ndarray:
    """Return lam for every trained number, (p,), from one number, a pytree prefix of ``params`` or names of leaves."""

    def spread(decay: Any, subtree: Any) -> Any:
        def fill(leaf: Any) -> Any:
            if not _is_trained(leaf):
                return np.zeros(0)
            return np.broadcast_to(as_numbers("weight_decay", decay), np.shape(leaf)).ravel()

        return jax.tree.map(fill, subtree)

    try:
        filled = jax.tree.map(spread, completed(weight_decay, params), params)
    except VhatError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(
            "weight_decay does not match params. Give one number, or the same structure as params (a prefix of it "
            f"will do) with one number or one array a leaf. ({error})"
        ) from error
    parts = jax.tree.leaves(filled)
    if selected is not None:
        parts = [part for name, part in zip(leaf_paths(params), parts, strict=True) if name in selected]
    decay = np.concatenate(parts)
    check_nonnegative("weight_decay", decay)
    return decay


def columns_of(x: Any) -> tuple[tuple[Any, ...] | None, ...]:
    """Return the column names of every leaf that is a data frame, None for other leaves."""
    return tuple(column_names(leaf) for leaf in jax.tree.leaves(x))


def as_inputs(x: Any, name: str, columns: tuple[tuple[Any, ...] | None, ...] = ()) -> Any:
    """Convert inputs (an array, or a dict or tuple of arrays with one leading axis) to float64 or integer NumPy.

    Args:
        x: The inputs.
        name: Their name in messages.
        columns: Column names by which data frames among the leaves are matched, one entry per leaf.
    """
    leaves, structure = jax.tree.flatten(as_real(name, x) if isinstance(x, list) else x)
    if len(columns) == len(leaves):
        leaves = [match_columns(name, leaf, wanted) for leaf, wanted in zip(leaves, columns, strict=True)]
    leaves = [_as_rows(leaf, name) for leaf in leaves]
    lengths = {len(leaf) for leaf in leaves}
    if not lengths:
        raise InputError(f"{name} holds no array ({x!r}); give one with one row a point.")
    if len(lengths) > 1:
        raise InputError(f"{name} has parts of different lengths {sorted(lengths)}; one row a point is needed.")
    if lengths == {0}:
        raise InputError(f"{name} is empty; give at least one row.")
    return jax.tree.unflatten(structure, leaves)


def _as_rows(leaf: Any, name: str) -> np.ndarray:
    """Return a copy of one array of inputs: floats as float64, integer codes in their own dtype."""
    array = as_real(name, leaf)
    if array.ndim == 0:
        raise InputError(f"{name} is a single number; give an array with one row a point.")
    array = array.astype(np.float64 if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype)
    check_finite(name, array)
    return array


def match_inputs(x: Any, reference: Any, columns: tuple[tuple[Any, ...] | None, ...], name: str = "x") -> Any:
    """Check test inputs against the training inputs: the same structure, columns and shape of a row."""
    x = as_inputs(x, name, columns)
    if jax.tree.structure(x) != jax.tree.structure(reference):
        raise InputError(f"{name} has structure {jax.tree.structure(x)}; X had {jax.tree.structure(reference)}.")
    for got, wanted in zip(jax.tree.leaves(x), jax.tree.leaves(reference), strict=True):
        if got.shape[1:] != wanted.shape[1:]:
            hint = " For a single point give x[None]." if got.shape == wanted.shape[1:] else ""
            raise InputError(
                f"{name} has rows of shape {got.shape[1:]}; the training inputs have rows of shape "
                f"{wanted.shape[1:]}.{hint}"
            )
        if got.dtype != wanted.dtype and not jnp.issubdtype(wanted.dtype, jnp.floating):
            raise InputError(f"{name} has dtype {got.dtype}; the training inputs have {wanted.dtype}.")
    return jax.tree.map(lambda got, wanted: got.astype(wanted.dtype), x, reference)


def shapes_of(values: Any) -> Any:
    """Return the shapes and dtypes of the arrays in a tree."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), values)


@contextmanager
def wrap_errors(action: str) -> Iterator[None]:
    """Raise exceptions of a user's function as a ModelError that names the action during which they occurred."""
    try:
        yield
    except VhatError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        first = lines[0] if lines else type(error).__name__
        raise ModelError(
            f"the model failed when {action}: {first} (vhat runs it in float64 with predict(params, X) of whole rows; "
            "write it with jax.numpy, and let constants follow the dtype of params.)"
        ) from error
