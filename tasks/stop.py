"""Handle Ctrl-C, SIGTERM and a closed terminal: at once, without loss, within seconds.

A signal sets a flag. The loop that waits for the training program reads it; elsewhere the handler
raises, as Python and Prefect do. An exception in a callback of the garbage collector is lost, and a
query in C does not see one. Therefore a thread that the kernel wakes at each signal interrupts
queries, and raises again until the stop is handled. On the command line it also ends slow steps,
and a second Ctrl-C ends everything at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, NoReturn

from tasks.family import VARIABLE, kill_family

# SIGHUP: the terminal, or the tmux session, was closed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# from the thread to the main thread: raise again
AGAIN = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
STOP_SECONDS = 8.0  # from the signal to the end of the command
SAVE_SECONDS = 25.0  # while ranks save: the launcher gives them 20
EXIT_SECONDS = 15.0  # from the last line of a command to the end of its process
AGAIN_SECONDS, POLLED_SECONDS = 0.5, 2.0
SECOND_SECONDS = 0.5  # `timeout` sends its signal twice within a millisecond: not a second Ctrl-C
LOOK_SECONDS = 0.1
FLOW_RUN = "PREFECT__FLOW_RUN_ID"  # in the environment of a flow run that a worker started


class Terminated(KeyboardInterrupt):
    """SIGTERM outside a flow (inside, Prefect has its own exception), or SIGHUP."""


class _Stop:
    """Stop of this process: the signal that requested it, and the code that handles it."""

    def __init__(self) -> None:
        self.number, self.since, self.deadline, self.code = 0, 0.0, 0.0, 1
        self.polled = self.taken = self.command = self.heard = False
        self.before: dict[int, Any] = {}

    def note(self, number: int) -> None:
        """Keep the first signal and its time."""
        if not self.number:
            self.since = time.monotonic()
            self.deadline, self.number = self.since + STOP_SECONDS, number

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, in the main thread."""
        self.note(number)
        if not (self.polled or self.taken):
            self.raise_it(frame)

    def hear_again(self, number: int, frame: FrameType | None) -> None:
        """Handle the thread's request, in the main thread."""
        if self.number and not self.taken:
            self.raise_it(frame)

    def raise_it(self, frame: FrameType | None = None) -> NoReturn:
        """Raise what the previous handler would raise: KeyboardInterrupt or Prefect's
        TerminationSignal.
        """
        handler = self.before.get(self.number)
        if callable(handler):
            handler(self.number, frame)
        raise KeyboardInterrupt if self.number == signal.SIGINT else Terminated


_stop = _Stop()
_for_ever = ExitStack()  # open until the end of the process


def reason() -> str:
    """Return the name of the signal that requested a stop; empty without one."""
    return signal.Signals(_stop.number).name if _stop.number else ""


def say_stopped() -> int:
    """Print the last line of a stopped command; return its exit code.

    Like a shell, it is 128 plus the number of the signal.
    """
    take()
    with suppress(OSError):
        print(
            f"\n✗ stopped by {reason() or 'SIGINT'}; what was saved stays",
            file=sys.stderr,
            flush=True,
        )
    return _exit_code()


def _exit_code() -> int:
    return 128 + (_stop.number or signal.SIGINT)


@contextmanager
def listening() -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP in the block, before other handlers; it may be nested."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    outer, before = not _stop.heard, dict(_stop.before)
    _stop.before |= {
        number: handler for number, handler in handlers.items() if handler != _stop.hear
    }
    for number in SIGNALS:
        # ignored by nohup, or by a shell that starts it in the background
        if handlers[number] is signal.SIG_IGN:
            continue
        # Prefect shows Cancelled only if the handler is its own
        if number == signal.SIGTERM and FLOW_RUN in os.environ:
            continue
        signal.signal(number, _stop.hear)
    with _thread() if outer else nullcontext():
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            _stop.before = before


@contextmanager
def _thread() -> Iterator[None]:
    signal.signal(AGAIN, _stop.hear_again)
    own, woken = socket.socketpair()
    woken.setblocking(False)
    wakes, over = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False), threading.Event()
    thread = threading.Thread(target=_follow, args=(own, over), name="stop", daemon=True)
    thread.start()
    _stop.heard = True
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.set_wakeup_fd(wakes)
        own.close()
        woken.close()
        signal.signal(AGAIN, signal.SIG_DFL)
        _stop.__init__()  # type: ignore[misc]  # a process that goes on can be stopped again


