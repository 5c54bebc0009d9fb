"""Conversion of parameters: obvious values here, all others by typer."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from qsync_cli.parameters import CONTEXT, QuickCommand, converted


class Fruit(StrEnum):
    apple = "apple"


@pytest.mark.parametrize(
    ("value", "annotation", "limits", "found"),
    [
        ("a", str, {}, "a"),
        ("\udc80", str, {}, None),
        ("7", int, {}, 7),
        ("-7", int, {}, None),
        ("7", int, {"min": 8}, None),
        ("9", int, {"max": 8}, None),
        ("seven", int, {}, None),
        ("٧", int, {}, None),
        (7, int, {"min": 1}, 7),
        ("2.5", float, {"min": 0}, 2.5),
        (2, float, {}, 2.0),
        ("1e9", float, {}, None),
        ("inf", float, {}, None),
        ("apple", Fruit, {}, Fruit.apple),
        ("Apple", Fruit, {}, None),
        ("missing/file", Path, {}, Path("missing/file")),
        ("missing/file", Path, {"exists": True}, None),
        (("a", "b"), list[str], {}, ["a", "b"]),
        (("1", "b"), list[int], {}, None),
        ((), list[str], {}, []),
        ("yes", bool, {}, None),
    ],
)
def test_obvious_values_are_converted_and_others_left_to_typer(
    value: object, annotation: type, limits: dict[str, float], found: object
) -> None:
    assert converted(value, annotation, OptionInfo(**limits)) == found  # type: ignore[arg-type]  # the limits of one type


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["--count", "3"], 0, "3 apple None"),
        (["--count", "0"], 2, "Invalid value for '--count'"),
        (["--count", "many"], 2, "Invalid value for '--count'"),
        (["--fruit", "pear"], 2, "'pear' is not one of 'apple'"),
        (["a", "b"], 0, "1 apple ['a', 'b']"),
        (["-h"], 0, "Usage: fruits [OPTIONS] [NAME...]"),
        (["-h"], 0, "--count NUMBER"),
    ],
)
def test_command_converts_and_reports_like_typer(
    arguments: list[str], code: int, shown: str
) -> None:
    app = typer.Typer(rich_markup_mode=None)

    @app.command(cls=QuickCommand, context_settings=CONTEXT, options_metavar="[OPTIONS]")
    def fruits(
        name: Annotated[list[str] | None, typer.Argument()] = None,
        count: Annotated[int, typer.Option(min=1)] = 1,
        fruit: Fruit = Fruit.apple,
    ) -> None:
        typer.echo(f"{count} {fruit} {name}")

    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, shown in done.output) == (code, True), done.output
