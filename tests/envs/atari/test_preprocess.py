"""Observations of the native core: palette, maximum of two frames, area resize.

The oracle is the float32 definition of OpenCV's INTER_AREA, in numpy, one term at a time. Every
comparison is exact, and every test runs on each path that this machine can compile and run.
"""

import ctypes
import functools
import math
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import rlbatch

NATIVE = Path(rlbatch.__file__).parent / "envs" / "atari" / "native"
WIDTH = 160
HEIGHTS = (210, 214, 220, 230, 250)
SIZES = ((84, 84), (64, 64), (42, 42), (96, 80))
# Both scales whole, one axis kept, nothing resized, and sizes without a fast path.
ODD_SIZES = ((105, 80), (42, 32), (70, 40), (42, 80), (210, 80), (84, 160), (210, 84), (210, 160))
ODD_SIZES += ((209, 159), (101, 97), (5, 20), (10, 7), (1, 1))

SOURCE = """
#include "palette.h"
#include "preprocess.h"
using namespace rlbatch::atari;
#define API extern "C" __attribute__((visibility("default")))

API u8 gray_of(s32 is_pal, s32 i) { return is_pal ? PAL_GRAY[i] : NTSC_GRAY[i]; }
API u8 rgb_of(s32 is_pal, s32 i, s32 channel) { return (is_pal ? PAL_RGB : NTSC_RGB)[i][channel]; }

static Resize resize;
API s32 build(s32 height, s32 out_height, s32 out_width) {
  return build_resize(height, out_height, out_width, resize);
}
API s32 has_fast_path() { return resize.is_copy || resize.is_exact_but_ties; }
API s32 n_lanes() {
#ifdef RLB_AVX2
  return kLanes;
#else
  return 1;
#endif
}
API void pooled(const u8* a, const u8* b, const u8* lut, s32 n_pixels, u8* out) {
  pool(Frames{a, b, lut}, n_pixels, out);
}
static void observe(const Frames& frames, u8* pooled, u8* out, s32 stride) {
  pool(frames, resize.rows.source * kRowPixels, pooled);
  resize_image(pooled, resize, out, stride);
}
API void gray(const u8* a, const u8* b, const u8* lut, u8* pooled, u8* out) {
  observe(Frames{a, b, lut}, pooled, out, 1);
}
API void rgb(const u8* a, const u8* b, s32 is_pal, u8* pooled, u8* out) {
  for (s32 channel = 0; channel < 3; ++channel, pooled += resize.rows.source * kRowPixels) {
    u8 lut[256];
    for (s32 i = 0; i < 256; ++i) lut[i] = rgb_of(is_pal, i, channel);
    observe(Frames{a, b, lut}, pooled, out + channel, 3);
  }
}
API void pixels(const u8* a, const u8* b, const u8* lut, u8* out) {
  const s32 width = resize.columns.target;
  for (s32 y = 0; y < resize.rows.target; ++y) {
    for (s32 x = 0; x < width; ++x) {
      out[y * width + x] = resized_pixel(Frames{a, b, lut}, resize, y, x);
    }
  }
}
API s32 has_words() { return resize.is_exact_but_ties && resize.has_words; }
API void pixels_of_words(const u8* image, u8* out) {
  for (s32 y = 0; y < resize.rows.target; ++y) {
    for (s32 x = 0; x < resize.columns.target; ++x) {
      *out++ = resized_pixel_of_words(image, resize, y, x);
    }
  }
}
"""
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
VARIANTS = {"portable": ("-DRLB_PORTABLE",), "avx2": ("-mavx2",), "native": ("-march=native",)}


