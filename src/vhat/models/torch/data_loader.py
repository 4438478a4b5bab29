"""Reading of a DataLoader or Dataset, once, in the order of its dataset, without a change of random states.

Sums over rows do not depend on their order, so a shuffling sampler makes no difference. An error is raised for rows
that change between passes (augmentation, streams), rows that are left out, and rows that are drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils import data

from vhat.errors import InputError, MemoryBudgetError, VhatError, name_rows
from vhat.models.torch.inputs import preserved_rng
from vhat.models.torch.samplers import refuse_dropped, rows_of_pass

__all__ = ["as_loader", "is_loader", "read_loader", "stream_loader"]

_BATCH_ROWS = 256
"""Number of rows that are collated at a time if no batch size is known."""
_REPEATED_ROWS = 256
"""Number of rows that are read a second time, to compare."""

Batch = tuple[Any, torch.Tensor]
"""Inputs and targets."""


def is_loader(X: Any) -> bool:
    """Return whether ``X`` is a torch DataLoader or Dataset."""
    return isinstance(X, data.DataLoader | data.Dataset)


def read_loader(source: Any, target_key: str | None, memory: int) -> Batch:
    """Return the inputs (a tensor, a tuple or a dict of tensors) and the targets of every row of the dataset.

    Args:
        source: A DataLoader or Dataset whose batches are ``(x, y)``, ``(x1, x2, ..., y)`` or dicts.
        target_key: The key of the target in dict batches.
        memory: The budget in bytes.

    Raises:
        InputError: When rows change between passes, are left out or repeated, or have no target.
        MemoryBudgetError: When the rows exceed the budget, as those of an endless stream do.
    """
    with preserved_rng(), torch.no_grad():
        loader = as_loader(source)
        stream = isinstance(loader.dataset, data.IterableDataset)
        indices = None if stream else rows_of_pass(loader)
        batches = _collect(_batches(loader, indices), target_key, memory)
        if not batches:
            raise InputError("the DataLoader has no rows; give at least one.")
        _check_repeatable(loader, indices, batches, target_key, memory)
    if stream:
        _check_stream_length(loader, batches)
    inputs = _concatenate([inputs for inputs, _ in batches])
    return inputs, _concatenate([target for _, target in batches])


def stream_loader(source: Any, target_key: str | None) -> tuple[int | None, Iterator[Batch]]:
    """Return the number of rows of a dataset, None if unknown, and an iterator over its batches.

    The iterator raises the same errors as :func:`read_loader`, except that only the first rows of an iterable dataset
    are read a second time.

    Args:
        source: A DataLoader or Dataset whose batches are ``(x, y)``, ``(x1, x2, ..., y)`` or dicts.
        target_key: The key of the target in dict batches.

    Raises:
        InputError: When rows change between passes, are left out or repeated, or have no target.
    """
    loader = as_loader(source)
    if isinstance(loader.dataset, data.IterableDataset):
        return None, _stream(loader, target_key)
    with preserved_rng():
        indices = rows_of_pass(loader)
    # Without automatic batching an item of the dataset is a batch, not a row.
    count = None if loader.batch_sampler is None else len(indices)
    return count, _stream_by_index(loader, indices, target_key)


def as_loader(source: Any) -> Any:
    """Return a DataLoader of a Dataset, or the DataLoader itself."""
    return source if isinstance(source, data.DataLoader) else data.DataLoader(source, batch_size=_BATCH_ROWS)


def _stream_by_index(loader: Any, indices: list[int], target_key: str | None) -> Iterator[Batch]:
    """Yield the batches of a dataset with random access. A few of them are read twice and compared."""
    per_batch = _rows_per_batch(loader)
    parts = [indices[start : start + per_batch] for start in range(0, len(indices), per_batch)]
    repeated = _repeated_batches(len(parts), per_batch)
    for number, part in enumerate(parts):
        with preserved_rng(), torch.no_grad():
            batch = _separate(next(_batches(loader, part)), target_key)
            if number in repeated and not _same(batch, _separate(next(_batches(loader, part)), target_key)):
                raise _augmented(part)
        yield batch


def _stream(loader: Any, target_key: str | None) -> Iterator[Batch]:
    """Yield the batches of an iterable dataset. At the end the first rows are read again and compared."""
    first: list[Batch] = []
    rows = 0
    batches = _batches(loader, None)
    while True:
        with preserved_rng(), torch.no_grad():
            block = next(batches, None)
        if block is None:
            break
        batch = _separate(block, target_key)
        if _rows(first) < _REPEATED_ROWS:
            first.append(batch)
        rows += len(batch[1])
        yield batch
    with preserved_rng(), torch.no_grad():
        again = [_separate(block, target_key) for block in islice(_batches(loader, None), len(first))]
    if len(again) != len(first) or not all(map(_same, first, again)):
        raise InputError(
            "the DataLoader's iterable dataset did not begin its second pass as its first. Give a dataset whose passes "
            "are equal, without shuffling and augmentation."
        )
    if loader.batch_size is not None:
        refuse_dropped(rows, loader.batch_size, loader.drop_last)


def _batches(loader: Any, indices: list[int] | None) -> Iterator[Any]:
    """Yield the batches of one pass, in order, without worker processes.

    Args:
        loader: The DataLoader.
        indices: The rows to read; None for an iterable dataset.
    """
    collate = loader.collate_fn
    size = loader.batch_size
    if indices is None:
        items = iter(loader.dataset)
        while size is not None and (block := list(islice(items, size))):
            yield _collate(collate, block)
        yield from (_collate(collate, item) for item in items)  # without a batch size every item is a batch
        return
    if loader.batch_sampler is None:  # without automatic batching every item is a batch
        yield from (_collate(collate, loader.dataset[index]) for index in indices)
        return
    size = size or _BATCH_ROWS
    for start in range(0, len(indices), size):
        yield _collate(collate, _fetch(loader.dataset, indices[start : start + size]))


def _collate(collate: Any, items: Any) -> Any:
    """Call the user's collate_fn; raise its errors as InputError."""
    try:
        return collate(items)
    except VhatError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"the DataLoader's collate_fn cannot make a batch of these rows: {error}") from error


