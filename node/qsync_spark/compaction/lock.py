"""A lock for one compaction at a time: an object that only one process can create.

Its holder rewrites it every 20 seconds. A lock that is older than two minutes, or whose process on
this machine has ended, belongs to a killed compaction and is taken over. So is the lock of another
attempt of the same run. The holder reads the lock again before it publishes or deletes files.
"""

import json
import os
import threading
import time
from socket import gethostname
from types import TracebackType
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from qsync_node.archive.compaction import LOCK_NAME
from qsync_node.archive.location import ArchiveError, first_line

RENEW_S = 20.0
STALE_S = 120.0
SETTLE_S = 0.5


class CompactionLock:
    """A lock held inside `with`. Raises ArchiveError if another run holds it."""

    def __init__(self, store: ObjectStore, url: str, run: str) -> None:
        self._store = store
        self._url = url
        self._run = run or f"{gethostname()}/{os.getpid()}"
        self._token = os.urandom(8).hex()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lock", daemon=True)

    def __enter__(self) -> "CompactionLock":
        if not self._create():
            held = self._read()
            if held is not None and not self._is_left(held):
                since = time.strftime("%H:%M:%S UTC", time.gmtime(held.get("since", 0)))
                raise ArchiveError(
                    f"cannot compact archive {self._url}: {held.get('run')} compacts it "
                    f"since {since}; wait until it has ended"
                )
            obstore.put(self._store, LOCK_NAME, self._contents())
            time.sleep(SETTLE_S)  # of two concurrent takeovers, the last one holds the lock
            self.check()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        held = self._read()
        if held is not None and held.get("token") == self._token:
            obstore.delete(self._store, LOCK_NAME)

    def check(self) -> None:
        """Raise ArchiveError if the lock was lost."""
        held = self._read()
        if held is None or held.get("token") != self._token:
            run = held.get("run") if held is not None else "no run"
            raise ArchiveError(
                f"the compaction of archive {self._url} was stopped: {run} compacts it now"
            )

    def _contents(self) -> bytes:
        return json.dumps(
            {
                "run": self._run, "token": self._token, "host": gethostname(), "pid": os.getpid(),
                "since": time.time(), "renewed": time.time(),
            }
        ).encode()  # fmt: skip

    def _create(self) -> bool:
        try:
            obstore.put(self._store, LOCK_NAME, self._contents(), mode="create")
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise ArchiveError(f"cannot write archive {self._url}: {first_line(error)}") from error
        return True

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(bytes(obstore.get(self._store, LOCK_NAME).bytes()))
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise ArchiveError(f"cannot read archive {self._url}: {first_line(error)}") from error
        except ValueError:
            return {}  # incomplete: its writer was killed
        return found if isinstance(found, dict) else {}

    def _is_left(self, held: dict[str, Any]) -> bool:
        if held.get("run") == self._run and "/" not in self._run:
            return True  # an earlier driver of the same run
        if held.get("host") == gethostname() and not _is_running(int(held.get("pid", 0))):
            return True
        return time.time() - float(held.get("renewed", 0.0)) > STALE_S

    def _renew(self) -> None:
        while not self._done.wait(RENEW_S):
            try:
                held = self._read()
                if held is None or held.get("token") != self._token:
                    return
                held["renewed"] = time.time()
                obstore.put(self._store, LOCK_NAME, json.dumps(held).encode())
            except (ArchiveError, BaseError, OSError):
                continue  # a single failure of the archive; `check` decides


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
