"""Rights, limits and bad company of a server of SQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import ssl
import struct
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from nameservice import ConfigurationError, LocalProtocolError
from queryablestate import (
    NodeConfig,
    QueryStateProxyServer,
    StateNode,
    token_sha256,
)
from queryablestate.client.async_client import AsyncQueryableStateClient
from queryablestate.connect.tokens import generate_token
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.proxy.config_toml import parse_proxy_config
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)
from queryablestate.sql import worker, worker_process
from queryablestate.sql.config import SQLConfig
from queryablestate.sql.connection import Connection, Shared
from queryablestate.sql.desk import Desk
from queryablestate.sql.engine import Parser
from queryablestate.sql.jobs import SessionFacts, Setup
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.server import SQLServer
from queryablestate.sql.worker_process import Answer
from queryablestate.sql.workers import Workers
from queryablestate.writer.rows import StateRows
from tests.leaks import no_collection
from tests.lodestar.publishing import MAX_PARALLELISM, Publisher
from tests.queryablestate.reader_children import children_of
from tests.queryablestate.sql.conftest import (
    CARRIERS,
    DELAYS,
    SCHEMAS,
    Served,
    first_rows,
)
from tests.queryablestate.sql.protocol.test_conversation import (
    SYNC,
    message,
    parse,
    startup,
)
from tests.recording import WAIT_SECONDS, wait_until
from tests.tiers import nightly_after


psycopg: Any = pytest.importorskip("psycopg")

pytestmark = [pytest.mark.shells, pytest.mark.proves("F6")]

TLS = Path(__file__).parents[2] / "haservices" / "tls"
TOKENS = {name: generate_token() for name in ("writer", "node", "reader", "hasty")}
ACCESS = """
[callers.writer]
token_sha256 = "{writer}"
write = ["flights/*"]
read = ["flights/*"]

[callers.node]
token_sha256 = "{node}"
node = true

[callers.reader]
token_sha256 = "{reader}"
read = ["flights/delays"]

[callers.hasty]
token_sha256 = "{hasty}"
read = ["flights/*"]

[[rate_limits]]
scope = "caller"
caller = "hasty"
keys_per_second = 0.01
burst = 2
"""


def connect(server: SQLServer, password: str | None = None, **options: Any) -> Any:
    """Return a connection of psycopg."""
    host, _, port = server.address.rpartition(":")
    return psycopg.connect(
        host=host,
        port=port,
        user="me",
        dbname="flights",
        password=password,
        autocommit=True,
        **options,
    )


def refusal_of(connection: Any, statement: str) -> Any:
    """Return the error that *statement* is answered with."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement).fetchall()
    return caught.value


def _desk() -> Desk:
    """Return a desk that parses, and does nothing else."""
    return Desk(Parser, None, text_size_max=65_536, now_ns=None)  # type: ignore[arg-type]


DESCRIBE = message(b"D", b"S\0")


def read_until(stream: Any, *kinds: bytes) -> Counter[bytes]:
    """Return how many messages of each type came, up to one of a type in *kinds*."""
    found: Counter[bytes] = Counter()
    while not any(found[kind] for kind in kinds):
        head = stream.read(5)
        assert len(head) == 5, f"ended after {found}"
        stream.read(int.from_bytes(head[1:], "big") - 4)
        found[head[:1]] += 1
    return found


def memory_of(process_id: int, figure: str) -> int:
    """Return a figure of the memory of a process, as Linux tells it, in bytes."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith(f"{figure}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(figure)


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[HAServices, SQLServer]]:
    """Return a server in front of a proxy that lists callers."""
    hashes = {name: token_sha256(token) for name, token in TOKENS.items()}
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
        open_ha_services(HAConfig(url=names.url)) as ha,
        QueryStateProxyServer(
            ha, parse_proxy_config(ACCESS.format(**hashes), source="here")
        ),
        StateNode(
            ha,
            NodeConfig(
                data_dir=tmp_path_factory.mktemp("node"),
                node_id="node-1",
                token=TOKENS["node"],
            ),
        ) as node,
        SQLServer(ha, SQLConfig(bind="127.0.0.1:0")) as server,
    ):
        node.wait_until_registered(30.0)
        publisher = Publisher(ha.config, "flights", SCHEMAS, token=TOKENS["writer"])
        publisher.write(first_rows())
        yield ha, server


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Have nothing end because Python happens to look for what is unused."""
    with no_collection():
        yield


