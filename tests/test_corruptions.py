"""The corruptions, checked against plain SciPy and Pillow renderings of their definitions and recorded outputs."""

from __future__ import annotations

import colorsys
import io
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage, stats

from tidefast.corruptions import (
    CCC,
    EXTRA,
    IMAGENET_C,
    SCALES,
    corrupt,
    defocus,
    elastic,
    fog,
    frost_texture,
    gaussian,
    glass,
    motion,
    names,
    noise,
    recipes,
    snow,
    spatter,
    zoom,
)
from tidefast.corruptions.images import truncate
from tidefast.corruptions.pixelate import resize
from tidefast.corruptions.severity import constants
from tidefast.errors import UnknownNameError

SIDES = {"imagenet": 224, "cifar": 32}
GRID = np.arange(1, 21) / 4  # CCC's severities
ASSETS = Path(__file__).parent / "assets" / "corruptions"


def photo(side: int, seed: int = 0, width: int | None = None) -> np.ndarray:
    """A colourful picture with a natural spectrum and a few hard edges."""
    random = np.random.default_rng(seed)
    shape = (side, width or side)
    frequency = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.fftfreq(shape[1])) + 1.0 / side
    white = np.fft.fft2(random.normal(size=(3, *shape)))
    clouds = np.moveaxis(np.fft.ifft2(white / frequency**1.5).real, 0, -1)
    picture = 120 + 45 * clouds / clouds.std()
    picture[shape[0] // 3 : shape[0] // 2, shape[1] // 4 : shape[1] // 2] += (90, -40, 10)
    return np.clip(picture, 0, 255).astype(np.uint8)


def one(image: np.ndarray, name: str, severity: float, scale: str = "imagenet", seed: int = 0) -> np.ndarray:
    return corrupt(image[None], name, severity, seed=seed, scale=scale)[0]


def assert_within_one_level(actual: np.ndarray, expected: np.ndarray, share: float = 0.01) -> None:
    """Equal but for single levels where an exact result was an integer (see the truncation in `truncate`)."""
    difference = np.abs(actual.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() <= share


# --- the call -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", names())
def test_an_image_gets_the_same_bits_in_any_batch_and_order(name, scale):
    images = np.stack([photo(32, seed) for seed in range(5)])
    whole = corrupt(images, name, 3.5, seed=9, scale=scale)
    order = [4, 1, 3]
    assert np.array_equal(corrupt(images[order], name, 3.5, seed=9, scale=scale, indices=order), whole[order])


@settings(max_examples=15, deadline=None)
@given(cut=st.integers(0, 6), first=st.integers(0, 2**40), severity=st.floats(0, 5), name=st.sampled_from(names()))
def test_splitting_a_stream_anywhere_changes_nothing(cut, first, severity, name):
    images = np.stack([photo(16, seed) for seed in range(6)])
    places = np.arange(first, first + 6)
    whole = corrupt(images, name, severity, seed=3, indices=places)
    parts = [
        corrupt(part, name, severity, seed=3, indices=at)
        for part, at in ((images[:cut], places[:cut]), (images[cut:], places[cut:]))
    ]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", sorted(recipes.RANDOM))
def test_randomness_depends_on_seed_and_index(name):
    images = np.repeat(photo(64)[None], 2, axis=0)
    first = corrupt(images, name, 4, seed=1)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], corrupt(images, name, 4, seed=2)[0])


def test_two_noises_of_one_image_are_independent():
    image = np.full((1, 128, 128, 3), 128, dtype=np.uint8)
    pair = [corrupt(image, name, 2, seed=1).ravel() for name in ("gaussian_noise", "speckle_noise")]
    assert abs(np.corrcoef(pair)[0, 1]) < 0.02


@pytest.mark.parametrize("name", sorted(recipes.DETERMINISTIC))
def test_deterministic_corruptions_ignore_the_seed(name):
    image = photo(32)
    assert np.array_equal(one(image, name, 3, seed=1), one(image, name, 3, seed=2))


def test_the_global_generator_is_neither_used_nor_moved():
    image = photo(32)
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    results = [one(image, name, 3) for name in names()]
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(1)
    assert all(np.array_equal(result, one(image, name, 3)) for name, result in zip(names(), results, strict=True))


@pytest.mark.parametrize("name", names())
def test_severity_zero_returns_an_unchanged_copy(name):
    images = photo(32)[None]
    result = corrupt(images, name, 0, seed=0)
    assert np.array_equal(result, images)
    assert not np.shares_memory(result, images)


@pytest.mark.parametrize("name", names())
def test_any_shape_comes_back_as_bytes_and_the_input_is_untouched(name):
    images = np.stack([photo(24, seed, width=40) for seed in range(3)])
    view, before = images[::2, :, ::-1], images.copy()
    result = corrupt(view, name, 2.5, seed=0)
    assert result.dtype == np.uint8
    assert result.shape == (2, 24, 40, 3)
    assert np.array_equal(images, before)
    assert np.array_equal(result, corrupt(np.ascontiguousarray(view), name, 2.5, seed=0))
    assert corrupt(images[:0], name, 2.5, seed=0).shape == (0, 24, 40, 3)


