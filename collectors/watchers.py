"""
What runs beside the collector from its first cycle: the saturation chain with its alerts, and calibration.

Both hang on the runtime's cycle hook. They are started here, with the process, so that an alert does not wait for
somebody to open a page.
"""

from collectors import alerts, calibration
from collectors.runtime import Runtime


def start_watchers(runtime: Runtime) -> None:
    """Start alerts and calibration on a running collector; a second call changes nothing."""
    alerts.watch(runtime)
    calibration.calibrator(runtime)


def stop_watchers(runtime: Runtime) -> None:
    """Stop both and hand over what they still hold; call it before the runtime stops."""
    calibration.stop_learning()
    alerts.watch(runtime).stop()
