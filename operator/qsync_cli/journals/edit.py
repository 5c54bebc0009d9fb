"""`qsync journals edit`: specifications in the editor of a person, and the check of the result."""

import difflib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from qsync_broker import codecs, duration, labels
from qsync_broker import spec as broker_spec
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import LocalOption, OutputOption
from qsync_cli.output import done

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient, ListedJournal
    from qsync_broker.spec import JournalSpec
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    SelectorOption,
    TokenOption,
    ask_broker,
)


def edit(
    selector: SelectorOption = "",
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Change specifications in $EDITOR; a concurrent change is refused."""

    async def find(client: "JournalClient") -> "list[ListedJournal]":
        return await client.journals(labels.parse_selector(selector))

    found: list[ListedJournal] = ask_broker(broker, local, token, ca, find)
    document = [
        {"name": one.spec.name, "revision": one.revision, **one.spec.row_fields()} for one in found
    ]
    if not found:
        which = f"no journal matches {selector!r}" if selector else "the cluster has no journal"
        text = f"{which}: nothing was changed; `qsync journals list` shows all journals"
        raise Failure(FailureReason.NOT_FOUND, text)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    edited = _edited(text)
    changes = _specs(edited, {one.spec.name: one for one in found}) if edited != text else []
    if not changes:
        done("nothing was changed", output, changed=0)
        return

    async def apply(client: "JournalClient") -> None:
        await client.apply(changes)

    ask_broker(broker, local, token, ca, apply)
    done(f"{len(changes)} changed", output, changed=len(changes))


def _edited(text: str) -> str:
    """Return a text after a person has edited it."""
    editor = os.environ.get("EDITOR", "vi")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journals.yaml"
        path.write_text(text)
        try:
            code = subprocess.call([*shlex.split(editor), str(path)])
        except OSError as error:
            raise Failure(
                FailureReason.NOT_INSTALLED, f"{editor} cannot be run: {error}; set EDITOR"
            ) from None
        if code:
            raise Failure(FailureReason.FAILED, f"{editor} ended with {code}: nothing was changed")
        return path.read_text()


def _specs(text: str, known: "dict[str, ListedJournal]") -> "list[tuple[JournalSpec, int]]":
    """Return the changed specifications of an edited text, with their revisions."""
    try:
        documents = yaml.safe_load(text) or []
        fields = {document.pop("name"): document for document in documents}
        revisions = {name: int(document.pop("revision", 0)) for name, document in fields.items()}
    except KeyError:
        text = "the edited text is invalid: a journal has no key `name`; restore it"
        raise Failure(FailureReason.INVALID, text) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        text = f"the edited text is invalid: line {line}: {error.problem}; correct this line"
        raise Failure(FailureReason.INVALID, text) from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        cause = str(error).splitlines()[0]
        raise Failure(FailureReason.INVALID, f"the edited text is invalid: {cause}") from None
    changes = []
    for name, document in fields.items():
        spec = broker_spec.JournalSpec.from_row(name, document)
        fields_of_spec = spec.row_fields()
        found = (
            _unknown_key(document, {"name": "", "revision": 0, **fields_of_spec})
            or _difference(document, fields_of_spec)
            or broker_spec.problem(spec)
        )
        if found:
            raise Failure(FailureReason.INVALID, f"{name}: {found}")
        if name not in known and revisions[name]:
            raise Failure(
                FailureReason.INVALID,
                f"a journal cannot be renamed: {name} was not listed; restore the name, or set its"
                " revision to 0 to create a journal",
            )
        if name not in known or known[name].spec != spec:
            changes.append((spec, revisions[name]))
    return changes


def _is_equal(given: object, known: object) -> bool:
    """Return whether two values are equal, or the same duration, as `24h` and `24h0m0s`."""
    if given == known or not isinstance(given, str) or not isinstance(known, str):
        return bool(given == known)
    try:
        return duration.parse_duration(given) == duration.parse_duration(known)
    except ValueError:
        return False


def _difference(given: object, known: object, field: str = "") -> str:
    """Return the first field of an edited document that has no valid value, or ""."""
    if not isinstance(given, dict) or not isinstance(known, dict):
        return "" if _is_equal(given, known) else f"{field}: {given!r} is invalid{_hint(field)}"
    inner = f"{field}." if field else ""
    for name in known:
        if name not in given:
            return f"{inner}{name}: is missing"
    for name, value in given.items():
        found = _difference(value, known[name], f"{inner}{name}")
        if found:
            return found
    return ""


def _hint(field: str) -> str:
    """Return the end of a sentence that lists the values of a field, if these are few."""
    values = {
        "flags": [one.name for one in broker_spec.JournalFlags if one],
        "fragment.compression_codec": [one.name for one in codecs.Codec],
    }.get(field)
    return f"; use one of {', '.join(values)}" if values else ""


def _unknown_key(given: object, known: object, field: str = "") -> str:
    """Return a sentence about the first key that no specification has, or ""."""
    if not isinstance(given, dict) or not isinstance(known, dict):
        return ""
    inner = f"{field}." if field else ""
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
            return f"{inner}{name}: is unknown; {hint}"
        found = _unknown_key(value, known[name], f"{inner}{name}")
        if found:
            return found
    return ""