@pytest.mark.parametrize("level", [0, 255])
@pytest.mark.parametrize("name", names())
def test_black_and_white_images_and_minute_severities_do_no_harm(name, level):
    image = np.full((16, 16, 3), level, dtype=np.uint8)
    for severity in (1e-300, 1e-6, 0.5, 5):  # warnings are errors here, so a division by zero fails
        assert one(image, name, severity).shape == image.shape


@pytest.mark.parametrize("severity", [np.float32(2.5), np.float64(2.5), np.array([2.5])[0]])
def test_severity_may_come_out_of_an_array(severity):
    image = photo(32)
    assert np.array_equal(one(image, "contrast", severity), one(image, "contrast", 2.5))


def test_names_list_the_benchmarks():
    assert len(IMAGENET_C) == 15
    assert names() == IMAGENET_C + EXTRA
    assert names("ccc") == CCC
    assert {"elastic", "jpeg"} <= set(CCC)
    assert len(CCC) == 14
    assert "brightness" not in CCC


@pytest.mark.parametrize(
    ("alias", "name"), [("elastic", "elastic_transform"), ("jpeg", "jpeg_compression"), ("Zoom Blur", "zoom_blur")]
)
def test_aliases_mean_the_same_corruption(alias, name):
    image = photo(32)
    assert np.array_equal(one(image, alias, 3), one(image, name, 3))


def test_importing_the_package_loads_no_image_library():
    code = "import sys, tidefast.corruptions; print(*{'torchvision', 'cv2', 'numba'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


# --- errors -------------------------------------------------------------------------------------------------------

GOOD = np.zeros((1, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "gausian_noise"}, UnknownNameError, "gausian_noise.*did you mean 'gaussian_noise'"),
        ({"name": "rain"}, UnknownNameError, "unknown corruption 'rain'.*known: gaussian_noise, shot_noise"),
        ({"name": 3}, TypeError, "string such as 'fog', got 3"),
        ({"severity": 5.1}, ValueError, r"severity must lie in \[0, 5\], got 5.1"),
        ({"severity": -1}, ValueError, "got -1"),
        ({"severity": float("nan")}, ValueError, "got nan"),
        ({"severity": "high"}, TypeError, "severity must be a number, got 'high'"),
        ({"scale": "mnist"}, ValueError, "scale must be one of 'imagenet', 'cifar', got 'mnist'"),
        ({"images": GOOD.astype(np.float32)}, TypeError, "got dtype float32; scale to 0..255"),
        ({"images": GOOD.tolist()}, TypeError, "got list; convert with numpy.asarray"),
        ({"images": GOOD[0]}, ValueError, r"got shape \(32, 32, 3\); add the batch axis"),
        ({"images": GOOD.transpose(0, 3, 1, 2)}, ValueError, r"got shape \(1, 3, 32, 32\); move the channels last"),
        ({"images": GOOD[..., :1]}, ValueError, r"got shape \(1, 32, 32, 1\).*RGB"),
        ({"images": GOOD[:, :4]}, ValueError, "at least 8 pixels"),
        ({"indices": [0, 1]}, ValueError, "got 2 indices for 1 images"),
        ({"indices": [-1]}, ValueError, "indices must be .*got -1"),
        ({"indices": [0.5]}, TypeError, "got 0.5"),
        ({"seed": -1}, ValueError, "seed must be .*got -1"),
        ({"seed": None}, TypeError, "got None"),
    ],
)
def test_bad_input_says_what_was_given_and_what_to_do(arguments, error, message):
    call = {"images": GOOD, "name": "fog", "severity": 1, "seed": 0, "scale": "imagenet"} | arguments
    with pytest.raises(error, match=message):
        corrupt(call.pop("images"), call.pop("name"), call.pop("severity"), **call)


# --- severities ---------------------------------------------------------------------------------------------------


def test_ccc_derives_these_whole_numbers_from_its_severities():
    def column(name: str, i: int) -> list[int]:
        return [int(constants(name, s)[i]) for s in GRID]

    def taps(name: str, i: int) -> list[int]:
        return [motion.streak(constants(name, s)[i], 1.0, 0.0)[0].size for s in GRID]

    zooms = [zoom.factors(*constants("zoom_blur", s)) for s in GRID]
    assert column("glass_blur", 1) == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert column("glass_blur", 2) == [0, 1, 2, 2, 2, 2, 1, 1, 2, 2, 2, 3, 3, 2, 2, 2, 2, 2, 2, 2]
    assert column("jpeg_compression", 0) == [70, 55, 40, 25, 23, 22, 20, 18, 17, 16, 16, 15, 14, 12, 11, 10, 9, 8, 8, 7]
    assert taps("motion_blur", 0) == [7, 11, 17, 21, 25, 27, 29, 31, *[31] * 8, 35, 37, 39, 41]
    assert taps("snow", 4) == [21, 21, 21, 21, 23, 23, *[25] * 14]
    assert [z.size for z in zooms] == [3, 6, 9, 12, 13, 14, 15, 16, 14, 13, 12, 11, 12, 12, 13, 13, 13, 12, 11, 11]
    assert [int(224 * constants("pixelate", s)[0]) for s in GRID] == [
        201, 179, 156, 134, 128, 123, 117, 112, 106, 100, 95, 89, 84, 78, 72, 67, 64, 61, 58, 56,
    ]  # fmt: skip
    last = [1.02, 1.05, 1.08, 1.11, 1.12, 1.13, 1.14, 1.15, 1.1625, 1.18, 1.1925, 1.20, 1.22, 1.22, 1.24, 1.24, 1.27]
    np.testing.assert_allclose([z[-1] for z in zooms], [*last, 1.275, 1.275, 1.30], atol=1e-12)
    photons = [240, 120, 80, 60, 44.444, 35.294, 29.268, 25, 19.672, 16.216, 13.793, 12, 8.889, 7.059, 5.854, 5, 4.286]
    np.testing.assert_allclose([constants("shot_noise", s)[0] for s in GRID], [*photons, 3.75, 3.333, 3], atol=1e-3)


