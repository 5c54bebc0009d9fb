"""The file with the keys of clients' tokens, which is read again when it changes."""

import asyncio
import logging
from pathlib import Path

from qsync_broker.auth import Authorizer

RELOAD_CHECK_S = 5.0
BYTES_MAX = 64 << 10

log = logging.getLogger("qsync.broker")


class KeyFile:
    """The keys of one broker.

    Attributes:
        authorizer: verifies tokens with the keys in use.
    """

    def __init__(self, path: Path) -> None:
        """Read the keys.

        Raises:
            OSError: the file cannot be read.
            ValueError: it has no key, or an invalid one.
        """
        self._path = path
        self._text = _read(path)
        self._refused = ""
        self.authorizer = _authorizer_of(path, self._text)

    async def keep_current(self) -> None:
        """Read a changed file again, until the task is cancelled."""
        while True:
            await asyncio.sleep(RELOAD_CHECK_S)
            self.reload()

    def reload(self) -> None:
        """Use the keys of a changed file.

        An unusable file is reported once, and the earlier keys stay in use. A broker never becomes
        open because a file is empty or missing.
        """
        try:
            text = _read(self._path)
            if text == self._text:
                return
            self.authorizer.use(_authorizer_of(self._path, text))
        except (OSError, ValueError) as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.error("renewed keys of tokens cannot be used: %s; correct the file", error)
            return
        self._text, self._refused = text, ""
        log.info("renewed keys of tokens are in use")


def _read(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        text = file.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise ValueError(f"{path} has more than {BYTES_MAX} bytes")
    return text


def _authorizer_of(path: Path, text: str) -> Authorizer:
    if not text.replace(",", " ").split():
        raise ValueError(f"{path} has no key: write keys in Base64, separated by spaces")
    return Authorizer.of_text(text)
