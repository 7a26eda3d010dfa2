"""``lodestar export``: files that are whole or absent."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from haservices import HAConfig, open_ha_services
from lodestar.state_export import whole_file
from nameservice import ConfigurationError
from queryablestate import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import ROOT, environment, run


AIRCRAFT = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("flights", AtomicType.INT), Field("note", AtomicType.STRING)),
)
LOG = StateSchema(
    kind=StateKind.LIST,
    key=(Field("flight", AtomicType.INT),),
    value=(Field("event", AtomicType.STRING),),
)
ROWS = [
    (f"N{number:05}", number, "é" if number % 2 else None) for number in range(5000)
]
EVENTS = [(7, f"event {number}") for number in range(2500)]


@pytest.mark.proves("F7")
class TestWholeFile:
    """A file is there when it is written as a whole, and never before."""

    def test_it_is_there_at_the_end(self, tmp_path: Path) -> None:
        """Under its name, alone, as readable as any other file."""
        plain = tmp_path / "plain"
        plain.touch()
        target = tmp_path / "a.csv"
        with whole_file(str(target)) as file:
            file.write(b"1\n")
            assert not target.exists()
        assert target.read_bytes() == b"1\n"
        assert target.stat().st_mode == plain.stat().st_mode
        assert sorted(tmp_path.iterdir()) == [target, plain]

    @pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
    def test_an_error_leaves_what_was_there(
        self, tmp_path: Path, error: BaseException
    ) -> None:
        """The former file as it was, and nothing beside it."""
        target = tmp_path / "a.csv"
        target.write_bytes(b"before")

        def write() -> None:
            with whole_file(str(target)) as file:
                file.write(b"half")
                raise error

        with pytest.raises(type(error)):
            write()
        assert target.read_bytes() == b"before"
        assert list(tmp_path.iterdir()) == [target]

    def test_a_link_stays_one(self, tmp_path: Path) -> None:
        """The file behind it is replaced."""
        link, target = tmp_path / "link", tmp_path / "target"
        link.symlink_to(target)
        with whole_file(str(link)) as file:
            file.write(b"1")
        assert link.is_symlink()
        assert target.read_bytes() == b"1"

    @pytest.mark.parametrize("name", [".", os.devnull])
    def test_what_is_no_file_is_refused(self, tmp_path: Path, name: str) -> None:
        """A directory or a device is not replaced by a file."""
        with (
            pytest.raises(ConfigurationError, match="is no file"),
            whole_file(str(tmp_path / name)),
        ):
            pass


@pytest.fixture(scope="module")
def at(leader_server_url: str) -> Iterator[tuple[str, ...]]:
    """Return the options that name a name service with a proxy, nodes and state."""
    cluster_id = f"export-{uuid.uuid4()}"
    config = HAConfig(url=leader_server_url, cluster_id=cluster_id, lease_seconds=3.0)
    with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=2):
        publisher = Publisher(config, "flights", {"aircraft": AIRCRAFT, "log": LOG})
        publisher.write({"aircraft": ROWS, "log": EVENTS})
        yield ("--url", leader_server_url, "--cluster-id", cluster_id)


@pytest.mark.shells
@pytest.mark.proves("F7")
class TestExport:
    """The verb, against a cluster."""

    def test_a_table_of_a_cluster(self, at: tuple[str, ...]) -> None:
        """All rows of all nodes and pages, as of the one batch that there is."""
        config = HAConfig(url=at[1], cluster_id=at[3], lease_seconds=3.0)
        with QueryableStateClient(config, deadline_seconds=60.0) as client:
            aircraft = client.table("flights", "aircraft")
            log = client.table("flights", "log")
            information = client.describe("flights", "aircraft")
        assert aircraft.to_pydict() == {
            "tailnum": [tailnum for tailnum, _, _ in ROWS],
            "flights": [flights for _, flights, _ in ROWS],
            "note": [note for _, _, note in ROWS],
        }
        assert log.to_pydict() == {"flight": [7], "event": [[one for _, one in EVENTS]]}
        told = aircraft.schema.metadata
        for batch_id in (b"lodestar.batch_id", b"lodestar.newest_batch_id"):
            assert told[batch_id] == str(information.batch_id).encode()
        for generation in (b"lodestar.generation", b"lodestar.newest_generation"):
            assert told[generation] == str(information.generation).encode()
        assert float(told[b"lodestar.age_seconds"]) >= 0

    def test_a_parquet_file(self, at: tuple[str, ...], tmp_path: Path) -> None:
        """One line says what was written; the file is the table."""
        target = tmp_path / "a.parquet"
        done = run(
            *("export", "flights", "aircraft", "--format", "parquet"),
            *("--output", str(target), "--deadline", "60", *at),
        )
        assert (done.exit_code, done.err) == (0, "")
        assert done.out == f"exported 5,000 rows of flights/aircraft to {target}\n"
        table = pq.read_table(target)
        assert table.column("flights").to_pylist() == list(range(5000))
        assert list(tmp_path.iterdir()) == [target]

    def test_csv_to_standard_output(self, at: tuple[str, ...]) -> None:
        """In UTF-8 whatever the locale, and nothing else."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "lodestar", "export", "flights", "aircraft"),
                *("--format", "csv", "--deadline", "60", *at),
            ],
            capture_output=True,
            timeout=60,
            env=environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
            check=True,
        )
        lines = done.stdout.decode().splitlines()
        assert lines[:3] == ["tailnum,flights,note", "N00000,0,", "N00001,1,é"]
        assert len(lines) == 5001

    def test_json_lines(self, at: tuple[str, ...], tmp_path: Path) -> None:
        """A list state has a line for each item."""
        target = tmp_path / "log.jsonl"
        done = run(
            *("export", "flights", "log", "--format", "json"),
            *("--output", str(target), "--deadline", "60", *at),
        )
        assert done.exit_code == 0
        lines = target.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == [
            {"flight": flight, "event": event} for flight, event in EVENTS
        ]

    @pytest.mark.parametrize(
        ("arguments", "exit_code", "what"),
        [
            (("flights", "nothing", "--format", "csv"), 3, "has no state 'nothing'"),
            (("nothing", "x", "--format", "parquet"), 3, "no state of a job"),
            (("flights", "aircraft", "--format", "xml"), 2, "xml"),
            (("flights", "aircraft"), 2, "--format"),
        ],
    )
    def test_an_error_leaves_no_file(
        self,
        at: tuple[str, ...],
        tmp_path: Path,
        arguments: tuple[str, ...],
        exit_code: int,
        what: str,
    ) -> None:
        """And has the exit code that other verbs have."""
        target = tmp_path / "a"
        done = run("export", *arguments, "--output", str(target), *at)
        assert (done.exit_code, done.out) == (exit_code, "")
        assert what in done.err
        assert len(done.err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []

    def test_the_commands_of_the_page(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """What docs/howto says can be typed, and leaves what it says."""
        page = ROOT / "docs/howto/take-a-state-elsewhere.md"
        commands = re.findall(
            r"^\$ (lodestar .*)", page.read_text("utf-8"), re.MULTILINE
        )
        assert len(commands) == 3
        here = Path(sys.executable).parent
        for command in commands:
            subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=tmp_path,
                env=environment(
                    LODESTAR_URL=at[1],
                    LODESTAR_CLUSTER_ID=at[3],
                    PATH=f"{here}:{os.environ['PATH']}",
                ),
                timeout=60,
                check=True,
            )
        assert pq.read_table(tmp_path / "aircraft.parquet").num_rows == 5000
        lines = (tmp_path / "aircraft.csv").read_text("utf-8").splitlines()
        assert len(lines) == 5001
        packed = gzip.decompress((tmp_path / "aircraft.jsonl.gz").read_bytes())
        assert len(packed.splitlines()) == 5000

    def test_a_directory_that_is_not_there(
        self, at: tuple[str, ...], tmp_path: Path
    ) -> None:
        """That is bad usage, and is told by the name that was given."""
        target = tmp_path / "none" / "a.csv"
        done = run(
            *("export", "flights", "log", "--format", "csv"),
            *("--output", str(target), *at),
        )
        assert done.exit_code == 2
        assert done.err.splitlines() == [
            f"lodestar export: cannot write {target}: No such file or directory"
        ]
