"""
From the fleet file's words, and what calibration has in use, to what a decision is made with. No Streamlit in here:
the command line uses it too.
"""

from collectors.judging import reserve_of
from collectors.settings import Settings, SloClassSettings
from scoring.calibration_in_use import InUse
from scoring.policy import DecideSettings
from scoring.slo import SloClass, Weights


def decide_settings(settings: Settings, given: InUse | None = None) -> DecideSettings:
    """
    Return what a decision is made with.

    Args:
        settings: The fleet file: classes, weights, the reserve's knobs.
        given: What calibration has in use: service times, spreads of the predictions and the reserve's knobs come from
            it as far as it has them; None: everything from the fleet file, the rest as `DecideSettings` has it.
    """
    slo = settings.slo
    classes = {
        name: _slo_class(name, each)
        for name, each in (("interactive", slo.interactive), ("batch", slo.batch), ("long_context", slo.long_context))
    }
    if given is None:
        return DecideSettings(classes=classes, reserve=reserve_of(settings))
    defaults, reserve = DecideSettings(), given.reserve
    ttft, tpot = reserve.ttft_error_ratio, reserve.tpot_error_ratio
    return DecideSettings(
        classes=classes,
        reserve=reserve.settings,
        profiles=given.profiles,
        are_profiles_first=True,
        bandwidths_bytes_per_s=given.bandwidths_bytes_per_s,
        ttft_error_ratio=defaults.ttft_error_ratio if ttft is None else ttft,
        tpot_error_ratio=defaults.tpot_error_ratio if tpot is None else tpot,
    )


def error_defaults() -> dict[str, float]:
    """Return the spreads of predicted TTFT and step time that hold where nothing was measured, by knob."""
    chosen = DecideSettings()
    return {"ttft_error_ratio": chosen.ttft_error_ratio, "tpot_error_ratio": chosen.tpot_error_ratio}


def _slo_class(name: str, given: SloClassSettings) -> SloClass:
    return SloClass(
        name=name,
        ttft_s=given.ttft_budget_s,
        tpot_s=given.tpot_budget_s,
        quantile=given.output_quantile_ratio,
        weights=Weights(**given.weights.model_dump()),
    )
