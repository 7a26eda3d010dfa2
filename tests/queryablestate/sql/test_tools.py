"""The tools that business users have ask states as they are: no tool is told of us."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from queryablestate.operations.state_operations import StateOperations
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.queryablestate.sql.conftest import CARRIERS, DAY, NOON, Served
from tests.recording import WAIT_SECONDS, wait_until


asyncpg: Any = pytest.importorskip("asyncpg")
psycopg: Any = pytest.importorskip("psycopg")
pd: Any = pytest.importorskip("pandas")
sa: Any = pytest.importorskip("sqlalchemy")

pytestmark = [pytest.mark.shells, pytest.mark.proves("F6")]

JDBC = Path("/usr/share/java/postgresql.jar")


@pytest.fixture
def connection(served: Served) -> Iterator[Any]:
    """Return a connection of psycopg."""
    with psycopg.connect(served.dsn) as opened:
        yield opened


class TestPsycopg:
    def test_a_key_is_looked_up(self, connection: Any, served: Served) -> None:
        """Parameters and rows have the types of the state; no engine is asked."""
        before = served.server.observe().figures["queries_total"]
        found = connection.execute(
            "SELECT carrier, delay, flights, day, seen, fare FROM delays "
            "WHERE carrier = %s",
            ["DL"],
        ).fetchall()
        fare = found[0][5]
        assert found == [
            ("DL", 3.0, 2, DAY + timedelta(days=2), NOON + timedelta(hours=2), fare)
        ]
        assert str(fare) == "2.25"
        assert served.server.observe().figures["queries_total"] == before

    def test_freshness_is_told(self, connection: Any) -> None:
        """By columns of every table, on either way."""
        for condition in ("carrier = 'AA'", "upper(carrier) = 'AA'"):
            ((batch_id, age, generation),) = connection.execute(
                "SELECT _batch_id, _age_seconds, _generation FROM flights.delays "
                f"WHERE {condition}"
            ).fetchall()
            assert (batch_id, generation) == (0, 1)
            assert age >= 0

    @pytest.mark.parametrize("binary", [False, True])
    def test_values_of_all_types(self, connection: Any, binary: bool) -> None:
        """As text and as bytes; what Postgres has no type for is JSON."""
        with connection.cursor(binary=binary) as cursor:
            row = cursor.execute(
                "SELECT miles, tags, more, counts, true, 1::smallint, "
                "interval '1 day 2 seconds', '\\x01'::bytea, 12345.678::decimal(10,3), "
                "NULL, time '10:11:12', 7::hugeint FROM routes "
                "WHERE origin = 'JFK' AND number = 3"
            ).fetchone()
        assert row[:2] == (pytest.approx(0.3), ["JFK", None])
        assert row[2:6] == ({"a": 3}, {"x": 3}, True, 1)
        assert row[6] == timedelta(days=1, seconds=2)
        assert bytes(row[7]) != b""
        assert str(row[8]) == "12345.678"
        assert row[9] is None
        assert str(row[10]) == "10:11:12"
        assert row[11] == 7

    def test_lists_are_parameters(self, connection: Any) -> None:
        """``= ANY`` of a list looks its keys up."""
        found = connection.execute(
            "SELECT carrier FROM delays WHERE carrier = ANY(%s) ORDER BY 1",
            [["WN", "AA", "none"]],
        ).fetchall()
        assert found == [("AA",), ("WN",)]

    @pytest.mark.parametrize("binary", [False, True])
    def test_arrays_are_compared_with_parameters(
        self, connection: Any, binary: bool
    ) -> None:
        """
        Whose type the driver leaves open: it is that of the column.

        It was taken for text, which the engine does not read as an array.
        """
        for state, column, value, count in (
            ("routes", "tags", ["JFK", None], 20),
            ("routes", "tags", [], 0),
            ("log", "event", ["AA0", "AA1", "AA2"], 1),
        ):
            cursor = connection.cursor(binary=binary)
            cursor.execute(
                f"SELECT count(*) FROM {state} WHERE {column} = "
                f"{'%b' if binary else '%s'}",
                [value],
            )
            assert cursor.fetchone() == (count,)

    def test_a_join_of_two_states(self, connection: Any) -> None:
        """With aggregates, a window and a common table expression."""
        found = connection.execute(
            "WITH total AS "
            "(SELECT carrier, sum(minutes) AS m FROM by_month GROUP BY 1) "
            "SELECT d.carrier, m, rank() OVER (ORDER BY d.flights DESC) "
            "FROM delays d JOIN total USING (carrier) WHERE d.flights > %s "
            "ORDER BY d.carrier",
            [2],
        ).fetchall()
        assert found == [("UA", 66, 2), ("WN", 66, 1)]

    def test_lists_and_maps_are_rows(self, connection: Any) -> None:
        """A map state has a row for each entry, a list state one for each key."""
        found = connection.execute(
            "SELECT month, minutes FROM by_month WHERE carrier = 'AA' AND month > 9"
        ).fetchall()
        assert sorted(found) == [(10, 10), (11, 11)]
        assert connection.execute(
            "SELECT event FROM log WHERE carrier = 'B6'"
        ).fetchall() == [(["B60", "B61", "B62"],)]

    def test_odd_names_are_quoted(self, connection: Any) -> None:
        """Names of states are what they are, and are found without regard to case."""
        assert connection.execute(
            'SELECT v FROM flights."Odd Näme; --"'
        ).fetchall() == [(1,)]
        assert connection.execute("SELECT count(*) FROM FLIGHTS.Delays").fetchall() == [
            (5,)
        ]

    @pytest.mark.parametrize("condition", ["k = 'k'", "upper(k) = 'K'", 'v."Ä" = 1'])
    @pytest.mark.parametrize("name", ['"Überfällig"', 'flights."ÜberFÄLLIG"'])
    def test_names_in_other_scripts(
        self, connection: Any, name: str, condition: str
    ) -> None:
        """
        A state whose name has a capital beyond A to Z is found on every way.

        The engine had its table in small letters and ignores the case of A to Z alone:
        only looking up keys found it.
        """
        found = connection.execute(f'SELECT v."Ä" FROM {name} v WHERE {condition}')
        assert found.fetchall() == [(1,)]

    def test_a_failed_transaction_goes_on_after_its_end(self, connection: Any) -> None:
        """As with Postgres: nothing until ROLLBACK, everything after it."""
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        assert connection.execute("SELECT 1 / 2").fetchone() == (0,)

    @pytest.mark.parametrize(
        ("statement", "sqlstate"),
        [
            ("SELECT * FROM nothing", "42P01"),
            ("SELECT * FROM other.delays", "42P01"),
            ("SELECT nothing FROM delays", "42703"),
            ("SELEC 1", "0A000"),
            ("SELECT 1 FROM", "42601"),
            ("SELECT nofunction(1)", "42883"),
            ("SELECT 'x'::int", "22P02"),
            ("INSERT INTO delays VALUES (1)", "25006"),
            ("UPDATE delays SET delay = 1", "25006"),
            ("CREATE TABLE x (a int)", "25006"),
            ("DROP TABLE delays", "25006"),
            ("COPY delays TO STDOUT", "0A000"),
            ("WITH x AS (DELETE FROM delays RETURNING *) SELECT * FROM x", "25006"),
            ("CREATE VIEW late AS SELECT * FROM delays", "25006"),
            ("SELECT * FROM read_csv('/etc/passwd')", "0A000"),
            ("SELECT * FROM read_text('/etc/passwd')", "0A000"),
            ("SELECT * FROM '/etc/passwd'", "42P01"),
            ("SELECT * FROM query('SELECT 1')", "0A000"),
            ("SELECT * FROM duckdb_settings()", "0A000"),
            ("ATTACH '/tmp/x.db'", "0A000"),
            ("INSTALL httpfs", "0A000"),
            ("LOAD httpfs", "0A000"),
            ("PRAGMA database_list", "0A000"),
            ("SET memory_limit = '100GB'", "42704"),
            ("SET server_version = '1'", "55P02"),
            ("SHOW nothing", "42704"),
            ("SELECT * FROM delays AT (VERSION => 1)", "0A000"),
            ("SELECT '", "42601"),
            ("EXECUTE x", "0A000"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, connection: Any, statement: str, sqlstate: str
    ) -> None:
        """With a SQLSTATE and a sentence; the connection goes on."""
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statement)
        assert caught.value.sqlstate == sqlstate
        assert "Traceback" not in str(caught.value)
        connection.rollback()
        assert connection.execute("SELECT 1").fetchone() == (1,)

    def test_settings_are_a_session_s(self, connection: Any) -> None:
        """SET holds for one session, RESET takes it back."""
        connection.execute("SET search_path TO nothing")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM delays")
        connection.rollback()
        connection.execute("RESET ALL")
        assert connection.execute("SHOW search_path").fetchone() == ("flights",)
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)


class TestAsyncpg:
    def test_statements_are_prepared_and_read_in_parts(self, served: Served) -> None:
        """In binary form, with types that the server tells, and a cursor."""

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database="flights"
            )
            try:
                found = [
                    await connection.fetch(
                        "SELECT day, seen, delay FROM delays WHERE carrier = $1", "B6"
                    ),
                    await connection.fetch(
                        "SELECT carrier FROM delays WHERE carrier = ANY($1::text[]) "
                        "AND delay < $2 ORDER BY 1 LIMIT $3",
                        ["AA", "DL", "WN"],
                        4.0,
                        5,
                    ),
                    await connection.fetch(
                        "SELECT count(*) FROM numbers WHERE n >= $1", 2_000
                    ),
                ]
                async with connection.transaction():
                    query = "SELECT month FROM by_month WHERE carrier = 'AA' ORDER BY 1"
                    found.append(
                        [row async for row in connection.cursor(query, prefetch=5)]
                    )
                return found
            finally:
                await connection.close()

        first, some, counted, months = asyncio.run(ask())
        assert [tuple(row) for row in first] == [
            (DAY + timedelta(days=1), NOON + timedelta(hours=1), 1.5)
        ]
        assert [tuple(row) for row in some] == [("AA",), ("DL",)]
        assert [tuple(row) for row in counted] == [(990,)]
        assert [tuple(row) for row in months] == [(month,) for month in range(12)]

    @pytest.mark.parametrize("number", [5, 2**40, None])
    def test_a_parameter_has_one_type(self, served: Served, number: int | None) -> None:
        """
        Columns are of the type that they were described as, whatever is bound.

        The engine took a small number for an INTEGER and a large one for a BIGINT: the
        statement was described with 4 bytes, and answered with 8.
        """

        async def ask() -> Any:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database="flights"
            )
            try:
                return await connection.fetchval(
                    "SELECT max($1) FROM numbers WHERE n < $1 OR n = 0", number
                )
            finally:
                await connection.close()

        assert asyncio.run(ask()) == number

    @pytest.mark.proves("Q3")
    @pytest.mark.parametrize("condition", ["k = $1", "k || '' = $1"])
    def test_a_prepared_statement_of_a_state_that_has_changed(
        self, served: Served, condition: str
    ) -> None:
        """
        Values of one column are never shown as another's: the driver prepares anew.

        Drivers know the columns from when they prepared.  A state that was made anew
        with other columns of the same types was answered under the old names.
        """
        job_id = f"changed-{len(condition)}"
        key = (Field("k", AtomicType.STRING),)
        old, new = (
            StateSchema(
                kind=StateKind.VALUE, key=key, value=(Field(name, AtomicType.BIGINT),)
            )
            for name in ("old", "new")
        )

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database=job_id
            )
            statement = f"SELECT * FROM s WHERE {condition}"
            try:
                Publisher(served.config, job_id, {"s": old}).write({"s": [("a", 1)]})
                found = [await connection.fetchrow(statement, "a")]
                with StateOperations(served.ha) as operations:
                    operations.drop_state(job_id, "s")
                Publisher(
                    served.config, job_id, {"s": new}, on_new_query="replace"
                ).write({"s": [("a", 2)]})
                async with asyncio.timeout(WAIT_SECONDS):
                    while len(found) < 2:
                        # In the first second it may be told to ask again.
                        with contextlib.suppress(asyncpg.FeatureNotSupportedError):
                            found.append(await connection.fetchrow(statement, "a"))
                return found
            finally:
                await connection.close()

        first, second = asyncio.run(ask())
        assert (first["old"], second["new"]) == (1, 2)
        assert "old" not in second

    def test_columns_have_the_names_that_were_described(self, served: Served) -> None:
        """
        However they are written, and whoever answers: the columns have not changed.

        Next to a star, one that was written with other capitals than the state has was
        described as it was written, and answered by a worker under its own name: each
        such statement was refused as one whose columns have changed.
        """
        statement = "SELECT *, CARRIER, delay AS Late FROM delays WHERE flights = $1"

        async def ask() -> Any:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database="flights"
            )
            try:
                return await connection.fetchrow(statement, 2)
            finally:
                await connection.close()

        row = asyncio.run(ask())
        assert list(row.keys())[-2:] == ["carrier", "Late"]
        assert list(row.values())[-2:] == ["DL", 3.0]

    def test_the_first_row_is_enough(self, served: Served) -> None:
        """
        A driver that wants one row ends its portal with Sync, before the last row.

        What the portal held was given back with the statement after the next one: that
        one waited for it, and was told that other statements took too long.
        """

        def running() -> int:
            return int(served.server.observe().figures["queries_running"])

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database="flights"
            )
            try:
                found = [await connection.fetchval("SELECT 1 FROM numbers")]
                await asyncio.to_thread(wait_until, lambda: running() == 0)
                found.append(await connection.fetchval("SELECT 2 FROM numbers"))
                found.append(await connection.fetchval("SELECT count(*) FROM delays"))
                return found
            finally:
                await connection.close()

        assert asyncio.run(ask()) == [1, 2, 5]

    def test_arrays_of_any_type_are_parameters(self, served: Served) -> None:
        """
        The driver finds out about a type of arrays by the catalog.

        It asked for ever: what it was told had another type that it had to ask about.
        """

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database="flights"
            )
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    return [
                        await connection.fetch(
                            "SELECT n FROM numbers WHERE n = ANY($1) ORDER BY n",
                            [3, -4, 10_000],
                        ),
                        await connection.fetchval("SELECT $1::date[]", [DAY]),
                    ]
            finally:
                await connection.close()

        rows, days = asyncio.run(ask())
        assert [row["n"] for row in rows] == [-4, 3]
        assert days == [DAY]

    def test_a_pool_takes_connections_back(self, served: Served) -> None:
        """
        It cleans each up for the next use.

        ``CLOSE ALL`` was refused: a block that took a connection ended with an error.
        """

        async def ask() -> list[int]:
            found = []
            async with asyncpg.create_pool(
                host=served.host,
                port=served.port,
                user="me",
                database="flights",
                min_size=1,
                max_size=1,
            ) as pool:
                for number in range(2):
                    async with pool.acquire() as connection:
                        found.append(
                            await connection.fetchval(f"SELECT {number} FROM delays")
                        )
            return found

        assert asyncio.run(ask()) == [0, 1]

    def test_a_description_does_not_cost_a_worker(self, served: Served) -> None:
        """
        A driver that prepares a statement asks for its columns first, for no rows.

        The word that no row is wanted met the worker at the end of its job, and ended
        it without an answer: the tool waited five seconds, and the process was killed.
        """

        async def prepare() -> None:
            connection = await asyncpg.connect(
                host=served.host, port=served.port, user="me", database="flights"
            )
            for number in range(5):
                await connection.prepare(f"SELECT count(*) + {number} FROM delays")
            await connection.close()

        before = served.server.observe().figures["workers_restarted_total"]
        asyncio.run(prepare())
        assert served.server.observe().figures["workers_restarted_total"] == before


@pytest.fixture
def engine(served: Served) -> Iterator[Any]:
    """Return an engine of SQLAlchemy."""
    made = sa.create_engine(
        f"postgresql+psycopg://me@{served.host}:{served.port}/flights"
    )
    yield made
    made.dispose()


class TestSQLAlchemy:
    def test_the_inspector_finds_everything(self, engine: Any) -> None:
        """Schemas, tables, columns with types, and the key."""
        inspector = sa.inspect(engine)
        assert "flights" in inspector.get_schema_names()
        assert set(inspector.get_table_names(schema="flights")) >= {"delays", "routes"}
        columns = inspector.get_columns("delays", schema="flights")
        assert {one["name"]: str(one["type"]) for one in columns} == {
            "carrier": "TEXT",
            "delay": "DOUBLE PRECISION",
            "flights": "BIGINT",
            "day": "DATE",
            "seen": "TIMESTAMP",
            "fare": "NUMERIC(9, 2)",
            "_batch_id": "BIGINT",
            "_age_seconds": "DOUBLE PRECISION",
            "_generation": "BIGINT",
        }
        key = inspector.get_pk_constraint("routes", schema="flights")
        assert key["constrained_columns"] == ["origin", "number"]
        for find in (
            inspector.get_indexes,
            inspector.get_foreign_keys,
            inspector.get_unique_constraints,
            inspector.get_check_constraints,
        ):
            assert find("delays", schema="flights") == []
        assert inspector.get_view_names(schema="flights") == []

    def test_a_reflected_table_is_asked(self, engine: Any) -> None:
        """What was reflected makes statements that are answered."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sa.exc.SAWarning)
            delays = sa.Table(
                "delays", sa.MetaData(), schema="flights", autoload_with=engine
            )
        with engine.connect() as connection:
            found = connection.execute(
                sa.select(delays.c.carrier, sa.func.count())
                .where(delays.c.flights.in_([1, 2]))
                .group_by(delays.c.carrier)
                .order_by(delays.c.carrier)
            ).fetchall()
        assert [tuple(row) for row in found] == [("B6", 1), ("DL", 1)]

    def test_pandas_reads_a_frame(self, engine: Any) -> None:
        """With the types of the columns."""
        frame = pd.read_sql(
            "SELECT carrier, delay, seen FROM delays ORDER BY 1", engine
        )
        assert list(frame["carrier"]) == list(CARRIERS)
        assert frame["delay"].dtype == "float64"
        assert frame["seen"][0] == pd.Timestamp(NOON)


