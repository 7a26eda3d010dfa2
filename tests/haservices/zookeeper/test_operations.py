"""What operators' operations say where ZooKeeper cannot do all of them at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing.tcp_proxy import TCPProxy
from haservices.zookeeper.backend import ZooKeeperHAServices
from haservices.zookeeper.operations import ZooKeeperOperations
from nameservice import MayHaveHappenedError
from tests.recording import ConfirmingContender


if TYPE_CHECKING:
    from collections.abc import Sequence

    from haservices.zookeeper.nodes import NodeOperation


pytestmark = pytest.mark.shells


class TestExpire:
    def test_what_is_half_done_may_have_happened(
        self, zookeeper_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """L4: cut off after the first of two entries, it is not "unreachable"."""
        parts = urlsplit(zookeeper_url)
        assert parts.hostname is not None
        assert parts.port is not None
        with contextlib.ExitStack() as resources:
            leading = resources.enter_context(
                open_ha_services(HAConfig(url=zookeeper_url))
            )
            for job_id in ("a", "b"):
                election = leading.get_leader_election(job_id)
                contender = ConfirmingContender(election, "a:1")
                election.start(contender)
                contender.wait_for_confirm()
            (session_id,) = {each.session_id for each in leading.operations.sessions()}
            proxy = resources.enter_context(TCPProxy((parts.hostname, parts.port)))
            operator = resources.enter_context(
                open_ha_services(
                    HAConfig(
                        url=f"zookeeper://{proxy.address}{parts.path}",
                        connect_timeout_seconds=2.0,
                    )
                )
            )
            assert isinstance(operator, ZooKeeperHAServices)
            attempt = ZooKeeperOperations._attempt

            def attempt_and_cut(
                self: ZooKeeperOperations, operations: Sequence[NodeOperation]
            ) -> bool:
                is_done = attempt(self, operations)
                proxy.cut()
                return is_done

            monkeypatch.setattr(ZooKeeperOperations, "_attempt", attempt_and_cut)
            with pytest.raises(MayHaveHappenedError, match="1 of the session's"):
                operator.operations.expire(session_id)
            proxy.heal()
