"""Limits from a file, and limits that change while a server runs (N3, E9)."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from structlog.testing import capture_logs

from leaderserver import LeaderServer, ServerConfig
from leaderserver.messages import FailedReply, RefusedHello, RegisteredReply, Welcome
from leaderserver.server.limits import (
    LIMITS,
    RELOADABLE_LIMITS,
    changed_settings,
    load_limits,
    with_reloadable,
)
from lodestar.server import _LIMITS as OPTIONS
from nameservice import ConfigurationError
from tests.leaderserver.scripted_client import ScriptedClient


ANY_PORT = "tcp://127.0.0.1:0"


class TestFile:
    def test_it_holds_limits_by_their_names(self, tmp_path: Path) -> None:
        """As `ServerConfig` names them; an option outweighs it."""
        path = tmp_path / "limits.toml"
        path.write_text("sessions_max = 20_000\nlease_seconds_max = 0.5\n")
        assert load_limits(path) == {"sessions_max": 20_000, "lease_seconds_max": 0.5}
        assert load_limits(path, overrides={"sessions_max": 3})["sessions_max"] == 3

    @pytest.mark.parametrize(
        ("text", "saying"),
        [
            ("sessions_max = ", "cannot be read"),
            ("session_max = 1", "session_max is no limit; known are .*sessions_max"),
            ("bind = 'tcp://*:1'", "bind is no limit"),
            ("sessions_max = 0", "sessions_max must be 1 to"),
            ("sessions_max = '1'", "sessions_max must be a whole number"),
            ("memory_limit_bytes = 1", "memory_limit_bytes must be"),
            ("sessions_max = 1\nsessions_max = 2", "cannot be read"),
            ("#" * 70_000, "is it the right one"),
            ("sessions_max = " + "[" * 5_000, "it is nested too deeply"),
            ("sessions_max = 0x1" + "0" * 5_000, "Exceeds the limit"),
        ],
    )
    def test_a_mistake_is_named(self, tmp_path: Path, text: str, saying: str) -> None:
        """With the file and the setting."""
        path = tmp_path / "limits.toml"
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=saying) as caught:
            load_limits(path)
        assert str(path) in str(caught.value)

    def test_what_is_no_file_is_named(self, tmp_path: Path) -> None:
        """A path that is wrong, and bytes that are no text."""
        with pytest.raises(ConfigurationError, match="No such file"):
            load_limits(tmp_path / "none.toml")
        (tmp_path / "bytes").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load_limits(tmp_path / "bytes")

    def test_every_limit_is_an_option_and_a_setting(self) -> None:
        """One list of names, in the file, on the command line and in the code."""
        assert sorted(LIMITS) == sorted(name for name, _ in OPTIONS)
        assert set(LIMITS) <= set(attrs.fields_dict(ServerConfig))


class TestReloadable:
    def test_only_those_are_taken(self) -> None:
        """E9: a lease is none of them, whatever the file says."""
        old = ServerConfig()
        new = ServerConfig(
            sessions_max=3, lease_seconds_max=0.5, session_timeout_seconds_max=9
        )
        assert changed_settings(old, with_reloadable(old, new)) == ("sessions_max",)
        assert not [n for n in RELOADABLE_LIMITS if "seconds" in n]


@pytest.mark.shells
class TestRunning:
    @pytest.mark.proves("N3")
    def test_more_are_taken_once_more_may(self) -> None:
        """N3: without a restart; and who is there stays when fewer may."""
        config = ServerConfig(bind=ANY_PORT, sessions_max=1)
        with (
            LeaderServer(config) as server,
            ScriptedClient(server) as first,
            ScriptedClient(server) as second,
            ScriptedClient(server) as third,
        ):
            first.hello()
            assert isinstance(second.hello(nonce=b"2" * 16), RefusedHello)
            assert server.reload(attrs.evolve(config, sessions_max=2))
            assert isinstance(second.hello(nonce=b"2" * 16), Welcome)
            server.reload(attrs.evolve(config, sessions_max=1))
            assert isinstance(third.hello(nonce=b"3" * 16), RefusedHello)
            assert isinstance(second.register("c/job", "x"), RegisteredReply)
            assert server.status()["sessions"] == 2

    def test_contenders_and_components(self) -> None:
        """N3: each of them by its own limit."""
        config = ServerConfig(
            bind=ANY_PORT, contenders_per_session_max=1, components_max=1
        )
        with LeaderServer(config) as server, ScriptedClient(server) as client:
            client.hello()
            assert isinstance(client.register("c/a", "x"), RegisteredReply)
            assert isinstance(client.register("c/b", "x"), FailedReply)
            server.reload(attrs.evolve(config, contenders_per_session_max=9))
            assert isinstance(client.register("c/b", "x"), FailedReply)
            server.reload(
                attrs.evolve(config, contenders_per_session_max=9, components_max=9)
            )
            assert isinstance(client.register("c/b", "x"), RegisteredReply)

    @pytest.mark.proves("E9")
    def test_what_needs_a_restart_is_named(self) -> None:
        """E9: the lease that is granted stays what the server started with."""
        config = ServerConfig(bind=ANY_PORT, lease_seconds_max=0.5)
        with LeaderServer(config) as server, ScriptedClient(server) as client:
            other = attrs.evolve(
                config, lease_seconds_max=1.0, frame_size_bytes_max=70_000
            )
            with capture_logs() as logs:
                server.reload(other)
                server.reload(other)
            named = [
                e["setting"] for e in logs if e["event"] == "server.restart_needed"
            ]
            assert named == ["lease_seconds_max", "frame_size_bytes_max"] * 2
            welcome = client.hello(lease_seconds=1)
            assert isinstance(welcome, Welcome)
            assert welcome.lease_ns == 500_000_000

    def test_the_memory_limit_is_divided_anew(self) -> None:
        """N3: each share of it."""
        config = ServerConfig(bind=ANY_PORT, connections_max=1_000)
        with LeaderServer(config) as server:
            running = server._running
            assert running is not None
            small = running._port.limiter.connections_max
            server.reload(attrs.evolve(config, memory_limit_bytes=2**30))
            assert small < 1_000
            assert running._port.limiter.connections_max == 1_000
            assert (
                running._replies._queues.limits.bytes_max
                == (
                    attrs.evolve(config, memory_limit_bytes=2**30).memory_plan
                ).replies_bytes_max
            )
