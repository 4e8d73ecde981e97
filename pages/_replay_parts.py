"""
The Replay page's blocks below the form: progress, results, figures, a moment, pools, drills, keeping and exports.
"""

import json
from typing import Any, Final

import numpy as np
import streamlit as st

from collectors.errors import KvscopeError, StoreError
from pages import _context as context
from pages import _controls as controls
from pages import _replay_jobs as jobs
from pages import _widgets as widgets
from pages._replay_run import Outcome
from pages._what_if_form import choice
from pages.figures import number, replay_report
from pages.figures import replay as figures
from pages.figures import replay_table as tables
from pages.texts import Say
from scoring.demand import RequestView, known_output
from scoring.policy import DecideSettings, decide
from simulation.compare import expectations
from simulation.compare_policies import snapshot_of_samples
from simulation.report import STATISTICS
from simulation.report_rows import request_frame
from simulation.result import OUTCOMES, RunResult

MOMENT_S: Final = 5.0
MOMENT_ROWS: Final = 40


def progress(viewer: str) -> None:
    """Draw how far a viewer's replay is, with its cancel button; the page is drawn anew when it ends."""
    t = context.say()

    def body() -> None:
        # Asked anew each time: that is how the run knows that somebody still waits for it.
        work = jobs.of(viewer)
        if work is None or work.state != "running":
            st.rerun()
        if work.share is None:
            st.progress(0.0, text=t("replay.preparing"))
        else:
            st.progress(min(work.share, 1.0), text=t("replay.running", share=number.share(work.share)))
        if st.button(t("replay.cancel"), key="replay.cancel", icon=":material/cancel:"):
            work.cancel()
            st.rerun()

    st.fragment(body, run_every=0.5)()


def told(body: dict[str, Any]) -> None:
    """Draw what was replayed on what, what differs beside the policy, and the notes."""
    t = context.say()
    traffic, fleet = body["traffic"], body["fleet"]
    st.markdown(
        t(
            "replay.told",
            requests=number.compact(traffic["request_count"]),
            span=number.duration(traffic["span_s"]),
            prompt=number.compact(traffic["prompt_tokens"]),
            output=number.compact(traffic["output_tokens"]),
            format=number.markdown(traffic["format"]),
        )
        + " "
        + t(
            "replay.fleet_told",
            roles=", ".join(f"{count} {t(f'common.role_{role}')}" for role, count in fleet["pools"].items()),
            tokens=number.compact(fleet["usable_tokens"]),
            profiles=number.markdown(", ".join(fleet["profiles"])),
            seeds=", ".join(str(seed) for seed in body["seeds"]),
        )
    )
    for what in body["varied"]:
        st.warning(t("replay.varied", what=number.markdown(t.said(what))))
    skipped = [
        t("replay.skipped", count=each["count"], reason=t.said(each["reason"]), row=each["first_rows"][0])
        for each in traffic["rows"]["reasons"]
    ]
    notes = [*skipped, *traffic["notes"], *body["notes"]]
    if notes:
        with st.expander(t("replay.notes", count=len(notes))):
            for note in notes:
                st.text(t.said(note))


def results(body: dict[str, Any]) -> None:
    """Draw the table of results with its finding, and what the differences are worth."""
    t = context.say()
    found = body["policies"]
    ranked = [name for name in found if found[name]["ttft_s"]["p99"] is not None]
    if ranked:
        best = min(ranked, key=lambda name: float(found[name]["ttft_s"]["p99"]))
        row = found[best]["differences"].get("ttft_s.p99")
        words = {"name": number.markdown(best), "value": number.duration(found[best]["ttft_s"]["p99"])}
        st.subheader(
            t("replay.best", **words)
            if row is None
            else t(
                "replay.best_told",
                **words,
                difference=tables.difference(row),
                baseline=number.markdown(body["baseline"]),
            )
        )
    widgets.text_table(tables.results(body, t), "replay")
    rows = tables.differences(body)
    if rows["variant"]:
        st.markdown(f"**{t('replay.differences_title', baseline=number.markdown(body['baseline']))}**")
        widgets.text_table(rows, "replay")
        st.caption(t("replay.differences_help"))
    st.caption(t("replay.definitions"))
    drills = tables.drills(body, t)
    if drills:
        st.markdown(f"**{t('replay.drills_title')}**")
        widgets.text_table(drills, "replay")


