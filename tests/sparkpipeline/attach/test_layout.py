"""From Spark's own word on what state there is to the rows of ours."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from nameservice import ConfigurationError
from queryablestate.schema.schema import StateKind, StateSchema, fields_text
from sparkpipeline.attach.layout import (
    AttachedLayout,
    StateSource,
    attached_layout,
    find_source,
)


COUNTS = StateSource(operator_id=0, operator_name="stateStoreSave")


def operator(
    operator_id: int, name: str, *variables: tuple[str, str, bool]
) -> dict[str, Any]:
    """Return a row of Spark's ``state-metadata`` reader."""
    properties = None
    if variables:
        properties = json.dumps(
            {
                "timeMode": "ProcessingTime",
                "outputMode": "Update",
                "stateVariables": [
                    {
                        "stateName": variable,
                        "stateVariableType": kind,
                        "ttlEnabled": has_ttl,
                    }
                    for variable, kind, has_ttl in variables
                ],
            }
        )
    return {
        "operatorId": operator_id,
        "operatorName": name,
        "operatorProperties": properties,
    }


VARIABLES = operator(
    1,
    "transformWithStateInPySparkExec",
    ("last", "ValueState", True),
    ("log", "ListState", False),
    ("best", "MapState", False),
    ("$procTimers_keyToTimestamp", "TimerState", False),
)
NO_VARIABLES = operator(0, "transformWithStateInPySparkExec")
ONLY_TIMERS = operator(
    0, "transformWithStateExec", ("$procTimers_keyToTimestamp", "TimerState", False)
)
OPERATORS = [operator(0, "stateStoreSave"), VARIABLES]


class TestFindSource:
    def test_an_operator_without_variables(self) -> None:
        """Its state is of values."""
        assert find_source(OPERATORS, 0, None) == COUNTS

    @pytest.mark.parametrize(
        ("name", "kind", "has_ttl"),
        [
            ("last", StateKind.VALUE, True),
            ("log", StateKind.LIST, False),
            ("best", StateKind.MAP, False),
        ],
    )
    def test_variables_have_kinds(
        self, name: str, kind: StateKind, *, has_ttl: bool
    ) -> None:
        """The kind of a variable is the kind of the state, and a TTL stays one."""
        found = find_source(OPERATORS, 1, name)
        assert (found.state_var_name, found.kind, found.has_ttl) == (
            name,
            kind,
            has_ttl,
        )

    @pytest.mark.parametrize(
        ("operators", "operator_id", "name", "message"),
        [
            (OPERATORS, 2, None, r"no .*operator 2: it has 0 \(stateStoreSave\), 1 \("),
            ([], 0, None, "the query keeps no state: it has no stateful operator"),
            (OPERATORS, 0, "last", "leave state_var_name out"),
            (OPERATORS, 1, None, "state_var_name, best, last, log$"),
            (OPERATORS, 1, "worst", "state_var_name, best, last, log; not 'worst'"),
            (OPERATORS, 1, "$procTimers_keyToTimestamp", "best, last, log; not"),
            ([operator(0, "symmetricHashJoin")], 0, None, "stream-stream join"),
            ([NO_VARIABLES], 0, None, "keeps no variables, so there is nothing to pub"),
            ([NO_VARIABLES], 0, "last", "keeps no variables"),
            ([ONLY_TIMERS], 0, None, "keeps no variables"),
        ],
    )
    def test_what_cannot_be_attached(
        self,
        operators: list[dict[str, Any]],
        operator_id: int,
        name: str | None,
        message: str,
    ) -> None:
        """The error says what there is, or why not."""
        with pytest.raises(ConfigurationError, match=message):
            find_source(operators, operator_id, name)

    def test_properties_of_another_spark(self) -> None:
        """What we cannot read is not guessed."""
        row = {**operator(0, "later"), "operatorProperties": '{"stateVariables": 1}'}
        with pytest.raises(ConfigurationError, match="this version of Spark"):
            find_source([row], 0, None)


