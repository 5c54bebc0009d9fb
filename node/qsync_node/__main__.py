"""`python -m qsync_node --config FILE`: run one node in the foreground.

On SIGTERM or SIGINT the node transfers leadership, stops cleanly and exits with 0. After a failed
write it no longer trusts its memory, and restarts from disk automatically. If a person must act, it
prints the cause in one sentence and exits with 1. An invalid configuration exits with 2.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from qsync_node.errors import QsyncError
from qsync_node.server.admin import Admin
from qsync_node.server.config import ConfigError, NodeConfig, load_config, split_address
from qsync_node.server.logs import Log
from qsync_node.server.loop import NodeServer
from qsync_node.storage.errors import DiskError

HANDOVER_TIMEOUT_S = 5.0
RESTART_WAIT_S = 0.2


async def _live(config: NodeConfig, log: Log, stopping: asyncio.Event, is_restart: bool) -> str:
    """Run one incarnation. Return `restart`, `stopped`, or the reason why a person must act."""
    server = NodeServer(config, log, is_restart=is_restart)
    admin = Admin(server)
    is_clean = False
    try:
        await server.listen()
        host, port = split_address(config.admin_listen)
        await admin.listen(host, port)
        log("listening", address="{}:{}".format(*server.address), admin_address=admin.address)
        stop = asyncio.ensure_future(stopping.wait())
        futures: list[asyncio.Future[Any]] = [stop, server.ended]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if server.ended.done():
            return server.ended.result()
        await _hand_over(server, log)
        is_clean = True
        return "stopped"
    finally:
        await admin.stop()
        server.close(is_clean)


async def _hand_over(server: NodeServer, log: Log) -> None:
    """Transfer leadership before the stop, so that clients see a pause and not a failover."""
    if server.node.replica.leader is None:
        return
    if len(server.node.context.voter_uuids()) == 1:
        return
    try:
        answer = await server.command("demote", timeout_s=HANDOVER_TIMEOUT_S)
    except TimeoutError:
        log("handover", result="no other member became leader in time")
        return
    log("handover", result=answer.reason or "done")


async def _run(config: NodeConfig) -> int:
    log = Log(config.name, config.log_level)
    if unknown := config.unknown_settings():
        log("unknown_settings", ignored=unknown)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    is_restart = False
    while not stopping.is_set():
        try:
            how = await _live(config, log, stopping, is_restart)
        except DiskError as error:
            log("restart", reason=str(error))
            await asyncio.sleep(5 * RESTART_WAIT_S)
            continue
        if how == "stopped":
            log("stopped")
            return 0
        if how != "restart":
            sys.stderr.write(f"qsync-node: {how}\n")
            return 1
        is_restart = True
        await asyncio.sleep(RESTART_WAIT_S)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_node", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the node's YAML file")
    parsed = parser.parse_args(arguments)
    if not __debug__:
        sys.stderr.write(
            "qsync-node: cannot start with python -O, which removes assertions that "
            "protect data: start without -O\n"
        )
        return 2
    try:
        config = load_config(parsed.config)
    except ConfigError as error:
        sys.stderr.write(f"qsync-node: {error}\n")
        return 2
    try:
        return uvloop.run(_run(config))
    except QsyncError as error:
        sys.stderr.write(f"qsync-node: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