def _fetch(dataset: Any, indices: list[int]) -> Any:
    """Return items of a dataset, by one call of ``__getitems__`` if it has one, as torch's own loader does."""
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def _collect(batches: Iterator[Any], target_key: str | None, memory: int) -> list[Batch]:
    """Return all batches as inputs and targets; raise when they exceed the budget."""
    collected = []
    used = 0
    for batch in batches:
        inputs, target = _separate(batch, target_key)
        used += sum(leaf.nbytes for leaf in _leaves(inputs)) + target.nbytes
        if used > memory:
            raise MemoryBudgetError(
                f"the DataLoader gave more than the memory budget of {memory:.3g} bytes and had not ended. Is it an "
                "endless stream? Give a dataset with an end, fewer rows or a larger memory."
            )
        collected.append((inputs, target))
    return collected


def _separate(batch: Any, target_key: str | None) -> Batch:
    """Split a batch into inputs and target."""
    if isinstance(batch, Mapping):
        return _separate_dict(batch, target_key)
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError(
            f"the DataLoader yields a {type(batch).__name__} without a target. Yield (x, y), (x1, x2, y) or dicts."
        )
    target = _leaf("the target", batch[-1])
    inputs = batch[:-1] if len(batch) > 2 else batch[0]
    if isinstance(inputs, Mapping):
        return _check_lengths({key: _leaf(key, value) for key, value in inputs.items()}, target)
    if isinstance(inputs, tuple | list):
        return _check_lengths(tuple(_leaf(f"input {index}", part) for index, part in enumerate(inputs)), target)
    return _check_lengths(_leaf("the input", inputs), target)


def _separate_dict(batch: Mapping[Any, Any], target_key: str | None) -> Batch:
    """Split a batch that is a dict into inputs and target."""
    if target_key is None:
        raise InputError(f"the DataLoader yields dicts with keys {list(batch)}; name the target by target_key=.")
    if target_key not in batch:
        raise InputError(f"target_key={target_key!r} is not among the keys {list(batch)} of the DataLoader's dicts.")
    inputs = {key: _leaf(key, value) for key, value in batch.items() if key != target_key}
    if not inputs:
        raise InputError(f"the DataLoader's dicts hold nothing but the target {target_key!r}.")
    return _check_lengths(inputs, _leaf(target_key, batch[target_key]))


