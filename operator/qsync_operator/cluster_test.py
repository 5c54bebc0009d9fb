"""`helm test` of a cluster: the application's user logs in through the Service and at each member.

The credentials come from the mounted Secret NAME-app. If a member cannot be reached, the test
prints one sentence and exits with 1. It writes nothing.
"""

import ssl
import sys
from collections.abc import Mapping
from pathlib import Path

from qsync_client.protocol.spaces import SystemSpace
from qsync_operator.members.iproto import DatabaseError, IprotoConnection

SPACES = int(SystemSpace.VSPACE)  # the spaces that the user may see
TIMEOUT_S = 10.0
SECRET = Path("/etc/qsync/app")


def targets(secret: Mapping[str, str]) -> tuple[list[str], ssl.SSLContext | None]:
    """Return the addresses to test, and a TLS context if the Secret holds an authority."""
    leader = f"{secret['host']}:{secret['port']}"
    addresses = [leader, *secret["addresses"].split(",")]
    authorities = secret.get("ca.crt")
    if not authorities:
        return addresses, None
    port = secret["tlsPort"]
    encrypted = [f"{address.rpartition(':')[0]}:{port}" for address in addresses]
    context = ssl.create_default_context(cadata=authorities)
    context.check_hostname = False  # members share one certificate, which is trusted by its signer
    return encrypted, context


def main() -> int:
    # A mounted Secret contains links to its directories besides its keys.
    secret = {path.name: path.read_text() for path in SECRET.iterdir() if path.is_file()}
    addresses, context = targets(secret)
    user, password = secret["username"], secret["password"]
    for address in addresses:
        try:
            with IprotoConnection(address, user, password, TIMEOUT_S, context) as database:
                spaces = len(database.select(SPACES))
        except DatabaseError as error:
            sys.stderr.write(f"{address}: {error}\n")
            return 1
        sys.stdout.write(f"{address}: {user} may see {spaces} spaces\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
