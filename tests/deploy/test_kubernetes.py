"""The manifests for Kubernetes start what they say, with their keys and rights."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, final

import pytest
import yaml

from tests.deploy.serving import metrics_url, status_of
from tests.lodestar.running import Running, run


MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERBS = ("server", "proxy", "node", "gateway", "sql")
DRAIN_SECONDS = "LODESTAR_NODE_DRAIN_TIMEOUT"


def pod_of(verb: str) -> dict[str, Any]:
    """Return the pod that the manifest of *verb* describes."""
    text = (MANIFESTS / f"{verb}.yaml").read_text(encoding="utf-8")
    (pod,) = (
        document["spec"]["template"]["spec"]
        for document in yaml.safe_load_all(text)
        if "template" in document["spec"]
    )
    assert isinstance(pod, dict)
    return pod


@final
class Machine:
    """
    A directory in the place of the volumes of all pods.

    Args:
        directory: Which.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = directory / "made"
        for name in (*VERBS, "flights-job", "operator"):
            made = run("keygen", name, "--dir", str(self._made))
            assert made.exit_code == 0

    def settings_of(self, verb: str, server_url: str) -> dict[str, Any]:
        """Return the environment of the container of *verb*, once its pod is there."""
        pod = pod_of(verb)
        home = self._directory / verb
        for name in ("secret", "keys", "config", "data"):
            (home / name).mkdir(parents=True)
        for name in (f"{verb}.key", f"{verb}.key_secret", "server.key"):
            # As Kubernetes does for a group that may read.
            (home / "secret" / name).write_bytes((self._made / name).read_bytes())
            (home / "secret" / name).chmod(0o440)
        for source in MANIFESTS.glob("*.toml"):
            text = source.read_text(encoding="utf-8")
            text = re.sub(r"<public-key of keys/(.+?\.key)>", self._public_key, text)
            text = text.replace("leaderserver://lodestar-server:5170", server_url)
            (home / "config" / source.name).write_text(self._at(home, text))
        (first,) = pod["initContainers"]
        command = [self._at(home, word) for word in first["command"]]
        subprocess.run(command, check=True)
        (container,) = pod["containers"]
        assert container["args"] == [verb]
        return {
            entry["name"]: self._at(home, _value_of(entry, verb))
            for entry in container["env"]
        }

    def _public_key(self, found: re.Match[str]) -> str:
        text = (self._made / found[1]).read_text(encoding="utf-8")
        (key,) = re.findall(r'public-key = "(.+)"', text)
        assert isinstance(key, str)
        return key

    @staticmethod
    def _at(home: Path, text: str) -> str:
        text = re.sub(r"tcp://\*:\d+", "tcp://127.0.0.1:0", text)
        text = re.sub(r"^(\*|0\.0\.0\.0):\d+$", "127.0.0.1:0", text)
        return re.sub(r"(?<![\w.>-])/(keys|config|data|secret)/", rf"{home}/\1/", text)


def _value_of(entry: dict[str, Any], verb: str) -> str:
    if "value" in entry:
        return str(entry["value"])
    field = entry["valueFrom"]["fieldRef"]["fieldPath"]
    return {"metadata.name": f"lodestar-{verb}-0", "status.podIP": "127.0.0.1"}[field]


@pytest.mark.shells
def test_they_make_a_cluster_with_keys(tmp_path: Path) -> None:
    """Every pod is admitted by the others, its probes hold, and SIGTERM ends it."""
    machine = Machine(tmp_path)
    with Running("server", **machine.settings_of("server", "unused")) as server:
        url = server.out.next().removeprefix("serving ")
        with (
            Running("proxy", **machine.settings_of("proxy", url)) as proxy,
            Running("node", **machine.settings_of("node", url)) as node,
            Running("gateway", **machine.settings_of("gateway", url)) as gateway,
            Running("sql", **machine.settings_of("sql", url)) as sql,
        ):
            # Each is ready while those run that it asks.
            running = (sql, gateway, node, proxy)
            for process in running:
                process.out.until("serving ")
            for process in (*running, server):
                verb = process.arguments[0]
                (container,) = pod_of(verb)["containers"]
                serving = metrics_url(process)
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    path = container[probe]["httpGet"]["path"]
                    assert status_of(serving + path) == 200, (verb, probe)
                assert process.end().exit_code == 0


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_container_uses_is_there(verb: str) -> None:
    """Paths are mounted, volumes exist, and probes name a port."""
    pod = pod_of(verb)
    (container,) = pod["containers"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    for entry in container["env"]:
        if (value := str(entry.get("value", ""))).startswith("/"):
            assert "/" + value.split("/")[1] in mounted, entry
    manifest = (MANIFESTS / f"{verb}.yaml").read_text(encoding="utf-8")
    (workload,) = (
        document
        for document in yaml.safe_load_all(manifest)
        if "template" in document["spec"]
    )
    claims = workload["spec"].get("volumeClaimTemplates", [])
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in claims}
    for each in (container, *pod["initContainers"]):
        assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    env = {entry["name"]: str(entry.get("value")) for entry in container["env"]}
    assert env[f"LODESTAR_{verb.upper()}_METRICS"] == f"*:{ports['metrics']}"
    assert container["livenessProbe"]["httpGet"]["port"] == "metrics"


def test_node_has_the_time_to_give_its_key_groups_away() -> None:
    """Kubernetes waits for longer than the node does."""
    pod = pod_of("node")
    (container,) = pod["containers"]
    (drain,) = (
        entry["value"] for entry in container["env"] if entry["name"] == DRAIN_SECONDS
    )
    assert pod["terminationGracePeriodSeconds"] > int(drain)


def test_every_file_is_applied() -> None:
    """`kubectl apply -k` finds all of them, and nothing that is not there."""
    text = (MANIFESTS / "kustomization.yaml").read_text(encoding="utf-8")
    kustomization = yaml.safe_load(text)
    (generated,) = kustomization["configMapGenerator"]
    named = {"kustomization.yaml", *kustomization["resources"], *generated["files"]}
    assert named == {path.name for path in MANIFESTS.iterdir()}
