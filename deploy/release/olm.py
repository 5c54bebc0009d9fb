"""Write the bundle of the operator for the Operator Lifecycle Manager (OLM).

    python deploy/release/olm.py VERSION REGISTRY FOLDER

The Deployment and the rules come from the chart qsync-operator as Helm renders it, and the
definitions from crds/, so that all ways to install the operator agree. REGISTRY is the prefix of
the images, for example `ghcr.io/example`.
Source: https://olm.operatorframework.io/docs/tasks/creating-operator-bundle/
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
NAME = "qsync-operator"
EXAMPLE = ROOT / "docs" / "examples" / "three-nodes.yaml"
IMAGES = {"image": NAME, "nodeImage": "qsync-node", "sparkImage": "qsync-spark"}
ANNOTATIONS = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": NAME,
    "operators.operatorframework.io.bundle.channels.v1": "stable",
    "operators.operatorframework.io.bundle.channel.default.v1": "stable",
}

BundleObject = dict[str, Any]


def rendered(version: str, registry: str) -> list[BundleObject]:
    """Return the objects of the chart.

    Raises:
        subprocess.CalledProcessError: Helm could not render the chart.
    """
    command = ["helm", "template", NAME, str(ROOT / "charts" / NAME), "--no-hooks"]
    for key, image in IMAGES.items():
        command += [
            "--set",
            f"{key}.repository={registry}/{image}",
            "--set",
            f"{key}.tag={version}",
        ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [one for one in yaml.safe_load_all(text) if one]


def deployment_of(objects: list[BundleObject]) -> BundleObject:
    """Return the Deployment of the operator."""
    return next(one for one in objects if one["kind"] == "Deployment")


def account_of(objects: list[BundleObject]) -> str:
    """Return the name of the operator's ServiceAccount."""
    return str(deployment_of(objects)["spec"]["template"]["spec"]["serviceAccountName"])


def bound_roles(objects: list[BundleObject], kind: str) -> list[BundleObject]:
    """Return the roles that bindings give to the operator's account.

    Args:
        objects: the objects of the chart.
        kind: `Role` or `ClusterRole`.
    """
    account = account_of(objects)
    names = {
        one["roleRef"]["name"]
        for one in objects
        if one["kind"] == f"{kind}Binding"
        and any(subject["name"] == account for subject in one["subjects"])
    }
    return [one for one in objects if one["kind"] == kind and one["metadata"]["name"] in names]


def permissions(objects: list[BundleObject], kind: str) -> list[BundleObject]:
    """Return the operator's rules of roles of `kind` in OLM's form."""
    rules = [rule for role in bound_roles(objects, kind) for rule in role["rules"]]
    return [{"serviceAccountName": account_of(objects), "rules": rules}]


def definitions() -> list[Path]:
    """Return the files of all CustomResourceDefinitions."""
    return sorted((ROOT / "crds").glob("*.yaml"))


def owned(path: Path) -> BundleObject:
    """Return how the bundle refers to the definition in the file `path`."""
    definition = yaml.safe_load(path.read_text())
    version = definition["spec"]["versions"][0]
    kind = definition["spec"]["names"]["kind"]
    return {
        "name": definition["metadata"]["name"],
        "kind": kind,
        "version": version["name"],
        "displayName": kind,
        "description": version["schema"]["openAPIV3Schema"].get("description", kind),
    }


def service_version(objects: list[BundleObject], version: str) -> BundleObject:
    """Return the ClusterServiceVersion: the objects and permissions that OLM installs."""
    deployment = deployment_of(objects)
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{NAME}.v{version}",
            "annotations": {
                "alm-examples": json.dumps([yaml.safe_load(EXAMPLE.read_text())]),
                "capabilities": "Deep Insights",
                "categories": "Database",
                "containerImage": deployment["spec"]["template"]["spec"]["containers"][0]["image"],
            },
        },
        "spec": {
            "displayName": "Qsync",
            "description": (ROOT / "README.md").read_text(),
            "version": version,
            "maturity": "alpha",
            "minKubeVersion": "1.30.0",
            "keywords": ["database", "replication", "quorum", "tarantool"],
            "provider": {"name": "Qsync"},
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {"owned": [owned(path) for path in definitions()]},
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": permissions(objects, "ClusterRole"),
                    "permissions": permissions(objects, "Role"),
                    "deployments": [
                        {
                            "name": deployment["metadata"]["name"],
                            "label": deployment["metadata"]["labels"],
                            "spec": deployment["spec"],
                        }
                    ],
                },
            },
        },
    }


def write(version: str, registry: str, folder: Path) -> None:
    """Write the bundle into `folder`, whose earlier content is deleted."""
    objects = rendered(version, registry)
    shutil.rmtree(folder, ignore_errors=True)
    manifests = folder / "manifests"
    manifests.mkdir(parents=True)
    (folder / "metadata").mkdir()

    def put(name: str, content: BundleObject) -> None:
        (manifests / name).write_text(yaml.safe_dump(content, sort_keys=False))

    put(f"{NAME}.clusterserviceversion.yaml", service_version(objects, version))
    # The operator binds these roles to the accounts of Spark's pods.
    bound = bound_roles(objects, "ClusterRole")
    for role in objects:
        if role["kind"] == "ClusterRole" and role not in bound:
            put(f"{role['metadata']['name']}.clusterrole.yaml", role)
    for path in definitions():
        shutil.copy(path, manifests)
    (folder / "metadata" / "annotations.yaml").write_text(
        yaml.safe_dump({"annotations": ANNOTATIONS}, sort_keys=False)
    )
    labels = "".join(f"LABEL {key}={value}\n" for key, value in ANNOTATIONS.items())
    (folder / "bundle.Dockerfile").write_text(
        f"FROM scratch\n{labels}COPY manifests /manifests/\nCOPY metadata /metadata/\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2].rstrip("/"), Path(sys.argv[3]))
