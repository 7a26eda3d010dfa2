"""Contenders and listeners that write down what they are told, for every test."""

from __future__ import annotations

import errno
import io
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, final

from attrs import frozen

from election import LeaderSession
from nameservice import LeadershipLostError
from retrieval import LeaderInformation


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderElection


# Generous: it bounds how long a broken test takes, not how fast the code must be.
WAIT_SECONDS = 30.0

T = TypeVar("T")


@frozen
class Granted:
    session: LeaderSession


@frozen
class Revoked:
    pass


@frozen
class Failed:
    error: Exception


@frozen
class Notified:
    leader: LeaderInformation | None


@final
class FullDisk(io.StringIO):
    """Standard error, if it is a file on a disk that is full."""

    def write(self, _: str, /) -> int:
        """Fail."""
        raise OSError(errno.ENOSPC, "No space left on device")


ContenderCall: TypeAlias = Granted | Revoked | Failed
ListenerCall: TypeAlias = Notified | Failed


@final
class Record(Generic[T]):
    """What happened, in order; any thread may add to it or wait for it to grow."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: tuple[T, ...] = ()

    def add(self, item: T) -> None:
        """Take note of *item*."""
        with self._changed:
            self._items = (*self._items, item)
            self._changed.notify_all()

    @property
    def items(self) -> tuple[T, ...]:
        """Return what was added so far."""
        return self._items

    def wait_until(
        self,
        holds: Callable[[tuple[T, ...]], bool],
        timeout_seconds: float = WAIT_SECONDS,
    ) -> tuple[T, ...]:
        """Return the items once *holds* says so of them; fail if it never does."""
        with self._changed:
            is_so = self._changed.wait_for(lambda: holds(self._items), timeout_seconds)
            assert is_so, f"waited {timeout_seconds} s, and got only {self._items}"
            return self._items

    def wait_for_count(self, count: int) -> tuple[T, ...]:
        """Return the items once there are *count* of them."""
        return self.wait_until(lambda items: len(items) >= count)


class RecordingContender:
    """Writes down its calls; confirms nothing."""

    def __init__(self) -> None:
        self.record: Record[ContenderCall] = Record()

    def grant_leadership(self, session: LeaderSession) -> None:
        """Write the grant down."""
        self.record.add(Granted(session))

    def revoke_leadership(self) -> None:
        """Write the revocation down."""
        self.record.add(Revoked())

    def handle_error(self, error: Exception) -> None:
        """Write the error down."""
        self.record.add(Failed(error))

    @property
    def calls(self) -> tuple[ContenderCall, ...]:
        """Return the calls so far."""
        return self.record.items

    @property
    def granted(self) -> tuple[LeaderSession, ...]:
        """Return the leaderships granted so far."""
        return tuple(call.session for call in self.calls if isinstance(call, Granted))

    @property
    def revoked_count(self) -> int:
        """Return how often it was revoked so far."""
        return sum(isinstance(call, Revoked) for call in self.calls)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """Return the errors it was told of so far."""
        return tuple(call.error for call in self.calls if isinstance(call, Failed))

    def wait_for_grant(self, count: int = 1) -> LeaderSession:
        """Return the *count*-th leadership granted, waiting for it."""
        self.record.wait_until(
            lambda calls: sum(isinstance(call, Granted) for call in calls) >= count
        )
        return self.granted[count - 1]

    def wait_for_revoke(self, count: int = 1) -> None:
        """Return once it was revoked *count* times."""
        self.record.wait_until(
            lambda calls: sum(isinstance(call, Revoked) for call in calls) >= count
        )

    def wait_for_error(self) -> Exception:
        """Return the first error it is told of, waiting for it."""
        self.record.wait_until(
            lambda calls: any(isinstance(call, Failed) for call in calls)
        )
        return self.errors[0]


class ConfirmingContender(RecordingContender):
    """Confirms each leadership at once, under one address."""

    def __init__(self, election: LeaderElection, address: str) -> None:
        super().__init__()
        self.confirmed: Record[LeaderSession] = Record()
        self._election = election
        self._address = address

    def grant_leadership(self, session: LeaderSession) -> None:
        """Write the grant down, confirm it, and write that down too."""
        super().grant_leadership(session)
        try:
            self._election.confirm_leadership(session.leader_session_id, self._address)
        except LeadershipLostError:
            return  # revoked meanwhile: the next grant is confirmed again
        self.confirmed.add(session)

    def wait_for_confirm(self, count: int = 1) -> LeaderSession:
        """Return the *count*-th leadership that it confirmed, waiting for it."""
        return self.confirmed.wait_for_count(count)[count - 1]


class RecordingListener:
    """Writes down its calls."""

    def __init__(self) -> None:
        self.record: Record[ListenerCall] = Record()

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Write the notification down."""
        self.record.add(Notified(leader))

    def handle_error(self, error: Exception) -> None:
        """Write the error down."""
        self.record.add(Failed(error))

    @property
    def calls(self) -> tuple[ListenerCall, ...]:
        """Return the calls so far."""
        return self.record.items

    @property
    def leaders(self) -> tuple[LeaderInformation | None, ...]:
        """Return what it was notified of so far."""
        return tuple(call.leader for call in self.calls if isinstance(call, Notified))

    @property
    def errors(self) -> tuple[Exception, ...]:
        """Return the errors it was told of so far."""
        return tuple(call.error for call in self.calls if isinstance(call, Failed))

    def wait_for_leader(
        self, holds: Callable[[LeaderInformation | None], bool]
    ) -> LeaderInformation | None:
        """Return the first notification of which *holds* is true, waiting for it."""
        self.record.wait_until(
            lambda calls: any(
                isinstance(call, Notified) and holds(call.leader) for call in calls
            )
        )
        return next(leader for leader in self.leaders if holds(leader))

    def wait_for_latest(
        self, holds: Callable[[LeaderInformation | None], bool]
    ) -> LeaderInformation | None:
        """Return the latest notification as soon as *holds* is true of it."""
        calls = self.record.wait_until(
            lambda calls: (
                bool(calls)
                and isinstance(latest := calls[-1], Notified)
                and holds(latest.leader)
            )
        )
        latest = calls[-1]
        assert isinstance(latest, Notified)
        return latest.leader


def wait_until(
    holds: Callable[[], bool], *, timeout_seconds: float = WAIT_SECONDS
) -> None:
    """
    Return once *holds* does; for what is not told, such as another's counters.

    Where there is an event to wait for, wait for that.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()  # is never set: `wait` is a pause that can be bounded
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_seconds} s in vain"
        pause.wait(0.005)
