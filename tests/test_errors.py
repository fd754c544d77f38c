"""Errors that travel between processes."""

import pickle

import torch

from rlbatch import DeviceMismatchError, KeyMismatchError
from rlbatch.errors import add_environment_note


def test_a_device_mismatch_survives_a_pickle():
    error = DeviceMismatchError("frame", torch.device("cpu"), torch.device("meta"), "env.step")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "env.step: frame: expected a tensor on cpu, got one on meta"
    assert (copy.where, copy.stage, copy.found) == ("frame", "env.step", torch.device("meta"))
    error = DeviceMismatchError("a", torch.device("cpu"), torch.device("meta"), beside="b")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "a: expected a tensor on cpu, as b, got one on meta"
    add_environment_note(error, 3)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.environment, copy.__notes__) == (3, ["(in environment 3 of this batch)"])


def test_a_missing_key_is_a_sentence_without_quotes():
    assert str(KeyMismatchError("a: expected b")) == "a: expected b"


def test_an_environment_is_noted_by_number():
    error = ValueError("boom")
    add_environment_note(error, 3)
    assert error.environment == 3
    assert error.__notes__ == ["(in environment 3 of this batch)"]
