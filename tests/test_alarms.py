"""Errors that tests raise at any moment: exactly once, in their block, or it is told."""

import contextlib
import gc
import time

import pytest

from tests import alarms
from tests.alarms import AlarmAfter

pytestmark = pytest.mark.usefixtures("alarms")


def loses_an_error(error: type[BaseException]) -> None:
    with contextlib.suppress(error):
        time.sleep(10)
    time.sleep(10)


def test_an_error_that_is_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "LOST_AFTER_S", 0.2)
    lost = "(?s)^an error was lost that was raised at.*loses_an_error.*sleep"
    with pytest.raises(AssertionError, match=lost), AlarmAfter(0.1, KeyboardInterrupt()):
        loses_an_error(KeyboardInterrupt)


def test_nothing_is_left_of_an_alarm_whose_block_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "LOST_AFTER_S", 0.1)
    for seconds in (1e-6, 0.1):  # Before the block, and in it.
        with pytest.raises(KeyboardInterrupt), AlarmAfter(seconds, KeyboardInterrupt()):
            time.sleep(10)
        time.sleep(0.3)
    with AlarmAfter(0.2, KeyboardInterrupt()):
        pass
    time.sleep(0.3)
    assert gc.isenabled()
