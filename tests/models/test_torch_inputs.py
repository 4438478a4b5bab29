"""What the torch front end takes as data, and what it refuses."""

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from tests.models.torch_cases import Squeezing, case, close, data, mlp, seeded
from vhat.errors import InputError, ModelError
from vhat.models.torch import torch_problem


def test_arrays_tensors_frames_and_half_precision_give_the_same_problem():
    module, X, y, _ = case("one output")
    expected = torch_problem(module, X, y, weight_decay=0.1).fitted_values
    for given in (X.numpy(), X.double(), pandas.DataFrame(X.numpy()), X.numpy().tolist(), X.requires_grad_()):
        np.testing.assert_array_equal(torch_problem(module, given, y, weight_decay=0.1).fitted_values, expected)


def test_dict_inputs_reach_the_module_by_name_together_or_alone():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 1)

        def forward(self, right, left):
            return self.head(torch.cat([left, right], dim=1))

    class Together(Named):
        def forward(self, batch):
            return super().forward(batch["right"], batch["left"])

    X, y = {"left": data(9, 2), "right": data(9, 3, seed=2)}, data(9, 1, seed=1)
    wide = torch.cat([X["left"], X["right"]], dim=1)
    for make, convention in ((Named, "keywords"), (Together, "together")):
        module = seeded(make)
        problem = torch_problem(module, X, y, weight_decay=0.1)
        assert problem.autodiff.model.convention == convention
        close(problem.fitted_values, module.double().head(wide.double()).detach())
    alone = torch_problem(seeded(lambda: mlp(3, 4, 1)), {"x": data(9, 3)}, y, weight_decay=0.1)
    assert alone.autodiff.model.convention == "positional"
    with pytest.raises(ModelError, match="float64 failed"):
        torch_problem(seeded(lambda: mlp(3, 4, 1)), X, y, weight_decay=0.1)


def test_tuple_inputs_reach_a_module_that_takes_them_together():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, pair):
            return self.head(pair[0] * pair[1])

    problem = torch_problem(seeded(Pair), [data(9, 3), data(9, 3, seed=2)], data(9, 1), weight_decay=0.1)
    assert problem.autodiff.model.convention == "together"
    assert problem.count(problem.inputs((data(4, 3), data(4, 3)))) == 4


def test_module_that_squeezes_everything_predicts_one_row():
    module, X, y, _ = case("squeezed")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    assert problem.squeeze
    one = problem.inputs(X[:1])
    close(problem.predict(one), problem.fitted_values[:1])
    close(problem.numpy(problem.gradients(one)), problem.numpy(problem.gradients(problem.X))[:1])


def test_one_training_row_is_enough():
    module, X, y, _ = case("squeezed")
    problem = torch_problem(module, X[:1], y[:1], weight_decay=0.1)
    assert problem.squeeze
    assert problem.fitted_values.shape == (1, 1)


def test_take_and_count_slice_every_input():
    module, X, y, _ = case("codes")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    inputs = problem.inputs(X)
    assert problem.count(problem.take(inputs, 2, 5)) == 3
    close(problem.predict(problem.take(inputs, 2, 5)), problem.fitted_values[2:5])
    assert inputs[0].dtype == torch.int64


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3), r"x\[None\]"),
        (torch.zeros(2, 4), r"rows of shape \(4,\).*fitted on rows of shape \(3,\)"),
        (torch.zeros(0, 3), "no rows"),
        (torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 1.0]]), "NaN or infinite values in row 1"),
        (np.array([["a", "b", "c"]]), "give numbers"),
        (torch.zeros(2, 3, dtype=torch.complex64), "complex"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), "tuple of 2 arrays"),
        ({"x": torch.zeros(2, 3)}, "structure of the training inputs"),
        (3.0, "single number"),
        (torch.zeros(2, 3).to_sparse(), "dense"),
        ("abc", "str"),
        (torch.utils.data.TensorDataset(torch.zeros(2, 4)), r"rows of shape \(4,\)"),
        (torch.utils.data.TensorDataset(*[torch.zeros(2, 3)] * 3), r"batches of 3 parts; .*let it yield x or \(x, y\)"),
    ],
)
def test_unusable_test_inputs_are_refused(x, words):
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    with pytest.raises(InputError, match=words):
        problem.inputs(x)


def test_integer_test_inputs_become_real_and_real_codes_are_refused():
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    assert problem.inputs([[1, 2, 3]])[0].dtype == torch.float64
    module, X, y, _ = case("codes")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    with pytest.raises(InputError, match="integer codes"):
        problem.inputs((X[1][:, 0], X[1]))
    with pytest.raises(ModelError, match="at these inputs failed"):
        problem.predict(problem.inputs((X[0] + 50, X[1])))


def test_dict_test_inputs_need_the_training_keys():
    module = seeded(lambda: mlp(3, 4, 1))
    problem = torch_problem(module, {"x": data(9, 3), "t": data(9, 1)}, target_key="t", weight_decay=0.1)
    assert problem.count(problem.inputs({"x": data(2, 3), "t": data(2, 1)})) == 2
    with pytest.raises(InputError, match=r"missing: \['x'\], unknown: \['z'\]"):
        problem.inputs({"z": data(2, 3)})
    with pytest.raises(InputError, match="fitted on a dict"):
        problem.inputs(data(2, 3))


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (data(9, 3), data(9), r"y\[:, None\]"),
        (data(9, 3), data(8, 1), "X has 9 rows and y has 8"),
        (data(9, 3), None, "y is missing"),
        (data(0, 3), data(0, 1), "no rows"),
        (data(9, 3) / 0, data(9, 1), "X has NaN or infinite"),
        (data(9, 3), data(9, 1) / 0, "y has NaN or infinite"),
        ((data(9, 3), data(8, 3)), data(9, 1), "have different numbers of rows"),
        ({}, data(9, 1), "keys"),
        ({"x": "text"}, data(9, 1), "x is a str"),
    ],
)
def test_unusable_training_data_are_refused(X, y, words):
    with pytest.raises(InputError, match=words):
        torch_problem(seeded(lambda: mlp(3, 4, 1)), X, y, weight_decay=0.1)


def test_column_targets_of_a_squeezed_module_are_refused():
    with pytest.raises(InputError, match=r"y\[:, 0\]"):
        torch_problem(seeded(Squeezing), data(9, 3), data(9, 1), weight_decay=0.1)


def test_training_data_are_copied():
    module, X, y, _ = case("one output")
    X, y = X.double(), y.double().numpy()
    problem = torch_problem(module, X, y, weight_decay=0.1)
    before = problem.numpy(problem.gradient())
    X.zero_()
    y[:] = 0.0
    np.testing.assert_array_equal(before, problem.at(problem.theta).numpy(problem.gradient()))
    assert problem.targets.any()
