"""What becomes of a run that is asked to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_NOTE = b"stopping where the iteration ends, with a checkpoint; once more: at once\n"


class StopRequest:
    """Notes Ctrl-C or SIGTERM from `watch` to `release`, so that a run can stop where it is whole.

    The second one has its usual effect. Signals for which the caller has a handler of its own stay
    as they are, and so they do outside the main thread.

    Attributes:
        signal: The one that came, None before.
        interrupts: Whether it raises KeyboardInterrupt as well: where it waits, and is whole.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.interrupts = False
        self._before: dict[int, Any] = {}

    def watch(self) -> None:
        """Takes over both signals."""
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            for number, handler in usual.items():
                if signal.getsignal(number) == handler:
                    self._before[number] = signal.signal(number, self._note)

    def release(self) -> None:
        """Leaves them to those who had them before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def act(self) -> None:
        """Ends the run because of the signal that came, if one did.

        Raises:
            KeyboardInterrupt: It was Ctrl-C.
            SystemExit: It was SIGTERM, whose usual effect would leave environments open.
        """
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def pass_on(self, _: object, error: BaseException | None, __: object) -> None:
        """Ends the process by SIGTERM, as its sender expects, where `act` has raised `error`.

        To be called as the `__exit__` of whatever is to be closed last.
        """
        if isinstance(error, SystemExit) and self.signal == signal.SIGTERM:
            signal.raise_signal(self.signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.release()
        with contextlib.suppress(OSError):  # Nobody may read it. And `print` may be under way.
            os.write(2, _NOTE)
        if self.interrupts:
            raise KeyboardInterrupt
