"""What a watched program is found to do, where, and who listens while it runs."""

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

AHEAD = 8  # steps: no rank is so far ahead of another
OWN = str(Path(__file__).resolve().parent)
INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})


class Seen(NamedTuple):
    """A mistake that was seen."""

    rule: str
    place: Place
    message: str


class Enough(BaseException):
    """Ends the program when its time is up; no `except Exception` of its own may hold it back."""


P = ParamSpec("P")
R = TypeVar("R")


def guarded(method: Callable[P, R]) -> Callable[P, R | None]:
    """A method of a listener whose errors are kept in `watch.failures`: a program must run as it
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

    What `listeners` raise is kept in `failures` and never reaches the program. `quiet` is true
    while they look at something by themselves.
    """

    program: Path
    seconds: float
    stop_file: Path | None = None  # of several ranks: holds the step after which all of them end
    leads: bool = True  # of several ranks: whether it is the first
    listeners: list[Listener] = field(default_factory=list)
    found: dict[tuple[str, Place], Seen] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    steps: int = 0
    backwards: int = 0
    # calls of torch.autograd.grad, by which a program may train without backward and optimizer
    differentiated: int = 0
    quiet: bool = False
    complete: bool = False  # whether the program came to its own end
    # its globals: to take DDP down may wait for ever for a thread of its group
    namespace: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        os.register_at_fork(after_in_child=self._silence)  # workers of a loader are not watched
        self._roots = (str(self.program.resolve().parent), str(Path.cwd()))
        self._hearing: dict[str, list[Listener]] = {}  # by event, those that do something there

    def _silence(self) -> None:
        self.quiet = True

    def tell(self, rule: str, message: str, place: Place | None = None) -> None:
        """Keep a finding, once a rule and place."""
        where = place or self.here()
        self.found.setdefault((rule, where), Seen(rule, where, message))

    def here(self) -> Place:
        """The innermost line of the program that is running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.owns(frame.f_code.co_filename):
            frame = frame.f_back
        return (
            Place(frame.f_code.co_filename, frame.f_lineno)
            if frame is not None
            else Place(str(self.program), 1)
        )

    def calling(self, function: str) -> bool:
        """Whether a function of that name is running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != function:
            frame = frame.f_back
        return frame is not None

    def owns(self, path: str) -> bool:
        """Whether a file is one of the program."""
        return path.startswith(self._roots) and not path.startswith((OWN, *INSTALLED))

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """While something is tried on the side."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def emit(
        self, event: Callable[Concatenate[Listener, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Tell every listener of an event, e.g. `emit(Listener.stepped, optimizer)`."""
        if self.quiet:
            return
        with self.unwatched():
            self.deliver(event, *args, **kwargs)
        if event is Listener.stepped and self._over():
            raise Enough

    def deliver(
        self, event: Callable[Concatenate[Listener, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """The same, of what is seen while the watch looks at something."""
        name = event.__name__
        if name not in self._hearing:
            self._hearing[name] = [x for x in self.listeners if getattr(type(x), name) is not event]
        for listener in self._hearing[name]:
            try:
                getattr(listener, name)(*args, **kwargs)
            except Exception as error:  # a program must run as it does without a watch
                self.failures.append(
                    f"{type(listener).__name__}.{name}: {type(error).__name__}: {error}"
                )

    def _over(self) -> bool:
        """Whether the time is up; of several ranks, whether all have made the step that the first
        of them named.
        """
        up = time.monotonic() - self.started > self.seconds
        if self.stop_file is None:
            return up
        if up and self.leads and not self.stop_file.exists():
            write_atomic(self.stop_file, str(self.steps + AHEAD))
        return self.stop_file.exists() and self.steps >= int(self.stop_file.read_text())
