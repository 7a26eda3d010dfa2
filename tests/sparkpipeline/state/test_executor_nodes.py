"""Nodes under executors: started by them, found by the proxy, ended with them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from nameservice import ConfigurationError, UnreachableError
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from sparkpipeline import start_nodes
from sparkpipeline.state import executor_nodes
from sparkpipeline.state.each_executor import on_each_executor
from sparkpipeline.state.executor_node_process import (
    NodeOrder,
    RunningNode,
    _Executor,
    _held_slot,
    holder_of,
    machine,
    processes_seen,
    read_slots,
    start_time_of,
)
from sparkpipeline.state.executor_nodes import (
    ExecutorNodes,
    _is_here,
    _spawn,
    _stop_here,
)
from tests.recording import wait_until


pytestmark = [pytest.mark.spark, pytest.mark.shells]

ROOT = Path(__file__).parents[3]
APP_TIMEOUT_SECONDS = 240.0


@pytest.fixture
def config() -> Iterator[HAConfig]:
    """Yield a name service where a proxy leads."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
        config = HAConfig(url=server.url)
        with open_ha_services(config) as ha, QueryStateProxyServer(ha, ProxyConfig()):
            yield config


@pytest.mark.timeout(APP_TIMEOUT_SECONDS + 30)
def test_every_executor_has_its_own_node(tmp_path: Path) -> None:
    """Each registers under its own address, ends with its JVM, and is replaced."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.sparkpipeline.executor_nodes_app", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=APP_TIMEOUT_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-5_000:]
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert len(set(found["jvm_pids"])) == 2
    assert len(set(found["addresses"].values())) == 2
    assert found["registered"] == found["addresses"]
    assert found["is_same_again"]
    assert found["running_after_stop"] == 0
    # Data directories, and the names in them, are taken up again.
    assert found["node_ids_after_restart"] == found["node_ids"]
    assert found["is_other_kept"]
    assert found["node_ids_after_death"] == found["node_ids"]
    assert found["is_executor_new"]
    assert found["is_kept_as_it_was"]


class TestLocalMode:
    """The driver's JVM is the one executor."""

    def test_nodes_are_stopped_by_their_handle(
        self,
        spark: SparkSession,
        config: HAConfig,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """
        Several per executor; after `stop` none runs, and stopping again is fine.

        A `stop` that a Ctrl-C breaks off can be done again.
        """

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with start_nodes(
            spark, config, data_dir=tmp_path, nodes_per_executor=2
        ) as nodes:
            assert len(set(nodes.node_ids)) == 2
            assert set(read_slots(tmp_path)) == set(nodes.nodes)
            assert {node.jvm_pid for node in nodes.nodes} == {nodes.nodes[0].jvm_pid}
            for node in nodes.nodes:
                assert start_time_of(node.pid) != ""
            with monkeypatch.context() as patch:
                patch.setattr(executor_nodes, "_signal", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    nodes.stop()
            assert len(read_slots(tmp_path)) == 2
        assert read_slots(tmp_path) == []
        nodes.stop()

    def test_a_node_outlives_the_worker_that_started_it(
        self, spark: SparkSession, config: HAConfig, tmp_path: Path
    ) -> None:
        """It has no parent: it has a session of its own, and ends at a signal."""
        (node,) = start_nodes(spark, config, data_dir=tmp_path).nodes
        assert os.getsid(node.pid) == node.pid
        os.kill(node.pid, signal.SIGTERM)
        wait_until(lambda: holder_of(Path(node.slot)) is None)
        # It kept its rows and its name.
        with start_nodes(spark, config, data_dir=tmp_path) as nodes:
            assert nodes.node_ids == (node.node_id,)

    def test_what_keeps_a_node_from_starting_is_told(
        self, spark: SparkSession, config: HAConfig, tmp_path: Path
    ) -> None:
        """The error of the node's process is the error of the call."""
        with pytest.raises(ConfigurationError, match=r"taken\.key"):
            start_nodes(
                spark,
                config,
                data_dir=tmp_path,
                curve_public_key_file=tmp_path / "taken.key",
                curve_secret_key_file=tmp_path / "taken.key_secret",
                allow_list_file=tmp_path / "allowed",
            )
        assert read_slots(tmp_path) == []

    def test_nobody_leads(self, spark: SparkSession, tmp_path: Path) -> None:
        """Without a proxy no node is registered: that is told in time."""
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
            config = HAConfig(url=server.url)
            with pytest.raises(UnreachableError, match="has no leader"):
                start_nodes(spark, config, data_dir=tmp_path, timeout_seconds=0.5)
        assert read_slots(tmp_path) == []

    @pytest.mark.parametrize("fails", ["on_each_executor", "wait_for_executors"])
    def test_an_error_of_a_later_round_leaves_no_node_of_an_earlier_one(
        self,
        spark: SparkSession,
        config: HAConfig,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        fails: str,
    ) -> None:
        """
        The executor that has answered nothing is asked again, and then Spark fails.

        The caller had no handle, and the nodes ran on.
        """

        def lose_answers(*arguments: Any) -> list[dict[str, Any]]:
            on_each_executor(*arguments)
            assert len(read_slots(tmp_path)) == 1
            monkeypatch.setattr(executor_nodes, fails, fail)
            return []

        def fail(*_arguments: Any) -> None:
            message = "the stage failed"
            raise RuntimeError(message)

        monkeypatch.setattr(executor_nodes, "on_each_executor", lose_answers)
        with pytest.raises(RuntimeError, match="the stage failed"):
            start_nodes(spark, config, data_dir=tmp_path)
        assert read_slots(tmp_path) == []

    def test_nodes_of_an_earlier_call_outlive_the_error_of_a_later_one(
        self, spark: SparkSession, config: HAConfig, tmp_path: Path
    ) -> None:
        """One more cannot be started: those that serve were stopped with it."""
        with start_nodes(spark, config, data_dir=tmp_path) as nodes:
            with pytest.raises(ConfigurationError, match=r"taken\.key"):
                start_nodes(
                    spark,
                    config,
                    data_dir=tmp_path,
                    nodes_per_executor=2,
                    curve_public_key_file=tmp_path / "taken.key",
                    curve_secret_key_file=tmp_path / "taken.key_secret",
                    allow_list_file=tmp_path / "allowed",
                )
            assert read_slots(tmp_path) == list(nodes.nodes)


class TestMistakes:
    def test_they_are_told_before_anything_is_started(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """And say what to change."""
        url = "leaderserver://127.0.0.1:1"
        for settings, words in (
            ({"config": "embedded:flights"}, "use a LeaderServer"),
            ({"data_dir": "relative"}, "must be an absolute path"),
            ({"nodes_per_executor": 0}, "at least 1, not 0"),
            ({"node_id": "mine"}, "node_id is not for all nodes"),
            ({"bind": "tcp://*:0"}, "is_insecure_allowed"),
        ):
            chosen: dict[str, Any] = {"config": url, "data_dir": tmp_path} | settings
            with pytest.raises(ConfigurationError, match=words):
                start_nodes(spark, **chosen)


def order_of(process: subprocess.Popen[bytes]) -> NodeOrder:
    """Return what is ordered of a node whose executor is *process*."""
    return NodeOrder(
        data_dir="unused",
        settings={},
        node_settings={},
        jvm_pid=process.pid,
        jvm_started=start_time_of(process.pid),
        token="unused",
        timeout_seconds=1.0,
    )


class TestWithoutPidfd:
    """A kernel before 5.3 does not tell of the end of a process."""

    @pytest.fixture(autouse=True)
    def no_pidfd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the kernel refuse them."""

        def refuse(process_id: int, flags: int = 0) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(os, "pidfd_open", refuse)

    def test_a_node_starts_and_ends_with_its_executor(self) -> None:
        """It is looked at again and again."""
        with subprocess.Popen(["sleep", "600"]) as process:
            executor = _Executor(order_of(process))
            reader, writer = os.pipe()
            try:
                assert not executor.wait_for_end(reader)
                process.kill()
                process.wait()
                assert executor.wait_for_end(reader)
            finally:
                os.close(reader)
                os.close(writer)

    def test_an_executor_has_ended_though_none_has_waited_for_it(self) -> None:
        """
        As the JVM of a notebook whose Python goes on: it is a zombie until that ends.

        It could still be signalled, so the node went on beside it for good, and kept
        its slot: the next session began without the rows.
        """
        with subprocess.Popen(["sleep", "600"]) as process:
            executor = _Executor(order_of(process))
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            reader, writer = os.pipe()
            try:
                assert executor.wait_for_end(reader)
            finally:
                os.close(reader)
                os.close(writer)


@pytest.mark.timeout(60)
def test_a_node_that_hangs_is_ended_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What it writes its log to hangs, as a network disk does.

    The first process was killed, which had ended long before, and the pipe that the
    node still held was waited for without limit: `start_nodes` never returned.
    """
    monkeypatch.setattr("sparkpipeline.state.executor_nodes._START_GRACE_SECONDS", 5.0)
    slot = tmp_path / "node-0"
    slot.mkdir()
    os.mkfifo(slot / "node.log")
    order = NodeOrder(
        data_dir=str(tmp_path),
        settings={},
        node_settings={},
        jvm_pid=os.getpid(),
        jvm_started=start_time_of(os.getpid()),
        token="unused",
        timeout_seconds=0.0,
    )
    answer = _spawn(order)
    assert answer["type"] == UnreachableError.__name__
    assert "it hangs" in answer["error"]
    assert holder_of(slot) is None


ELSEWHERE = """
import json
import sys
from attrs import evolve
from sparkpipeline.state.executor_node_process import (
    NodeOrder, machine, start_time_of
)
from sparkpipeline.state.executor_nodes import _spawn

order = NodeOrder(**json.loads(sys.stdin.readline()))
order = evolve(order, jvm_pid=1, jvm_started=start_time_of(1))
print(json.dumps([machine(), _spawn(order)]), flush=True)
sys.stdin.read()
"""


def test_processes_of_another_container_are_not_taken_for_ours(
    config: HAConfig, tmp_path: Path
) -> None:
    """
    Containers of one machine may share its name and a directory, and count anew.

    Stopping nodes signalled whatever had the number here.  Two executors whose JVMs
    had the same number counted as one, so that one of them never got its nodes.
    """
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("process numbers cannot be counted anew here")
    order = NodeOrder(
        data_dir=str(tmp_path),
        settings=config.to_settings(),
        node_settings={},
        jvm_pid=0,
        jvm_started="",
        token="unused",
        timeout_seconds=30.0,
    )
    with subprocess.Popen(
        [*apart, "--kill-child", sys.executable, "-c", ELSEWHERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as container:
        try:
            assert container.stdin is not None
            assert container.stdout is not None
            container.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            container.stdin.flush()
            name, answer = json.loads(container.stdout.readline())
            assert name == machine()
            node = RunningNode(**answer)
            assert read_slots(tmp_path) == [node]
            assert not _is_here(node)
            assert node.processes != processes_seen()
            _stop_here([node])
            assert read_slots(tmp_path) == [node]
        finally:
            container.kill()
    wait_until(lambda: read_slots(tmp_path) == [])


HOLDER = """
import sys
from pathlib import Path
from sparkpipeline.state.executor_node_process import _held_slot

with _held_slot(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

HOLDER_WITH_CHILD = HOLDER.replace(
    "    print(",
    "    import os; os.fork() or (sys.stdin.read(), os._exit(0))\n    print(",
)
_NO_CONTEXT: Any = None


def put_running(data_dir: Path, pid: int) -> RunningNode:
    """Leave what a node says of itself in the first slot, and return it."""
    slot = data_dir / "node-0"
    node = RunningNode(
        node_id="node-of-old",
        address="tcp://127.0.0.1:1",
        slot=str(slot),
        pid=pid,
        jvm_pid=1,
        jvm_started="1",
        token="unused",
        processes=processes_seen(),
    )
    slot.mkdir(exist_ok=True)
    (slot / "running.json").write_text(json.dumps(asdict(node)), encoding="utf-8")
    return node


@pytest.mark.proves("S1", "W7")
class TestSlots:
    """A lock says that a slot is held, a file what serves: at different moments."""

    def test_a_killed_node_does_not_serve_while_another_starts_in_its_slot(
        self, tmp_path: Path
    ) -> None:
        """What it has left behind is not what holds the slot: it is started again."""
        with subprocess.Popen(["true"]) as process:
            process.wait()
        put_running(tmp_path, process.pid)
        assert read_slots(tmp_path) == []
        with _held_slot(tmp_path):
            assert read_slots(tmp_path) == []

    def test_a_process_with_the_number_of_a_killed_node_is_not_stopped(
        self, tmp_path: Path
    ) -> None:
        """Stopping ends at once, though another node holds the slot by now."""
        with subprocess.Popen(["sleep", "600"]) as process:
            node = put_running(tmp_path, process.pid)
            try:
                with _held_slot(tmp_path):
                    _stop_here([node])
                assert process.poll() is None
            finally:
                process.kill()

    def test_stopping_does_not_wait_for_ever_for_what_a_kill_does_not_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that hangs: the slot stays held, here by a child of the node."""
        for limit in ("_STOP_TIMEOUT_SECONDS", "_KILL_TIMEOUT_SECONDS"):
            monkeypatch.setattr(executor_nodes, limit, 0.5)
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER_WITH_CHILD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            node = put_running(tmp_path, process.pid)
            with capture_logs() as logs:
                ExecutorNodes(_NO_CONTEXT, [node]).stop()
            assert process.wait() == -signal.SIGTERM
        assert [line["event"] for line in logs] == ["nodes.left"]

    def test_stopping_does_not_wait_for_the_next_node_in_a_slot(
        self, tmp_path: Path
    ) -> None:
        """Another application may start one there as soon as the slot is free."""
        is_over = threading.Event()

        def take_next() -> None:
            with (tmp_path / "node-0" / "slot.lock").open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(0)
                os.pwrite(file.fileno(), b"1", 0)
                is_over.wait()

        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            node = put_running(tmp_path, process.pid)
            assert read_slots(tmp_path) == [node]
            thread = threading.Thread(target=take_next)
            thread.start()
            try:
                _stop_here([node])
            finally:
                process.kill()
                is_over.set()
                thread.join()

    def test_a_slot_is_not_held_because_somebody_looks(self, tmp_path: Path) -> None:
        """A node would begin with nothing, beside the rows of the one before."""
        is_over = threading.Event()

        def look() -> None:
            while not is_over.is_set():
                holder_of(tmp_path / "node-0")

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2_000):
                with _held_slot(tmp_path) as slot:
                    assert slot.name == "node-0"
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
