"""
The Replay page's tables: a variant a row, with what its difference to the baseline is worth; pools; drills; a moment.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pages.figures import number
from pages.figures.replay import TABLE_METRICS
from pages.texts import Say

Body = Mapping[str, Any]
TOLD: Final = {True: "●", False: "○", None: ""}
"""Sign behind a difference: told apart by this traffic, or not."""


def results(body: Body, t: Say) -> dict[str, list[str]]:
    """Return a row a variant: latencies, goodput, refusals, retractions, hits, bytes."""
    columns: dict[str, list[str]] = {"variant": []}
    for name, found in body["policies"].items():
        columns["variant"].append(str(name))
        for metric, statistic in TABLE_METRICS:
            columns.setdefault(f"{metric}_{statistic}", []).append(number.duration(found[metric][statistic]))
        hits = found["prefix_hit_tokens"]
        for key, text in (
            ("goodput", number.share(found["goodput_ratio"])),
            ("finished", number.compact(found["finished_count"])),
            ("rejected", number.compact(found["rejected_count"])),
            ("retracted", number.compact(found["retraction_count"])),
            ("recomputed", number.compact(found["recomputed_tokens"])),
            ("hits", t("common.unknown") if hits is None else number.compact(hits)),
            ("bytes", number.byte_size(found["link_bytes"])),
            ("throughput", number.amount(found["throughput_tokens_per_s"], "tokens/s")),
            ("speed", f"{number.compact(found['requests_per_s'])}/s"),
        ):
            columns.setdefault(key, []).append(text)
    return columns


def difference(row: Body | None, *, is_share: bool = False) -> str:
    """Return a difference with its interval: `−88 ms [−94, −84] ●`."""
    if row is None or row["difference"] is None:
        return number.ABSENT
    point, low, high = row["difference"], row["low"], row["high"]
    scale, unit = (100.0, "pts") if is_share else (1e3, "ms") if abs(point) < 1.0 else (1.0, "s")

    def signed(value: float) -> str:
        text = number.significant(value * scale)
        return f"+{text}" if value > 0 else text

    if low is None or high is None:
        return f"{signed(point)} {unit}"
    return f"{signed(point)} {unit} [{signed(low)}, {signed(high)}] {TOLD[low > 0 or high < 0]}"


def differences(body: Body) -> dict[str, list[str]]:
    """Return a row a variant but the baseline: what its differences are and whether this traffic tells them."""
    columns: dict[str, list[str]] = {"variant": []}
    for name, found in body["policies"].items():
        rows = found["differences"]
        if not rows:
            continue
        columns["variant"].append(str(name))
        for key in ("ttft_s.mean", "ttft_s.p95", "ttft_s.p99", "tpot_s.mean", "tpot_s.p99", "e2e_s.mean"):
            columns.setdefault(f"delta_{key.replace('.', '_')}", []).append(difference(rows.get(key)))
        columns.setdefault("delta_goodput", []).append(difference(rows.get("goodput_ratio"), is_share=True))
    return columns


def pools(found: Body, t: Say) -> dict[str, list[str]]:
    """Return a row a pool of one variant."""
    columns: dict[str, list[str]] = {}
    for name, pool in found["pools"].items():
        for key, text in (
            ("pool", str(name)),
            ("role", t(f"common.role_{pool['role']}")),
            ("held_mean", number.share(pool["held_mean_ratio"])),
            ("held_max", number.share(pool["held_max_ratio"])),
            ("physical", number.share(pool["physical_mean_ratio"])),
            ("high_water", number.duration(pool["high_water_s"])),
            ("prompt_tokens", number.compact(pool["prompt_tokens"])),
            ("generated_tokens", number.compact(pool["generated_tokens"])),
            ("hits", number.compact(pool["prefix_hit_tokens"])),
            ("retracted", number.compact(pool["retraction_count"])),
            ("bytes", number.byte_size(pool["link_bytes"])),
        ):
            columns.setdefault(key, []).append(text)
    return columns


def drills(body: Body, t: Say) -> dict[str, list[str]]:
    """Return a row a variant and drill: how much waited, and how long recovery took."""
    columns: dict[str, list[str]] = {}
    for name, found in body["policies"].items():
        for drill in found["recoveries"]:
            took = drill["time_to_recover_s"]
            for key, text in (
                ("variant", str(name)),
                ("drill", t(f"replay.drill_{drill['kind'].replace('-', '_')}")),
                ("began", number.duration(drill["began_at_s"])),
                ("waiting_before", number.compact(drill["waiting_before_count"])),
                ("waiting_peak", number.compact(drill["waiting_peak_count"])),
                ("recovered", t("replay.never_recovered") if took is None else number.duration(took)),
            ):
                columns.setdefault(key, []).append(text)
    return columns


def moment(rows: Sequence[Mapping[str, Any]], t: Say) -> dict[str, list[str]]:
    """Return a row a request placed around a moment."""
    columns: dict[str, list[str]] = {}
    for row in rows:
        outcome = t(f"replay.outcome_{row['outcome']}")
        for key, text in (
            ("arrived", f"{row['arrival_s']:.2f} s"),
            ("prompt", number.compact(row["prompt_tokens"])),
            ("output", number.compact(row["output_tokens"])),
            ("prefill", row["prefill"] or number.ABSENT),
            ("decode", row["decode"] or number.ABSENT),
            ("hit", number.compact(row["hit_tokens"])),
            ("ttft", number.duration(row["ttft_s"])),
            ("outcome", outcome),
        ):
            columns.setdefault(key, []).append(text)
    return columns