class TestRights:
    def test_a_token_is_the_caller(self, guarded: tuple[HAServices, SQLServer]) -> None:
        """It sees what it may, on every way, and nothing else."""
        with connect(guarded[1], TOKENS["reader"]) as reader:
            assert reader.execute(
                "SELECT flights FROM delays WHERE carrier = 'AA'"
            ).fetchall()
            assert reader.execute("SELECT count(*) FROM delays").fetchone() == (5,)
            tables = reader.execute("SELECT tablename FROM pg_tables").fetchall()
            assert tables == [("delays",)]
            for statement in (
                "SELECT * FROM log WHERE carrier = 'AA'",
                "SELECT count(*) FROM delays, log",
                "SELECT * FROM flights.none",
            ):
                assert refusal_of(reader, statement).sqlstate in {"42501", "42P01"}

    @pytest.mark.parametrize("password", ["wrong", "x" * 3_000, "ü", "A" * 43])
    def test_another_password_is_refused(
        self, guarded: tuple[HAServices, SQLServer], password: str
    ) -> None:
        """Before anything is told."""
        with pytest.raises(psycopg.OperationalError) as caught:
            connect(guarded[1], password)
        assert password not in str(caught.value)

    def test_without_a_password_nobody_is_let_in(
        self, guarded: tuple[HAServices, SQLServer]
    ) -> None:
        """It is asked for."""
        with pytest.raises(psycopg.OperationalError, match="password"):
            connect(guarded[1])

    def test_a_rate_is_told_with_a_hint(
        self, guarded: tuple[HAServices, SQLServer]
    ) -> None:
        """When to ask again."""
        with connect(guarded[1], TOKENS["hasty"]) as hasty:
            for _ in range(5):
                with contextlib.suppress(psycopg.Error):
                    hasty.execute("SELECT flights FROM delays WHERE carrier = 'AA'")
            refused = refusal_of(hasty, "SELECT day FROM delays WHERE carrier = 'AA'")
        assert refused.sqlstate == "53400"
        assert "ask again in" in refused.diag.message_hint

    def test_no_token_is_logged_or_shown(
        self, guarded: tuple[HAServices, SQLServer], capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Nor by what a caller may ask of the engine or of the catalog."""
        with connect(guarded[1], TOKENS["reader"]) as reader:
            shown = reader.execute("SELECT * FROM pg_settings").fetchall()
            reader.execute("SHOW ALL").fetchall()
            refusal_of(reader, "SELECT broken(")
        written = capfd.readouterr()
        for token in TOKENS.values():
            assert token not in json.dumps([shown, written.out, written.err])


class TestTLS:
    def config(self, **settings: Any) -> SQLConfig:
        """Return settings with a certificate."""
        return SQLConfig(
            bind="127.0.0.1:0",
            certificate_file=str(TLS / "server.pem"),
            certificate_key_file=str(TLS / "server.pem"),
            **settings,
        )

    def test_a_session_is_encrypted(self, served: Served) -> None:
        """Where files are given; a tool verifies the certificate."""
        with (
            SQLServer(served.ha, self.config(worker_count=1)) as server,
            connect(server, sslmode="require") as connection,
        ):
            assert connection.pgconn.ssl_in_use
            assert connection.execute(
                "SELECT flights FROM delays WHERE carrier = 'B6'"
            ).fetchall() == [(1,)]

    @pytest.mark.nightly
    def test_what_is_sent_before_tls_is_not_believed(self, served: Served) -> None:
        """Another could have put it there."""
        with SQLServer(served.ha, self.config(worker_count=1)) as server:
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port)), WAIT_SECONDS) as plain:
                plain.sendall(struct.pack("!ii", 8, 80877103) + startup(user="me"))
                assert plain.recv(100) == b""

    def test_what_comes_while_tls_is_about_to_begin_is_not_believed(self) -> None:
        """In a packet of its own, which came when the first one had been read."""

        async def answer() -> bytes:
            ours, theirs = socket.socketpair()
            with theirs:
                theirs.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=ours)
                tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                shared = Shared(self.config(), tls, None, None)  # type: ignore[arg-type]

                async def serve() -> None:
                    connection = Connection(shared, reader, writer, 1)
                    with contextlib.suppress(EOFError):
                        await connection.serve()
                    await connection.close()

                serving = asyncio.create_task(serve())
                for _ in range(10):  # it waits for the first packet then
                    await asyncio.sleep(0)
                reader.feed_data(struct.pack("!ii", 8, 80877103))
                await asyncio.sleep(0)  # it is read, and not understood yet
                reader.feed_data(startup(user="me"))
                async with asyncio.timeout(WAIT_SECONDS):
                    found = await asyncio.get_running_loop().sock_recv(theirs, 100)
                serving.cancel()
                await asyncio.wait([serving])
                return found

        assert asyncio.run(answer()) == b""

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"bind": "0.0.0.0:5432"}, "--insecure"),
            ({"bind": "nowhere"}, "HOST:PORT"),
            ({"bind": "127.0.0.1:70000"}, "HOST:PORT"),
            ({"certificate_file": "x.pem"}, "certificate_key_file"),
            ({"worker_count": 0}, "worker_count"),
            ({"memory_limit_bytes": 1}, "memory_limit_bytes"),
            ({"statement_timeout_seconds": -1}, "statement_timeout_seconds"),
            ({"is_insecure_allowed": 1}, "is_insecure_allowed"),
        ],
    )
    def test_settings_that_cannot_be_are_refused(
        self, settings: dict[str, Any], words: str
    ) -> None:
        """With what to change."""
        with pytest.raises(ConfigurationError, match=words):
            SQLConfig(**settings)

    def test_other_machines_are_served_over_tls(self) -> None:
        """Or where it is accepted that they are not."""
        assert SQLConfig(bind="0.0.0.0:0", is_insecure_allowed=True).bind == "0.0.0.0:0"
        assert self.config().certificate_file
        far = SQLConfig(
            bind="[::]:1",
            certificate_file=str(TLS / "server.pem"),
            certificate_key_file=str(TLS / "server.pem"),
        )
        assert far.is_tls_required

    def test_files_that_are_none_are_refused(
        self, served: Served, tmp_path: Path
    ) -> None:
        """When the server is made."""
        with pytest.raises(ConfigurationError, match="certificate_file"):
            SQLServer(
                served.ha,
                SQLConfig(
                    certificate_file=str(tmp_path / "none"),
                    certificate_key_file=str(tmp_path / "none"),
                ),
            )


class TestLimits:
    def test_a_query_that_needs_more_memory_is_refused(self, served: Served) -> None:
        """And the next one is answered."""
        with connect(served.server) as connection:
            refused = refusal_of(
                connection, "SELECT list(i) FROM generate_series(1, 100000000) s(i)"
            )
            assert refused.sqlstate == "53200"
            assert "--memory-limit" in refused.diag.message_hint
            assert connection.execute("SELECT count(*) FROM delays").fetchone() == (5,)

    @pytest.mark.parametrize(
        "statement",
        nightly_after(
            1,
            [
                "SELECT length(repeat('x', 300000000))",
                "SELECT repeat('x', 30000000) FROM generate_series(1, 6)",
                "SELECT repeat('x', 200000) FROM generate_series(1, 2000)",
                "SELECT string_split(repeat('x,', 8000000), ',')",
            ],
        ),
    )
    def test_what_the_engine_does_not_count_is_bounded(
        self, served: Served, statement: str
    ) -> None:
        """
        Texts of rows, and what is made of them on the way to the tool.

        The first of these was answered, and its worker held 1.4 GB where 64 MB were
        the limit.  Now the kernel holds a worker to it, and others go on.
        """
        limit_bytes = 64 * 1024 * 1024
        config = SQLConfig(
            bind="127.0.0.1:0", worker_count=1, memory_limit_bytes=limit_bytes
        )
        with SQLServer(served.ha, config) as server, connect(server) as connection:
            connection.execute("SELECT count(*) FROM delays").fetchall()
            (worker,) = server._workers._all
            first_bytes = memory_of(worker._process.pid, "VmRSS")
            refused = refusal_of(connection, statement)
            assert refused.sqlstate == "53200"
            assert "--memory-limit" in refused.diag.message_hint
            if worker.is_alive:
                peak_bytes = memory_of(worker._process.pid, "VmHWM")
                assert peak_bytes < first_bytes + limit_bytes * 5 // 4
            assert connection.execute("SELECT count(*) FROM delays").fetchone() == (5,)

    def test_reading_more_than_the_limit_is_refused(self, served: Served) -> None:
        """What clients hold of it on its way to the engine is counted, too."""
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("k", AtomicType.INT),),
            value=(Field("text", AtomicType.STRING),),
        )
        rows = [(n, chr(97 + n % 26) * 500_000) for n in range(80)]
        Publisher(served.config, "wide", {"texts": schema}).write({"texts": rows})
        config = SQLConfig(
            bind="127.0.0.1:0", worker_count=1, memory_limit_bytes=16 * 1024 * 1024
        )
        with SQLServer(served.ha, config) as server, connect(server) as connection:
            for condition in ("", "WHERE k < 70"):
                refused = refusal_of(
                    connection,
                    f"SELECT count(DISTINCT text) FROM wide.texts {condition}",
                )
                assert refused.sqlstate == "53200"
                assert connection.execute("SELECT 1").fetchone() == (1,)

    def test_a_row_is_bounded_by_the_limit(self, served: Served) -> None:
        """The server that passes it on would hold it several times."""
        with connect(served.server) as connection:
            refused = refusal_of(connection, "SELECT repeat('x', 4194304)")
            assert refused.sqlstate == "54000"
            assert "--memory-limit" in refused.diag.message_hint
            (text,) = connection.execute("SELECT repeat('x', 4000000)").fetchone()
            assert len(text) == 4_000_000

    @pytest.mark.nightly
    def test_large_rows_come_one_after_the_other(self, served: Served) -> None:
        """The server held 64 of them in one piece, however large they were."""

        async def sizes() -> list[int]:
            setup = Setup(
                settings=served.config.to_settings(),
                memory_limit_bytes=256 * 1024 * 1024,
                thread_count=1,
            )
            workers = Workers(setup, 1)
            facts = SessionFacts(
                user="me", database="", search_path=(), settings={}, process_id=1
            )
            found = []
            async with workers.answer(
                "me",
                token=None,
                text="SELECT repeat('x', 100000) FROM generate_series(1, 70)",
                parameters=[],
                result_formats=(),
                session=facts,
                timeout_seconds=60.0,
            ) as answer:
                while rows := await answer.rows():
                    found.append(sum(map(len, rows)))
            await workers.close()
            return found

        found = asyncio.run(sizes())
        assert sum(found) > 70 * 100_000
        assert max(found) <= 256 * 1024

    @pytest.mark.nightly
    def test_the_least_limit_is_enough_for_small_statements(
        self, served: Served
    ) -> None:
        """Nothing that a worker needs itself is counted as a statement's."""
        config = SQLConfig(
            bind="127.0.0.1:0", worker_count=1, memory_limit_bytes=16 * 1024 * 1024
        )
        with SQLServer(served.ha, config) as server, connect(server) as connection:
            for _ in range(3):
                for statement in (
                    "SELECT count(*) FROM numbers WHERE half > 3",
                    "SELECT a.carrier FROM delays a JOIN log b USING (carrier)",
                    "SELECT tablename FROM pg_tables",
                ):
                    assert connection.execute(statement).fetchall()
                found = connection.execute(
                    "SELECT sum(n) FROM numbers WHERE n %% %s < %s",
                    [2, 1],
                )
                assert found.fetchall()
            assert server.observe().figures["workers_restarted_total"] == 0

    def test_a_statement_ends_with_its_time(self, served: Served) -> None:
        """That of the session, which is no longer than the server's."""
        with connect(served.server, options="-c statement_timeout=300ms") as connection:
            refused = refusal_of(connection, LONG)
            assert refused.sqlstate == "57014"
            connection.execute("SET statement_timeout = '60s'")
            assert connection.execute("SELECT count(*) FROM delays").fetchone() == (5,)

    def test_a_time_that_is_none_is_refused(self, served: Served) -> None:
        """At the beginning of a session, too: it would be no timeout at all."""
        with pytest.raises(psycopg.OperationalError, match="invalid value for"):
            connect(served.server, options="-c statement_timeout=soon").close()
        with connect(served.server) as connection:
            refused = refusal_of(connection, f"SET statement_timeout = {'9' * 400}")
            assert refused.sqlstate == "22023"
            connection.execute("SET statement_timeout = '0.2s'")
            assert refusal_of(connection, LONG).sqlstate == "57014"

    def test_a_statement_is_cancelled(self, served: Served) -> None:
        """By its own session's secret, and by no other."""
        with connect(served.server) as connection:
            started = threading.Event()

            def cancel() -> None:
                started.wait(WAIT_SECONDS)
                while served.server.observe().figures["queries_running"] == 0:
                    pass
                process_id = connection.pgconn.backend_pid
                guess = struct.pack("!iiII", 16, 80877102, process_id, 1)
                with socket.create_connection((served.host, served.port)) as other:
                    other.sendall(guess)
                    assert other.recv(10) == b""
                connection.cancel_safe(timeout=WAIT_SECONDS)

            thread = threading.Thread(target=cancel)
            thread.start()
            started.set()
            refused = refusal_of(connection, LONG)
            thread.join()
            assert refused.sqlstate == "57014"
            assert connection.execute("SELECT 1").fetchone() == (1,)

    def test_one_heavy_caller_does_not_hold_others(self, served: Served) -> None:
        """Its second statement waits; points go on at once."""
        with contextlib.ExitStack() as stack:
            heavy = [stack.enter_context(connect(served.server)) for _ in range(3)]
            threads = [
                threading.Thread(target=refusal_of, args=(one, LONG)) for one in heavy
            ]
            for thread in threads:
                thread.start()
            while int(served.server.observe().figures["queries_waiting"]) < 2:
                pass
            assert served.server.observe().figures["queries_running"] == 1
            with connect(served.server) as other:
                for name in ("AA", "B6", "DL"):
                    rows = other.execute(
                        "SELECT carrier FROM delays WHERE carrier = %s", [name]
                    ).fetchall()
                    assert rows == [(name,)]
            for one in heavy:
                one.cancel_safe(timeout=WAIT_SECONDS)
            for thread in threads:
                thread.join()

    @pytest.mark.usefixtures("no_collector")
    def test_a_tool_that_is_gone_gives_its_place_back(self, served: Served) -> None:
        """
        Its connection breaks while a portal has more rows to give.

        The place was given back when Python's collector came by: until then the
        statements of the same caller waited, and ended with "other statements took too
        long".
        """

        def running() -> int:
            return int(served.server.observe().figures["queries_running"])

        with socket.create_connection((served.host, served.port)) as tool:
            tool.settimeout(WAIT_SECONDS)
            tool.sendall(startup(user="me", database="flights") + SUSPENDED)
            answer = b""
            while not answer.endswith(b"s\0\0\0\4Z\0\0\0\5T"):
                answer += tool.recv(65_536)
            assert running() == 1
        wait_until(lambda: running() == 0)

    @pytest.mark.parametrize(
        "question",
        nightly_after(
            1,
            [
                message(b"Q", b"SELECT count(*) FROM numbers\0"),
                message(b"P", b"\0SELECT count(*) FROM numbers\0\0\0")
                + message(b"D", b"S\0")
                + message(b"S"),
            ],
        ),
        ids=["query", "description"],
    )
    def test_a_session_does_not_wait_for_its_own_portal(
        self, served: Served, question: bytes
    ) -> None:
        """
        A tool that reads rows by a fetch size, and asks something else meanwhile.

        With the default of two workers a caller has one.  The second statement waited
        for the end of the first until its time was over, and failed: "other statements
        took too long".
        """
        config = SQLConfig(bind="127.0.0.1:0", worker_count=1)
        with SQLServer(served.ha, config) as server:
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port))) as tool:
                tool.settimeout(WAIT_SECONDS)
                tool.sendall(startup(user="me", database="flights") + SUSPENDED)
                answer = b""
                while not answer.endswith(b"s\0\0\0\4Z\0\0\0\5T"):
                    answer += tool.recv(65_536)
                tool.sendall(question)
                answer = b""
                while not answer.endswith(b"Z\0\0\0\5E"):
                    answer += tool.recv(65_536)
                assert b"C53300\0" in answer
                assert b"--worker-count" in answer
                tool.sendall(message(b"Q", b"ROLLBACK\0") + question)
                answer = b""
                while answer.count(b"Z\0\0\0\5I") < 2:
                    answer += tool.recv(65_536)
                assert b"C53300\0" not in answer
            assert server.observe().figures["workers_restarted_total"] == 0

    def test_an_error_ends_portals_before_sync(self, served: Served) -> None:
        """
        Nothing can be asked of them then; a tool may take its time with the Sync.

        What a portal held outside of a transaction was given back with Sync alone.
        """

        def running() -> int:
            return int(served.server.observe().figures["queries_running"])

        with socket.create_connection((served.host, served.port)) as tool:
            tool.settimeout(WAIT_SECONDS)
            tool.sendall(
                startup(user="me", database="flights")
                + message(b"P", b"\0SELECT n FROM numbers\0\0\0")
                + message(b"B", b"c\0\0\0\0\0\0\0\0")
                + message(b"E", b"c\0\0\0\0\5")
                + message(b"H")
            )
            answer = b""
            while not answer.endswith(b"s\0\0\0\4"):
                answer += tool.recv(65_536)
            assert running() == 1
            tool.sendall(message(b"E", b"other\0\0\0\0\5"))
            wait_until(lambda: running() == 0)

    @pytest.mark.parametrize("is_described", nightly_after(1, [False, True]))
    def test_a_portal_that_is_left_gives_its_place_back(
        self, served: Served, is_described: bool
    ) -> None:
        """
        A tool that reads some rows and goes idle holds up others for a while only.

        After the time of a statement the portal is at its end, and says so.  It held
        its place for as long as the tool was connected.  So did one whose columns alone
        were asked for.
        """
        config = SQLConfig(bind="127.0.0.1:0", worker_count=1)
        with SQLServer(served.ha, config) as server:
            host, _, port = server.address.rpartition(":")
            with connect(server) as other:  # the worker has begun
                other.execute("SELECT count(*) FROM numbers")
            with socket.create_connection((host, int(port))) as tool:
                tool.settimeout(WAIT_SECONDS)
                tool.sendall(
                    startup(
                        user="me",
                        database="flights",
                        options="-c statement_timeout=2s",
                    )
                    + (DESCRIBED if is_described else SUSPENDED)
                )
                answer = b""
                while answer.count(b"Z\0\0\0\5T") < 2:
                    answer += tool.recv(65_536)
                assert server.observe().figures["queries_running"] == 1
                wait_until(lambda: server.observe().figures["queries_running"] == 0)
                with connect(server) as other:
                    assert other.execute("SELECT 1 + 1").fetchone() == (2,)
                tool.sendall(message(b"E", b"c\0\0\0\0\5") + message(b"S"))
                answer = b""
                while not answer.endswith(b"Z\0\0\0\5E"):
                    answer += tool.recv(65_536)
                assert b"57014" in answer
            assert server.observe().figures["workers_restarted_total"] == 0

    @pytest.mark.nightly
    def test_an_impatient_tool_has_no_more_workers(self, served: Served) -> None:
        """
        It cancels again while the worker of its statement is being stopped.

        The place was free at once, and the worker was not: another one was started for
        the next statement.  Each time there was one more, for as long as the server
        ran.
        """

        async def worker_count() -> int:
            workers = one_worker(served)
            workers.start()
            await ask(workers)
            # It is stopped: to have it end a job takes longer than to cancel twice.
            with stopped(workers):
                asked = asyncio.create_task(ask(workers))
                await asyncio.sleep(0)
                assert workers.running_count == 1
                while not asked.done():
                    asked.cancel()
                    await asyncio.sleep(0)
            await ask(workers)
            found = len(workers._all)
            await workers.close()
            return found

        assert asyncio.run(worker_count()) == 1

    @pytest.mark.nightly
    def test_no_worker_is_started_for_one_that_ends_with_the_server(
        self, served: Served
    ) -> None:
        """
        An impatient tool has cancelled twice, and the server is closed.

        The worker that was still being stopped ended with the others, and another one
        was started in its place: a process that was left behind.
        """

        async def left() -> set[Any]:
            workers = one_worker(served)
            workers.start()
            await ask(workers)
            with stopped(workers):
                asked = asyncio.create_task(ask(workers))
                await asyncio.sleep(0)
                while not asked.done():
                    asked.cancel()
                    await asyncio.sleep(0)
                closing = asyncio.create_task(workers.close())
                await asyncio.sleep(0)
            await closing
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others)
            found = {*others, *workers._all}
            await workers.close()
            return found

        assert asyncio.run(left()) == set()

    def test_a_worker_that_is_killed_while_idle_costs_no_statement(
        self, served: Served
    ) -> None:
        """
        The next statement is given to another one, which is started for it.

        It was given to the dead one, and failed with the advice to ask for less: each
        worker that the kernel had ended for want of memory cost one that had not begun.
        """

        async def restart_count() -> int:
            workers = one_worker(served)
            workers.start()
            try:
                await ask(workers)
                (process,) = workers._all
                process._process.kill()
                await process.ended()
                await ask(workers)
                return workers.restart_count
            finally:
                await workers.close()

        assert asyncio.run(restart_count()) == 1

    def test_a_worker_that_starts_slowly_is_not_ended_for_it(
        self, served: Served
    ) -> None:
        """
        Statements are refused until it is ready, and then answered.

        Its starting was counted as the time of its first statement, and it was ended
        for that: where workers started more slowly than statements might take, each
        statement ended the one that was started for it, and none was answered.
        """

        async def refused_and_restarted() -> tuple[list[str], int]:
            workers = one_worker(served)
            try:
                await spawned(workers)
                sqlstates = []
                with stopped(workers):
                    for _ in range(3):
                        with pytest.raises(SQLError) as refused:
                            await ask(workers, timeout_seconds=0.01)
                        sqlstates.append(refused.value.sqlstate)
                await ask(workers)
                return sqlstates, workers.restart_count
            finally:
                await workers.close()

        assert asyncio.run(refused_and_restarted()) == (["57014"] * 3, 0)

    def test_a_statement_takes_the_worker_that_is_ready_first(
        self, served: Served
    ) -> None:
        """
        Also one that comes free while it waits for another one to start.

        A statement waited for the one that it had found, while others lay idle.
        """

        async def asked() -> None:
            workers = Workers(setup_of(served), 2)
            try:
                await spawned(workers)
                slow, *_ = workers._all
                slow._process.send_signal(signal.SIGSTOP)
                async with answering(workers):
                    waiting = asyncio.create_task(ask(workers, caller="another"))
                    await asyncio.sleep(0)
                    assert workers.running_count == 2
                await waiting
                slow._process.send_signal(signal.SIGCONT)
            finally:
                await workers.close()

        asyncio.run(asked())

    @pytest.mark.parametrize("is_stopped", [False, True])
    def test_a_worker_that_does_not_start_at_all_is_replaced(
        self, served: Served, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
    ) -> None:
        """
        The one that waits for it is told, and the next one has another worker.

        What it was told was to ask for less.
        """

        async def refused_and_restarted() -> tuple[list[str], int]:
            workers = one_worker(served)
            try:
                monkeypatch.setattr(worker_process, "_START_SECONDS", 0.2)
                await spawned(workers)
                (process,) = workers._all
                if is_stopped:
                    process._process.send_signal(signal.SIGSTOP)
                else:
                    process._process.kill()
                with pytest.raises(SQLError) as refused:
                    await ask(workers)
                monkeypatch.undo()
                await ask(workers)
                return [refused.value.sqlstate], workers.restart_count
            finally:
                await workers.close()

        assert asyncio.run(refused_and_restarted()) == (["53000"], 1)

    def test_a_worker_loads_nothing_that_it_does_not_use(self, served: Served) -> None:
        """Arrow would load pandas to look at a list, in each of them."""
        with connect(served.server) as tool:
            tool.execute("SELECT * FROM delays").fetchall()
        loaded = [Path(f"/proc/{one}/maps").read_text() for one in worker_ids()]
        assert any("pyarrow" in maps for maps in loaded)
        assert not any("pandas" in maps for maps in loaded)

    def test_what_waits_for_a_worker_is_told_of_the_end(self, served: Served) -> None:
        """
        And of a thread that cannot be started: asyncio starts one for a process.

        That process had begun by then, and was left behind.
        """

        async def refusals() -> list[str]:
            workers = one_worker(served)
            before = worker_ids()
            no_thread = RuntimeError("can't start new thread")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(threading.Thread, "start", raises(no_thread))
                workers.start()
                with pytest.raises(SQLError) as unstarted:
                    await ask(workers)
            while worker_ids() != before:  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)
            await spawned(workers)
            with stopped(workers):
                asked = asyncio.create_task(ask(workers))
                await asyncio.sleep(0)
                closing = asyncio.create_task(workers.close())
                with pytest.raises(SQLError) as closed:
                    await asked
            await closing
            with pytest.raises(SQLError) as late:
                await ask(workers)
            return [one.value.sqlstate for one in (unstarted, closed, late)]

        assert asyncio.run(refusals()) == ["53000", "57P01", "57P01"]

    @pytest.mark.nightly
    def test_no_worker_is_lost_however_statements_end(self, served: Served) -> None:
        """Given up while they wait, just as a worker comes, or while they run."""

        async def left() -> tuple[int, int, int]:
            workers, rng = Workers(setup_of(served), 2), random.Random(1)
            try:
                for _ in range(100):
                    asked = [
                        asyncio.create_task(
                            ask(workers, rng.choice((0.001, 1.0)), f"caller {number}")
                        )
                        for number in range(3)
                    ]
                    for _ in range(rng.randrange(20)):
                        await asyncio.sleep(0)
                    rng.choice(asked).cancel()
                    if workers._all and rng.random() < 0.1:
                        rng.choice(sorted(workers._all, key=id)).kill()
                    await asyncio.gather(*asked, return_exceptions=True)
                await asyncio.gather(ask(workers), ask(workers, caller="another"))
                while others := workers._returning | workers._starts:
                    await asyncio.wait(others)
                return len(workers._all), len(workers._ready), workers.running_count
            finally:
                await workers.close()

        assert asyncio.run(left()) == (2, 2, 0)

    def test_a_statement_without_room_for_a_worker_is_refused(
        self, served: Served
    ) -> None:
        """
        And one whose worker cannot be replaced is told what became of its own.

        That there were no more processes, or files, was taken for a failure of the
        tool's connection: it was closed without a word.
        """

        async def refusals() -> list[str]:
            workers = one_worker(served)
            workers.start()
            try:
                await ask(workers)
                with no_more_files(), stopped(workers):
                    asked = asyncio.create_task(ask(workers))
                    await asyncio.sleep(0)
                    assert workers.running_count == 1
                    (process,) = workers._all
                    process._process.kill()
                    with pytest.raises(SQLError) as killed:
                        await asked
                    with pytest.raises(SQLError) as refused:
                        await ask(workers)
                await ask(workers)
                return [killed.value.sqlstate, refused.value.sqlstate]
            finally:
                await workers.close()

        assert asyncio.run(refusals()) == ["57P01", "53000"]

    @pytest.mark.nightly
    def test_a_worker_that_says_what_cannot_be_read_is_ended_and_counted(
        self, served: Served
    ) -> None:
        """
        The statement is told so, and another worker is started in its place.

        Its connection was closed without a word, and there was a worker less for good.
        """

        async def ended() -> tuple[str, int]:
            workers = one_worker(served)
            workers.start()
            try:
                await ask(workers)
                (process,) = workers._all
                process._frames._reader.feed_data(b"\0\0\0\x01?")
                with pytest.raises(SQLError) as refused:
                    await ask(workers)
                await ask(workers)
                return refused.value.sqlstate, workers.restart_count
            finally:
                await workers.close()

        assert asyncio.run(ended()) == ("57P01", 1)

    def test_a_worker_that_is_killed_costs_its_statement(self, served: Served) -> None:
        """And is replaced."""
        with (
            SQLServer(
                served.ha, SQLConfig(bind="127.0.0.1:0", worker_count=1)
            ) as server,
            connect(server) as connection,
        ):

            def kill() -> None:
                while server.observe().figures["queries_running"] == 0:
                    pass
                for process in server._workers._all:
                    process._process.kill()

            connection.execute("SELECT 1 FROM delays LIMIT 1").fetchall()
            thread = threading.Thread(target=kill)
            thread.start()
            assert refusal_of(connection, LONG).sqlstate == "57P01"
            thread.join()
            assert connection.execute("SELECT count(*) FROM delays").fetchone() == (5,)

    def test_connections_are_bounded(self, served: Served) -> None:
        """One too many is told so."""
        config = SQLConfig(bind="127.0.0.1:0", connection_count_max=1, worker_count=1)
        with SQLServer(served.ha, config) as server, connect(server):
            with pytest.raises(psycopg.OperationalError, match="too many connections"):
                connect(server)
            figures = server.observe().figures
            assert figures["connections_refused_total"] == 1

    @pytest.mark.proves("B2", "F6")
    @pytest.mark.nightly
    def test_who_does_not_log_in_takes_no_session(self, served: Served) -> None:
        """
        B2: strangers connect, and say nothing, or not who they are.

        They had all places, ten seconds each, and as many files as there were.
        """
        config = SQLConfig(
            bind="127.0.0.1:0",
            connection_count_max=2,
            worker_count=1,
            login_timeout_seconds=WAIT_SECONDS,
        )
        with (
            SQLServer(served.ha, config) as server,
            contextlib.ExitStack() as strangers,
        ):
            host, _, port = server.address.rpartition(":")

            def stranger() -> socket.socket:
                address = (host, int(port))
                sock = socket.create_connection(address, WAIT_SECONDS)
                return strangers.enter_context(sock)

            first = [stranger() for _ in range(10)]
            with connect(server) as one, connect(server) as other:
                # The oldest go, so that there is always room for those who log in.
                for sock in first[:8]:
                    assert sock.recv(1) == b""
                stranger()
                assert one.execute("SELECT 1").fetchone() == (1,)
                assert other.execute("SELECT 1").fetchone() == (1,)
                with pytest.raises(psycopg.OperationalError, match="too many"):
                    connect(server)

    @pytest.mark.proves("B2", "F6")
    @pytest.mark.nightly
    def test_there_are_no_more_sessions_than_files(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: one too many is told so, and the log says what to raise."""
        monkeypatch.setattr(resource, "getrlimit", lambda _: (131, 131))
        config = SQLConfig(bind="127.0.0.1:0", worker_count=1)
        with (
            capture_logs() as logs,
            SQLServer(served.ha, config) as server,
            connect(server),
            pytest.raises(psycopg.OperationalError, match="too many connections"),
        ):
            connect(server)
        (limited,) = [line for line in logs if line["event"] == "connections.limited"]
        assert (limited["connections_max"], "ulimit" in limited["reason"]) == (1, True)

    @pytest.mark.proves("B2", "F6")
    @pytest.mark.nightly
    def test_who_logs_in_at_once_finds_as_many_places(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: there is room for one more when both of them begin."""
        config = SQLConfig(bind="127.0.0.1:0", connection_count_max=2, worker_count=1)
        with (
            SQLServer(served.ha, config) as server,
            connect(server),
            contextlib.ExitStack() as held,
        ):
            both_are_there = asyncio.Barrier(2)
            ask_proxy = AsyncQueryableStateClient.jobs

            async def jobs(client: AsyncQueryableStateClient) -> Any:
                await both_are_there.wait()
                return await ask_proxy(client)

            monkeypatch.setattr(AsyncQueryableStateClient, "jobs", jobs)
            host, _, port = server.address.rpartition(":")
            both = [
                held.enter_context(
                    socket.create_connection((host, int(port)), WAIT_SECONDS)
                )
                for _ in range(2)
            ]
            for sock in both:
                sock.sendall(startup(user="me", database="flights"))
            assert sorted(sock.recv(1) for sock in both) == [b"E", b"R"]

    @pytest.mark.parametrize("schema", ["", "main.", "system.main."])
    @pytest.mark.parametrize("name", ["secret_directory", "allowed_paths"])
    def test_settings_of_the_engine_are_not_told(
        self, served: Served, schema: str, name: str
    ) -> None:
        """They say where the server works, and where its user's home directory is."""
        with connect(served.server) as connection:
            found = connection.execute(f"SELECT {schema}current_setting('{name}')")
            assert found.fetchall() == [(None,)]

    def test_texts_are_bounded(self, served: Served) -> None:
        """And what is nested too deeply is refused, not tried."""
        with connect(served.server) as connection:
            for statement in (
                "SELECT '" + "x" * 70_000 + "'",
                "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
                "SELECT " + "+".join("1" * 3_000),
            ):
                assert refusal_of(connection, statement).sqlstate in {
                    "54000",
                    "54001",
                    "42601",
                    "22023",
                }

    def test_what_takes_long_to_parse_is_refused(self, served: Served) -> None:
        """
        One of 30,000 characters took half a minute, and of 64 KiB some minutes.

        Nothing ends the parser, nor the wait of the sessions behind it.
        """
        nested = "(" * 15_000 + "delays a JOIN delays b ON true" + ")" * 15_000
        with connect(served.server) as connection:
            refusal = refusal_of(connection, f"SELECT 1 FROM {nested}")
            assert refusal.sqlstate == "54001"
            one = "(" * 100 + "delays a JOIN delays b ON true" + ")" * 100
            many = ", ".join([one] * 280)  # of 64 KiB, each no deeper than that
            refusal = refusal_of(connection, f"SELECT 1 FROM {many}")
            assert refusal.sqlstate == "54001"
            found = connection.execute(f"SELECT count(*) FROM {one}").fetchall()
            assert found == [(len(CARRIERS) ** 2,)]

    def test_conditions_are_joined_in_brackets_as_tools_do(
        self, served: Served
    ) -> None:
        """
        One after the other, each pair in brackets: as Hibernate and dbplyr write them.

        A list of a hundred was refused for the depth of it.
        """
        count = 250
        nested = (
            "(" * count
            + "number = 0"
            + "".join(f" OR number = {number})" for number in range(1, count + 1))
        )
        with connect(served.server) as connection:
            asked = "SELECT count(*) FROM routes WHERE"
            found = connection.execute(f"{asked} {nested}").fetchall()
            plain = connection.execute(f"{asked} number <= {count}").fetchall()
        assert found == plain

    def test_what_is_nested_without_brackets_is_told_to_be(
        self, served: Served
    ) -> None:
        """Some hundred signs of plus were an internal error, with a trace in logs."""
        texts = [
            text
            for count in (150, 600, 2_000)
            for text in (f"SELECT 1{'+1' * count}", f"SELECT {'NOT ' * count}true")
        ]
        with connect(served.server) as connection, capture_logs() as logs:
            for text in texts:
                refusal = refusal_of(connection, text)
                # Of the deepest the engine says so itself.
                assert refusal.sqlstate in {"54001", "42601"}
                assert re.search("nested too deeply|depth", str(refusal))
        assert not [one for one in logs if one["event"] == "statement.failed"]

    @pytest.mark.nightly
    def test_what_is_known_of_statements_is_bounded(self) -> None:
        """
        By its size: a long one takes some hundred times its text.

        The last thousand were kept, whatever they were: up to 17 GB.
        """
        names = ", ".join(["a"] * 15_000)

        async def keep(desk: Desk) -> None:
            for number in range(6):
                text = f"SELECT {names} FROM delays LIMIT {number}"
                assert await desk.query(text) is await desk.query(text)

        with contextlib.closing(_desk()) as desk:
            tracemalloc.start()
            try:
                asyncio.run(keep(desk))
                kept_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert kept_bytes < 24 * 1024 * 1024

    @pytest.mark.nightly
    def test_others_go_on_while_a_long_statement_is_parsed(self) -> None:
        """F6: one of 64 KiB takes tenths of a second, and not of every session."""
        text = f"SELECT {', '.join(['a'] * 20_000)} FROM delays"

        async def parse(desk: Desk) -> int:
            parsing = asyncio.gather(desk.query(text), desk.query(text))
            turn_count = 0
            while not parsing.done():
                await asyncio.sleep(0)
                turn_count += 1
            first, second = await parsing
            assert first is second
            return turn_count

        with contextlib.closing(_desk()) as desk:
            assert asyncio.run(parse(desk)) > 10

    def test_prepared_statements_are_bounded_by_their_texts(
        self, served: Served
    ) -> None:
        """A session's 500 could have 65,536 characters each, and trees as large."""
        with connect(served.server) as connection:
            text = f"SELECT '{'x' * 60_000}'".encode()
            results = [
                connection.pgconn.prepare(b"s%d" % number, text) for number in range(20)
            ]
            refused = [
                result.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
                for result in results
            ]
            assert refused == [None] * 17 + [b"54000"] * 3
            connection.execute("DEALLOCATE s0")
            result = connection.pgconn.prepare(b"other", text)
            assert result.status == psycopg.pq.ExecStatus.COMMAND_OK
            result = connection.pgconn.exec_prepared(b"s16", [])
            assert len(result.get_value(0, 0)) == 60_000

    @pytest.mark.parametrize(
        "value",
        ["DATE '10000-01-01'", "TIMESTAMP '10000-01-01'", "INTERVAL '4000000 years'"],
    )
    def test_times_beyond_the_protocol_are_told(
        self, served: Served, value: str
    ) -> None:
        """They were an internal error to tools that ask for binary form."""
        with connect(served.server) as connection:
            cursor = connection.cursor(binary=True)
            with pytest.raises(psycopg.errors.DatetimeFieldOverflow):
                cursor.execute(f"SELECT {value}").fetchall()

    @pytest.mark.nightly
    def test_slow_beginners_are_ended(self, served: Served) -> None:
        """Who says one byte and no more holds nothing for long."""
        config = SQLConfig(
            bind="127.0.0.1:0", login_timeout_seconds=0.2, worker_count=1
        )
        with SQLServer(served.ha, config) as server:
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port)), WAIT_SECONDS) as slow:
                slow.sendall(b"\0")
                assert slow.recv(100) == b""

    @pytest.mark.nightly
    def test_answers_to_a_pipeline_are_sent_as_they_come(self, served: Served) -> None:
        """
        64 KiB of questions for columns were answered at once, with gigabytes.

        One tool could have the server ended for want of memory.
        """
        count = 100
        text = "SELECT " + ", ".join(["1"] * 3_000)
        with socket.create_connection((served.host, served.port)) as sock:
            sock.settimeout(WAIT_SECONDS)
            sock.sendall(startup(user="me", database="flights"))
            stream = sock.makefile("rb")
            read_until(stream, b"Z")
            sock.sendall(parse("", text) + DESCRIBE + SYNC)
            assert read_until(stream, b"Z")[b"T"] == 1
            tracemalloc.start()
            try:
                sock.sendall(DESCRIBE * count + SYNC)
                assert read_until(stream, b"Z")[b"T"] == count
                _, most_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert most_bytes < 4 * 1024 * 1024

    def test_who_does_not_read_is_ended(self, served: Served) -> None:
        """After the time of a statement; others are answered meanwhile."""
        config = SQLConfig(
            bind="127.0.0.1:0", statement_timeout_seconds=1.0, worker_count=1
        )
        with SQLServer(served.ha, config) as server, connect(server) as other:
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port)), WAIT_SECONDS) as slow:
                slow.settimeout(WAIT_SECONDS)
                slow.sendall(startup(user="me", database="flights"))
                stream = slow.makefile("rb")
                read_until(stream, b"Z")
                question = (
                    b"SELECT repeat('x', 1000) FROM generate_series(1, 1000000)\0"
                )
                # The time may be over before the first row; the session goes on then.
                is_read = False
                while not is_read:
                    slow.sendall(message(b"Q", question))
                    is_read = read_until(stream, b"D", b"Z")[b"D"] > 0
                while int(server.observe().figures["connections"]) > 1:
                    assert other.execute(
                        "SELECT flights FROM delays WHERE carrier = 'AA'"
                    ).fetchone() == (0,)

    @pytest.mark.nightly
    def test_who_says_good_bye_and_does_not_read_is_ended(self, served: Served) -> None:
        """
        What waits for such a tool is given up after the time of a statement.

        The session was over, and its connection stayed open for as long as the tool
        did: a tool that came again and again took all files of the server, which
        counted none of these connections.
        """
        config = SQLConfig(
            bind="127.0.0.1:0", statement_timeout_seconds=5.0, worker_count=1
        )
        with SQLServer(served.ha, config) as server, left_unread(server) as tool:
            assert server.observe().figures["connections"] == 1
            wait_until(lambda: not server.observe().figures["connections"])
            assert len(rest_of(tool)) < UNREAD_SIZE


