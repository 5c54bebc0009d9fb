"""Documents of a QsyncJournal and of a broker's report on it."""

from typing import Any


def document(name: str = "orders-eu", journal: str = "orders/eu", **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncJournal",
        "metadata": {"name": name, "namespace": "ns", "generation": 3},
        "spec": {"cluster": "orders", "journal": journal, **spec},
    }


def report(**changes: object) -> dict[str, Any]:
    """Return the report of the primary of a journal in good order."""
    return {
        "name": "orders/eu",
        "replication": 2,
        "brokers": ["orders-0", "orders-1"],
        "primary": "orders-1",
        "is_consistent": True,
        "suspend_level": 0,
        "is_ready": True,
        "write_head": 100,
        "fragments": 3,
        "stores": 1,
        "store_error": "",
        "is_head_known": True,
        **changes,
    }
