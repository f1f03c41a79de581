"""The manifests under examples/kubernetes: their configuration loads, and they scale by metrics that there are."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from wastegate import site
from wastegate.core.fleet import Replica, ReplicaState
from wastegate.gateway.tally import Report, exposition

FOLDER = Path(__file__).parent.parent / "examples" / "kubernetes"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))}


def configuration() -> str:
    """The wastegate.toml within gateway.yaml."""
    lines = TEXTS["gateway.yaml"].partition("wastegate.toml: |\n")[2].splitlines()
    end = next(at for at, line in enumerate(lines) if line and not line.startswith("    "))
    return textwrap.dedent("\n".join(lines[:end]))


def test_the_gateways_configuration_loads_and_names_each_pod_there_may_be() -> None:
    gateway = site.parse(configuration(), "gateway.yaml", environ={"WASTEGATE_ADMIN_TOKEN": "t"}).gateway
    assert gateway.levers.batching.on
    assert [replica.name for replica in gateway.replicas] == [f"vllm-{number}" for number in range(4)]
    most = {re.search(r"max(?:Replica(?:Count|s)): (\d+)", TEXTS[name])[1] for name in ("keda.yaml", "hpa.yaml")}  # type: ignore[index]
    assert most == {str(len(gateway.replicas))}
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", TEXTS["vllm.yaml"])
    assert grace is not None
    assert int(grace[1]) > gateway.timers.total


def test_they_scale_by_metrics_that_the_gateway_has() -> None:
    had = exposition(Report(), (ReplicaState(Replica("a", "")),))
    for name in ("keda.yaml", "hpa.yaml"):
        asked = set(re.findall(r"sum\((\w+)\)", TEXTS[name]))
        assert asked == {"wastegate_in_flight_calls", "wastegate_waiting_calls"}
        assert all(re.search(rf"^{metric}\b", had, flags=re.M) for metric in asked), name


def test_every_document_says_what_it_is() -> None:
    for name, text in TEXTS.items():
        for document in text.split("\n---\n"):
            plain = [line for line in document.splitlines() if not line.startswith("#")]
            assert plain[0].startswith("apiVersion: "), name
            assert plain[1].startswith("kind: "), name
            assert not any("\t" in line for line in plain), name
