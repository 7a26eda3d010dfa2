from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from haservices import open_ha_services
from lodestar.exit_codes import ExitCode
from tests.lodestar.running import LONG_LEASES, Running, ask_here, run
from zmqtransport import CurveKeyPair, load_public_key, write_key_pair


pytestmark = pytest.mark.shells

ANY_PORT = ("--bind", "tcp://127.0.0.1:0")


class TestServing:
    """``lodestar server`` as a process (N2, N5)."""

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_says_what_it_serves_and_ends_cleanly(
        self, number: signal.Signals
    ) -> None:
        """N5: one line when it is ready; a signal ends it with 0 and no traceback."""
        with Running("server", *ANY_PORT) as server:
            line = server.out.next()
            word, url = line.split(" ")
            assert word == "serving"
            assert url.startswith("leaderserver://127.0.0.1:")
            assert ask_here("leaders", "--url", url).exit_code == 0
            result = server.end(number)
        assert result.exit_code == 0
        assert result.out == ""
        assert "Traceback" not in result.err

    def test_a_hangup_has_it_read_its_list_again(self) -> None:
        """N4: SIGHUP does not end it; it ended with 0, and no manager restarted it."""
        with Running("server", *ANY_PORT) as server:
            url = server.out.next().split(" ")[1]
            server.process.send_signal(signal.SIGHUP)
            assert server.err.until("server.nothing_to_reload")
            assert ask_here("leaders", "--url", url).exit_code == 0
            result = server.end(signal.SIGTERM)
        assert result.exit_code == 0

    @pytest.mark.proves("N5")
    def test_a_hangup_has_it_read_its_limits_again(self, tmp_path: Path) -> None:
        """N3: what may change does, a mistake changes nothing, the rest is named."""
        limits = tmp_path / "limits.toml"
        limits.write_text("sessions_max = 1\nlease_seconds_max = 0.5\n")
        with Running("server", *ANY_PORT, "--limits", str(limits)) as server:
            url = server.out.next().split(" ")[1]
            with open_ha_services(url):
                assert "as many sessions" in ask_here("leaders", "--url", url).err
                limits.write_text("sessions_max = 5\nsession_max = 6\n")
                server.process.send_signal(signal.SIGHUP)
                assert "session_max is no limit" in server.err.until(
                    "server.reload_failed"
                )
                assert "as many sessions" in ask_here("leaders", "--url", url).err
                limits.write_text("sessions_max = 5\nlease_seconds_max = 0.7\n")
                server.process.send_signal(signal.SIGHUP)
                assert "lease_seconds_max" in server.err.until("server.restart_needed")
                assert ask_here("leaders", "--url", url).exit_code == 0
            result = server.end(signal.SIGTERM)
        assert result.exit_code == 0

    @pytest.mark.proves("N4", "N5")
    @pytest.mark.parametrize(
        "content", ["sessions_max = " + "[" * 5_000, "sessions_max = 0x" + "1" * 5_000]
    )
    def test_a_hangup_with_a_garbled_file(self, tmp_path: Path, content: str) -> None:
        """
        The server goes on as it was: it ended, with a traceback of the parser.

        `tomllib` raises a `RecursionError` of what is nested too deeply; a number of
        thousands of hexadecimal digits is read, and no error could show it.
        """
        limits = tmp_path / "limits.toml"
        limits.write_text("sessions_max = 5\n")
        with Running("server", *ANY_PORT, "--limits", str(limits)) as server:
            url = server.out.next().split(" ")[1]
            limits.write_text(content)
            server.process.send_signal(signal.SIGHUP)
            assert str(limits) in server.err.until("server.reload_failed")
            assert ask_here("leaders", "--url", url).exit_code == 0
            result = server.end(signal.SIGTERM)
        assert result.exit_code == 0

    def test_a_hangup_has_it_read_its_keys_again(self, tmp_path: Path) -> None:
        """N4: on the same port; its clients know both keys for a while."""
        names = ("server", "server-2", "client")
        for name in names:
            write_key_pair(CurveKeyPair.generate(), tmp_path / name)
        keys = {name: tmp_path / f"{name}.key" for name in names}
        known = tmp_path / "known.key"
        known.write_text(keys["server"].read_text() + keys["server-2"].read_text())
        allow_list = tmp_path / "clients.toml"
        allow_list.write_text(
            f'[clients.one]\npublic_key = "{load_public_key(keys["client"])}"\n'
            'roles = ["admin"]\n'
        )

        def files(name: str) -> tuple[str, ...]:
            public, secret = keys[name], f"{keys[name]}_secret"
            return (
                f"--curve-public-key-file={public}",
                f"--curve-secret-key-file={secret}",
            )

        options = (*files("server"), f"--allow-list={allow_list}")
        with Running("server", *ANY_PORT, *options) as server:
            url = server.out.next().split(" ")[1].strip()
            client = ("leaders", "--url", url, *files("client"))
            knows_both = f"--curve-server-key-file={known}"
            knows_old = f"--curve-server-key-file={tmp_path / 'old.key'}"
            (tmp_path / "old.key").write_text(keys["server"].read_text())
            assert ask_here(*client, knows_both).exit_code == 0
            Path(f"{keys['server-2']}_secret").replace(f"{keys['server']}_secret")
            keys["server-2"].replace(keys["server"])
            server.process.send_signal(signal.SIGHUP)
            assert server.err.until("server.key_replaced")
            assert ask_here(*client, knows_both).exit_code == 0
            refused = ask_here(*client, knows_old)
            assert refused.exit_code == ExitCode.NOT_ALLOWED
            assert "put its present one into" in refused.err
            server.end()

    def test_an_option_outweighs_the_file(self, tmp_path: Path) -> None:
        """N3: as everywhere else; and a wrong file is bad usage at the start."""
        limits = tmp_path / "limits.toml"
        limits.write_text("sessions_max = 1\n")
        options = ("--limits", str(limits), "--sessions-max", "2")
        with Running("server", *ANY_PORT, *options) as server:
            url = server.out.next().split(" ")[1]
            with open_ha_services(url):
                assert ask_here("leaders", "--url", url).exit_code == 0
            server.end()
        limits.write_text("sessions_max = 0\n")
        result = run("server", *ANY_PORT, "--limits", str(limits))
        assert (result.exit_code, result.out) == (2, "")
        assert str(limits) in result.err.splitlines()[-1]
        assert "sessions_max must be 1 to" in result.err.splitlines()[-1]

    def test_it_logs_to_standard_error(self) -> None:
        """N5: standard output has the one line, standard error the log, as JSON."""
        with Running("server", *ANY_PORT, "--log-level", "debug") as server:
            server.out.next()
            result = server.end()
        lines = result.err.splitlines()
        assert lines
        assert all("event" in json.loads(line) for line in lines)

    @pytest.mark.proves("N5")
    def test_a_port_in_use_is_told_in_one_line(self) -> None:
        """N5: a port that is taken is bad usage, and the last line names it."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            bind = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            result = run("server", "--bind", bind)
        assert (result.exit_code, result.out) == (2, "")
        assert bind in result.err.splitlines()[-1]
        assert "Traceback" not in result.err

    def test_two_servers_do_not_share_a_data_directory(self, tmp_path: Path) -> None:
        """E2: epochs stay unique: the second server is told who holds the directory."""
        data_dir = ("--data-dir", str(tmp_path / "data"))
        with Running("server", *ANY_PORT, *data_dir) as server:
            server.out.next()
            result = run("server", *ANY_PORT, *data_dir)
            assert (result.exit_code, result.out) == (2, "")
            assert str(tmp_path / "data") in result.err.splitlines()[-1]
            assert "Traceback" not in result.err
            server.end()

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize(
        ("options", "saying"),
        [
            (["--bind", "tcp://127.0.0.1"], "127.0.0.1"),
            (["--bind", "127.0.0.1:5170"], "tcp://"),
            (["--bind", "tcp://0.0.0.0:0"], "lets other machines in"),
            (
                [*ANY_PORT, "--publish-bind", "tcp://0.0.0.0:0"],
                "lets other machines in",
            ),
            ([*ANY_PORT, "--curve-secret-key-file", "f"], "curve_public_key_file"),
            ([*ANY_PORT, "--lease-seconds-max", "-1"], "above 0"),
            ([*ANY_PORT, "--lease-seconds-max", "0.01"], "lease_seconds_min"),
            ([*ANY_PORT, "--sessions-max", "many"], "whole number"),
            ([*ANY_PORT, "--frame-size-bytes-max", "10"], "frame_size_bytes_max"),
            ([*ANY_PORT, "--data-dir", "/dev/null/x"], "/dev/null/x"),
            ([*ANY_PORT, "extra"], "extra"),
        ],
    )
    def test_what_cannot_be_is_told_in_one_line(
        self, options: list[str], saying: str
    ) -> None:
        """N4, N5: bad settings are exit code 2 and a line that says what to change."""
        result = ask_here("server", *options)
        assert result.exit_code == 2
        assert result.out == ""
        assert len(result.err.splitlines()) == 1, result.err
        assert saying in result.err

    def test_other_machines_are_let_in_if_that_is_said(self) -> None:
        """N4: --insecure is how one accepts it."""
        with Running("server", "--bind", "tcp://0.0.0.0:0", "--insecure") as server:
            port = server.out.next().rpartition(":")[2]
            url = f"leaderserver://127.0.0.1:{port}"
            assert ask_here("leaders", "--url", url).exit_code == 0
            assert server.end().exit_code == 0


class TestRestart:
    @pytest.mark.proves("N2")
    def test_epochs_rise_over_a_restart(self, tmp_path: Path) -> None:
        """E2, N2: a data directory carries epochs into the next server."""
        epochs: list[int] = []
        for _ in range(2):
            data_dir = ("--data-dir", str(tmp_path / "data"))
            with Running("server", *ANY_PORT, *LONG_LEASES, *data_dir) as server:
                url = server.out.next().removeprefix("serving ")
                with Running(
                    *("elect", "flights", "a:1", "--url", url),
                    *("--", "sh", "-c", "echo $LODESTAR_EPOCH; exec sleep 600"),
                ) as elected:
                    epochs.append(int(elected.out.next()))
                    assert elected.end().exit_code == 0
                assert server.end().exit_code == 0
        assert epochs[0] < epochs[1]


class TestCurve:
    """Keys, roles, and what the command line makes of a refusal (N4)."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        """Return a directory with keys, and an allow-list that names some of them."""
        lines: list[str] = []
        roles = {"operator": "admin", "reader": "observe", "collector": "contend:f*"}
        for name in ("server", "stranger", *roles):
            result = ask_here("keygen", name, "--dir", str(tmp_path), "--json")
            assert result.exit_code == 0
            if name in roles:
                public_key = json.loads(result.out)["public_key"]
                lines += [
                    f"[clients.{name}]",
                    f"public_key = {json.dumps(public_key)}",
                    f'roles = ["{roles[name]}"]',
                ]
        (tmp_path / "allow.toml").write_text("\n".join(lines))
        return tmp_path

    @staticmethod
    def options(keys: Path, name: str) -> tuple[str, ...]:
        """Return how a client of that name proves who it is."""
        return (
            *("--curve-public-key-file", str(keys / f"{name}.key")),
            *("--curve-secret-key-file", str(keys / f"{name}.key_secret")),
            *("--curve-server-key-file", str(keys / "server.key")),
        )

    @pytest.mark.proves("N5")
    def test_everybody_may_do_what_the_allow_list_says(self, keys: Path) -> None:
        """N4, N5: who is refused gets exit code 4, in time, and a line."""
        with Running(
            *("server", *ANY_PORT, *LONG_LEASES),
            *("--curve-public-key-file", str(keys / "server.key")),
            *("--curve-secret-key-file", str(keys / "server.key_secret")),
            *("--allow-list", str(keys / "allow.toml")),
        ) as server:
            url = ("--url", server.out.next().removeprefix("serving "))
            collector = self.options(keys, "collector")
            reader = self.options(keys, "reader")
            operator = self.options(keys, "operator")

            with Running(
                *("elect", "flights", "a:1", *url, *collector),
                *("--", "sh", "-c", "echo leading; exec sleep 600"),
            ) as elected:
                elected.out.until("leading")
                result = ask_here(
                    "leader", "flights", "--field", "address", *url, *reader
                )
                assert (result.exit_code, result.out) == (0, "a:1\n")
                for refused in (
                    ask_here("revoke", "flights", *url, *reader),
                    ask_here("leaders", *url, *self.options(keys, "stranger")),
                    ask_here("leaders", *url),
                    run(
                        *("elect", "orders", "a:1", *url, *collector, "--", "true"),
                    ),
                    run("elect", "flights", "a:1", *url, *reader, "--", "true"),
                ):
                    assert refused.exit_code == 4, refused.err
                    assert refused.out == ""
                    assert "Traceback" not in refused.err
                    assert "refused" in refused.err.splitlines()[-1]
                assert elected.process.poll() is None
                result = ask_here("revoke", "flights", *url, *operator)
                assert result.exit_code == 0, result.err
                assert elected.result().exit_code == 1

            wrong_server_key = list(operator)
            wrong_server_key[-1] = str(keys / "stranger.key")
            result = ask_here("leaders", *url, *wrong_server_key)
            assert result.exit_code in (4, 5)
            assert len(result.err.splitlines()) == 1
            server.end()

    def test_a_secret_key_that_others_can_read_is_refused(self, keys: Path) -> None:
        """N4: exit code 2, and the line names the file, not what is in it."""
        secret_file = keys / "operator.key_secret"
        os.chmod(secret_file, 0o644)  # noqa: PTH101 - as a user would
        url = ("--url", "leaderserver://127.0.0.1:1")
        result = ask_here("leaders", *url, *self.options(keys, "operator"))
        assert result.exit_code == 2
        assert str(secret_file) in result.err
        assert len(result.err.splitlines()) == 1