@pytest.fixture(scope="session")
def psql() -> str:
    """Return psql."""
    found = shutil.which("psql")
    if found is None:
        pytest.skip("psql is not installed; Debian has it in 'postgresql-client'")
    return found


class TestPsql:
    def ask(self, psql: str, served: Served, command: str) -> str:
        """Return what psql prints."""
        done = subprocess.run(
            [psql, "-X", "-w", served.dsn, "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "ERROR" not in done.stderr
        return done.stdout

    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            ("\\dn", ["flights"]),
            ("\\d", ["delays", "routes", "by_month"]),
            ("\\dt", ["delays", "routes"]),
            ("\\dt flights.*", ["delays", "routes"]),
            ("\\dt+", ["delays"]),
            ("\\d flights.delays", ["carrier", "numeric(9,2)", "PRIMARY KEY"]),
            ("\\d routes", ["origin", "text[]", "json", "PRIMARY KEY"]),
            ("\\d+ by_month", ["month", "integer"]),
            ("\\di", ["delays_key"]),
            ("\\dv", []),
            ("\\df", []),
            ("\\du", ["me"]),
            ("\\l", ["flights"]),
            ("\\conninfo", ["flights"]),
            ("SELECT * FROM delays WHERE carrier = 'AA'", ["AA", "2026-03-01"]),
            ("SHOW server_version", ["15.0"]),
            ("BEGIN; SELECT 41 + 1; COMMIT", ["42"]),
            ("", []),
            ("-- nothing", []),
        ],
    )
    def test_a_command_is_answered(
        self, psql: str, served: Served, command: str, expected: list[str]
    ) -> None:
        """Without an error, and with what there is."""
        printed = self.ask(psql, served, command)
        for one in expected:
            assert one in printed


