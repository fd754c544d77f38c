"""Keys of nested spaces."""

import numpy as np
import pytest
from gymnasium import spaces

from rlbatch.envs.base import RESERVED_KEYS
from rlbatch.envs.spaces import action_leaves, assemble, observation_leaves
from rlbatch.errors import KeyMismatchError
from tests.helpers import NESTED_KEYS, NESTED_SPACE, check_value

TEXT = spaces.Text(3)
TWO = spaces.Discrete(2)


def test_a_nested_space_has_a_key_for_each_array():
    assert list(observation_leaves(NESTED_SPACE)) == NESTED_KEYS
    assert list(action_leaves(NESTED_SPACE)) == [f"action/{key}" for key in NESTED_KEYS]


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2, 3)), TWO, spaces.MultiBinary(2), spaces.MultiDiscrete([2, 2])]
)
def test_a_space_that_is_not_nested_has_one_key(space):
    assert list(observation_leaves(space)) == ["frame"]
    assert list(action_leaves(space)) == ["action"]


def test_a_leaf_knows_its_shape_and_dtype():
    found = {
        key: (leaf.shape, leaf.dtype) for key, leaf in observation_leaves(NESTED_SPACE).items()
    }
    assert found == {
        "choice": ((2,), np.int64),
        "image": ((2, 3), np.uint8),
        "inner/0": ((), np.int64),
        "inner/1/flags": ((4,), np.int8),
        "inner/1/position": ((), np.float64),
    }


def test_a_leaf_finds_its_part_of_a_value_without_a_copy():
    value = NESTED_SPACE.sample()
    leaves = observation_leaves(NESTED_SPACE)
    assert leaves["inner/1/flags"].of(value) is value["inner"][1]["flags"]
    assert observation_leaves(TWO)["frame"].of(value) is value


def test_assembling_the_leaves_of_a_value_gives_the_value():
    value = NESTED_SPACE.sample()
    parts = [leaf.of(value) for leaf in action_leaves(NESTED_SPACE).values()]
    again = assemble(NESTED_SPACE, iter(parts))
    check_value(NESTED_SPACE, again)
    assert list(again) == ["choice", "image", "inner"]
    assert again["image"] is value["image"]
    assert again["inner"][0] == value["inner"][0]
    assert again["inner"][1]["position"] is value["inner"][1]["position"]


@pytest.mark.parametrize(
    ("space", "place"),
    [
        (TEXT, "_space: "),
        (spaces.Dict({"a": TEXT}), "_space/a: "),
        (spaces.Tuple([TWO, spaces.Dict({"a": TEXT})]), "_space/1/a: "),
    ],
)
@pytest.mark.parametrize("leaves", [observation_leaves, action_leaves])
def test_a_space_that_is_not_supported_is_named_with_its_place(leaves, space, place):
    with pytest.raises(TypeError, match=place + r"expected one of Box, .* got Text\("):
        leaves(space)


@pytest.mark.parametrize("dtype", [np.longdouble, ">f4"])
@pytest.mark.parametrize("leaves", [observation_leaves, action_leaves])
def test_a_dtype_that_pytorch_does_not_have_is_refused(leaves, dtype):
    space = spaces.Dict({"a": TWO, "b": spaces.Box(0, 1, (2,), dtype=dtype)})
    with pytest.raises(TypeError, match=r"_space/b: expected a dtype that PyTorch has, got Box\("):
        leaves(space)


@pytest.mark.parametrize("key", RESERVED_KEYS)
def test_a_name_that_every_observation_has_is_refused(key):
    space = spaces.Dict({"a": TWO, key: TWO})
    with pytest.raises(KeyMismatchError, match=f"observation_space: expected no part .* got {key}"):
        observation_leaves(space)
    assert f"action/{key}" in action_leaves(space)


def test_a_folder_with_a_reserved_name_is_refused():
    with pytest.raises(KeyMismatchError, match="got last_action/a"):
        observation_leaves(spaces.Dict({"last_action": spaces.Dict({"a": TWO})}))


@pytest.mark.parametrize("leaves", [observation_leaves, action_leaves])
def test_two_parts_with_one_key_are_refused(leaves):
    with pytest.raises(KeyMismatchError, match="expected different names, got .*a/b twice"):
        leaves(spaces.Dict({"a": spaces.Dict({"b": TWO}), "a/b": TWO}))
