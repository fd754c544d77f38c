"""Errors at a moment that nobody chooses, as Ctrl-C's."""

import gc
import signal
import traceback
from types import FrameType

LOST_AFTER_S = 60


class AlarmAfter:
    """Raises an error in a block, so many seconds after its start, and nowhere else.

    It may be raised just before the block, so what expects it comes first:
    `with pytest.raises(Error), AlarmAfter(seconds, Error()):`.

    To block the signal everywhere else is not enough: one for the process goes to any of its
    threads, and the handler runs in the main one, now or later. Nor is this a generator: one that
    is interrupted before its block is closed later on, and would stop the next alarm.

    Garbage is not collected in the block: in the finalizers of what earlier tests have left the
    error would be lost. Where it is lost nevertheless, an AssertionError says where it was raised.
    """

    def __init__(self, seconds: float, error: BaseException):
        self.seconds, self.error = seconds, error
        self.is_armed, self.raised_at = False, ""

    def __enter__(self) -> None:
        self.is_armed, self.raised_at = True, ""
        gc.disable()
        signal.signal(signal.SIGALRM, self._handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, self.seconds, LOST_AFTER_S)
        except BaseException:  # It has been raised here.
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if not self.is_armed:
            return
        if self.raised_at:
            raise AssertionError(f"an error was lost that was raised at\n{self.raised_at}")
        self.raised_at = "".join(traceback.format_stack(frame))
        raise self.error
