"""The manifests and the Dockerfile of `deploy/` are valid, and fit the server that they start."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tokenmill.api.cli import make_parser

from .clients.environments import python_with

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SCHEMAS = Path(__file__).parent / "deploy_schemas"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
VALIDATOR = "kubernetes-validate==1.37.0"
VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: the oldest with the preStop hook `sleep`, and the newest of the validator."""
CUSTOM = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
END_SECONDS = 14
"""Of a shutdown, after --shutdown-timeout."""


def resources(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def only(kind: str) -> dict[str, Any]:
    """The only resource of a kind in all manifests."""
    [found] = [one for path in MANIFESTS for one in resources(path) if one["kind"] == kind]
    return found


def pod_templates(value: object) -> Iterator[dict[str, Any]]:
    """The pods' templates inside a custom resource."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "template":
                yield inner
            else:
                yield from pod_templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_templates(inner)


def validate(file: Path, version: str) -> subprocess.CompletedProcess[str]:
    flags = ["--strict", "--kubernetes-version", version]
    command = [str(python_with(VALIDATOR)), "-m", "kubernetes_validate", *flags, str(file)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_follows_the_schemas_of_kubernetes(
    path: Path, version: str, tmp_path: Path
) -> None:
    core: list[dict[str, Any]] = []
    for one in resources(path):
        if one["kind"] in CUSTOM:
            jsonschema.Draft202012Validator(CUSTOM[one["kind"]]).validate(one)
            core += [
                {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
                | {"template": template}
                for template in pod_templates(one["spec"])
            ]
        else:
            core.append(one)
    file = tmp_path / "core.yaml"
    file.write_text(yaml.safe_dump_all(core))
    if core:
        done = validate(file, version)
        assert done.returncode == 0 and done.stdout.count("INFO") == len(core), done.stdout


@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        ("InferencePool", (), "extensionRef"),
        ("RayService", ("rayClusterConfig",), "gcsFaultTolerance"),
    ],
)
def test_a_schema_of_a_custom_resource_refuses_unknown_fields(
    kind: str, place: tuple[str, ...], name: str
) -> None:
    resource = only(kind)
    inner = resource["spec"]
    for part in place:
        inner = inner[part]
    inner[name] = {}
    with pytest.raises(jsonschema.ValidationError, match=name):
        jsonschema.Draft202012Validator(CUSTOM[kind]).validate(resource)


def test_the_core_schemas_refuse_unknown_fields(tmp_path: Path) -> None:
    deployment = only("Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readyProbe"] = {}
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(deployment))
    done = validate(file, VERSIONS[-1])
    assert done.returncode != 0 and "readyProbe" in done.stdout + done.stderr


def test_a_pod_has_the_time_that_its_server_needs_to_drain() -> None:
    pod = only("Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    options = make_parser().parse_args(["serve", *container["args"]])
    assert options.metrics_prefix == "vllm:"
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = before + options.shutdown_timeout + END_SECONDS
    assert pod["terminationGracePeriodSeconds"] > needed


def test_labels_and_ports_find_the_pods() -> None:
    deployment, pool = only("Deployment")["spec"], only("InferencePool")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    [container] = deployment["template"]["spec"]["containers"]
    [port] = container["ports"]
    assert only("Service")["spec"]["selector"] == labels
    assert pool["selector"]["matchLabels"] == labels
    assert only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert pool["targetPorts"] == [{"number": port["containerPort"]}]
    assert f"EXPOSE {port['containerPort']}\n" in (ROOT / "deploy/Dockerfile").read_text()


def test_the_ray_service_names_the_application_and_its_deployments() -> None:
    spec = only("RayService")["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    pytest.importorskip("ray.serve.schema").ServeDeploySchema.model_validate(config)
    [application] = config["applications"]
    assert application["import_path"] == "tokenmill.ray_serve:build"
    source = (ROOT / "src" / "ray_serve" / "application.py").read_text()
    assert "\ndef build(" in source
    workers = spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    for one in application["deployments"]:
        assert f"\nclass {one['name']}:" in source
        needed = one["graceful_shutdown_timeout_s"] + END_SECONDS
        assert spec["rayClusterDeletionDelaySeconds"] > needed
        assert workers["terminationGracePeriodSeconds"] > needed


def test_the_dockerfile_copies_what_exists_and_builds_the_wheel_as_make_does() -> None:
    text = re.sub(r"\\\n", "", (ROOT / "deploy/Dockerfile").read_text())
    commands = re.findall(r"^RUN (.*)$", text, re.MULTILINE)
    for command in commands:
        subprocess.run(["sh", "-n", "-c", command], check=True)
    wheel = re.search(r"^wheel:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert wheel is not None and wheel[1].replace("$(BIN)/", "") in commands
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
