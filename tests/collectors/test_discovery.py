"""Lists of workers: every shape folded into one worker an address, the last good list kept, what leaves marked."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from collectors.addresses import base_url, host_port, safe_url, split_rank
from collectors.discovery import Discovery, Target, merge, router_targets
from collectors.errors import DiscoveryError
from collectors.settings import Settings
from scoring.model import Role

PAYLOADS = Path(__file__).resolve().parents[1] / "payloads"


def fleet(**tables: Any) -> Settings:
    return Settings.model_validate(tables)


def client(respond: Any) -> httpx.MockTransport:
    return httpx.MockTransport(respond)


def ranks(host: str, count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"url": f"http://{host}:30000@{rank}", "worker_type": "regular", **fields} for rank in range(count)]


def test_ranks_of_one_address_fold_into_one_worker() -> None:
    """Eight router entries `host@0..3` of two nodes are two workers, without a rank in any address."""
    rows = [*ranks("node-1", 4, dp_size=4), *ranks("node-2", 4, dp_base_url="http://node-2:30000")]
    found = router_targets({"workers": rows, "total": 8}, None)
    assert [target.url for target in found.targets] == ["http://node-1:30000", "http://node-2:30000"]
    assert {target.role for target in found.targets} == {Role.UNIFIED}
    assert found.skipped_count == 0


def test_the_order_of_a_router_s_list_does_not_matter() -> None:
    """The same entries in any order give the same workers."""
    rows = [*ranks("b", 2), *ranks("a", 3)]
    forward = sorted(target.url for target in router_targets({"workers": rows}, None).targets)
    backward = sorted(target.url for target in router_targets({"workers": rows[::-1]}, None).targets)
    assert forward == backward


@pytest.mark.parametrize(
    "document",
    [
        ["http://a:1", "http://b:1"],
        {"urls": ["http://a:1", "http://b:1@0", "http://b:1@1"]},
        {"workers": [{"worker": "http://a:1", "load": -1}, {"worker": "http://b:1@3", "load": 7}]},
        {"workers": [{"url": "http://a:1"}, {"url": "http://b:1/"}, {"url": "grpc://c:1"}, {"id": 3}, None, 5]},
    ],
)
def test_every_shape_of_a_router_s_answer_is_read(document: Any) -> None:
    """Addresses alone, /get_loads rows, rows with odd neighbours: the same two workers; gRPC and junk are counted."""
    found = router_targets(document, None)
    assert [target.url for target in found.targets] == ["http://a:1", "http://b:1"]
    rows = document if isinstance(document, list) else next(iter(document.values()))
    unusable = [row for row in rows if not isinstance(row, str | dict) or row in ({"url": "grpc://c:1"}, {"id": 3})]
    assert found.skipped_count == len(unusable)


@pytest.mark.parametrize("document", [None, 3, "x", {}, {"workers": None}, {"workers": {"a": 1}}])
def test_what_is_no_list_is_an_error_in_words(document: Any) -> None:
    """An answer without a list is refused, not taken for an empty fleet."""
    with pytest.raises(DiscoveryError, match="list of workers"):
        router_targets(document, None)


@pytest.mark.parametrize("name", ["router/**/*workers*.json", "smg/**/*workers*.json"])
def test_recorded_routers_are_read(name: str) -> None:
    """The captured /workers bodies name their prefill and decode workers, each once."""
    files = sorted(PAYLOADS.glob(name))
    assert files
    for file in files:
        found = router_targets(json.loads(file.read_bytes()), None)
        assert found.targets
        urls = [target.url for target in found.targets]
        assert len(set(urls)) == len(urls)
        assert all("@" not in url for url in urls)


def test_a_router_s_roles_and_a_fleet_file_s_labels_meet_in_one_worker() -> None:
    """The fleet file wins, the router fills what it leaves unknown; the address is polled once."""
    settings = fleet(
        workers=[{"url": "http://a:1", "name": "left", "rack": "r1"}],
        discovery={"sglang_router": ["http://router:9"], "is_router_watched": True},
    )
    rows = [{"url": "http://a:1@0", "worker_type": "prefill", "model_id": "m"}, {"url": "http://b:1"}]

    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/workers"
        return httpx.Response(200, json={"workers": rows})

    async def main() -> tuple[Target, ...]:
        async with client(respond) as http:
            return await Discovery(settings, http).refresh(10.0)

    found = {target.worker_id: target for target in asyncio.run(main())}
    assert set(found) == {"left", "b:1", "router router:9"}
    assert found["left"].role is Role.PREFILL
    assert not found["left"].is_role_set
    assert found["left"].labels == {"rack": "r1", "model": "m"}


def test_a_failing_list_keeps_its_workers_and_says_so_and_a_vanished_worker_is_marked() -> None:
    """An unreadable list changes only its report; a readable one without a worker marks it, an hour later drops it."""
    answers: list[Any] = [
        {"workers": [{"url": "http://a:1"}, {"url": "http://b:1"}]},
        None,
        {"workers": [{"url": "http://a:1"}]},
        {"workers": [{"url": "http://a:1"}]},
        {"workers": [{"url": "http://a:1"}, {"url": "http://b:1"}]},
    ]

    def respond(_: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        return httpx.Response(500) if answer is None else httpx.Response(200, json=answer)

    settings = fleet(discovery={"sglang_router": ["http://router:9"], "is_router_watched": False})

    async def main() -> list[dict[str, float | None]]:
        async with client(respond) as http:
            discovery = Discovery(settings, http)
            seen = []
            for at_s in (10.0, 20.0, 30.0, 30.0 + 3601.0, 5000.0):
                targets = await discovery.refresh(at_s)
                seen.append({target.worker_id: target.vanished_at_s for target in targets})
                (report,) = discovery.reports
                assert bool(report.error) == (at_s == 20.0)
                assert report.worker_count in (1, 2)
        return seen

    assert asyncio.run(main()) == [
        {"a:1": None, "b:1": None},
        {"a:1": None, "b:1": None},
        {"a:1": None, "b:1": 30.0},
        {"a:1": None},
        {"a:1": None, "b:1": None},
    ]


def test_a_router_without_workers_path_is_asked_for_its_loads() -> None:
    """Older routers answer 404 to /workers; /get_loads names the workers too."""

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/workers":
            return httpx.Response(404)
        return httpx.Response(200, json={"workers": [{"worker": "http://a:1", "load": 3}]})

    settings = fleet(discovery={"sglang_router": ["http://router:9"], "is_router_watched": False})

    async def main() -> tuple[Target, ...]:
        async with client(respond) as http:
            return await Discovery(settings, http).refresh(1.0)

    assert [target.url for target in asyncio.run(main())] == ["http://a:1"]


def test_scrape_lists_are_read_again_while_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns and labels; a changed file is seen at the next reading; the token is sent, not kept."""
    monkeypatch.setenv("KVSCOPE_TEST_TOKEN", "t0p-s3cret")
    (tmp_path / "one.json").write_text(
        json.dumps(
            [
                {
                    "targets": ["h1:30000"],
                    "labels": {"role": "decode", "name": "d0", "rack": "r1", "__scheme__": "https", "__meta_x": "y"},
                },
                {"targets": ["h2:30000", 5, "::bad::"]},
                "junk",
            ]
        )
    )
    headers = []

    def respond(request: httpx.Request) -> httpx.Response:
        headers.append(request.headers.get("authorization"))
        return httpx.Response(200, json=[{"targets": ["h3:1"], "labels": {"engine": "vllm"}}])

    settings = fleet(
        discovery={
            "file_sd": [tmp_path / "*.json"],
            "http_sd": ["http://sd:1/targets?env=abc"],
            "token_env": "KVSCOPE_TEST_TOKEN",
        }
    )

    async def main() -> None:
        async with client(respond) as http:
            discovery = Discovery(settings, http)
            found = {target.worker_id: target for target in await discovery.refresh(1.0)}
            assert set(found) == {"d0", "h2:30000", "h3:1"}
            assert found["d0"].url == "https://h1:30000"
            assert found["d0"].role is Role.DECODE
            assert found["d0"].labels == {"rack": "r1"}
            assert found["h3:1"].engine == "vllm"
            assert [report.skipped_count for report in discovery.reports] == [3, 0]
            assert "env=abc" not in repr(found) + repr(discovery.reports)
            (tmp_path / "two.json").write_text(json.dumps([{"targets": ["h4:1"]}]))
            assert "h4:1" in {target.worker_id for target in await discovery.refresh(2.0)}
            (tmp_path / "two.json").write_text("{half")
            kept = {target.worker_id for target in await discovery.refresh(3.0)}
            assert "h4:1" in kept, "a half-written file keeps the last list"
            assert any("not JSON" in report.error for report in discovery.reports)

    asyncio.run(main())
    assert set(headers) == {"Bearer t0p-s3cret"}


