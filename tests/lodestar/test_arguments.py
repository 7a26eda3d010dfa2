from __future__ import annotations

import re
from pathlib import Path

import pytest

from haservices import HAConfig
from lodestar.__main__ import main, make_parser
from lodestar.arguments import load_config
from lodestar.server import server_config
from lodestar.state_node import node_config
from lodestar.verbs import split_command
from queryablestate import NodeConfig
from tests.lodestar.running import Running


VERBS = (
    "server",
    "backup",
    "restore-backup",
    "leaders",
    "leader",
    "watch",
    "watch-store",
    "contenders",
    "sessions",
    "status",
    "revoke",
    "expire",
    "transfer",
    "elect",
    "standby",
    "proxy",
    "node",
    "gateway",
    "sql",
    "get",
    "states",
    "scan",
    "count",
    "export",
    "operator-state",
    "nodes",
    "drop-state",
    "forget-job",
    "forget-node",
    "adopt",
    "rescale",
    "drain",
    "snapshot",
    "restore",
    "keygen",
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine that runs the tests reaches them."""
    monkeypatch.chdir(tmp_path)
    for name in ("LODESTAR_URL", "LODESTAR_CONFIG", "LODESTAR_CLUSTER_ID"):
        monkeypatch.delenv(name, raising=False)


def config_of(*arguments: str) -> HAConfig:
    """Return what a verb would open, given *arguments*."""
    return load_config(make_parser().parse_args(arguments))


@pytest.mark.proves("N5")
class TestNameService:
    """Every verb is told its name service in the same ways (N5)."""

    def test_the_url_option(self) -> None:
        """N5: --url names the name service."""
        config = config_of("leaders", "--url", "leaderserver://10.0.0.5:5170")
        assert config == HAConfig(url="leaderserver://10.0.0.5:5170")

    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """N5: LODESTAR_URL does as well."""
        monkeypatch.setenv("LODESTAR_URL", "zookeeper://10.0.0.5:2181")
        assert config_of("leaders").url == "zookeeper://10.0.0.5:2181"

    def test_the_configuration_file(self, tmp_path: Path) -> None:
        """N5: --config FILE does as well, with every other setting in it."""
        file = tmp_path / "prod.toml"
        file.write_text(
            'url = "leaderserver://h:1"\ncluster_id = "prod"\nlease_seconds = 0.4\n'
        )
        config = config_of("leaders", "--config", str(file))
        assert config == HAConfig(
            url="leaderserver://h:1", cluster_id="prod", lease_seconds=0.4
        )

    def test_an_option_outweighs_environment_and_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N5: the nearer to the call, the stronger."""
        file = tmp_path / "lodestar.toml"
        file.write_text('url = "leaderserver://file:1"\ncluster_id = "file"\n')
        monkeypatch.setenv("LODESTAR_CLUSTER_ID", "environment")
        config = config_of("leaders", "--url", "leaderserver://option:1")
        assert config.url == "leaderserver://option:1"
        assert config.cluster_id == "environment"

    def test_every_setting_has_an_option(self) -> None:
        """N5: credentials and timeouts can be given too."""
        config = config_of(
            "elect",
            *("job", "address", "--url", "leaderserver://h:1", "--cluster-id", "c"),
            *("--connect-timeout-seconds", "1", "--session-timeout-seconds", "2"),
            *("--lease-seconds", "0.3", "--confirm-timeout-seconds", "4"),
            *("--curve-public-key-file", "p", "--curve-secret-key-file", "s"),
            *("--curve-server-key-file", "k"),
        )
        assert config == HAConfig(
            url="leaderserver://h:1",
            cluster_id="c",
            connect_timeout_seconds=1.0,
            session_timeout_seconds=2.0,
            lease_seconds=0.3,
            confirm_timeout_seconds=4.0,
            curve_public_key_file="p",
            curve_secret_key_file="s",
            curve_server_key_file="k",
        )
        config = config_of(
            *("status", "--url", "zookeeper://h:1", "--zookeeper-auth-file", "a"),
            *("--zookeeper-tls-ca-file", "ca", "--zookeeper-tls-cert-file", "c"),
            *("--zookeeper-tls-key-file", "k"),
        )
        assert config == HAConfig(
            url="zookeeper://h:1",
            zookeeper_auth_file="a",
            zookeeper_tls_ca_file="ca",
            zookeeper_tls_cert_file="c",
            zookeeper_tls_key_file="k",
        )


@pytest.mark.proves("N5")
class TestEnvironment:
    """What the environment says of a verb's own options, and of what is none (N5)."""

    def test_a_server_is_configured_by_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N5: containers have an environment and no command line of their own."""
        monkeypatch.setenv("LODESTAR_NODE_DATA_DIR", "/data")
        monkeypatch.setenv("LODESTAR_NODE_CONNECTIONS_MAX", "7")
        monkeypatch.setenv("LODESTAR_NODE_NOT_DURABLE", "true")
        monkeypatch.setenv("LODESTAR_NODE_INSECURE", "false")
        monkeypatch.setenv("LODESTAR_SERVER_DATA_DIR", "/server")
        config = node_config(make_parser(["node"]).parse_args(["node"]))
        assert config == NodeConfig(
            data_dir="/data", connections_max=7, is_durable=False
        )
        server = server_config(make_parser(["server"]).parse_args(["server"]))
        assert server.data_dir == "/server"

    def test_an_option_outweighs_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """N5: the nearer to the call, the stronger."""
        monkeypatch.setenv("LODESTAR_NODE_DATA_DIR", "/data")
        arguments = make_parser(["node"]).parse_args(["node", "--data-dir", "D"])
        assert node_config(arguments).data_dir == "D"

    @pytest.mark.parametrize(
        ("name", "text", "saying"),
        [
            ("LODESTAR_NODE_CONNECTIONS_MAX", "many", "--connections-max"),
            ("LODESTAR_NODE_INSECURE", "maybe", "LODESTAR_NODE_INSECURE"),
            ("LODESTAR_ULR", "leaderserver://h:1", "did you mean LODESTAR_URL?"),
            ("LODESTAR_NODE_DATADIR", "/d", "did you mean LODESTAR_NODE_DATA_DIR?"),
        ],
    )
    def test_a_mistake_is_told_in_one_line(
        self,
        name: str,
        text: str,
        saying: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """N5: as one on the command line would be."""
        monkeypatch.setenv(name, text)
        assert main(["node", "--data-dir", "D", "--url", "embedded:"]) == 2
        error = capsys.readouterr().err
        assert saying in error
        assert len(error.splitlines()) == 1

    def test_what_is_ignored_is_told(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N5: a setting that is none; what others set is passed over in silence."""
        monkeypatch.setenv("LODESTAR_FOO", "1")
        monkeypatch.setenv("LODESTAR_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("LODESTAR_EPOCH", "7")
        config_of("leaders", "--url", "leaderserver://h:1")
        error = capsys.readouterr().err
        assert error == "lodestar: LODESTAR_FOO is no setting, and is ignored\n"

    def test_of_a_servers_own_names_it_is_told_likewise(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N5: but not of those that Kubernetes sets where a service is called so."""
        monkeypatch.setenv("LODESTAR_NODE_COLOUR", "blue")
        monkeypatch.setenv("LODESTAR_NODE_IP", "10.0.0.1")
        for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP_ADDR"):
            monkeypatch.setenv(f"LODESTAR_NODE_{name}", "1")
            monkeypatch.setenv(f"LODESTAR_NODE_HEADLESS_{name}", "1")
        monkeypatch.setenv("LODESTAR_SERVER_COLOUR", "red")  # of another process
        make_parser(["node"])
        assert capsys.readouterr().err == (
            "lodestar: LODESTAR_NODE_COLOUR is no setting, and is ignored\n"
            "lodestar: LODESTAR_NODE_IP is no setting, and is ignored\n"
        )


class TestBadUsage:
    """Bad usage is exit code 2 and one line that says what to change (N5)."""

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize(
        ("arguments", "saying"),
        [
            ([], "VERB"),
            (["lead"], "did you mean 'leader'?"),
            (["zzz"], "no verb 'zzz'"),
            (["--config", "F", "leaders"], "'lodestar leaders --config ...'"),
            (["leaders", "--jsn"], "did you mean --json? (see 'lodestar leaders --"),
            (["get", "job", "state", "-N1"], "a hyphen, put -- before it"),
            (["node", "--data-dri", "D"], "did you mean --data-dir?"),
            (["leaders", "--zzz"], "unknown option --zzz (see 'lodestar leaders --"),
            (["leaders"], "--url"),
            (["get", "job", "a/b", "N1", "--url", "leaderserver://h:1"], "state_name"),
            (["leaders", "extra"], "extra"),
            (["leaders", "--ur", "leaderserver://h:1"], "--ur"),
            (["leader"], "JOB"),
            (["leader", "a/b"], "without '/'"),
            (["leader", ""], "1 to 255 characters"),
            (["leader", "job", "--wait", "0"], "above 0"),
            (["leader", "job", "--wait", "nan"], "above 0"),
            (["leader", "job", "--wait", "1e12"], "at most 1e+09"),
            (["leader", "job", "--wait", "soon"], "'soon'"),
            (["leader", "job", "--json", "--field", "epoch"], "--field"),
            (["leaders"], "LODESTAR_URL"),
            (["leaders", "--url", "etcd://h:1"], "'leaderserver://'"),
            (["leaders", "--url", "leaderserver://h"], "host:port"),
            (["leaders", "--url", "zookeeper://h:99999"], "65535"),
            (["leaders", "--url", "leaderserver://h:1/x"], "no paths"),
            (["leaders", "--config", "missing.toml"], "missing.toml"),
            (
                ["status", "--url", "leaderserver://h:1", "--cluster-id", "a/b"],
                "cluster_id",
            ),
            (
                [
                    *("leaders", "--url", "leaderserver://h:1"),
                    *("--curve-public-key-file", "p"),
                ],
                "curve_secret_key_file",
            ),
            (["elect", "job", "address"], "after '--'"),
            (["elect", "job", "address", "--"], "after '--'"),
            (["elect", "job", "--", "true"], "ADDRESS"),
            (["elect", "job", "a\nb", "--", "true"], "printable"),
            (["elect", "job", "a" * 1025, "--", "true"], "1,024"),
            (["elect", "job", "a", "--", "no-such-command-here"], "no-such-command"),
            (["keygen"], "NAME"),
            (["get", "job"], "STATE"),
            (["get", "job", "state"], "KEY is wanted"),
            (["get", "a/b", "state", "key"], "without '/'"),
            (["get", "job", "state", "key", "--deadline", "0"], "above 0"),
            (["get", "job", "state", "key", "--start", "x"], "'x'"),
            (["scan", "job", "state", "--limit", "0"], "whole number from 1"),
            (["count", "job", "state"], "LODESTAR_URL"),
            (["drop-state", "job"], "STATE"),
            (["keygen", "a/b"], "--dir"),
        ],
    )
    def test_it_is_told_in_one_line(
        self,
        arguments: list[str],
        saying: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """N5: exit code 2, nothing on stdout, one line on stderr, no traceback."""
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert saying in captured.err
        assert len(captured.err.splitlines()) == 1
        assert captured.err.startswith("lodestar")

    @pytest.mark.proves("N5", "E4")
    @pytest.mark.parametrize(
        ("arguments", "seconds"),
        [
            (["elect", "j", "a", "--wait"], "1e10"),
            (["elect", "j", "a", "--grace-seconds"], "1e300"),
            (
                ["elect", "j", "a", "--health", "true", "--health-interval-seconds"],
                "inf",
            ),
            (
                ["elect", "j", "a", "--health", "true", "--health-timeout-seconds"],
                "1e10",
            ),
            (
                ["elect", "j", "a", "--health", "true", "--health-interval-seconds"],
                "1e-10",
            ),
            (["standby", "j", "--grace-seconds"], "1e10"),
        ],
    )
    def test_a_time_that_no_wait_takes_is_refused_at_once(
        self, arguments: list[str], seconds: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """
        N5: as "for ever" is written by some, or less than a nanosecond.

        Else `elect` ends with a traceback once it waits for its turn, its health check
        is never run again (E4), and `standby` fails when it is asked to end, with its
        driver killed instead of waited for.
        """
        url = (
            "--url",
            "leaderserver://127.0.0.1:1",
            "--connect-timeout-seconds",
            "0.1",
        )
        assert main([*arguments, seconds, *url, "--", "true"]) == 2
        error = capsys.readouterr().err
        assert repr(seconds) in error
        assert len(error.splitlines()) == 1

    @pytest.mark.parametrize("verb", VERBS)
    def test_help_is_no_wider_than_a_terminal(
        self,
        verb: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """What is longer is broken by the terminal, in the middle of a word."""
        monkeypatch.setenv("COLUMNS", "80")
        assert main([verb, "--help"]) == 0
        text, _, _ = capsys.readouterr().out.partition("\nexample:")
        assert [line for line in text.splitlines() if len(line) > 80] == []

    @pytest.mark.proves("N6")
    @pytest.mark.parametrize(
        "arguments",
        [
            ["leaders"],
            ["leader", "job"],
            ["watch", "job"],
            ["watch-store", "job"],
            ["contenders", "job"],
            ["sessions"],
            ["status"],
            ["revoke", "job"],
            ["expire", "session"],
            ["elect", "job", "address", "--", "true"],
            ["proxy"],
            ["node", "--data-dir", "D"],
            ["get", "job", "state", "key"],
            ["states"],
            ["scan", "job", "state"],
            ["count", "job", "state"],
            ["nodes"],
            ["drop-state", "job", "state", "--yes"],
            ["forget-job", "job", "--yes"],
            ["forget-node", "node"],
            ["adopt", "--control", "2f1c", "--force", "--yes"],
        ],
    )
    def test_an_embedded_service_is_refused_with_the_reason(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N6: another process cannot be looked into, and the line says so."""
        place = arguments.index("--") if "--" in arguments else len(arguments)
        arguments[place:place] = ["--url", "embedded:tests"]
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "inside one process" in error
        assert "leaderserver://host:port" in error
        assert len(error.splitlines()) == 1


@pytest.mark.shells
@pytest.mark.proves("N5")
class TestOrder:
    """Options and operands come in any order (N5)."""

    @pytest.mark.parametrize(
        ("typed", "operands"),
        [
            ("get J S --json K L", {"job": "J", "state": "S", "keys": ["K", "L"]}),
            ("get J --json S --start -2 -5", {"state": "S", "keys": ["-5"]}),
            ("get J S --json-key -- -K", {"keys": ["-K"], "json_key": True}),
            ("get J S --log-level=info K", {"keys": ["K"], "log_level": "info"}),
            ("watch-store J --json totals/", {"job": "J", "prefix": "totals/"}),
            ("states --json J", {"job": "J"}),
        ],
    )
    def test_operands_behind_an_option(
        self, typed: str, operands: dict[str, object]
    ) -> None:
        """A KEY behind ``--json`` was called one argument too many."""
        arguments = typed.split()
        parsed = vars(make_parser(arguments[:1]).parse_args(arguments))
        assert {name: parsed[name] for name in operands} == operands


class TestInterrupt:
    @pytest.mark.parametrize("module", ["lodestar.observe", "lodestar.running"])
    def test_while_it_is_loading(self, module: str) -> None:
        """Ctrl-C before the verb runs is one line, too, and no traceback."""
        script = (
            "import os, signal, sys\n"
            "from lodestar.__main__ import main\n"
            "class Interrupt:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            f"        if name == {module!r}:\n"
            "            os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Interrupt())\n"
            "sys.exit(main(['leaders', '--url', 'leaderserver://127.0.0.1:1']))\n"
        )
        with Running(python_arguments=("-c", script)) as verb:
            result = verb.result()
        assert (result.exit_code, result.err) == (1, "lodestar: interrupted")


class TestHelp:
    @pytest.mark.proves("N5")
    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_shows_an_example(
        self, verb: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Who asks for help sees how the verb is used, and the exit codes (N5)."""
        assert main([verb, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"example:\n  lodestar {verb}" in text
        assert "exit codes:" in text

    def test_the_list_of_verbs_is_complete(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """``lodestar --help`` names every verb with a line."""
        assert main(["--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        # A summary that is too long for one line goes on far to the right.
        listed = [line.split()[0] for line in lines if re.match(r" {4}\S", line)]
        assert listed == list(VERBS)

    def test_the_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        """``lodestar --version`` is one line."""
        assert main(["--version"]) == 0
        assert capsys.readouterr().out.startswith("lodestar ")


class TestSplitCommand:
    """The command of ``elect`` is taken as it stands (N7)."""

    def test_only_the_first_separator_is_ours(self) -> None:
        """N7: a ``--`` of the command's own stays in it."""
        assert split_command(["elect", "j", "a", "--", "sh", "-c", "x", "--", "y"]) == (
            ["elect", "j", "a"],
            ["sh", "-c", "x", "--", "y"],
        )

    def test_without_a_separator_there_is_no_command(self) -> None:
        """N7: what is not after ``--`` is ours."""
        assert split_command(["elect", "j", "a"]) == (["elect", "j", "a"], [])
