"""Compressed training Jacobian: rank-one factors for leaves that have them, plain rows for the others.

A leaf is one array of parameters. For the weight matrix of a dense layer, the gradient of one prediction is an outer
product ``u (x) w``. Two such gradients have the inner product ``(u.u')(w.w')``. For an a x b leaf, a kernel over n rows
then costs ``n^2 (a + b)`` flops instead of ``n^2 a b``, a row takes ``a + b`` numbers, and products with the Jacobian
become matrix products.

The layers of the model need not be known. If the framework does not give the factors, they are computed from the
gradients. A leaf whose gradient is not of rank one in some row is stored in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from vhat.linalg.solvers.kernel_terms import GRAM_ROWS, KernelTerm, kernel_terms
from vhat.models.problem import Array, Problem, leaf_rows, leaf_slices
from vhat.progress import bar

__all__ = [
    "Features",
    "NotRankOne",
    "Structure",
    "compress",
    "features_at",
    "find_structure",
    "gradient_rows",
    "jacobian_rows",
    "read_features",
]

_BLOCK_BYTES = 2**25
"""Memory limit, in bytes, for the uncompressed gradients of one block of training rows."""
_BLOCK_ROWS = 1024
"""Largest number of training rows differentiated together."""
_WORK_BYTES = 2**26
"""Memory limit, in bytes, for the intermediate product of factors within a product with the Jacobian."""
_RANK_ONE_TOL = 1e-24
"""Tolerance for rank one: share of a gradient's squared norm outside its rank-one part above which a leaf is stored in
full."""


@dataclass(frozen=True)
class Leaf:
    """One array of parameters within the flat vector.

    Attributes:
        number: Index of the array among the user's arrays.
        start: First position in the flat vector.
        stop: Position after the last.
        matrix: Shape (a, b) if its gradients are stored as factors, else None.
        decay: lam of its entries: one number for a factored leaf, else one per entry.
    """

    number: int
    start: int
    stop: int
    matrix: tuple[int, int] | None
    decay: np.ndarray

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers per row of each stored array: (a, b) for factors, (size,) for a plain leaf."""
        return self.matrix or (self.stop - self.start,)


@dataclass(frozen=True)
class Structure:
    """Leaves with weight decay, and the parameters without decay.

    Attributes:
        p: How many parameters there are.
        leaves: The leaves with decay.
        free: Flat positions without decay.
    """

    p: int
    leaves: tuple[Leaf, ...]
    free: np.ndarray

    @property
    def numbers(self) -> int:
        """Numbers per row of the features."""
        return sum(sum(leaf.widths) for leaf in self.leaves) + len(self.free)