UNREAD_SIZE = 60_000


@contextlib.contextmanager
def left_unread(server: SQLServer) -> Iterator[socket.socket]:
    """Yield a tool that has said good-bye while its answer waits for it in *server*."""
    host, _, port = server.address.rpartition(":")
    with socket.socket() as tool:
        tool.settimeout(WAIT_SECONDS)
        tool.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        tool.connect((host, int(port)))
        tool.sendall(startup(user="me", database="flights"))
        answer = b""
        while not answer.endswith(b"Z\0\0\0\5I"):
            answer += tool.recv(65_536)
        (session,) = server._shared.connections.values()
        ours = session._writer.get_extra_info("socket")
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        # More than the kernel takes now, and less than the session waits for.
        rows = f"SELECT repeat('x', {UNREAD_SIZE}) FROM delays LIMIT 1\0"
        tool.sendall(message(b"Q", rows.encode()) + message(b"X"))
        wait_until(session._writer.transport.is_closing)
        assert session._writer.transport.get_write_buffer_size() > 0
        yield tool


def rest_of(tool: socket.socket) -> bytes:
    """Return what *tool* is sent until the end of its connection, which must come."""
    rest = b""
    with contextlib.suppress(ConnectionResetError):
        while data := tool.recv(65_536):
            rest += data
    return rest


