"""Write the krew manifest of `kubectl qsync` from the archives of a release.

    python deploy/release/krew.py VERSION URL FOLDER > qsync.yaml

krew downloads `URL/kubectl-qsync-VERSION-OS-ARCH.tar.gz` and compares its SHA-256 with the one in
the manifest. FOLDER contains the archives; the manifest lists each of them.
Source: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

import yaml

NAME = re.compile(
    r"kubectl-qsync-(?P<version>[^-]+)-(?P<os>linux|darwin)-(?P<arch>amd64|arm64)\.tar\.gz"
)
DESCRIPTION = """\
Shows the members, the leader and the quorum of Qsync clusters, performs switchovers, fences and
replacements of members, and starts audits, compactions and restores.
"""


def platform(archive: Path, version: str, url: str) -> dict[str, Any]:
    """Return the entry of one archive.

    Raises:
        ValueError: the name is not that of an archive of this version.
    """
    found = NAME.fullmatch(archive.name)
    if found is None or found["version"] != version:
        raise ValueError(f"{archive.name} is no archive of version {version}: build it again")
    return {
        "selector": {"matchLabels": {"os": found["os"], "arch": found["arch"]}},
        "uri": f"{url}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": "kubectl-qsync/kubectl-qsync",
    }


def manifest(version: str, url: str, folder: Path) -> dict[str, Any]:
    """Return the manifest for all archives in `folder`.

    Args:
        version: the version without a leading `v`.
        url: address of the folder from which krew downloads, without a trailing slash.
        folder: the archives.

    Raises:
        ValueError: the folder has no archive, or one of another version.
    """
    archives = sorted(folder.glob("kubectl-qsync-*.tar.gz"))
    if not archives:
        raise ValueError(f"{folder} has no kubectl-qsync-*.tar.gz: run `make binary`")
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "qsync"},
        "spec": {
            "version": f"v{version}",
            "homepage": url.partition("/releases/")[0],
            "shortDescription": "Manage Qsync database clusters",
            "description": DESCRIPTION,
            "platforms": [platform(archive, version, url) for archive in archives],
        },
    }


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        found = manifest(sys.argv[1], sys.argv[2].rstrip("/"), Path(sys.argv[3]))
    except ValueError as error:
        sys.exit(f"no krew manifest: {error}")
    yaml.safe_dump(found, sys.stdout, sort_keys=False)