@dataclass(frozen=True)
class Features:
    """Compressed gradients of some rows: ``F = J Lam^-1/2`` over the parameters with decay, J itself over the others.

    Attributes:
        structure: The leaves that the parts belong to.
        parts: For each leaf a pair of factors (rows, a), (rows, b), or a single (rows, size).
        free: Gradients in the parameters without decay, (rows, free).
    """

    structure: Structure
    parts: tuple[tuple[np.ndarray, ...], ...] = field(repr=False)
    free: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.free)

    def cross(self, other: Features) -> np.ndarray:
        """Return ``F F_other'``, (rows, rows of the other)."""
        out = np.zeros((len(self), len(other)))
        for left, right in zip(self.parts, other.parts, strict=True):
            product = left[0] @ right[0].T
            if len(left) == 2:
                product *= left[1] @ right[1].T
            out += product
        return out

    def gram(self, block: int = GRAM_ROWS) -> np.ndarray:
        """Return ``F F'``, (rows, rows), its lower half computed a block of rows at a time and mirrored."""
        out = np.zeros((len(self), len(self)))
        starts = range(0, len(self), block)
        with bar("kernel", len(starts)) as advance:
            for start in starts:
                stop = min(start + block, len(self))
                for term in self.terms:
                    out[start:stop, :stop] += term.product(start, stop)
                out[:start, start:stop] = out[start:stop, :start].T
                advance("")
        return out

    @cached_property
    def terms(self) -> list[KernelTerm]:
        """The kernel ``F F'`` as a sum of terms, each a product of two kernels of factors."""
        return kernel_terms(self.parts)

    def gram_times(self, V: np.ndarray, block: int = GRAM_ROWS) -> np.ndarray:
        """Return ``F F' V`` for columns V, (rows, k), from blocks of ``F F'`` that are recomputed and not stored.

        Each block below the diagonal is used twice, because the kernel is symmetric.
        """
        out = np.zeros(V.shape)
        starts = range(0, len(self), block)
        with bar("blocks of the kernel", len(starts)) as advance:
            for start in starts:
                stop = min(start + block, len(self))
                rows = self._terms_between(start, stop)
                out[start:stop] += rows @ V[:stop]
                out[:start] += rows[:, :start].T @ V[start:stop]
                advance("")
        return out

    def _terms_between(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop`` of ``F F'``, up to the diagonal."""
        if not self.terms:  # no parameter has decay
            return np.zeros((stop - start, stop))
        first, *others = self.terms
        rows = first.product(start, stop)
        for term in others:
            rows += term.product(start, stop)
        return rows

    def squares(self) -> np.ndarray:
        """Return the squared length of each row of ``F``, (rows,)."""
        out = np.zeros(len(self))
        for part in self.parts:
            lengths = [np.einsum("ia,ia->i", factor, factor) for factor in part]
            out += np.prod(lengths, axis=0)
        return out

    def times(self, v: np.ndarray) -> np.ndarray:
        """Return ``F v`` for each row of v: (k, p) to (k, rows)."""
        out = np.zeros((len(self), len(v)), v.dtype)
        for leaf, part in zip(self.structure.leaves, self.parts, strict=True):
            block = v[:, leaf.start : leaf.stop]
            if leaf.matrix is None:
                out += part[0] @ block.T
                continue
            # (u_i (x) w_i) . V_k = u_i' V_k w_i. Contracting the longer factor first leaves the smaller intermediate.
            long, short, axes = _by_length(part)
            columns = block.reshape(-1, *leaf.matrix).transpose(axes).reshape(long.shape[1], -1)
            for rows in _row_slices(len(self), columns.shape[1]):
                product = (long[rows] @ columns).reshape(-1, len(v), short.shape[1])
                out[rows] += np.einsum("ikb,ib->ik", product, short[rows])
        return np.ascontiguousarray(out.T)

    def transposed(self, t: np.ndarray) -> np.ndarray:
        """Return ``F' t`` for each row of t: (k, rows) to (k, p), zero for the parameters without decay."""
        out = np.zeros((len(t), self.structure.p), t.dtype)
        for leaf, part in zip(self.structure.leaves, self.parts, strict=True):
            if leaf.matrix is None:
                out[:, leaf.start : leaf.stop] = t @ part[0]
                continue
            # sum_i t_ki u_i (x) w_i, as one matrix product of the longer factor with the weighted shorter one.
            long, short, axes = _by_length(part)
            columns = np.zeros((long.shape[1], len(t) * short.shape[1]), t.dtype)
            for rows in _row_slices(len(self), columns.shape[1]):
                weighted = t.T[rows, :, None] * short[rows, None, :]
                columns += long[rows].T @ weighted.reshape(len(weighted), -1)
            block = columns.reshape(long.shape[1], len(t), short.shape[1]).transpose(np.argsort(axes))
            out[:, leaf.start : leaf.stop] = block.reshape(len(t), -1)
        return out

    def plain(self, rows: slice) -> np.ndarray:
        """Return rows of ``F`` in full, (rows, p), zero for the parameters without decay."""
        out = np.zeros((len(self.free[rows]), self.structure.p))
        for leaf, part in zip(self.structure.leaves, self.parts, strict=True):
            out[:, leaf.start : leaf.stop] = _multiply_out(tuple(factor[rows] for factor in part))
        return out

    def rescaled(self, factor: float) -> Features:
        """Return ``factor F``: the features under ``1/factor^2`` times the decay."""
        parts = tuple((factor * part[0], *part[1:]) for part in self.parts)
        # Later right-hand sides are compressed with the decay of the leaves: it has to be the new one.
        leaves = tuple(replace(leaf, decay=leaf.decay / factor**2) for leaf in self.structure.leaves)
        return Features(replace(self.structure, leaves=leaves), parts, self.free)

    @cached_property
    def single(self) -> Features:
        """The features in single precision, for products with arrays in single precision."""
        parts = tuple(tuple(factor.astype(np.float32) for factor in part) for part in self.parts)
        return Features(self.structure, parts, self.free)

    @staticmethod
    def empty(structure: Structure, rows: int) -> Features:
        """Return uninitialised features for ``rows`` rows, to be filled by :meth:`put`."""
        parts = tuple(tuple(np.empty((rows, width)) for width in leaf.widths) for leaf in structure.leaves)
        return Features(structure, parts, np.empty((rows, len(structure.free))))

    def put(self, start: int, other: Features) -> None:
        """Write the rows of ``other`` into rows ``start`` onwards, in place."""
        rows = slice(start, start + len(other))
        for part, other_part in zip(self.parts, other.parts, strict=True):
            for factor, other_factor in zip(part, other_part, strict=True):
                factor[rows] = other_factor
        self.free[rows] = other.free


def _by_length(part: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int]]:
    """Return the longer factor, the shorter, and the axes that turn (k, a, b) into (longer, k, shorter)."""
    u, w = part
    if u.shape[1] >= w.shape[1]:
        return u, w, (1, 0, 2)
    return w, u, (2, 0, 1)


