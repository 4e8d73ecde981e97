"""
The Replay page's form: every choice but an uploaded file is in the URL, so that the address reproduces the run.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

import streamlit as st

from collectors.errors import KvscopeError
from collectors.store import ExportRequest
from pages import _context as context
from pages import _controls as controls
from pages._decide_settings import decide_settings
from pages._replay_run import Order
from pages._what_if_form import choice, slider, whole, word
from pages.figures import number
from scoring.policy import POLICIES as SCORED
from scoring.service import PROFILES
from scoring.slo import SLO_CLASSES, SloClass
from simulation.compare_policies import is_compiled, policy_names
from simulation.compare_variants import SWEEPS
from simulation.faults import KINDS
from simulation.fleet_file import FleetDefaults, FleetFileError, ReplayFleet, fleet_from_shorthand, fleet_from_snapshot
from simulation.simulate import SimulationOptions
from simulation.workload import ARRIVALS
from simulation.workload_shape import Shaping

SOURCES: Final = ("synthetic", "upload", "folder", "live")
FLEETS: Final = ("live", "shape")
DEFAULT_POLICIES: Final = ("round-robin", "lowest-utilization", "joint")
SWEEP_VALUES: Final = {
    "telemetry_age_s": "0, 0.5, 2, 8",
    "telemetry_period_s": "0.5, 2, 8, 30",
    "reserve_tokens": "0, 128, 512, 2048",
    "reserve_ratio": "0.02, 0.05, 0.1, 0.2",
    "gate_ratio": "0.7, 0.8, 0.9, 1",
    "blocks": "4096, 8192, 16384",
    "speed": "1, 1.5, 2, 3",
}


class NotReadyError(Exception):
    """The form cannot be run as it stands; the message says what to do, in the viewer's language."""


def traces_folder() -> Path:
    """Return the folder whose files can be chosen: `traces` beside the store, or here for a store in memory."""
    path = context.runtime().store.path
    return (Path.cwd() if path == ":memory:" else Path(path).parent) / "traces"


def _synthetic(language: str) -> str:
    t = context.say()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        arrivals = controls.segments(
            "arrivals", t("replay.arrivals"), ARRIVALS, "gamma", lambda name: t(f"replay.arrivals_{name}"), language
        )
        rate = slider("rate", t("replay.rate"), 4.0, 50.0, language, "replay", 0.5)
        duration = whole("seconds", t("replay.duration"), 300, (10, 86_400), language, 60)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        prompt = whole("median", t("replay.prompt"), 4_000, (1, 1_000_000), language, 1_000)
        output = whole("reply", t("replay.output"), 300, (1, 100_000), language, 100)
        prefixes = whole("prefixes", t("replay.prefixes"), 20, (0, 100_000), language, 10)
        length = whole("prefix", t("replay.prefix_tokens"), 2_048, (0, 1_000_000), language, 512)
    return (
        f"synthetic:{arrivals},rate={max(rate, 0.5):g},duration={duration},prompt={prompt},output={output},"
        f"prefixes={prefixes},prefix_tokens={length}"
    )


def _saved(payload: bytes, ending: str) -> str:
    with tempfile.NamedTemporaryFile(prefix="kvscope-replay-", suffix=ending, delete=False) as file:
        file.write(payload)
    return file.name


