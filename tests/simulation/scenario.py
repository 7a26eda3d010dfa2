"""What a seed stands for: how many nodes, which times, which network, which faults."""

from __future__ import annotations

from random import Random
from typing import Final

from attrs import frozen

from tests.simulation.timeline import MS


__all__ = [
    "ClientPlan",
    "Epilogue",
    "NetworkPlan",
    "Scenario",
    "Storage",
    "clock_parts",
    "make_client_plan",
    "make_scenario",
]

# The share of scenarios with many contenders in a client, and as many as are many.
_CROWD_SHARE: Final = 0.1
_CROWD_COUNT_MIN: Final = 5
# Clock rates differ by at most 5 %: 1.0245 / 0.9759 = 1.0498.
_PARTS_MIN: Final = 975_900
_PARTS_MAX: Final = 1_024_500


class Storage:
    """What a server remembers when it is started again."""

    DURABLE: Final = "durable"
    MEMORY: Final = "memory"
    LOSSY: Final = "lossy"  # durable, but the data directory is sometimes lost


class Epilogue:
    """One fault alone, after which a rule says exactly what must become of it."""

    NONE: Final = "none"
    SERVER_PAUSED: Final = "server paused"
    SERVER_RESTARTED: Final = "server restarted"
    LEADER_KILLED: Final = "leader killed"
    LEADER_DEAF: Final = "leader deaf"
    CONTENDERS_CLOSED: Final = "contenders closed"
    SERVER_STALLS: Final = "server stalls again and again"
    LEADER_KILLED_IN_STALLS: Final = "leader killed while the server stalls"


EPILOGUES: Final = (
    Epilogue.NONE,
    Epilogue.NONE,
    Epilogue.NONE,
    Epilogue.NONE,
    Epilogue.SERVER_PAUSED,
    Epilogue.SERVER_RESTARTED,
    Epilogue.LEADER_KILLED,
    Epilogue.LEADER_DEAF,
    Epilogue.CONTENDERS_CLOSED,
    Epilogue.SERVER_STALLS,
    Epilogue.LEADER_KILLED_IN_STALLS,
)


@frozen(kw_only=True)
class NetworkPlan:
    """
    How bad the network is while it is bad.

    Attributes:
        latency_ns: The least delay of a message.
        jitter_ns: The mean of what is added to it.
        loss: Probability that a message is lost.
        duplication: Probability that it arrives twice.
        late: Probability that it is as late as a lease.
        is_ordered: Whether one connection keeps its messages in order, as TCP does.
    """

    latency_ns: int
    jitter_ns: int
    loss: float
    duplication: float
    late: float
    is_ordered: bool


@frozen(kw_only=True)
class ClientPlan:
    """
    One client's configuration and habits.

    Attributes:
        lease_ns: Asked for.
        session_timeout_ns: Asked for.
        clears_on_suspended: Its policy.
        contends_for: What its first contenders want to lead; repeated for two.
        retrieves: What its first retrievers look for.
        confirm_timeout_ns: Of its contenders.
        confirms: Probability that a contender confirms a grant in a bad time.
        callback_ns: The mean duration of a callback.
    """

    lease_ns: int
    session_timeout_ns: int
    clears_on_suspended: bool
    contends_for: tuple[str, ...]
    retrieves: tuple[str, ...]
    confirm_timeout_ns: int
    confirms: float
    callback_ns: int


@frozen(kw_only=True)
class Scenario:
    """
    Everything about one run that is decided before it.

    Attributes:
        seed: What it was made from.
        lease_ns_max: The longest lease that the server admits.
        lease_ns_min: The shortest.
        storage: What the server remembers.
        components: What there is to lead.
        clients: Who is there at the beginning.
        network: How bad the network is.
        fault_interval_ns: The mean time between two faults.
        faults_end_ns: When faults stop.
        checks_whole_bound: Whether to go on to the end though everybody agrees.
        epilogue: What happens once everybody agrees and nothing else goes wrong.
        write_ns: The mean time that the disk takes for a batch; 0 if the server waits
            for its storage, which takes none.
    """

    seed: int
    lease_ns_max: int
    lease_ns_min: int
    storage: str
    components: tuple[str, ...]
    clients: tuple[ClientPlan, ...]
    network: NetworkPlan
    fault_interval_ns: int
    faults_end_ns: int
    checks_whole_bound: bool
    epilogue: str
    write_ns: int


