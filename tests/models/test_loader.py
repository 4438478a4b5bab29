"""DataLoaders and Datasets: read once, in order, untouched; what is not a fixed set of rows is refused in words."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import data

from vhat.errors import InputError, MemoryBudgetError
from vhat.models.torch import torch_problem
from vhat.models.torch.data_loader import is_loader, read_loader

N = 11
X = torch.arange(N * 3.0).reshape(N, 3) / 10
Y = torch.sin(X[:, :1])
MEMORY = 10**8


def pairs():
    return data.TensorDataset(X, Y)


class Rows(data.Dataset):
    """A dataset of any row function."""

    def __init__(self, row, n=N):
        self.row, self.n = row, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(index)
        return self.row(index)


class Stream(data.IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


def read(source, target_key=None, memory=MEMORY):
    return read_loader(source, target_key, memory)


@pytest.mark.parametrize(
    "make",
    [
        lambda: data.DataLoader(pairs(), batch_size=4, shuffle=True),
        lambda: data.DataLoader(pairs(), batch_size=4),
        lambda: data.DataLoader(pairs(), batch_size=11, shuffle=True, drop_last=True),
        lambda: data.DataLoader(pairs(), batch_size=1, drop_last=True),
        lambda: data.DataLoader(pairs(), batch_sampler=data.BatchSampler(data.RandomSampler(range(N)), 4, False)),
        lambda: data.DataLoader(pairs(), batch_sampler=[[5, 4, 3], [0, 1, 2], [10, 9, 8, 7, 6]]),
        lambda: data.DataLoader(Stream(lambda: zip(X, Y, strict=True)), batch_size=4),
        lambda: data.DataLoader(Stream(lambda: [(X[:6], Y[:6]), (X[6:], Y[6:])]), batch_size=None),
        lambda: data.DataLoader(
            Rows(lambda i: (X[i * 5 : i * 5 + 5], Y[i * 5 : i * 5 + 5]), n=3), batch_size=None, shuffle=True
        ),
        lambda: data.DataLoader(Rows(lambda i: (X[i].numpy(), Y[i].numpy())), batch_size=4, shuffle=True),
        pairs,
        lambda: Rows(lambda i: (X[i], Y[i])),
        lambda: data.Subset(pairs(), range(N)),
    ],
)
def test_rows_come_in_the_datasets_order_whatever_the_sampler(make):
    inputs, targets = read(make())
    np.testing.assert_array_equal(inputs, X)
    np.testing.assert_array_equal(targets, Y)


def test_subset_sampler_is_honoured():
    inputs, _ = read(data.DataLoader(pairs(), batch_size=2, sampler=data.SubsetRandomSampler([7, 2, 5])))
    np.testing.assert_array_equal(inputs, X[[2, 5, 7]])


def test_batches_of_several_inputs_keep_their_structure():
    two = Rows(lambda i: (X[i], torch.tensor(i), Y[i]))
    inputs, targets = read(data.DataLoader(two, batch_size=4))
    assert isinstance(inputs, tuple)
    np.testing.assert_array_equal(inputs[1], np.arange(N))
    np.testing.assert_array_equal(targets, Y)
    nested, _ = read(data.DataLoader(Rows(lambda i: ({"a": X[i], "b": X[i]}, Y[i])), batch_size=4))
    assert set(nested) == {"a", "b"}
    grouped, _ = read(data.DataLoader(Rows(lambda i: ((X[i], X[i]), Y[i])), batch_size=4))
    assert len(grouped) == 2


def test_dict_batches_give_the_target_by_its_key():
    rows = Rows(lambda i: {"features": X[i], "label": Y[i]})
    inputs, targets = read(data.DataLoader(rows, batch_size=4, shuffle=True), "label")
    np.testing.assert_array_equal(inputs["features"], X)
    np.testing.assert_array_equal(targets, Y)
    with pytest.raises(InputError, match=r"keys \['features', 'label'\]; name the target"):
        read(data.DataLoader(rows, batch_size=4))
    with pytest.raises(InputError, match="target_key='y' is not among"):
        read(data.DataLoader(rows, batch_size=4), "y")


def test_collate_function_of_the_loader_is_used():
    def collate(items):
        return torch.stack([x for x, _ in items]) * 2, torch.stack([y for _, y in items])

    inputs, _ = read(data.DataLoader(pairs(), batch_size=4, collate_fn=collate))
    np.testing.assert_array_equal(inputs, 2 * X)


class Changing(data.Sampler):
    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(range(self.passes, self.passes + 3))

    def __len__(self):
        return 3


def endless():
    while True:
        yield X[0], Y[0]


def once():
    rows = iter(list(zip(X, Y, strict=True)))
    return Stream(lambda: rows)


def jitter(i):
    return X[i] + 0.01 * torch.randn(3), Y[i]


def flip(i):
    return (X[i].flip(0) if random.random() < 0.5 else X[i]), Y[i]


def shake(i):
    return X[i].numpy() + np.random.normal(size=3).astype("f"), Y[i]  # noqa: NPY002


def mixed(items):
    weight = torch.rand(())
    x, y = data.default_collate(items)
    return weight * x + (1 - weight) * x.flip(0), y


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: data.DataLoader(Rows(jitter), batch_size=4), "augments at random"),
        (lambda: data.DataLoader(Rows(flip), batch_size=4), "augments at random"),
        (lambda: Rows(shake), "augments at random"),
        (lambda: data.DataLoader(pairs(), batch_size=4, collate_fn=mixed), "augments at random"),
        (lambda: data.DataLoader(pairs(), batch_size=4, drop_last=True), "leaves out 3 of 11 rows"),
        (
            lambda: data.DataLoader(pairs(), batch_sampler=data.BatchSampler(data.SequentialSampler(X), 4, True)),
            "leaves out 3 of 11 rows",
        ),
        (lambda: data.DataLoader(Stream(lambda: zip(X, Y, strict=True)), batch_size=4, drop_last=True), "leaves out 3"),
        (
            lambda: data.DataLoader(pairs(), sampler=data.WeightedRandomSampler([1.0] * N, N)),
            "WeightedRandomSampler.*sample_weight",
        ),
        (lambda: data.DataLoader(pairs(), sampler=data.RandomSampler(X, replacement=True)), "with replacement"),
        (lambda: data.DataLoader(pairs(), sampler=data.RandomSampler(X, num_samples=5)), "5 of 11 rows"),
        (lambda: data.DataLoader(pairs(), sampler=Changing()), "Changing gives other rows in every pass"),
        (lambda: data.DataLoader(pairs(), sampler=[0, 1, 1, 2]), "row 1 more than once.*sample_weight"),
        (lambda: data.DataLoader(pairs(), batch_sampler=[[0, 1], [1, 2]]), "row 1 more than once"),
        (
            lambda: data.DataLoader(pairs(), sampler=data.DistributedSampler(pairs(), num_replicas=2, rank=0)),
            "one share of 2.*loader.dataset",
        ),
        (lambda: data.DataLoader(once(), batch_size=4), "11 rows in one pass and 0 in the next"),
        (lambda: data.DataLoader(Stream(lambda: map(jitter, range(N))), batch_size=4), "passes are equal"),
        (lambda: data.DataLoader(Rows(lambda i: X[i]), batch_size=4), "without a target"),
        (lambda: data.DataLoader(Rows(lambda i: (X[i],)), batch_size=4), "without a target"),
        (
            lambda: data.DataLoader(Rows(lambda i: ("name", X[i], Y[i])), batch_size=4),
            "'input 0'.*encode it as numbers",
        ),
        (lambda: data.DataLoader(Rows(lambda i: (X[i][: 1 + i % 2], Y[i])), batch_size=4), "cannot make a batch"),
        (lambda: data.DataLoader(Rows(lambda i: (X[i][: 1 + i % 2], Y[i])), batch_size=1), "rows of different shapes"),
        (lambda: data.DataLoader(Rows(lambda i: (X, Y[:2]), n=2), batch_size=None), r"inputs with \[11\] rows"),
        (lambda: data.DataLoader(Stream(list), batch_size=4), "no rows"),
        (lambda: data.DataLoader(pairs(), sampler=[], batch_size=4), "no rows"),
    ],
)
def test_what_is_not_one_fixed_set_of_rows_is_refused_in_words(make, words):
    with pytest.raises(InputError, match=words):
        read(make())


def test_dict_batches_with_nothing_beside_the_target_or_changing_keys_are_refused():
    with pytest.raises(InputError, match="nothing but the target"):
        read(data.DataLoader(Rows(lambda i: {"y": Y[i]}), batch_size=4), "y")
    with pytest.raises(InputError, match="different keys"):
        read(data.DataLoader(Rows(lambda i: {"y": Y[i], f"x{i}": X[i]}), batch_size=1), "y")


def test_endless_stream_ends_at_the_memory_budget():
    with pytest.raises(MemoryBudgetError, match="endless stream"):
        read(data.DataLoader(Stream(endless), batch_size=4), memory=10_000)


def test_dataset_without_length_is_refused():
    class Bare(data.Dataset):
        def __getitem__(self, index):
            return X[index], Y[index]

    with pytest.raises(InputError, match="no length"):
        read(data.DataLoader(Bare(), sampler=data.SubsetRandomSampler([1]), batch_size=2))


def test_no_random_state_moves_also_after_an_error():
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    read(data.DataLoader(pairs(), batch_size=4, shuffle=True))
    for row in (jitter, flip, shake):
        with pytest.raises(InputError):
            read(Rows(row))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


def test_nan_rows_are_left_for_the_door_to_name():
    broken = X.clone()
    broken[3] = float("nan")
    inputs, _ = read(data.TensorDataset(broken, Y))
    assert inputs.isnan().any()
    with pytest.raises(InputError, match="NaN or infinite values in row 3"):
        torch_problem(nn.Linear(3, 1), data.TensorDataset(broken, Y), weight_decay=0.1)


def test_is_loader_knows_loaders_and_datasets():
    assert is_loader(pairs())
    assert is_loader(data.DataLoader(pairs()))
    assert not is_loader(X)
    assert not is_loader([X, Y])


def test_problem_from_a_shuffled_loader_is_the_problem_from_tensors():
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    torch.set_rng_state(torch_state)
    weights = np.linspace(1, 2, N)
    plain = torch_problem(module, X, Y, weight_decay=0.1, sample_weight=weights)
    loader = data.DataLoader(pairs(), batch_size=4, shuffle=True)
    loaded = torch_problem(module, loader, weight_decay=0.1, sample_weight=weights)
    np.testing.assert_array_equal(loaded.targets, plain.targets)
    np.testing.assert_array_equal(loaded.numpy(loaded.gradient()), plain.numpy(plain.gradient()))
    with pytest.raises(InputError, match="leave y out"):
        torch_problem(module, loader, Y, weight_decay=0.1)


def test_dict_loader_reaches_a_module_by_keyword():
    class Named(nn.Linear):
        def forward(self, features):
            return super().forward(features)

    rows = Rows(lambda i: {"features": X[i], "label": Y[i]})
    problem = torch_problem(Named(3, 1), data.DataLoader(rows, batch_size=4), target_key="label", weight_decay=0.1)
    assert problem.autodiff.model.convention == "keywords"
    assert problem.count(problem.inputs({"features": X[:2], "label": Y[:2]})) == 2