LONG = (
    "SELECT count(*) FROM generate_series(1, 100000000) a(i), "
    "generate_series(1, 1000) b(j) WHERE i % 7 = j % 5"
)


def setup_of(served: Served) -> Setup:
    """Return what workers are told first."""
    return Setup(
        settings=served.config.to_settings(),
        memory_limit_bytes=64 * 1024 * 1024,
        thread_count=1,
    )


def one_worker(served: Served) -> Workers:
    """Return the workers of a server that has one."""
    return Workers(setup_of(served), 1)


def worker_ids() -> Sequence[int]:
    """Return the workers of this process."""
    return children_of(os.getpid(), worker.__name__)


async def spawned(workers: Workers) -> None:
    """Begin to start *workers*, and return when their processes are there."""
    workers.start()
    while workers._unstarted_count:  # noqa: ASYNC110 (nothing tells of it)
        await asyncio.sleep(0)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Have this process open no more files, and thus start no more processes."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def raises(error: Exception) -> Callable[..., None]:
    """Return what raises *error*."""

    def fail(*_: object) -> None:
        raise error

    return fail


@contextlib.contextmanager
def stopped(workers: Workers) -> Iterator[None]:
    """Have the one process of *workers* do nothing meanwhile."""
    (worker,) = workers._all
    worker._process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # a test has killed it
            worker._process.send_signal(signal.SIGCONT)


