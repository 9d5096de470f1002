"""Findings of a watched program, and the delivery of events to listeners."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from schemas.digest import write_atomic
from training.watch.events import Listener, Place

AHEAD = 8  # steps; no rank is so far ahead of another
OWN = str(Path(__file__).resolve().parent)
INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})


class Seen(NamedTuple):
    """A mistake that was found."""

    rule: str
    place: Place
    message: str


class Enough(BaseException):
    """Exception that ends the program when its time is up, past any `except Exception`."""


P = ParamSpec("P")
R = TypeVar("R")


def guarded(method: Callable[P, R]) -> Callable[P, R | None]:
    """Wrap a listener's method and keep its errors in `watch.failures`. The program must run as it
    does without a watch.
    """

    @functools.wraps(method)
    def tried(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            listener: Any = args[0]
            listener.watch.failures.append(
                f"{method.__qualname__}: {type(error).__name__}:"
                f" {(str(error).splitlines() or [''])[0]}"
            )
            return None

    return tried


@dataclass(eq=False)
class Watch:
    """One run of a program.

    Errors of `listeners` are kept in `failures` and never reach the program. `quiet` is true while
    listeners run their own checks.
    """

    program: Path
    seconds: float
    stop_file: Path | None = None  # several ranks: file with the last step of all
    leads: bool = True  # true for the first rank
    listeners: list[Listener] = field(default_factory=list)
    found: dict[tuple[str, Place], Seen] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    steps: int = 0
    backwards: int = 0
    # calls of torch.autograd.grad, which can train without backward and optimizer
    differentiated: int = 0
    quiet: bool = False
    complete: bool = False  # the program reached its own end
    # its globals, kept alive: destroying DDP may wait forever for a thread of its group
    namespace: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        os.register_at_fork(after_in_child=self._silence)  # workers of a loader are not watched
        self._roots = (str(self.program.resolve().parent), str(Path.cwd()))
        self._hearing: dict[str, list[Listener]] = {}  # by event, the listeners that handle it

    def _silence(self) -> None:
        self.quiet = True

    def tell(self, rule: str, message: str, place: Place | None = None) -> None:
        """Keep a finding, once per rule and place."""
        where = place or self.here()
        self.found.setdefault((rule, where), Seen(rule, where, message))

    def here(self) -> Place:
        """Return the innermost running line of the program."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.owns(frame.f_code.co_filename):
            frame = frame.f_back
        return (
            Place(frame.f_code.co_filename, frame.f_lineno)
            if frame is not None
            else Place(str(self.program), 1)
        )

    def calling(self, function: str) -> bool:
        """Check that a function of this name is running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        return frame is not None

    def owns(self, path: str) -> bool:
        """Check that a file belongs to the program."""
        return path.startswith(self._roots) and not path.startswith((OWN, *INSTALLED))

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Pause the watch during a test."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def emit(
        self, event: Callable[Concatenate[Listener, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Send an event to every listener, e.g. `emit(Listener.stepped, optimizer)`."""
        if self.quiet:
            return
        with self.unwatched():
            self.deliver(event, *args, **kwargs)
        if event is Listener.stepped and self._over():
            raise Enough

    def deliver(
        self, event: Callable[Concatenate[Listener, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Send an event that occurs while the watch itself runs a check."""
        name = event.__name__
        if name not in self._hearing:
            self._hearing[name] = [x for x in self.listeners if getattr(type(x), name) is not event]
        for listener in self._hearing[name]:
            try:
                getattr(listener, name)(*args, **kwargs)
            except Exception as error:  # the program must run as it does without a watch
                self.failures.append(
                    f"{type(listener).__name__}.{name}: {type(error).__name__}: {error}"
                )

    def _over(self) -> bool:
        """Check that the time is up. Several ranks end together, after the step that the first one
        sets.
        """
        up = time.monotonic() - self.started > self.seconds
        if self.stop_file is None:
            return up
        if up and self.leads and not self.stop_file.exists():
            write_atomic(self.stop_file, str(self.steps + AHEAD))
        return self.stop_file.exists() and self.steps >= int(self.stop_file.read_text())