class TestGrafana:
    """What its PostgreSQL source sends, after its documentation has been filled in."""

    @pytest.mark.parametrize(
        "statement",
        [
            # The test of a data source, and its builder of queries.
            "SELECT 1",
            "SELECT version()",
            "SELECT current_setting('server_version_num')::int/100 as version",
            (
                "SELECT quote_ident(table_name) FROM information_schema.tables WHERE "
                "table_schema IN (SELECT CASE WHEN trim(s[i]) = '\"$user\"' THEN user "
                "ELSE trim(s[i]) END FROM generate_series(1, 5) i, "
                "(SELECT string_to_array(current_setting('search_path'),',') s) x)"
            ),
            (
                'SELECT quote_ident(column_name) AS "column", data_type AS "type" '
                "FROM information_schema.columns WHERE "
                "quote_ident(table_name) = '\"delays\"'"
            ),
            "SELECT DISTINCT quote_literal(carrier) FROM flights.delays LIMIT 100",
            # $__timeFilter, $__timeGroupAlias and $__unixEpochFilter.
            (
                'SELECT floor(extract(epoch from seen)/300)*300 AS "time", '
                'avg(delay) AS "delay" FROM flights.delays WHERE seen BETWEEN '
                "'2026-03-01T00:00:00Z' AND '2026-03-02T00:00:00Z' "
                "GROUP BY 1 ORDER BY 1"
            ),
            (
                'SELECT seen AS "time", carrier AS metric, delay FROM flights.delays '
                "WHERE extract(epoch from seen) >= 1772300000 ORDER BY 1"
            ),
            (
                'SELECT seen AS "time", delay FROM flights.delays WHERE seen >= '
                "'2026-03-01T00:00:00Z'::timestamptz AND carrier IN ('AA','B6')"
            ),
        ],
    )
    def test_a_query_is_answered(self, connection: Any, statement: str) -> None:
        """Each has rows."""
        assert connection.execute(statement).fetchall()


