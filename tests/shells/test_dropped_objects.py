"""What is dropped without being closed warns, releases, and never hangs a process."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS: Final = 60.0
PREPARE: Final = """
import asyncio, gc, sys
from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate import AsyncQueryableStateClient, LocalStateCluster
from queryablestate import QueryableStateClient, StateOperations

ha = open_ha_services(HAConfig(url="embedded:dropped"))
cluster = LocalStateCluster(ha, nodes=1)
cluster.__enter__()
"""
DROPPED: Final = {
    "client": "dropped = QueryableStateClient(ha); dropped.jobs()",
    "operations": "dropped = StateOperations(ha); dropped.nodes()",
    "asynchronous client": """
async def ask():
    client = AsyncQueryableStateClient(ha)
    await client.jobs()
    return client
dropped = asyncio.run(ask())
""",
    "two that know each other": """
dropped = [QueryableStateClient(ha), StateOperations(ha)]
dropped[0].jobs(), dropped[1].nodes()
dropped.append(dropped)
""",
    "retriever": "dropped = ha.get_leader_retriever('flights')",
    "server and its client": """
server = LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0"))
server.start()
url = server.endpoint.replace("tcp://", "leaderserver://")
other = open_ha_services(HAConfig(url=url))
dropped = [server, other, other.get_leader_retriever("flights")]
del server, other
""",
}
CLOSED_FIRST: Final = {
    "the name service": "ha.close()",
    "both": "cluster.__exit__(None, None, None); ha.close()",
    "neither": "",
}


@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("closed_first", nightly_after(1, CLOSED_FIRST))
def test_what_is_dropped_hangs_nothing(dropped: str, closed_first: str) -> None:
    """Collected at any time, by any thread, after anything else; and at the end."""
    program = "\n".join(
        (
            PREPARE,
            DROPPED[dropped],
            CLOSED_FIRST[closed_first],
            "del dropped, ha, cluster",
            "gc.collect()",
            "print('collected', flush=True)",
        )
    )
    errors = check(program)
    # With a name service that is open its own thread uses it, and it is not dropped.
    is_warned_of = dropped in {"client", "operations"} and closed_first != "neither"
    assert not is_warned_of or "was never closed: close the client" in errors


@pytest.mark.parametrize("dropped", DROPPED)
def test_what_is_kept_to_the_end_hangs_nothing(dropped: str) -> None:
    """The interpreter ends, though nothing was closed."""
    check("\n".join((PREPARE, DROPPED[dropped], "print('collected', flush=True)")))


def check(program: str) -> str:
    """Run *program*; return what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert "collected" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    return done.stderr