def test_cifar_zoom_lists_have_the_published_lengths():
    assert [zoom.factors(*constants("zoom_blur", s, "cifar")).size for s in range(1, 6)] == [7, 12, 16, 21, 26]


# Of the corruptions whose statistics below would not notice a slip in every constant.
PUBLISHED_CONSTANTS = {
    ("motion_blur", "imagenet"): [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
    ("motion_blur", "cifar"): [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    ("glass_blur", "imagenet"): [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)],
    ("glass_blur", "cifar"): [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    ("fog", "imagenet"): [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
    ("fog", "cifar"): [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    ("elastic_transform", "imagenet"): [
        *(tuple(244 * share for share in shares) for shares in ((2, 0.7, 0.1), (2, 0.08, 0.2))),
        *(tuple(244 * share for share in (strength, 0.01, 0.02)) for strength in (0.05, 0.07, 0.12)),
    ],
    ("elastic_transform", "cifar"): [
        *((0, 0, 32 * 0.08), (32 * 0.05, 32 * 0.2, 32 * 0.07), (32 * 0.08, 32 * 0.06, 32 * 0.06)),
        *((32 * 0.1, 32 * 0.04, 32 * 0.05), (32 * 0.1, 32 * 0.03, 32 * 0.03)),
    ],
}


@pytest.mark.parametrize(("name", "scale"), sorted(PUBLISHED_CONSTANTS))
def test_whole_severities_have_the_published_constants(name, scale):
    for severity, expected in enumerate(PUBLISHED_CONSTANTS[name, scale], start=1):
        assert constants(name, severity, scale) == pytest.approx(expected)


# Published constants are not ordered by damage everywhere: elastic 2 exceeds 3, saturate turns from gray to vivid,
# spatter from water to mud; glass, zoom, snow and frost trade one constant for another between neighbours.
UNORDERED = ("elastic_transform", "saturate", "spatter")
ENDS_ORDERED = ("glass_blur", "zoom_blur", "snow", "frost")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in names() if name not in UNORDERED])
def test_more_severity_means_more_damage(name, scale):
    severities = (0.5, 1, 5) if name in ENDS_ORDERED else (0.5, 1, 2, 3, 4, 5)
    image = photo(SIDES[scale])
    batch = np.repeat(image[None], 8 if scale == "cifar" else 3, axis=0)
    damage = [np.abs(corrupt(batch, name, s, seed=4, scale=scale).astype(int) - image).mean() for s in severities]
    assert damage == sorted(damage)
    assert damage[0] < damage[1] < damage[-1]


# What counts whole pixels, sweeps or taps cannot be smooth in severity.
STEPPED = (
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow", "elastic_transform", "pixelate"),
    "jpeg_compression",
)
SMOOTH = [name for name in names() if name not in STEPPED]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", SMOOTH)
def test_a_little_more_severity_changes_little(name, scale):
    # The same draws serve all severities, also across the knots.
    image = photo(SIDES[scale])
    for severity in (0.5, 0.999, 2.999, 3.25, 4.4):
        near = one(image, name, severity, scale).astype(int) - one(image, name, severity + 0.002, scale)
        assert np.abs(near).mean() < 1.0


# --- noise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("photons", [3, 5, 12, 25, 60, 44.444, 500, 240])
def test_shot_noise_has_the_poisson_distribution_after_truncation(photons):
    counts = np.arange(3 * int(photons) + 40)
    levels = truncate(counts / photons)
    for level in (0, 1, 90, 128, 255):
        mass = np.bincount(levels, stats.poisson.pmf(counts, level / 255 * photons), minlength=256)
        np.testing.assert_allclose(noise.distribution("shot_noise", photons)[level], mass.cumsum(), atol=1e-9)


@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
def test_gaussian_and_speckle_noise_have_the_normal_distribution_after_truncation(name):
    for level in (1, 60, 200):
        deviation = 0.3 * (255 if name == "gaussian_noise" else level)
        below = stats.norm.cdf(np.arange(1, 256), loc=level, scale=deviation)
        np.testing.assert_allclose(noise.distribution(name, 0.3)[level, :-1], below, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"])
def test_noise_is_drawn_from_its_table(name):
    levels = np.array([0, 3, 77, 128, 250], dtype=np.uint8)
    image = np.repeat(np.tile(levels, 40)[None, :, None], 200, axis=0).repeat(3, axis=2)
    result = one(image, name, 3)
    table = noise.distribution(name, *constants(name, 3))
    for level in levels:
        drawn = result[image == level]
        drawn_below = (drawn[:, None] <= np.arange(256)).mean(axis=0)
        assert np.abs(drawn_below - table[level]).max() < 1.9 / np.sqrt(drawn.size)  # Kolmogorov, p about 1e-3


def test_noise_is_white_and_independent_between_channels():
    result = one(np.full((224, 224, 3), 128, dtype=np.uint8), "gaussian_noise", 1).astype(float) - 127.5
    power = np.abs(np.fft.fft2(result, axes=(0, 1))) ** 2 / (result.var() * 224 * 224)
    frequency = np.hypot(np.fft.fftfreq(224)[:, None], np.fft.fftfreq(224))
    for low, high in ((0.02, 0.1), (0.1, 0.25), (0.25, 0.4), (0.4, 0.7)):
        assert power[(frequency >= low) & (frequency < high)].mean() == pytest.approx(1, abs=0.06)
    assert np.abs(np.corrcoef(result.reshape(-1, 3).T) - np.eye(3)).max() < 0.02


def test_impulse_noise_replaces_half_by_black_and_half_by_white():
    result = one(np.full((224, 224, 3), 128, dtype=np.uint8), "impulse_noise", 5)
    assert (result == 0).mean() == pytest.approx(0.135, abs=0.004)
    assert (result == 255).mean() == pytest.approx(0.135, abs=0.004)
    assert set(np.unique(result)) == {0, 128, 255}


# Mean and deviation within an image that the reference makes of the constant 128, severities 1..5.
PUBLISHED = {
    ("gaussian_noise", "imagenet"): ((127.51, 127.51, 127.49, 127.52, 127.47), (20.40, 30.59, 45.65, 63.09, 80.83)),
    ("shot_noise", "imagenet"): ((127.63, 127.59, 127.31, 124.77, 120.25), (23.31, 36.09, 51.23, 73.41, 87.99)),
    ("impulse_noise", "imagenet"): ((127.99, 127.96, 127.95, 127.92, 127.89), (22.10, 31.21, 38.25, 52.56, 66.24)),
    ("speckle_noise", "imagenet"): ((127.50, 127.50, 127.50, 127.51, 127.53), (19.21, 25.61, 44.64, 56.21, 70.21)),
    ("snow", "imagenet"): ((172.86, 203.23, 202.05, 217.19, 236.96), (16.38, 22.27, 23.83, 24.11, 15.76)),
    ("frost", "imagenet"): ((192.5, 198.4, 201.4, 195.6, 197.3), (11.8, 17.9, 21.0, 20.9, 22.6)),
    ("fog", "imagenet"): ((80.1, 75.6, 73.2, 72.8, 73.0), (14.1, 15.5, 17.2, 18.6, 20.0)),
    ("spatter", "imagenet"): ((128.93, 132.67, 135.99, 118.72, 113.01), (6.55, 15.70, 19.06, 25.47, 31.21)),
    ("gaussian_noise", "cifar"): ((127.50, 127.49, 127.51, 127.49, 127.51), (10.20, 15.30, 20.40, 22.95, 25.50)),
    ("shot_noise", "cifar"): ((127.50, 127.51, 127.51, 127.59, 127.54), (8.12, 11.27, 18.07, 20.86, 25.53)),
    ("impulse_noise", "cifar"): ((128.00, 127.99, 127.98, 127.96, 127.98), (12.68, 17.97, 22.07, 28.46, 33.71)),
    ("speckle_noise", "cifar"): ((127.50, 127.51, 127.50, 127.49, 127.50), (7.68, 12.80, 15.36, 20.48, 25.60)),
    ("snow", "cifar"): ((139.05, 153.38, 155.47, 168.03, 185.07), (8.02, 11.99, 17.05, 18.86, 17.73)),
    ("frost", "cifar"): ((160.0, 176.0, 179.9, 173.7, 168.3), (5.8, 8.6, 11.5, 11.5, 13.0)),
    ("fog", "cifar"): ((109.3, 95.3, 89.3, 85.6, 80.4), (5.4, 9.4, 11.5, 13.8, 16.2)),
    ("spatter", "cifar"): ((129.14, 131.05, 135.25, 124.95, 122.91), (8.36, 13.53, 18.61, 14.91, 19.03)),
}


@pytest.mark.parametrize(("name", "scale"), sorted(PUBLISHED))
def test_a_gray_image_gets_the_published_mean_and_deviation(name, scale):
    count = {"imagenet": 10, "cifar": 150}[scale] * (4 if name in ("fog", "frost") else 1)
    gray = np.full((count, SIDES[scale], SIDES[scale], 3), 128, dtype=np.uint8)
    for severity, mean, deviation in zip(range(1, 6), *PUBLISHED[name, scale], strict=True):
        result = corrupt(gray, name, severity, seed=17, scale=scale).reshape(count, -1)
        means, deviations = result.mean(axis=1), result.std(axis=1)
        # Four standard errors of ours, and as much again for theirs, which is a sample too.
        assert abs(means.mean() - mean) < 8 * means.std() / np.sqrt(count)
        assert abs(deviations.mean() - deviation) < 8 * deviations.std() / np.sqrt(count) + 0.005 * deviation


# --- blurs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("radius", "side", "mass"),
    [(6.5, 17, 1.0), (7, 17, 1.00286), (7.5, 17, 1.01204), (8, 17, 1.01297), (8.5, 18, 1.01582), (9, 19, 1.01351),
     (9.5, 20, 1.01239), (10, 21, 1.01079)],
)  # fmt: skip
def test_the_defocus_disk_brightens_when_it_fills_its_grid(radius, side, mass):
    kernel = defocus.disk(radius, 0.5)
    assert kernel.shape == (side, side)
    assert kernel.sum() == pytest.approx(mass, abs=1e-5)


@pytest.mark.parametrize(("severity", "centre", "edge", "corner"), [
    (1, 0.84497, 0.03713, 0.00163), (2, 0.61935, 0.08382, 0.01134), (3, 0.44521, 0.11101, 0.02768),
    (4, 0.2, 0.2, 0.0), (5, 1 / 9, 1 / 9, 1 / 9),
])  # fmt: skip
def test_cifar_defocus_kernels_are_three_by_three(severity, centre, edge, corner):
    kernel = defocus.disk(*constants("defocus_blur", severity, "cifar"))
    assert [kernel[8, 8], kernel[8, 9], kernel[9, 9]] == pytest.approx([centre, edge, corner], abs=1e-5)


@pytest.mark.parametrize("severity", [0.25, 2, 4.25, 5])
def test_defocus_is_a_correlation_with_the_disk(severity):
    image, parameters = photo(64) / 255.0, constants("defocus_blur", severity)
    kernel = defocus.disk(*parameters)[..., None].astype(np.float64)
    expected = ndimage.correlate(image, kernel, mode="mirror")  # it too centres an even kernel at half its side
    assert np.abs(defocus.defocus(image, *parameters) - expected).max() < 1e-9


@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0, 2.3, 6.0])
def test_gaussian_filter_has_the_bits_of_scipy(sigma):
    image = photo(32, width=45) / 255.0
    expected = ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest")
    assert np.array_equal(gaussian.smooth(image, sigma), expected)


