"""Bare-socket workers for `benchmarks.poll`: `python -m benchmarks.poll_server COUNT HAS_METRICS` prints its port."""

import asyncio
import sys
import time

from benchmarks.poll import address

LOADS = (
    '{"timestamp":"2026-11-30T08:57:02.760593+00:00","version":"0.5.23","accelerator":"NVIDIA H200",'
    '"num_accelerators":1,"loads":[{"timestamp":%.6f,"dp_rank":0,"num_running_reqs":%d,"num_waiting_reqs":%d,'
    '"num_waiting_uncached_tokens":0,"num_used_tokens":%d,"num_total_tokens":%d,"num_active_tokens":%d,'
    '"num_prealloc_ready_tokens":0,"max_total_num_tokens":262144,"max_running_requests":2048,"token_usage":0.586,'
    '"gen_throughput":487.12,"cache_hit_rate":0.679,"utilization":0.0,"total_prefill_uncached_tokens":%d,'
    '"total_prefill_busy_us":%d,"decode_moments":[%d.0,%d.0,9998105.0,291536.0,388684881.0,%d.0],'
    '"memory":{"weight_gb":0.011,"kv_cache_gb":0.019,"graph_gb":0.0,"token_capacity":262144},'
    '"disaggregation":{"mode":"null","prefill_bootstrap_queue_reqs":0,"prefill_inflight_queue_reqs":0,'
    '"decode_prealloc_queue_reqs":0,"decode_transfer_queue_reqs":0,"decode_retracted_queue_reqs":0,'
    '"kv_transfer_speed_gb_s":0.0,"kv_transfer_latency_ms":0.0},"queues":{"waiting":0,"grammar":0,"paused":0,'
    '"retracted":0,"prealloc_ready":0}}]}'
)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def metrics_body() -> bytes:
    """Return a body with the size and the families of a real server's (95 KB, most of it histogram buckets)."""
    label = 'engine_type="unified",model_name="bench",pid="1",pp_rank="0",tp_rank="0"'
    names = "num_running_reqs num_queue_reqs num_used_tokens token_usage gen_throughput cache_hit_rate"
    names += " kv_available_tokens kv_evictable_tokens kv_used_tokens max_total_num_tokens num_retracted_reqs"
    lines = []
    for name in names.split():
        lines += [f"# HELP sglang:{name} x", f"# TYPE sglang:{name} gauge", f"sglang:{name}{{{label}}} 1000.0"]
    for family in range(20):
        name = ("time_to_first_token_seconds", "inter_token_latency_seconds")[family] if family < 2 else f"h{family}"
        lines += [f"# HELP sglang:{name} x", f"# TYPE sglang:{name} histogram"]
        lines += [f'sglang:{name}_bucket{{{label},le="{bound / 10}"}} {bound}.0' for bound in range(1, 40)]
        lines += [f'sglang:{name}_bucket{{{label},le="+Inf"}} 40.0', f"sglang:{name}_count{{{label}}} 40.0"]
    return "\n".join(lines).encode() + b"\n"


class Worker(asyncio.Protocol):
    """One connection."""

    metrics = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = transport
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            path = self._rest.split(b" ", 2)[1]
            self._rest = self._rest[end + 4 :]
            self._transport.write(self._answer(path))  # type: ignore[attr-defined]

    def _answer(self, path: bytes) -> bytes:
        if path == b"/v1/loads":
            now = time.time()
            step = int(now * 10) % 1_000_000_000
            used = 100_000 + step % 50_000
            figures = (now - 0.02, step % 60, step % 9, used, used, used, step, step * 3, step, step * 7, step * 7)
            body = (LOADS % figures).encode()
            kind = b"application/json"
        elif path == b"/metrics" and Worker.metrics:
            body, kind = Worker.metrics, b"text/plain; version=0.0.4"
        else:
            return NOT_FOUND
        return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body)


async def main(count: int, has_metrics: bool) -> None:
    """Serve until standard input closes."""
    Worker.metrics = metrics_body() if has_metrics else b""
    loop = asyncio.get_running_loop()
    first = await loop.create_server(Worker, address(0), 0)
    port = first.sockets[0].getsockname()[1]
    servers = [first] + [await loop.create_server(Worker, address(i), port) for i in range(1, count)]
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] == "1"))
