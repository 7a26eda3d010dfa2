"""`ProxyFinder`: who leads, as far as the name service tells."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from nameservice import (
    ConfigurationError,
    ForkedClientError,
    LocalProtocolError,
    RemoteProtocolError,
    UnreachableError,
)
from queryablestate.connect.proxy_finder import ProxyFinder
from tests.exhausted_descriptors import no_more_descriptors
from tests.forking import run_in_child
from tests.queryablestate.scripted_proxy import Lead
from tests.recording import WAIT_SECONDS


pytestmark = pytest.mark.shells

ADDRESS = "tcp://10.0.0.1:1"

_names = itertools.count(1)


class Watcher:
    """Waits until a finder knows something."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def __call__(self) -> None:
        """Take note of a change."""
        with self._changed:
            self._changed.notify_all()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return once *holds* does; fail if it never does."""
        with self._changed:
            assert self._changed.wait_for(holds, WAIT_SECONDS)


def test_it_follows_the_leader() -> None:
    """A leader that comes, goes, and is succeeded is known at any moment."""
    watcher = Watcher()
    with open_ha_services(f"embedded:finder-{next(_names)}") as services:
        finder = ProxyFinder(services, on_change=watcher)
        assert not finder.is_started
        assert finder.leader is None
        finder.start()
        finder.start()
        assert finder.is_started
        for address in (ADDRESS, "tcp://10.0.0.2:2"):
            with Lead(services, address):
                watcher.wait_until(
                    lambda a=address: (
                        finder.leader is not None and finder.leader.address == a
                    )
                )
            watcher.wait_until(lambda: finder.leader is None)
        finder.close()
        finder.close()
        with Lead(services, ADDRESS):
            assert finder.leader is None
        assert services.config is finder.config


def test_it_opens_and_closes_what_it_is_told_how_to() -> None:
    """A URL is enough; what was opened for it is closed with it."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        watcher = Watcher()
        finder = ProxyFinder(server.url, on_change=watcher)
        finder.start()
        with open_ha_services(server.url) as services, Lead(services, ADDRESS):
            watcher.wait_until(lambda: finder.leader is not None)
        finder.close()
        with open_ha_services(server.url) as services:
            assert len(services.operations.sessions()) == 1


def test_a_name_service_that_comes_later_is_found(reserved: ReservedPort) -> None:
    """Until it answers there is a problem; afterwards there is none."""
    url = f"leaderserver://127.0.0.1:{reserved.port}"
    watcher = Watcher()
    finder = ProxyFinder(
        HAConfig(url=url, connect_timeout_seconds=0.2), on_change=watcher
    )
    finder.start()
    watcher.wait_until(lambda: finder.problem is not None)
    assert isinstance(finder.problem, UnreachableError)
    with (
        LeaderServer(ServerConfig(bind=f"tcp://127.0.0.1:{reserved.port}")),
        open_ha_services(url) as services,
        Lead(services, ADDRESS),
    ):
        watcher.wait_until(lambda: finder.leader is not None)
        assert finder.problem is None
    finder.close()


def test_closing_does_not_wait_for_a_name_service() -> None:
    """To close is not held up by somebody who does not answer."""
    nowhere = HAConfig(url="leaderserver://127.0.0.1:1", connect_timeout_seconds=0.5)
    finder = ProxyFinder(nowhere, on_change=lambda: None)
    finder.start()
    finder.close()
    finder.start()
    assert finder.leader is None


def test_a_start_that_failed_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that may have no more threads, or closed services: it says so again."""
    name = f"embedded:finder-{next(_names)}"
    with open_ha_services(name) as services, Lead(services, ADDRESS):
        watcher = Watcher()
        finder = ProxyFinder(name, on_change=watcher)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_more_threads)
            for _ in range(2):
                with pytest.raises(RuntimeError):
                    finder.start()
        finder.start()
        watcher.wait_until(lambda: finder.leader is not None)
        finder.close()
    finder = ProxyFinder(services, on_change=watcher)
    for _ in range(2):
        with pytest.raises(LocalProtocolError):
            finder.start()


def _no_more_threads(thread: threading.Thread) -> None:
    raise RuntimeError(f"can't start new thread {thread.name}")


def test_what_is_opened_too_late_is_closed() -> None:
    """A name service that is open when it is not wanted any more is left again."""
    with open_ha_services(f"embedded:finder-{next(_names)}") as services:
        finder = ProxyFinder(services, on_change=lambda: None)
        finder._closed.set()
        finder._retrieve(services)
        assert finder._close_retriever is None
    with open_ha_services(f"embedded:finder-{next(_names)}") as services:
        finder = ProxyFinder(services, on_change=lambda: None)
        finder._closed.set()
        finder._retrieve(services, is_owner=True)
        with pytest.raises(LocalProtocolError):
            services.get_leader_retriever("job")


def test_trouble_leaves_what_was_known() -> None:
    """An error of the name service is told along with the leader it had named."""
    with open_ha_services(f"embedded:finder-{next(_names)}") as services:
        watcher = Watcher()
        finder = ProxyFinder(services, on_change=watcher)
        assert not finder.has_heard
        finder.start()
        with Lead(services, ADDRESS):
            watcher.wait_until(lambda: finder.leader is not None)
            problem = RemoteProtocolError("odd", "odd frame")
            finder.handle_error(problem)
            finder.handle_error(ValueError("a bug"))
            assert finder.leader is not None
            assert finder.problem is problem
            assert finder.has_heard
        finder.close()


def test_a_child_is_refused() -> None:
    """After ``fork()`` it is the parent's alone (rule E10)."""
    with open_ha_services(f"embedded:finder-{next(_names)}") as services:
        finder = ProxyFinder(services, on_change=lambda: None)
        assert run_in_child(finder.start) == ForkedClientError.__name__
        assert run_in_child(finder.close) == "None"
        finder.start()
        finder.close()


def test_nonsense_is_refused() -> None:
    """What is no URL is told where it is given."""
    with pytest.raises(ConfigurationError):
        ProxyFinder("nonsense", on_change=lambda: None)


def test_a_process_without_descriptors_looks_again_once_it_has_some() -> None:
    """A name service that could not be opened for want of sockets is tried again."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        watcher = Watcher()
        open_ha_services(server.url).close()  # what it imports is loaded by now
        finder = ProxyFinder(server.url, on_change=watcher)
        with no_more_descriptors():
            finder.start()
            watcher.wait_until(lambda: finder.problem is not None)
        assert isinstance(finder.problem, ConfigurationError)
        with open_ha_services(server.url) as services, Lead(services, ADDRESS):
            watcher.wait_until(lambda: finder.leader is not None)
        finder.close()