JAVA = """
import java.sql.*;
public class Ask {
    static void all(String name, ResultSet rows) throws SQLException {
        int columns = rows.getMetaData().getColumnCount();
        while (rows.next()) {
            StringBuilder line = new StringBuilder(name);
            for (int i = 1; i <= columns; i++)
                line.append('|').append(rows.getString(i));
            System.out.println(line);
        }
    }
    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            DatabaseMetaData about = connection.getMetaData();
            System.out.println("product|" + about.getDatabaseProductName());
            all("schema", about.getSchemas());
            all("catalog", about.getCatalogs());
            all("type", about.getTableTypes());
            all("table", about.getTables(null, "flights", "%", new String[] {"TABLE"}));
            all("column", about.getColumns(null, "flights", "delays", "%"));
            all("key", about.getPrimaryKeys(null, "flights", "routes"));
            all("index", about.getIndexInfo(null, "flights", "delays", false, false));
            all("imported", about.getImportedKeys(null, "flights", "delays"));
            all("typeinfo", about.getTypeInfo());
            try (PreparedStatement ask = connection.prepareStatement(
                    "SELECT carrier, flights, delay FROM flights.delays "
                    + "WHERE carrier = ?")) {
                for (int i = 0; i < 8; i++) {
                    ask.setString(1, i % 2 == 0 ? "AA" : "B6");
                    all("row", ask.executeQuery());
                }
            }
            connection.setAutoCommit(false);
            try (Statement ask = connection.createStatement()) {
                ask.setFetchSize(100);
                int count = 0;
                ResultSet rows = ask.executeQuery(
                    "SELECT n, word FROM flights.numbers");
                while (rows.next()) count++;
                System.out.println("count|" + count);
            }
            connection.commit();
        }
    }
}
"""