def clock_parts(rng: Random) -> int:
    """Return the rate of a clock; the extremes come often."""
    return rng.choice((_PARTS_MIN, _PARTS_MAX, rng.randint(_PARTS_MIN, _PARTS_MAX)))


def make_client_plan(
    rng: Random, *, lease_ns_max: int, components: tuple[str, ...]
) -> ClientPlan:
    """Return one client."""
    # The shortest is lengthened by the server to the shortest that it admits.
    lease_ns = round(lease_ns_max * rng.choice((0.1, 0.3, 0.5, 1.0, 1.0, 1.3)))
    share = 0.8 / len(components) if len(components) < _CROWD_COUNT_MIN else 0.8
    contends_for = [component for component in components if rng.random() < share]
    if contends_for and rng.random() < 0.1:
        contends_for.append(contends_for[0])
    retrieves = [component for component in components if rng.random() < 0.7]
    return ClientPlan(
        lease_ns=lease_ns,
        session_timeout_ns=round(lease_ns * rng.uniform(2.0, 4.5)),
        clears_on_suspended=rng.random() < 0.4,
        contends_for=tuple(contends_for),
        retrieves=tuple(retrieves),
        confirm_timeout_ns=round(lease_ns * rng.uniform(1.0, 4.0)),
        confirms=rng.choice((1.0, 1.0, 0.8, 0.3)),
        callback_ns=rng.choice((MS // 10, 5 * MS, lease_ns_max // 5, lease_ns_max)),
    )


def _make_network_plan(rng: Random, lease_ns_max: int) -> NetworkPlan:
    is_lossy = rng.random() < 0.6
    return NetworkPlan(
        latency_ns=rng.choice((MS // 20, MS, 5 * MS)),
        jitter_ns=rng.choice((MS // 20, 2 * MS, lease_ns_max // 25)),
        loss=rng.choice((0.01, 0.05, 0.2)) if is_lossy else 0.0,
        duplication=rng.choice((0.0, 0.02, 0.2)),
        late=rng.choice((0.0, 0.005, 0.05)),
        is_ordered=rng.random() < 0.5,
    )


def make_scenario(seed: int) -> Scenario:
    """Return what *seed* stands for; the same every time."""
    rng = Random(seed)
    lease_ns_max = rng.randint(300, 1_000) * MS
    components: tuple[str, ...] = (
        ("sim/a",) if rng.random() < 0.75 else ("sim/a", "sim/b")
    )
    crowd = Random(f"{seed}/crowd")  # drawn apart, as below
    if crowd.random() < _CROWD_SHARE:
        # As many that what clients ask goes into batches, which heartbeats overtake.
        count = crowd.choice((5, 10, 30))
        components = tuple(f"sim/{index:02}" for index in range(count))
    clients = [
        make_client_plan(rng, lease_ns_max=lease_ns_max, components=components)
        for _ in range(rng.choice((2, 3, 3, 4)))
    ]
    return Scenario(
        seed=seed,
        lease_ns_max=lease_ns_max,
        lease_ns_min=lease_ns_max // 6,
        storage=rng.choice((Storage.DURABLE, Storage.MEMORY, Storage.LOSSY)),
        components=components,
        clients=tuple(clients),
        network=_make_network_plan(rng, lease_ns_max),
        fault_interval_ns=round(lease_ns_max * rng.uniform(0.15, 2.0)),
        faults_end_ns=round(lease_ns_max * rng.uniform(6.0, 16.0)),
        checks_whole_bound=rng.random() < 0.05,
        epilogue=rng.choice(EPILOGUES),
        # Drawn apart: what a seed stood for before, it still stands for.
        write_ns=round(
            Random(f"{seed}/write").choice((0, 0, 0.005, 0.05, 0.5, 1.0)) * lease_ns_max
        ),
    )
