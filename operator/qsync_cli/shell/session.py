"""Commands of the console become requests to a client, and their outcomes become text.

state           command      next state
-----------     ----------   --------------------------------------------------
outside         begin        inside
outside         a write      outside; `retry` is possible after an unknown one
inside          a write      inside; a refused statement changes nothing
inside          commit       outside, with the outcome
inside          rollback     outside
inside          a lost one   outside: the cluster rolls the transaction back
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from qsync_cli.data import following, tail
from qsync_cli.data.connecting import Endpoint
from qsync_cli.data.reading import iterator_of, named
from qsync_cli.data.schema import document_of
from qsync_cli.data.values import (
    code_name,
    json_of,
    operation_of,
    row_of,
    table_of,
    value_of,
)
from qsync_cli.output import plain_table, shortened
from qsync_cli.shell.completion import WATCHED
from qsync_cli.shell.grammar import VERBS, ShellCommand, SyntaxFailed
from qsync_client import (
    Committed,
    FirstUse,
    Outcome,
    QsyncError,
    Refused,
    RequestKey,
    RolledBack,
    Row,
    Space,
    StatementFailed,
    SyncClient,
    SyncTransaction,
    TransactionLost,
    Unknown,
)
from qsync_client.keys import GivenKey
from qsync_node.format.body import FIRST_USER_SPACE

PAGE_ROWS = 100
ANSWER_CHARACTERS_MAX = 1000
"""Length of the text of a failed command."""
KeyedWrite = Callable[[GivenKey], Outcome]


class Leave(Exception):  # noqa: N818  # a request of the user
    """The user leaves the console."""


class FailedRequest(Exception):  # noqa: N818  # an answer
    """A command had no effect, or its outcome is unknown; the text is the answer.

    A text may contain a name of any length and with any characters: it is shortened and escaped.
    """

    def __init__(self, text: str, is_unknown: bool = False) -> None:
        super().__init__(shortened(text, ANSWER_CHARACTERS_MAX))
        self.is_unknown = is_unknown


@dataclass(slots=True)
class ShellSession:
    """The state of a console.

    Attributes:
        client: client of the cluster.
        endpoint: addresses and credentials, for `watch`.
        is_json: whether rows are shown as JSON.
        spaces: spaces of users, for completion.
    """

    client: SyncClient
    endpoint: Endpoint
    is_json: bool = False
    spaces: list[Space] = field(default_factory=list)
    _transaction: SyncTransaction | None = None
    _unknown: tuple[RequestKey, KeyedWrite] | None = None
    _page: tuple[ShellCommand, bytes] | None = None

    @property
    def is_in_transaction(self) -> bool:
        return self._transaction is not None

    def read_schema(self) -> None:
        """Read the spaces that completion offers."""
        self.spaces = [
            one for one in self.client.schema() if one.id >= FIRST_USER_SPACE and one.indexes
        ]

    def run(self, command: ShellCommand) -> Iterable[str]:
        """Run a command and return the text to show, which may arrive over time.

        Raises:
            Leave: the user leaves.
            Failed: the command had no effect, or its outcome is unknown.
            SyntaxFailed: an argument is invalid.
            typer.BadParameter: a value is invalid.
            QsyncError: a request failed.
        """
        if command.verb == "watch":
            return self._watch(command.words[0])
        try:
            return [getattr(self, f"_{command.verb}")(command)]
        except TransactionLost as error:
            self._end()
            raise FailedRequest(f"rolled back: {error}; begin again") from error
        except StatementFailed as error:
            raise FailedRequest(
                f"{_refusal(error.outcome)}; the transaction is still open"
            ) from error

    def close(self) -> None:
        """Roll an open transaction back."""
        if self._transaction is not None:
            self._end()

    # --- reads ----------------------------------------------------------------------------------

    def _get(self, command: ShellCommand) -> str:
        space, key = named(command.words[0]), [value_of(word) for word in command.words[1:]]
        index = named(command.options.get("index", "0"))
        if self._transaction is not None:
            row = self._transaction.get(space, key, index=index)
        else:
            row = self.client.get(
                space, key, index=index, linearizable="linearizable" in command.options
            )
        return "no row" if row is None else self._shown([row])

    def _select(self, command: ShellCommand, after: bytes = b"") -> str:
        text = command.options.get("limit", str(PAGE_ROWS))
        if not text.isdigit() or not int(text):
            raise SyntaxFailed(f"--limit {text} is no number from 1")
        limit = int(text)
        space, *key = command.words
        parts = [value_of(word) for word in key]
        index = named(command.options.get("index", "0"))
        iterator = iterator_of(command.options.get("iterator", ""), key)
        if self._transaction is not None:
            rows = self._transaction.select(
                named(space), parts, index=index, iterator=iterator, limit=limit
            )
            return self._shown(rows)
        outcome = self.client.select(
            named(space), parts, index=index, iterator=iterator, limit=limit, after=after,
            linearizable="linearizable" in command.options, fetch_position=True,
        )  # fmt: skip
        if not isinstance(outcome, Committed):
            raise FailedRequest(_refusal(outcome))
        has_more = len(outcome.tuples) == limit and bool(outcome.position)
        self._page = (command, outcome.position) if has_more else None
        return self._shown(outcome.tuples) + ("\n-- more" if has_more else "")

    def _more(self, command: ShellCommand) -> str:
        if self._page is None:
            raise FailedRequest("no more rows: begin with `select`")
        return self._select(*self._page)

    def _count(self, command: ShellCommand) -> str:
        space, *key = command.words
        source = self.client if self._transaction is None else self._transaction
        rows = source.count(
            named(space),
            [value_of(word) for word in key],
            index=named(command.options.get("index", "0")),
            iterator=iterator_of(command.options.get("iterator", ""), key),
        )
        return str(rows)

    def _spaces(self, command: ShellCommand) -> str:
        self.read_schema()
        lines = [
            [one.name, str(one.id), ", ".join(field.name for field in one.fields)]
            for one in self.spaces
        ]
        return plain_table(["SPACE", "ID", "FIELDS"], lines)

    def _describe(self, command: ShellCommand) -> str:
        self.read_schema()
        wanted = named(command.words[0])
        space = next((one for one in self.client.schema() if wanted in (one.name, one.id)), None)
        if space is None:
            raise FailedRequest(f"space {wanted} not found: `spaces` lists the visible ones")
        document = document_of(space)
        if self.is_json:
            return json_of(document)
        fields = [[one["name"], one["type"], _yes(one["is_nullable"])]
                  for one in document["fields"]]  # fmt: skip
        indexes = [[one["name"], one["type"], _yes(one["is_unique"]), ", ".join(one["fields"])]
                   for one in document["indexes"]]  # fmt: skip
        return "\n\n".join(
            (
                plain_table(["FIELD", "TYPE", "NULLABLE"], fields),
                plain_table(["INDEX", "TYPE", "UNIQUE", "FIELDS"], indexes),
            )
        )

    def _watch(self, word: str) -> Iterator[str]:
        try:
            yield from self._watched(word)
        except KeyboardInterrupt:
            return

    def _watched(self, word: str) -> Iterator[str]:
        if word in WATCHED:
            for value in self.client.watch(word):
                yield json_of(value)
            return
        names = tail.Names(self.client)
        ids = names.ids_of([named(word)])
        position = following.Position(tail.confirmed_index(self.client))
        for changes in following.follow(self.endpoint, position, ids, None):
            for line in tail.lines_of(changes, names, ids):
                yield json_of(line)

    # --- writes ---------------------------------------------------------------------------------

    def _put(self, command: ShellCommand) -> str:
        space, row = named(command.words[0]), row_of(command.words[1])
        if self._transaction is not None:
            return self._pending(self._transaction.replace(space, row))
        return self._write(lambda key: self.client.replace(space, row, request_key=key))

    def _insert(self, command: ShellCommand) -> str:
        space, row = named(command.words[0]), row_of(command.words[1])
        if self._transaction is not None:
            return self._pending(self._transaction.insert(space, row))
        return self._write(lambda key: self.client.insert(space, row, request_key=key))

    def _update(self, command: ShellCommand) -> str:
        words = list(command.words[1:])
        if "set" not in words[1:] or words[-1] == "set":
            raise SyntaxFailed(f"usage: update {VERBS['update'].usage}")
        place = words.index("set", 1)
        key = [value_of(word) for word in words[:place]]
        changes = [operation_of(word) for word in words[place + 1 :]]
        space, index = named(command.words[0]), named(command.options.get("index", "0"))
        if self._transaction is not None:
            return self._pending(self._transaction.update(space, key, changes, index=index))
        return self._write(
            lambda request: self.client.update(
                space, key, changes, index=index, request_key=request
            )
        )

    def _delete(self, command: ShellCommand) -> str:
        space, key = named(command.words[0]), [value_of(word) for word in command.words[1:]]
        index = named(command.options.get("index", "0"))
        if self._transaction is not None:
            return self._pending(self._transaction.delete(space, key, index=index), "deleted ")
        return self._write(
            lambda request: self.client.delete(space, key, index=index, request_key=request)
        )

    def _retry(self, command: ShellCommand) -> str:
        if self._unknown is None:
            raise FailedRequest("no write has an unknown outcome")
        return self._send(*self._unknown, is_retry=True)

    def _write(self, write: KeyedWrite) -> str:
        return self._send(self.client.new_key(), write, is_retry=False)

    def _send(self, key: RequestKey, write: KeyedWrite, *, is_retry: bool) -> str:
        earlier = None if is_retry else self._unknown
        self._unknown = (key, write)  # until the outcome is known, also after Ctrl-C
        try:
            outcome = write(key if is_retry else FirstUse(key))
        except QsyncError:
            if not is_retry:
                self._unknown = earlier  # nothing was sent
            raise
        if isinstance(outcome, Unknown):
            raise FailedRequest(
                f"unknown: {outcome.reason}; `retry` repeats it with the same key, "
                + "/".join(map(str, key)),
                is_unknown=True,
            )
        self._unknown = earlier
        if not isinstance(outcome, Committed):
            raise FailedRequest(_refusal(outcome))
        if not outcome.tuples and not is_retry:
            return "nothing changed: no row has this key"
        return f"committed at {outcome.at}"

    @staticmethod
    def _pending(rows: Sequence[Row], change: str = "") -> str:
        return f"pending: {change}{json_of(list(rows[0]))}" if rows else "nothing changed"

    # --- transactions ---------------------------------------------------------------------------

    def _begin(self, command: ShellCommand) -> str:
        if self._transaction is not None:
            raise FailedRequest("a transaction is open: commit or roll back first")
        transaction = self.client.transaction()
        transaction.__enter__()
        self._transaction = transaction
        self._page = None  # its position is of a read outside
        return "transaction begun"

    def _commit(self, command: ShellCommand) -> str:
        transaction = self._open_transaction()
        self._transaction = None
        transaction.__exit__(None, None, None)
        outcome = transaction.outcome
        if isinstance(outcome, Committed):
            return f"committed at {outcome.at}" if outcome.at else "committed: nothing was written"
        if isinstance(outcome, Unknown):
            text = f"unknown: {outcome.reason}; read the rows before you repeat it"
            raise FailedRequest(text, is_unknown=True)
        raise FailedRequest(_refusal(outcome))

    def _rollback(self, command: ShellCommand) -> str:
        self._open_transaction()
        self._end()
        return "rolled back"

    def _open_transaction(self) -> SyncTransaction:
        if self._transaction is None:
            raise FailedRequest("no transaction is open: begin one")
        return self._transaction

    def _end(self) -> None:
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        transaction.__exit__(Leave, Leave(), None)

    # --- the console itself ---------------------------------------------------------------------

    def _output(self, command: ShellCommand) -> str:
        if command.words[0] not in ("table", "json"):
            raise SyntaxFailed(f"usage: output {VERBS['output'].usage}")
        self.is_json = command.words[0] == "json"
        return f"rows are shown as {command.words[0]}"

    def _help(self, command: ShellCommand) -> str:
        if command.words:
            verb = VERBS.get(command.words[0])
            if verb is None:
                raise SyntaxFailed(f"unknown verb {command.words[0]}: `help` lists the verbs")
            return f"{verb.name} {verb.usage}\n{verb.help}"
        lines = [f"{verb.name:<9} {verb.help}" for verb in VERBS.values()]
        return "\n".join([*lines, "`help VERB` shows its usage. Values are JSON, or else text."])

    def _exit(self, command: ShellCommand) -> str:
        raise Leave

    def _shown(self, rows: Sequence[Row]) -> str:
        if not rows:
            return "no rows"
        if self.is_json:
            return "\n".join(
                json_of(row.as_dict() if row.space is not None else list(row)) for row in rows
            )
        space = rows[0].space
        names = [one.name for one in space.fields] if space is not None else []
        return plain_table(*table_of(rows, names))


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _refusal(outcome: Outcome | None) -> str:
    match outcome:
        case RolledBack(reason):
            return f"rolled back: {reason}; it has no effect"
        case Refused(code, reason):
            return f"refused: {reason} ({code_name(code)})"
        case Unknown(reason):
            return f"unknown: {reason}"
    return "no answer"
