"""Options and edited texts of `qsync journals`, without a cluster."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from qsync_broker.client import JournalClient, JournalCommit, ListedJournal
from qsync_broker.spec import JournalSpec
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals import access, edit
from qsync_cli.journals import append as append_command
from qsync_cli.journals.compact import compact
from qsync_cli.local.jobs import run_job

BROKER = "http://127.0.0.1:1"
LISTED = ListedJournal(JournalSpec("orders/eu"), 7, (), "", 0)


def refusal(work: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(Failure) as found:
        work(*arguments, **options)
    assert found.value.reason == FailureReason.INVALID
    return str(found.value)


def text_of(**changes: object) -> str:
    return yaml.safe_dump(
        [{"name": "orders/eu", "revision": 7, **LISTED.spec.row_fields(), **changes}]
    )


@pytest.mark.parametrize("text", ["foo", "0", "", "1 day", "-1h"])
def test_invalid_grace_is_refused_before_the_job(text: str) -> None:
    assert refusal(compact, grace=text, broker=BROKER) == (
        f"invalid --grace {text!r}: use a duration such as 24h, or 0s for none"
    )


def test_output_of_a_failed_job_is_not_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(Failure, match="failed with exit code 2: read") as found:
        run_job("compacting", "json.tool", [], True, lambda: False, None)
    assert list(tmp_path.iterdir()) == [temporary]
    assert "unrecognized arguments" in Path(str(found.value).rpartition(" ")[2]).read_text()


@pytest.mark.parametrize(
    ("starts", "extra"), [("starting Spark", "spark"), ("reading the archive", "audit")]
)
def test_missing_package_of_a_job_names_its_extra(starts: str, extra: str) -> None:
    with pytest.raises(Failure) as found:
        run_job("compacting", "absent_package", [], True, lambda: False, None, starts)
    assert found.value.reason == FailureReason.NOT_INSTALLED
    assert str(found.value).endswith(f"run `pip install '.[{extra}]'` in a checkout of Qsync")


@pytest.mark.parametrize(
    ("content", "cause"), [(None, "No such file or directory; set --ca"), ("x", "; set --ca or")]
)
def test_unusable_authorities_are_reported(tmp_path: Path, content: str | None, cause: str) -> None:
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_text(content)
    said = refusal(access.broker_access, "https://127.0.0.1:1", None, "", ca)
    assert said.startswith(f"the authorities of the brokers in {ca} cannot be used: ")
    assert cause in said
    assert access.broker_access(BROKER, None, "", ca).ca == ca  # not needed without TLS


@pytest.mark.parametrize("file", [None, Path("-")])
def test_standard_input_is_appended(
    file: Path | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def append(
        _: JournalClient, __: str, content: Iterator[bytes], **___: object
    ) -> JournalCommit:
        assert b"".join(content) == b"content"
        return JournalCommit(0, 7, b"", {})  # type: ignore[arg-type]  # registers are not printed

    monkeypatch.setattr(JournalClient, "append", append)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"content")))
    append_command.append("orders/eu", file, broker=BROKER)
    assert capsys.readouterr().out == "appended 7 bytes at 0\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            text_of(name="orders/us"),
            "a journal cannot be renamed: orders/us was not listed; restore the name",
        ),
        (text_of(flags="RW"), "flags: 'RW' is invalid; use one of O_RDONLY, O_WRONLY, O_RDWR"),
        (
            text_of()
            .replace("compression_codec: SNAPPY", "compression_codec: LZ4")
            .replace("compression_codec: NONE", "compression_codec: LZ4"),
            "fragment.compression_codec: 'LZ4' is invalid; use one of NONE, GZIP, ZSTANDARD",
        ),
        ("- name: orders/eu\n  flags: [\n", "the edited text is invalid: line 3: "),
    ],
)
def test_invalid_text_is_refused(text: str, sentence: str) -> None:
    assert sentence in refusal(edit._specs, text, {"orders/eu": LISTED})


@pytest.mark.parametrize("text", ["", "\n", "# comment\n", "[]", text_of()])
def test_text_without_a_change_changes_nothing(text: str) -> None:
    assert edit._specs(text, {"orders/eu": LISTED}) == []


def test_new_name_without_a_revision_is_a_new_journal() -> None:
    ((spec, revision),) = edit._specs(text_of(name="orders/us", revision=0), {"orders/eu": LISTED})
    assert (spec.name, revision) == ("orders/us", 0)