def charts(body: dict[str, Any], series: dict[str, Any], tick: str) -> float | None:
    """Draw the figures and return the second of the run that was clicked, if any."""
    t, language = context.say(), context.language()

    def shown(name: str, variant: tuple[object, ...], build: Any, events: tuple[str, ...] = ()) -> str | None:
        def packed() -> bytes:
            figure = build()
            return figures.pack(figure, figure["layout"]["title"]["text"], name, events)

        payload = context.shared(f"replay.{name}", tick, (tick, *variant, language), packed)
        return context.draw(payload, key=f"replay.{name}")

    left, right = st.columns(2)
    with left:
        metric = controls.segments(
            "cdf", t("replay.cdf_metric"), figures.METRICS, "ttft_s", lambda name: t(f"replay.metric_{name}"), language
        )
        shown("cdf", (metric,), lambda: figures.cdf(body, series, metric, t))
    with right:
        if figures.is_swept(body):
            shown("sweep", (), lambda: figures.sweep(body, t))
        shown("pareto", (), lambda: figures.pareto(body, t))
    _heat(body, shown, t, language)
    clicked = shown("over_time", (), lambda: figures.over_time(body, series, t), ("click",))
    chosen = _composition(body, series, shown, t, language)
    text = chosen or clicked
    if text is not None:
        st.session_state["replay.moment"] = float(text)
    return st.session_state.get("replay.moment")


def _heat(body: dict[str, Any], shown: Any, t: Say, language: str) -> None:
    groups = [group for group in figures.GROUPS if figures.buckets_of(body, group)]
    if not groups:
        return
    with st.container(horizontal=True):
        group = controls.segments(
            "by", t("replay.heat_group"), groups, groups[0], lambda name: t(f"replay.group_{name}"), language
        )
        metrics = (*figures.METRICS, "goodput")
        metric = controls.segments(
            "figure", t("replay.heat_metric"), metrics, "ttft_s", lambda name: t(f"replay.metric_{name}"), language
        )
        statistic = controls.segments(
            "stat", t("replay.heat_statistic"), STATISTICS, "p99", lambda name: name, language
        )
    shown("heat", (group, metric, statistic), lambda: figures.heat(body, group, metric, statistic, t))


def _composition(body: dict[str, Any], series: dict[str, Any], shown: Any, t: Say, language: str) -> str | None:
    names = [name for name in body["policies"] if (series.get(name) or {}).get("pools")]
    if not names:
        return None
    with st.container(horizontal=True):
        name = choice("of", t("replay.composition_variant"), names, str, language)
        name = name if name in names else names[0]
        pools = list(series[name]["pools"])
        pools.sort(key=lambda pool: series[name]["pools"][pool]["role"] == "prefill")
        pool = choice("of_pool", t("replay.composition_pool"), pools, str, language)
        pool = pool if pool in pools else pools[0]
    build = shown("composition", (name, pool), lambda: figures.composition(series[name], pool, language, t), ("click",))
    return str(build) if build is not None else None


def moment(outcome: Outcome | None, at_s: float | None) -> None:
    """Draw the decisions around a second of the run that was clicked."""
    t = context.say()
    if at_s is None:
        st.caption(t("replay.moment_hint"))
        return
    if outcome is None:
        st.caption(t("replay.moment_kept"))
        return
    names = [item.variant.name for item in outcome.comparison.variants]
    wanted = controls.kept("of")
    name = wanted if wanted in names else names[0]
    result = outcome.comparison.of(name).result
    if result is None:
        return
    st.markdown(f"**{t('replay.moment_title', at=f'{at_s:.0f} s')}** · {number.markdown(name)}")
    rows = moment_rows(result, at_s)
    if not rows:
        st.caption(t("replay.moment_none"))
        return
    largest = max(rows, key=lambda row: float(row["prompt_tokens"]))
    sentence = _second_opinion(outcome, result, largest, t)
    if sentence:
        st.markdown(sentence)
    widgets.text_table(tables.moment(rows, t), "replay", most_rows=12)


def moment_rows(result: RunResult, at_s: float) -> list[dict[str, Any]]:
    """Return the requests that arrived around a moment, the nearest first in time, at most MOMENT_ROWS."""
    requests = result.requests
    near = np.flatnonzero(np.abs(requests.arrival_s - at_s) <= MOMENT_S)
    near = near[np.argsort(np.abs(requests.arrival_s[near] - at_s), kind="stable")][:MOMENT_ROWS]
    names = [pool.pool_id for pool in result.fleet.pools]
    return [
        {
            "row": int(row),
            "arrival_s": float(requests.arrival_s[row]),
            "prompt_tokens": int(requests.prompt_tokens[row]),
            "output_tokens": int(requests.output_tokens[row]),
            "prefill": names[requests.prefill[row]] if requests.prefill[row] >= 0 else None,
            "decode": names[requests.decode[row]] if requests.decode[row] >= 0 else None,
            "hit_tokens": int(requests.hit_tokens[row]),
            "ttft_s": float(requests.ttft_s[row]),
            "outcome": OUTCOMES[int(requests.outcome[row])],
            "class_id": int(requests.class_ids[row]),
        }
        for row in sorted(near, key=lambda row: requests.arrival_s[row])
    ]


