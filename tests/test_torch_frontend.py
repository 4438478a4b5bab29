"""The torch front end against dense autograd: every derivative, every kind of module, every refusal."""

import copy
import itertools
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import vhat.frontends.torch_probe as probe
from vhat.errors import InputError, MemoryBudgetError, ModelError
from vhat.frontends.torch import torch_problem

# ---------------------------------------------------------------------------------------------------
# modules


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.decode(torch.tanh(self.encode(x)))))


class Codes(nn.Module):
    """Integer ids beside real inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(5, 2)

    def forward(self, ids, x):
        return self.head(torch.cat([torch.tanh(self.table(ids)), x], dim=1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))[:, 0]


class Branching(nn.Module):
    """A Python branch on a value: torch.vmap cannot follow it."""

    def __init__(self):
        super().__init__()
        self.body = mlp(3, 4, 1)

    def forward(self, x):
        return torch.stack([self.body(row) if float(row[0]) > 0 else 2 * self.body(row) for row in x])


class Squeezing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(3, 4, 1)

    def forward(self, x):
        return self.body(x).squeeze()


def mlp(*widths, activation=nn.Tanh):
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 1),
    )


def train_batch_norm(module, X):
    module.train()
    with torch.no_grad():
        module(X)
    return module.eval()


# ---------------------------------------------------------------------------------------------------
# cases


def log_cosh(f, y):
    return torch.log(torch.cosh(f - y))


def coupled(f, y):
    """A loss of two outputs together: its curvature has an off-diagonal."""
    r = f - y
    return r[0] ** 2 + r[1] ** 2 + 0.5 * torch.sin(r[0] * r[1])


def relative(f, y):
    """Not a function of f - y."""
    return (f * torch.exp(-y) - y**2) ** 2


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seeded(make):
    state = torch.get_rng_state()
    torch.manual_seed(3)
    module = make()
    torch.set_rng_state(state)
    return module.eval()


def case(name):
    n = 9
    ids = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(1))
    table = {
        "one output": (lambda: mlp(3, 4, 1), data(n, 3), data(n, 1, seed=1), "half_mse"),
        "squeezed": (Squeezing, data(n, 3), data(n, seed=1), "half_mse"),
        "two outputs": (lambda: mlp(3, 4, 2), data(n, 3), data(n, 2, seed=1), "half_mse"),
        "relu": (lambda: mlp(3, 6, 1, activation=nn.ReLU), data(n, 3), data(n, 1, seed=1), "half_mse"),
        "log-cosh": (Squeezing, data(n, 3), data(n, seed=1), log_cosh),
        "log-cosh of two": (lambda: mlp(3, 4, 2), data(n, 3), data(n, 2, seed=1), log_cosh),
        "coupled": (lambda: mlp(3, 4, 2), data(n, 3), data(n, 2, seed=1), coupled),
        "relative": (Squeezing, data(n, 3), data(n, seed=1), relative),
        "convolution": (convolutional, data(n, 1, 7, 7), data(n, 1, seed=1), "half_mse"),
        "tied": (Tied, data(n, 3), data(n, 1, seed=1), "half_mse"),
        "codes": (Codes, (ids, data(n, 2)), data(n, 2, seed=1), "half_mse"),
        "recurrent": (Recurrent, data(n, 4, 2), data(n, 1, seed=1), "half_mse"),
        "attention": (Attention, data(n, 3, 4), data(n, seed=1), "half_mse"),
        "branching": (Branching, data(n, 3), data(n, 1, seed=1), "half_mse"),
    }
    make, X, y, loss = table[name]
    module = seeded(make)
    if name == "convolution":
        train_batch_norm(module, X)
    return module, X, y, loss


CASES = (
    "one output",
    "squeezed",
    "two outputs",
    "relu",
    "log-cosh",
    "log-cosh of two",
    "coupled",
    "relative",
    "convolution",
    "tied",
    "codes",
    "recurrent",
    "attention",
    "branching",
)
WEIGHTS = np.linspace(0.5, 2.0, 9)


def oracle(module, X, y, loss, weights):
    """Dense Jacobian, Hessian and loss of a double copy of the module, by torch.autograd alone."""
    double = copy.deepcopy(module).double()
    names = [name for name, value in double.named_parameters() if value.requires_grad]
    shapes = [dict(double.named_parameters())[name].shape for name in names]
    theta = torch.cat([dict(double.named_parameters())[name].detach().reshape(-1) for name in names])
    inputs = [x.double() if x.is_floating_point() else x for x in (X if isinstance(X, tuple) else (X,))]
    y, w, n = y.double(), torch.as_tensor(weights), len(y)

    def f(t):
        parts = torch.split(t, [shape.numel() for shape in shapes])
        trained = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return functional_call(double, trained, tuple(inputs))

    def rows(t):
        if loss == "half_mse":
            return 0.5 * (f(t) - y).reshape(n, -1).square().sum(1)
        return torch.stack([loss(a, b).sum() for a, b in zip(f(t), y, strict=True)])

    def L(t):
        return (w * rows(t)).sum() / n

    H = torch.autograd.functional.hessian(L, theta)
    J = torch.autograd.functional.jacobian(f, theta).reshape(n, -1, len(theta))
    gradient = torch.autograd.functional.jacobian(L, theta)
    return SimpleNamespace(
        H=H.numpy(), J=J.numpy(), gradient=gradient.numpy(), L=float(L(theta)), f=f(theta).reshape(n, -1).numpy()
    )


@pytest.fixture(params=CASES)
def solved(request):
    module, X, y, loss = case(request.param)
    problem = torch_problem(module, X, y, weight_decay=1e-3, loss=loss, sample_weight=WEIGHTS)
    return problem, oracle(module, X, y, loss, WEIGHTS)


def blocks(problem, k=3, seed=0):
    return np.random.default_rng(seed).standard_normal((k, problem.p))


def full_curvature(problem):
    c = problem.loss_derivatives.curvature
    return c if c.ndim == 3 else c[:, :, None] * np.eye(problem.outputs)


def close(found, expected, rtol=1e-10):
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


# ---------------------------------------------------------------------------------------------------
# derivatives against the dense oracle


def test_objective_gradient_and_fitted_values_are_those_of_a_float64_module(solved):
    problem, dense = solved
    close(problem.fitted_values, dense.f)
    close(problem.objective(), dense.L)
    close(problem.numpy(problem.gradient()), dense.gradient)


def test_product_is_the_dense_hessian(solved):
    problem, dense = solved
    v = blocks(problem)
    close(problem.numpy(problem.product(problem.native(v), "hessian")), v @ dense.H)


def test_gauss_newton_product_is_the_dense_one(solved):
    problem, dense = solved
    v = blocks(problem)
    G = np.einsum("nip,nij,njq->pq", dense.J, full_curvature(problem), dense.J) / problem.n
    close(problem.numpy(problem.product(problem.native(v), "ggn")), v @ G)


def test_jvp_vjp_and_gradients_are_the_dense_jacobian(solved):
    problem, dense = solved
    v, t = blocks(problem), np.random.default_rng(1).standard_normal((2, problem.n, problem.outputs))
    close(problem.jvp(problem.native(v)), np.einsum("nip,kp->kni", dense.J, v))
    close(problem.numpy(problem.vjp(t)), np.einsum("nip,kni->kp", dense.J, t))
    close(problem.numpy(problem.gradients(problem.X)), dense.J.reshape(-1, problem.p))


def test_diagonal_weighs_squared_gradients_with_negative_curvature_as_zero(solved):
    problem, dense = solved
    own = np.maximum(np.einsum("njj->nj", full_curvature(problem)), 0)
    close(problem.numpy(problem.diagonal()), np.einsum("nj,njp->p", own, dense.J**2) / problem.n)


def test_chunks_and_blocks_do_not_change_the_numbers(solved):
    problem, dense = solved
    small = copy.deepcopy(problem)
    small.memory = 16 * small.row_bytes  # two rows a chunk, and too little to keep the tapes
    assert small._chunk_rows == 2
    v, t = blocks(small), np.random.default_rng(1).standard_normal((2, small.n, small.outputs))
    close(small.numpy(small.product(small.native(v), "hessian")), v @ dense.H)
    close(small.jvp(small.native(v)), np.einsum("nip,kp->kni", dense.J, v))
    close(small.numpy(small.vjp(t)), np.einsum("nip,kni->kp", dense.J, t))
    close(small.numpy(small.gradient()), dense.gradient)
    close(small.predict(small.X), dense.f)
    assert "_kept_tapes" not in small.__dict__


@pytest.mark.parametrize(("name", "shortcut"), [("recurrent", True), ("branching", False), ("one output", True)])
def test_backward_passes_are_batched_where_torch_can(name, shortcut):
    module, X, y, _ = case(name)
    problem = torch_problem(module, X, y, weight_decay=0.1)
    assert problem.model.batched or not shortcut
    assert problem.model.mapped == (name == "one output")


def test_loss_derivatives_match_dense_second_derivatives_of_a_coupled_loss():
    module, X, y, loss = case("coupled")
    problem = torch_problem(module, X, y, weight_decay=0.1, loss=loss, sample_weight=WEIGHTS)
    found = problem.loss_derivatives
    f, y = torch.tensor(problem.fitted_values), y.double()
    for i in range(problem.n):
        full = torch.autograd.functional.hessian(loss, (f[i], y[i]))
        close(found.curvature[i], WEIGHTS[i] * full[0][0].numpy())
        close(found.cross[i], WEIGHTS[i] * full[0][1].numpy())
        close(found.first[i], WEIGHTS[i] * torch.autograd.functional.jacobian(loss, (f[i], y[i]))[0].numpy())
    assert found.curvature.shape == (9, 2, 2)
    assert found.location


def test_loss_that_is_a_sum_over_outputs_has_diagonal_derivatives():
    module, X, y, loss = case("log-cosh of two")
    found = torch_problem(module, X, y, weight_decay=0.1, loss=loss).loss_derivatives
    assert found.curvature.shape == found.cross.shape == (9, 2)
    assert found.location


def test_loss_of_more_than_the_difference_is_not_a_location_loss():
    module, X, y, loss = case("relative")
    assert not torch_problem(module, X, y, weight_decay=0.1, loss=loss).loss_derivatives.location


def test_reductions_inside_a_loss_act_on_one_row():
    module, X, y, _ = case("two outputs")
    mean = torch_problem(module, X, y, weight_decay=0.1, loss=nn.MSELoss())
    half = torch_problem(module, X, y, weight_decay=0.1)
    assert mean.objective() == pytest.approx(half.objective())  # mean over two outputs = half the sum
    np.testing.assert_allclose(mean.loss_derivatives.curvature, half.loss_derivatives.curvature)


def test_loss_with_a_python_branch_works_row_by_row():
    def branching(f, y):
        r = f - y
        return r**2 / 2 if float(r) > 0 else r**2

    module, X, y, _ = case("squeezed")
    problem = torch_problem(module, X, y, weight_decay=0.1, loss=branching)
    r = problem.fitted_values - problem.targets
    np.testing.assert_allclose(problem.loss_derivatives.curvature, np.where(r > 0, 1.0, 2.0))


# ---------------------------------------------------------------------------------------------------
# parameters


def test_tied_parameters_count_once():
    module, X, y, _ = case("tied")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    assert problem.p == sum(value.numel() for value in module.parameters())
    assert "decode.weight" not in problem.params


def test_frozen_parameters_are_used_but_left_out():
    module, X, y, _ = case("two outputs")
    for value in module[0].parameters():
        value.requires_grad_(False)
    problem = torch_problem(module, X, y, weight_decay={"2.weight": 0.1, "2.bias": 0.0})
    dense = oracle(module, X, y, "half_mse", np.ones(9))
    assert problem.p == 10
    assert set(problem.params) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    v = blocks(problem)
    close(problem.numpy(problem.product(problem.native(v), "hessian")), v @ dense.H)
    close(problem.numpy(problem.decay), [0.1] * 8 + [0.0] * 2)


def test_decay_per_parameter_takes_numbers_and_tensors_and_mse_rescales_them():
    module, X, y, _ = case("two outputs")
    decay = {"0.weight": 1.0, "0.bias": torch.arange(4.0), "2.weight": np.full((2, 4), 3.0), "2.bias": 0}
    expected = np.r_[np.full(12, 1.0), np.arange(4), np.full(8, 3.0), 0, 0]
    problem = torch_problem(module, X, y, weight_decay=decay)
    np.testing.assert_array_equal(problem.numpy(problem.decay), expected)
    problem = torch_problem(module, X, y, weight_decay=0.3, loss="mse")
    np.testing.assert_allclose(problem.numpy(problem.decay), 0.3)  # K w / 2 with K = 2
    assert problem.loss == "half_mse"


@pytest.mark.parametrize(
    ("decay", "words"),
    [
        (-1.0, "negative"),
        (float("nan"), "finite"),
        ("much", "not a number"),
        ({"0.weight": 1.0}, r"missing \['0.bias', '2.weight', '2.bias'\]"),
        ({"0.weight": 1, "0.bias": 0, "2.weight": 1, "2.bias": 0, "3.bias": 0}, r"unknown \['3.bias'\]"),
        ({"0.weight": np.ones(3), "0.bias": 0, "2.weight": 1, "2.bias": 0}, r"shape \(3,\)"),
        ({"0.weight": -1, "0.bias": 0, "2.weight": 1, "2.bias": 0}, "0.weight"),
    ],
)
def test_unusable_decay_is_refused_by_name(decay, words):
    module, X, y, _ = case("one output")
    with pytest.raises(InputError, match=words):
        torch_problem(module, X, y, weight_decay=decay)


def test_params_are_float64_copies():
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    problem.params["0.weight"].zero_()
    assert problem.params["0.weight"].dtype == torch.float64
    np.testing.assert_array_equal(problem.params["0.weight"], module[0].weight.detach().double())


def test_at_and_with_targets_move_one_thing_and_keep_the_rest():
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    moved = problem.at(problem.theta * 1.1)
    other = copy.deepcopy(module)
    moved.write_to(other)
    close(moved.fitted_values, oracle(other, X, y, "half_mse", np.ones(9)).f, rtol=1e-6)
    shifted = problem.with_targets(problem.targets + 1.0)
    np.testing.assert_allclose(shifted.loss_derivatives.first, problem.loss_derivatives.first - 1.0)
    close(
        shifted.numpy(shifted.gradient() - problem.gradient()), -problem.numpy(problem.vjp(np.ones((1, 9, 1))))[0] / 9
    )
    assert shifted.X is problem.X


def test_write_to_copies_into_the_modules_dtype_and_checks_names():
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    problem.at(problem.theta + 1.0).write_to(module)
    assert module[0].weight.dtype == torch.float32
    np.testing.assert_allclose(module[0].weight.detach(), problem.params["0.weight"] + 1.0, rtol=1e-6)
    with pytest.raises(InputError, match=r"2\.weight"):
        problem.write_to(seeded(lambda: mlp(3, 4, 2)))


def test_functional_has_the_gradient_of_a_prediction_and_of_a_parameter():
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    wide = X.double()

    found = problem.functional(lambda tensors: functional_call(module, tensors, (wide,))[:, 0])
    close(found.value, problem.fitted_values[:, 0])
    close(problem.numpy(found.gradient), problem.numpy(problem.gradients(problem.X)))
    single = problem.functional(lambda tensors: tensors["0.weight"][0, 0])
    assert single.value.shape == ()
    np.testing.assert_array_equal(single.gradient, np.eye(1, problem.p))


@pytest.mark.parametrize(
    ("q", "words"),
    [
        (lambda tensors: 1.0, "float"),
        (lambda tensors: tensors["0.weight"], "shape"),
        (lambda tensors: tensors["0.weight"].detach().sum(), "does not depend"),
        (lambda tensors: tensors["0.bias"].sum() / 0.0, "infinite"),
        (lambda tensors: tensors["bias"], "KeyError"),
        (lambda tensors: tensors["0.weight"] @ torch.ones(3), "float64"),
    ],
)
def test_unusable_functional_is_refused(q, words):
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    with pytest.raises(InputError, match=words):
        problem.functional(q)


def test_functional_sees_frozen_parameters_and_buffers():
    module, X, y, _ = case("convolution")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    found = problem.functional(lambda tensors: functional_call(module, tensors, (X.double(),))[0, 0])
    close(found.value, problem.fitted_values[0, 0])


# ---------------------------------------------------------------------------------------------------
# inputs


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
        assert problem.model.convention == convention
        close(problem.fitted_values, module.double().head(wide.double()).detach())
    alone = torch_problem(seeded(lambda: mlp(3, 4, 1)), {"x": data(9, 3)}, y, weight_decay=0.1)
    assert alone.model.convention == "positional"
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
    assert problem.model.convention == "together"
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
        (torch.utils.data.TensorDataset(torch.zeros(2, 3)), "x is a TensorDataset"),
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
        ((data(9, 3), data(8, 3)), data(9, 1), "disagree about the number of rows"),
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


# ---------------------------------------------------------------------------------------------------
# refusals of the module


class Wrapped(nn.Module):
    """A small network with one step of the given kind after its hidden layer."""

    def __init__(self, step):
        super().__init__()
        self.first, self.last, self.step = nn.Linear(3, 4), nn.Linear(4, 1), step

    def forward(self, x):
        return self.last(self.step(torch.tanh(self.first(x))))


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class ChangesInput(Wrapped):
    def forward(self, x):
        x += 1
        return super().forward(x)


class Counting(Wrapped):
    def __init__(self):
        super().__init__(torch.tanh)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x)


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3, max_norm=0.1), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.table(x[:, 0].long().clamp(0, 4)))


class Checkpointed(Wrapped):
    def __init__(self):
        super().__init__(torch.tanh)

    def forward(self, x):
        return self.last(checkpoint(lambda z: torch.tanh(self.first(z)), x, use_reentrant=False))


class Hidden(Wrapped):
    def __init__(self):
        super().__init__(torch.tanh)
        self.list = [self.first.weight]

    def forward(self, x):
        return self.last(torch.tanh(x @ self.list[0].T))


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 1)

    def forward(self, x):
        return x[:, :1] ** 2


def overwrite(h):
    out = torch.exp(h)
    out += 1
    return torch.sigmoid(out) * out.sin_()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Wrapped(lambda h: nn.functional.dropout(h, 0.5, training=True)),
            "two evaluations of the same rows differ",
        ),
        (lambda: Wrapped(lambda h: h + np.random.default_rng().normal()), "two evaluations of the same rows differ"),
        (lambda: Wrapped(lambda h: h + random.random()), "two evaluations of the same rows differ"),
        (lambda: Wrapped(lambda h: h - h.mean(0)), "changes with the rows beside it"),
        (lambda: Wrapped(nn.BatchNorm1d(4, track_running_stats=False)), "one row alone|rows beside it"),
        (lambda: Wrapped(lambda h: h @ torch.ones(4, 4)), "float64 and it mixes dtypes"),
        (lambda: Wrapped(overwrite), "in place on a tensor that autograd needs"),
        (lambda: Wrapped(OnceDifferentiable.apply), "no true second derivative"),
        (lambda: Wrapped(lambda h: h.detach()), "hides from autograd"),
        (lambda: Wrapped(lambda h: torch.from_numpy(h.numpy())), "leaves autograd"),
        (lambda: Checkpointed().double(), "checkpointing"),
        (lambda: Hidden().double(), r"reaches its parameters first\.weight beside"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)), "weight_norm"),
        (lambda: ChangesInput(torch.tanh), "changes its inputs in place"),
        (Counting, "changes its buffers in its forward pass .count."),
        (Renormed, "changes its own parameters"),
        (Constant, "does not depend on any trainable parameter"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f.detach())), "does not depend on any trainable"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f.argmax(1))), "dtype torch.int64"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(torch.round)), "leaves autograd .*rounding"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: 0 * f + 1)), "derivative of the prediction is zero"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: (f - f.detach()).abs().sqrt())), "not finite"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: (f, f))), "returned a tuple"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f[None])), "returned shape"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f / 0)), "NaN or infinite values in rows 0, 1"),
        (lambda: nn.LazyLinear(1), "not initialised"),
        (lambda: nn.Sequential(nn.Linear(4, 1)), r"module\(X\) in float64 failed"),
        (lambda: mlp(3, 4, 1).requires_grad_(False), "nothing that training moved"),
        (lambda: mlp(3, 4, 1).to("meta"), "device meta has no float64"),
        (lambda: nn.Linear(3, 1, dtype=torch.complex64), "complex"),
    ],
)
def test_unusable_module_is_refused_in_words(make, words):
    module = seeded(make)
    with pytest.raises(ModelError, match=words):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_what_is_not_a_module_is_refused():
    with pytest.raises(ModelError, match=r"give a torch\.nn\.Module"):
        torch_problem(lambda x: x, data(9, 3), data(9, 1), weight_decay=0.1)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (lambda: nn.Dropout(0.1), r"step \(Dropout\)"),
        (lambda: nn.AlphaDropout(0.1), r"step \(AlphaDropout\)"),
        (lambda: nn.BatchNorm1d(4), r"step \(BatchNorm1d\)"),
        (nn.RReLU, r"step \(RReLU\)"),
    ],
)
def test_training_mode_is_refused_naming_the_submodules(part, named):
    module = seeded(lambda: Wrapped(part())).train()
    with pytest.raises(ModelError, match=f"{named}.*call module.eval"):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    torch_problem(module.eval(), data(9, 3), data(9, 1), weight_decay=0.1)


def test_training_mode_without_anything_that_cares_is_fine():
    module = seeded(lambda: Wrapped(nn.Dropout(0.0))).train()
    torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)


def test_module_put_back_into_training_mode_is_refused_later_and_found_random_by_facts():
    module = seeded(lambda: Wrapped(nn.Dropout(0.5)))
    problem = torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    assert problem.facts().deterministic
    module.train()
    with pytest.raises(ModelError, match="training mode again"):
        problem.predict(problem.X)
    assert not problem.facts().deterministic


def test_parameters_that_are_not_finite_are_refused_by_name():
    module = seeded(lambda: mlp(3, 4, 1))
    with torch.no_grad():
        module[2].bias.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"2\.bias"):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        ("mae", InputError, "loss='mae' is not known"),
        (lambda f, y: (f - y).abs(), ModelError, "no second derivative"),
        (lambda f, y: torch.log(f - y).sum(), ModelError, "loss or its derivatives are not finite"),
        (lambda f, y: 1.0, ModelError, "returned float"),
        (lambda f, y: (f - y)[None].expand(2, 3), ModelError, r"returned \(2, 3\)"),
        (lambda f, y: OnceDifferentiable.apply(f - y), ModelError, "differentiating the loss twice failed"),
    ],
)
def test_unusable_loss_is_refused(loss, error, words):
    with pytest.raises(error, match=words):
        torch_problem(seeded(lambda: mlp(3, 4, 1)), data(9, 3), data(9, 1), weight_decay=0.1, loss=loss)


def test_unusable_weights_and_memory_are_refused():
    module, X, y, _ = case("one output")
    with pytest.raises(InputError, match="sample_weight has shape"):
        torch_problem(module, X, y, weight_decay=0.1, sample_weight=torch.ones(3))
    with pytest.raises(MemoryBudgetError, match="one row needs"):
        torch_problem(module, X, y, weight_decay=0.1, memory=10)


# ---------------------------------------------------------------------------------------------------
# facts and state


def test_cast_to_float32_inside_is_found():
    problem = torch_problem(
        seeded(lambda: Wrapped(lambda h: h.float().double())), data(9, 3), data(9, 1), weight_decay=0
    )
    facts = problem.facts()
    assert facts.narrow_casts == ("aten._to_copy (float64 to float32)",)
    assert facts.accuracy > 1e-8
    assert facts.dtype == "float32"


def test_ordinary_module_has_no_narrow_casts():
    module, X, y, _ = case("convolution")
    facts = torch_problem(module, X, y, weight_decay=0.1).facts()
    assert facts.narrow_casts == ()
    assert facts.deterministic
    assert facts.framework == "torch"


def test_module_that_becomes_random_later_is_found():
    module = seeded(lambda: Wrapped(torch.tanh))
    problem = torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    module.step = lambda h: h + torch.rand(())
    assert not problem.facts().deterministic


def snapshot(module):
    tensors = {name: (value, value.clone(), value.dtype) for name, value in module.state_dict(keep_vars=True).items()}
    grads = {name: None if value.grad is None else value.grad.clone() for name, value in module.named_parameters()}
    modes = {name: part.training for name, part in module.named_modules()}
    return tensors, grads, modes, torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002


def assert_untouched(module, before):
    tensors, grads, modes, torch_rng, numpy_rng, python_rng = before
    for name, value in module.state_dict(keep_vars=True).items():
        same, clone, dtype = tensors[name]
        assert value is same
        assert value.dtype == dtype
        assert torch.equal(value, clone)
    for name, value in module.named_parameters():
        assert (value.grad is None) == (grads[name] is None)
        assert value.grad is None or torch.equal(value.grad, grads[name])
    assert {name: part.training for name, part in module.named_modules()} == modes
    assert torch.equal(torch.get_rng_state(), torch_rng)
    assert np.array_equal(np.random.get_state()[1], numpy_rng)  # noqa: NPY002
    assert random.getstate() == python_rng
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["convolution", "tied", "two outputs"])
def test_module_gradients_modes_buffers_and_random_states_are_untouched(name):
    module, X, y, _ = case(name)
    module(X).sum().backward()
    module[0].train() if name == "two outputs" else None
    before = snapshot(module)
    problem = torch_problem(module, X, y, weight_decay=0.1)
    v = problem.native(blocks(problem))
    for work in (
        lambda: problem.product(v, "hessian"),
        lambda: problem.product(v, "ggn"),
        problem.diagonal,
        problem.gradient,
        problem.facts,
        lambda: problem.gradients(problem.X),
        lambda: problem.at(problem.theta * 2).objective(),
    ):
        with problem.scope():
            work()
    assert_untouched(module, before)


@pytest.mark.parametrize(
    "step",
    [lambda h: nn.functional.dropout(h, 0.5, training=True), lambda h: h @ torch.ones(4, 4), OnceDifferentiable.apply],
)
def test_module_and_random_states_are_untouched_after_an_error(step):
    module = seeded(lambda: Wrapped(step))
    before = snapshot(module)
    with pytest.raises(ModelError):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    assert_untouched(module, before)


def test_problem_works_in_inference_mode_and_without_gradients():
    module, X, y, _ = case("one output")
    expected = torch_problem(module, X, y, weight_decay=0.1)
    v = blocks(expected)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            problem = torch_problem(module, X * 1.0, y, weight_decay=0.1)
            found = problem.numpy(problem.product(problem.native(v), "hessian"))
            rows = problem.numpy(problem.gradients(problem.X))
        close(found, expected.numpy(expected.product(expected.native(v), "hessian")))
        close(rows, expected.numpy(expected.gradients(expected.X)))


def test_problem_can_be_copied_and_pickled_after_work():
    module, X, y, _ = case("convolution")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    v = problem.native(blocks(problem))
    expected = problem.product(v, "hessian")
    for twin in (copy.deepcopy(problem), pickle.loads(pickle.dumps(problem))):
        close(twin.product(v, "hessian"), expected)
        close(twin.fitted_values, problem.fitted_values)


def test_p_space_arrays_are_plain_float64_tensors():
    module, X, y, _ = case("one output")
    problem = torch_problem(module, X, y, weight_decay=0.1)
    v = problem.native(blocks(problem))
    for array in (problem.theta, problem.decay, problem.gradient(), problem.product(v, "ggn"), problem.diagonal()):
        assert array.dtype == torch.float64
        assert not array.requires_grad
    assert problem.padded(7) == 7
    assert problem.compiled(len) is len


def test_part_that_is_fixed_by_no_grad_is_accepted_once_its_parameters_are_frozen():
    module = seeded(lambda: Wrapped(lambda h: h.detach()))
    module.first.requires_grad_(False)
    assert torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1).p == 5


def test_kinked_module_with_units_exactly_on_a_kink_is_accepted():
    module, X, y, _ = case("relu")
    with torch.no_grad():
        module[0].weight[:2], module[0].bias[:] = 0.0, 0.0
    torch_problem(module, torch.where(X > 1, 0.0, X), y, weight_decay=0.1)


def test_compiled_module_is_read_through_to_the_one_it_was_made_of():
    module, X, y, _ = case("one output")

    class OptimizedModule(nn.Module):  # what torch.compile returns, without compiling anything
        def __init__(self, inner):
            super().__init__()
            self._orig_mod = inner

    problem = torch_problem(OptimizedModule(module), X, y, weight_decay=0.1)
    assert "0.weight" in problem.params
    problem.write_to(OptimizedModule(module))


def test_mixing_check_tolerates_rounding_of_a_narrow_model():
    module = seeded(lambda: Wrapped(lambda h: h.half().double()))
    problem = torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    assert probe.narrow_casts(problem.model, problem.theta, problem.X)
