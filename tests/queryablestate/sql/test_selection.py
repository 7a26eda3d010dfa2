"""Never a wrong answer: what a condition selects is all that can satisfy it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queryablestate.client.arrow_columns import arrow_rows
from queryablestate.client.frames import frame_fields
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.sql.analysis import Query, analyse
from queryablestate.sql.engine import Engine, Parser
from queryablestate.sql.jobs import Parameter
from queryablestate.sql.parameters import parameter_types, values_of
from queryablestate.sql.selection import Selection, of_one_key
from queryablestate.sql.tables import Table, engine_type
from tests.tiers import nightly_after


pytestmark = pytest.mark.proves("F6")

WORDS = [
    "",
    "a",
    "A",
    "aa",
    "ab",
    "ab\u00fc",
    "b",
    "b%",
    "b_",
    "c\\d",
    "5",
    "05",
    "\u00fc",
    "z",
]
DAYS = [date(2026, 1, 1) + timedelta(days=n) for n in range(6)]
NUMBERS = [-(2**31), -7, -1, 0, 1, 5, 50, 2**31 - 1]

STRING = (Field("k", AtomicType.STRING),)
INTEGER = (Field("k", AtomicType.INT),)
DATE = (Field("k", AtomicType.DATE),)
PAIR = (Field("k", AtomicType.STRING), Field("n", AtomicType.INT))
VALUE = (Field("v", AtomicType.INT), Field("w", AtomicType.STRING))


def table_of(key: tuple[Field, ...]) -> Table:
    """Return a table with a key."""
    schema = StateSchema(kind=StateKind.VALUE, key=key, value=VALUE)
    return Table("job", "t", schema, frame_fields(schema))


def rows_of(key: tuple[Field, ...]) -> list[tuple[Any, ...]]:
    """Return rows under every key, a null among them."""
    pools: Mapping[AtomicType, Sequence[Any]] = {
        AtomicType.STRING: WORDS,
        AtomicType.INT: NUMBERS,
        AtomicType.DATE: DAYS,
    }
    firsts = [None, *pools[key[0].type]]  # type: ignore[index]
    keys: list[tuple[Any, ...]] = [(one,) for one in firsts]
    if len(key) > 1:
        keys = [(one, other) for one in firsts for other in (None, 0, 1, 5)]
    return [
        (*one, place % 4, WORDS[place % len(WORDS)]) for place, one in enumerate(keys)
    ]


@pytest.fixture(scope="module")
def parser() -> Iterator[Parser]:
    """Return the engine's parser."""
    made = Parser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[Mapping[tuple[Field, ...], Engine]]:
    """Return for each kind of key an engine that has all rows."""
    made: dict[tuple[Field, ...], Engine] = {}
    for key in (STRING, INTEGER, DATE, PAIR):
        engine = Engine(100_000_000, 1)
        table = table_of(key)
        columns = {f'"{one.name}"': engine_type(one.type) for one in table.fields}
        engine.create("job", "t", columns)
        engine.insert_batches("job", "t", [arrow_rows(table.fields, rows_of(key))])
        made[key] = engine
    yield made
    for engine in made.values():
        engine.close()


def quoted(text: str) -> str:
    """Return *text* as a literal."""
    return "'" + text.replace("'", "''") + "'"


def literals(key: tuple[Field, ...]) -> st.SearchStrategy[str]:
    """Draw something to compare a key with."""
    words = st.sampled_from(WORDS).map(quoted)
    numbers = st.sampled_from([*NUMBERS, 2**31, 2**40]).map(str)
    days = st.sampled_from(DAYS).map(lambda day: f"'{day}'")
    odd = st.sampled_from(
        ["NULL", "true", "1.5", "' 5'", "'5 '", "'+5'", "'1e0'", "DATE '2026-01-02'"]
    )
    own = {
        AtomicType.STRING: words | words.map(lambda one: f"{one}::text"),
        AtomicType.INT: numbers | st.sampled_from(["'5'", "'05'", "'-7'"]),
        AtomicType.DATE: days | days.map(lambda one: f"{one}::date"),
    }[key[0].type]  # type: ignore[index]
    return st.one_of(own, own, own, own, own, words, numbers, odd)


