"""The addresses of other members: which of them are dialled, and when again."""

RETRY_S = 0.05
RETRY_MAX_S = 1.0
PORT_MAX = 65535
DISCOVERED_MAX = 64
"""Maximum number of addresses that other members have reported."""
FORGET_AFTER_S = 600.0
"""Time without a connection after which a reported address is forgotten."""


class AddressBook:
    """The addresses of other members by name: configured ones, and those that members report.

    A configured address replaces a reported one of the same name or address.
    """

    def __init__(self, name: str) -> None:
        """Begin without addresses.

        Args:
            name: name of this member, which it does not dial.
        """
        self._name = name
        self._configured: dict[str, str] = {}
        self._discovered: dict[str, str] = {}

    @property
    def targets(self) -> dict[str, str]:
        """Return the addresses to dial."""
        every = {**self._discovered, **self._configured}
        every.pop(self._name, None)
        return every

    def known(self, own: dict[str, str]) -> dict[str, str]:
        """Return all addresses, with those of this member."""
        return {**self._discovered, **self._configured, **own}

    def is_discovered(self, name: str) -> bool:
        """Return whether another member has reported the address."""
        return name in self._discovered

    def set_configured(self, addresses: dict[str, str]) -> None:
        """Replace the configured addresses."""
        self._configured = dict(addresses)
        self._discovered = {
            name: address
            for name, address in self._discovered.items()
            if name not in addresses and address not in addresses.values()
        }

    def discover(self, reported: object, own: dict[str, str]) -> dict[str, str]:
        """Note the addresses that another member reports, and return the new ones.

        Args:
            reported: the report, unchecked. Invalid entries are ignored.
            own: name and address of this member.
        """
        fresh: dict[str, str] = {}
        for name, address in reported.items() if isinstance(reported, dict) else ():
            known = self.known(own)
            if (
                isinstance(name, str)
                and isinstance(address, str)
                and is_address(address)
                and name not in known
                and address not in known.values()
                and len(self._discovered) < DISCOVERED_MAX
            ):
                self._discovered[name] = fresh[name] = address
        return fresh

    def forget(self, name: str) -> None:
        """Forget an address that another member has reported."""
        self._discovered.pop(name, None)


class Redial:
    """When to dial one address again.

    event                          pause before the next attempt
    -----------------------------  -----------------------------------------------------------------
    an attempt fails               `RETRY_S`, doubled with each further failure, up to `RETRY_MAX_S`
    an open connection is lost     `RETRY_S`
    no attempt has succeeded       `None`: an address that another member has reported is forgotten
    within `FORGET_AFTER_S`
    """

    def __init__(self, now_s: float) -> None:
        """Begin at a time in seconds."""
        self._pause_s = RETRY_S
        self._reached_s = now_s

    def on_failed(self, now_s: float, *, is_discovered: bool) -> float | None:
        """Return the pause in seconds after a failed attempt; None to forget the address."""
        if is_discovered and now_s - self._reached_s > FORGET_AFTER_S:
            return None
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, RETRY_MAX_S)
        return pause_s

    def on_lost(self, now_s: float) -> float:
        """Return the pause in seconds after an open connection was lost."""
        self._reached_s = now_s
        self._pause_s = RETRY_S
        return RETRY_S


def is_address(text: str) -> bool:
    """Return whether a text has the form HOST:PORT, with a port that can be dialled."""
    host, _, port = text.rpartition(":")
    return bool(host) and is_port(port) and int(port) > 0


def is_port(text: str) -> bool:
    """Return whether a text is a decimal number from 0 to `PORT_MAX`."""
    # The number of digits first: Python refuses to convert thousands of them.
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= PORT_MAX
