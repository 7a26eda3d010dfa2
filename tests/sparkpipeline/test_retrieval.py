"""Retrievers on the driver and in Python workers, over a real LeaderServer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from haservices import HAConfig, HAServices, campaign, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig
from nameservice import ConfigurationError, UnreachableError
from sparkpipeline import (
    close_ha_services,
    get_leader_retriever,
    to_spark_settings,
    use_ha_config,
)
from tests.forking import run_in_child


pytestmark = [pytest.mark.spark, pytest.mark.shells]

ADDRESS = "10.0.0.7:8000"
TIMEOUT_SECONDS = 30.0


@pytest.fixture
def config() -> Iterator[HAConfig]:
    """Yield the configuration of a LeaderServer that runs as long as the test."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        yield HAConfig(url=server.url)
        close_ha_services()


@pytest.fixture
def ha(config: HAConfig) -> Iterator[HAServices]:
    """Yield services on that LeaderServer."""
    with open_ha_services(config) as services:
        yield services


def set_config(spark: SparkSession, config: HAConfig) -> None:
    """Configure the session as a user does, and nothing else."""
    for key, value in to_spark_settings(config).items():
        spark.conf.set(key, value)


def find_leader(_: Any) -> Iterator[tuple[str, int, int]]:
    """Return who leads, under which epoch, and which process found it."""
    leader = get_leader_retriever("flights").wait_for_leader(TIMEOUT_SECONDS)
    yield (leader.address, leader.epoch, os.getpid())


def find_leader_in_arrow(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Do as `find_leader` does, as a row."""
    for _ in batches:
        pass
    ((address, epoch, pid),) = find_leader(None)
    yield pa.RecordBatch.from_pydict(
        {"address": [address], "epoch": [epoch], "pid": [pid]}
    )


class TestTasks:
    def test_tasks_find_the_leader(
        self, spark: SparkSession, config: HAConfig, ha: HAServices
    ) -> None:
        """Tasks in workers of their own are told what the name service says."""
        set_config(spark, config)
        with campaign(ha, "flights", ADDRESS) as leadership:
            frame = spark.range(4, numPartitions=2).mapInArrow(
                find_leader_in_arrow, "address string, epoch long, pid long"
            )
            rows = frame.collect()
        assert {(row.address, row.epoch) for row in rows} == {
            (ADDRESS, leadership.epoch)
        }
        assert os.getpid() not in {row.pid for row in rows}

    def test_a_worker_opens_one_session_for_all_its_tasks(
        self, spark: SparkSession, config: HAConfig, ha: HAServices
    ) -> None:
        """Twenty tasks cost as many sessions as there were workers, not more."""
        set_config(spark, config)
        with campaign(ha, "flights", ADDRESS):
            sessions_before = len(ha.operations.sessions())
            pids = set()
            for _ in range(5):
                frame = spark.range(4, numPartitions=4).mapInArrow(
                    find_leader_in_arrow, "address string, epoch long, pid long"
                )
                pids |= {row.pid for row in frame.collect()}
            session_count = len(ha.operations.sessions()) - sessions_before
        assert session_count == len(pids) < 20

    def test_a_configuration_can_travel_in_the_closure(
        self, spark: SparkSession, config: HAConfig, ha: HAServices
    ) -> None:
        """RDD tasks, which have no session settings, are given one by hand."""

        def find(_: Any) -> Iterator[str]:
            retriever = get_leader_retriever("flights", config)
            yield retriever.wait_for_leader(TIMEOUT_SECONDS).address

        with campaign(ha, "flights", ADDRESS):
            found = spark.sparkContext.range(2).mapPartitions(find).collect()
        assert set(found) == {ADDRESS}

    def test_rdd_jobs_of_a_thread_that_uses_it(
        self, spark: SparkSession, config: HAConfig, ha: HAServices
    ) -> None:
        """`use_ha_config` reaches the jobs that go around the SQL engine."""
        use_ha_config(spark, config)
        with campaign(ha, "flights", ADDRESS):
            rdd = spark.sparkContext.range(2).mapPartitions(find_leader)
            assert {address for address, _, _ in rdd.collect()} == {ADDRESS}


class TestDriver:
    def test_all_who_ask_share_one_retriever(
        self, spark: SparkSession, config: HAConfig, ha: HAServices
    ) -> None:
        """One job, one process: one retriever, started, as long as it is not closed."""
        set_config(spark, config)
        retriever = get_leader_retriever("flights")
        assert get_leader_retriever("flights") is retriever
        assert get_leader_retriever("flights", config) is retriever
        assert get_leader_retriever("trains") is not retriever
        with campaign(ha, "flights", ADDRESS):
            assert retriever.wait_for_leader(TIMEOUT_SECONDS).address == ADDRESS
            retriever.close()
            again = get_leader_retriever("flights")
            assert again is not retriever
            assert again.wait_for_leader(TIMEOUT_SECONDS).address == ADDRESS

    def test_a_forked_child_opens_its_own(self, config: HAConfig) -> None:
        """What the parent had opened is not used in the child (E10)."""
        with open_ha_services(config) as ha, campaign(ha, "flights", ADDRESS):
            held = get_leader_retriever("flights", config)
            assert held.wait_for_leader(TIMEOUT_SECONDS).address == ADDRESS

            def find() -> str:
                retriever = get_leader_retriever("flights", config)
                assert retriever is not held
                return retriever.wait_for_leader(TIMEOUT_SECONDS).address

            assert run_in_child(find) == repr(ADDRESS)
            assert get_leader_retriever("flights", config) is held
            assert held.wait_for_leader(TIMEOUT_SECONDS).address == ADDRESS

    def test_an_embedded_name_service_serves_the_driver(
        self, spark: SparkSession
    ) -> None:
        """By its name; a private one, which none could lead, is refused."""
        config = HAConfig(url="embedded:sparkpipeline")
        set_config(spark, config)
        with open_ha_services(config) as ha, campaign(ha, "flights", ADDRESS):
            retriever = get_leader_retriever("flights")
            assert retriever.wait_for_leader(TIMEOUT_SECONDS).address == ADDRESS
        with pytest.raises(ConfigurationError, match="give it a name"):
            get_leader_retriever("flights", HAConfig(url="embedded:"))

    def test_an_unreachable_name_service_is_tried_anew(
        self, reserved: ReservedPort
    ) -> None:
        """A failure to open is not kept: the next call may find it there."""
        config = HAConfig(
            url=f"leaderserver://127.0.0.1:{reserved.port}", connect_timeout_seconds=0.3
        )
        for _ in range(2):
            with pytest.raises(UnreachableError):
                get_leader_retriever("flights", config)

    def test_closing_is_idempotent_and_not_final(self, config: HAConfig) -> None:
        """After `close_ha_services` one that asks again opens anew."""
        first = get_leader_retriever("flights", config)
        close_ha_services()
        close_ha_services()
        assert get_leader_retriever("flights", config) is not first


def test_without_spark_a_configuration_must_be_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is neither session nor task, the error says to pass one."""
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(ConfigurationError, match=r"pass config=…"):
        get_leader_retriever("flights")
