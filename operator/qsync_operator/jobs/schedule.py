"""Due times of a schedule: five fields as in cron, or a macro such as `@daily`."""

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@lru_cache(maxsize=1024)  # called at every turn, and a rare schedule steps through every day
def overdue_at(schedule: str, time_zone: str, since: datetime) -> datetime | None:
    """Return the second time after `since` at which the schedule is due.

    If nothing happened until then, one due time was missed. The result is None for a schedule that
    is never due, such as 30 February, for an unknown time zone, and after the last possible time.

    Args:
        schedule: schedule in cron format, or a macro.
        time_zone: name of the time zone of the schedule.
        since: a time with a time zone.
    """
    try:
        times = CronSim(_MACROS.get(schedule, schedule), since.astimezone(ZoneInfo(time_zone)))
        next(times)
        return next(times)
    except (CronSimError, StopIteration, OverflowError, ZoneInfoNotFoundError):
        return None


def time_of(text: object) -> datetime | None:
    """Return the time in a field of a status, or None if it is none: others may write statuses."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