class Source:
    """Where the traffic comes from: drawn now, turned into a path or recipe only when a run starts."""

    def __init__(self, language: str) -> None:
        """Draw the controls."""
        t = context.say()
        self.kind = controls.segments(
            "traffic", t("replay.traffic"), SOURCES, "synthetic", lambda name: t(f"replay.traffic_{name}"), language
        )
        self._recipe = ""
        self._file = None
        self._name = ""
        self._minutes = 0
        if self.kind == "synthetic":
            self._recipe = _synthetic(language)
        elif self.kind == "upload":
            self._file = st.file_uploader(t("replay.file"), help=t("replay.file_help"), key="replay.upload")
        elif self.kind == "folder":
            folder = traces_folder()
            names = sorted(path.name for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
            if names:
                self._name = choice("trace", t("replay.file"), names, lambda name: name, language)
                self._name = self._name if self._name in names else ""
            else:
                st.info(t("replay.no_folder", folder=number.markdown(folder)))
        else:
            self._minutes = whole("minutes", t("replay.past_minutes"), 15, (1, 1_440), language, 5)
            st.caption(t("replay.past_help"))

    def take(self) -> tuple[str, bool]:
        """
        Return path or recipe, and whether the file is ours to delete.

        Raises:
            NotReadyError: there is nothing to take yet.
        """
        t = context.say()
        if self.kind == "synthetic":
            return self._recipe, False
        if self.kind == "upload" and self._file is not None:
            return _saved(self._file.getvalue(), Path(self._file.name).suffix), True
        if self.kind == "folder" and self._name:
            return str(traces_folder() / self._name), False
        if self.kind == "live":
            now_s = context.past_at_s() or time.time()
            request = ExportRequest(start_s=now_s - 60.0 * self._minutes, end_s=now_s, format="csv")
            try:
                return _saved(context.runtime().store.export_bytes(request), ".csv"), True
            except KvscopeError as error:
                raise NotReadyError(t("common.read_failed", reason=number.markdown(t.said(error)))) from error
        raise NotReadyError(t("replay.need_file"))


def _shaping(language: str) -> Shaping:
    t = context.say()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        speed = slider("fast", t("replay.speed"), 1.0, 10.0, language, "replay", 0.1)
        limit = whole("limit", t("replay.limit"), 0, (0, 10_000_000), language, 1_000)
        slo = controls.segments(
            "class",
            t("replay.class"),
            list(SLO_CLASSES),
            "interactive",
            lambda name: t(f"replay.class_{name}"),
            language,
        )
        is_spread = controls.switch("spread", t("replay.spread"), language, t("replay.spread_help"), default=False)
    return Shaping(speed=max(speed, 0.1), max_count=limit or None, class_name=slo, is_spread=is_spread)


def _fleet(language: str) -> ReplayFleet | str:
    """Return the fleet, or the sentence that says why there is none."""
    t = context.say()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        kind = controls.segments(
            "fleet", t("replay.fleet"), FLEETS, "live", lambda name: t(f"replay.fleet_{name}"), language
        )
        profile = choice("profile", t("replay.profile"), list(PROFILES), lambda name: name, language)
        profile = profile if profile in PROFILES else next(iter(PROFILES))
        if kind == "shape":
            shape = controls.text(
                "shape", t("replay.shape"), language, placeholder="6p2d", help_=t("replay.shape_help")
            )
            blocks = whole("blocks", t("replay.blocks"), 16_384, (1, 100_000_000), language, 1_024)
            block = whole("block", t("replay.block_size"), 64, (1, 65_536), language, 16)
    st.caption(t("replay.profile_help", source=number.markdown(t.said(PROFILES[profile].source))))
    try:
        if kind == "shape":
            defaults = FleetDefaults(profile=PROFILES[profile], blocks=blocks, block_size_tokens=block)
            return fleet_from_shorthand(shape or "6p2d", defaults)
        return fleet_from_snapshot(context.snapshot(), FleetDefaults(profile=PROFILES[profile]))
    except FleetFileError as error:
        return str(error)


def _policies(language: str) -> tuple[str, ...]:
    t = context.say()
    key = controls._key("policies", language)
    known = policy_names()
    controls._adopt("policies", key, lambda raw: [name for name in raw if name in known], list(DEFAULT_POLICIES))
    chosen = list(
        st.multiselect(
            t("replay.policies"),
            known,
            placeholder=t("replay.policies_placeholder"),
            format_func=lambda name: t(f"what_if.policy_{word(name)}") if name in SCORED else name,
            key=key,
        )
    )
    controls._publish("policies", chosen, chosen, list(DEFAULT_POLICIES))
    slow = [name for name in chosen if not is_compiled(name)]
    if slow:
        st.caption(t("replay.slow_policies", names=", ".join(slow)))
    return tuple(chosen)


def classes_of_fleet() -> tuple[SloClass, ...]:
    """Return the SLO classes of the fleet file, in the presets' order."""
    own = decide_settings(context.runtime().settings).classes
    return tuple(own[name] for name in SLO_CLASSES)


class Form:
    """The whole form, drawn; `order` makes the order when a run starts."""

    def __init__(self, language: str) -> None:
        """Draw the form."""
        t = context.say()
        self._source = Source(language)
        self._shape = _shaping(language)
        self._fleet = _fleet(language)
        self._policies = _policies(language)
        with st.expander(t("replay.more")):
            self._drills = controls.text(
                "drills",
                t("replay.drills"),
                language,
                placeholder=t("replay.drills_hint"),
                help_=t("replay.drills_help", kinds=", ".join(KINDS)),
            )
            with st.container(horizontal=True, vertical_alignment="bottom"):
                self._age_s = slider("lag", t("replay.telemetry"), 0.0, 60.0, language, "replay", 0.5)
                self._is_leasing = controls.switch(
                    "leases", t("replay.leases"), language, t("replay.leases_help"), default=False
                )
                self._seeds = whole("seeds", t("replay.seeds"), 1, (1, 32), language)
            sweep = choice(
                "sweep", t("replay.sweep"), ("none", *SWEEPS), lambda name: t(f"replay.sweep_{name}"), language
            )
            self._sweep = sweep if sweep in SWEEPS else None
            self._values = ""
            if self._sweep:
                self._values = controls.text(
                    f"values_{self._sweep}",
                    t("replay.sweep_values"),
                    language,
                    placeholder=SWEEP_VALUES[self._sweep],
                    help_=t("replay.sweep_values_help"),
                )

    def order(self) -> Order:
        """
        Return what is asked for.

        Raises:
            NotReadyError: something is missing or wrong.
        """
        t = context.say()
        if isinstance(self._fleet, str):
            raise NotReadyError(t("replay.failed", reason=number.markdown(t.said(self._fleet))))
        if not self._policies:
            raise NotReadyError(t("replay.need_policy"))
        sweep = None
        if self._sweep:
            text = self._values or SWEEP_VALUES[self._sweep]
            try:
                sweep = (self._sweep, tuple(float(value) for value in text.split(",")))
            except ValueError:
                raise NotReadyError(t("replay.failed", reason=number.markdown(text))) from None
        period_s = min(self._age_s, 1.0)
        source, is_ours = self._source.take()
        return Order(
            source=source,
            is_source_ours=is_ours,
            shaping=self._shape,
            fleet=self._fleet,
            policies=self._policies,
            drills=tuple(text.strip() for text in self._drills.split(";") if text.strip()),
            options=SimulationOptions(
                telemetry_age_s=self._age_s, telemetry_period_s=period_s, is_leasing=self._is_leasing
            ),
            classes=classes_of_fleet(),
            seed_count=self._seeds,
            sweep=sweep,
        )