@pytest.mark.parametrize("sigma", [0.96, 2.44, 19.52, 170.8, 999.0])
def test_reflected_gaussian_filter_agrees_with_scipy(sigma):
    fields = np.random.default_rng(0).uniform(-1, 1, size=(2, 32, 48))
    expected = ndimage.gaussian_filter(fields, (0, sigma, sigma), mode="reflect", truncate=3)
    assert np.abs(gaussian.smooth_reflected(fields, sigma) - expected).max() < 1e-13


@pytest.mark.parametrize(
    ("side", "reach", "sweeps", "mean", "rms_x", "rms_y", "distinct"),
    [
        (224, 1, 2, -1.00, 1.22, 1.22, 0.537),
        (224, 2, 1, -0.73, 1.52, 1.29, 0.522),
        (224, 2, 3, -2.15, 3.15, 2.84, 0.280),
        (224, 3, 2, -1.61, 3.46, 2.99, 0.328),
        (224, 4, 2, -1.68, 4.53, 3.97, 0.321),
        (32, 1, 1, -0.50, 0.71, 0.71, 0.708),
        (32, 1, 2, -0.98, 1.21, 1.21, 0.566),
    ],
)
def test_glass_copies_neighbours_instead_of_swapping(side, reach, sweeps, mean, rms_x, rms_y, distinct):
    rows, columns = np.indices((side, side)).astype(np.uint8)
    inside = slice(reach + 1, side - reach + 1)
    random = np.random.default_rng(0)
    moves, sources = [], []
    for _ in range(8 if side == 224 else 60):
        image = np.stack([columns, rows, columns], axis=-1)
        offsets = random.integers(-reach, reach, size=(sweeps, *[side - 2 * reach] * 2, 2), dtype=np.int8)
        glass.displace(image, offsets, reach)
        assert np.array_equal(image[..., 0], image[..., 2])
        moves.append((image.astype(int) - np.stack([columns, rows, columns], axis=-1))[inside, inside, :2])
        sources.append(len(np.unique(image[..., 1].astype(int) * side + image[..., 0])) / side**2)
    assert np.mean(moves, axis=(0, 1, 2)) == pytest.approx([mean, mean], abs=0.05)
    assert np.sqrt(np.mean(np.square(moves), axis=(0, 1, 2))) == pytest.approx([rms_x, rms_y], abs=0.05)
    assert np.mean(sources) == pytest.approx(distinct, abs=0.005)


