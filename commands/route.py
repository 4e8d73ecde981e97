"""
`kvscope route`: where a request should go, and why not elsewhere, from a snapshot file, a store or a running KVScope.

Prints what the What-if page shows; `--json` prints it for programs. Nothing is booked. Exit status: 0 a pair was
chosen, 1 nothing admits the request (said why), 2 the fleet could not be read, 3 wrong use.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx

from collectors.errors import KvscopeError, StoreLockedError
from collectors.settings import Settings, load_settings
from collectors.store import instant_text, open_store
from commands import EXIT_WRONG_USE, refuse
from commands._snapshot import named_snapshot
from pages._decide_settings import decide_settings
from scoring.demand import OUTPUT_RANGE_TOKENS, PROMPT_RANGE_TOKENS, OutputQuantiles, RequestView, known_output
from scoring.model import FleetSnapshot, Link
from scoring.policy import POLICIES, DecideSettings, Decision, decide
from scoring.policy.explain import Term, explain_score
from scoring.policy.filters import EVERY, refusals, rejections_of
from scoring.policy.settings import DECIDERS, FALLBACKS, PICKS
from scoring.slo import SLO_CLASSES
from scoring.snapshot import JudgeSettings, judge_fleet

HELP = "Where a request should go on a fleet, by any policy, with every term and every rejection."
EXIT_CHOSEN, EXIT_REFUSED, EXIT_NOT_READ = 0, 1, 2
LOCK_WAIT_S: Final = 1.0
TOKEN_VARIABLE: Final = "KVSCOPE_TOKEN"  # noqa: S105 # the name of a variable, not a token
DEFAULT_SERVER: Final = "http://127.0.0.1:8501"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvscope route`."""
    parser.add_argument(
        "--prompt", type=int, required=True, metavar="TOKENS", help=f"prompt length, {_range(PROMPT_RANGE_TOKENS)}"
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument(
        "--output", type=int, metavar="TOKENS", help=f"expected output length, {_range(OUTPUT_RANGE_TOKENS)}"
    )
    length.add_argument(
        "--output-quantiles", metavar="Q=TOKENS,...", help="its distribution, for example 0.5=300,0.9=1200"
    )
    parser.add_argument("--class", dest="slo_class", default="interactive", help=f"one of {', '.join(SLO_CLASSES)}")
    parser.add_argument(
        "--prefix-hit", nargs="+", default=[], metavar="POOL=TOKENS", help="prompt tokens a pool holds already"
    )
    parser.add_argument(
        "--active-hit",
        nargs="+",
        default=[],
        metavar="POOL=TOKENS",
        help="the part of the hit that running sequences hold, so that it takes no room",
    )
    parser.add_argument("--model", help="served model wanted")
    parser.add_argument("--tenant", help="whose request it is")
    parser.add_argument("--session", help="session key, for policies with session affinity")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--snapshot", metavar="FILE", help="a snapshot file (docs/snapshot.md); - reads standard input")
    source.add_argument("--store", metavar="FILE", help="a store file, when no KVScope is running on it")
    source.add_argument(
        "--server", metavar="URL", help=f"a running KVScope (default {DEFAULT_SERVER}; its token in {TOKEN_VARIABLE})"
    )
    parser.add_argument("--at", type=float, metavar="EPOCH_S", help="a past instant of the store (default its end)")
    parser.add_argument("--fleet", metavar="FILE", help="fleet file whose classes, weights, reserve and links count")
    parser.add_argument("--policy", default="joint", help=f"one of {', '.join(POLICIES)}")
    parser.add_argument("--pick", default="best", choices=PICKS, help="how to choose among scores (default best)")
    parser.add_argument("--decider", default="policy", choices=DECIDERS, help="conditional disaggregation")
    parser.add_argument("--fallback", default="refuse", choices=FALLBACKS, help="when nothing passes the filters")
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn at random (default 0)")
    parser.add_argument("--top", type=int, default=10, help="rows of the ranking (default 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the decision; see the module for the exit status."""
    try:
        if not 0 <= args.seed < 2**64:
            raise ValueError(f"--seed is {args.seed}; allowed is 0 to {2**64 - 1}")
        request = _request(args)
        settings = load_settings(Path(args.fleet)) if args.fleet else Settings()
        asked = _asked_with(args, settings)
        fleet = _fleet(args, settings)
        if not fleet.pools:
            return refuse("route", _nothing_seen(args.at), EXIT_NOT_READ)
        request = replace(
            request,
            prefix_hit_tokens=_by_pool("--prefix-hit", request.prefix_hit_tokens, fleet),
            active_hit_tokens=_by_pool("--active-hit", request.active_hit_tokens, fleet),
        )
        links = _links(settings) or fleet.links
        decision = decide(request, fleet, args.policy, links=links, seed=args.seed, settings=asked)
    except StoreLockedError as error:
        held = f" (held by process {error.holder_pid})" if error.holder_pid else ""
        text = f"{args.store} is in use{held}: use --server {DEFAULT_SERVER} for a running KVScope, else stop it first"
        return refuse("route", text, EXIT_NOT_READ)
    except KvscopeError as error:
        return refuse("route", error, EXIT_NOT_READ if args.store else EXIT_WRONG_USE)
    except ValueError as error:
        return refuse("route", error)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        where = args.server or DEFAULT_SERVER
        return refuse(
            "route", f"cannot read {where}: {error}; give --snapshot FILE or --store FILE instead", EXIT_NOT_READ
        )
    except OSError as error:
        return refuse("route", f"cannot read {error.filename or args.snapshot}: {error.strerror}", EXIT_NOT_READ)
    decision = replace(decision, notes=(*decision.notes, *_unseen(decision, asked)))
    print(json.dumps(as_json(decision), indent=1, allow_nan=False) if args.json else _as_text(decision))
    return EXIT_REFUSED if decision.chosen is None else EXIT_CHOSEN


def _range(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]:,} to {bounds[1]:,}"


def _request(args: argparse.Namespace) -> RequestView:
    output = known_output(args.output) if args.output is not None else _quantiles(args.output_quantiles)
    return RequestView(
        prompt_tokens=args.prompt,
        output=output,
        prefix_hit_tokens=_pairs("--prefix-hit", args.prefix_hit),
        active_hit_tokens=_pairs("--active-hit", args.active_hit),
        slo_class=args.slo_class,
        tenant=args.tenant,
        model=args.model,
        session_id=args.session,
    )


def _quantiles(text: str) -> OutputQuantiles:
    points = []
    for part in text.split(","):
        left, found, right = part.partition("=")
        try:
            points.append((float(left), float(right)))
        except ValueError as error:
            raise ValueError(f"--output-quantiles: {part!r} is not Q=TOKENS, for example 0.9=1200") from error
        if not found:
            raise ValueError(f"--output-quantiles: {part!r} is not Q=TOKENS, for example 0.9=1200")
    return OutputQuantiles(points=tuple(points))


def _nothing_seen(at_s: float | None) -> str:
    """Return why a fleet without a pool has none."""
    if at_s is None:
        return "the fleet has no pools: is anything polled, and was anything stored?"
    try:
        when = instant_text(at_s)
    except (ValueError, OverflowError, OSError):
        when = f"{at_s:g} s"
    return f"nothing was seen at {when}: leave --at out for the newest look, or name a later instant"


def _pairs(option: str, items: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in items:
        name, equals, tokens = item.rpartition("=")
        if not equals or not name or not tokens.isdecimal():
            raise ValueError(f"{option}: {item!r} is not POOL=TOKENS, for example P-1/0=48000")
        if name in found:
            raise ValueError(f"{option}: {name} is given twice")
        found[name] = int(tokens)
    return found


def _by_pool(option: str, hits: Mapping[str, int], fleet: FleetSnapshot) -> dict[str, int]:
    """Return the hits by pool id; a worker's name stands for its pool where it has only one."""
    ids = {pool.pool_id for pool in fleet.pools}
    found: dict[str, int] = {}
    for name, tokens in hits.items():
        # P-1 is P-1/0 of a running fleet, and P-1/0 is P-1 of a file that names its pools so.
        worker = name.removesuffix("/0")
        mine = [name] if name in ids else [pool.pool_id for pool in fleet.pools if pool.worker_id == worker]
        if len(mine) > 1:
            raise ValueError(f"{option}: {name} has several pools; name one of {', '.join(mine[:12])}")
        if not mine:
            known = ", ".join(pool.pool_id for pool in fleet.pools[:12]) or "none"
            raise ValueError(f"{option}: the fleet has no pool {name}; it has {known}")
        if mine[0] in found:
            raise ValueError(f"{option}: {name} is given twice")
        found[mine[0]] = tokens
    return found


def _asked_with(args: argparse.Namespace, settings: Settings) -> DecideSettings:
    own = decide_settings(settings)
    return DecideSettings(
        classes=own.classes,
        reserve=own.reserve,
        pick=args.pick,
        decider=args.decider,
        fallback=args.fallback,
        top_count=args.top,
    )


def _links(settings: Settings) -> tuple[Link, ...]:
    return tuple(
        Link(
            source=each.source,
            target=each.target,
            bandwidth_bytes_per_s=each.bandwidth_bytes_per_s,
            latency_s=each.latency_s,
        )
        for each in settings.links
    )


def _fleet(args: argparse.Namespace, settings: Settings) -> FleetSnapshot:
    if args.snapshot:
        body = sys.stdin.buffer.read() if args.snapshot == "-" else Path(args.snapshot).read_bytes()
        return named_snapshot(body, "standard input" if args.snapshot == "-" else args.snapshot)
    if args.store:
        return _from_store(args.store, args.at, settings)
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    query = {} if args.at is None else {"at": repr(args.at)}
    url = f"{(args.server or DEFAULT_SERVER).rstrip('/')}/api/snapshot"
    answer = httpx.get(url, params=query, headers=headers, timeout=30.0)
    answer.raise_for_status()
    return named_snapshot(answer.content, url)


def _from_store(path: str, at_s: float | None, settings: Settings) -> FleetSnapshot:
    with open_store(path, read_only=True, wait_s=LOCK_WAIT_S) as store:
        span = store.time_span()
        if at_s is None:
            at_s = time.time() if span is None else span[1]
        window_s = max(settings.view.rate_window_s, settings.freshness.stale_after_s) * 2.0
        histories = store.latest_histories(at_s, window_s)
    judge = JudgeSettings(
        late_after_s=settings.freshness.late_after_s,
        stale_after_s=settings.freshness.stale_after_s,
        frozen_after_polls=settings.freshness.frozen_after_polls,
        rate_window_s=settings.view.rate_window_s,
    )
    return judge_fleet(histories, at_s, judge, links=_links(settings))


def as_json(decision: Decision) -> dict[str, Any]:
    """Return the decision as plain values: what `--json` prints."""
    chosen, runner_up = decision.chosen, decision.runner_up
    return {
        "policy": decision.policy,
        "at_s": decision.at_s,
        "seed": decision.seed,
        "chosen": None if chosen is None else {"prefill": chosen.prefill, "decode": chosen.decode},
        "score": decision.score,
        "score_unit": decision.score_unit,
        "terms": {term.name: _term(term) for term in decision.terms},
        "formula": explain_score(decision.terms) if decision.terms else None,
        "margin": decision.margin,
        "runner_up": None
        if runner_up is None
        else {
            "prefill": runner_up.prefill,
            "decode": runner_up.decode,
            "score": runner_up.score,
            "is_refused": runner_up.is_refused,
            "terms": {term.name: _term(term) for term in decision.runner_up_terms},
        },
        "ranking": [{"prefill": each.prefill, "decode": each.decode, "score": each.score} for each in decision.ranking],
        "rejections": [
            {"pool": each.pool, "filter": each.filter, "reason": each.reason, "have": each.have, "need": each.need}
            for each in decision.rejections
        ],
        "fallback": decision.fallback,
        "largest_fit_tokens": decision.largest_fit_tokens,
        "notes": list(decision.notes),
        "marks": _marks(decision),
        "ages_s": decision.ages_s(),
    }


def _unseen(decision: Decision, asked: DecideSettings) -> list[str]:
    """Return why KVScope would refuse the chosen pools where the policy, being what it is, does not look."""
    if decision.chosen is None or POLICIES[decision.policy].filters == EVERY:
        return []
    prepared = decision.prepared
    everything = rejections_of(prepared, asked, refusals(prepared, asked))
    taken = (decision.chosen.prefill, decision.chosen.decode)
    notes = [f"{decision.policy} does not see: {each.pool} [{each.filter}] {each.reason}"
             for each in everything if each.pool in taken]  # fmt: skip
    if notes and decision.largest_fit_tokens is not None:
        notes.append(f"the largest request that fits anywhere now has {decision.largest_fit_tokens:,.0f} tokens")
    return notes


def _term(term: Term) -> dict[str, Any]:
    return {
        "seconds": term.seconds,
        "normalised": term.normalised,
        "weight": term.weight,
        "contribution": term.contribution if abs(term.contribution) != float("inf") else None,
        "is_unknown": term.is_unknown,
        "scored_s": term.scored_s if abs(term.scored_s) != float("inf") else None,
        "formula": term.formula,
    }


def _marks(decision: Decision) -> Mapping[str, list[str]]:
    if decision.chosen is None:
        return {}
    names = dict.fromkeys((decision.chosen.prefill, decision.chosen.decode))
    return {name: list(decision.marks(name)) for name in names}


def _as_text(decision: Decision) -> str:
    lines = [f"policy     {decision.policy}: {POLICIES[decision.policy].source}"]
    chosen = decision.chosen
    if chosen is None:
        lines.append(f"chosen     nothing; {decision.fallback}")
    else:
        pair = _pair(chosen.prefill, chosen.decode)
        lines.append(f"chosen     {pair}   score {decision.score:.4g} {decision.score_unit}")
        if decision.runner_up is not None:
            other = decision.runner_up
            margin = "refused, see below" if decision.margin is None else f"behind by {decision.margin:.4g}"
            behind = f"score {other.score:.4g}, {margin}"
            lines.append(f"runner-up  {_pair(other.prefill, other.decode)}   {behind}")
        if decision.fallback:
            lines.append(f"fallback   {decision.fallback}")
    if decision.largest_fit_tokens is not None and chosen is None:
        lines.append(f"would fit  up to {decision.largest_fit_tokens:,.0f} tokens of prompt and output now")
    lines += [f"note       {note}" for note in decision.notes]
    if decision.terms:
        lines.append("")
        lines.append(f"{'term':20} {'weight':>6} {'adds':>9}  how")
        lines += [
            f"{term.symbol:20} {term.weight:6g} {term.contribution:9.4g}  {term.formula}" for term in decision.terms
        ]
        lines.append(f"{'score':20} {'':6} {sum(term.contribution for term in decision.terms):9.4g}")
        lines += [f"estimated  {name}: {text}" for name, texts in _marks(decision).items() for text in texts]
    if len(decision.ranking) > 1:
        lines.append("")
        lines.append("ranking")
        lines += [
            f"{place:4}. {_pair(each.prefill, each.decode)}   {each.score:.4g}"
            for place, each in enumerate(decision.ranking, 1)
        ]
    if decision.rejections:
        lines.append("")
        lines.append("rejected")
        lines += [f"  {each.pool}  [{each.filter}] {each.reason}" for each in decision.rejections]
    return "\n".join(lines)


def _pair(prefill: str, decode: str) -> str:
    return prefill if prefill == decode else f"{prefill} -> {decode}"
