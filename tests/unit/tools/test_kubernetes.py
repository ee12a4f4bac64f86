"""The manifests for Kubernetes: made of what its API has, agreeing with each other, with settings that there are.

Nothing here runs them: nobody has, where Penstock is developed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.levels import FILE_VARIABLE
from penstock.config.resolve import resolve

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
SCHEMA: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "data" / "kubernetes.yaml").read_text(encoding="utf-8"))
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
OBJECTS = [
    (file.name, manifest)
    for file in sorted(FOLDER.glob("*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]
SUBMIT = (FOLDER / "submit.sh").read_text(encoding="utf-8")
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")


def mistakes(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Whatever in `value` is not as `schema` has it. Keys that it does not name are mistakes."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"]]
    if "enum" in schema:
        if value not in schema["enum"]:
            yield f"{where}: {value!r} is none of {schema['enum']}"
        return
    kind = TYPES[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{where}: {value!r} is no {schema['type']}"
        return
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not look like {schema['pattern']}"
    if isinstance(value, int) and value < schema.get("minimum", value):
        yield f"{where}: {value} is below {schema['minimum']}"
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from mistakes(one, schema["items"], f"{where}[{number}]")
    if isinstance(value, dict):
        yield from (f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value)
        if "one" in schema and sum(key in value for key in schema["one"]) != 1:
            yield f"{where}: exactly one of {schema['one']} is needed"
        for key, one in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("values"))
            if inner is None:
                yield f"{where}: {key} is unknown"
            else:
                yield from mistakes(one, inner, f"{where}.{key}")


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [manifest for _, manifest in OBJECTS if manifest["kind"] == kind]
    return dict(found)


def values_of(key: str) -> set[Any]:
    """Every value that stands under `key`, anywhere."""

    def walk(node: Any) -> Iterator[Any]:
        if isinstance(node, dict):
            for name, inner in node.items():
                if name == key:
                    yield inner
                yield from walk(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from walk(inner)

    return set(walk([manifest for _, manifest in OBJECTS]))


@pytest.mark.parametrize(("file", "manifest"), OBJECTS, ids=[f"{file}-{one['kind']}" for file, one in OBJECTS])
def test_is_made_of_what_the_api_has(file: str, manifest: dict[str, Any]) -> None:
    body = dict(manifest)
    kind = f"{body.pop('apiVersion')}/{body.pop('kind')}"
    assert list(mistakes(body, SCHEMA["kinds"][kind], kind)) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["spec", "strategy", "type"], "Recreated", "is none of"),
        (["spec", "replicas"], "1", "is no integer"),
        (["spec", "template", "spec", "restartPolicies"], "Always", "restartPolicies is unknown"),
        (["spec", "template", "spec", "containers", 0, "env", 0, "value"], "x", "exactly one of"),
        (["spec", "template", "spec", "volumes", 0, "name"], "Big_Name", "does not look like"),
        (["spec", "template"], {}, "spec is missing"),
    ],
)
def test_a_mistake_is_found(path: list[Any], value: Any, said: str) -> None:
    """What checks the manifests is itself of use."""
    broken = yaml.safe_load(yaml.safe_dump(of_kind("Deployment")))
    node = broken
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    del broken["apiVersion"], broken["kind"]
    assert any(said in one for one in mistakes(broken, SCHEMA["kinds"]["apps/v1/Deployment"]))


def test_settings_of_the_driver_are_ones_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(of_kind("ConfigMap")["data"]["penstock.yaml"])
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    settings = resolve()
    assert settings.spark_file["spark.master"].startswith("k8s://")
    assert settings.spark_file["spark.driver.memory"] == "2g"


def test_names_agree() -> None:
    driver = of_kind("Deployment")
    labels = driver["spec"]["template"]["metadata"]["labels"]
    service = of_kind("Service")
    settings = yaml.safe_load(of_kind("ConfigMap")["data"]["penstock.yaml"])
    namespace = "penstock"
    assert values_of("namespace") == {namespace}
    assert driver["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert settings["spark.driver.host"] == f"{service['metadata']['name']}.{namespace}.svc"
    assert settings["spark.kubernetes.namespace"] == namespace
    asked_for = {name.strip() for name in settings["penstock.control.hosts"].split(",")}
    assert {settings["spark.driver.host"], f"{settings['spark.driver.host']}.cluster.local"} <= asked_for
    claim = of_kind("PersistentVolumeClaim")["metadata"]["name"]
    assert values_of("claimName") == {claim}
    assert settings["spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoints.options.claimName"] == claim
    assert f".options.claimName={claim}" in SUBMIT
    account = of_kind("ServiceAccount")["metadata"]["name"]
    assert values_of("serviceAccountName") == values_of("serviceAccount") == {account}
    assert settings["spark.kubernetes.authenticate.serviceAccountName"] == account
    [image] = values_of("image")
    assert settings["spark.kubernetes.container.image"] == image
    assert image in SUBMIT


def test_the_image_holds_what_the_manifests_start() -> None:
    program = "/opt/penstock/job.py"
    assert f"COPY $JOB {program}" in DOCKERFILE
    assert of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"][-1] == program
    assert of_kind("SparkApplication")["spec"]["mainApplicationFile"] == f"local://{program}"
    assert f"local://{program}" in SUBMIT
    spark = version("pyspark")
    assert f"FROM apache/spark:{spark} AS spark" in DOCKERFILE
    assert of_kind("SparkApplication")["spec"]["sparkVersion"] == spark
    assert (ROOT / re.findall(r"ARG JOB=(\S+)", DOCKERFILE)[0]).is_file()


def test_no_secret_is_written_down() -> None:
    """A password is taken from a Secret by its name."""
    for name, manifest in OBJECTS:
        assert manifest["kind"] != "Secret", name
    for environment in (one for one in _environments() if "TOKEN" in one["name"] or "PASSWORD" in one["name"]):
        assert "secretKeyRef" in environment["valueFrom"]


def test_two_drivers_never_come_from_one_change() -> None:
    """Fencing would hold them apart; but a rolling update starts a second one each time for nothing."""
    spec = of_kind("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert of_kind("SparkApplication")["spec"]["restartPolicy"]["type"] == "OnFailure"


def test_the_script_is_a_script() -> None:
    assert subprocess.run(["sh", "-n", str(FOLDER / "submit.sh")], check=False).returncode == 0
    assert not [line for line in SUBMIT.splitlines() if line.startswith("  --") and not line.endswith(" \\")]


def _environments() -> Iterator[dict[str, Any]]:
    yield from of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    yield from of_kind("SparkApplication")["spec"]["driver"]["env"]