@pytest.mark.parametrize("severity", [1, 3, 4.5])
def test_glass_blur_blurs_before_and_after(severity):
    image = np.full((48, 48, 3), 60, dtype=np.uint8)
    image[20:, 20:] = 200
    sigma, reach, sweeps = constants("glass_blur", severity)
    result = one(image, "glass_blur", severity).astype(float)
    plain = ndimage.gaussian_filter(image.astype(float), (sigma * 2**0.5, sigma * 2**0.5, 0))
    far = int(reach * sweeps + 8 * sigma) + 2
    assert np.abs(result - plain)[20 + far :, 20 + far :].max(initial=0) <= 2
    assert np.abs(result - plain)[: 20 - far, : 20 - far].max(initial=0) <= 2
    assert np.abs(result - plain).max() > 20


@pytest.mark.parametrize("angle", [-135.0, -60.0, -45.0, 0.0, 17.3, 45.0])
def test_motion_blur_is_a_one_sided_sum_of_clamped_pixels(angle):
    image = photo(32, width=40)
    weights, offsets = motion.streak(9.5, 4.0, angle)
    assert weights.size == 21
    assert np.all(np.diff(weights) < 0)
    rows, columns = np.indices(image.shape[:2])
    total = np.zeros(image.shape)
    for i, weight in enumerate(weights):
        radians = np.radians(angle)
        y = np.clip(rows + int(np.ceil(i * np.sin(radians) - 0.5)), 0, 31)
        x = np.clip(columns + int(np.ceil(i * np.cos(radians) - 0.5)), 0, 39)
        total += weight * image[y, x]
    expected = np.floor(np.floor(257 * total + 0.5) / 257).astype(np.uint8)
    assert np.array_equal(motion.blur_along(image, weights, offsets), expected)


