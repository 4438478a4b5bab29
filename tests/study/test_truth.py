import numpy as np
import pytest

from vhat.errors import InputError
from vhat.study import MaternTruth, sample

DRAWS = 4000


def kernel(r, length_scale, amplitude):
    s = np.sqrt(3.0) * r / length_scale
    return amplitude**2 * (1 + s) * np.exp(-s)


@pytest.mark.parametrize(("dimension", "length_scale", "amplitude"), [(1, 1.0, 1.0), (1, 0.3, 2.0), (10, 1.0, 0.1)])
def test_covariance_over_seeds_is_the_matern_kernel(dimension, length_scale, amplitude):
    direction = np.full(dimension, 1 / np.sqrt(dimension))
    distances = length_scale * np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
    x = 0.7 + distances[:, None] * direction
    draws = np.array([MaternTruth(dimension, seed, length_scale, amplitude, features=32)(x) for seed in range(DRAWS)])
    products = draws[:, [0]] * draws
    error = products.std(axis=0) / np.sqrt(DRAWS)
    deviation = (products.mean(axis=0) - kernel(distances, length_scale, amplitude)) / error
    assert np.abs(deviation).max() < 4.0
    assert np.abs(draws.mean(axis=0) / (draws.std(axis=0) / np.sqrt(DRAWS))).max() < 4.0


def test_independent_t_coordinates_would_not_give_the_kernel():
    # The classic slip is one chi-square a coordinate: its kernel is a product over coordinates.
    d, r = 10, 2.0
    slip = kernel(r / np.sqrt(d), 1.0, 1.0) ** d
    error = 1.5 / np.sqrt(DRAWS)
    assert abs(slip - kernel(r, 1.0, 1.0)) > 4 * error


def test_one_truth_with_all_its_features_has_the_kernel_along_a_line():
    # 4096 features: given the frequencies the covariance is already close to the kernel.
    frequencies, _, _ = MaternTruth(10, seed=3)._waves
    step = np.full(10, 1.0 / np.sqrt(10))
    found = np.array([np.cos(r * step @ frequencies).mean() for r in (0.2, 1.0, 2.0)])
    expected = kernel(np.array([0.2, 1.0, 2.0]), 1.0, 1.0)
    assert np.abs(found - expected).max() < 4 / np.sqrt(4096)


def test_a_truth_is_fixed_by_its_seed_and_evaluates_row_by_row():
    x = np.random.default_rng(0).standard_normal((2500, 2))
    values = MaternTruth(2, seed=7)(x)
    np.testing.assert_array_equal(values, MaternTruth(2, seed=7)(x))
    np.testing.assert_allclose(values[1300:1305], MaternTruth(2, seed=7)(x[1300:1305]), rtol=0, atol=1e-12)
    assert not np.allclose(values, MaternTruth(2, seed=8)(x))


def test_amplitude_and_length_scale_only_rescale_the_function():
    x = np.linspace(-2, 2, 9)[:, None]
    plain = MaternTruth(1, seed=1)(x)
    np.testing.assert_allclose(MaternTruth(1, seed=1, length_scale=2.0, amplitude=3.0)(2 * x), 3 * plain, rtol=1e-9)


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_gap_is_empty_and_nothing_else_is_missing(dimension):
    truth = MaternTruth(dimension, seed=0)
    cut, whole = sample(truth, 500, seed=4, gap=0.5), sample(truth, 500, seed=4, gap=None)
    outside = np.abs(whole.X).max(axis=1) > 0.5
    assert len(whole.X) == 500
    assert 0 < outside.sum() < 500
    np.testing.assert_array_equal(cut.X, whole.X[outside])
    np.testing.assert_allclose(cut.y, whole.y[outside], rtol=0, atol=1e-12)
    assert (np.abs(cut.X) > 0.5).any(axis=1).all()


def test_a_sample_is_truth_plus_noise_fixed_by_its_seed():
    truth = MaternTruth(1, seed=0)
    first, again, other = (sample(truth, 4000, seed=seed, noise=0.3, gap=None) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.y, again.y)
    assert not np.array_equal(first.X, other.X)
    np.testing.assert_array_equal(first.truth, truth(first.X))
    noise = (first.y - first.truth) / 0.3
    assert noise.std() == pytest.approx(1.0, rel=4 / np.sqrt(2 * 4000))
    assert abs(np.corrcoef(noise, first.X[:, 0])[0, 1]) < 4 / np.sqrt(4000)
    np.testing.assert_array_equal(sample(truth, 50, seed=1, noise=0.0).y, sample(truth, 50, seed=1).truth)


def test_truth_and_data_of_one_seed_are_independent_draws():
    frequencies, _, _ = MaternTruth(1, seed=0)._waves
    X = sample(MaternTruth(1, seed=0), 4096, seed=0, gap=None).X[:, 0]
    assert abs(np.corrcoef(np.sign(frequencies[0]), np.sign(X))[0, 1]) < 4 / np.sqrt(4096)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MaternTruth(0, 0), "dimension=0"),
        (lambda: MaternTruth(1, -1), "seed=-1"),
        (lambda: MaternTruth(1, 0, features=0), "features=0"),
        (lambda: MaternTruth(1, 0, length_scale=0.0), "length_scale=0.0"),
        (lambda: MaternTruth(1, 0, amplitude=float("nan")), "amplitude=nan"),
        (lambda: MaternTruth(1, 0)(np.zeros(3)), r"Give x\[:, None\]"),
        (lambda: MaternTruth(1, 0)(np.array([[np.nan]])), "row 0"),
        (lambda: sample(MaternTruth(1, 0), 0, seed=0), "n=0"),
        (lambda: sample(MaternTruth(1, 0), 5, seed=-3), "seed=-3"),
        (lambda: sample(MaternTruth(1, 0), 5, seed=0, noise=-1.0), "noise=-1.0"),
        (lambda: sample(MaternTruth(1, 0), 5, seed=0, gap=0.0), "gap=0.0"),
        (lambda: sample(MaternTruth(1, 0), 5, seed=0, gap=50.0), "left none of n=5"),
    ],
)
def test_impossible_options_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
