"""
Fidelity on paper data: fit to a part of published measurements, predict the rest.

Splits are fixed and by size or by time, never at random: a random split would let a fit see its own neighbours.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scoring.calibration import LinearFit, Told, fit_linear
from scoring.calibration_service import DECODE_NAMES, PREFILL_NAMES
from scoring.model import FloatArray, Role
from scoring.service import PROFILES, ServiceProfile
from simulation.fleet import FleetSpec, PoolSpec
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

MIN_GROUP = 40
LARGE_BATCH_COUNT = 64


@dataclass(frozen=True)
class Row:
    """One line of a table: what was predicted, from how many rows, of how many, and how far off."""

    what: str
    fit_count: int
    held_count: int
    median_error_ratio: float
    p95_error_ratio: float
    bias_ratio: float


def _row(what: str, fit_count: int, predicted: FloatArray, actual: FloatArray) -> Row:
    error = predicted / actual - 1.0
    return Row(
        what=what,
        fit_count=fit_count,
        held_count=len(actual),
        median_error_ratio=float(np.median(np.abs(error))),
        p95_error_ratio=float(np.quantile(np.abs(error), 0.95)),
        bias_ratio=float(np.median(error)),
    )


def _values(fit: LinearFit) -> FloatArray:
    return np.array([each.value or 0.0 for each in fit.coefficients])


def _fitted(names: Sequence[str], design: FloatArray, target: FloatArray, min_rows: int = 8) -> LinearFit:
    weights = 1.0 / target**2
    return fit_linear(names, design, target, weights, prior=[1e-3, 1e-6, 1e-9][: len(names)], min_rows=min_rows)


def splitwise(path: Path) -> list[Row]:
    """
    Return errors on Splitwise's measurements: every second prompt size and batch held out, prompt and token time.

    Prompt time of a batch is that of its tokens together; token time reads batch * (prompt + half the output).
    """
    data = pd.read_csv(path)
    rows = []
    for (model, hardware, tp), group in data.groupby(["model", "hardware", "tensor_parallel"]):
        sizes = sorted(group.prompt_size.unique())
        batches = sorted(group.batch_size.unique())
        is_held = group.prompt_size.isin(sizes[1::2]) & (group.prompt_size != 512) | group.batch_size.isin(
            batches[2::2]
        )
        name = f"{model} {hardware} tp{tp}"
        tokens = (group.prompt_size * group.batch_size).to_numpy(np.float64)
        design = np.stack([np.ones(len(group)), tokens, tokens * group.prompt_size.to_numpy(np.float64)], axis=1)
        rows.append(_split(f"prompt time, {name}", PREFILL_NAMES, design, group.prompt_time.to_numpy() / 1e3, is_held))
        batch = group.batch_size.to_numpy(np.float64)
        kv = batch * (group.prompt_size + group.token_size / 2.0).to_numpy(np.float64)
        steps = np.stack([np.ones(len(group)), batch, kv], axis=1)
        rows.append(_split(f"token time, {name}", DECODE_NAMES, steps, group.token_time.to_numpy() / 1e3, is_held))
    return rows


def _split(what: str, names: Sequence[str], design: FloatArray, target: FloatArray, is_held: Any) -> Row:
    held = np.asarray(is_held, dtype=bool)
    fit = _fitted(names, design[~held], target[~held])
    return _row(what, int((~held).sum()), design[held] @ _values(fit), target[held])


def aiconfigurator(path: Path) -> list[Row]:
    """
    Return errors on the silicon sample, one group a model, system, engine, precision and parallel split with at least
    MIN_GROUP rows: every second concurrency held out.

    TPOT takes batch and KV of the concurrency, two laws joined at batch LARGE_BATCH_COUNT (large mixtures of experts
    bend there); TTFT is a prompt of its own length plus the prompts that share its steps.
    """
    data = pd.read_csv(path)
    data = data[(data["mode"] == "agg") & data.batch_size.notna() & (data.silicon_ttft_ms < 60_000)]
    keys = ["model_path", "system", "backend", "precision", "tp_size", "moe_ep_size", "attention_dp_size"]
    rows = []
    for key, group in data.groupby(keys, dropna=False):
        if len(group) < MIN_GROUP or group.batch_size.nunique() < 6:
            continue
        batch = group.batch_size.to_numpy(np.float64)
        place = {size: at for at, size in enumerate(sorted(set(batch.tolist())))}
        held = np.array([place[each] % 2 == 1 for each in batch.tolist()])
        isl, osl = group.isl.to_numpy(np.float64), group.osl.to_numpy(np.float64)
        name = f"{str(key[0]).rpartition('/')[2]} {key[1]} {key[2]} {key[3]} tp{key[4]:.0f}"
        design = np.stack([np.ones(len(group)), batch, batch * (isl + osl / 2.0)], axis=1)
        tpot = group.silicon_tpot_ms.to_numpy() / 1e3
        predicted = np.full(len(group), np.nan)
        for part in (batch < LARGE_BATCH_COUNT, batch >= LARGE_BATCH_COUNT / 2):
            if (part & ~held).sum() >= 8:
                values = _values(_fitted(DECODE_NAMES, design[part & ~held], tpot[part & ~held]))
                wanted = part & (np.isnan(predicted) | (batch >= LARGE_BATCH_COUNT))
                predicted[wanted] = design[wanted] @ values
        usable = held & np.isfinite(predicted)
        if usable.sum() < 8:
            continue
        rows.append(_row(f"TPOT, {name}", int((~held).sum()), predicted[usable], tpot[usable]))
        prompts = np.stack([np.ones(len(group)), isl, isl * batch], axis=1)
        ttft = group.silicon_ttft_ms.to_numpy() / 1e3
        values = _values(_fitted(PREFILL_NAMES, prompts[~held], ttft[~held]))
        rows.append(_row(f"TTFT, {name}", int((~held).sum()), prompts[held] @ values, ttft[held]))
    return rows


@dataclass(frozen=True)
class Recorded:
    """A recorded run: request columns in seconds since the first arrival, and what the engine was told."""

    name: str
    arrival_s: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    budget_tokens: int
    max_running_count: int
    usable_tokens: int
    block_size_tokens: int


def recorded(folder: Path, unknown_usable_tokens: int = 400_000) -> Recorded:
    """Read one of the recorded vLLM runs; where its capacity is not written down it is taken as not binding."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    requests.sort(key=lambda each: each["queued_ts"])
    table = {
        name: np.array([each[name] for each in requests], dtype=np.float64)
        for name in requests[0]
        if name != "request_id"
    }
    start = table["queued_ts"].min()
    cache = meta.get("kv_cache", {})
    return Recorded(
        name=folder.name,
        arrival_s=table["queued_ts"] - start,
        prompt_tokens=table["input_toks"],
        output_tokens=table["output_toks"],
        first_s=table["first_token_ts"] - start,
        last_s=table["last_token_ts"] - start,
        budget_tokens=meta["engine_kwargs"]["max_num_batched_tokens"],
        max_running_count=meta["engine_kwargs"]["max_num_seqs"],
        usable_tokens=cache.get("num_kv_tokens", unknown_usable_tokens),
        block_size_tokens=cache.get("block_size", 16),
    )