def test_motion_blur_angles_are_uniform_up_to_45_degrees():
    points = np.zeros((200, 64, 64, 3), dtype=np.uint8)
    points[:, 32, 32] = 255
    result = corrupt(points, "motion_blur", 5, seed=0)[..., 0].astype(float)
    rows, columns = np.indices((64, 64)) - 32
    angles = [np.degrees(np.arctan2((r * rows).sum(), (r * columns).sum())) for r in result]
    angles = np.array([a + 180 if a < -90 else a - 180 if a > 90 else a for a in angles])
    assert stats.kstest(angles, "uniform", args=(-45, 90)).pvalue > 0.01


@pytest.mark.parametrize(("side", "scale"), [(224, "imagenet"), (32, "cifar")])
def test_zooms_agree_with_scipy(side, scale):
    plane = photo(side)[..., 0].astype(np.float32) / np.float32(255)
    for factor in zoom.factors(*constants("zoom_blur", 5, scale))[1::3]:
        crop = int(np.ceil(side / factor))
        top = (side - crop) // 2
        enlarged = ndimage.zoom(plane[top : top + crop, top : top + crop], factor, order=1)
        trim = (enlarged.shape[0] - side) // 2
        expected = enlarged[trim : trim + side, trim : trim + side]
        assert np.abs(zoom.sum_of_zooms(plane[None], (float(factor),))[0] - expected).max() < 1e-6


# --- weather ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "decay"), [(256, 1.4), (32, 3.0)])
def test_plasma_is_built_by_rolling_grids(side, decay):
    uniforms = np.random.default_rng(0).uniform(-1, 1, side * side - 1)
    field, step, w, rest = np.zeros((side, side)), side, 100.0, uniforms
    while step >= 2:
        n, half = side // step, step // 2
        draws, rest = rest[: 3 * n * n].reshape(3, n, n) * w * w, rest[3 * n * n :]
        c = field[::step, ::step]
        s = c + np.roll(c, -1, axis=0)
        d = (s + np.roll(s, -1, axis=1)) / 4 + draws[0]
        field[half::step, half::step] = d
        field[::step, half::step] = (d + np.roll(d, 1, axis=0) + c + np.roll(c, -1, axis=1)) / 4 + draws[1]
        field[half::step, ::step] = (d + np.roll(d, 1, axis=1) + c + np.roll(c, -1, axis=0)) / 4 + draws[2]
        step, w = half, w / decay
    expected = (field - field.min()) / (field.max() - field.min())
    np.testing.assert_allclose(fog.plasma(side, decay, uniforms), expected, atol=1e-12)


@pytest.mark.parametrize(("severity", "scale"), [(1, "imagenet"), (5, "imagenet"), (3, "cifar")])
def test_fog_is_as_rough_as_its_plasma(severity, scale):
    side, count = SIDES[scale], 16
    random = np.random.default_rng(0)
    (thickness, decay), period = constants("fog", severity, scale), 256 if side == 224 else 32
    fields = [fog.plasma(period, decay, random.uniform(-1, 1, period**2 - 1))[:side, :side] for _ in range(count)]
    expected = truncate((1 + thickness * np.stack(fields)) / (1 + thickness)).astype(float)
    white = np.full((count, side, side, 3), 255, dtype=np.uint8)
    seen = corrupt(white, "fog", severity, seed=0, scale=scale)[..., 0].astype(float)

    def roughness(layers: np.ndarray) -> float:
        return float(np.mean(np.diff(layers, axis=1).std(axis=(1, 2)) / layers.std(axis=(1, 2))))

    assert roughness(seen) == pytest.approx(roughness(expected), rel=0.1)


def test_fog_hides_all_channels_alike_and_keeps_the_brightest_level():
    image = photo(224)
    result = one(image, "fog", 1).astype(float)
    peak, thickness = image.max() / 255, 1.5
    layer = result / 255 * (peak + thickness) / peak - image / 255.0
    assert np.abs(layer[..., 0] - layer[..., 1]).max() < 2.5 * (peak + thickness) / peak / 255
    assert result.max() <= image.max()


def test_frost_shows_one_of_five_windows_through_the_image():
    side = frost_texture.SIDE
    black = np.zeros((20, side, side, 3), dtype=np.uint8)  # a whole window fits
    shown = [(0.4 * frost_texture.texture(index, 1.0)).astype(np.uint8) for index in range(5)]
    levels = [np.bincount(window.ravel(), minlength=256).tolist() for window in shown]
    seen = set()
    for picture in corrupt(black, "frost", 1, seed=0):
        index = levels.index(np.bincount(picture.ravel(), minlength=256).tolist())
        places = np.argwhere((shown[index] == picture[0, 0]).all(axis=-1))
        for column in range(1, 9):  # the pixels after the first tell its place in the window
            right = shown[index][places[:, 0], (places[:, 1] + column) % side]
            places = places[(right == picture[0, column]).all(axis=-1)]
        assert any(np.array_equal(np.roll(shown[index], tuple(-place), axis=(0, 1)), picture) for place in places)
        seen.add(index)
    assert seen == set(range(5))