class Native:
    """The headers, compiled one way. Arrays in, arrays out."""

    def __init__(self, path: Path):
        self.compiled = ctypes.CDLL(str(path))
        self.compiled.gray_of.restype = self.compiled.rgb_of.restype = ctypes.c_uint8
        self.shape = (0, 0)

    def build(self, height, size):
        self.shape = size
        return bool(self.compiled.build(height, *size))

    def gray(self, a, b=None, lut=None):
        pooled, out = np.empty_like(a), np.empty(self.shape, np.uint8)
        self.compiled.gray(*map(pointer, (a, b, lut, pooled, out)))
        return out, pooled

    def rgb(self, a, b, is_pal):
        pooled, out = np.empty((3, *a.shape), np.uint8), np.empty((*self.shape, 3), np.uint8)
        self.compiled.rgb(pointer(a), pointer(b), is_pal, pointer(pooled), pointer(out))
        return out, pooled

    def pixels(self, a, b=None, lut=None):
        out = np.empty(self.shape, np.uint8)
        self.compiled.pixels(*map(pointer, (a, b, lut, out)))
        return out

    def pixels_of_words(self, image):
        out = np.empty(self.shape, np.uint8)
        self.compiled.pixels_of_words(*map(pointer, (image, out)))
        return out

    def palette(self, is_pal):
        gray = [self.compiled.gray_of(is_pal, i) for i in range(256)]
        rgb = [[self.compiled.rgb_of(is_pal, i, c) for c in range(3)] for i in range(256)]
        return np.array(gray, np.uint8), np.array(rgb, np.uint8)


def pointer(array):
    if array is None:
        return None
    assert array.dtype == np.uint8
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def has_avx2():
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "avx2" in cpuinfo.read_text().split()