def test_jdbc_asks_and_finds_out(served: Served, tmp_path: Path) -> None:
    """Its metadata calls, prepared statements that become binary, and a fetch size."""
    if not JDBC.exists():
        pytest.skip("no JDBC driver; Debian has it in 'libpostgresql-jdbc-java'")
    source = tmp_path / "Ask.java"
    source.write_text(JAVA, encoding="utf-8")
    done = subprocess.run(
        [
            "java",
            "-cp",
            str(JDBC),
            str(source),
            f"jdbc:postgresql://{served.host}:{served.port}/flights?user=me",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "product|PostgreSQL" in lines
    assert any(line.startswith("schema|flights") for line in lines)
    tables = {line.split("|")[3] for line in lines if line.startswith("table|")}
    assert tables >= {"delays", "routes"}
    columns = [line.split("|") for line in lines if line.startswith("column|")]
    assert [(one[4], one[6]) for one in columns][:3] == [
        ("carrier", "text"),
        ("delay", "float8"),
        ("flights", "int8"),
    ]
    keys = [line.split("|")[4] for line in lines if line.startswith("key|")]
    assert sorted(keys) == ["number", "origin"]
    rows = [line.split("|")[1:] for line in lines if line.startswith("row|")]
    assert [(name, number, float(delay)) for name, number, delay in rows] == [
        ("AA", "0", 0.0),
        ("B6", "1", 1.5),
    ] * 4
    assert "count|3000" in lines


def test_the_day_is_a_date(connection: Any) -> None:
    """A literal text beside a date key or column is one."""
    found = connection.execute(
        "SELECT carrier FROM delays WHERE day = '2026-03-03'"
    ).fetchall()
    assert found == [("DL",)]
    assert connection.execute("SELECT %s::date + 1", [DAY]).fetchone()[0] > date(
        2026, 1, 1
    )
