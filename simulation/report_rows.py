"""One row a request and variant, as a table for export: what everything else can be computed from again."""

import numpy as np
import pandas as pd

from simulation.compare import Comparison
from simulation.result import OUTCOMES
from simulation.trace import Trace

_TIMES = (
    *("arrival_s", "prefill_start_s", "prefill_end_s", "transfer_start_s", "transfer_end_s", "first_token_s"),
    *("finish_s", "link_bytes"),
)
_WHOLE = (
    *("prompt_tokens", "output_tokens", "generated_tokens", "hit_tokens", "retraction_count", "recomputed_tokens"),
    "reroute_count",
)


def request_frame(comparison: Comparison, trace: Trace) -> pd.DataFrame:
    """
    Return a row for each request of each run that was kept whole.

    Columns: `variant`, `seed`, `row` (line of the file; none for a burst's extra requests), times in seconds of the
    run (empty where it never came so far), `outcome`, `prefill_pool`, `decode_pool`, token counts, the three latencies.
    """
    parts = []
    for item in comparison.variants:
        for run in item.runs:
            result = run.result
            if result is None:
                continue
            requests = result.requests
            names = np.array([*(pool.pool_id for pool in result.fleet.pools), None], dtype=object)
            count = len(requests.arrival_s)
            rows = pd.array([pd.NA] * count, dtype="Int64")
            known = min(count, len(trace.row_numbers))
            rows[:known] = trace.row_numbers[:known]
            columns = {
                "variant": item.variant.name,
                "seed": run.seed,
                "row": rows,
                **{name: getattr(requests, name) for name in _TIMES},
                "outcome": np.array(OUTCOMES, dtype=object)[requests.outcome],
                "prefill_pool": names[requests.prefill],
                "decode_pool": names[requests.decode],
                **{name: getattr(requests, name) for name in _WHOLE},
                "class_id": requests.class_ids,
                "tenant_id": requests.tenant_ids,
                "ttft_s": requests.ttft_s,
                "tpot_s": requests.tpot_s,
                "e2e_s": requests.e2e_s,
            }
            parts.append(pd.DataFrame(columns))
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, ignore_index=True)