def _second_opinion(outcome: Outcome, result: RunResult, row: dict[str, Any], t: Say) -> str | None:
    """Return what the joint score would have said of a request, on the fleet as sampled just before it came."""
    samples = result.samples
    if not len(samples.at_s):
        return None
    tick = max(int(np.searchsorted(samples.at_s, float(row["arrival_s"]), side="right")) - 1, 0)
    means = expectations(outcome.trace.traffic)
    fleet = snapshot_of_samples(result.fleet, samples, tick, means)
    view = RequestView(prompt_tokens=int(row["prompt_tokens"]), output=known_output(means.mean_output_tokens))
    settings = DecideSettings(profiles={pool.worker: pool.profile for pool in result.fleet.pools})
    decision = decide(view, fleet, "joint", settings=settings)
    chosen = decision.chosen
    said = (
        t("replay.moment_refused", reason=number.markdown(t.said(decision.fallback or "")))
        if chosen is None
        else _pair(chosen.prefill, chosen.decode)
    )
    sent = _pair(row["prefill"], row["decode"]) if row["decode"] else t("common.none")
    return t("replay.moment_decision", prompt=number.compact(row["prompt_tokens"]), choice=said, sent=sent)


def _pair(prefill: str, decode: str) -> str:
    name = prefill if prefill == decode else f"{prefill} → {decode}"
    return f"`{number.code(name)}`"


def pools(body: dict[str, Any]) -> None:
    """Draw the pools of the chosen variant."""
    t = context.say()
    wanted = controls.kept("of")
    name = wanted if wanted in body["policies"] else next(iter(body["policies"]))
    with st.expander(f"{t('replay.pools_title')}: {number.markdown(name)}"):
        widgets.text_table(tables.pools(body["policies"][name], t), "replay", most_rows=20)


def keep(outcome: Outcome) -> None:
    """Draw name, keep button and downloads of a run just made."""
    t = context.say()
    st.subheader(t("replay.keep_title"))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input(t("replay.keep_name"), key="replay.name", max_chars=64, width=320).strip()
        is_kept = st.button(t("replay.keep"), key="replay.keep", icon=":material/bookmark_add:")
    if is_kept:
        _keep(outcome, name)
    if st.button(t("replay.prepare"), key="replay.prepare", icon=":material/download:"):
        frame = request_frame(outcome.comparison, outcome.trace)
        st.session_state["replay.files"] = {
            "html": replay_report.page(outcome.body, outcome.series, context.language()).encode(),
            "json": json.dumps(outcome.body, allow_nan=False).encode(),
            "csv": frame.to_csv(index=False).encode(),
            "parquet": frame.to_parquet(index=False),
        }
    files = st.session_state.get("replay.files")
    if files:
        with st.container(horizontal=True):
            for ending, content in files.items():
                st.download_button(
                    t(f"replay.export_{ending}"), content, f"kvscope-replay.{ending}", key=f"replay.get_{ending}"
                )
    st.caption(t("replay.export_png"))


def _keep(outcome: Outcome, name: str) -> None:
    t = context.say()
    if not name:
        st.warning(t("replay.keep_need_name"))
        return
    try:
        jobs.keep(context.runtime().store, name, outcome)
        st.success(t("replay.kept", name=number.markdown(name)))
    except (StoreError, ValueError) as error:
        st.error(t("replay.keep_failed", reason=number.markdown(t.said(error))))


def kept(language: str) -> dict[str, dict[str, Any]]:
    """Draw the choice of kept runs and return the chosen ones' figures by name."""
    t = context.say()
    try:
        records = {record.name: record for record in context.runtime().store.runs()}
    except KvscopeError as error:
        context.read_failed(error)
        return {}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = controls.many(
            "run", t("replay.kept_choose"), list(records), t("replay.kept_placeholder"), language, 600
        )
        held = [name for name in chosen if name in records]
        if held and st.button(t("replay.delete"), key="replay.delete", icon=":material/delete:"):
            for name in held:
                jobs.drop(context.runtime().store, name)
            st.rerun()
    gone = [name for name in chosen if name not in records]
    if gone:
        st.warning(t("replay.kept_gone", names=", ".join(number.markdown(name, 60) for name in gone)))
    if not records:
        st.caption(t("replay.kept_none"))
    return {name: dict(records[name].summary) for name in chosen if name in records}
