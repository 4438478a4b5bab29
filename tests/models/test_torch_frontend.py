"""The torch front end against dense autograd: every derivative, for every kind of module."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from tests.models.torch_cases import (
    CASES,
    WEIGHTS,
    blocks,
    case,
    close,
    full_curvature,
    mlp,
    oracle,
    seeded,
)
from vhat.errors import InputError
from vhat.models.torch import torch_problem
from vhat.models.torch.linearised import rows_in_chunk


@pytest.fixture(params=CASES)
def solved(request):
    module, X, y, loss = case(request.param)
    problem = torch_problem(module, X, y, weight_decay=1e-3, loss=loss, sample_weight=WEIGHTS)
    return problem, oracle(module, X, y, loss, WEIGHTS)


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
    row_bytes = problem.autodiff.row_bytes
    memory = 16 * row_bytes  # two rows a chunk, and too little to keep the tapes
    assert rows_in_chunk(row_bytes, memory) == 2
    small = replace(problem, autodiff=replace(problem.autodiff, chunk_rows=2), memory=memory)
    v, t = blocks(small), np.random.default_rng(1).standard_normal((2, small.n, small.outputs))
    close(small.numpy(small.product(small.native(v), "hessian")), v @ dense.H)
    close(small.jvp(small.native(v)), np.einsum("nip,kp->kni", dense.J, v))
    close(small.numpy(small.vjp(t)), np.einsum("nip,kni->kp", dense.J, t))
    close(small.numpy(small.gradient()), dense.gradient)
    close(small.predict(small.X), dense.f)
    assert not small.linearised.keeps_tapes
    assert problem.linearised.keeps_tapes


@pytest.mark.parametrize(("name", "shortcut"), [("recurrent", True), ("branching", False), ("one output", True)])
def test_backward_passes_are_batched_where_torch_can(name, shortcut):
    module, X, y, _ = case(name)
    problem = torch_problem(module, X, y, weight_decay=0.1)
    assert problem.autodiff.model.batched or not shortcut
    assert problem.autodiff.model.mapped == (name == "one output")


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
    assert problem.autodiff.named_loss == "half_mse"


@pytest.mark.parametrize(
    ("decay", "words"),
    [
        (-1.0, "negative"),
        (float("nan"), "finite"),
        ("much", "not a number"),
        ({"0.weight": 1, "0.bias": 0, "2.weight": 1, "2.bias": 0, "3.bias": 0}, "names '3.bias', which the module"),
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
    moved.autodiff.write_to(other, moved.theta)
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
    problem.autodiff.write_to(module, problem.theta + 1.0)
    assert module[0].weight.dtype == torch.float32
    np.testing.assert_allclose(module[0].weight.detach(), problem.params["0.weight"] + 1.0, rtol=1e-6)
    with pytest.raises(InputError, match=r"2\.weight"):
        problem.autodiff.write_to(seeded(lambda: mlp(3, 4, 2)), problem.theta)


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
