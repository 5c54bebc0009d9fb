"""User documentation agrees with the code."""

import os
import re
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import get_args

import pytest

from qsync_node.consensus.membership import REPLICAS_MAX
from qsync_node.engine.tuples import TUPLE_BYTES_MAX
from qsync_node.errors import ErrorCode, OrderRefusal
from qsync_node.explanations import ENGINE_CODES, EXPLANATIONS, ORDER_EXPLANATIONS, ErrorOutcome
from qsync_node.format.proofs import ORDER_SCHEME, admin_password
from qsync_node.server import admin, orders
from qsync_node.server.limits import LIMITS, size
from qsync_testing.paths import ROOT


def explanations_of(name: ErrorCode | OrderRefusal) -> str:
    """Return all meanings of a code or reason as one text."""
    codes = [e.meaning for e in EXPLANATIONS if e.code is name]
    return "; ".join([*codes, *(e.meaning for e in ORDER_EXPLANATIONS if e.reason is name)])


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_every_error_code_is_explained(code: ErrorCode) -> None:
    found = [explanation for explanation in EXPLANATIONS if explanation.code is code]
    assert found
    assert len({explanation.case for explanation in found}) == len(found)
    for explanation in found:
        assert explanation.meaning
        assert explanation.outcome in get_args(ErrorOutcome)
        assert explanation.action


def test_explanations_are_in_ascending_order() -> None:
    for codes in ([int(e.code) for e in EXPLANATIONS], list(ENGINE_CODES)):
        assert codes == sorted(codes)


def test_every_code_that_only_the_engine_returns_has_a_name() -> None:
    text = (ROOT / "node" / "qsync_node" / "engine" / "errors.py").read_text()
    numbers = re.findall(r"^([A-Z_]+): Final = (\d+)$", text, re.MULTILINE)
    assert {int(number): name for name, number in numbers} == ENGINE_CODES
    assert not ENGINE_CODES.keys() & set(ErrorCode)


def test_every_refusal_of_an_order_is_explained_with_its_http_status() -> None:
    explained = {e.reason: e.status for e in ORDER_EXPLANATIONS if e.reason is not None}
    assert explained == {reason: admin._refused_order(reason).status for reason in OrderRefusal}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (explanations_of(ErrorCode.SLAB_ALLOC_MAX), size(TUPLE_BYTES_MAX)),
        (explanations_of(ErrorCode.REPLICA_MAX), f"{REPLICAS_MAX} replicas"),
        (explanations_of(OrderRefusal.EXPIRED), f"{orders.CHALLENGE_S:.0f} seconds"),
        (explanations_of(OrderRefusal.TOO_MANY), f"{orders.TAKEN_MAX:,} orders"),
        (explanations_of(OrderRefusal.TOO_MANY), f"{orders.CHALLENGE_S:.0f} seconds"),
        (explanations_of(OrderRefusal.UNSIGNED), f"`{ORDER_SCHEME}`"),
    ],
)
def test_numbers_in_explanations_are_those_of_the_code(text: str, number: str) -> None:
    assert number in text


def test_each_limit_has_a_name_of_its_own() -> None:
    subjects = [limit.subject for limit in LIMITS]
    assert len(set(subjects)) == len(subjects)


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_files_of_the_reading_order_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    names = re.findall(r"\| `((?:server|consensus|transactions|engine|log)/[a-z_/]+\.py)` \|", text)
    assert len(names) > 8
    for name in names:
        assert (ROOT / "node" / "qsync_node" / name).exists(), name


def test_derived_admin_password_is_the_nodes_and_no_argument_holds_the_secret(
    tmp_path: Path,
) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    block = text.split("derive the password:")[1].split("```console\n")[1].split("```")[0]
    script = block.replace("$ kubectl", "kubectl").replace("\n$ ", "\n")
    secret = "a secret of the cluster"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\necho {b64encode(secret.encode()).decode()}\n")
    kubectl.chmod(0o700)
    done = subprocess.run(
        ["bash", "-xc", script],  # -x prints each command with its arguments on standard error
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == admin_password(secret)
    assert secret not in done.stderr