@st.composite
def conditions(draw: st.DrawFn, key: tuple[Field, ...]) -> str:
    """Draw a condition over key and value columns."""
    column = draw(
        st.sampled_from(["k", "k", "k", "t.k", "job.t.k", "K", '"k"', "v", "w"])
    )
    if len(key) > 1:
        column = draw(st.sampled_from([column, "n", "t.n"]))
    if column.endswith("n") and len(key) > 1:
        value = st.sampled_from(["0", "1", "5", "7", "NULL"])
    elif column == "v":
        value = st.sampled_from(["0", "1", "2"])
    elif column == "w":
        value = st.sampled_from(WORDS).map(quoted)
    else:
        value = literals(key)
    form = draw(st.integers(0, 11))
    comparison = draw(st.sampled_from(["=", "=", "<", "<=", ">", ">=", "<>"]))
    match form:
        case 0 | 1 | 2:
            return f"{column} {comparison} {draw(value)}"
        case 3:
            return f"{draw(value)} {comparison} {column}"
        case 4:
            listed = ", ".join(draw(st.lists(value, min_size=1, max_size=4)))
            return f"{column} {draw(st.sampled_from(['', 'NOT ']))}IN ({listed})"
        case 5:
            return f"{column} BETWEEN {draw(value)} AND {draw(value)}"
        case 6:
            pattern = draw(
                st.sampled_from(["a%", "%", "b_", "ab", "b\\%%", "A%", "%a"])
            )
            how = draw(st.sampled_from(["LIKE", "NOT LIKE", "ILIKE"]))
            return f"{column}::text {how} {quoted(pattern)}"
        case 7 if key[0].type is AtomicType.STRING and "k" in column.lower():
            pattern = draw(
                st.sampled_from(["a%", "%", "b_", "ab", "A%", "%a", "ab%%", ""])
            )
            return f"{column} LIKE {quoted(pattern)}"
        case 8 if key[0].type is AtomicType.STRING and "k" in column.lower():
            return f"starts_with({column}, {quoted(draw(st.sampled_from(WORDS)))})"
        case 9:
            return f"{column} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case 10:
            return f"NOT ({draw(conditions(key))})"
        case _:
            return f"({draw(conditions(key))} OR {draw(conditions(key))})"


def encoded(key: tuple[Field, ...], row: Sequence[Any]) -> Any:
    """Return what sorts as the key of *row* does: nulls first, texts by their bytes."""
    parts = [
        (one is not None, one.encode() if isinstance(one, str) else one)
        for one in row[: len(key)]
    ]
    return [(present, value if present else 0) for present, value in parts]


def selected(
    key: tuple[Field, ...], selection: Selection, rows: Sequence[Sequence[Any]]
) -> list[Sequence[Any]]:
    """Return those of *rows* that a client would read."""

    def key_of(row: Sequence[Any]) -> Any:
        return row[0] if len(key) == 1 else tuple(row[: len(key)])

    def is_in(row: Sequence[Any]) -> bool:
        if selection.keys is not None:
            return key_of(row) in selection.keys
        if selection.prefix is not None and len(key) == 1:
            if row[0] is None or not row[0].startswith(selection.prefix):
                return False
        elif selection.prefix is not None and selection.prefix != tuple(
            row[: len(selection.prefix)]
        ):
            return False
        own = encoded(key, row)
        if selection.start is not None and own < encoded(key, (selection.start,)):
            return False
        return selection.stop is None or own < encoded(key, (selection.stop,))

    return [row for row in rows if is_in(row)]


@pytest.mark.parametrize(
    "key",
    nightly_after(2, [PAIR, STRING, INTEGER, DATE]),
    ids=["p", "s", "i", "d"],
)
@settings(max_examples=300)
@given(data=st.data())
def test_nothing_that_satisfies_is_left_out(
    parser: Parser,
    engines: Mapping[tuple[Field, ...], Engine],
    key: tuple[Field, ...],
    data: st.DataObject,
) -> None:
    """The engine finds in the selection what it finds in the whole table."""
    conjuncts = data.draw(st.lists(conditions(key), min_size=1, max_size=3))
    text = "SELECT * FROM job.t WHERE " + " AND ".join(conjuncts)
    query = analyse(parser.tree_of(text))
    rows = rows_of(key)
    try:
        engines[key].execute(text, {})
        expected = engines[key].fetch(1_000)
    except Exception:  # noqa: BLE001 (the engine refuses to compare them at all)
        return
    selection = query.selection(key, query.tables[0], {})
    part = [tuple(row) for row in selected(key, selection, rows)]
    assert {*expected} <= {*part}, (text, selection)
    if selection.is_exact:
        assert sorted(map(repr, expected)) == sorted(map(repr, part)), (text, selection)


