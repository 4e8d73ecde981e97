"""Dynamo's mockers of its SGLang engine, as captured under load: what waits is known, and whose id is whose."""

from pathlib import Path

from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer
from scoring.model import Role, WorkerReading

FOLDER = Path(__file__).resolve().parent.parent / "payloads" / "dynamo" / "1.6.1-sglang"
WORKER = (FOLDER / "decode_worker_metrics_underload.txt").read_bytes()
FRONTEND = (FOLDER / "frontend_metrics_underload.txt").read_bytes()


def read(body: bytes, name: str) -> WorkerReading:
    given = {"/metrics": Answer(status=200, content_type="text/plain", body=body, received_at_s=1.0)}
    assert identify(given) is ENGINES[name]
    reading = ENGINES[name].understand(given)
    assert isinstance(reading, WorkerReading)
    return reading


def test_one_queue_of_an_engine_without_a_role_is_all_that_waits():
    """15 running and a main queue of 0: nothing waits, which is known; capacity and use are not, and stay unknown."""
    (pool,) = read(WORKER, "dynamo").pools
    assert pool.role is Role.UNKNOWN
    assert (pool.running_count, pool.queue_main_count, pool.waiting_count) == (15, 0, 0)
    assert (pool.usable_tokens, pool.used_tokens, pool.reported_usage_ratio) == (None, None, None)
    longer = WORKER.replace(b'sglang:num_queue_reqs{engine_type="sglang"', b'sglang:num_queue_reqs{engine_type="x"')
    lines = [line[: line.rindex(b" ")] + b" 7" if b"num_queue_reqs{" in line else line for line in longer.split(b"\n")]
    assert read(b"\n".join(lines), "dynamo").pools[0].waiting_count == 7


def test_another_queue_beside_it_leaves_the_sum_unknown():
    """With a queue of decode and no role, which queues make up the waiting ones is not known: no sum is made up."""
    more = b'\nsglang:num_decode_prealloc_queue_reqs{engine_type="sglang",model_name="tiny"} 3\n'
    assert read(WORKER + more, "dynamo").pools[0].waiting_count is None


def test_the_frontend_s_rows_name_the_worker_by_the_same_number():
    """The worker writes its id in hexadecimal, the frontend in decimal: the fact shows the frontend's form."""
    instance = read(WORKER, "dynamo").facts["worker id"]
    rows = read(FRONTEND, "dynamo-frontend").router_workers
    mine = [row for row in rows if row.url == f"dynamo://{instance}"]
    assert [(row.dp_rank, row.role) for row in mine] == [(0, Role.DECODE), (1, Role.DECODE)]
    assert [row.load_tokens for row in mine] == [4633, 4191]
