"""When a schedule is due: five fields as cron has them, or a macro such as `@daily`."""

from datetime import datetime
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


@lru_cache(maxsize=1024)  # it is asked for at every turn, and steps through every day of a rare one
def overdue_at(schedule: str, time_zone: str, since: datetime) -> datetime | None:
    """The second time that the schedule is due after `since` (with a time zone): who has done
    nothing until then has left one time out. None where it is never due, as on 30 February."""
    try:
        times = CronSim(_MACROS.get(schedule, schedule), since.astimezone(ZoneInfo(time_zone)))
        next(times)
        return next(times)
    except (CronSimError, StopIteration, ZoneInfoNotFoundError):
        return None