@pytest.mark.parametrize("index", range(5))
def test_frost_windows_have_the_measured_colour_contrast_and_spectrum(index):
    window, pixels = frost_texture.WINDOWS[index], frost_texture.texture(index, 1.0).astype(float)
    np.testing.assert_allclose(pixels.mean(axis=(0, 1)), window.color, atol=2)
    assert pixels.std(axis=(0, 1)) == pytest.approx(np.full(3, window.deviation), rel=0.06)
    gray = pixels.mean(axis=-1)
    power = np.abs(np.fft.fft2(gray - gray.mean())) ** 2
    frequency = 224 * np.hypot(np.fft.fftfreq(512)[:, None], np.fft.fftfreq(512))
    edges = 2.0 ** np.arange(3, 6.6, 0.5)
    rings = [power[(frequency >= low) & (frequency < high)].mean() for low, high in itertools.pairwise(edges)]
    assert np.polyfit(np.arange(len(rings)) / 2, np.log2(rings), 1)[0] == pytest.approx(window.fine, abs=0.2)
    seam = np.abs(gray[0] - gray[-1]).mean() / np.abs(np.diff(gray, axis=0)).mean()
    assert seam < 1.5  # it repeats without one


@pytest.mark.parametrize(("severity", "scale"), [(2, "imagenet"), (5, "imagenet"), (4, "cifar")])
def test_snow_flakes_are_the_peaks_of_a_zoomed_field(severity, scale):
    side = SIDES[scale]
    mean, deviation, factor, threshold = constants("snow", severity, scale)[:4]
    field = np.random.default_rng(0).normal(mean, deviation, (side, side)).astype(np.float32)
    crop = int(np.ceil(side / factor))
    top = (side - crop) // 2
    layer = ndimage.zoom(field[top : top + crop, top : top + crop], factor, order=1)
    trim = (layer.shape[0] - side) // 2
    layer = layer[trim : trim + side, trim : trim + side]
    expected = truncate(np.where(layer < threshold, 0, layer))
    result = snow.flakes(field, factor, threshold)
    assert (result != expected).mean() < 1e-3  # a value on the threshold may fall on either side of it


def test_snow_falls_rather_than_drifts():
    result = corrupt(np.full((12, 128, 128, 3), 60, dtype=np.uint8), "snow", 3, seed=0)[..., 0].astype(float)
    assert np.abs(np.diff(result, axis=2)).mean() > 1.5 * np.abs(np.diff(result, axis=1)).mean()


def test_snow_whitens_and_falls_twice():
    image = photo(224)
    result = one(image, "snow", 3).astype(float) / 255
    gray = (image / 255.0) @ (0.299, 0.587, 0.114)
    whitened = 0.7 * image / 255.0 + 0.3 * np.maximum(image / 255.0, (1.5 * gray + 0.5)[..., None])
    dark = whitened.max(axis=-1) < 0.6
    both = dark & dark[::-1, ::-1]
    fallen = (result - whitened).mean(axis=-1)
    unclipped = both & (result.max(axis=-1) < 1) & (result[::-1, ::-1].max(axis=-1) < 1)
    assert unclipped.sum() > 200
    assert np.abs(fallen - fallen[::-1, ::-1])[unclipped].max() < 0.02  # the layer and its half-turn, summed
    assert fallen[unclipped].min() > -0.01


def test_spatter_is_water_up_to_three_and_mud_from_four():
    image = np.full((224, 224, 3), 100, dtype=np.uint8)
    wet, muddy = one(image, "spatter", 2).astype(int), one(image, "spatter", 4).astype(int)
    drops = wet[wet[..., 1] > 110] - 100
    np.testing.assert_allclose(drops[:, 0] / drops[:, 1], 175 / 238, atol=0.12)
    assert wet.min() == 100
    assert set(map(tuple, np.unique(muddy.reshape(-1, 3), axis=0)[[0, -1]])) == {(63, 42, 20), (100, 100, 100)}


def test_a_dry_lens_stays_clear():
    assert np.array_equal(spatter.water(np.zeros((32, 32))), np.zeros((32, 32)))


# --- colours, geometry, codecs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("severity", [0.5, 1, 3, 4, 5])
def test_brightness_and_saturation_act_in_hsv(severity, scale):
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    image[0, :4] = ((0, 0, 0), (255, 255, 255), (90, 90, 90), (255, 0, 0))
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3) / 255.0]
    (amount,), (factor, offset) = constants("brightness", severity, scale), constants("saturate", severity, scale)
    bright = np.array([colorsys.hsv_to_rgb(h, s, min(v + amount, 1)) for h, s, v in hsv])
    vivid = np.array([colorsys.hsv_to_rgb(h, min(max(s * factor + offset, 0), 1), v) for h, s, v in hsv])
    assert_within_one_level(one(image, "brightness", severity, scale), truncate(bright).reshape(image.shape), 0.06)
    assert_within_one_level(one(image, "saturate", severity, scale), truncate(vivid).reshape(image.shape), 0.06)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("severity", [0.3, 1, 5])
