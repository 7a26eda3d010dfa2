"""The life of a gateway: what a start that fails leaves behind (F4)."""

from __future__ import annotations

import pytest

from haservices import open_ha_services
from nameservice import LocalProtocolError
from queryablestate.gateway import GatewayServer
from tests.exhausted_threads import no_more_threads
from tests.leaks import assert_closed, process_figures, settled


pytestmark = pytest.mark.proves("F4")


def test_a_gateway_that_has_got_no_thread_says_so() -> None:
    """F4: a container may have no more of them; nothing of the gateway is left."""
    with open_ha_services("embedded:gateway-without-thread") as ha:
        before = settled(process_figures)
        with no_more_threads("gateway"):
            gateway = GatewayServer(ha)
            with pytest.raises(RuntimeError, match="new thread"):
                gateway.start()
            with pytest.raises(LocalProtocolError):
                gateway.observe()
            gateway.close()
        assert_closed(before)
