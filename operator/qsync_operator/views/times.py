"""Times as people read them: local, and to the second."""

from datetime import datetime


def local_time(text: str) -> str:
    """Return an ISO 8601 time in the local time zone, to the second; other text as it is."""
    try:
        return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return text
