"""
Replay of Mooncake's conversation trace: 12,031 requests, 4.12 M output tokens, 6 prefill and 2 decode workers,
Dynamo's polynomial times, blocks of 64 tokens, composition of every pool each second.

DynoSim (`pip install ai-dynamo`) runs the same in a process of its own in between, where its interpreter is found:
KVSCOPE_DYNAMO_PYTHON, or `dynamo/bin/python` under KVSCOPE_ENGINES or ~/.cache/kvscope-engines.
"""

import json
import os
import resource
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from scoring.model import Role
from scoring.service import PROFILES
from simulation.compiled import compiled_run
from simulation.fleet import FleetSpec, PoolSpec, disaggregated_fleet
from simulation.simulate import SimulationOptions, simulate
from simulation.traffic import TrafficArrays

TRACE = "data/traces/mooncake_conversation.jsonl"
POLICIES = (("round-robin", "round_robin"), ("joint", "kv_router"))
REPEATS = 7
BLOCK_TOKENS = 64

DYNOSIM = """
import sys, time
from dynamo.replay import run_trace_replay
trace, router, blocks = sys.argv[1:4]
def engine(kind):
    return {"engine": {"backend": "sglang", "num_gpu_blocks": int(blocks), "block_size": 64, "max_num_seqs": 256,
        "max_num_batched_tokens": 8192, "worker_type": kind, "kv_transfer_bandwidth": 64.0,
        "kv_transfer_bytes_per_token": 70272}}
began = time.perf_counter()
run_trace_replay(trace, trace_block_size=512, router_mode=router, prefill_engine_args=engine("prefill"),
    decode_engine_args=engine("decode"), num_prefill_workers=6, num_decode_workers=2)
print(time.perf_counter() - began)
"""


def trace_path() -> Path | None:
    """Return the trace in the shared collection, or None."""
    root = Path(os.environ.get("KVSCOPE_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    path = root / TRACE
    return path if path.is_file() else None


def read_mooncake(path: Path) -> TrafficArrays:
    """Read a Mooncake trace whole."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lengths = [len(row["hash_ids"]) for row in rows]
    return TrafficArrays(
        arrival_s=np.array([row["timestamp"] for row in rows]) / 1e3,
        prompt_tokens=np.array([row["input_length"] for row in rows]),
        output_tokens=np.array([row["output_length"] for row in rows]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        hash_ids=np.concatenate([row["hash_ids"] for row in rows]),
        hash_block_tokens=512,
    )


def fleet(blocks: int) -> FleetSpec:
    """Return 6 prefill and 2 decode workers as DynoSim has them by default."""
    base = PoolSpec(
        worker="x",
        role=Role.PREFILL,
        usable_tokens=blocks * BLOCK_TOKENS,
        block_size_tokens=BLOCK_TOKENS,
        profile=PROFILES["dynamo-mocker"],
        is_output_cached=True,
    )
    return disaggregated_fleet(6, 2, prefill=base, decode=base, rules=[("handshake", "after-prefill")])


def dynosim_python() -> str | None:
    """Return the interpreter that has DynoSim, or None."""
    folder = Path(os.environ.get("KVSCOPE_ENGINES", Path.home() / ".cache" / "kvscope-engines"))
    path = os.environ.get("KVSCOPE_DYNAMO_PYTHON", str(folder / "dynamo" / "bin" / "python"))
    return path if Path(path).is_file() else None


def dynosim_s(python: str, trace: Path, router: str, blocks: int) -> float | None:
    """Return the seconds DynoSim takes for the replay itself, or None when it does not run here."""
    done = subprocess.run(
        [python, "-c", DYNOSIM, str(trace), router, str(blocks)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.split()
    return float(lines[-1]) if done.returncode == 0 and lines else None


def run() -> list[tuple[str, float, str]]:
    """Return the rows of the table: our wall time (median), requests/s, memory, and the ratio to DynoSim."""
    trace = trace_path()
    if trace is None:
        return []
    traffic = read_mooncake(trace)
    began = time.perf_counter()
    compiled_run()
    rows: list[tuple[str, float, str]] = [("kernel at hand (compiled or from cache)", time.perf_counter() - began, "s")]
    python = dynosim_python()
    for blocks in (8192, 16384):
        for policy, router in POLICIES:
            walls, peers = [], []
            for i in range(REPEATS):
                began = time.perf_counter()
                result = simulate(traffic, fleet(blocks), policy, seed=1, options=SimulationOptions(is_compiled=True))
                walls.append(time.perf_counter() - began)
                if python and i < 2 and (peer := dynosim_s(python, trace, router, blocks)) is not None:
                    peers.append(peer)
            wall = statistics.median(walls)
            name = f"{policy}, {blocks} blocks"
            rows.append((f"{name}: whole run", wall, "s"))
            rows.append((f"{name}: requests", len(traffic) / wall, "/s"))
            rows.append((f"{name}: mean TTFT", float(np.nanmean(result.requests.ttft_s)), "s"))
            rows.append((f"{name}: mean TPOT", 1e3 * float(np.nanmean(result.requests.tpot_s)), "ms"))
            rows.append((f"{name}: retractions", float(result.requests.retraction_count.sum()), ""))
            if peers:
                rows.append((f"{name}: DynoSim with {router}", min(peers), "s"))
                rows.append((f"{name}: times as fast as DynoSim", min(peers) / wall, "x"))
    rows.append(("peak memory of this process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"))
    return rows