async def ask(
    workers: Workers, timeout_seconds: float = WAIT_SECONDS, caller: str = "me"
) -> None:
    """Have a statement be answered."""
    async with answering(workers, timeout_seconds, caller) as answer:
        assert await answer.rows()


def answering(
    workers: Workers, timeout_seconds: float = WAIT_SECONDS, caller: str = "me"
) -> contextlib.AbstractAsyncContextManager[Answer]:
    """Return a block with the answer to a statement."""
    return workers.answer(
        caller,
        token=None,
        text="SELECT 1",
        parameters=[],
        result_formats=(),
        session=SessionFacts(
            user="me", database="", search_path=(), settings={}, process_id=1
        ),
        timeout_seconds=timeout_seconds,
    )


SUSPENDED = b"".join(
    [
        message(b"Q", b"BEGIN\0"),
        message(b"P", b"\0SELECT n FROM numbers\0\0\0"),
        message(b"B", b"c\0\0\0\0\0\0\0\0"),
        message(b"E", b"c\0\0\0\0\5"),
        message(b"S"),
    ]
)
"""A portal in a transaction, of which five rows are read."""

DESCRIBED = b"".join(
    [
        message(b"Q", b"BEGIN\0"),
        message(b"P", b"\0SELECT n FROM numbers\0\0\0"),
        message(b"B", b"c\0\0\0\0\0\0\0\0"),
        message(b"D", b"Pc\0"),
        message(b"S"),
    ]
)
"""A portal in a transaction, of which the columns are known."""


