"""`python -m qsync_broker CONFIG`: run one broker in the foreground.

On SIGTERM the broker hands its journals over and exits with 0. An invalid configuration exits
with 2, a failure with 1.
"""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from qsync_broker.allocation import keep_freed_memory
from qsync_broker.config import BrokerConfigError, ServerConfig, load_config
from qsync_broker.coordination import Coordination
from qsync_broker.server import BrokerServer
from qsync_broker.serving import Interfaces
from qsync_broker.storage.errors import StorageDamaged


async def _run(config: ServerConfig) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    password = config.password_file.read_text().strip()
    tls = None
    if config.tls is not None:
        from qsync_broker.tls import BrokerTls  # noqa: PLC0415  # cryptography delays the start by 0.05 s

        tls = BrokerTls(config.tls)
    node_tls = tls.calling if tls is not None and config.is_node_tls else None
    coordination = Coordination(config.node, config.user, password, tls=node_tls)
    server = BrokerServer(config, coordination, tls)
    interfaces = Interfaces(server)
    try:
        await server.start()
        await interfaces.start()
        stop = asyncio.ensure_future(stopping.wait())
        futures: list[asyncio.Future[Any]] = [stop, server.halted]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if server.halted.done():
            logging.getLogger("qsync.broker").error("the broker stops: %s", server.halted.result())
            return 1
        await server.exit()
        return 0
    finally:
        await interfaces.stop()
        await server.stop()


def main() -> int:
    """Run the broker, and return the exit code."""
    parser = argparse.ArgumentParser(prog="qsync_broker", description=__doc__)
    parser.add_argument("config", type=Path, help="file with the configuration")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        config = load_config(arguments.config)
    except BrokerConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    keep_freed_memory()
    try:
        return uvloop.run(_run(config))
    except (OSError, StorageDamaged, ValueError) as error:
        logging.getLogger("qsync.broker").error("broker %s cannot run: %s", config.name, error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