@pytest.fixture(scope="module", params=VARIANTS)
def native(request, tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    if request.param == "avx2" and not has_avx2():
        pytest.skip("needs a processor with AVX2")
    folder = tmp_path_factory.mktemp(request.param)
    source, library = folder / "shim.cpp", folder / "shim.so"
    source.write_text(SOURCE)
    flags = (*FLAGS, *VARIANTS[request.param], "-fPIC", "-shared", f"-I{NATIVE}")
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
    return Native(library)


def area_terms(source, target):
    """For each output of an axis, its source pixels and their float32 weights, in order."""
    scale = source / target
    outputs = []
    for i in range(target):
        begin, end = i * scale, i * scale + scale
        cell = min(scale, source - begin)
        last = min(math.floor(end), source - 1)
        whole = min(math.ceil(begin), last)
        parts = [(pixel, 1.0) for pixel in range(whole, last)]
        if whole - begin > 1e-3:
            parts.insert(0, (whole - 1, whole - begin))
        if end - last > 1e-3:
            parts.append((last, min(end - last, 1.0, cell)))
        outputs.append([(pixel, np.float32(part / cell)) for pixel, part in parts])
    return outputs


def block_means(image, size):
    """What OpenCV does instead where both scales are whole numbers."""
    height, width = image.shape[0] // size[0], image.shape[1] // size[1]
    sums = image.reshape(size[0], height, size[1], width).sum((1, 3), dtype=np.int64)
    if (height, width) == (2, 2):
        return ((sums + 2) >> 2).astype(np.uint8)
    means = sums.astype(np.float32) * np.float32(1 / (height * width))
    return np.rint(means).astype(np.uint8)


def area_resize(image, size):
    if image.shape[0] % size[0] == 0 and image.shape[1] % size[1] == 0:
        return block_means(image, size)
    columns = np.zeros((image.shape[0], size[1]), np.float32)
    for x, terms in enumerate(area_terms(image.shape[1], size[1])):
        for pixel, weight in terms:
            columns[:, x] += image[:, pixel] * weight
    sums = np.zeros(size, np.float32)
    for y, terms in enumerate(area_terms(image.shape[0], size[0])):
        for pixel, weight in terms:
            sums[y] += columns[pixel] * weight
    return np.rint(sums).astype(np.uint8)


def exact_sums(image, size):
    """The areas as integers, and the number that stands for 1."""
    unit = 1
    for axis in (0, 1):
        gcd = math.gcd(image.shape[axis], size[axis])
        unit *= image.shape[axis] // gcd
        parts = np.repeat(image.astype(np.int64), size[axis] // gcd, axis)
        areas = np.split(parts, size[axis], axis)
        image = np.stack([area.sum(axis) for area in areas], axis)
    return image, unit


def rectangles(rng, height, values, n_rectangles=80):
    """A picture like that of a game: plain areas, upright edges."""
    image = np.full((height, WIDTH), rng.choice(values), np.uint8)
    for _ in range(n_rectangles):
        y, x = rng.integers(height), rng.integers(WIDTH)
        image[y : y + rng.integers(1, 40), x : x + rng.integers(1, 40)] = rng.choice(values)
    return image


@functools.cache
def images(height):
    """Values, not palette indices."""
    rng = np.random.default_rng(height)
    shape = (height, WIDTH)
    rows, columns = np.indices(shape)
    return (
        rng.integers(0, 256, shape, dtype=np.uint8),
        np.full(shape, 255, np.uint8),
        rectangles(rng, height, np.arange(256)),
        rectangles(rng, height, np.arange(5, 256, 10)),  # Many sums are half of the unit.
        rng.integers(0, 2, shape, dtype=np.uint8) * np.uint8(5),
        (rows % 2 * 95 + columns % 3 // 2 * 125).astype(np.uint8),
    )


@functools.cache
def resized(height, size):
    return [area_resize(image, size) for image in images(height)]


def screens(height, is_pal):
    """Pairs of palette indices; odd ones on PAL."""
    rng = np.random.default_rng(height + is_pal)
    indices = np.arange(0, 256, 2 - is_pal)
    first = rectangles(rng, height, indices)
    second = first.copy()
    second[50:90, 30:70] = rng.choice(indices, (40, 40))
    noise = rng.choice(indices, (2, height, WIDTH)).astype(np.uint8)
    return (first, second), (noise[0], noise[1]), (first, None)


def maximum(a, b):
    return a if b is None else np.maximum(a, b)


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("size", SIZES)
def test_an_image_is_resized_as_opencv_does_it(native, height, size):
    assert native.build(height, size)
    for image, expected in zip(images(height), resized(height, size), strict=True):
        np.testing.assert_array_equal(native.gray(image)[0], expected)
        np.testing.assert_array_equal(native.pixels(image), expected)
        np.testing.assert_array_equal(native.pixels_of_words(image), expected)


@pytest.mark.parametrize("height", HEIGHTS)
def test_the_usual_sizes_have_a_fast_path(native, height):
    for size in [(84, 84), (64, 64), (96, 80), (height, WIDTH)]:
        assert native.build(height, size)
        assert native.compiled.has_fast_path()
        assert native.compiled.has_words()


@pytest.mark.parametrize("size", ODD_SIZES)
def test_any_smaller_size_is_exact(native, size):
    assert native.build(210, size)
    for image, expected in zip(images(210), resized(210, size), strict=True):
        np.testing.assert_array_equal(native.gray(image)[0], expected)
        np.testing.assert_array_equal(native.pixels(image), expected)
        np.testing.assert_array_equal(native.pixels_of_words(image), expected)


@pytest.mark.parametrize("size", [(84, 84), (42, 42), (96, 80)])
def test_the_images_have_ties_that_the_float_sum_decides(size):
    n_ties = n_other_way = 0
    for image, expected in zip(images(210), resized(210, size), strict=True):
        sums, unit = exact_sums(image, size)
        is_tie = 2 * sums % (2 * unit) == unit
        half_to_even = (sums // unit + sums // unit % 2).astype(np.uint8)
        n_ties += is_tie.sum()
        n_other_way += (is_tie & (half_to_even != expected)).sum()
        rounded = (2 * sums + unit) // (2 * unit)
        np.testing.assert_array_equal(rounded[~is_tie], expected[~is_tie])
    assert n_ties > 100
    assert n_other_way > 10


@pytest.mark.parametrize("height", [210, 250])
@pytest.mark.parametrize("size", [*ODD_SIZES[:1], *SIZES[:2], (210, 160)])
def test_the_oracle_is_opencv(height, size):
    cv2 = pytest.importorskip("cv2")
    for image, expected in zip(images(height), resized(height, size), strict=True):
        actual = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(actual, expected)
        actual = cv2.resize(np.dstack([image] * 3), size[::-1], interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(actual, np.dstack([expected] * 3))


@pytest.mark.parametrize("is_pal", [False, True])
@pytest.mark.parametrize("height", [210, 250])
def test_the_palette_comes_before_the_maximum(native, height, is_pal):
    assert native.build(height, (84, 84))
    lut = native.palette(is_pal)[0]
    for a, b in screens(height, is_pal):
        expected = maximum(lut[a], None if b is None else lut[b])
        actual, pooled = native.gray(a, b, lut)
        np.testing.assert_array_equal(pooled, expected)
        np.testing.assert_array_equal(actual, area_resize(expected, (84, 84)))
        np.testing.assert_array_equal(native.pixels(a, b, lut), actual)


@pytest.mark.parametrize("height", HEIGHTS)
def test_two_gray_images_give_the_same_as_their_screens(native, height):
    assert native.build(height, (84, 84))
    lut = native.palette(False)[0]
    for a, b in screens(height, False):
        from_screens, pooled = native.gray(a, b, lut)
        from_images, pooled_again = native.gray(lut[a], None if b is None else lut[b])
        np.testing.assert_array_equal(from_images, from_screens)
        np.testing.assert_array_equal(pooled_again, pooled)


@pytest.mark.parametrize("n_pixels", [0, 1, 63, 64, 65, 210 * WIDTH])
def test_a_palette_is_applied_to_any_number_of_pixels(native, n_pixels):
    lut = np.random.default_rng(0).permutation(256).astype(np.uint8)
    screen = np.random.default_rng(1).integers(0, 256, n_pixels + 1, dtype=np.uint8)
    out = np.zeros(n_pixels + 1, np.uint8)
    native.compiled.pooled(pointer(screen), None, pointer(lut), n_pixels, pointer(out))
    np.testing.assert_array_equal(out, [*lut[screen[:n_pixels]], 0])


@pytest.mark.parametrize("size", [*SIZES, (105, 80), (210, 160)])
@pytest.mark.parametrize("is_pal", [False, True])
def test_colours_are_resized_one_by_one(native, is_pal, size):
    assert native.build(210, size)
    palette = native.palette(is_pal)[1]
    for a, b in screens(210, is_pal)[:2]:
        expected = np.maximum(palette[a], palette[b])
        actual, pooled = native.rgb(a, b, is_pal)
        np.testing.assert_array_equal(pooled, np.moveaxis(expected, 2, 0))
        channels = [area_resize(expected[:, :, c], size) for c in range(3)]
        np.testing.assert_array_equal(actual, np.dstack(channels))


@pytest.mark.parametrize(
    ("height", "size"), [(210, (211, 84)), (210, (84, 161)), (251, (84, 84)), (210, (0, 84))]
)
def test_refuses_to_enlarge(native, height, size):
    assert not native.build(height, size)


def test_gray_is_the_brightness_of_a_colour(native):
    for is_pal in (False, True):
        gray, rgb = (table[::2].astype(float) for table in native.palette(is_pal))
        assert gray.max() > 200
        # One colour of PAL, 134, is 110.508 and measures 110.
        assert np.abs(gray - rgb @ [0.299, 0.587, 0.114]).max() < 0.509


def test_odd_indices_are_the_gray_of_colour_loss_on_pal_only(native):
    gray, rgb = native.palette(is_pal=True)
    assert (rgb[1::2] == rgb[1::2, :1]).all()
    np.testing.assert_array_equal(gray[1::2], [*rgb[2::2, 2], 0])
    for table in native.palette(is_pal=False):
        assert not table[1::2].any()


def test_the_variants_differ(native, request):
    variant = request.node.callspec.params["native"]
    lanes = {"portable": (1,), "avx2": (8,), "native": (1, 8, 16)}
    assert native.compiled.n_lanes() in lanes[variant]
    if platform.machine() == "x86_64" and variant == "native" and has_avx2():
        assert native.compiled.n_lanes() > 1
