"""A DataLoader (or Dataset) read once, in the order of its dataset, without touching any random state.

Sums over rows have no order, so a shuffling sampler does not matter. What does matter is refused in words: rows that
change between passes (augmentation, streams), rows that are left out, and rows that are drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils import data

from vhat.errors import InputError, MemoryBudgetError, VhatError, name_rows
from vhat.models.torch.inputs import preserved_rng

__all__ = ["is_loader", "read_loader", "stream_loader"]

_BATCH = 256  # rows collated at a time where no batch size is known
_PROBED = 256  # rows read a second time

Batch = tuple[Any, torch.Tensor]


def is_loader(X: Any) -> bool:
    """Whether ``X`` is a torch DataLoader or Dataset."""
    return isinstance(X, data.DataLoader | data.Dataset)


def read_loader(source: Any, target_key: str | None, memory: int) -> Batch:
    """Return the inputs (a tensor, a tuple or a dict of tensors) and the targets of every row of the dataset.

    Args:
        source: A DataLoader or Dataset whose batches are ``(x, y)``, ``(x1, x2, ..., y)`` or dicts.
        target_key: The key of the target in dict batches.
        memory: The budget in bytes; a stream that outgrows it is refused.

    Raises:
        InputError: When rows change between passes, are left out or repeated, or have no target.
        MemoryBudgetError: When the rows do not fit into the budget.
    """
    with preserved_rng(), torch.no_grad():
        loader = source if isinstance(source, data.DataLoader) else data.DataLoader(source, batch_size=_BATCH)
        stream = isinstance(loader.dataset, data.IterableDataset)
        indices = None if stream else _indices(loader)
        batches = _collect(_batches(loader, indices), target_key, memory)
        if not batches:
            raise InputError("the DataLoader has no rows; give at least one.")
        _check_repeatable(loader, indices, batches, target_key, memory)
    if stream:
        _check_stream_length(loader, batches)
    inputs = _concatenate([inputs for inputs, _ in batches])
    return inputs, _concatenate([target for _, target in batches])


def stream_loader(source: Any, target_key: str | None) -> tuple[int | None, Iterator[Batch]]:
    """Return how many rows a dataset has, where that is known, and its batches one by one: none of them is kept.

    The checks are those of :func:`read_loader`. Of an iterable dataset only the first rows are read a second time.

    Args:
        source: A DataLoader or Dataset whose batches are ``(x, y)``, ``(x1, x2, ..., y)`` or dicts.
        target_key: The key of the target in dict batches.

    Raises:
        InputError: When rows change between passes, are left out or repeated, or have no target.
    """
    loader = source if isinstance(source, data.DataLoader) else data.DataLoader(source, batch_size=_BATCH)
    if isinstance(loader.dataset, data.IterableDataset):
        return None, _stream(loader, target_key)
    with preserved_rng():
        indices = _indices(loader)
    # With automatic batching off the dataset makes the batches itself: an item is not a row.
    count = None if loader.batch_sampler is None else len(indices)
    return count, _mapped(loader, indices, target_key)


def _mapped(loader: Any, indices: list[int], target_key: str | None) -> Iterator[Batch]:
    """Yield the batches of a dataset; a few of them are read twice on the way."""
    per_batch = _rows_per_batch(loader)
    parts = [indices[start : start + per_batch] for start in range(0, len(indices), per_batch)]
    twice = _spread_numbers(len(parts), per_batch)
    for number, part in enumerate(parts):
        with preserved_rng(), torch.no_grad():
            batch = _separate(next(_batches(loader, part)), target_key)
            if number in twice and not _same(batch, _separate(next(_batches(loader, part)), target_key)):
                raise _augmented(part)
        yield batch


def _stream(loader: Any, target_key: str | None) -> Iterator[Batch]:
    """Yield the batches of an iterable dataset; the first rows are read again at the end."""
    first: list[Batch] = []
    rows = 0
    batches = _batches(loader, None)
    while True:
        with preserved_rng(), torch.no_grad():
            block = next(batches, None)
        if block is None:
            break
        batch = _separate(block, target_key)
        if _rows(first) < _PROBED:
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
        _refuse_dropped(rows, loader.batch_size, loader.drop_last)


def _indices(loader: Any) -> list[int]:
    """Which rows of the dataset one epoch of the loader sees, in the dataset's order."""
    try:
        size = len(loader.dataset)
    except (TypeError, NotImplementedError) as error:
        raise InputError("the dataset has no length; give it __len__, or make it an IterableDataset.") from error
    sampler: Any = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    plain = loader.batch_sampler is None or type(loader.batch_sampler) is data.BatchSampler
    if not plain:
        indices = _stable(_flatten(loader.batch_sampler), _flatten(loader.batch_sampler), "batch sampler")
    elif isinstance(sampler, data.SequentialSampler | data.RandomSampler):
        _refuse_partial(sampler, size)
        indices = list(range(size))
    else:
        _refuse_sampler(sampler)
        indices = _stable(list(sampler), list(sampler), type(sampler).__name__)
    if plain and loader.batch_sampler is not None:
        _refuse_dropped(len(indices), loader.batch_sampler.batch_size, loader.batch_sampler.drop_last)
    return indices


