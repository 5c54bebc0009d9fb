"""The judgment of the connectors' results, and the table in docs/clients.md."""

from e2e.connectors.__main__ import BEGIN, END, PAGE
from e2e.connectors.matrix import CHECKS, CONNECTORS, OK, problems, table


def passing(name: str) -> dict[str, str]:
    connector = next(one for one in CONNECTORS if one.name == name)
    return {check: OK for check in CHECKS if check not in connector.absent}


def test_each_check_has_to_succeed() -> None:
    for connector in CONNECTORS:
        results = passing(connector.name)
        assert problems(connector, results) == []
        for name in results:
            others = {check: OK for check in results if check != name}
            assert problems(connector, others) == [f"{name}: not reached"]
            failed = {**results, name: "failed: a reason"}
            assert problems(connector, failed) == [f"{name}: failed: a reason"]


def test_result_of_an_absent_check_is_a_problem() -> None:
    connector = next(one for one in CONNECTORS if one.absent)
    name = next(iter(connector.absent))
    results = {**passing(connector.name), name: OK, "colour": OK}
    assert problems(connector, results) == [
        "colour: an unknown check",
        f"{name}: ok, but the connector should not have it",
    ]


def test_page_shows_the_matrix_of_connectors_that_all_pass() -> None:
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown == table({one.name: passing(one.name) for one in CONNECTORS})
