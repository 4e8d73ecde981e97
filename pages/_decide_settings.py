"""
From the fleet file's words to what a decision is made with. No Streamlit in here: the command line uses it too.
"""

from collectors.settings import Settings, SloClassSettings
from scoring.policy import DecideSettings
from scoring.reserve import ReserveSettings
from scoring.slo import SloClass, Weights


def decide_settings(settings: Settings) -> DecideSettings:
    """Return classes, weights and the reserve's knobs of a fleet file; the rest as `DecideSettings` has it."""
    slo = settings.slo
    classes = {
        name: _slo_class(name, each)
        for name, each in (("interactive", slo.interactive), ("batch", slo.batch), ("long_context", slo.long_context))
    }
    reserve = ReserveSettings(
        growth_quantile_ratio=max(settings.reserve.growth_quantile_ratio, 0.5),
        telemetry_delay_s=settings.reserve.telemetry_delay_s,
        decision_delay_s=settings.reserve.decision_delay_s,
        failure_count=settings.reserve.failure_count,
        error_buffer_ratio=settings.reserve.error_buffer_ratio,
    )
    return DecideSettings(classes=classes, reserve=reserve)


def _slo_class(name: str, given: SloClassSettings) -> SloClass:
    return SloClass(
        name=name,
        ttft_s=given.ttft_budget_s,
        tpot_s=given.tpot_budget_s,
        quantile=given.output_quantile_ratio,
        weights=Weights(**given.weights.model_dump()),
    )