def queried(parser: Parser, text: str) -> Query:
    """Return the query that *text* is."""
    return analyse(parser.tree_of(text))


class TestWhatIsSelected:
    @pytest.mark.parametrize(
        ("key", "condition", "expected"),
        [
            (STRING, "k = 'a'", Selection(keys=("a",), is_exact=True)),
            (STRING, "'a' = k", Selection(keys=("a",), is_exact=True)),
            (STRING, "k IN ('b', 'a', 'a')", Selection(keys=("a", "b"), is_exact=True)),
            (STRING, "k = 'a' AND v = 1", Selection(keys=("a",))),
            (STRING, "k = 'a' AND k = 'b'", Selection(keys=(), is_exact=True)),
            (STRING, "k = NULL", Selection(keys=(), is_exact=True)),
            (STRING, "k LIKE 'ab%'", Selection(prefix="ab", is_exact=True)),
            (STRING, "k LIKE 'ab_'", Selection(prefix="ab")),
            (
                STRING,
                "k >= 'a' AND k < 'b'",
                Selection(start="a", stop="b", is_exact=True),
            ),
            (STRING, "k > 'a'", Selection(start="a\0", is_exact=True)),
            (STRING, "k < 'b'", Selection(stop="b")),
            (INTEGER, "k = 5", Selection(keys=(5,), is_exact=True)),
            (INTEGER, "k = '5'", Selection(keys=(5,), is_exact=True)),
            (INTEGER, "k BETWEEN 1 AND 5", Selection(start=1, stop=6, is_exact=True)),
            (INTEGER, "k > 2147483647", Selection(keys=())),
            (DATE, "k = '2026-01-02'", Selection(keys=(DAYS[1],), is_exact=True)),
            # Spark's days go on where Python's end.
            (DATE, "k > '9999-12-31'", Selection(start=date.max)),
            (DATE, "k >= '9999-12-31'", Selection(start=date.max, is_exact=True)),
            (
                DATE,
                "k BETWEEN '2026-01-02' AND '9999-12-31'",
                Selection(start=DAYS[1]),
            ),
            (PAIR, "k = 'a' AND n = 1", Selection(keys=(("a", 1),), is_exact=True)),
            (PAIR, "k = 'a'", Selection(prefix=("a",))),
            (PAIR, "n = 1", Selection()),
            (INTEGER, "k = 1.0", Selection()),
            (INTEGER, "k + 0 = 1", Selection()),
            (STRING, "k = 5", Selection()),
            (STRING, "lower(k) = 'a'", Selection()),
            (STRING, "k = 'a' OR k = 'b'", Selection()),
            (STRING, "k = 'a' COLLATE NOCASE", Selection()),
        ],
    )
    def test_a_condition(
        self,
        parser: Parser,
        key: tuple[Field, ...],
        condition: str,
        expected: Selection,
    ) -> None:
        """Keys, prefixes and ranges are found; what may mean something else is not."""
        query = queried(parser, f"SELECT * FROM job.t WHERE {condition}")
        assert query.selection(key, query.tables[0], {}) == expected

    @pytest.mark.parametrize(
        ("text", "selections"),
        [
            ("SELECT * FROM t a JOIN t b ON a.k = b.k WHERE a.k = 'x'", [("x",), None]),
            ("SELECT * FROM t a, t b WHERE k = 'x'", [None, None]),
            ("SELECT * FROM (SELECT * FROM t WHERE k = 'x') s WHERE v = 1", [("x",)]),
            ("WITH t AS (SELECT * FROM t WHERE k = 'x') SELECT * FROM t", [("x",)]),
            ("SELECT * FROM t WHERE k = 'x' UNION SELECT * FROM t", [("x",), None]),
            ("SELECT 1 WHERE EXISTS (SELECT 1 FROM t WHERE k = 'x')", [("x",)]),
            ("SELECT * FROM t TABLESAMPLE 10% WHERE k = 'x'", [None]),
            ("SELECT * FROM t AS u(k, n) WHERE k = 'x'", [None]),
            # Of which rows the best one is taken is not for a condition to say.
            (
                "SELECT * FROM s ASOF JOIN t ON s.v >= t.v WHERE t.k = 'x'",
                [None, None],
            ),
            ("SELECT * FROM s POSITIONAL JOIN t WHERE t.k = 'x'", [None, None]),
        ],
    )
    def test_a_query(
        self, parser: Parser, text: str, selections: list[tuple[str, ...] | None]
    ) -> None:
        """Each place that names a state has its own conditions, where they hold."""
        query = queried(parser, text)
        found = [query.selection(STRING, use, {}).keys for use in query.tables]
        assert found == selections

    def test_parameters_are_values(self, parser: Parser) -> None:
        """Typed by the column that they are compared with."""
        query = queried(parser, "SELECT v FROM job.t WHERE k = $1 LIMIT $2")
        table = table_of(INTEGER)
        oids = parameter_types(query, [table], [])
        assert oids == [23, 20]
        values = values_of(oids, [Parameter(0, False, b"5"), Parameter(0, False, b"7")])
        assert query.selection(INTEGER, query.tables[0], values).keys == (5,)
        assert query.row_limit(values) == 7

    def test_a_list_is_a_parameter(self, parser: Parser) -> None:
        """As drivers write it for IN."""
        query = queried(parser, "SELECT v FROM job.t WHERE k = ANY($1::text[])")
        oids = parameter_types(query, [table_of(STRING)], [])
        values = values_of(oids, [Parameter(0, False, b'{b,"a ",NULL}')])
        assert query.selection(STRING, query.tables[0], values).keys == ("a ", "b")

    def test_one_key_is_a_part_of_a_scan(self) -> None:
        """For what is too large for one answer."""
        assert of_one_key(STRING, "a") == Selection(start="a", stop="a\0")
        assert of_one_key(PAIR, ("a", 1)) == Selection(prefix=("a", 1))