def layout(
    ddl: str, source: StateSource = COUNTS, value_names: list[str] | None = None
) -> AttachedLayout:
    """Return the layout for what the reader gives as *ddl*."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return attached_layout(source, schema, state_name="s", value_names=value_names)


def texts(schema: StateSchema) -> tuple[str, str, str]:
    """Return key, map key and value columns for the eye."""
    return (
        fields_text(schema.key),
        fields_text(schema.map_key),
        fields_text(schema.value),
    )


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # it parses the DDL
class TestColumns:
    def test_equal_names_are_told_apart(self) -> None:
        """Spark names the fields of its state after functions, and may repeat them."""
        found = layout(
            "key struct<k: string>, "
            "value struct<sum: bigint, sum: double, SUM: int, k: string>"
        )
        assert texts(found.layout.schema) == (
            "k string",
            "",
            "sum bigint, sum_2 double, SUM_3 int, k_2 string",
        )

    def test_values_may_be_given_names(self) -> None:
        """They are given in the order of Spark's."""
        found = layout(
            "key struct<k: string>, value struct<sum: bigint, count: bigint>",
            value_names=["total", "flights"],
        )
        assert texts(found.layout.schema)[2] == "total bigint, flights bigint"

    def test_columns_without_a_type_are_left_out(self) -> None:
        """What deduplication keeps are keys."""
        found = layout("key struct<k: string>, value struct<__dummy__: void>")
        assert texts(found.layout.schema) == ("k string", "", "")

    def test_structs_stay_structs(self) -> None:
        """A window is one column of the key."""
        found = layout(
            "key struct<window: struct<start: timestamp, end: timestamp>, k: string>, "
            "value struct<count: bigint>"
        )
        assert texts(found.layout.schema)[0] == (
            "window struct<start:timestamp,end:timestamp>, k string"
        )

    def test_names_of_ours_do_not_get_in_the_way(self) -> None:
        """A state may have columns that are called like what tasks are told."""
        source = StateSource(operator_id=0, operator_name="tws", has_ttl=True)
        found = layout(
            "key struct<is_deleted: string>, value struct<"
            "value: struct<expires_at: int>, ttlExpirationMs: bigint>",
            source,
        ).layout
        assert len({*found.names_used}) == len(found.names_used) == 4
        assert found.delete is not None
        assert found.ttl is not None

    @pytest.mark.parametrize(
        ("ddl", "value_names", "message"),
        [
            ("key struct<>, value struct<n: int>", None, "without a key"),
            ("key struct<k: string>, value struct<n: int>", [], "name 1 columns"),
            (
                "key struct<k: string>, value struct<n: int>",
                ["k"],
                "two columns named 'k'",
            ),
            ("key struct<k: string>, other struct<n: int>", None, "gives no value"),
            ("key struct<k: string>, value int", None, "no struct"),
            ("key struct<k: map<int,int>>, value struct<n: int>", None, "hash a map"),
            ("key struct<k: int>, value struct<n: variant>", None, "variant"),
        ],
    )
    def test_what_no_state_can_hold(
        self, ddl: str, value_names: list[str] | None, message: str
    ) -> None:
        """The error says which column, or what to do instead."""
        with pytest.raises(ConfigurationError, match=message):
            layout(ddl, value_names=value_names)


@pytest.mark.spark
class TestRows:
    def test_the_feed_of_values(self, spark: SparkSession) -> None:
        """Updates put and deletes delete; the key group is that of the key columns."""
        ddl = "change_type string, key struct<k: string>, value struct<n: bigint>"
        frame = spark.createDataFrame(
            [("update", ("user-1",), (1,)), ("delete", ("user-1",), None)], ddl
        )
        found = layout(ddl)
        columns = found.columns(is_feed=True, max_parallelism=128)
        rows = frame.select(*columns).collect()
        assert found.names == ("k", "n", "is_deleted")
        # The golden value of pmod(xxhash64('user-1'), 128).
        assert [tuple(row) for row in rows] == [
            ("user-1", 1, False, 35),
            ("user-1", None, True, 35),
        ]

    def test_the_feed_of_lists(self, spark: SparkSession) -> None:
        """An update is a list of one: the old one goes, what follows is appended."""
        ddl = "change_type string, key struct<k: int>, list_element struct<n: int>"
        changes = [("append", 1), ("update", 2), ("append", 3), ("delete", None)]
        frame = spark.createDataFrame(
            [(change, (7,), None if n is None else (n,)) for change, n in changes], ddl
        )
        source = StateSource(operator_id=0, operator_name="tws", kind=StateKind.LIST)
        columns = layout(ddl, source).columns(is_feed=True, max_parallelism=1)
        rows = frame.coalesce(1).select(*columns).collect()
        assert [tuple(row)[1:3] for row in rows] == [
            (1, False),
            (2, True),
            (2, False),
            (3, False),
            (None, True),
        ]

    def test_a_ttl_is_a_time(self, spark: SparkSession) -> None:
        """Spark counts milliseconds; a row is absent from then on."""
        ddl = (
            "key struct<k: int>, user_map_key struct<m: string>, user_map_value "
            "struct<value: struct<n: int>, ttlExpirationMs: bigint>"
        )
        frame = spark.createDataFrame([((7,), ("a",), ((1,), 1_704_067_200_123))], ddl)
        source = StateSource(
            operator_id=0, operator_name="tws", kind=StateKind.MAP, has_ttl=True
        )
        found = layout(ddl, source)
        assert texts(found.layout.schema) == ("k int", "m string", "n int")
        assert found.names == ("k", "m", "n", "is_deleted", "expires_at")
        columns = found.columns(is_feed=False, max_parallelism=1)
        (row,) = frame.select(*columns).collect()
        assert tuple(row)[:4] == (7, "a", 1, False)
        assert row[4].astimezone(UTC) == datetime(
            2024, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC
        )

    def test_a_change_that_is_not_known(self, spark: SparkSession) -> None:
        """A later Spark may have others: they are not taken for an update."""
        ddl = "change_type string, key struct<k: int>, value struct<n: int>"
        frame = spark.createDataFrame([("deleteRange", (7,), (1,))], ddl)
        columns = layout(ddl).columns(is_feed=True, max_parallelism=1)
        with pytest.raises(Exception, match="deleteRange"):
            frame.select(*columns).collect()
