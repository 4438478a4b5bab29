"""What the torch front end finds out about a module, and that it leaves it alone."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.models.torch_cases import (
    OnceDifferentiable,
    Wrapped,
    blocks,
    case,
    close,
    data,
    seeded,
)
from vhat.errors import ModelError
from vhat.models.torch import probe, torch_problem


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
    problem.autodiff.write_to(OptimizedModule(module), problem.theta)


def test_mixing_check_tolerates_rounding_of_a_narrow_model():
    module = seeded(lambda: Wrapped(lambda h: h.half().double()))
    problem = torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    assert probe.narrow_casts(problem.autodiff.model, problem.theta, problem.X)