class TestBadCompany:
    @pytest.mark.parametrize("seed", range(4))
    def test_rubbish_leaves_it_serving(self, served: Served, seed: int) -> None:
        """Mutated conversations of a real tool, byte by byte."""
        drawn = random.Random(seed)
        good = startup(user="me", database="flights") + b"".join(
            [
                message(b"Q", b"SELECT 1\0"),
                message(
                    b"P", b"s\0SELECT flights FROM delays WHERE carrier = $1\0\0\0"
                ),
                message(b"B", b"\0s\0\0\0\0\1\0\0\0\2AA\0\0"),
                message(b"D", b"P\0"),
                message(b"E", b"\0\0\0\0\0"),
                message(b"S"),
            ]
        )
        for _ in range(40):
            data = bytearray(good)
            for _ in range(drawn.randint(1, 6)):
                data[drawn.randrange(len(data))] = drawn.randrange(256)
            sent = bytes(data[: drawn.randint(1, len(data))])
            with (
                socket.create_connection(
                    (served.host, served.port), WAIT_SECONDS
                ) as one,
                contextlib.suppress(OSError),
            ):
                one.sendall(sent)
                one.shutdown(socket.SHUT_WR)
                while one.recv(65_536):
                    pass
        with connect(served.server) as connection:
            assert connection.execute(
                "SELECT flights FROM delays WHERE carrier = 'B6'"
            ).fetchone() == (1,)

    def test_http_is_told_that_it_is_no_tool(self, served: Served) -> None:
        """And so is TLS without a request for it."""
        with socket.create_connection((served.host, served.port), WAIT_SECONDS) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"no Postgres client" in one.recv(1_000)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection((served.host, served.port), WAIT_SECONDS) as one,
            pytest.raises(ssl.SSLError),
        ):
            context.wrap_socket(one)