@contextmanager
def command() -> Iterator[None]:
    """Run a command of the command line; its process ends within seconds of it.

    Everything that it started ends too, after a stop or without one.
    """
    code: object = 1
    atexit.register(_end_process)  # before all others, so it runs last
    _for_ever.enter_context(listening())
    _stop.command = True
    try:
        yield
        code = None
    except SystemExit as ended:
        code = ended.code
        # outside a command's own block typer turns the interruption into an exit
        if _stop.number and not _stop.taken:
            code = say_stopped()
            raise SystemExit(code) from None
        raise
    except BaseException as error:
        if not (_stop.number or isinstance(error, KeyboardInterrupt)):
            raise
        code = say_stopped()
        raise SystemExit(code) from None
    finally:
        take()
        left = min(
            EXIT_SECONDS, _stop.deadline - time.monotonic() if _stop.number else EXIT_SECONDS
        )
        _stop.code = code if isinstance(code, int) else int(code is not None)
        threading.Thread(target=_leave, args=(max(1.0, left),), name="leave", daemon=True).start()


def stand_aside() -> None:
    """Leave signals to the command itself, which has its own handlers and time limits."""
    _stop.command = False
    _stop.taken = True


@contextmanager
def polled() -> Iterator[Callable[[], None]]:
    """Raise signals in this block only when the yielded function is called, and at the end."""

    def check() -> None:
        if _stop.number and not _stop.taken:
            _stop.raise_it()

    _stop.polled = True
    try:
        yield check
        check()
    finally:
        _stop.polled = False


def take(seconds: float = 0.0) -> None:
    """Begin to handle the stop; no later signal interrupts it.

    Args:
        seconds: time limit from now on, if longer than a command's.
    """
    raised = sys.exc_info()[1]
    # Prefect's own handler raised it, perhaps before the thread was woken
    if raised is not None and not isinstance(raised, Exception):
        number = getattr(
            raised, "signal", signal.SIGINT if isinstance(raised, KeyboardInterrupt) else 0
        )
        if number:
            _stop.note(int(number))
    _stop.taken = _stop.taken or bool(_stop.number)
    if _stop.number and seconds:
        _stop.deadline = time.monotonic() + seconds


def stopped(error: BaseException) -> BaseException:
    """Return the error itself, or the stop if one was requested.

    A later error, such as an interrupted query, is not the cause.
    """
    if not _stop.number or not isinstance(error, Exception):
        return error
    try:
        _stop.raise_it()
    except BaseException as stop:
        return stop


# ------------------------------------------------------------------------------------------------
# thread


def _follow(own: socket.socket, over: threading.Event) -> None:
    """Read the signals from the kernel, even if the main thread has not reached its handlers."""
    own.settimeout(LOOK_SECONDS)
    again = 0.0
    while not over.is_set():
        numbers = _arrived(own)
        if numbers and not _stop.number:
            _stop.note(numbers[0])
            _interrupt_queries()
        late = time.monotonic() - _stop.since
        if not _stop.number:
            continue
        if _stop.command:
            _end_if_due(late, signal.SIGINT in numbers)
        if (
            not _stop.taken
            and late > (POLLED_SECONDS if _stop.polled else AGAIN_SECONDS)
            and time.monotonic() > again + AGAIN_SECONDS
        ):
            again = time.monotonic()
            _interrupt_queries()
            signal.pthread_kill(threading.main_thread().ident or 0, AGAIN)


def _arrived(own: socket.socket) -> list[int]:
    try:
        return [number for number in own.recv(64) if number in SIGNALS]
    except TimeoutError:
        return []


def _interrupt_queries() -> None:
    # not loaded for this: a command may need no engine
    engine = sys.modules.get("training.data.engine.engine")
    if engine is not None:
        engine.interrupt_queries()


def _end_if_due(late: float, asked: bool) -> None:
    if asked and late > SECOND_SECONDS:
        _end_at_once("stopped at once; what was saved stays", _exit_code())
    if time.monotonic() > _stop.deadline:
        _end_at_once(
            f"not stopped after {late:.0f} s, so ended; what was saved stays", _exit_code()
        )


def _leave(seconds: float) -> None:
    time.sleep(seconds)
    _end_at_once("", _stop.code)


def _end_process() -> None:
    """End the process now: tearing down torch and DuckDB object by object takes seconds for
    nothing.
    """
    code = _stop.code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader is gone, or its disk is full
            code = code or 1
    os._exit(code)


def _end_at_once(why: str, code: int) -> NoReturn:
    with suppress(OSError):
        print(f"\n✗ {why}" if why else "", end="\n" if why else "", file=sys.stderr, flush=True)
    kill_family(os.environ.get(VARIABLE, ""))
    os._exit(code)