def fit_requests(run: Recorded, is_fit: FloatArray, step_s: float = 0.25) -> LinearFit:
    """
    Return step coefficients from what requests saw: each one's mean gap is the mean of the steps of its life.

    A mixed step also computes prompt tokens, so a fourth column is the prompt tokens a step carried; it is the
    per-token cost of prompts. Rows are averages over a request's life, from the lives of all that ran beside it.
    """
    edges = np.arange(0.0, run.last_s.max() + step_s, step_s)
    middle = edges[:-1] + step_s / 2
    is_running = (run.first_s[:, None] <= middle) & (middle < run.last_s[:, None])
    span = np.maximum(run.last_s - run.first_s, 1e-9)
    progress = np.clip((middle[None, :] - run.first_s[:, None]) / span[:, None], 0.0, 1.0)
    kv = ((run.prompt_tokens[:, None] + progress * run.output_tokens[:, None]) * is_running).sum(axis=0)
    batch = is_running.sum(axis=0).astype(np.float64)
    # A prompt is computed before its first token; it is booked into the quarter second that ends there.
    prompts = np.zeros(len(middle))
    np.add.at(prompts, np.clip((run.first_s / step_s).astype(int), 0, len(middle) - 1), run.prompt_tokens / step_s)
    gap = span / np.maximum(run.output_tokens - 1.0, 1.0)
    rows = []
    for at in np.flatnonzero(is_fit & (run.output_tokens >= 16)):
        life = is_running[at]
        if life.sum() < 4:
            continue
        rows.append((1.0, batch[life].mean(), kv[life].mean(), prompts[life].mean() * gap[at], gap[at]))
    table = np.array(rows)
    names = (*DECODE_NAMES, "prefill_per_token_s")
    prior = (0.01, 2e-5, 5e-8, 1e-4)
    return fit_linear(names, table[:, :4], table[:, 4], 1.0 / table[:, 4] ** 2, prior=prior, min_rows=20)


