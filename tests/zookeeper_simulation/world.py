"""One seeded run: an ensemble, its clients, what befalls them, and what must hold."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from tests.simulation.timeline import MS, Timeline
from tests.zookeeper_simulation.client import Client
from tests.zookeeper_simulation.ensemble import Role, Server, Stream


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["RuleBrokenError", "World"]

_MILLION: Final = 1_000_000
# Clocks differ by up to 5 % from each other.
_CLOCK_PARTS_MAX: Final = 24_000
_FAULTY_TIMEOUTS: Final = 30
_QUIET_TIMEOUTS: Final = 8
_CHECKED_TIMEOUTS: Final = 2


class RuleBrokenError(AssertionError):
    """A rule did not hold."""


@final
class World:
    """
    Everything of one seed.

    Args:
        seed: What all draws follow from.
        write: Takes the lines of a trace.
    """

    def __init__(self, seed: int, write: Callable[[str], None] | None = None) -> None:
        self.rng = Random(seed)
        self.timeline = Timeline()
        self.counts: Counter[str] = Counter()
        self._write = write
        rng = self.rng
        self.timeout_ns = 1_000 * MS
        # ZooKeeper admits no timeout below two ticks.
        self.tick_ns = self.timeout_ns // rng.choice((2, 2, 3, 4, 5, 10, 20))
        self.patience_ns = self.tick_ns * rng.choice((2, 5, 20))
        self._delay_ns_max = rng.choice((1, 2, 5)) * MS
        self._write_ns_max = rng.choice((1, 5)) * MS
        self._is_stormy = False
        self._held: list[Callable[[], None]] = []
        self._session_count = 0
        size = rng.choice((3, 3, 3, 5))
        self.majority = size // 2 + 1
        self.servers = [Server(self, index) for index in range(size)]
        self._streams = {
            (here.index, there.index): Stream(self, here, there)
            for here in self.servers
            for there in self.servers
            if here is not there
        }
        self._cut_clients: set[tuple[int, int]] = set()
        everywhere = list(range(size))
        self.clients = [
            Client(
                self,
                index,
                [rng.randrange(size)] if rng.random() < 0.3 else everywhere,
            )
            for index in range(rng.choice((2, 3)))
        ]
        self._is_quiet = False

    # -- what happens at random ----------------------------------------------------

    def draw_delay_ns(self) -> int:
        """Return how long a message is under way."""
        most_ns = self._delay_ns_max * (20 if self._is_stormy else 1)
        return MS // 10 + int(self.rng.random() * most_ns)

    def draw_write_ns(self) -> int:
        """Return how long a disk takes."""
        most_ns = self._write_ns_max * (20 if self._is_stormy else 1)
        return MS // 10 + int(self.rng.random() * most_ns)

    def draw_lateness_ns(self) -> int:
        """Return how late a thread runs that was to run."""
        return int(self.rng.random() * self.timeout_ns) // 100

    def draw_clock_parts(self) -> int:
        """Return how far a clock goes in a million."""
        return _MILLION + self.rng.randrange(-_CLOCK_PARTS_MAX, _CLOCK_PARTS_MAX)

    def new_session_id(self) -> int:
        """Return a number that no session has."""
        self._session_count += 1
        return self._session_count

    # -- links ---------------------------------------------------------------------

    def stream(self, from_index: int, to_index: int) -> Stream:
        """Return what carries messages from one server to another."""
        return self._streams[from_index, to_index]

    def pump_to(self, server: Server) -> None:
        """Deliver what has waited for *server*."""
        for (_, to_index), stream in self._streams.items():
            if to_index == server.index:
                stream.pump()
        self.release()

    def hold(self, action: Callable[[], None]) -> None:
        """Do *action* when a client's link or a server works again."""
        self._held.append(action)

    def release(self) -> None:
        """Do what was held up, in order; what still cannot be done holds itself up."""
        held, self._held = self._held, []
        for action in held:
            action()

    def is_cut_off(self, client: Client, server: Server) -> bool:
        """Return whether nothing passes between the two."""
        return (client.index, server.index) in self._cut_clients

    # -- elections -----------------------------------------------------------------

    def left(self, server: Server, *, former: int | None, was_leading: bool) -> None:
        """Tell those who are connected to *server* that it looks for a leader now."""
        if was_leading:
            for other in self.servers:
                if other.leader == server.index and self._are_linked(server, other):
                    self.timeline.after(
                        self.draw_delay_ns(), partial(self._lose, other, server)
                    )
        elif former is not None and self._are_linked(server, self.servers[former]):
            self.timeline.after(
                self.draw_delay_ns(),
                lambda: self.servers[former].forget_follower(server.index),
            )
        for (from_index, to_index), stream in self._streams.items():
            if server.index in (from_index, to_index) and not stream.is_cut:
                stream.clear()

    def _lose(self, follower: Server, leader: Server) -> None:
        if (
            follower.role is Role.FOLLOWING
            and follower.leader == leader.index
            and leader.role is not Role.LEADING
        ):
            follower.look()

    def _are_linked(self, one: Server, other: Server) -> bool:
        return not (
            self._streams[one.index, other.index].is_cut
            or self._streams[other.index, one.index].is_cut
        )

    def _elect(self) -> None:
        """Have servers that look for a leader find or make one, now and then."""
        looking = [
            server
            for server in self.servers
            if server.role is Role.LOOKING and server.is_running
        ]
        leaders = [
            server
            for server in self.servers
            if server.role is Role.LEADING and server.is_running
        ]
        newest = max(leaders, key=lambda server: server.epoch, default=None)
        for server in tuple(looking):
            if newest is not None and self._are_linked(server, newest):
                looking.remove(server)
                self._clear_between(server, newest)
                newest.admit(server)
        for first in looking:
            group = [first] + [
                other
                for other in looking
                if other is not first and self._are_linked(first, other)
            ]
            if len(group) >= self.majority:
                self._make_leader(group)
                break
        self.timeline.after(self.rng.randrange(1, self.tick_ns), self._elect)

    def _make_leader(self, group: list[Server]) -> None:
        leader = max(
            group,
            key=lambda server: (
                server.log[-1].zxid if server.log else 0,
                server.index,
            ),
        )
        epoch = max(server.epoch for server in self.servers) + 1
        followers = [
            server
            for server in group
            if server is not leader and self._are_linked(server, leader)
        ]
        if len(followers) + 1 < self.majority:
            return
        for follower in followers:
            self._clear_between(follower, leader)
        self.count("leaders of the ensemble")
        self.trace(f"server {leader.index} leads in epoch {epoch}")
        leader.lead(epoch, followers)

    def _clear_between(self, one: Server, other: Server) -> None:
        self._streams[one.index, other.index].clear()
        self._streams[other.index, one.index].clear()

    # -- faults --------------------------------------------------------------------

    def _draw_ns(self, least: float, most: float) -> int:
        """Return a time between two multiples of the timeout."""
        return round(self.rng.uniform(least, most) * self.timeout_ns)

    def _fault(self) -> None:
        """Have something happen, and the next thing later."""
        if self._is_quiet:
            return
        faults: list[tuple[int, Callable[[], None]]] = [
            (4, self._pause_client),
            (6, self._pause_then_cut),
            (3, self._cut_server),
            (2, self._cut_one_way),
            (2, self._pause_server),
            (2, self._kill_server),
            (2, self._break_connection),
            (2, self._cut_client),
            (1, self._storm),
        ]
        (fault,) = self.rng.choices(
            [fault for _, fault in faults], [weight for weight, _ in faults]
        )
        fault()
        self.timeline.after(self._draw_ns(0.1, 2.5), self._fault)

    def _pause_client(self, client: Client | None = None, pause_ns: int = 0) -> None:
        client = client or self.rng.choice(self.clients)
        if client.is_paused:
            return
        self._injected(f"paused client {client.index}", "paused client")
        client.pause()
        self.timeline.after(pause_ns or self._draw_ns(0.05, 1.3), client.resume)

    def _pause_then_cut(self) -> None:
        """Pause one who believes, and cut its server off soon after it woke."""
        believing = [client for client in self.clients if client.believes]
        client = self.rng.choice(believing or self.clients)
        server = client.server
        if client.is_paused or server is None:
            return
        pause_ns = self._draw_ns(0.001, 1.0)

        def pause() -> None:
            self._pause_client(client, pause_ns)
            self.timeline.after(
                pause_ns + self._draw_ns(0.0, 0.15), lambda: self._cut_server(server)
            )

        if self.rng.random() < 0.3:
            client.after_next_request(pause)  # its answer will wait for the wake-up
        else:
            pause()

    def _cut_server(self, server: Server | None = None) -> None:
        if self._is_quiet:
            return
        server = server or self.rng.choice(self.servers)
        self._injected(f"cut off server {server.index}", "cut off server")
        pairs = [pair for pair in self._streams if server.index in pair]
        self._cut(pairs, self._draw_ns(0.1, 3.0))

    def _cut_one_way(self) -> None:
        pair = self.rng.choice(list(self._streams))
        self._injected(f"cut {pair[0]} to {pair[1]}", "cut one way")
        self._cut([pair], self._draw_ns(0.1, 3.0))

    def _cut(self, pairs: list[tuple[int, int]], during_ns: int) -> None:
        for pair in pairs:
            self._streams[pair].is_cut = True
        self.timeline.after(during_ns, lambda: self._heal(pairs))

    def _heal(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self._streams[pair].is_cut = False
            self._streams[pair].pump()

    def _pause_server(self) -> None:
        server = self.rng.choice(self.servers)
        if server.is_running:
            self._injected(f"paused server {server.index}", "paused server")
            server.pause()
            self.timeline.after(self._draw_ns(0.05, 2.0), lambda: self._resume(server))

    def _resume(self, server: Server) -> None:
        if server.is_paused:
            server.resume()

    def _kill_server(self) -> None:
        server = self.rng.choice(self.servers)
        if server.is_running:
            self._injected(f"killed server {server.index}", "killed server")
            server.kill()
            self.timeline.after(self._draw_ns(0.05, 2.0), server.restart)

    def _break_connection(self) -> None:
        client = self.rng.choice(self.clients)
        self._injected(f"broke the connection of {client.index}", "broken connection")
        client.break_connection()

    def _cut_client(self) -> None:
        client = self.rng.choice(self.clients)
        server = client.server
        if server is None:
            return
        self._injected(f"cut client {client.index} off", "cut off client")
        pair = (client.index, server.index)
        self._cut_clients.add(pair)

        def heal() -> None:
            self._cut_clients.discard(pair)
            self.release()

        self.timeline.after(self._draw_ns(0.05, 1.5), heal)

    def _storm(self) -> None:
        """Make everything take long for a while."""
        if self._is_stormy:
            return
        self._injected("storm", "storm")
        self._is_stormy = True

        def end() -> None:
            self._is_stormy = False

        self.timeline.after(self._draw_ns(0.1, 1.0), end)

    def _injected(self, line: str, kind: str) -> None:
        self.count(f"fault: {kind}")
        self.trace(line)

    # -- what must hold ------------------------------------------------------------

    def count(self, what: str) -> None:
        """Count something for the summary."""
        self.counts[what] += 1

    def trace(self, line: str) -> None:
        """Write a line of the trace."""
        if self._write is not None:
            self._write(f"{self.timeline.now_ns / MS:12.3f} {line}")

    def check_belief(self, client: Client) -> None:
        """
        Assert that *client*, whose belief was just moved, believes alone (E4).

        Belief begins and grows only then, so two that overlap are seen here.
        """
        self.count("checked: E4 no two holders believe at once")
        if not client.believes:
            return
        others = [
            other.index
            for other in self.clients
            if other is not client and other.believes
        ]
        if others:
            message = f"E4: {client.index} and {others} believe at once"
            self.trace(message)
            raise RuleBrokenError(message)

    def run(self) -> None:
        """
        Run it to its end.

        Raises:
            RuleBrokenError: If a rule did not hold.
        """
        self._elect()
        for client in self.clients:
            client.connect()
        self.timeline.after(self._draw_ns(1.0, 3.0), self._fault)
        self.timeline.run_until(_FAULTY_TIMEOUTS * self.timeout_ns)
        self._is_quiet = True
        quiet_ns = self.timeline.now_ns + _QUIET_TIMEOUTS * self.timeout_ns
        self.timeline.run_until(quiet_ns + self.patience_ns * 2)
        for _ in range(_CHECKED_TIMEOUTS * 20):
            self.timeline.run_until(self.timeline.now_ns + self.timeout_ns // 20)
            self.count("checked: E5 a quiet name service has a believing holder")
            if not any(client.believes for client in self.clients):
                message = "E5: nobody believes though everything is quiet"
                self.trace(message)
                raise RuleBrokenError(message)
