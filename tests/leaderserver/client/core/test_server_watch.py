from __future__ import annotations

import pytest

from leaderserver.client.core.server_watch import ServerWatch


class TestServerWatch:
    @pytest.mark.parametrize(
        ("uptime_ns", "silence_ns", "are_several"),
        [(0, 0, False), (50, 100, False), (111, 100, False), (112, 100, True)],
    )
    def test_two_that_were_alive_at_once_are_proven(
        self, uptime_ns: int, silence_ns: int, are_several: bool
    ) -> None:
        """N1: the new one ran while the former answered, whatever clocks do."""
        watch = ServerWatch()
        assert watch.session_begins("a", uptime_ns=10**9, silence_ns=0) is None
        proof = watch.session_begins("b", uptime_ns=uptime_ns, silence_ns=silence_ns)
        assert (proof is not None) == are_several

    @pytest.mark.parametrize("server_ids", [("a", "a"), ("", "b"), ("a", "")])
    def test_the_same_or_an_unnamed_one_proves_nothing(
        self, server_ids: tuple[str, str]
    ) -> None:
        """N1: a server of before tells no id."""
        watch = ServerWatch()
        for server_id in server_ids:
            proof = watch.session_begins(server_id, uptime_ns=10**9, silence_ns=0)
            assert proof is None