@pytest.mark.parametrize(
    "respond",
    [
        lambda _: httpx.Response(302, headers={"location": "http://elsewhere:1/workers"}),
        lambda _: httpx.Response(200, content=b"x" * (17 * 1024 * 1024)),
        lambda _: httpx.Response(200, content=b"[" * 100_000),
        lambda _: httpx.Response(200, content=b"<html>"),
        lambda _: (_ for _ in ()).throw(httpx.ConnectError("refused")),
    ],
)
def test_a_bad_list_is_a_report_and_never_raises(respond: Any) -> None:
    """A redirect, a huge body, deep nesting, HTML and a dead server end in one sentence each."""
    settings = fleet(
        workers=[{"url": "http://static:1"}],
        discovery={"sglang_router": ["http://router:9"], "is_router_watched": False},
    )

    async def main() -> None:
        async with client(respond) as http:
            discovery = Discovery(settings, http)
            assert [target.worker_id for target in await discovery.refresh(1.0)] == ["static:1"]
            assert "the last list is kept" in discovery.reports[0].error

    asyncio.run(main())


def test_two_workers_that_want_one_name_both_stay() -> None:
    """A name belongs to the first address; the second is called by host:port, and none is lost."""
    one, two = Target(worker_id="x", url="http://a:1"), Target(worker_id="x", url="http://b:1")
    assert {target.worker_id for target in merge([[one], [two]])} == {"x", "b:1"}


def test_credentials_and_queries_never_survive_an_address() -> None:
    """What may be shown of an address holds no user name, password, query or fragment; a rank is no user name."""
    assert safe_url("https://user:pw@host:1/p?token=x#f") == "https://host:1/p"
    assert base_url("http://user:pw@Host:80/p/?q#f") == "http://host/p"
    assert split_rank("http://h:1@3") == ("http://h:1", 3)
    assert split_rank("http://user@h:1") == ("http://user@h:1", None)
    assert host_port("http://[::1]:5/a") == "[::1]:5|a"
    for wrong in ("", "x", "ftp://a", "http://", "http://a:b"):
        with pytest.raises(ValueError):
            base_url(wrong)