def _row_slices(n: int, columns: int) -> Iterator[slice]:
    """Split n rows into slices such that an array (rows, columns) stays within the memory limit."""
    size = max(16, _WORK_BYTES // (8 * columns))
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def find_structure(problem: Problem, plain: frozenset[int] = frozenset()) -> Structure:
    """Return the leaves; a matrix whose entries share one decay is a candidate for factoring.

    Args:
        problem: The training problem.
        plain: Leaves known not to be of rank one, by number.
    """
    decay = problem.numpy(problem.decay)
    plain = plain | _not_rank_one(problem, decay)
    leaves = []
    for number, (shape, at) in enumerate(zip(problem.leaves, leaf_slices(problem.leaves), strict=True)):
        lam = decay[at]
        if _may_be_factored(shape, lam) and number not in plain:
            leaves.append(Leaf(number, at.start, at.stop, (shape[0], shape[1]), lam[:1]))
        elif np.any(lam > 0):
            leaves.append(Leaf(number, at.start, at.stop, None, lam))
    return Structure(problem.p, tuple(leaves), np.flatnonzero(decay == 0))


def _may_be_factored(shape: tuple[int, ...], decay: np.ndarray) -> bool:
    """Whether a leaf is a matrix whose entries share one decay."""
    return len(shape) == 2 and min(shape) > 1 and bool(decay[0] > 0) and np.ptp(decay) == 0


def _not_rank_one(problem: Problem, decay: np.ndarray) -> frozenset[int]:
    """Return the matrices whose gradients are not of rank one on the first two training rows.

    Only matrices that the framework does not already know to be of rank one are checked. A weight that the model uses
    twice is found here, before the memory for its rows is planned.
    """
    leaves = list(zip(problem.leaves, leaf_slices(problem.leaves), strict=True))
    matrices = {number for number, (shape, at) in enumerate(leaves) if _may_be_factored(shape, decay[at])}
    unknown = matrices - problem.outer_leaves
    if not unknown:
        return frozenset()
    with problem.scope():
        rows = problem.factors(problem.take(problem.X, 0, min(2, problem.n)))
        return frozenset(k for k in unknown if not _is_rank_one(problem, rows[k], problem.leaves[k]))


def _is_rank_one(problem: Problem, rows: tuple[Array, ...], shape: tuple[int, ...]) -> bool:
    if len(rows) == 2:
        return True
    _, _, rest, size = map(problem.numpy, problem.compiled(rank_one)(rows[0].reshape(-1, *shape)))
    return not np.any(rest > _RANK_ONE_TOL * size)


class NotRankOne(Exception):  # noqa: N818  (a finding, caught in this package)
    """The gradient of a leaf assumed to be an outer product is not one."""

    def __init__(self, number: int) -> None:
        self.number = number


def read_features(problem: Problem, allow: Callable[[Structure], None] | None = None) -> Features:
    """Return the compressed gradients of all training rows.

    A leaf found not to be of rank one in some row is stored in full, and the computation starts again.

    Args:
        problem: The training problem.
        allow: Raises if rows of a structure do not fit into memory; called again whenever the structure grows.
    """
    plain: frozenset[int] = frozenset()
    # A leaf found not to be of rank one is added to the plain ones; each pass adds at least one leaf, so that it ends.
    while True:
        structure = find_structure(problem, plain)
        if allow is not None:
            allow(structure)
        try:
            return features_at(problem, problem.X, structure)
        except NotRankOne as found:
            plain = plain | {found.number}


def features_at(problem: Problem, inputs: Any, structure: Structure) -> Features:
    """Return the compressed gradients of the predictions at checked inputs.

    Raises:
        NotRankOne: When the gradient of a factored leaf is not an outer product in some row.
    """
    # One array for all rows: small pieces allocated between temporary blocks would fragment the memory.
    count = problem.count(inputs)
    found = Features.empty(structure, count * problem.outputs)
    rows = _rows_read(problem)
    starts = range(0, count, rows)
    with bar("gradients of the training rows", len(starts)) as advance:
        for start in starts:
            part = problem.take(inputs, start, min(start + rows, count))
            found.put(start * problem.outputs, _compressed(problem, problem.factors(part), structure))
            advance("")
    return found


def jacobian_rows(problem: Problem, start: int, stop: int, out: np.ndarray) -> np.ndarray:
    """Write the gradients of training rows ``start`` to ``stop`` to ``out``, (rows * K, p), and return it."""
    return gradient_rows(problem, problem.X, start, stop, out)


def gradient_rows(problem: Problem, inputs: Any, start: int, stop: int, out: np.ndarray) -> np.ndarray:
    """Write the gradients at rows ``start`` to ``stop`` of checked inputs to ``out``, (rows * K, p), and return it.

    Outer products are multiplied out here: faster than in the framework, whose result would have to be copied.
    """
    step = _rows_read(problem)
    for begin in range(start, stop, step):
        end = min(begin + step, stop)
        rows = out[(begin - start) * problem.outputs : (end - start) * problem.outputs]
        leaves = problem.factors(problem.take(inputs, begin, end))
        for leaf, at in zip(leaves, leaf_slices(problem.leaves), strict=True):
            parts = tuple(map(problem.numpy, leaf))
            if len(parts) == 1:
                rows[:, at] = parts[0]
            else:
                u, w = parts
                np.multiply(u[:, :, None], w[:, None, :], out=rows[:, at].reshape(len(u), u.shape[1], w.shape[1]))
    return out


def _rows_read(problem: Problem) -> int:
    """Return how many training rows are differentiated together."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (8 * problem.factor_numbers * problem.outputs)))


def compress(problem: Problem, g: Array, structure: Structure) -> Features:
    """Return compressed gradient rows, from p-space (k, p).

    Raises:
        NotRankOne: When the gradient of a factored leaf is not an outer product in some row.
    """
    return _compressed(problem, leaf_rows(g, problem.leaves), structure)


def _compressed(problem: Problem, rows: Sequence[tuple[Array, ...]], structure: Structure) -> Features:
    """Return compressed gradient rows, from one tuple of arrays per leaf."""
    parts = tuple(_part(problem, rows[leaf.number], leaf) for leaf in structure.leaves)
    # Gradients in the parameters without decay, which may be a part of a leaf only.
    free = [np.empty((len(rows[0][0]), 0))]
    for leaf, at in zip(rows, leaf_slices(problem.leaves), strict=True):
        inside = structure.free[(at.start <= structure.free) & (structure.free < at.stop)]
        if inside.size:
            free.append(_plain(problem, leaf)[:, inside - at.start])
    return Features(structure, parts, np.concatenate(free, axis=1))


def _part(problem: Problem, rows: tuple[Array, ...], leaf: Leaf) -> tuple[np.ndarray, ...]:
    """Return the features of one leaf: its gradients divided by ``sqrt(lam)``, as factors or in full."""
    if leaf.matrix is None:
        # A plain leaf may have a different decay for each entry; entries without decay become zero.
        root = np.sqrt(leaf.decay, out=np.zeros_like(leaf.decay), where=leaf.decay > 0)
        plain = _plain(problem, rows)
        return (np.divide(plain, root, out=np.zeros(plain.shape), where=root > 0),)
    if len(rows) == 2:
        u, w = map(problem.numpy, rows)
    else:
        u, w, rest, size = map(problem.numpy, problem.compiled(rank_one)(rows[0].reshape(-1, *leaf.matrix)))
        if np.any(rest > _RANK_ONE_TOL * size):
            raise NotRankOne(leaf.number)
    # The decay of a factored leaf is one number; one of the two factors carries it.
    return u / np.sqrt(leaf.decay[0]), w


def _plain(problem: Problem, rows: tuple[Array, ...]) -> np.ndarray:
    """Return gradient rows of a leaf in full, (k, size), in NumPy."""
    return _multiply_out(tuple(map(problem.numpy, rows)))


def _multiply_out(part: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return gradient rows of a leaf in full, (k, size), from one plain array or two factors."""
    if len(part) == 1:
        return part[0]
    u, w = part
    return (u[:, :, None] * w[:, None, :]).reshape(len(u), -1)


def rank_one(G: Array) -> tuple[Array, Array, Array, Array]:
    """Return factors with ``G_i = u_i (x) w_i``: ``w_i`` is the largest row of ``G_i``, normalised; ``u_i = G_i w_i``.

    Returns:
        u (k, a), w (k, b), ``|G_i - u_i (x) w_i|^2`` and ``|G_i|^2``, (k,) each. The third must be rounding: otherwise
        the kernel would not belong to the Jacobian.
    """
    xp = array_namespace(G)
    squares = xp.sum(G * G, axis=2)
    largest = xp.argmax(squares, axis=1)
    row = G[xp.arange(G.shape[0]), largest]
    size = xp.sqrt(xp.max(squares, axis=1))[:, None]
    w = row / xp.where(size > 0, size, xp.ones_like(size))
    u = xp.sum(G * w[:, None, :], axis=2)
    rest = G - u[:, :, None] * w[:, None, :]
    return u, w, xp.sum(rest * rest, axis=(1, 2)), xp.sum(squares, axis=1)
