"""
What calibration has in use for the instant that a page shows: the learner's now, the store's at `?at=`.
"""

from collectors import calibration
from collectors.calibration_past import in_use_at
from collectors.errors import KvscopeError
from collectors.judging import reserve_of
from pages import _context as context
from scoring.calibration_in_use import InUse
from scoring.calibration_reserve import uncalibrated
from scoring.model import FleetSnapshot


def in_use(fleet: FleetSnapshot) -> InUse:
    """
    Return what is in use for the fleet that is drawn; nothing calibrated where no learner runs.

    Where the past cannot be read that is drawn, and nothing calibrated is given.
    """
    running = context.runtime()
    nothing = InUse(at_s=fleet.at_s, reserve=uncalibrated(reserve_of(running.settings)))
    at_s = context.past_at_s()
    if at_s is None:
        learner = calibration.learner_of(running)
        return nothing if learner is None else learner.in_use()
    try:
        return context.shared("calibration.in_use", at_s, "", lambda: in_use_at(running.store, fleet, running.settings))
    except KvscopeError as error:
        context.read_failed(error)
        return nothing