def _flatten(batch_sampler: Any) -> list[int]:
    return [int(index) for batch in batch_sampler for index in batch]


def _refuse_partial(sampler: Any, size: int) -> None:
    if isinstance(sampler, data.RandomSampler) and (sampler.replacement or sampler.num_samples != size):
        how = "with replacement" if sampler.replacement else "without replacement"
        raise InputError(
            f"the DataLoader draws {sampler.num_samples} of {size} rows {how} in every pass, so no pass is the "
            "training set. Give a DataLoader that sees every row once (shuffle=True does)."
        )


def _refuse_sampler(sampler: Any) -> None:
    if isinstance(sampler, data.WeightedRandomSampler):
        raise InputError(
            "the DataLoader draws rows at random with unequal weights (WeightedRandomSampler). Give a DataLoader that "
            "sees every row once and put the weights into sample_weight."
        )
    if isinstance(sampler, data.DistributedSampler) and sampler.num_replicas > 1:
        raise InputError(
            f"the DataLoader sees one share of {sampler.num_replicas} (DistributedSampler). Give loader.dataset: every "
            "row belongs to the training problem."
        )


def _stable(first: list[Any], second: list[Any], sampler: str) -> list[int]:
    first, second = sorted(int(index) for index in first), sorted(int(index) for index in second)
    if first != second:
        raise InputError(
            f"the DataLoader's {sampler} gives other rows in every pass. Give a DataLoader that sees every row of the "
            "training set once."
        )
    repeated = sorted({a for a, b in pairwise(first) if a == b})
    if repeated:
        raise InputError(
            f"the DataLoader's {sampler} gives {name_rows(repeated)} more than once in a pass. Give every row once and "
            "put the counts into sample_weight: a repeated row is not a new observation."
        )
    return first


def _refuse_dropped(rows: int, batch_size: int, drop_last: bool) -> None:
    lost = rows % batch_size
    if drop_last and lost:
        raise InputError(
            f"the DataLoader has drop_last=True and leaves out {lost} of {rows} rows in every pass. Give one with "
            "drop_last=False."
        )


def _batches(loader: Any, indices: list[int] | None) -> Iterator[Any]:
    """Yield the batches of one pass, in order, in this process."""
    collate, size = loader.collate_fn, loader.batch_size
    if indices is None:
        items = iter(loader.dataset)
        while size is not None and (block := list(islice(items, size))):
            yield _collate(collate, block)
        yield from (_collate(collate, item) for item in items)
        return
    if loader.batch_sampler is None:  # automatic batching is off: the dataset makes the batches itself
        yield from (_collate(collate, loader.dataset[index]) for index in indices)
        return
    size = size or _BATCH
    for start in range(0, len(indices), size):
        yield _collate(collate, _fetch(loader.dataset, indices[start : start + size]))


