"""Seeds: all different, the same however environments are split, and handed on as given."""

import copy
import pickle

import numpy as np
import pytest
import torch

from rlbatch.seeding import Seed, derived_seed, env_seeds, process_seeds, worker_seeds

ROOTS = [0, 1, 42, 2**31 - 1, 2**32, 2**63 - 1]


def seeds_of_run(seeds, n_processes, n_envs):
    """The seeds of all environments of a run, in order of process."""
    dealt = process_seeds(seeds, n_processes)
    assert len(dealt) == n_processes
    return [seed for process in dealt for seed in env_seeds(process, n_envs)]


@pytest.mark.parametrize(
    "seeds",
    [0, 7, [7 + 10 * k for k in range(64)], [3] * 64, list(range(64))],
    ids=["zero", "seven", "steps of ten", "all equal", "neighbours"],
)
def test_no_two_of_64_processes_with_1000_environments_share_a_seed(seeds):
    found = seeds_of_run(seeds, 64, 1000)
    assert len(found) == len(set(found)) == 64_000


@pytest.mark.parametrize("root", ROOTS)
def test_seeds_fit_in_32_bits(root):
    # What numpy's legacy generators and Gymnasium's environments take.
    assert all(0 <= seed < 2**32 for seed in seeds_of_run(root, 4, 100))
    assert all(0 <= seed < 2**32 for seed in process_seeds(root, 4))