class TestLife:
    def test_it_ends_with_a_word(self, served: Served) -> None:
        """Sessions hear that it ends; it does so once."""
        server = SQLServer(served.ha, SQLConfig(bind="127.0.0.1:0", worker_count=1))
        with server, connect(server) as connection:
            assert server.observe().problem is None
            server.close()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        server.close()
        with pytest.raises(LocalProtocolError):
            server.start()
        with pytest.raises(LocalProtocolError):
            server.observe()

    @pytest.mark.nightly
    def test_it_ends_with_a_word_while_a_worker_is_given_back(
        self, served: Served
    ) -> None:
        """
        A session hears that it ends also if its portal is just being closed.

        The word was missed at that moment: the session went on to wait for its tool,
        the server for the session, and the tool was told nothing.
        """
        server = SQLServer(served.ha, SQLConfig(bind="127.0.0.1:0", worker_count=1))
        with server:
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port))) as tool:
                tool.settimeout(WAIT_SECONDS)
                tool.sendall(startup(user="me", database="flights") + SUSPENDED)
                answer = b""
                while answer.count(b"Z\0\0\0\5T") < 2:
                    answer += tool.recv(65_536)
                (session,) = server._shared.connections.values()
                (worker,) = server._workers._all
                worker._process.send_signal(signal.SIGSTOP)
                closing = threading.Thread(target=server.close)
                try:
                    tool.sendall(message(b"C", b"Pc\0"))
                    wait_until(lambda: not session._talk._portals)
                    closing.start()
                    wait_until(lambda: session._is_ending)
                finally:
                    worker._process.send_signal(signal.SIGCONT)
                answer = b""
                while data := tool.recv(65_536):
                    answer += data
                assert b"57P01" in answer
            closing.join()

    @pytest.mark.nightly
    def test_it_ends_without_a_tool_that_comes_too_late(self, served: Served) -> None:
        """
        A connection that was just made when it was closed ends, too.

        It was none of those that were ended: the tool waited for ever for an answer.
        """
        server = SQLServer(served.ha, SQLConfig(bind="127.0.0.1:0", worker_count=1))
        is_busy, is_free = threading.Event(), threading.Event()

        def hold() -> None:
            is_busy.set()
            is_free.wait(WAIT_SECONDS)

        with server:
            host, _, port = server.address.rpartition(":")
            server._loop.call_soon_threadsafe(hold)
            assert is_busy.wait(WAIT_SECONDS)
            with socket.create_connection((host, int(port))) as tool:
                tool.settimeout(WAIT_SECONDS)
                tool.sendall(startup(user="me", database="flights"))
                server._loop.call_soon_threadsafe(server._stop.set)
                is_free.set()
                server.close()
                with contextlib.suppress(ConnectionResetError):
                    while tool.recv(65_536):
                        pass

    def test_it_ends_without_a_tool_that_does_not_read(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        The connection ends all the same.

        It stayed open when the server had ended, in a process that goes on: the tool
        waited for ever for the rest of its rows.
        """
        monkeypatch.setattr("queryablestate.sql.server._CLOSING_SECONDS", 0.5)
        server = SQLServer(served.ha, SQLConfig(bind="127.0.0.1:0", worker_count=1))
        with server:
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port))) as tool:
                tool.settimeout(WAIT_SECONDS)
                rows = b"SELECT repeat('x', 1000000) FROM numbers LIMIT 30\0"
                tool.sendall(
                    startup(user="me", database="flights") + message(b"Q", rows)
                )
                assert tool.recv(1)
                (session,) = server._shared.connections.values()
                wait_until(
                    lambda: session._writer.transport.get_write_buffer_size() > 0
                )
                server.close()
                with contextlib.suppress(ConnectionResetError):
                    while tool.recv(65_536):
                        pass

    @pytest.mark.nightly
    def test_it_ends_without_a_tool_that_has_said_good_bye(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A session that is over, and has not been read, ends with the server, too.

        Its connection stayed open when the server had ended.
        """
        monkeypatch.setattr("queryablestate.sql.server._CLOSING_SECONDS", 0.5)
        server = SQLServer(served.ha, SQLConfig(bind="127.0.0.1:0", worker_count=1))
        with server, left_unread(server) as tool:
            server.close()
            assert len(rest_of(tool)) < UNREAD_SIZE

    @pytest.mark.proves("F1")
    def test_it_is_ready_while_a_proxy_leads(self) -> None:
        """Without one it could answer nothing; with the next one it can."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
            open_ha_services(HAConfig(url=names.url)) as ha,
            SQLServer(ha, SQLConfig(bind="127.0.0.1:0", worker_count=1)) as server,
        ):

            def is_ready() -> bool:
                return server.observe().problem is None

            assert server.observe().problem == "no proxy leads: no state can be asked"
            for _ in range(2):
                with QueryStateProxyServer(ha):
                    wait_until(is_ready)
                wait_until(lambda: not is_ready())

    def test_an_address_that_is_taken_is_told(self, served: Served) -> None:
        """When it starts."""
        with pytest.raises(ConfigurationError, match="cannot be used"):
            SQLServer(served.ha, SQLConfig(bind=served.server.address)).start()

    @pytest.mark.nightly
    def test_one_that_cannot_look_for_proxies_has_not_started(
        self, served: Served
    ) -> None:
        """
        Its name service is closed while it starts: it says so, and has ended.

        It went on to listen, with its workers: a ``with`` statement that fails at its
        beginning closes nothing.
        """
        with open_ha_services(served.config) as ha:
            server = SQLServer(ha, SQLConfig(bind="127.0.0.1:0", worker_count=1))
        with pytest.raises(LocalProtocolError):
            server.start()
        try:
            with pytest.raises(LocalProtocolError, match="not running"):
                server.observe()
        finally:
            server.close()

    def test_an_embedded_name_service_is_refused(self) -> None:
        """Workers could not reach it."""
        with (
            open_ha_services("embedded:sql-refused") as ha,
            pytest.raises(ConfigurationError, match="LeaderServer"),
        ):
            SQLServer(ha)

    def test_what_is_unavailable_is_told_with_the_reason(self) -> None:
        """And is answered again when it is back."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
            open_ha_services(HAConfig(url=names.url)) as ha,
            LocalStateCluster(ha, nodes=1) as cluster,
            SQLServer(ha, SQLConfig(bind="127.0.0.1:0", worker_count=1)) as server,
        ):
            Publisher(ha.config, "flights", {"delays": DELAYS}).write(
                {"delays": first_rows()["delays"]}
            )
            with connect(server) as connection:
                question = "SELECT flights FROM delays WHERE carrier = 'AA'"
                assert connection.execute(question).fetchone() == (0,)
                cluster.nodes[0].close()
                for statement in (question, "SELECT count(*) FROM delays"):
                    refused = refusal_of(connection, statement)
                    assert refused.sqlstate in {"57P03", "57014"}
                    assert refused.diag.message_hint

    def test_a_job_that_is_in_doubt_hides_no_other(self, tmp_path: Path) -> None:
        """
        Tools see the states of the jobs that can be described.

        The name service has lost its store, and a node keeps rows of a job from before:
        the list of all tables was refused, so no tool found any.
        """

        @contextlib.contextmanager
        def cluster() -> Iterator[HAServices]:
            with (
                LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
                open_ha_services(HAConfig(url=names.url)) as ha,
                QueryStateProxyServer(ha),
                StateNode(ha, NodeConfig(data_dir=tmp_path, node_id="node-1")) as node,
            ):
                node.wait_until_registered(30.0)
                yield ha

        rows = {"delays": first_rows()["delays"]}
        with cluster() as ha:
            Publisher(ha.config, "lost", {"delays": DELAYS}).write(rows)
        with (
            cluster() as ha,
            SQLServer(ha, SQLConfig(bind="127.0.0.1:0", worker_count=1)) as server,
            connect(server) as connection,
        ):
            Publisher(ha.config, "flights", {"delays": DELAYS}).write(rows)
            found = connection.execute("SELECT schemaname, tablename FROM pg_tables")
            assert found.fetchall() == [("flights", "delays")]
            refused = refusal_of(connection, "SELECT * FROM lost.delays")
            assert refused.sqlstate == "57P03"


@pytest.mark.proves("F6")
class TestNothing:
    """F6: a statement that no row can fit has columns and no rows."""

    @pytest.mark.parametrize(
        "rest",
        [
            "LIMIT 0",
            "WHERE n > 7 AND n < 3",
            "WHERE n >= 7 AND n < 7 ORDER BY half",
            "WHERE n IN (1, 2) LIMIT 0",
        ],
    )
    def test_it_is_no_error(self, served: Served, rest: str) -> None:
        """Tools ask so for the columns of a table."""
        with connect(served.server) as connection:
            found = connection.execute(f"SELECT n, word, _batch_id FROM numbers {rest}")
            assert found.fetchall() == []
            assert found.description is not None
            names = [one.name for one in found.description]
        assert names == ["n", "word", "_batch_id"]


class TestChanges:
    def test_rows_are_those_of_the_last_batch(self, served: Served) -> None:
        """Each statement asks anew, and says which batch it has seen."""
        publisher = Publisher(served.config, "changing", {"delays": DELAYS})
        with connect(served.server) as connection:
            for number in range(3):
                row = ("AA", float(number), number, None, None, None)
                batch_id = publisher.write({"delays": [row]})
                for condition in ("carrier = 'AA'", "carrier || '' = 'AA'"):
                    found = connection.execute(
                        "SELECT flights, _batch_id FROM changing.delays "
                        f"WHERE {condition}"
                    ).fetchall()
                    assert found == [(number, batch_id)]


@pytest.mark.parametrize("columns", ["count(*)", "month"])
def test_a_map_larger_than_one_answer_comes_in_parts(
    served: Served, columns: str
) -> None:
    """
    Its rows are found, also where only its key is asked for.

    A statement that needs no engine was refused, as if by a defect of the tool; one
    that counts the same rows was answered.
    """
    schema = StateSchema(
        kind=StateKind.MAP,
        key=(Field("carrier", AtomicType.STRING),),
        map_key=(Field("month", AtomicType.INT),),
        value=(Field("text", AtomicType.STRING),),
    )
    job_id = f"large-{len(columns)}"
    rows = [("AA", month, "x" * 500_000) for month in range(40)]
    Publisher(served.config, job_id, {"maps": schema}).write({"maps": rows})
    with connect(served.server) as connection:
        found = connection.execute(
            f"SELECT {columns} FROM \"{job_id}\".maps WHERE carrier = 'AA'"
        ).fetchall()
    if columns == "month":
        assert sorted(found) == [(month,) for month in range(40)]
    else:
        assert found == [(40,)]


@pytest.mark.parametrize("kind", list(StateKind))
def test_a_row_that_python_cannot_hold_is_found_by_its_key(
    served: Served, kind: StateKind
) -> None:
    """
    A year after 9999, which Spark has, is the same by key as in the whole state.

    A statement that named the key ended with an error, as if the cluster had answered
    nonsense; one that read the whole state had the row.
    """
    columns = (Field("day", AtomicType.DATE), Field("n", AtomicType.INT))
    month = (Field("month", AtomicType.INT),) if kind is StateKind.MAP else ()
    schema = StateSchema(
        kind=kind, key=(Field("k", AtomicType.STRING),), map_key=month, value=columns
    )
    codec = KeyCodec(schema.key, max_parallelism=MAX_PARALLELISM, map_fields=month)
    far_days = 3_000_000
    rows = StateRows(
        keys=[
            codec.map_entry_key(key, 1) if month else codec.storage_key(key)
            for key in ("far", "near")
        ],
        values=[msgspec.msgpack.encode([days, 1]) for days in (far_days, 0)],
    )
    job_id = f"beyond-{kind.value}"
    Publisher(served.config, job_id, {"days": schema}).write({"days": rows})
    table = f'"{job_id}".days'
    wanted = "{%s}" if kind is StateKind.LIST else "%s"
    far, near = wanted % "10183-09-21", wanted % "1970-01-01"
    with connect(served.server) as connection:
        for condition, days in (
            ("k = 'far'", [far]),
            ("k IN ('near', 'far', 'none')", [far, near]),
            ("true", [far, near]),
        ):
            for columns_wanted in ("day::text", "day"):
                cursor = connection.execute(
                    f"SELECT {columns_wanted} FROM {table} WHERE {condition}"
                )
                found = [
                    cursor.pgresult.get_value(place, 0).decode()
                    for place in range(cursor.rowcount)
                ]
                expected = days
                if kind is StateKind.LIST and columns_wanted == "day::text":
                    expected = [f"[{one[1:-1]}]" for one in days]
                assert sorted(found) == expected, (condition, columns_wanted)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("e", StructType(())),
        ("e", ArrayType(StructType((Field("", AtomicType.INT),)))),
        (
            "e",
            MapType(
                AtomicType.INT,
                StructType((Field("a", AtomicType.INT), Field("A", AtomicType.INT))),
            ),
        ),
        ("", AtomicType.INT),
    ],
    ids=["no field", "a field without a name", "fields of one name", "no name"],
)
def test_a_column_that_sql_cannot_have_leaves_the_others(
    served: Served, name: str, kind: DataType
) -> None:
    """
    It is told by its name; a statement that does not want it is answered.

    Spark has such columns.  "SELECT *" was told to be a syntax error.
    """
    schema = StateSchema(
        kind=StateKind.VALUE,
        key=(Field("k", AtomicType.STRING),),
        value=(Field(name, kind), Field("n", AtomicType.INT)),
    )
    job_id = f"odd-{len(str(kind))}"
    Publisher(served.config, job_id, {"odd": schema}).write({"odd": [("a", None, 1)]})
    table = f'"{job_id}".odd'
    with connect(served.server) as connection:
        for wanted in ("n", "count(*)", "max(n)"):
            for rest in ("", " WHERE k = 'a'"):
                statement = f"SELECT {wanted} FROM {table}{rest}"
                assert connection.execute(statement).fetchall() == [(1,)]
        refusal = refusal_of(connection, f"SELECT * FROM {table}")
    assert refusal.sqlstate == "0A000"
    assert f"the column {name!r} of type {kind}" in str(refusal)


