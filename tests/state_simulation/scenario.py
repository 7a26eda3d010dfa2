"""What a seed stands for: which nodes and queries, which network, which faults."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Final

from attrs import evolve, frozen

from queryablestate.control.large_writes import COMMIT_LIMITS, CommitLimits
from tests.simulation.timeline import MS
from tests.state_simulation.kinds import Kind


__all__ = [
    "COMMIT_TIMEOUT_NS",
    "FAULT_NAMES",
    "MAX_PARALLELISM",
    "MOVE_NAMES",
    "RETENTION_NS",
    "SESSION_TIMEOUT_NS",
    "NetworkPlan",
    "Profile",
    "QueryPlan",
    "Scenario",
    "StatePlan",
    "make_scenario",
]

MAX_PARALLELISM: Final = 4
SESSION_TIMEOUT_NS: Final = 1_000 * MS
COMMIT_TIMEOUT_NS: Final = 2_500 * MS
RETENTION_NS: Final = 5_000 * MS

FAULT_NAMES: Final = (
    "change leader",
    "restart leader",
    "suspend leader",
    "lose store answers",
    "kill node",
    "lose disk",
    "exchange disk",
    "break connection",
    "isolate node",
    "slow disk",
    "full queue",
    "kill driver",
    "split driver",
    "pause driver",
    "restore checkpoint",
    "replace query",
    "return to query",
    "drop state",
    "skip batch",
    "storm",
    "rescale",
    "drain node",
    "leave node",
    "join node",
    "slow copies",
    "cut off copies",
)


MOVE_NAMES: Final = FAULT_NAMES[FAULT_NAMES.index("rescale") :]

# What may go wrong where it must not cost anybody an answer.
_ONE_AWAY_NAMES: Final = (
    "change leader",
    "restart leader",
    "kill node",
    "lose disk",
    "isolate node",
    "slow disk",
    *MOVE_NAMES,
)


class Profile(Enum):
    """How much goes wrong, and what must hold all the same."""

    STORM = "storm"
    """Everything: nothing that was decided is lost, no answer is wrong."""

    MOVES = "moves"
    """Nothing but moves: no batch and no read fails (S2, S3)."""

    ONE_AWAY = "one away"
    """Two copies, and one node away at a time: no read fails (S4)."""


@frozen(kw_only=True)
class StatePlan:
    """
    One state that a query writes.

    Attributes:
        state_name: Its name within the job.
        kind: ``value``, ``list`` or ``map``.
        is_complete: Whether each batch is all there is.
        has_deletes: Whether rows may delete.
        has_orders: Whether several rows of a batch may have one key.
        has_ttl: Whether rows expire.
    """

    state_name: str
    kind: str
    is_complete: bool = False
    has_deletes: bool = False
    has_orders: bool = False
    has_ttl: bool = False


@frozen(kw_only=True)
class QueryPlan:
    """
    One streaming query, or a batch job that is run again and again.

    Attributes:
        label: Its name in traces.
        job_id: Whose state it writes.
        states: What it writes; either all of them complete, or none.
        tasks_bind: Whether tasks show the ticket, or the driver does.
        is_batch_job: Whether it has no batch ids of its own.
    """

    label: str
    job_id: str
    states: tuple[StatePlan, ...]
    tasks_bind: bool
    is_batch_job: bool = False

    @property
    def is_complete(self) -> bool:
        """Return whether the rows of a batch are all there is."""
        return self.states[0].is_complete


@frozen(kw_only=True)
class NetworkPlan:
    """
    How bad the network is while it is bad.

    Attributes:
        latency_ns: The mean delay of a message.
        loss: Probability that a request or an answer of a writer or reader is lost.
        duplication: Probability that it arrives twice.
        late: Probability that it is very late.
        is_slow_for_good: Whether clients are far away when all else is well, too.
    """

    latency_ns: int
    loss: float
    duplication: float
    late: float
    is_slow_for_good: bool = False


@frozen(kw_only=True)
class Scenario:
    """
    Everything about one run that is decided before it.

    Attributes:
        seed: What it was made from.
        profile: How much goes wrong.
        node_count: How many state nodes at first.
        host_count: How many there may be.
        replica_count: How many copies of each key group a job has at first.
        joining_count_max: Key groups that a node copies at once.
        copy_ns: The mean time that a node takes to read a page for another.
        queries: What is written.
        reader_count: How many readers ask all the time.
        network: How bad the network is.
        store_ns: The mean duration of a write of a node's store.
        leader_store_ns: Likewise of the leader store.
        commit_limits: How much one commit of the leader store takes: little, so that
            decisions are divided, or as much as it does.
        store_doubt: Probability that it is not learnt what became of such a write.
        task_failure: Probability that a task fails or is slow, and runs again.
        caches: Whether the proxies keep answers.
        is_direct: Whether readers ask nodes without the proxy, where there is no cache.
        cuts_off: Whether nodes are cut off, beside all other faults.
        takes_over: Whether other queries take states over all the time, likewise.
        session_count_max: Sessions that a proxy keeps: fewer than clients, or enough.
        entry_kept_count: Entries that the control plane keeps though all have them.
        fault_interval_ns: The mean time between two faults.
        faults_end_ns: When faults stop.
        fault_weights: How often each kind of fault comes.
        takes_snapshots: Whether operators take snapshots.
        puts_back: Whether data directories become what they were before, likewise.
    """

    seed: int
    profile: Profile
    node_count: int
    host_count: int
    replica_count: int
    joining_count_max: int
    copy_ns: int
    queries: tuple[QueryPlan, ...]
    reader_count: int
    network: NetworkPlan
    store_ns: int
    leader_store_ns: int
    commit_limits: CommitLimits
    store_doubt: float
    task_failure: float
    caches: bool
    is_direct: bool
    cuts_off: bool
    takes_over: bool
    session_count_max: int
    entry_kept_count: int
    fault_interval_ns: int
    faults_end_ns: int
    fault_weights: tuple[int, ...]
    takes_snapshots: bool
    puts_back: bool

    @property
    def has_slow_changes(self) -> bool:
        """Return whether a change of the control plane may take a second."""
        count_max = self.commit_limits.operation_count_max
        return self.leader_store_ns >= _SLOW_NS and count_max <= _FEW_OPERATIONS


_PUT_BACK_SHARE: Final = 0.3
_SLOW_NS: Final = 40 * MS
_FEW_OPERATIONS: Final = 5

_UPSERT: Final = StatePlan(state_name="upsert", kind="value", has_deletes=True)
_APPEND: Final = StatePlan(state_name="append", kind="list")
_MAP: Final = StatePlan(state_name="map", kind="map", has_deletes=True)
_ORDERED: Final = StatePlan(
    state_name="ordered", kind="value", has_deletes=True, has_orders=True
)
_COMPLETE: Final = StatePlan(state_name="complete", kind="value", is_complete=True)

_STATES: Final = (
    (_APPEND,),
    (_APPEND, _UPSERT),
    (_APPEND, _ORDERED),
    (_MAP, _APPEND),
    (_UPSERT,),
)
_OTHERS: Final = (
    StatePlan(state_name="other", kind="list"),
    _COMPLETE,
    StatePlan(state_name="other", kind="value", has_deletes=True),
)


def _make_queries(rng: Random) -> tuple[QueryPlan, ...]:
    queries = [
        QueryPlan(
            label="q",
            job_id="job",
            states=rng.choice(_STATES),
            tasks_bind=rng.random() < 0.5,
        )
    ]
    if rng.random() < 0.6:
        plan = QueryPlan(
            label="r",
            job_id=rng.choice(("job", "another")),
            states=(rng.choice(_OTHERS),),
            tasks_bind=rng.random() < 0.5,
            is_batch_job=rng.random() < 0.2,
        )
        queries.append(plan)
    return tuple(queries)


def _with_ttl(seed: int, queries: tuple[QueryPlan, ...]) -> tuple[QueryPlan, ...]:
    """Return *queries*; in some runs the rows of all of their states expire."""
    if Random(f"{seed}/ttl").random() < 0.6:
        return queries
    return tuple(
        evolve(query, states=tuple(evolve(one, has_ttl=True) for one in query.states))
        for query in queries
    )


def _make_network(seed: int, rng: Random, profile: Profile) -> NetworkPlan:
    is_lossy = rng.random() < 0.7 and profile is Profile.STORM
    return NetworkPlan(
        latency_ns=rng.choice((MS // 2, 2 * MS, 10 * MS)),
        loss=rng.choice((0.01, 0.05, 0.15)) if is_lossy else 0.0,
        duplication=rng.choice((0.0, 0.05, 0.2)),
        late=rng.choice((0.0, 0.02, 0.1)) if profile is Profile.STORM else 0.0,
        # Of its own: what else a seed stands for stays.  With fewer sessions than
        # clients, each ends those of the others before they have asked anything.
        is_slow_for_good=Random(f"{seed}/slow").random() < 0.2
        and _session_count(seed) > 1,
    )


def _weights(rng: Random, profile: Profile) -> tuple[int, ...]:
    """Return how often each fault comes."""
    allowed: tuple[str, ...] = FAULT_NAMES
    if profile is Profile.MOVES:
        allowed = MOVE_NAMES
    elif profile is Profile.ONE_AWAY:
        allowed = _ONE_AWAY_NAMES
    favourites = rng.sample(range(len(allowed)), 4)
    weights = {
        name: 6 if index in favourites else 1 for index, name in enumerate(allowed)
    }
    if rng.random() < 0.6:
        weights["rescale"] += 4
    return tuple(weights.get(name, 0) for name in FAULT_NAMES)


def _commit_limits(seed: int) -> CommitLimits:
    """Return how much one commit of the leader store takes; half of the time little."""
    rng = Random(f"{seed}/commits")  # of its own: what else a seed stands for stays
    if rng.random() < 0.5:
        return COMMIT_LIMITS
    return CommitLimits(
        operation_count_max=rng.choice((2, 3, 5)),
        size_bytes_max=rng.choice((2_000, 4_000)),
    )


def _session_count(seed: int) -> int:
    return Random(f"{seed}/sessions").choice((1, 100, 100, 100))


def _takes_snapshots(seed: int) -> bool:
    return Random(f"{seed}/snapshots").random() < 0.3


def _ways(seed: int, *, caches: bool) -> tuple[bool, bool]:
    """Return whether readers ask nodes themselves, and whether proxies keep answers."""
    if Kind.of(seed) is not Kind.MIXED:
        return True, False
    # By this number seeds that mutations begin with are among the others.
    return not caches and Random(f"{seed}/direct 880").random() < 0.5, caches


def make_scenario(seed: int) -> Scenario:
    """Return what *seed* stands for; the same every time."""
    rng = Random(seed)
    (profile,) = rng.choices(list(Profile), (7, 1, 2))
    is_storm = profile is Profile.STORM
    if profile is Profile.ONE_AWAY:
        node_count, replica_count = rng.choice((2, 3)), 2
    else:
        node_count, replica_count = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
    scenario = Scenario(
        seed=seed,
        profile=profile,
        node_count=node_count,
        host_count=node_count + rng.choice((0, 1, 2)),
        replica_count=replica_count,
        joining_count_max=rng.choice((1, 2, 16)),
        copy_ns=rng.choice((MS, 10 * MS, 60 * MS if is_storm else 10 * MS)),
        queries=_with_ttl(seed, _make_queries(rng)),
        reader_count=rng.choice((1, 2)),
        network=_make_network(seed, rng, profile),
        store_ns=rng.choice((MS, 5 * MS, 20 * MS)),
        leader_store_ns=rng.choice((MS, 10 * MS, 40 * MS)),
        store_doubt=rng.choice((0.0, 0.0, 0.01, 0.05)) if is_storm else 0.0,
        task_failure=rng.choice((0.0, 0.05, 0.2)) if is_storm else 0.0,
        caches=rng.random() < 0.5,
        is_direct=False,
        cuts_off=False,
        takes_over=False,
        entry_kept_count=rng.choice((1, 4, 100)),
        fault_interval_ns=round(rng.uniform(80, 900)) * MS,
        faults_end_ns=round(rng.uniform(4_000, 9_000)) * MS,
        fault_weights=_weights(rng, profile),
        commit_limits=_commit_limits(seed),
        takes_snapshots=_takes_snapshots(seed),
        puts_back=is_storm and Random(f"{seed}/put back").random() < _PUT_BACK_SHARE,
        session_count_max=_session_count(seed) if is_storm else 100,
    )
    is_direct, caches = _ways(seed, caches=scenario.caches)
    scenario = evolve(scenario, is_direct=is_direct, caches=caches)
    match Kind.of(seed):
        case Kind.MIXED | Kind.DIRECT:
            return scenario
        case Kind.CUT_OFF:
            return _with_cuts(scenario)
        case Kind.TAKE_OVER:
            return _with_takeovers(_with_cuts(scenario))


def _with_cuts(scenario: Scenario) -> Scenario:
    """Return *scenario* where others take over quickly from who is cut off."""
    return evolve(
        scenario,
        cuts_off=True,
        node_count=max(2, scenario.node_count),
        host_count=max(2, scenario.host_count),
        replica_count=2,
        reader_count=2,
        store_ns=MS,
        leader_store_ns=MS,
    )


def _with_takeovers(scenario: Scenario) -> Scenario:
    """Return *scenario* where states are taken over, and little else happens."""
    names = ("slow disk", "kill driver", "drop state")
    return evolve(
        scenario,
        profile=Profile.STORM,
        takes_over=True,
        network=NetworkPlan(latency_ns=MS // 2, loss=0.0, duplication=0.05, late=0.0),
        store_ns=Random(f"{scenario.seed}/takeovers").choice((MS, 20 * MS)),
        store_doubt=0.0,
        task_failure=0.0,
        commit_limits=COMMIT_LIMITS,
        session_count_max=100,
        takes_snapshots=False,
        puts_back=False,
        fault_interval_ns=400 * MS,
        faults_end_ns=6_000 * MS,
        fault_weights=tuple(
            (20, 1, 1)[names.index(name)] if name in names else 0
            for name in FAULT_NAMES
        ),
    )
