"""Models that return tuples, dicts or objects: which part is the prediction, and what is said where it is not known."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import vhat
from tests.models.torch_cases import data, mlp, seeded
from vhat.errors import InputError, ModelError, StoreError
from vhat.models.jax import jax_problem
from vhat.models.torch import torch_problem

X, Y = data(12, 3), data(12, 1, seed=1)
Pair = namedtuple("Pair", "prediction hidden")


@dataclass
class Answer:
    prediction: torch.Tensor
    hidden: torch.Tensor


class ModelOutput(OrderedDict):
    """As Hugging Face's: a dict whose keys are attributes as well."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Returning(nn.Module):
    """A small network that returns its prediction and its hidden layer in some container."""

    def __init__(self, wrap):
        super().__init__()
        self.first, self.last, self.wrap = nn.Linear(3, 4), nn.Linear(4, 1), wrap

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.wrap(self.last(hidden), hidden)


def as_dict(f, h):
    return {"hidden": h, "prediction": f}


def as_tuple(f, h):
    return h, f


def as_model_output(f, h):
    return ModelOutput(prediction=f, hidden=h)


CASES = {
    "dict": (as_dict, "prediction"),
    "tuple": (as_tuple, 1),
    "from the end": (as_tuple, -1),
    "named tuple by name": (Pair, "prediction"),
    "named tuple by index": (Pair, 0),
    "object": (Answer, "prediction"),
    "model output": (as_model_output, "prediction"),
    "function": (as_dict, lambda out: out["prediction"]),
    "squeezed": (lambda f, h: f[:, :, None], lambda out: out.reshape(len(out), -1)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_chosen_output_gives_the_numbers_of_the_plain_module(name):
    wrap, output = CASES[name]
    plain = torch_problem(seeded(lambda: Returning(lambda f, h: f)), X, Y, weight_decay=0.1)
    chosen = torch_problem(seeded(lambda: Returning(wrap)), X, Y, weight_decay=0.1, output=output)
    np.testing.assert_array_equal(chosen.fitted_values, plain.fitted_values)
    np.testing.assert_array_equal(chosen.gradient(), plain.gradient())
    np.testing.assert_allclose(chosen.gradients(chosen.X), plain.gradients(plain.X), rtol=1e-12, atol=1e-14)
    assert chosen.outer_leaves == plain.outer_leaves


@pytest.mark.parametrize(
    ("wrap", "output", "words"),
    [
        (as_dict, None, r"a dict with the keys 'hidden' of shape \(6, 4\), 'prediction' of shape \(6, 1\)\. .*output="),
        (as_tuple, None, r"a tuple with the parts 0 of shape \(6, 4\), 1 of shape \(6, 1\)\. .*output=0"),
        (Answer, None, r"an Answer with the fields 'prediction' .*output='prediction'"),
        (Pair, None, r"a Pair with the fields 'prediction' .*output='prediction'"),
        (lambda f, h: "text", None, "a str.*output=lambda"),
        (as_dict, "logits", r"output='logits' is not in what the module returned.*output='hidden'"),
        (as_tuple, 2, "output=2 is not in what the module returned"),
        (as_tuple, "prediction", "output='prediction' is not in what"),
        (lambda f, h: f, 0, r"returns one array of shape \(6, 1\). Leave output out.*lambda out: out\[:, 0\]"),
        (lambda f, h: {"a": (f, h)}, "a", r"output='a' is a tuple .*not an array"),
        (as_dict, lambda out: out, "the function output= returned a dict"),
        (as_dict, lambda out: out["logits"], "choosing the prediction by output= failed: KeyError"),
        (lambda f, h: f[:, :, None], None, r"shape \(6, 1, 1\).*output=lambda out: out.reshape\(out.shape\[0\], -1\)"),
        (lambda f, h: {"a": f[:, :, None]}, "a", r"lambda out: out\['a'\].reshape"),
        (lambda f, h: Answer(f[:, :, None], h), "prediction", r"lambda out: out.prediction.reshape"),
        (as_dict, lambda out: out["prediction"][:, :, None], r"Let output= return shape \(6, outputs\)"),
        (as_dict, lambda out: out["prediction"].detach().numpy(), "keep it in torch"),
    ],
)
def test_an_output_that_is_not_known_is_answered_with_the_call_that_works(wrap, output, words):
    with pytest.raises(ModelError, match=words):
        torch_problem(seeded(lambda: Returning(wrap)), X[:6], Y[:6], weight_decay=0.1, output=output)


@pytest.mark.parametrize("output", [1.5, True, ("a", "b"), ["a"]])
def test_an_output_of_no_known_kind_is_refused(output):
    with pytest.raises(InputError, match="Give the key or attribute"):
        torch_problem(seeded(lambda: Returning(as_dict)), X, Y, weight_decay=0.1, output=output)


def test_responses_of_one_axis_are_answered_with_the_output_that_squeezes():
    """As Hugging Face does: logits are (n, 1), labels (n,), and the loss squeezes."""
    module = seeded(lambda: Returning(as_dict))
    with pytest.raises(InputError, match=r"broadcast to n x n.*output=lambda out: out\['prediction'\]\[:, 0\]"):
        torch_problem(module, X, Y[:, 0], weight_decay=0.1, output="prediction")
    problem = torch_problem(module, X, Y[:, 0], weight_decay=0.1, output=lambda out: out["prediction"][:, 0])
    assert problem.squeeze


# -- JAX ---------------------------------------------------------------------------------------------
PARAMS = {"a": np.array([0.5, -1.0, 2.0]), "b": 0.3}


def jax_dict(params, x):
    return {"hidden": x, "mean": jnp.tanh(x @ params["a"]) + params["b"]}


def jax_pair(params, x):
    return Answer(jax_dict(params, x)["mean"], x)


@pytest.mark.parametrize(
    ("predict", "output"),
    [(jax_dict, "mean"), (jax_pair, "prediction"), (jax_dict, lambda out: out["mean"])],
)
def test_a_jax_function_may_return_a_container(predict, output):
    x, y = X.numpy(), Y[:, 0].numpy()
    plain = jax_problem(lambda p, x: jax_dict(p, x)["mean"], PARAMS, x, y, weight_decay=0.1)
    chosen = jax_problem(predict, PARAMS, x, y, weight_decay=0.1, output=output)
    np.testing.assert_array_equal(chosen.fitted_values, plain.fitted_values)


@pytest.mark.parametrize(
    ("predict", "output", "words"),
    [
        (jax_dict, None, r"predict returned a dict with the keys 'hidden'.*output='hidden'"),
        (jax_pair, None, r"predict returned an Answer with the fields 'prediction'.*output='prediction'"),
        (jax_dict, "b", "output='b' is not in what predict returned"),
        (lambda p, x: jax_dict(p, x)["mean"][:, None, None], None, "output=lambda out: out.reshape"),
    ],
)
def test_an_unknown_output_of_a_jax_function_is_answered_with_the_call_that_works(predict, output, words):
    with pytest.raises(ModelError, match=words):
        jax_problem(predict, PARAMS, X.numpy(), Y[:, 0].numpy(), weight_decay=0.1, output=output)


# -- saved -------------------------------------------------------------------------------------------
def test_a_key_is_saved_with_the_model_and_a_function_is_asked_for(tmp_path):
    module = seeded(lambda: Returning(as_dict))
    for name, output in (("key", "prediction"), ("function", lambda out: out["prediction"])):
        fitted = vhat.from_torch(module, X, Y, weight_decay=0.1, output=output)
        fitted.save(tmp_path / name)
    loaded = vhat.load(tmp_path / "key", seeded(lambda: Returning(as_dict)))
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    with pytest.raises(StoreError, match=r"saved with output='prediction'. Leave output= out"):
        vhat.load(tmp_path / "key", module, output="hidden")
    with pytest.raises(StoreError, match=r"load\(\.\.\., output=function\)"):
        vhat.load(tmp_path / "function", module)
    again = vhat.load(tmp_path / "function", module, output=lambda out: out["prediction"])
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


def test_a_jax_key_is_saved_with_the_model(tmp_path):
    x, y = X.numpy(), Y[:, 0].numpy()
    fitted = vhat.from_jax(jax_dict, PARAMS, x, y, weight_decay=0.1, output="mean")
    fitted.save(tmp_path)
    np.testing.assert_array_equal(vhat.load(tmp_path, jax_dict).predict(x), fitted.predict(x))


# -- inputs by name ----------------------------------------------------------------------------------
class Reader(nn.Module):
    """As a Hugging Face regression model: token ids and a mask by name, labels optional, an object returned."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), mlp(4, 3, 1)
        self.embed.requires_grad_(False)

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        mask = attention_mask[:, :, None].to(self.embed.weight.dtype)
        logits = self.head((self.embed(input_ids) * mask).sum(1) / mask.sum(1))
        return ModelOutput(logits=logits, loss=None)


def batch(n=10, seed=4):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 7, (n, 5), generator=draw)
    mask = (torch.arange(5) < torch.randint(1, 6, (n, 1), generator=draw)).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randn(n, generator=draw)}


class Batches(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows["labels"])

    def __getitem__(self, index):
        return {key: value[index] for key, value in self.rows.items()}


def test_a_hugging_face_style_model_takes_token_ids_by_name_and_labels_as_its_responses():
    rows = batch()
    module = seeded(Reader)
    loader = torch.utils.data.DataLoader(Batches(rows), batch_size=4, shuffle=True)
    options = {"weight_decay": 0.1, "target_key": "labels", "output": lambda out: out.logits[:, 0]}
    problem = torch_problem(module, loader, **options)
    assert problem.autodiff.model.convention == "keywords"
    assert problem.p == sum(part.numel() for part in module.head.parameters())
    np.testing.assert_array_equal(problem.targets[:, 0], rows["labels"].double())
    expected = module.double()(rows["input_ids"], rows["attention_mask"])["logits"].detach()
    np.testing.assert_allclose(problem.fitted_values, expected, rtol=1e-12)
    whole = torch_problem(seeded(Reader), rows, **options)
    np.testing.assert_array_equal(whole.fitted_values, problem.fitted_values)
    np.testing.assert_array_equal(problem.predict(problem.inputs(rows)), problem.fitted_values)


def test_keys_that_forward_does_not_take_are_named():
    rows = batch() | {"token_type_ids": torch.zeros(10, 5, dtype=torch.long)}
    with pytest.raises(ModelError, match=r"forward takes \['input_ids', .*Leave out \['token_type_ids'\]"):
        torch_problem(seeded(Reader), rows, weight_decay=0.1, target_key="labels", output="logits")


def test_keys_that_are_parameters_of_forward_are_never_given_as_one_dict():
    """An error inside such a module is its own, and no other way of calling it is tried."""

    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, x):
            if not isinstance(x, dict):
                raise ValueError("not this one")
            return self.head(x["x"])

    with pytest.raises(ModelError, match=r"calling module\(\*\*inputs\).*not this one.*called as forward\(\*\*X\)"):
        torch_problem(seeded(Failing), {"x": X}, Y, weight_decay=0.1)


def test_a_wrapper_with_keyword_arguments_passes_on_one_dict():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 1)

        def forward(self, batch):
            return self.head(batch["x"])

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs)

    assert torch_problem(seeded(Wrapper), {"x": X}, Y, weight_decay=0.1).autodiff.model.convention == "together"
