"""
What a server starts with: its incarnation, and how long it is undecided (E2, E9).

A data directory knows all earlier incarnations and the leases that they admitted.
Without one the wall clock has to do, and `ClockWitness`.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from election.config import ElectionConfig
from election.epochs import INCARNATION_MAX, IncarnationEpochs
from leaderserver.server.clock_witness import ClockWitness
from leaderserver.server.service import LeaderService
from leaderserver.server.service_config import ServiceConfig
from nameservice import NS_PER_SECOND, ConfigurationError


if TYPE_CHECKING:
    from leaderserver.server.config import ServerConfig
    from leaderserver.server.storage import LeaderStorage
    from nameservice import Clock


__all__ = ["start_service"]

# Seconds between 1970 and 2020, when the incarnations of our servers begin (rule E2).
_INCARNATION_ORIGIN_SECONDS: Final = 1_577_836_800
# No server of this kind was started before 2026, six years after that.
_CLOCK_NS_MIN: Final = 2_192 * 24 * 60 * 60 * NS_PER_SECOND
# By how much the wall clock and the clock of leases may go apart within a second while
# the former is being adjusted; the kernel allows itself a thousandth.
_CLOCKS_APART_NS: Final = NS_PER_SECOND // 50
# What a client takes at the most to find the way back to a server that has started
# again (libzmq adds up to as much to its interval of 0.1 s), and to claim.  Where
# leases are shorter than that, the server waits for claims longer than they ask (E9).
_RETURN_NS: Final = 3 * NS_PER_SECOND // 10
# A loop that is late by more than this part of the shortest lease has stalled (E9).
_STALL_DIVISOR: Final = 5


def start_service(
    config: ServerConfig, storage: LeaderStorage, *, clock: Clock, publish_port: int
) -> LeaderService:
    """
    Return the service of a server that starts now.

    Raises:
        ConfigurationError: If the clock is beyond all epochs, or was never set and
            there is no data directory.
        StorageError: If the incarnation could not be recorded.
    """
    wall_ns = time.time_ns() - _INCARNATION_ORIGIN_SECONDS * NS_PER_SECOND
    now_ns = clock.now_ns()
    at_least = max(1, wall_ns // NS_PER_SECOND)
    if at_least >= INCARNATION_MAX:
        # Before it is on record, where it would outlive the mistake.
        message = (
            f"the clock of this machine is {at_least:,} seconds after 2020, and epochs "
            f"have room for {INCARNATION_MAX:,}: set the clock"
        )
        raise ConfigurationError(message)
    if not storage.is_durable:
        if wall_ns < _CLOCK_NS_MIN:
            message = (
                "the clock of this machine is before 2026, and epochs of a server "
                "without a data directory come from it: set the clock, or choose a "
                "data directory"
            )
            raise ConfigurationError(message)
        at_least = ClockWitness().next_incarnation(at_least=at_least)
    incarnation = storage.next_incarnation(at_least=at_least)
    undecided_ns = storage.admit_leases(
        incarnation,
        lease_ns=config.lease_ns_max,
        unrecorded_ns=config.lease_ns_unrecorded_max,
    )
    undecided_ns = max(undecided_ns, _RETURN_NS)
    if not storage.is_durable:
        # Only the clock remembers this incarnation, so nothing is granted
        # within its second: a successor's incarnation is then a higher one.
        second_ns = NS_PER_SECOND - wall_ns % NS_PER_SECOND + _CLOCKS_APART_NS
        undecided_ns = max(undecided_ns, second_ns)
    return LeaderService(
        ServiceConfig(
            lease_ns_min=config.lease_ns_min,
            lease_ns_max=config.lease_ns_max,
            session_timeout_ns_min=config.session_timeout_ns_min,
            session_timeout_ns_max=config.session_timeout_ns_max,
            subscription_count_max=config.subscriptions_per_session_max,
            state_bytes_max=config.memory_plan.state_bytes_max,
            cached_bytes_max=config.memory_plan.memory_store_bytes_max,
            publish_port=publish_port,
            publish_address=config.publish_address,
            server_id=secrets.token_hex(8),
        ),
        ElectionConfig(
            namespace=uuid4(),
            undecided_ns=undecided_ns,
            session_count_max=config.sessions_max,
            contender_count_max=config.contenders_per_component_max,
            contender_count_per_session_max=config.contenders_per_session_max,
            component_count_max=config.components_max,
            is_durable=storage.is_durable,
            tick_ns=config.lease_ns_min // _STALL_DIVISOR,
        ),
        epochs=IncarnationEpochs(incarnation, started_ns=now_ns),
        storage=storage,
        draw_secret=secrets.token_bytes,
        now_ns=now_ns,
        is_storage_apart=storage.is_durable,
    )
