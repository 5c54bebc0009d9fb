"""`qsync explain` describes codes, reasons, conditions and actions by name or number."""

import json
import re

import pytest
from typer.testing import CliRunner, Result

from qsync_cli.explain import topics
from qsync_cli.failure import Failure
from qsync_cli.main import app
from qsync_node.errors import ErrorCode, OrderRefusal
from qsync_operator.api import reasons


def explained(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize("name", ["289", "0x121", "SYNC_QUEUE_FULL", "sync_queue_full"])
def test_number_and_name_of_a_code_print_the_same(name: str) -> None:
    result = explained(name)
    assert result.exit_code == 0, result.output
    assert result.output == explained("289").output
    lines = result.output.splitlines()
    assert lines[0] == "289 SYNC_QUEUE_FULL (error code)"
    assert [line.split()[0] for line in lines[1:]] == ["meaning", "outcome", "action"]


def test_code_with_two_meanings_prints_both() -> None:
    found = json.loads(explained("78", "-o", "json").output)
    assert [topic["outcome"] for topic in found] == ["refused", "unknown"]
    assert {topic["code"] for topic in found} == {78}


def test_reason_prints_each_of_its_uses() -> None:
    kinds = [topic["kind"] for topic in json.loads(explained("NameTaken", "-o", "json").output)]
    assert kinds == [
        "reason of a condition of a QsyncCluster",
        "reason of a condition of a QsyncAudit or QsyncCompaction",
        "Event of type Warning",
    ]


def test_condition_type_states_when_it_is_true() -> None:
    first = json.loads(explained("Stalled", "-o", "json").output)[0]
    assert first["kind"] == "condition of a QsyncCluster"
    assert first["trueWhen"].startswith("The newest specification is unusable")


def test_refused_action_has_its_remedy() -> None:
    (found,) = json.loads(explained("GrowStorageRefused", "-o", "json").output)
    assert "allowVolumeExpansion" in found["action"]


@pytest.mark.parametrize("name", [*ErrorCode.__members__, *OrderRefusal])
def test_every_code_and_refusal_of_an_order_is_explained(name: str) -> None:
    assert explained(name).exit_code == 0


def test_every_name_of_the_operator_is_explained() -> None:
    names = {topic.name for topic in topics()}
    for enum in (reasons.Reason, reasons.RunReason, reasons.FailoverReason, reasons.EventReason):
        assert set(map(str, enum)) <= names


def test_text_has_no_markdown() -> None:
    output = "".join(explained(topic.name).output for topic in topics())
    assert "docs/runbooks/QsyncNotWritable.md" in output
    assert not re.search(r"\]\(|`", output)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NameTakn", "has this name; try NameTaken"),
        ("99999", "has this name; docs/errors.md and docs/conditions.md list all names"),
    ],
)
def test_unknown_name_is_refused_with_a_way_to_find_it(name: str, sentence: str) -> None:
    result = explained(name)
    assert result.exit_code == 1
    assert isinstance(result.exception, Failure)
    assert str(result.exception).startswith(f"cannot explain {name}: ")
    assert str(result.exception).endswith(sentence)