def test_contrast_shrinks_each_channel_to_its_mean(severity, scale):
    image, (factor,) = photo(SIDES[scale]), constants("contrast", severity, scale)
    mean = (image / 255.0).mean(axis=(0, 1))
    assert_within_one_level(one(image, "contrast", severity, scale), truncate((image / 255.0 - mean) * factor + mean))


def test_elastic_affine_map_moves_three_points():
    image = photo(48).astype(np.float32) / np.float32(255)
    shifts = np.random.default_rng(0).uniform(-4, 4, (3, 2))
    points = np.array([[40, 40], [40, 8], [8, 8]], dtype=float)  # 24 +- 16
    matrix = np.linalg.solve(np.column_stack([points + shifts, np.ones(3)]), points)  # rows x, y, 1; columns x, y
    swap = [[matrix[1, 1], matrix[0, 1]], [matrix[1, 0], matrix[0, 0]]]
    expected = np.stack(
        [ndimage.affine_transform(image[..., c], swap, matrix[2, ::-1], order=1, mode="mirror") for c in range(3)],
        axis=-1,
    )
    assert np.abs(elastic.warped(image, shifts) - expected).max() < 1e-5


def test_elastic_displacement_reads_beyond_the_border_by_reflection():
    image = photo(32).astype(np.float32) / np.float32(255)
    shift = np.random.default_rng(0).uniform(-20, 20, (2, 32, 32)).astype(np.float32)
    where = np.indices((32, 32)) + shift[::-1].astype(float)
    expected = np.stack(
        [ndimage.map_coordinates(image[..., c], where, order=1, mode="reflect") for c in range(3)], axis=-1
    )
    assert np.abs(elastic.displaced(image, shift) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("severity", "scale", "pixels"),
    [
        (0.5, "imagenet", 0.63),
        (1, "imagenet", 1.262),
        (2, "imagenet", 4.719),
        (3, "imagenet", 0.833),
        (5, "imagenet", 2.000),
        (2, "cifar", 0.055),
        (3, "cifar", 0.241),
        (5, "cifar", 0.572),
    ],
)
def test_elastic_displacement_is_as_large_as_published(severity, scale, pixels):
    strength, sigma, _ = constants("elastic_transform", severity, scale)
    count = 300 if scale == "cifar" else 100 if sigma > 20 else 8  # a wide filter leaves few independent values
    fields = np.random.default_rng(0).uniform(-1, 1, (count, SIDES[scale], SIDES[scale]))
    rms = np.sqrt(np.mean((strength * gaussian.smooth_reflected(fields, sigma)) ** 2))
    assert rms == pytest.approx(pixels, rel=0.12 if sigma > 20 else 0.03)


@pytest.mark.parametrize(("severity", "scale"), [(3, "imagenet"), (5, "imagenet"), (1, "cifar"), (4, "cifar")])
def test_elastic_moves_its_reference_points_by_jitter_and_field(severity, scale):
    side, count = SIDES[scale], 60
    step = 255 // side
    rows, columns = np.indices((side, side)) * step
    ramp = np.stack([columns, rows, rows], axis=-1).astype(np.uint8)  # a pixel shows where it was read
    result = corrupt(np.repeat(ramp[None], count, axis=0), "elastic", severity, seed=0, scale=scale)
    at = side // 2 - side // 3
    moved = (result[:, at, at, :2].astype(float) + 0.5) / step - at
    strength, sigma, jitter = constants("elastic_transform", severity, scale)
    field = strength / np.sqrt(3) * (gaussian.taps(sigma, 3.0)[0] ** 2 + 2 * (gaussian.taps(sigma, 3.0)[1:] ** 2).sum())
    assert moved.std() == pytest.approx(np.hypot(jitter / np.sqrt(3), field), rel=0.15)


@pytest.mark.parametrize("small", [201, 179, 134, 128, 112, 89, 67, 64, 56])
def test_pixelate_has_the_bits_of_pillow(small):
    image = photo(224)
    shrunk = Image.fromarray(image).resize((small, small), Image.Resampling.BOX)
    enlarged = shrunk.resize((224, 224), Image.Resampling.BOX)
    assert np.array_equal(resize(image, small, small), np.asarray(shrunk))
    assert np.array_equal(resize(np.asarray(shrunk), 224, 224), np.asarray(enlarged))


@pytest.mark.parametrize(
    ("severity", "scale", "quality"), [(0.5, "imagenet", 55), (5, "imagenet", 7), (3, "cifar", 58)]
)
def test_jpeg_agrees_with_pillow(severity, scale, quality):
    image, file = photo(SIDES[scale]), io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    assert_within_one_level(one(image, "jpeg_compression", severity, scale), np.asarray(Image.open(file)))


# --- recorded -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "brightness", "contrast", "gaussian_blur", "saturate"])
def test_recorded_outputs_of_the_imagecorruptions_package_are_reproduced(name):
    with np.load(ASSETS / "reference.npz") as recorded:
        for severity, expected in enumerate(recorded[name], start=1):
            assert_within_one_level(one(recorded["image"], name, severity), expected, 0.03)


@pytest.mark.parametrize("severity", [5e-324, 2.2e-311, 1e-300, 1e-12])
@pytest.mark.parametrize("name", names())
def test_next_to_no_severity_is_no_special_case(name, severity):
    images = np.stack([photo(32, seed) for seed in range(2)])
    assert corrupt(images, name, severity, seed=3).shape == images.shape
