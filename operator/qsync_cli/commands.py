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
        "start",
        "local.power:start",
        "Start a cluster that was stopped, and wait until it is Ready.",
        ("qsync local start orders",),
    ),
    LazyCommand(
        "stop",
        "local.power:stop",
        "Stop all members of a cluster, and keep everything else: `spec.hibernate`.",
        ("qsync local stop orders",),
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
        "Stop the processes of a cluster, and delete its files unless they are retained.",
        (
            "qsync local delete orders --yes",
            "qsync local delete orders --keep-data",
        ),
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
        "demo",
        "demo:demo",
        "Start a local cluster with sample data, and offer its console and its live view.",
        ("qsync demo",),
    ),
    LazyCommand(
        "apply",
        "apply:apply",
        "Create or update a cluster from a manifest, and wait until it is Ready.",
        (
            "qsync apply -f docs/examples/three-nodes.yaml",
            "qsync apply -f docs/examples/three-nodes.yaml --dry-run",
            "kubectl qsync apply -f docs/examples/three-nodes.yaml",
        ),
    ),
    LazyCommand(
        "diff",
        "diff:diff",
        "Show what `qsync apply` would change, and change nothing.",
        (
            "qsync diff -f docs/examples/three-nodes.yaml",
            "kubectl qsync diff -f orders.yaml",
        ),
    ),
    LazyCommand(
        "list",
        "listing:list_clusters",
        "List clusters: those of this machine, and those on Kubernetes if it is configured.",
        (
            "qsync list",
            "qsync list -o json",
        ),
    ),
    LazyCommand(
        "start",
        "power:start",
        "Start a cluster that was stopped, and wait until it is Ready.",
        ("qsync start orders",),
    ),
    LazyCommand(
        "stop",
        "power:stop",
        "Stop all members of a cluster, and keep everything else: `spec.hibernate`.",
        ("qsync stop orders",),
    ),
    LazyCommand(
        "scale",
        "scale:scale",
        "Change the number of members, one at a time and never below a quorum.",
        ("qsync scale orders --replicas 5",),
    ),
    LazyCommand(
        "destroy",
        "destroy:destroy",
        "Remove a cluster. Its data is kept or deleted, as `storage.retention` demands.",
        (
            "qsync destroy orders",
            "qsync destroy orders --delete-data --yes",
        ),
    ),
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
        "chaos",
        "proof.chaos:chaos",
        "Kill the leader at intervals, under a workload that records the outcome of each write.",
        (
            "qsync chaos orders --kill-leader --every 5s --ledger chaos.jsonl",
            "qsync chaos orders --kill-leader --no-workload",
        ),
    ),
    LazyCommand(
        "verify",
        "proof.verify:verify",
        "Compare a ledger of writes with the rows of every member.",
        (
            "qsync verify chaos.jsonl",
            "qsync verify own.jsonl orders --space orders",
        ),
    ),
    LazyCommand(
        "status",
        "status:status",
        "Show the members of a cluster and its problems, or the status of one node.",
        (
            "qsync status orders",
            "qsync status --address 127.0.0.1:20001",
            "kubectl qsync status orders -n shop",
        ),
    ),
    LazyCommand(
        "promote",
        "promote:promote",
        "Make a member the leader: by switchover, or by nomination without a leader.",
        ("qsync promote orders orders-1",),
    ),
    LazyCommand(
        "switchover",
        "switchover:switchover",
        "Move leadership to another member without losing a write.",
        ("qsync switchover orders",),
    ),
    LazyCommand(
        "fence",
        "fence:fence",
        "Fence a member: it votes and acknowledges but cannot lead.",
        ("qsync fence orders orders-0",),
    ),
    LazyCommand(
        "unfence",
        "unfence:unfence",
        "Unfence a member.",
        ("qsync unfence orders orders-0",),
    ),
    LazyCommand(
        "register",
        "register:register",
        "Register an anonymous member: it gets a replica id, and its log is retained.",
        ("qsync register catalogue catalogue-reader-0",),
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
        ("qsync snapshot orders",),
    ),
    LazyCommand(
        "logs",
        "logs:logs",
        "Print the log of a member, or of all members.",
        (
            "qsync logs orders orders-0 -f",
            "kubectl qsync logs -n shop",
        ),
    ),
    LazyCommand(
        "events",
        "events:events",
        "Print the events of a cluster, oldest first.",
        (
            "qsync events orders -f",
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
        "Print user, password and addresses for the application.",
        ("qsync credentials orders -o json",),
    ),
    LazyCommand(
        "rollbacks",
        "rollbacks:rollbacks",
        "Print the rows that members truncated from their logs after a failover.",
        ("qsync rollbacks orders",),
    ),
    LazyCommand(
        "pause",
        "annotate:pause",
        "Pause the operator for a cluster. Failover continues.",
        ("qsync pause orders",),
    ),
    LazyCommand(
        "resume",
        "annotate:resume",
        "Resume a paused cluster.",
        ("qsync resume orders",),
    ),
    LazyCommand(
        "restart",
        "annotate:restart",
        "Restart all members one at a time, the leader last.",
        ("qsync restart orders",),
    ),
    LazyCommand(
        "replace",
        "replace:replace",
        "Replace a member: delete its volume and pod, so that it joins again.",
        (
            "qsync replace orders orders-1",
            "kubectl qsync replace orders-1",
        ),
    ),
    LazyCommand(
        "audit",
        "runs:audit",
        "Audit the archive and the journals for lost writes. Exit code 1 unless the audit passes.",
        (
            "qsync audit orders",
            "qsync audit orders --ledger ledger.jsonl",
            "kubectl qsync audit --no-wait",
        ),
    ),
    LazyCommand(
        "audits",
        "audits:audits",
        "List audits with their verdicts, oldest first.",
        ("qsync audits orders",),
    ),
    LazyCommand(
        "report",
        "audits:report",
        "Print the location of the report of an audit.",
        ("qsync report orders",),
    ),
    LazyCommand(
        "compact",
        "runs:compact",
        "Fold the confirmed rows of the archive into a verified snapshot and Parquet tables.",
        (
            "qsync compact orders",
            "qsync compact orders --delete-older-than 30d",
            "kubectl qsync compact --dry-run",
        ),
    ),
    LazyCommand(
        "bundle",
        "bundle:bundle",
        "Write objects, status, events and logs to one archive, without Secrets.",
        ("qsync bundle orders",),
    ),
    LazyCommand(
        "cat",
        "cat:cat",
        "Print the rows of log and snapshot files, and report damage.",
        ("qsync cat 00000000000000000000.xlog -o json",),
    ),
    LazyCommand(
        "force-confirm",
        "force:force_confirm",
        "Continue without lost voters, and keep all rows of the best survivor.",
        ("qsync force-confirm orders --lost orders-1 --disks-destroyed",),
    ),
    LazyCommand(
        "force-rollback",
        "force:force_rollback",
        "Continue without lost voters, and keep only confirmed rows of the best survivor.",
        ("qsync force-rollback orders --lost orders-1 --disks-destroyed",),
    ),
    LazyCommand(
        "bench",
        "bench:bench",
        "Measure the throughput and latency of quorum-synchronous writes.",
        (
            "qsync bench orders",
            "qsync bench 127.0.0.1:3301 --password SECRET",
        ),
    ),
)
