#!/usr/bin/env python3
"""The deploy test: chart, plain rendering, image and unit, as far as they can be tested without a cluster.

    python3 deploy/check.py target/debug/quipu [--write]

--write renders deploy/kubectl/quipu.yaml anew. What cannot run here is said with a line SKIPPED; with
QUIPU_REQUIRE_ALL=1 only the image may be skipped, since not every machine can build one. Not tested at all: scheduling,
the network and volume drivers, a real kubelet and its probes, admission.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import promql_parser
import yaml

import image

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy/chart"
TOOLS = ROOT / "target/tools"
HELM = os.environ.get("HELM") or str(TOOLS / "helm")
KUBERNETES = ["1.34", "1.35", "1.36", "1.37"]
CUSTOM = {"ServiceMonitor", "PrometheusRule"}


def run(*command, good=True, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if good and done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done


def check(is_good, what):
    if not is_good:
        sys.exit(f"FAILED: {what}")


def template(values, *more):
    text = run(HELM, "template", "quipu", CHART, "--namespace", "quipu", "-f", values, *more).stdout
    return text, [document for document in yaml.safe_load_all(text) if document]


def only(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    check(len(found) == 1, f"one {kind} {name or ''}, found {len(found)}")
    return found[0]


def schemas(objects, versions):
    for document in objects:
        if document["kind"] in CUSTOM:
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except Exception as error:
                sys.exit(f"FAILED: {document['kind']} {document['metadata']['name']} under {version}: {error}")


def usable_versions():
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    good = []
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(document, version, strict=True)
            good.append(version)
        except kubernetes_validate.SchemaNotFoundError:
            pass
    check(len(good) >= 3, f"schemas of three Kubernetes versions, found {good}")
    return good[-3:]


def assertions(objects, binary):
    """What the schemas do not know."""
    stateful = only(objects, "StatefulSet")
    spec = stateful["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    name = stateful["metadata"]["name"]
    check(spec["replicas"] == 1 and spec["updateStrategy"]["type"] == "RollingUpdate", "one writer, stopped before the next")
    claim = spec["volumeClaimTemplates"][0]
    check(claim["spec"]["accessModes"][0] in ("ReadWriteOncePod", "ReadWriteOnce"), "one writer per volume")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        check(container[probe]["httpGet"]["port"] in ports, f"{probe} asks a port that exists")
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    check(paths == ["/startedz", "/livez", "/readyz"], "each probe asks its own question")
    # Security.
    context = pod["securityContext"]
    check(context["runAsNonRoot"] and context["runAsUser"] == 65532 and context["fsGroup"] == 65532, "not root")
    check(context["seccompProfile"]["type"] == "RuntimeDefault", "seccomp")
    inner = container["securityContext"]
    check(inner["readOnlyRootFilesystem"] and not inner["allowPrivilegeEscalation"], "read-only root, no escalation")
    check(inner["capabilities"] == {"drop": ["ALL"]}, "no capabilities")
    check(pod["automountServiceAccountToken"] is False, "no token of the API")
    check(":latest" not in container["image"] and (":" in container["image"]), "a version")
    check("memory" in container["resources"]["limits"], "a limit of memory")
    # Names that must fit.
    services = {o["metadata"]["name"]: o for o in objects if o["kind"] == "Service"}
    headless = services[spec["serviceName"]]
    check(headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"], "headless service")
    labels = spec["template"]["metadata"]["labels"]
    selectors = [o["spec"]["selector"] for o in services.values()] + [spec["selector"]["matchLabels"]]
    selectors.append(only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    check(all(s.items() <= labels.items() for s in selectors), "every selector selects the pod")
    for service in services.values():
        check(all(port["targetPort"] in ports for port in service["spec"]["ports"]), "services lead to ports that exist")
    budget = only(objects, "PodDisruptionBudget")["spec"]
    check(budget["maxUnavailable"] >= 1, "a node can be drained")
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    check(mounts == {v["name"] for v in pod["volumes"]} | {claim["metadata"]["name"]}, "what is mounted exists")
    accounts = [o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"]
    check(pod["serviceAccountName"] in accounts or not accounts, "the account exists")
    policies = [o for o in objects if o["kind"] == "NetworkPolicy"]
    for policy in policies:
        check(policy["spec"]["policyTypes"] == ["Ingress", "Egress"], "deny by default, both ways")
        check(policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items(), "the policy selects the pod")
        for rule in policy["spec"]["ingress"]:
            check(rule.get("from") and rule.get("ports"), "no rule lets everybody in")
    # The settings are good for this very binary, and fit the pod.
    text = only(objects, "ConfigMap", name)["data"]["quipu.toml"]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        run(binary, "serve", "--config", file.name, "--check-config")
        settings = run(binary, "serve", "--config", file.name, "--print-config").stdout
    value = lambda key: next(l.split(" = ")[1].strip('"') for l in settings.splitlines() if l.startswith(f"{key} = "))
    seconds = lambda text: int(text[:-1]) if text.endswith("s") else sys.exit(f"{text} is not in seconds")
    grace = pod["terminationGracePeriodSeconds"]
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    check(grace > stop + 2 * seconds(value("drain_timeout")), "the pod is given the time that its end takes")
    startup = container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"]
    check(startup > seconds(value("lock_wait")), "a pod that waits for its volume is not killed for it")
    check(value("listen").endswith(f":{ports['grpc']}"), "the port of clients")
    check(value("metrics_listen").endswith(f":{ports['metrics']}"), "the port of probes")
    check(value("data_dir") in {mount["mountPath"] for mount in container["volumeMounts"]}, "the data lie on the volume")
    return stateful, text


def queries():
    """Every query is PromQL; that the series exist is the business of tests/tidy.rs."""
    alerts = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    found = [rule["expr"] for rule in rules]
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in found:
        query = query.replace("$__rate_interval", "5m").replace("$instance", ".*")
        try:
            promql_parser.parse(query)
        except Exception as error:
            sys.exit(f"FAILED: {query}: {error}")
    return len(found)


def refusals():
    """Values that the schema must refuse."""
    bad = ["image.tag=latest", "colour=red", "drainSeconds=0", "config.listen=0.0.0.0:1", "volume.size=big"]
    for value in bad:
        done = run(HELM, "template", "quipu", CHART, "--set", value, good=False)
        check(done.returncode != 0 and "schema" in done.stderr, f"the schema refuses {value}: {done.stderr}")


def plain(binary):
    """The rendering for kubectl is that of the chart."""
    path = ROOT / "deploy/kubectl/quipu.yaml"
    text, _ = template(CHART / "ci/default-values.yaml")
    text = (
        "# Made by: python3 deploy/check.py target/debug/quipu --write. Use: kubectl create namespace quipu;\n"
        "# kubectl apply -n quipu -f deploy/kubectl/quipu.yaml\n" + text
    )
    if "--write" in sys.argv:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    check(path.exists() and path.read_text() == text, "deploy/kubectl/quipu.yaml is not what the chart renders; use --write")


def compose(stateful):
    node = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["quipu"]
    check(node["read_only"] and node["cap_drop"] == ["ALL"] and node["user"] == "65532:65532", "compose: as in the chart")
    check(all(port.startswith("127.0.0.1:") for port in node["ports"]), "compose: this machine only")
    check(int(node["stop_grace_period"][:-1]) >= 45, "compose: time to end")


def main():
    binary = Path(sys.argv[1]).resolve()
    versions = usable_versions()
    found = []
    for values in sorted((CHART / "ci").glob("*.yaml")):
        run(HELM, "lint", "--strict", CHART, "-f", values)
        _, objects = template(values)
        schemas(objects, versions)
        found.append(assertions(objects, binary))
        print(f"{values.name}: {len(objects)} objects good under Kubernetes {', '.join(versions)}")
    stateful, toml = found[0]
    refusals()
    plain(binary)
    compose(stateful)
    print(f"{queries()} queries of dashboard and alerts parse")
    run("hadolint", ROOT / "deploy/Dockerfile")
    print("Dockerfile: good by hadolint")
    if shutil.which("systemd-analyze"):
        done = run("systemd-analyze", "verify", ROOT / "deploy/quipu.service", good=False)
        lines = [l for l in (done.stdout + done.stderr).splitlines() if "quipu.service" in l and "not executable" not in l]
        check(not lines, "\n".join(lines))
        print("unit: good by systemd-analyze")
    image.check(binary, stateful, toml)


if __name__ == "__main__":
    main()