def _collate(collate: Any, items: Any) -> Any:
    try:
        return collate(items)
    except VhatError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"the DataLoader's collate_fn cannot make a batch of these rows: {error}") from error


def _fetch(dataset: Any, indices: list[int]) -> Any:
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def _collect(batches: Iterator[Any], target_key: str | None, memory: int) -> list[Batch]:
    collected, used = [], 0
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
    if isinstance(batch, Mapping):
        if target_key is None:
            raise InputError(f"the DataLoader yields dicts with keys {list(batch)}; name the target by target_key=.")
        if target_key not in batch:
            raise InputError(
                f"target_key={target_key!r} is not among the keys {list(batch)} of the DataLoader's dicts."
            )
        inputs = {key: _leaf(key, value) for key, value in batch.items() if key != target_key}
        if not inputs:
            raise InputError(f"the DataLoader's dicts hold nothing beside the target {target_key!r}.")
        return _checked(inputs, _leaf(target_key, batch[target_key]))
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InputError(
            f"the DataLoader yields a {type(batch).__name__} without a target. Yield (x, y), (x1, x2, y) or dicts."
        )
    parts, target = batch[:-1], _leaf("the target", batch[-1])
    if len(parts) > 1:
        return _checked(tuple(_leaf(f"input {index}", part) for index, part in enumerate(parts)), target)
    if isinstance(parts[0], Mapping):
        return _checked({key: _leaf(key, value) for key, value in parts[0].items()}, target)
    if isinstance(parts[0], tuple | list):
        return _checked(tuple(_leaf(f"input {index}", part) for index, part in enumerate(parts[0])), target)
    return _checked(_leaf("the input", parts[0]), target)


def _leaf(name: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        raise InputError(
            f"the DataLoader's batches hold a {type(value).__name__} in {name!r} where a tensor with one row per "
            "observation is needed. Leave it out, or encode it as numbers."
        )
    return value.detach()


def _checked(inputs: Any, target: torch.Tensor) -> Batch:
    lengths = {len(leaf) for leaf in _leaves(inputs)}
    if lengths != {len(target)}:
        raise InputError(
            f"a batch of the DataLoader has inputs with {sorted(lengths)} rows and a target with {len(target)}; all "
            "must have one row per observation along the leading axis."
        )
    return inputs, target


def _leaves(inputs: Any) -> list[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def _concatenate(parts: list[Any]) -> Any:
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
    """Read rows a second time: all of a stream, about ``_PROBED`` spread-out rows of a dataset."""
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
    for number in _spread_numbers(len(batches), per_batch):
        part = indices[number * per_batch : (number + 1) * per_batch]
        if not _same(batches[number], _collect(_batches(loader, part), target_key, memory)[0]):
            raise _augmented(part)


def _rows_per_batch(loader: Any) -> int:
    return int(loader.batch_size or (1 if loader.batch_sampler is None else _BATCH))


def _spread_numbers(batches: int, per_batch: int) -> set[int]:
    """Return the numbers of the batches that are read a second time: together about ``_PROBED`` rows."""
    wanted = max(1, min(batches, -(-_PROBED // per_batch)))
    return {int(number) for number in np.linspace(0, batches - 1, wanted)}


def _augmented(part: list[int]) -> InputError:
    return InputError(
        f"the dataset gave other values when {name_rows(part)} were read a second time: it augments at random. "
        "Switch the augmentation off for vhat."
    )


def _same(first: Batch, second: Batch) -> bool:
    a, b = [*_leaves(first[0]), first[1]], [*_leaves(second[0]), second[1]]
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and _equal(x, y) for x, y in zip(a, b, strict=True)
    )


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(((x == y) | (x.isnan() & y.isnan())).all())  # a NaN is refused at the door, by its row


def _rows(batches: list[Batch]) -> int:
    return sum(len(target) for _, target in batches)


def _check_stream_length(loader: Any, batches: list[Batch]) -> None:
    if loader.batch_size is not None:
        _refuse_dropped(_rows(batches), loader.batch_size, loader.drop_last)