def profile_of(fit: LinearFit, name: str) -> ServiceProfile:
    """Return the fit as a profile; its context term of prompts is left at 0 (recorded runs do not tell it)."""
    values = {each.name: each.value or 0.0 for each in fit.coefficients}
    base = PROFILES["llama-3.1-8b-h100-tp1"]
    return ServiceProfile(
        name=name,
        source="fitted to recorded requests",
        prefill_base_s=0.0,
        prefill_per_token_s=values["prefill_per_token_s"],
        prefill_per_token2_s=0.0,
        decode_base_s=values["decode_base_s"],
        decode_per_sequence_s=values["decode_per_sequence_s"],
        decode_per_token_s=values["decode_per_token_s"],
        bytes_per_token=base.bytes_per_token,
    )


@dataclass(frozen=True)
class RunErrors:
    """Predicted against recorded, over the held-out half of the requests; seconds."""

    name: str
    fit: LinearFit
    held_count: int
    figures: tuple[tuple[str, float, float], ...]
    per_request_ttft_ratio: float
    per_request_tpot_ratio: float


def vllm_run(run: Recorded) -> RunErrors:
    """Fit on the requests of the first half that ended in it, replay all, compare the second half."""
    middle = float(np.median(run.arrival_s))
    ended = float(np.quantile(run.last_s, 0.5))
    fit = fit_requests(run, run.last_s <= ended)
    pool = PoolSpec(
        worker="vllm",
        role=Role.UNIFIED,
        usable_tokens=run.usable_tokens,
        block_size_tokens=run.block_size_tokens,
        profile=profile_of(fit, run.name),
        max_running_count=run.max_running_count,
        prefill_budget_tokens=run.budget_tokens,
        is_prefix_cached=False,
        is_mixed=True,
    )
    traffic = TrafficArrays(
        arrival_s=run.arrival_s,
        prompt_tokens=run.prompt_tokens.astype(np.int64),
        output_tokens=run.output_tokens.astype(np.int64),
    )
    found = simulate(traffic, FleetSpec(pools=(pool,)), options=SimulationOptions(sample_period_s=0.0)).requests
    held = run.arrival_s > middle
    ttft, tpot = run.first_s - run.arrival_s, (run.last_s - run.first_s) / np.maximum(run.output_tokens - 1.0, 1.0)
    e2e = run.last_s - run.arrival_s
    pairs = (("TTFT", found.ttft_s, ttft), ("TPOT", found.tpot_s, tpot), ("E2E", found.e2e_s, e2e))
    figures = []
    for name, predicted, actual in pairs:
        known = held & np.isfinite(predicted) & (run.output_tokens > 1)
        figures.append((f"{name} mean", float(predicted[known].mean()), float(actual[known].mean())))
        figures += [
            (f"{name} p{q * 100:.0f}", float(np.quantile(predicted[known], q)), float(np.quantile(actual[known], q)))
            for q in (0.5, 0.95, 0.99)
        ]
    known = held & np.isfinite(found.tpot_s) & (run.output_tokens > 1)
    return RunErrors(
        name=run.name,
        fit=fit,
        held_count=int(known.sum()),
        figures=tuple(figures),
        per_request_ttft_ratio=float(np.median(np.abs(found.ttft_s[known] / ttft[known] - 1.0))),
        per_request_tpot_ratio=float(np.median(np.abs(found.tpot_s[known] / tpot[known] - 1.0))),
    )


def told(fit: LinearFit) -> str:
    """Return the coefficients in words."""
    return ", ".join(
        f"{each.name} {each.value or 0.0:.3g}{'' if each.told is Told.FITTED else f' ({each.told.value})'}"
        for each in fit.coefficients
    )
