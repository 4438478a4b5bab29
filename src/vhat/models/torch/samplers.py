"""The rows that one pass of a DataLoader reads, and checks that a pass is the training set."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch.utils import data

from vhat.errors import InputError, name_rows

__all__ = ["refuse_dropped", "rows_of_pass"]


def rows_of_pass(loader: Any) -> list[int]:
    """Return the indices of the rows in one epoch of the loader, in the order of the dataset."""
    try:
        size = len(loader.dataset)
    except (TypeError, NotImplementedError) as error:
        raise InputError("the dataset has no length; give it __len__, or make it an IterableDataset.") from error
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is not None and type(batch_sampler) is not data.BatchSampler:  # the user's own class
        return _check_indices(_flatten(batch_sampler), _flatten(batch_sampler), "batch sampler")
    sampler: Any = loader.sampler if batch_sampler is None else getattr(batch_sampler, "sampler", None)
    if isinstance(sampler, data.SequentialSampler | data.RandomSampler):
        _refuse_partial(sampler, size)
        indices = list(range(size))
    else:
        _refuse_sampler(sampler)
        indices = _check_indices(list(sampler), list(sampler), type(sampler).__name__)
    if batch_sampler is not None:
        refuse_dropped(len(indices), batch_sampler.batch_size, batch_sampler.drop_last)
    return indices


def _flatten(batch_sampler: Any) -> list[int]:
    return [int(index) for batch in batch_sampler for index in batch]


def _refuse_partial(sampler: Any, size: int) -> None:
    """Raise for a sampler that draws with replacement or not all rows."""
    if isinstance(sampler, data.RandomSampler) and (sampler.replacement or sampler.num_samples != size):
        how = "with replacement" if sampler.replacement else "without replacement"
        raise InputError(
            f"the DataLoader draws {sampler.num_samples} of {size} rows {how} in every pass, so no pass is the "
            "training set. Give a DataLoader that sees every row once (shuffle=True does)."
        )


def _refuse_sampler(sampler: Any) -> None:
    """Raise for samplers of torch whose passes are not the training set."""
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


def _check_indices(first: list[Any], second: list[Any], sampler: str) -> list[int]:
    """Return the sorted indices of a pass; raise if a second pass has others, or an index is repeated."""
    indices = sorted(int(index) for index in first)
    if indices != sorted(int(index) for index in second):
        raise InputError(
            f"the DataLoader's {sampler} gives other rows in every pass. Give a DataLoader that sees every row of the "
            "training set once."
        )
    repeated = sorted({a for a, b in pairwise(indices) if a == b})
    if repeated:
        raise InputError(
            f"the DataLoader's {sampler} gives {name_rows(repeated)} more than once in a pass. Give every row once and "
            "put the counts into sample_weight: a repeated row is not a new observation."
        )
    return indices


def refuse_dropped(rows: int, batch_size: int, drop_last: bool) -> None:
    """Raise if ``drop_last`` leaves out rows."""
    lost = rows % batch_size
    if drop_last and lost:
        raise InputError(
            f"the DataLoader has drop_last=True and leaves out {lost} of {rows} rows in every pass. Give one with "
            "drop_last=False."
        )
