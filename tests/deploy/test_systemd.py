"""The units of systemd start what they say, and systemd understands them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.serving import metrics_url, status_of
from tests.lodestar.running import Running


UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
PROGRAM = "/opt/lodestar/bin/lodestar"
VERBS = ("server", "proxy", "node", "gateway", "sql")


def values_of(verb: str, name: str) -> list[str]:
    """Return what the unit of *verb* sets *name* to, each time."""
    lines = (UNITS / f"lodestar-{verb}.service").read_text(encoding="utf-8").split("\n")
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def settings_of(verb: str, directory: Path) -> dict[str, Any]:
    """Return the environment of the unit of *verb*, at home in *directory*."""
    home = directory / verb
    home.mkdir()
    (home / "proxy.toml").touch()
    settings = {}
    for line in values_of(verb, "Environment"):
        name, _, value = line.partition("=")
        for place in ("/var/lib", "/etc/lodestar"):
            value = value.replace(place, str(home))
        is_address = re.fullmatch(r"127\.0\.0\.1:\d+", value)
        settings[name] = "127.0.0.1:0" if is_address else value
    (state_directory,) = values_of(verb, "StateDirectory") or [""]
    (home / state_directory).mkdir(exist_ok=True)
    return settings


@pytest.mark.shells
def test_they_serve_and_end(tmp_path: Path) -> None:
    """Their commands and settings make a cluster, which ends on SIGTERM."""
    settings = {verb: settings_of(verb, tmp_path) for verb in VERBS}
    commands = {verb: values_of(verb, "ExecStart")[0].split() for verb in VERBS}
    assert {command[0] for command in commands.values()} == {PROGRAM}
    settings["server"]["LODESTAR_SERVER_BIND"] = "tcp://127.0.0.1:0"
    with Running(*commands["server"][1:], **settings["server"]) as server:
        url = server.out.next().removeprefix("serving ")
        for verb in VERBS[1:]:
            settings[verb]["LODESTAR_URL"] = url
        with (
            Running(*commands["proxy"][1:], **settings["proxy"]) as proxy,
            Running(*commands["node"][1:], **settings["node"]) as node,
            Running(*commands["gateway"][1:], **settings["gateway"]) as gateway,
            Running(*commands["sql"][1:], **settings["sql"]) as sql,
        ):
            running = (sql, gateway, node, proxy)
            for process in running:
                process.out.until("serving ")
            for process in (*running, server):
                assert status_of(f"{metrics_url(process)}/healthz") == 200
                assert process.end().exit_code == 0


def test_systemd_understands_them(tmp_path: Path) -> None:
    """`systemd-analyze verify` has no objection."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed; Debian has it in 'systemd'")
    copies = []
    for verb in VERBS:
        name = f"lodestar-{verb}.service"
        text = (UNITS / name).read_text(encoding="utf-8")
        # It asks whether the program is there.
        (tmp_path / name).write_text(text.replace(PROGRAM, "/bin/true"))
        copies.append(str(tmp_path / name))
    done = subprocess.run(
        [analyze, "verify", *copies], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", VERBS)
def test_node_has_the_time_to_give_its_key_groups_away(verb: str) -> None:
    """A supervisor that is impatient would end a node in the middle of that."""
    (seconds,) = map(int, values_of(verb, "TimeoutStopSec"))
    assert seconds > (60 if verb == "node" else 10)
    assert values_of(verb, "RestartPreventExitStatus") == ["2"]