class TestColumnsAndLimits:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT a FROM t WHERE b = 1", {"a", "b"}),
            ("SELECT t.a FROM t JOIN u USING (c)", {"t", "a", "c"}),
            ("SELECT count(*) FROM t", set()),
            ("SELECT * FROM t", None),
            ("SELECT t FROM t", None),
            ("SELECT a FROM t NATURAL JOIN u", None),
            ("SELECT COLUMNS('a.*') FROM t", None),
        ],
    )
    def test_columns_are_those_that_are_named(
        self, parser: Parser, text: str, expected: set[str] | None
    ) -> None:
        """None is all of them."""
        assert queried(parser, text).column_names == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT a FROM t LIMIT 5", 5),
            ("SELECT * FROM t LIMIT 5 OFFSET 2", 7),
            ("SELECT a FROM t", None),
            ("SELECT a FROM t ORDER BY a LIMIT 5", None),
            ("SELECT DISTINCT a FROM t LIMIT 5", None),
            ("SELECT count(*) FROM t LIMIT 5", None),
            ("SELECT a FROM t GROUP BY a LIMIT 5", None),
            ("SELECT a FROM t GROUP BY ALL LIMIT 5", None),
            ("SELECT a FROM t LIMIT 5%", None),
            ("SELECT a FROM t, u LIMIT 5", None),
        ],
    )
    def test_fewer_rows_are_read_where_fewer_will_do(
        self, parser: Parser, text: str, expected: int | None
    ) -> None:
        """Where rows are told as they are, in any order."""
        assert queried(parser, text).row_limit({}) == expected


def test_the_tree_is_what_is_known_of_it(parser: Parser) -> None:
    """A release of the engine that writes trees otherwise is noticed here."""
    tree = json.loads(parser.tree_of("SELECT a FROM s.t WHERE a = 'x'"))
    where = tree["statements"][0]["node"]["where_clause"]
    assert (where["class"], where["type"]) == ("COMPARISON", "COMPARE_EQUAL")
    assert where["right"]["literal"] == {"kind": "STRING", "text": "x"}
