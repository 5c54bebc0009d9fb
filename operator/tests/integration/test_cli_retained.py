"""Applies and restores under the name of a deleted cluster whose data is kept."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_testing.operator.local_clusters import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Yield a home with the files that `qsync destroy orders --keep-data` leaves."""
    folder = tmp_path / "home" / "orders"
    folder.mkdir(parents=True)
    (folder / "retained.json").write_text(json.dumps(manifest()))
    (folder / "state.json").write_text(json.dumps({"is_formed": True}))
    found = Home(tmp_path / "home")
    yield found
    found.close()


def manifest(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "orders"},
        "spec": spec,
    }


def test_restore_does_not_return_retained_data_instead(home: Home) -> None:
    said = home.refuse("restore", "orders", "--archive", "file:///archive")
    assert said == (
        "qsync: the data of a deleted cluster orders is retained: restore under another name, or "
        "delete that data with `qsync destroy orders --delete-data` (AlreadyExists)\n"
    )


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"bootstrap": {"fromArchive": {"url": "file:///archive"}}}, "spec.bootstrap"),
        ({"auth": {"username": "other"}}, "spec.auth.username"),
    ],
)
def test_apply_keeps_what_the_retained_data_determines(
    home: Home, tmp_path: Path, spec: dict[str, object], field: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(json.dumps(manifest(**spec)))
    said = home.refuse("local", "apply", "-f", file, "--no-wait", *words)
    assert said.startswith(
        f"qsync: cannot apply orders to its retained data: {field} cannot change"
    )
    assert said.endswith("or run `qsync destroy orders --delete-data` first (Refused)\n")
    assert not (home.directory / "orders" / "cluster.json").exists()
