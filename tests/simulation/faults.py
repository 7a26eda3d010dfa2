"""What goes wrong: faults by kind, at random times, until they must stop."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from election.events import ContenderPreferred, SessionExpireRequested
from leaderserver.operator_messages import (
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
    RevokeRequest,
    SessionsRequest,
    StatusRequest,
    TransferRequest,
)
from leaderserver.store_messages import CleanupRequest, GetRequest, ListRequest
from tests.simulation.network import DROP, HOLD, Lane
from tests.simulation.scenario import Storage, make_client_plan
from tests.simulation.stalls import Stalls
from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election.contender import LeaderSession
    from leaderserver.messages import RequestBody
    from tests.simulation.application import Election
    from tests.simulation.client import ClientProcess
    from tests.simulation.world import World


__all__ = ["Faults"]

_CLIENT_COUNT_MAX: Final = 8
# The share of runs in which contenders leave while their client registers anew.
_CLOSING_SHARE: Final = 0.15


@final
class Faults:
    """Everything bad that happens in one run, and what applications do of their own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = Random(f"{world.scenario.seed}/faults")
        kinds: list[tuple[Callable[[], str | None], int]] = [
            (self._partition_client, 10),
            (self._partition_everybody, 2),
            (self._pause_client, 10),
            (self._pause_server, 6),
            (self._stall_server_repeatedly, 4),
            (self._kill_client, 6),
            (self._let_client_leave, 3),
            (self._add_client, 3),
            (self._restart_server, 7),
            (self._break_link, 6),
            (self._report_falsely_to_server, 4),
            (self._report_falsely_to_client, 4),
            (self._close_contender, 6),
            (self._add_contender, 3),
            (self._revoke, 4),
            (self._expire, 4),
            (self._prefer, 3),
            (self._confirm_again, 4),
            (self._storm, 3),
            (self._fail_storage, 2),
            (self._change_listeners, 4),
            (self._ask, 3),
            (self._look_with_malice, 4),
            (self._keep_holder_away_over_restart, 5),
        ]
        # A run in which everything happens finds little: most have a few favourites.
        favourites = self._rng.sample(range(len(kinds)), 4)
        self._prefer_count = 0
        # Drawn apart: what a seed stood for before, most still stand for.
        self._closing_rng = Random(f"{world.scenario.seed}/closing")
        self._expires_and_closes = self._closing_rng.random() < _CLOSING_SHARE
        self._kinds = [kind for kind, _ in kinds]
        self._weights = [
            weight * (6 if index in favourites else 1)
            for index, (_, weight) in enumerate(kinds)
        ]

    def begin(self) -> None:
        """Begin with faults."""
        self._schedule()
        self._schedule_commit()
        if self._expires_and_closes:
            self._schedule_closing()

    def end(self) -> None:
        """Take note that no more faults may happen."""
        self._world.network.storm_loss = 0.0

    def _schedule(self) -> None:
        world = self._world
        delay_ns = round(self._rng.expovariate(1.0) * world.scenario.fault_interval_ns)
        world.timeline.after(delay_ns, self._strike)

    def _strike(self) -> None:
        if self._world.is_calm:
            return
        (strike,) = self._rng.choices(self._kinds, self._weights)
        name = strike()
        if name is not None:
            self._world.counts[f"fault: {name}"] += 1
        self._schedule()

    # -- choosing ------------------------------------------------------------------

    def _lease_ns(self, most: float) -> int:
        """Return a duration of up to *most* leases, short ones more often."""
        share = self._rng.random() ** 2
        return round(share * most * self._world.scenario.lease_ns_max)

    def _client(self) -> ClientProcess | None:
        living = self._world.living()
        return self._rng.choice(living) if living else None

    def _elections(self) -> Sequence[Election]:
        return [
            election
            for client in self._world.living()
            for election in client.elections.values()
            if not election.is_closing
        ]

    def _holder(self) -> tuple[ClientProcess, Election] | None:
        """Return somebody who leads, or else somebody who contends."""
        pairs = [
            (client, election)
            for client in self._world.living()
            for election in client.elections.values()
            if not election.is_closing
        ]
        holding = [pair for pair in pairs if pair[1].has_leadership()]
        if not pairs:
            return None
        return self._rng.choice(holding or pairs)

    def _victim(self) -> ClientProcess | None:
        """Return a client, holders more often."""
        holder = self._holder()
        if holder is not None and self._rng.random() < 0.6:
            return holder[0]
        return self._client()

    def _later(self, delay_ns: int, action: Callable[[], object]) -> None:
        """Do *action* later, but while faults may happen."""
        world = self._world
        world.timeline.after(world.within_faults(delay_ns), action)

    def _report_ns(self) -> int | None:
        """Return when the server hears of a closed connection, if ever."""
        return self._rng.choice((0, 2 * MS, self._lease_ns(4.0), None))

    # -- the network ---------------------------------------------------------------

    def _block(self, lanes: Sequence[Lane], duration_ns: int) -> None:
        network = self._world.network
        kind = self._rng.choice((HOLD, DROP))
        for lane in lanes:
            if lane.blocked is None:
                lane.blocked = kind
                self._later(duration_ns, partial(network.heal, lane))

    def _partition_client(self) -> str | None:
        client = self._victim()
        if client is None:
            return None
        path = client.path
        choice = self._rng.randrange(4)
        lanes: list[Lane]
        if choice == 0:
            name, lanes = "partition to the server", [path.to_server]
        elif choice == 1:
            name, lanes = (
                "partition to the client",
                [path.to_client, path.broadcasts],
            )
        elif choice == 2:
            name, lanes = "broadcasts cut off", [path.broadcasts]
        else:
            name, lanes = "partition both ways", list(path.lanes)
        duration_ns = self._lease_ns(8.0)
        self._world.trace(client.name, name, f"for {duration_ns / 1e9:.3f} s")
        self._block(lanes, duration_ns)
        if choice != 2 and self._rng.random() < 0.3:
            notice_ns = self._rng.randrange(duration_ns + 1)
            self._world.break_link(
                client, notice_ns=notice_ns, report_ns=self._report_ns()
            )
        return name

    def _partition_everybody(self) -> str | None:
        duration_ns = self._lease_ns(5.0)
        self._world.trace("world", "everybody cut off", f"{duration_ns / 1e9:.3f} s")
        for client in self._world.living():
            self._block(client.path.lanes, duration_ns)
        return "partition of everybody"

    def _storm(self) -> str | None:
        network = self._world.network
        if network.storm_loss:
            return None
        network.storm_loss = self._rng.choice((0.3, 0.6, 0.9))

        def calm() -> None:
            network.storm_loss = 0.0

        self._later(self._lease_ns(3.0), calm)
        return "storm of losses"

    def _break_link(self) -> str | None:
        client = self._victim()
        if client is None or client.peer is None:
            return None
        self._world.trace(client.name, "connection breaks")
        self._world.break_link(
            client,
            notice_ns=self._rng.choice((0, self._lease_ns(2.0))),
            report_ns=self._report_ns(),
        )
        return "broken connection"

    def _report_falsely_to_server(self) -> str | None:
        client = self._victim()
        if client is None or client.peer is None or client.server is None:
            return None
        peer, server = client.peer, client.server
        self._later(
            self._lease_ns(2.0),
            lambda: server.run(lambda: server.connection_closed(peer)),
        )
        return "false report to the server"

    def _report_falsely_to_client(self) -> str | None:
        client = self._victim()
        if client is None or client.peer is None or not client.is_link_known:
            return None
        peer = client.peer
        client.run(client.link_closed)

        def opened() -> None:
            if client.peer == peer:
                client.run(client.link_opened)

        self._later(self._lease_ns(2.0), opened)
        return "false report to a client"

    # -- processes -----------------------------------------------------------------

    def _pause_client(self) -> str | None:
        client = self._victim()
        if client is None or client.is_paused:
            return None
        duration_ns = self._lease_ns(8.0)
        self._world.trace(client.name, "paused", f"for {duration_ns / 1e9:.3f} s")
        client.pause()
        self._later(duration_ns, client.resume)
        return "paused client"

    def _pause_server(self) -> str | None:
        server = self._world.host.process
        if server is None or server.is_paused:
            return None
        duration_ns = self._lease_ns(8.0)
        self._world.trace(server.name, "paused", f"for {duration_ns / 1e9:.3f} s")
        server.pause()
        self._later(duration_ns, server.resume)
        return "paused server"

    def _stall_server_repeatedly(self) -> str | None:
        server = self._world.host.process
        if server is None:
            return None
        stalls = Stalls.drawn(self._rng)
        self._world.trace(server.name, "stalls again and again", str(stalls))
        world = self._world
        duration_ns = world.within_faults(self._lease_ns(8.0))
        stalls.begin(world, until_ns=world.timeline.now_ns + duration_ns)
        return "server stalls again and again"

    def _kill_client(self) -> str | None:
        world = self._world
        client = self._victim()
        if client is None or len(world.living()) < 2:
            return None
        world.client_dies(client, report_ns=self._report_ns())
        if self._rng.random() < 0.8:

            def add() -> None:
                self._add_client()

            self._later(self._lease_ns(4.0), add)
        return "killed client"

    def _let_client_leave(self) -> str | None:
        """Have a client close everything, as an orderly application does."""
        client = self._client()
        if client is None or len(self._world.living()) < 2:
            return None
        client.run(client.leave)
        return "client left"

    def _add_client(self) -> str | None:
        world = self._world
        if world.is_calm or len(world.living()) >= _CLIENT_COUNT_MAX:
            return None
        plan = make_client_plan(
            self._rng,
            lease_ns_max=world.scenario.lease_ns_max,
            components=world.scenario.components,
        )
        world.client_joins(plan)
        return "new client"

    def _restart_server(self) -> str | None:
        world = self._world
        server = world.host.process
        if server is None or server.is_paused:
            return None
        if self._rng.random() < 0.4:
            server.dies_next = True  # between a step and what it sends
            self._later(self._lease_ns(0.5), lambda: self._kill_server(server.number))
        else:
            world.server_dies()
        down_ns = self._rng.choice((0, self._lease_ns(0.5), self._lease_ns(3.0)))
        self._later(down_ns, self._start_server)
        return f"restarted server, storage {world.scenario.storage}"

    def _kill_server(self, number: int) -> None:
        process = self._world.host.process
        if process is not None and process.number == number:
            self._world.server_dies()

    def _start_server(self) -> None:
        world = self._world
        host = world.host
        if host.process is not None:
            if host.process.dies_next:
                world.server_dies()
            else:
                return
        is_lost = (
            world.scenario.storage == Storage.LOSSY
            and host.may_lose_storage
            and self._rng.random() < 0.5
        )
        if is_lost:
            world.counts["fault: lost data directory"] += 1
            host.lose_storage()
        world.server_starts()
        if self._rng.random() < 0.4:
            # A start is busy: stalls come when it matters most, before the decision.
            self._later(self._lease_ns(0.6), self._stall_server)

    def _stall_server(self) -> None:
        server = self._world.host.process
        if server is not None and not server.is_paused:
            self._world.trace(server.name, "stalls")
            self._world.counts["fault: stalled server"] += 1
            server.pause()
            self._later(self._lease_ns(0.6), server.resume)

    def _keep_holder_away_over_restart(self) -> str | None:
        """Have somebody come back with a claim of an earlier server's time."""
        world, rng = self._world, self._rng
        holder = self._holder()
        if holder is None or world.host.process is None:
            return None
        away = holder[0]
        world.trace(away.name, "kept away over a restart")
        restart_ns = rng.choice(
            (self._lease_ns(4.0), away.plan.session_timeout_ns + self._lease_ns(2.0))
        )
        away_ns = restart_ns + self._lease_ns(1.0)
        if rng.random() < 0.5:
            self._block(away.path.lanes, away_ns)
        else:
            away.pause()
            self._later(away_ns, away.resume)

        def restart() -> None:
            if world.is_calm:
                return
            self._restart_server()
            # The leader of that time may be away when claims are collected.
            for client in world.living():
                if client is not away and rng.random() < 0.6:
                    self._block(client.path.lanes, self._lease_ns(6.0))

        self._later(restart_ns, restart)
        return "holder kept away over a restart"

    def _fail_storage(self) -> str | None:
        storage = self._world.host.storage
        if self._rng.random() < 0.3:
            storage.is_breaking = True
            self._later(self._lease_ns(3.0), self._start_server)
            return "broken storage"
        storage.failure = 0.5

        def repair() -> None:
            storage.failure = 0.0

        self._later(self._lease_ns(3.0), repair)
        return "failing storage"

    # -- applications and operators ------------------------------------------------

    def _act(self, client: ClientProcess, action: Callable[[], None]) -> None:
        client.run(action)

    def _close_contender(self) -> str | None:
        holder = self._holder()
        if holder is None:
            return None
        client, election = holder
        reopens = self._rng.random() < 0.8
        self._act(client, lambda: election.close(reopens=reopens))
        return "closed contender"

    def _add_contender(self) -> str | None:
        client = self._client()
        if client is None or len(client.elections) > 2:
            return None
        component_id = self._rng.choice(self._world.scenario.components)
        self._act(client, lambda: client.contend(component_id))
        return "added contender"

    def _confirm_again(self) -> str | None:
        holder = self._holder()
        if holder is None or holder[1].held is None:
            return None
        client, election = holder

        def confirm() -> None:
            held = election.held
            if held is not None and not election.is_closing:
                election.confirm(held)

        self._act(client, confirm)
        return "confirmed again"

    def _change_listeners(self) -> str | None:
        client = self._client()
        if client is None:
            return None
        if client.listeners and (len(client.listeners) > 2 or self._rng.random() < 0.5):
            retriever_id = self._rng.choice(sorted(client.listeners))

            def forget() -> None:
                if retriever_id in client.listeners:
                    client.forget(retriever_id)

            self._act(client, forget)
            return "closed retriever"
        component_id = self._rng.choice(self._world.scenario.components)
        self._act(client, lambda: client.listen(component_id))
        return "added retriever"

    def _ask(self) -> str | None:
        client = self._client()
        if client is None:
            return None
        component_id = self._rng.choice(self._world.scenario.components)
        bodies: list[RequestBody] = [
            ContendersRequest(component_id=component_id),
            GetRequest(component_id=component_id, path="p"),
            ListRequest(component_id=component_id, prefix="", after=""),
            LeadersRequest(prefix="sim/", after=""),
            SessionsRequest(after=""),
            StatusRequest(),
            CleanupRequest(component_id=component_id),
        ]
        body = self._rng.choice(bodies)
        self._act(client, lambda: client.request(body))
        return None

    def _look_with_malice(self) -> str | None:
        server = self._world.host.process
        if server is None:
            return None
        ahead = self._rng.choice((-1, 0, 1, 2**32))
        is_ended = self._rng.random() < 0.7
        server.run(lambda: server.hear_observer(ahead=ahead, is_ended=is_ended))
        return "false report of an observer"

    def _revoke(self) -> str | None:
        client = self._client()
        if client is None:
            return None
        component_id = self._rng.choice(self._world.scenario.components)
        body = RevokeRequest(component_id=component_id)
        self._act(client, lambda: client.request(body, is_repeatable=False))
        return "revoked by an operator"

    def _expire(self) -> str | None:
        client, victim = self._client(), self._victim()
        if client is None or victim is None or victim.core.session_id is None:
            return None
        body = ExpireRequest(session_id=victim.core.session_id)
        self._act(client, lambda: client.request(body, is_repeatable=False))
        return "expired by an operator"

    def _prefer(self) -> str | None:
        server = self._world.host.process
        elections = self._elections()
        if server is None or not elections:
            return None
        election = self._rng.choice(elections)
        self._prefer_count += 1
        if self._prefer_count % 2:
            client = election.client
            body = TransferRequest(
                component_id=election.component_id, contender_id=election.contender_id
            )
            self._act(client, lambda: client.request(body, is_repeatable=False))
            return "leadership transferred by an operator"
        event = ContenderPreferred(
            component_id=election.component_id, contender_id=election.contender_id
        )
        server.run(lambda: server.inject(event))
        return "another contender preferred"

    def _schedule_closing(self) -> None:
        delay_ns = self._closing_rng.randrange(3 * self._world.scenario.lease_ns_max)
        self._world.timeline.after(delay_ns, self._expire_and_close)

    def _expire_and_close(self) -> None:
        """
        End a session, and close contenders while the next one takes them in.

        The server stops for a moment, too: what it finds then has come together.
        """
        world, rng = self._world, self._closing_rng
        if world.is_calm:
            return
        self._schedule_closing()
        server = world.host.process
        clients = [c for c in world.living() if len(c.elections) > 1]
        if server is None or not clients:
            return
        client = rng.choice(clients)
        session_id = client.core.session_id
        if session_id is None:
            return
        world.counts["fault: contenders closed while a session begins"] += 1
        expired = SessionExpireRequested(session_id=session_id)
        server.run(lambda: server.inject(expired))
        stop_ns = sum(world.network.delay_ns() for _ in range(3))
        self._later(stop_ns, server.pause)
        last_ns = stop_ns + 2 * world.network.delay_ns()
        self._later(last_ns, server.resume)
        for election in tuple(client.elections.values()):
            if rng.random() < 0.5:
                close = partial(election.close, reopens=rng.random() < 0.8)
                close_ns = stop_ns + rng.randrange(last_ns - stop_ns)
                self._later(close_ns, partial(self._act, client, close))

    # -- the store -----------------------------------------------------------------

    def _schedule_commit(self) -> None:
        self._world.timeline.after(self._lease_ns(1.0) + MS, self._commit)

    def _commit(self) -> None:
        """Have somebody write: a leader, one of the past, or somebody else's."""
        world = self._world
        if world.is_calm:
            return
        self._schedule_commit()
        client = self._victim()
        if client is None:
            return
        sessions: list[tuple[str, LeaderSession]] = []
        for election in client.elections.values():
            sessions += [(election.component_id, s) for s in election.past[-3:]]
        if self._rng.random() < 0.1:
            for election in self._elections():
                sessions += [(election.component_id, s) for s in election.past[-1:]]
        if not sessions:
            return
        component_id, session = self._rng.choice(sessions)
        world.counts["commits attempted"] += 1
        self._act(client, lambda: client.commit(component_id, session))
