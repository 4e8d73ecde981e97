"""
Settings of a fleet: `load_settings(path)` gives one frozen `Settings` or one `SettingsError` with every problem.

The only module of the house that reads the environment. Read next: `model` (every key), `load` (how a file is read).
"""

from collectors.settings.checks import environment_names, worker_name
from collectors.settings.geometry import configured_bytes_per_token
from collectors.settings.load import (
    FLEET_ENVIRONMENT_NAME,
    fleet_path_from_environment,
    hand_fleet_to_app,
    load_settings,
    parse_settings,
    read_secret,
)
from collectors.settings.model import (
    AlertSettings,
    AuthSettings,
    DiscoverySettings,
    FreshnessSettings,
    LeaseSettings,
    LinkSettings,
    PollSettings,
    ProcessMode,
    PrometheusSettings,
    ReserveSettings,
    Section,
    ServerSettings,
    Settings,
    SloClassSettings,
    SloSettings,
    StoreSettings,
    TlsSettings,
    ViewSettings,
    WeightSettings,
    WorkerSettings,
)

__all__ = [
    "FLEET_ENVIRONMENT_NAME",
    "AlertSettings",
    "AuthSettings",
    "DiscoverySettings",
    "FreshnessSettings",
    "LeaseSettings",
    "LinkSettings",
    "PollSettings",
    "ProcessMode",
    "PrometheusSettings",
    "ReserveSettings",
    "Section",
    "ServerSettings",
    "Settings",
    "SloClassSettings",
    "SloSettings",
    "StoreSettings",
    "TlsSettings",
    "ViewSettings",
    "WeightSettings",
    "WorkerSettings",
    "configured_bytes_per_token",
    "environment_names",
    "fleet_path_from_environment",
    "hand_fleet_to_app",
    "load_settings",
    "parse_settings",
    "read_secret",
    "worker_name",
]
