"""Errors at a moment that nobody chooses, as Ctrl-C's."""

import signal


class AlarmAfter:
    """Raises an error in a block, so many seconds after its start, and nowhere else.

    It may be raised just before the block, so what expects it comes first:
    `with pytest.raises(Error), AlarmAfter(seconds, Error()):`.

    To block the signal everywhere else is not enough: one for the process goes to any of its
    threads, and the handler runs in the main one, now or later. Nor is this a generator: one that
    is interrupted before its block is closed later on, and would stop the next alarm.
    """

    def __init__(self, seconds: float, error: BaseException):
        self.seconds, self.error, self.is_armed = seconds, error, False

    def __enter__(self) -> None:
        self.is_armed = True
        signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, *_: object) -> None:
        if self.is_armed:
            self.is_armed = False
            raise self.error
