from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import pytest
from attrs import evolve

from haservices import HAConfig, open_ha_services
from queryablestate import QueryableStateClient, SchemaMismatchError
from queryablestate.client.partition_scan import PartitionScanner
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher


pytestmark = [pytest.mark.shells, pytest.mark.proves("W5")]

DELAY: Final = Field("delay", AtomicType.INT)
GATE: Final = Field("gate", AtomicType.STRING)
SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(DELAY,),
)
WIDER: Final = evolve(SCHEMA, value=(DELAY, GATE))
STATE: Final = ("flights", "aircraft")

_numbers = itertools.count(1)


@pytest.fixture
def config() -> Iterator[HAConfig]:
    """Return the name service of a cluster of this test's own."""
    config = HAConfig(url=f"embedded:schema-changes-{next(_numbers)}")
    with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=1):
        yield config


@pytest.fixture
def publisher(config: HAConfig) -> Publisher:
    """Return a query that has written one batch with one value column."""
    publisher = Publisher(config, "flights", {"aircraft": SCHEMA})
    publisher.write({"aircraft": [("N1", 1), ("N2", 2)]})
    return publisher


class TestAdded:
    def test_readers_of_before_go_on(
        self, config: HAConfig, publisher: Publisher
    ) -> None:
        """Who learnt the schema before reads the columns that it knows."""
        with (
            QueryableStateClient(config) as before,
            QueryableStateClient(config) as after,
            PartitionScanner(
                config, job_id="flights", state_name="aircraft", deadline_seconds=5.0
            ) as part,
        ):
            assert before.get(*STATE, "N1") == {"delay": 1}
            assert [field.name for field in part.columns()] == ["tailnum", "delay"]
            publisher.restart({"aircraft": WIDER})
            publisher.write({"aircraft": [("N1", 3, "C")]})
            assert before.get(*STATE, "N1") == {"delay": 3}
            assert dict(before.scan(*STATE)) == {"N1": {"delay": 3}, "N2": {"delay": 2}}
            assert sorted(itertools.chain(*part.rows(range(128)))) == [
                ("N1", 3),
                ("N2", 2),
            ]
            assert after.get_many(*STATE, ["N1", "N2"]) == {
                "N1": {"delay": 3, "gate": "C"},
                "N2": {"delay": 2, "gate": None},
            }

    @pytest.mark.parametrize("is_listed", [False, True])
    def test_who_was_told_of_a_column_reads_it(
        self,
        config: HAConfig,
        publisher: Publisher,
        is_listed: bool,
    ) -> None:
        """What was read without it would look as if there were nothing in it."""
        with QueryableStateClient(config) as client:
            assert client.get(*STATE, "N1") == {"delay": 1}
            publisher.restart({"aircraft": WIDER})
            publisher.write({"aircraft": [("N1", 3, "C")]})
            if is_listed:
                (told,) = client.describe_all(STATE[0])
            else:
                told = client.describe(*STATE)
            assert "gate" in told.value_columns
            assert client.get(*STATE, "N1") == {"delay": 3, "gate": "C"}
            assert dict(client.scan(*STATE))["N1"] == {"delay": 3, "gate": "C"}


class TestRemoved:
    def test_the_application_of_before_goes_on(
        self, config: HAConfig, publisher: Publisher
    ) -> None:
        """A roll-back keeps the column: rows written since have nothing in it."""
        publisher.restart({"aircraft": WIDER})
        publisher.write({"aircraft": [("N1", 3, "C"), ("N3", 3, "C")]})
        publisher.restart({"aircraft": SCHEMA})
        for delay in (4, 5):  # the second batch shows the schema by its digest
            publisher.write({"aircraft": [("N1", delay)]})
        with QueryableStateClient(config) as client:
            assert client.get_many(*STATE, ["N1", "N2", "N3"]) == {
                "N1": {"delay": 5, "gate": None},
                "N2": {"delay": 2, "gate": None},
                "N3": {"delay": 3, "gate": "C"},
            }
            publisher.restart({"aircraft": WIDER})
            publisher.write({"aircraft": [("N1", 6, "D")]})
            assert client.get(*STATE, "N1") == {"delay": 6, "gate": "D"}


class TestOtherChanges:
    @pytest.mark.parametrize(
        ("column", "detail"),
        [
            (Field("minutes", AtomicType.INT), "is delay int, not minutes int"),
            (
                Field("delay", AtomicType.STRING),
                "delay int cannot become delay string",
            ),
        ],
        ids=["renamed", "retyped"],
    )
    def test_they_are_refused_and_readers_go_on(
        self, config: HAConfig, publisher: Publisher, column: Field, detail: str
    ) -> None:
        """The rows that are stored could not be read: what differs is said."""
        publisher.restart({"aircraft": evolve(SCHEMA, value=(column,))})
        with pytest.raises(SchemaMismatchError, match=detail):
            publisher.write({})
        with QueryableStateClient(config) as client:
            assert client.get(*STATE, "N1") == {"delay": 1}