def test_both_ways_agree_over_a_real_cluster(served: Served) -> None:
    """Random conditions on keys: looked up, scanned, and over the whole state."""
    drawn = random.Random(20_261_123)
    columns = "n, word, half, _batch_id, _generation"
    with connect(served.server) as connection:
        for _ in range(40):
            low, high = sorted(drawn.randint(-20, 3_100) for _ in range(2))
            listed = ", ".join(str(drawn.randint(-20, 3_100)) for _ in range(5))
            condition = drawn.choice(
                [
                    f"n = {low}",
                    f"n IN ({listed})",
                    f"n IN ({listed}) AND word <> 'a'",
                    f"n BETWEEN {low} AND {high}",
                    f"n > {low} AND n <= {high} AND half < 700",
                    f"n >= {low} AND word = 'b'",
                    f"n < {high}",
                ]
            )
            quick = connection.execute(
                f"SELECT {columns} FROM numbers WHERE {condition}"
            ).fetchall()
            whole = connection.execute(
                f"SELECT {columns} FROM (SELECT * FROM numbers) s WHERE {condition}"
            ).fetchall()
            assert sorted(quick) == sorted(whole), condition


@pytest.mark.parametrize("size", nightly_after(2, [477, 478, 470, 476, 480, 600]))
def test_a_text_longer_than_any_key_is_no_error(served: Served, size: int) -> None:
    """A list of what a person has typed was refused for one long word in it."""
    text = "C" * size
    with connect(served.server) as connection:
        for condition in (
            "carrier = %(text)s",
            "carrier IN ('AA', %(text)s)",
            "carrier = ANY(%(texts)s)",
            "carrier < %(text)s",
            "carrier <= %(text)s AND carrier > 'B'",
            "carrier >= %(text)s",
            "carrier > %(text)s",
            "carrier BETWEEN 'B' AND %(text)s",
            "carrier LIKE %(text)s || '%%'",
            "carrier LIKE %(pattern)s",
        ):
            given = {"text": text, "texts": ["AA", text], "pattern": f"{text}%"}
            asked = f"FROM {{}} WHERE {condition}"
            quick, whole = (
                connection.execute(f"SELECT carrier {asked.format(table)}", given)
                for table in ("delays", "(SELECT * FROM delays) s")
            )
            found = sorted(quick.fetchall())
            assert found == sorted(whole.fetchall()), condition
            some = connection.execute(
                f"SELECT carrier {asked.format('delays')} LIMIT 3", given
            ).fetchall()
            assert len(some) == min(3, len(found)), condition
        for condition in ("origin = %(text)s", "origin = %(text)s AND number = 1"):
            statement = f"SELECT origin FROM routes WHERE {condition}"
            assert connection.execute(statement, {"text": text}).fetchall() == []


class TestSessionsOfAPool:
    """One session is several users', one after the other: none leaves it changed."""

    @pytest.mark.parametrize(
        "statements",
        [
            ["SET search_path TO other", "DISCARD ALL"],
            ["BEGIN", "SET LOCAL search_path TO other", "COMMIT"],
            ["BEGIN", "SET search_path TO other", "ROLLBACK"],
            ["BEGIN", "SET search_path TO other", "SELECT nothing", "COMMIT"],
            ["BEGIN", "SET search_path TO other", "RESET search_path", "COMMIT"],
            ["SET LOCAL search_path TO other; SELECT 1"],
            [
                "BEGIN",
                "SAVEPOINT a",
                "SET search_path TO other",
                "ROLLBACK TO SAVEPOINT a",
                "COMMIT",
            ],
            [
                "BEGIN",
                "SAVEPOINT a",
                "SAVEPOINT b",
                "SET search_path TO other",
                "RELEASE SAVEPOINT b",
                "ROLLBACK TO a",
                "COMMIT",
            ],
            [
                "BEGIN",
                *["SAVEPOINT a"] * 200,
                "SET search_path TO other",
                "SELECT nothing",
                "ROLLBACK TO a",
                "SET LOCAL search_path TO third",
                "COMMIT",
            ],
        ],
    )
    def test_a_setting_ends_with_its_user(
        self, served: Served, statements: list[str]
    ) -> None:
        """The next one's statements read a state of that name of another job."""
        with connect(served.server) as connection:
            for text in statements:
                connection.pgconn.exec_(text.encode())
            assert connection.execute("SHOW search_path").fetchall() == [("flights",)]

    @pytest.mark.parametrize(
        "statements",
        [
            ["SET search_path TO other"],
            ["BEGIN", "SET search_path TO other", "COMMIT"],
            [
                "BEGIN",
                "SET search_path TO other",
                "SET LOCAL search_path TO third",
                "COMMIT",
            ],
            ["SET search_path TO other", "BEGIN", "RESET ALL", "ROLLBACK"],
            [
                "BEGIN",
                "SET search_path TO other",
                "SAVEPOINT a",
                "SET search_path TO third",
                "ROLLBACK TO A",
                "RELEASE a",
                "COMMIT",
            ],
            [
                "BEGIN",
                "SAVEPOINT a",
                "SET search_path TO other",
                "RELEASE a",
                "ROLLBACK TO a",
                "COMMIT",
            ],
        ],
    )
    def test_a_setting_stays_until_then(
        self, served: Served, statements: list[str]
    ) -> None:
        """Also over the end of a transaction."""
        with connect(served.server) as connection:
            for text in statements:
                connection.pgconn.exec_(text.encode())
            assert connection.execute("SHOW search_path").fetchall() == [("other",)]

    def test_a_tool_is_told_of_what_comes_back(self, served: Served) -> None:
        """It shows the name that it was told last."""
        with connect(served.server, application_name="first") as connection:
            connection.execute("SET application_name = 'second'")
            assert connection.info.parameter_status("application_name") == "second"
            connection.execute("DISCARD ALL")
            assert connection.info.parameter_status("application_name") == "first"

    @pytest.mark.parametrize("what", ["PLANS", "TEMP", "SEQUENCES"])
    def test_prepared_statements_outlive_what_is_less_than_all(
        self, served: Served, what: str
    ) -> None:
        """A pool that discards temporary tables has lost its statements as well."""
        with connect(served.server) as connection:
            connection.pgconn.prepare(b"kept", b"SELECT 1")
            done = connection.execute(f"DISCARD {what}")
            assert done.statusmessage == f"DISCARD {what}"
            result = connection.pgconn.exec_prepared(b"kept", [])
            assert result.status == psycopg.pq.ExecStatus.TUPLES_OK
            connection.execute("DISCARD ALL")
            result = connection.pgconn.exec_prepared(b"kept", [])
            assert result.status == psycopg.pq.ExecStatus.FATAL_ERROR


def test_rows_of_keys_are_grouped_by_all(served: Served) -> None:
    """They were told one by one: GROUP BY ALL names nothing that it groups by."""
    condition = "WHERE n IN (1, 2, 3, 4, 5, 6, 7)"
    with connect(served.server) as connection:
        rows = connection.execute(f"SELECT word FROM numbers {condition}").fetchall()
        grouped = connection.execute(
            f"SELECT word FROM numbers {condition} GROUP BY ALL"
        ).fetchall()
    assert len(grouped) < len(rows)
    assert sorted(grouped) == sorted(set(rows))


def test_the_verb_serves_until_sigterm(served: Served, tmp_path: Path) -> None:
    """It says where it listens, answers, and ends with 0."""
    import signal  # noqa: PLC0415 (of this test alone)
    import subprocess  # noqa: PLC0415 (likewise)
    import sys  # noqa: PLC0415 (likewise)

    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lodestar",
            "sql",
            "--url",
            served.config.url,
            "--bind",
            "127.0.0.1:0",
            "--memory-limit",
            "64MiB",
            "--worker-count",
            "1",
            "--metrics",
            "0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving 127.0.0.1:")
        port = line.rpartition(":")[2].strip()
        with psycopg.connect(
            host="127.0.0.1", port=port, user="me", dbname="flights"
        ) as connection:
            assert connection.execute("SELECT count(*) FROM log").fetchone() == (5,)
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
