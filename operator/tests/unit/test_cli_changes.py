"""`qsync diff`: each difference of two specifications, and the effect of an omission."""

from pathlib import Path

import pytest

from qsync_cli.changes import ManifestChange, changes_of, secret_changes
from qsync_cli.diff import documents_of
from qsync_cli.failure import Failure


def space(*fields: str, **more: object) -> dict[str, object]:
    return {"name": "s", "format": [{"name": field} for field in fields], **more}


def test_equal_specifications_have_no_differences() -> None:
    spec = {"replicas": 3, "spaces": [space("a")]}
    assert changes_of(spec, dict(spec)) == []


def test_scalars_additions_and_omissions_are_listed() -> None:
    old = {"replicas": 3, "archive": {"url": "file:///a"}}
    new = {"replicas": 5, "tls": {"clients": "Off"}}
    found = changes_of(old, new)
    assert list(map(str, found)) == [
        "- spec.archive: {url: file:///a}",
        "~ spec.replicas: 3 -> 5",
        "+ spec.tls: {clients: Off}",
    ]


def test_items_are_compared_by_name_not_by_position() -> None:
    old = {"spaces": [space("a", "b"), {"name": "t"}]}
    new = {"spaces": [{"name": "t", "isSync": False}, space("a", "b")]}
    assert changes_of(old, new) == [ManifestChange("spec.spaces[t].isSync", None, False)]


@pytest.mark.parametrize(
    ("prune", "effect"),
    [
        (False, "the database keeps the field, if it exists, unless the space has prune: true"),
        (True, "it is removed, because the space has prune: true"),
    ],
)
def test_an_omitted_field_has_an_effect(prune: bool, effect: str) -> None:
    found = changes_of({"spaces": [space("a", "b")]}, {"spaces": [space("a", prune=prune)]})
    omitted = [one for one in found if one.new is None]
    assert omitted == [ManifestChange("spec.spaces[s].format[b]", {"name": "b"}, None, effect)]


def test_omitted_users_and_spaces_are_kept() -> None:
    old = {"users": [{"name": "ada"}], "spaces": [space("a")]}
    effects = [one.effect for one in changes_of(old, {"users": [], "spaces": []})]
    assert effects == ["the database keeps the space and its rows", "the database keeps the user"]


def test_other_content_of_a_stored_secret_is_a_change_without_its_value() -> None:
    old = {"ann": {"password": "one"}, "ben": {"password": "two"}, "gone": {"password": "three"}}
    new = {"ann": {"password": "four"}, "ben": {"password": "two"}, "new": {"password": "five"}}
    assert [str(one) for one in secret_changes(old, new)] == [
        "~ secrets[ann]: stored content -> new content"
    ]


def test_mistakes_of_a_file_for_kubernetes_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    head = "apiVersion: qsync.dev/v1alpha1\nkind: QsyncCluster\nmetadata: {name: orders}\n"
    file.write_text(f"{head}spec: {{replicas: 0}}\n---\nkind: Pod\n")
    with pytest.raises(Failure, match="has 2 mistakes") as refused:
        documents_of(file)
    assert "spec.replicas 0: it must be at least 1" in str(refused.value)
    file.write_text(f"{head}---\nkind: Secret\nmetadata: {{name: a}}\n---\n")
    assert [one["kind"] for one in documents_of(file)] == ["QsyncCluster", "Secret"]