@pytest.mark.parametrize("root", ROOTS)
def test_seeds_do_not_depend_on_the_split(root):
    whole = env_seeds(root, 8)
    for n_processes in (1, 2, 4, 8):
        assert seeds_of_run(root, n_processes, 8 // n_processes) == whole


def test_fewer_environments_get_the_first_seeds_of_more():
    assert env_seeds(5, 1000)[:10] == env_seeds(5, 10)


def test_zero_is_a_seed_like_any_other():
    zero, one = env_seeds(0, 64), env_seeds(1, 64)
    assert len(set(zero) | set(one)) == 128
    assert process_seeds(0, 2)[1].root == 0


@pytest.mark.parametrize("root", [0, 1000, 2**32 - 2])
def test_neighbouring_roots_share_no_seed_among_64000_environments(root):
    first, second = (set(env_seeds(one, 64_000)) for one in (root, root + 1))
    assert first.isdisjoint(second)


def test_every_seed_of_a_list_names_the_run():
    assert seeds_of_run([1, 2], 2, 4) != seeds_of_run([1, 3], 2, 4)
    assert seeds_of_run([1, 2], 2, 4) != seeds_of_run([2, 1], 2, 4)


def test_a_list_of_one_seed_is_that_seed():
    assert seeds_of_run([9], 1, 4) == seeds_of_run(9, 1, 4)


def test_a_list_of_one_per_process_is_what_the_processes_see():
    assert process_seeds([5, 15, 25], 3) == [5, 15, 25]


def test_one_per_process_is_one_per_environment_where_each_has_one():
    seeds = [10, 20, 30, 40]
    assert seeds_of_run(seeds, 4, 1) == seeds_of_run(seeds, 2, 2) == seeds
    assert seeds_of_run([5], 1, 1) == [5]


@pytest.mark.parametrize("given", [list, tuple, np.array, torch.tensor])
def test_a_list_of_one_per_environment_is_dealt_out_verbatim(given):
    seeds = [10, 20, 30, 40, 50, 60]
    assert process_seeds(given(seeds), 2) == [[10, 20, 30], [40, 50, 60]]
    assert process_seeds(given(seeds), 3) == [[10, 20], [30, 40], [50, 60]]
    assert seeds_of_run(given(seeds), 3, 2) == seeds


def test_env_seeds_returns_a_list_as_it_is():
    assert env_seeds([3, 3, 1], 3) == env_seeds((3, 3, 1), 3) == [3, 3, 1]


def test_numpy_integers_are_seeds():
    assert env_seeds(np.int64(7), 3) == env_seeds(7, 3)
    assert seeds_of_run(np.uint32(7), 2, 3) == seeds_of_run(7, 2, 3)
    assert all(type(seed) is int for seed in env_seeds(np.array([1, 2]), 2))


def test_a_tensor_without_dimensions_is_a_seed():
    assert process_seeds(torch.tensor(7), 2) == process_seeds(np.array(7), 2) == process_seeds(7, 2)
    assert env_seeds(torch.tensor(7), 3) == env_seeds(np.array(7), 3) == env_seeds(7, 3)


def test_negative_seeds_are_refused():
    with pytest.raises(ValueError, match="^seed: expected an integer >= 0, got -1$"):
        env_seeds(-1, 2)
    with pytest.raises(ValueError, match="^seed: expected an integer >= 0, got -1$"):
        env_seeds([1, -1], 2)
    for seeds in (-1, [1, -1], [1, 2, 3, -1]):
        with pytest.raises(ValueError, match="^seeds: expected an integer >= 0, got -1$"):
            process_seeds(seeds, 2)


@pytest.mark.parametrize("seed", [1.5, "ab", None, True, [1, 2.5], [1, True], np.array([1.0, 2.0])])
def test_what_is_no_integer_is_refused(seed):
    with pytest.raises(TypeError, match="^seed: expected an integer, got "):
        env_seeds(seed, 2)


@pytest.mark.parametrize("seeds", [{1, 2}, {1: 0, 2: 0}], ids=["set", "dict"])
def test_seeds_without_an_order_are_refused(seeds):
    with pytest.raises(TypeError, match="^seed: expected an integer, got "):
        env_seeds(seeds, 2)
    with pytest.raises(TypeError, match="^seeds: expected an int or a list"):
        process_seeds(seeds, 2)


@pytest.mark.parametrize("n_seeds", [0, 1, 3, 5])
def test_a_number_of_seeds_that_cannot_be_dealt_is_refused(n_seeds):
    with pytest.raises(ValueError, match=rf"^seeds: expected an int, 2 seeds .*, got {n_seeds}$"):
        process_seeds(list(range(n_seeds)), 2)


@pytest.mark.parametrize("n_seeds", [0, 2, 4])
def test_a_wrong_number_of_seeds_for_the_environments_is_refused(n_seeds):
    with pytest.raises(ValueError, match=f"^seed: expected 3 seeds, .*, got {n_seeds} "):
        env_seeds(list(range(n_seeds)), 3)


@pytest.mark.parametrize(
    "through",
    [lambda seed: pickle.loads(pickle.dumps(seed)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_a_seed_survives_copying(through):
    seed = process_seeds(3, 4)[2]
    again = through(seed)
    assert type(again) is Seed
    assert (again, again.root, again.process) == (seed, 3, 2)
    assert env_seeds(again, 5) == env_seeds(seed, 5)


def test_a_seed_is_an_int():
    seed = process_seeds(3, 2)[1]
    assert isinstance(seed, int)
    assert np.random.default_rng(seed).random() == np.random.default_rng(int(seed)).random()


def test_derived_seeds_depend_on_every_word():
    words = [(a, b, c) for a in (0, 1, 2**40) for b in (0, 1, 7) for c in (0, 1, 2)]
    seeds = [derived_seed(*one) for one in words]
    assert len(set(seeds)) == len(words)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [derived_seed(*one) for one in words]


def test_zeros_are_words_too():
    assert len({derived_seed(*[0] * n) for n in range(1, 5)}) == 4


def test_the_generators_of_two_processes_are_never_seeded_alike():
    first, second = worker_seeds(0, [7, 7], 2)
    assert first.generators != second.generators


def test_the_generators_depend_on_every_seed_of_a_list():
    one, other = (worker_seeds(seeds, None, 1)[0].generators for seeds in ([1, 2], [1, 3]))
    assert one != other


def test_one_seed_of_the_agents_gives_each_process_another():
    def agents(seed):
        return [one.agent for one in worker_seeds(0, seed, 64)]

    assert len({*agents(5), *agents(6)}) == 128


def test_the_generators_depend_on_the_seed_of_the_agents():
    one, other = (worker_seeds(0, seed, 1)[0].generators for seed in (5, 6))
    assert one != other


def test_seeds_of_environments_know_their_process():
    assert [one.process for one in process_seeds([1, 2, 3, 4], 2)] == [0, 1]
