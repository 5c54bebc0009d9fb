"""The table of all commands, each with its function, its short help and examples."""

from qsync_cli.lazy import LazyCommand

LOCAL = (
    LazyCommand(
        "apply",
        "local.apply:apply",
        "Create or update a local cluster, and wait until it is Ready.",
        ("qsync local apply -f docs/examples/three-nodes.yaml",),
    ),
    LazyCommand(
        "status",
        "local.status:status",
        "Show local clusters: leader, followers with their lag, problems, last failover.",
        (
            "qsync local status orders",
            "qsync local status orders -o json",
            "qsync local status orders --watch",
        ),
    ),
    LazyCommand(
        "scale",
        "local.scale:scale",
        "Change the number of members, one at a time and never below a quorum.",
        ("qsync local scale orders --replicas 5",),
    ),
    LazyCommand(
        "credentials",
        "local.credentials:credentials",
        "Print user, password and addresses for the application.",
        ("qsync local credentials orders -o json",),
    ),
    LazyCommand(
        "journals",
        "local.journals:journals",
        "List the journals of a cluster: brokers, write head, and state.",
        ("qsync local journals events",),
    ),
    LazyCommand(
        "logs",
        "local.logs:logs",
        "Print the log of a member, or of all members with their names.",
        ("qsync local logs orders orders-0 -f",),
    ),
    LazyCommand(
        "events",
        "local.events:events",
        "Print the events of the supervisor, oldest first.",
        ("qsync local events orders",),
    ),
    LazyCommand(
        "audit",
        "local.audit:audit",
        "Audit the archive and the journals for lost writes. Exit code 1 unless the audit passes.",
        (
            "qsync local audit orders",
            "qsync local audit orders --ledger ledger.jsonl",
        ),
    ),
    LazyCommand(
        "compact",
        "local.compact:compact",
        "Fold the confirmed rows of the archive into a verified snapshot and Parquet tables.",
        (
            "qsync local compact orders",
            "qsync local compact orders --delete-older-than 30d",
        ),
    ),
    LazyCommand(
        "audits",
        "local.audits:audits",
        "List audits with their verdicts, oldest first.",
        ("qsync local audits orders",),
    ),
    LazyCommand(
        "report",
        "local.audits:report",
        "Print the location of the report of an audit.",
        ("qsync local report orders",),
    ),
    LazyCommand(
        "delete",
        "local.delete:delete",
        "Stop the processes of a cluster and delete its files.",
        (
            "qsync local delete orders --yes",
            "qsync local delete orders --keep-data",
        ),
    ),
)
JOURNALS = (
    LazyCommand(
        "list",
        "journals.listing:listing",
        "List journals: replication, primary, brokers, first store.",
        ("qsync journals list --local events",),
    ),
    LazyCommand(
        "append",
        "journals.append:append",
        "Append a file as a whole, or standard input, and print its offsets.",
        ("qsync journals append orders/eu order.json --local events",),
    ),
    LazyCommand(
        "read",
        "journals.read:read",
        "Write the bytes of a journal to standard output.",
        ("qsync journals read orders/eu -f --local events",),
    ),
    LazyCommand(
        "fragments",
        "journals.fragments:fragments",
        "List the fragments of a journal: offset, length, persistence, SHA-1, codec.",
        ("qsync journals fragments orders/eu --local events",),
    ),
    LazyCommand(
        "edit",
        "journals.edit:edit",
        "Change specifications in $EDITOR; a concurrent change is refused.",
        ("qsync journals edit -l prefix=orders/ --local events",),
    ),
    LazyCommand(
        "delete",
        "journals.delete:delete",
        "Delete a journal, its registers, and its bytes at the brokers.",
        ("qsync journals delete orders/eu --local events",),
    ),
    LazyCommand(
        "reset-head",
        "journals.reset_head:reset_head",
        "Resume a journal whose last bytes are lost, at its write head.",
        ("qsync journals reset-head orders/eu --local events",),
    ),
    LazyCommand(
        "accept-loss",
        "journals.accept_loss:accept_loss",
        "Accept that bytes of a journal are lost, because the last disk with all of them is gone.",
        ("qsync journals accept-loss orders/eu --local events",),
    ),
    LazyCommand(
        "publish",
        "journals.publish:publish",
        "Publish a file as a whole, or standard input, and print its sequence.",
        ("qsync journals publish orders/eu order.json --wait --local events",),
    ),
    LazyCommand(
        "compact",
        "journals.compact:compact",
        "Merge small persisted fragments into ones of about `fragment.length`.",
        ("qsync journals compact --dry-run --local events",),
    ),
    LazyCommand(
        "prune",
        "journals.prune:prune",
        "Delete persisted fragments that are older than `fragment.retention` of their journal.",
        ("qsync journals prune --dry-run --local events",),
    ),
)
DATA = (
    LazyCommand(
        "get",
        "data.reading:get",
        "Print the row with a key of a unique index.",
        (
            "qsync get orders orders 1",
            "qsync get orders orders 1 --linearizable -o json",
        ),
    ),
    LazyCommand(
        "select",
        "data.reading:select",
        "Print rows in the order of an index, and the position of the next page.",
        (
            "qsync select orders orders --limit 20",
            "qsync select orders orders 10 --iterator GE -o json",
        ),
    ),
    LazyCommand(
        "count",
        "data.reading:count",
        "Print the number of rows of a space, or of a key.",
        ("qsync count orders orders",),
    ),
    LazyCommand(
        "put",
        "data.writing:put",
        "Insert a row, or replace the one with the same primary key.",
        (
            "qsync put orders orders '[1, \"alice\", 9.99]'",
            'qsync put orders orders \'{"id": 1, "customer": "alice"}\'',
        ),
    ),
    LazyCommand(
        "insert",
        "data.writing:insert",
        "Insert a row; it is refused if one has its primary key.",
        ("qsync insert orders orders '[2, \"bob\", 5]'",),
    ),
    LazyCommand(
        "update",
        "data.writing:update",
        "Change fields of one row.",
        ("qsync update orders orders 1 --set customer=bob --set total+=5",),
    ),
    LazyCommand(
        "delete",
        "data.writing:delete",
        "Delete one row.",
        ("qsync delete orders orders 1",),
    ),
    LazyCommand(
        "spaces",
        "data.schema:spaces",
        "List the spaces of users with their fields, and with --rows their number of rows.",
        ("qsync spaces orders --rows",),
    ),
    LazyCommand(
        "describe",
        "data.schema:describe",
        "Print the fields and indexes of a space.",
        ("qsync describe orders orders",),
    ),
    LazyCommand(
        "tail",
        "data.tail:tail",
        "Print confirmed changes as JSON lines, from an index of the log.",
        (
            "qsync tail orders",
            "qsync tail orders orders --from 43 --follow",
        ),
    ),
    LazyCommand(
        "export",
        "data.exporting:export",
        "Write the rows of a space as CSV, JSON lines or Parquet.",
        (
            "qsync export orders orders -o orders.csv",
            "qsync export orders orders --consistent -o orders.parquet",
        ),
    ),
    LazyCommand(
        "import",
        "data.importing:import_rows",
        "Write the rows of a CSV, JSON lines or Parquet file into a space.",
        (
            "qsync import orders orders orders.csv",
            "qsync import orders orders orders.csv --dry-run",
        ),
    ),
    LazyCommand(
        "query",
        "data.query:query",
        "Run one read-only SQL statement over the rows of a cluster.",
        (
            'qsync query orders "select customer, sum(total) from orders group by all"',
            'qsync query orders "select count(*) from history.orders" -o json',
        ),
    ),
)
COMMANDS = (
    LazyCommand(
        "sh",
        "shell.console:sh",
        "Open a console for the rows of a cluster.",
        (
            "qsync sh orders",
            "qsync sh orders -c 'get orders 1'",
        ),
    ),
    LazyCommand(
        "top",
        "top.screen:top",
        "Show members, latencies and failovers of a cluster, live. `q` quits.",
        (
            "qsync top orders",
            "kubectl qsync top orders -n shop",
        ),
    ),
    LazyCommand(
        "web",
        "web:web",
        "Print the address of the web page of a cluster, and open it in a browser.",
        (
            "qsync web orders",
            "qsync web orders --no-browser",
        ),
    ),
    *DATA,
    LazyCommand(
        "status",
        "status:status",
        "Show the members of a cluster and its problems, or the status of one node.",
        (
            "qsync status --local orders",
            "qsync status --address 127.0.0.1:20001",
            "kubectl qsync status orders -n shop",
        ),
    ),
    LazyCommand(
        "promote",
        "promote:promote",
        "Make a member the leader: by switchover, or by nomination without a leader.",
        ("qsync promote orders-1 --local orders",),
    ),
    LazyCommand(
        "switchover",
        "switchover:switchover",
        "Move leadership to another member without losing a write.",
        ("qsync switchover --local orders",),
    ),
    LazyCommand(
        "fence",
        "fence:fence",
        "Fence a member: it votes and acknowledges but cannot lead.",
        ("qsync fence orders-0 --local orders",),
    ),
    LazyCommand(
        "unfence",
        "unfence:unfence",
        "Unfence a member.",
        ("qsync unfence orders-0 --local orders",),
    ),
    LazyCommand(
        "register",
        "register:register",
        "Register an anonymous member: it gets a replica id, and its log is retained.",
        ("qsync register catalogue-reader-0 --local catalogue",),
    ),
    LazyCommand(
        "restore",
        "restore:restore",
        "Create a local cluster from an archive: its end, or its state at a time or an index.",
        ("qsync restore orders-2 --archive s3://bucket/orders --to-time 2026-01-31T12:00:00Z",),
    ),
    LazyCommand(
        "snapshot",
        "snapshot:snapshot",
        "Write snapshots now. Nodes also write them automatically as the log grows.",
        ("qsync snapshot --local orders",),
    ),
    LazyCommand(
        "logs",
        "logs:logs",
        "Print the log of a member, or of all members.",
        (
            "qsync logs orders-0 -f",
            "kubectl qsync logs -n shop",
        ),
    ),
    LazyCommand(
        "events",
        "events:events",
        "Print the events of a cluster and its pods.",
        (
            "qsync events",
            "kubectl qsync events -n shop",
        ),
    ),
    LazyCommand(
        "explain",
        "explain:explain",
        "Explain an error code, or a condition, reason or Event: meaning, outcome and action.",
        (
            "qsync explain 289",
            "qsync explain NameTaken",
        ),
    ),
    LazyCommand(
        "credentials",
        "credentials:credentials",
        "Print the Secret NAME-app.",
        ("qsync credentials -o json",),
    ),
    LazyCommand(
        "rollbacks",
        "rollbacks:rollbacks",
        "Print the rows that members truncated from their logs after a failover.",
        (
            "qsync rollbacks --local orders",
            "qsync rollbacks",
        ),
    ),
    LazyCommand(
        "pause",
        "annotate:pause",
        "Pause the operator for a cluster. Failover continues.",
        ("qsync pause --cluster orders",),
    ),
    LazyCommand(
        "resume",
        "annotate:resume",
        "Resume a paused cluster.",
        ("qsync resume --cluster orders",),
    ),
    LazyCommand(
        "restart",
        "annotate:restart",
        "Restart all members one at a time, the leader last.",
        ("qsync restart --cluster orders",),
    ),
    LazyCommand(
        "replace",
        "replace:replace",
        "Replace a member: delete its volume and pod, so that it joins again.",
        (
            "qsync replace orders-1 --cluster orders",
            "kubectl qsync replace orders-1",
        ),
    ),
    LazyCommand(
        "audit",
        "runs:audit",
        "Audit the archive of a cluster on Kubernetes. Exit code 1 unless it passes.",
        (
            "qsync audit --cluster orders",
            "kubectl qsync audit --no-wait",
        ),
    ),
    LazyCommand(
        "compact",
        "runs:compact",
        "Compact the archive of a cluster on Kubernetes. Exit code 1 on failure.",
        (
            "qsync compact --cluster orders",
            "kubectl qsync compact --dry-run",
        ),
    ),
    LazyCommand(
        "bundle",
        "bundle:bundle",
        "Write objects, status, events and logs to one archive, without Secrets.",
        ("qsync bundle --cluster orders",),
    ),
    LazyCommand(
        "cat",
        "cat:cat",
        "Print the rows of files like `tarantoolctl cat --show-system`, and report damage.",
        ("qsync cat 00000000000000000000.xlog -o json",),
    ),
    LazyCommand(
        "force-confirm",
        "force:force_confirm",
        "Continue without lost voters, and keep all rows of the best survivor.",
        ("qsync force-confirm --lost orders-1 --disks-destroyed --local orders",),
    ),
    LazyCommand(
        "force-rollback",
        "force:force_rollback",
        "Continue without lost voters, and keep only confirmed rows of the best survivor.",
        ("qsync force-rollback --lost orders-1 --disks-destroyed --local orders",),
    ),
    LazyCommand(
        "bench",
        "bench:bench",
        "Measure the throughput and latency of quorum-synchronous writes.",
        ("qsync bench 127.0.0.1:3301 --password SECRET",),
    ),
)
