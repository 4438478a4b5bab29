"""``parameters=``: some parameters count as trained, all else is held fixed."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import vhat

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(40)
POINTS = RNG.standard_normal((5, 3))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))[:, 0]


def net():
    torch.manual_seed(0)
    return Net().double().eval()


def frozen(module):
    twin = copy.deepcopy(module)
    twin.body.requires_grad_(False)
    return twin


def params():
    rng = np.random.default_rng(1)
    return {
        "body": {"kernel": rng.standard_normal((3, 4)), "bias": rng.standard_normal(4)},
        "head": {"kernel": rng.standard_normal(4), "bias": 0.3},
    }


def predict(q, x):
    return jnp.tanh(x @ q["body"]["kernel"] + q["body"]["bias"]) @ q["head"]["kernel"] + q["head"]["bias"]


def same(a, b):
    for name in ("center", "half_width", "weighted_norm"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    "chosen", [["head.weight", "head.bias"], ["head"], "head", ("head.bias", "head.weight"), lambda n: "head" in n]
)
def test_named_parameters_of_a_module_give_what_freezing_the_others_gives(chosen):
    module = net()
    asked = vhat.from_torch(module, X, Y, weight_decay=0.1, parameters=chosen).polish()
    by_hand = vhat.from_torch(frozen(module), X, Y, weight_decay=0.1).polish()
    assert asked.problem.p == 5
    same(asked.interval(POINTS), by_hand.interval(POINTS))
    assert set(asked.params) == {name for name, _ in module.named_parameters()}
    assert all(value.requires_grad for value in module.parameters())


def test_a_parameter_that_is_named_is_trained_although_it_requires_no_gradient():
    module = net().requires_grad_(False)
    assert vhat.from_torch(module, X, Y, weight_decay=0.1, parameters=["head"]).problem.p == 5


@pytest.mark.parametrize(
    "chosen", [["head/kernel", "head/bias"], ["head"], "head", lambda name: name.startswith("head/")]
)
def test_named_leaves_of_a_pytree_give_what_a_function_of_these_alone_gives(chosen):
    whole = params()
    asked = vhat.from_jax(predict, whole, X, Y, weight_decay=0.1, parameters=chosen).polish()
    by_hand = vhat.from_jax(
        lambda head, x: predict({"body": whole["body"], "head": head}, x), whole["head"], X, Y, weight_decay=0.1
    ).polish()
    assert asked.problem.p == 5
    a, b = asked.interval(POINTS), by_hand.interval(POINTS)
    np.testing.assert_allclose(a.center, b.center, rtol=1e-12)
    np.testing.assert_allclose(a.half_width, b.half_width, rtol=1e-10)
    np.testing.assert_array_equal(asked.params["body"]["kernel"], whole["body"]["kernel"])


def test_linear_in_the_selected_parameters_is_answered_exactly():
    for fitted in (
        vhat.from_torch(net(), X, Y, weight_decay=0.1, parameters=["head"]),
        vhat.from_jax(predict, params(), X, Y, weight_decay=0.1, parameters=["head"]),
    ):
        assert fitted.polish().interval(POINTS).bound == "exact"


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["haed"], r"no parameter 'haed'.*Did you mean 'head'\? It has body.0.weight, body.0.bias, head.weight"),
        (["head.wieght"], "Did you mean 'head.weight'"),
        (["hea"], "no parameter 'hea'"),
        ([], "selects nothing"),
        (lambda name: False, "selects nothing"),
        (lambda name: name[99] == "a", r"parameters\('body.0.weight'\) failed: IndexError"),
        ([3], "parameters has 3, a int"),
        (7, "parameters has 7, a int"),
    ],
)
def test_a_selection_that_names_nothing_says_what_there_is(chosen, words):
    with pytest.raises(vhat.InputError, match=words):
        vhat.from_torch(net(), X, Y, weight_decay=0.1, parameters=chosen)


def test_a_path_that_the_pytree_lacks_is_answered_with_those_it_has():
    with pytest.raises(vhat.InputError, match=r"Did you mean 'head/kernel'.*body/bias, body/kernel, head/bias"):
        vhat.from_jax(predict, params(), X, Y, weight_decay=0.1, parameters=["head/kernal"])


def test_parameters_that_a_decay_mapping_does_not_name_have_none():
    module = net()
    problem = vhat.from_torch(module, X, Y, weight_decay={"body": 0.3, "head.weight": 0.1}).problem
    np.testing.assert_array_equal(problem.numpy(problem.decay), [0.3] * 16 + [0.1] * 4 + [0.0])
    problem = vhat.from_torch(module, X, Y, weight_decay={"head": 0.2, "head.bias": 0.0, "body": 1.0}).problem
    np.testing.assert_array_equal(problem.numpy(problem.decay), [1.0] * 16 + [0.2] * 4 + [0.0])
    selected = vhat.from_torch(module, X, Y, weight_decay={"head.weight": 0.1}, parameters=["head"])
    np.testing.assert_array_equal(selected.problem.numpy(selected.problem.decay), [0.1] * 4 + [0.0])
    assert "lam=0 to 0.1, 1 of 5 without" in repr(selected)


@pytest.mark.parametrize(
    "decay",
    [
        {"body": {"kernel": 0.3}, "head": {"kernel": 0.1}},
        {"body/kernel": 0.3, "head/kernel": 0.1},
        {"body/kernel": np.full((3, 4), 0.3), "body/bias": 0.0, "head/kernel": 0.1},
    ],
)
def test_leaves_that_a_decay_mapping_does_not_name_have_none(decay):
    problem = vhat.from_jax(predict, params(), X, Y, weight_decay=decay).problem
    np.testing.assert_array_equal(problem.numpy(problem.decay), [0.0] * 4 + [0.3] * 12 + [0.0] + [0.1] * 4)


@pytest.mark.parametrize(
    ("decay", "words"),
    [
        ({"head.wheight": 0.1}, "weight_decay names 'head.wheight'.*Did you mean 'head.weight'"),
        ({"body.0.weight": 0.1}, "weight_decay names no parameter that is trained: head.weight, head.bias"),
    ],
)
def test_a_decay_mapping_must_name_what_there_is(decay, words):
    with pytest.raises(vhat.InputError, match=words):
        vhat.from_torch(net(), X, Y, weight_decay=decay, parameters=["head"])
    with pytest.raises(vhat.InputError, match="Did you mean 'head/kernel'"):
        vhat.from_jax(predict, params(), X, Y, weight_decay={"head/kernl": 0.1})


def test_a_selection_is_saved_and_loaded(tmp_path):
    module = net()
    torch_fitted = vhat.from_torch(module, X, Y, weight_decay={"head.weight": 0.1}, parameters=["head"]).polish()
    torch_fitted.save(tmp_path / "torch")
    same(vhat.load(tmp_path / "torch", model=net()).interval(POINTS), torch_fitted.interval(POINTS))
    jax_fitted = vhat.from_jax(predict, params(), X, Y, weight_decay=0.1, parameters=["head"]).polish()
    jax_fitted.save(tmp_path / "jax")
    again = vhat.load(tmp_path / "jax", model=predict)
    same(again.interval(POINTS), jax_fitted.interval(POINTS))
    assert again.problem.p == 5


def test_write_to_and_functionals_know_all_parameters():
    module = net()
    fitted = vhat.from_torch(module, X, Y, weight_decay=0.1, parameters=["head"]).polish()
    before = module.body[0].weight.clone()
    fitted.write_to(module)
    np.testing.assert_array_equal(module.body[0].weight.detach(), before.detach())
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.as_tensor(POINTS)), fitted.predict(POINTS), rtol=1e-12)
    total = fitted.functional(lambda q: q["head.weight"].sum() * q["body.0.bias"][0])
    assert total.bound == "exact"