def _leaf(name: Any, value: Any) -> Any:
    """Return one part of a batch as a tensor; raise if it is not an array with a row axis."""
    if isinstance(value, np.ndarray):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        raise InputError(
            f"the DataLoader's batches hold a {type(value).__name__} in {name!r} where a tensor with one row per "
            "observation is needed. Leave it out, or encode it as numbers."
        )
    return value.detach()


def _check_lengths(inputs: Any, target: torch.Tensor) -> Batch:
    """Return inputs and target; raise if their numbers of rows differ."""
    lengths = {len(leaf) for leaf in _leaves(inputs)}
    if lengths != {len(target)}:
        raise InputError(
            f"a batch of the DataLoader has inputs with {sorted(lengths)} rows and a target with {len(target)}; all "
            "must have one row per observation along the leading axis."
        )
    return inputs, target


def _leaves(inputs: Any) -> list[Any]:
    """Return the tensors in a tensor, a tuple or a dict."""
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def _concatenate(parts: list[Any]) -> Any:
    """Concatenate the rows of tensors, or of tuples or dicts of tensors."""
    first = parts[0]
    if isinstance(first, Mapping):
        if any(part.keys() != first.keys() for part in parts):
            raise InputError("the DataLoader's dicts have different keys from batch to batch.")
        return {key: _concatenate([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenate(list(column)) for column in zip(*parts, strict=True))
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise InputError(
            f"the DataLoader's batches have rows of different shapes ({sorted(shapes)}). Pad them to one shape."
        )
    return torch.cat(parts)


def _check_repeatable(
    loader: Any, indices: list[int] | None, batches: list[Batch], target_key: str | None, memory: int
) -> None:
    """Read rows a second time and raise if they differ: all rows of a stream, about ``_REPEATED_ROWS`` of a dataset."""
    if indices is None:
        again = _collect(_batches(loader, None), target_key, memory)
        if len(again) != len(batches) or not all(map(_same, batches, again)):
            raise InputError(
                f"the DataLoader's iterable dataset gave {_rows(batches)} rows in one pass and {_rows(again)} in the "
                "next, or others, or in another order. Give a dataset whose passes are equal, without shuffling and "
                "augmentation."
            )
        return
    per_batch = _rows_per_batch(loader)
    for number in _repeated_batches(len(batches), per_batch):
        part = indices[number * per_batch : (number + 1) * per_batch]
        if not _same(batches[number], _collect(_batches(loader, part), target_key, memory)[0]):
            raise _augmented(part)


def _rows_per_batch(loader: Any) -> int:
    """Return the number of indices that make one batch."""
    if loader.batch_size:
        return int(loader.batch_size)
    return 1 if loader.batch_sampler is None else _BATCH_ROWS


def _repeated_batches(batches: int, per_batch: int) -> set[int]:
    """Return the numbers of the batches to read a second time, evenly spaced, about ``_REPEATED_ROWS`` rows."""
    count = max(1, min(batches, -(-_REPEATED_ROWS // per_batch)))
    return {int(number) for number in np.linspace(0, batches - 1, count)}


def _augmented(part: list[int]) -> InputError:
    return InputError(
        f"the dataset gave other values when {name_rows(part)} were read a second time: it augments at random. "
        "Switch the augmentation off for vhat."
    )


def _same(first: Batch, second: Batch) -> bool:
    """Return whether two readings of a batch are equal."""
    a = [*_leaves(first[0]), first[1]]
    b = [*_leaves(second[0]), second[1]]
    return len(a) == len(b) and all(map(_equal, a, b))


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether tensors are equal, NaN to NaN; a later check raises for NaN and names the rows."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return bool(((x == y) | (x.isnan() & y.isnan())).all())


def _rows(batches: list[Batch]) -> int:
    return sum(len(target) for _, target in batches)


def _check_stream_length(loader: Any, batches: list[Batch]) -> None:
    if loader.batch_size is not None:
        refuse_dropped(_rows(batches), loader.batch_size, loader.drop_last)
