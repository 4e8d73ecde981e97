"""
Sentences made below the pages: every one has both languages, finds itself again, and none is lost.

A new English sentence without its Chinese fails here: first by what stands in the code (`test_every_sentence_of...`),
then by what real payloads, a recorded cluster, decisions and refusals say.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from collectors.alerts_watch import ChainWatch
from collectors.engines import ENGINES, identify
from collectors.engines.contract import Answer, NotUnderstood
from collectors.errors import SettingsError
from collectors.exchange import unrecognised
from collectors.recent import RecentPool
from collectors.settings import load_settings
from collectors.trace_files import trace_lines
from demo.recording import read_recording
from pages.figures import sources, what_if_tables, worker_table
from pages.texts import speaker
from pages.texts.said import LONGEST, is_known, rooms, templates, translated
from pages.texts.said import matching as grammar
from pages.texts.said.matching import Field, Group, Template, fields_of, words_of
from scoring.alert_rules import parse_rules
from scoring.demand import OutputQuantiles, RequestView, known_output
from scoring.model import Finding, FleetSnapshot, PoolHistory, PoolReading, Role, WorkerReading
from scoring.policy import POLICIES, DecideSettings, Decision, decide
from scoring.policy.sketch import sketch_fleet, sketch_pool
from scoring.snapshot import judge_fleet
from simulation.fleet_file import FleetFileError, fleet_from_shorthand
from simulation.trace import TraceError, read_trace
from simulation.trace_formats import FORMATS
from simulation.workload_shape import synthesis_of

ROOT = Path(__file__).resolve().parents[2]
PAYLOADS = ROOT / "tests" / "payloads"
HAN = re.compile(r"[\u4e00-\u9fff]")
PIECES = {"n": "12.5", "w": "w1:3", "c": "no-room", "t": "unbounded", "": "ab cd"}
"""What is put into a field of each kind."""


def _filled(nodes: Iterable[grammar.Node], put: dict[str, str], groups: set[int]) -> str:
    pieces, count = [], 0
    for node in nodes:
        if isinstance(node, Group):
            if count in groups:
                pieces += [put[each.name] if isinstance(each, Field) else each for each in node.nodes]
            count += 1
        else:
            pieces.append(put[node.name] if isinstance(node, Field) else node)
    return "".join(pieces)


# The catalogue.


@pytest.mark.parametrize("room", rooms())
def test_both_languages_carry_the_same_fields_and_chinese_is_chinese(room: str) -> None:
    """No number of an English sentence is lost or made up in Chinese, and a sentence of words has Chinese signs."""
    for english, chinese in import_module(f"pages.texts.said.{room}").SAID:
        made = Template(english, chinese)
        assert {each.name for each in fields_of(made.nodes)} == {each.name for each in fields_of(made.target)}, english
        assert sum(isinstance(each, Group) for each in made.nodes) == sum(
            isinstance(each, Group) for each in made.target
        ), english
        if len(re.findall(r"[A-Za-z]{2,}", "".join(words_of(made.nodes)))) >= 3:
            assert HAN.search(chinese), english


def test_no_sentence_is_there_twice() -> None:
    """One sentence, one place."""
    english = [each.english for each in templates()]
    assert len(english) == len(set(english))


@pytest.mark.parametrize("room", rooms())
def test_every_sentence_is_found_again_with_what_was_put_into_it(room: str) -> None:
    """Filled in, an English sentence becomes its own Chinese one: no other template takes it, optional parts or not."""
    for english, chinese in import_module(f"pages.texts.said.{room}").SAID:
        made = Template(english, chinese)
        put = {name: PIECES[kind] for name, kind in made.kinds.items()}
        heard = {name: translated(text) if made.kinds[name] == "t" else text for name, text in put.items()}
        count = sum(isinstance(each, Group) for each in made.nodes)
        for groups in (set(range(count)), set()):
            assert translated(_filled(made.nodes, put, groups)) == _filled(made.target, heard, groups), english


def test_no_pattern_ever_goes_back() -> None:
    """Every quantifier is possessive, so that a hostile sentence costs no more than its length."""
    for each in templates():
        bare = re.sub(r"\\.|\[[^\]]*\]|\(\?P<\w+>|\(\?[:!]", "x", each.pattern.pattern)
        assert not re.search(r"[*+?](?!\+)(?<!\+\+)(?<!\*\+)(?<!\?\+)", bare), each.english


def test_what_nobody_knows_is_shown_as_it_is() -> None:
    """A sentence of another version, an overlong one and one without words stay; English stays English."""
    say = speaker("zh")
    for text in ("a sentence of a later version", "x" * (LONGEST + 1), "12.5", "", "«»{}%"):
        assert say.said(text) == text
    assert speaker("en").said("nothing is waiting") == "nothing is waiting"
    assert say.said(ValueError("nothing is waiting")) == "没有等待"


def test_sentences_strung_together_are_each_translated_and_the_unknown_one_is_kept() -> None:
    """Of a text of several sentences the known ones are in Chinese and the others are still there."""
    said = translated("nothing is waiting; a sentence of a later version; nothing is running")
    assert said == "没有等待；a sentence of a later version；没有运行中的请求"
    assert not is_known("nothing is waiting; a sentence of a later version")


# What stands in the code.

SCANNED = sorted(
    path
    for room in ("scoring", "collectors", "simulation")
    for path in (ROOT / room).rglob("*.py")
    if path.name != "__init__.py"
) + [ROOT / "pages" / name for name in ("_replay_run.py", "_replay_jobs.py")]
SKIPPED = {
    "scoring/geometry_layers.py": "describes layers for `kvscope geometry`",
    "scoring/geometry.py": "notes for `kvscope geometry`; its refusals are in the catalogue",
    "scoring/kv_dtype.py": "describes number formats for `kvscope geometry`",
    "scoring/snapshot_file.py": "refuses files given to commands",
    "scoring/policy/registry.py": "blind spots, which the What-if page words; sources are asked of the registry below",
    "scoring/policy/sketch.py": "makes fleets for tests",
    "collectors/settings/model.py": "describes keys for docs/config.md",
    "collectors/settings/documentation.py": "writes docs/config.md",
    "collectors/store/migrations.py": "SQL; its refusals are in the catalogue",
    "collectors/store/columns.py": "SQL; its refusal is in the catalogue",
    "collectors/store/histories.py": "SQL",
    "collectors/store/rollups.py": "SQL",
    "collectors/store/series.py": "SQL; its refusals are in the catalogue",
    "collectors/exposition.py": "patterns of Prometheus text",
    "collectors/schedule.py": "guards against wrong use by code",
    "collectors/child.py": "the command line of a child process",
    "simulation/audit.py": "guards of the simulation's own books",
    "simulation/compiled.py": "guards of the compiler",
    "simulation/live.py": "the demo's steps, which no viewer gives",
    "simulation/reuse.py": "refusals of `kvscope reuse`",
    "simulation/sweep.py": "processes of a sweep, which no viewer chooses",
}
"""Modules whose sentences reach no page, each with the reason."""
STAND_INS = ("w0", "12", "unbounded", "over 12.0 s, 7 samples")
"""What is put in the place of what the code puts in."""
QUIET_WORDS = {"intent", "reads", "title", "blind", "score_unit", "description", "summary"}
"""Arguments that no page shows as such (policies' titles and blind spots are in the page's own catalogue)."""
QUIET_CALLS = re.compile(r"^(_log\.\w+|re\.compile|_signal|Field|RuntimeError|\w*[cC]ursor\.execute|\w+\.fetch\w+)$")
CODE = re.compile(
    r"select |insert |create |alter |update tiers|delete from|qualify |time_bucket|union all|timestamp|Bearer |HTTP \d"
    r"|order by|_at_us|as last_at|_names|^set |begin transaction|varchar|copy \(|^format |\.\.\.|kv_metadata|::|max by"
    r"|^url =|# role|\[discovery\]|highest_|null, null|answered_at_s, |as bucket| from \(|worker_id = \?|__name__"
    r"|^state_|^http://|^kvscope |^Session ID|^Log Type|^Elapsed time|^links\[|\"500 ms\" or"
    r"|: (ttft_s|tpot_s|quantile)$"
)
"""SQL, names of columns, paths and headers: texts, no sentences."""
GUARDS = re.compile(
    r"^(design |two dialects|problems: |a Runtime runs|lease |visible_after|.* prompts, .* outputs|values: empty"
    r"|.* is not at least 2|late_after_s |ratio: |window_s: |coverage is|histories: |accept_at |labels of "
    r"|Could not set lock|different configuration|not a valid DuckDB|storage version|version number"
    r"|.*-bit integer|, vllm:|Config \| None|NQ \* NQC|.* must be above 0 and below .*)"
)
"""Guards against wrong use by code, and what other programs say: nothing a viewer brings about or reads."""


def _texts(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield texts that are no docstring and stand in no quiet place."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.Call) and QUIET_CALLS.match(ast.unparse(tree.func)):
        return
    if isinstance(tree, ast.keyword) and tree.arg in QUIET_WORDS:
        return
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree
    elif isinstance(tree, ast.JoinedStr):
        yield tree
        for part in tree.values:
            if isinstance(part, ast.FormattedValue):
                yield from _texts(part.value)
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _texts(child)


def _pieces(text: ast.Constant | ast.JoinedStr) -> list[str]:
    parts = [text] if isinstance(text, ast.Constant) else text.values
    return [str(part.value) for part in parts if isinstance(part, ast.Constant)]


def _spoken(text: ast.Constant | ast.JoinedStr, word: str) -> str:
    """Return a text of the code as it would be said, `word` in the place of what is not formatted as a number."""
    if isinstance(text, ast.Constant):
        return str(text.value)
    said = ""
    for part in text.values:
        if isinstance(part, ast.Constant):
            said += str(part.value)
        elif isinstance(part, ast.FormattedValue) and isinstance(part.format_spec, ast.JoinedStr):
            spec = "".join(p.value if isinstance(p, ast.Constant) else "1" for p in part.format_spec.values)
            said += word if "%" in spec[:-1] else format(12 if spec.endswith("d") else 12.0, spec)
        else:
            said += word
    return said


def _is_sentence(text: ast.Constant | ast.JoinedStr) -> bool:
    words = "\0".join(_pieces(text)).strip()
    return " " in words and re.search(r"[A-Za-z]{2,}", words) is not None and not CODE.search(words)


@pytest.fixture(scope="module")
def vocabulary() -> str:
    """Return all fixed words of the catalogue."""
    return "\0".join(words for each in templates() for words in words_of(each.nodes))


@pytest.mark.parametrize("path", SCANNED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_sentence_of_the_code_has_its_chinese(path: Path, vocabulary: str) -> None:
    """
    A text of the code is a sentence of the catalogue, or every fixed piece of it is within one.

    Add what fails to `pages/texts/said/<room>.py` (docs/CONTRIBUTING.md), in English as the code makes it and in
    Chinese; a guard that no viewer can meet goes to GUARDS, a module no page shows to SKIPPED, with the reason.
    """
    if str(path.relative_to(ROOT)) in SKIPPED:
        return
    missing = []
    for text in _texts(ast.parse(path.read_text(encoding="utf-8"))):
        spoken = [_spoken(text, word).strip() for word in STAND_INS]
        spoken += [f"w0 is 12: {each}" for each in spoken]
        if not _is_sentence(text) or GUARDS.match(spoken[0]) or any(is_known(each) for each in spoken):
            continue
        if not all(piece in vocabulary for piece in _pieces(text)):
            missing.append(f"{path.relative_to(ROOT)}:{text.lineno}: {spoken[0]}")
    assert not missing, "\n".join(missing)


def test_every_skipped_module_is_there() -> None:
    """An exception names a module that exists."""
    assert {str(path.relative_to(ROOT)) for path in SCANNED} >= set(SKIPPED)


# What is really said.


def _said_by(thing: Any) -> Iterator[str]:
    """Yield every reason, finding and note within dataclasses, mappings and sequences."""
    if isinstance(thing, Finding):
        yield thing.text
    elif isinstance(thing, Decision):
        yield from (each for each in (thing.fallback, *thing.notes) if each)
        yield from (word for each in thing.rejections for word in (each.reason, each.filter))
        yield from (term.formula for term in thing.terms)
        yield from (mark for name in thing.prepared.arrays.ids for mark in thing.marks(name))
    elif is_dataclass(thing) and not isinstance(thing, type):
        for each in fields(thing):
            value = getattr(thing, each.name)
            if each.name in ("reason", "state_reason", "text", "blind_reason") and isinstance(value, str):
                yield value
            elif each.name != "reading":
                yield from _said_by(value)
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _said_by(value)
    elif isinstance(thing, tuple | list):
        for value in thing:
            yield from _said_by(value)


def _unknown(said: Iterable[str]) -> list[str]:
    return sorted({text for text in said if text and not is_known(text)})


def _answers(bodies: dict[str, bytes]) -> dict[str, Answer]:
    return {path: Answer(status=200, content_type="", body=body, received_at_s=1000.0) for path, body in bodies.items()}


def _judged(readings: list[PoolReading], at_s: float) -> FleetSnapshot:
    """Return the fleet of single readings, judged."""
    histories = []
    for place, reading in enumerate(readings):
        held = RecentPool(8)
        for offset_s in (2.0, 1.0, 0.0):
            held.append(replace(reading, worker_id=f"w{place}", received_at_s=at_s - offset_s))
        view = held.view()
        assert view is not None
        histories.append(PoolHistory(last=view.last, at_s=view.at_s, columns=view.columns, polled_at_s=at_s))
    return judge_fleet(histories, at_s)


FILES = sorted(path for path in PAYLOADS.rglob("*") if path.suffix in (".json", ".prom", ".txt"))


def test_what_every_engine_says_of_every_payload_is_translated() -> None:
    """Findings, refusals, and the reasons of every judged figure, over all payloads of all engines."""
    said: list[str] = []
    for file in FILES:
        for dialect in ENGINES.values():
            for path in dict.fromkeys(question.path for question in dialect.questions):
                found = dialect.understand(_answers({path: file.read_bytes()}))
                if isinstance(found, NotUnderstood):
                    said.append(found.text)
                    continue
                said += [each.text for each in found.findings]
                said += [each for pair in found.facts.items() for each in pair if " " in each and pair[0] != "model"]
                if identify(_answers({path: file.read_bytes()})) is dialect:
                    said += _said_by(_judged(list(found.pools), 1001.0))
    assert len(set(said)) > 100
    assert not [text for text in _unknown(said) if not re.fullmatch(r"[\w./:\-,= \[\]{}\"]+", text) or " is " in text]


@pytest.fixture(scope="module")
def cluster() -> tuple[list[FleetSnapshot], ChainWatch, list[str]]:
    """Return a recorded cluster judged second by second, its chains, and what their events said."""
    recording = read_recording(ROOT / "examples" / "recordings" / "sglang_2p2d.jsonl.gz")
    held: dict[tuple[str, int], RecentPool] = {}
    fleets, said, watch = [], [], ChainWatch(steady=lambda: 0.0)
    entries = [
        (entry.t, origin, path, entry)
        for origin, paths in recording.tracks.items()
        for path, rows in paths.items()
        if path == "/v1/loads"
        for entry in rows
    ]
    at_s = recording.start_s
    for t, origin, path, entry in sorted(entries, key=lambda row: row[0]):
        body = json.dumps(entry.body).encode()
        answer = Answer(status=200, content_type="application/json", body=body, received_at_s=t)
        reading = ENGINES["sglang"].understand({path: answer})
        assert isinstance(reading, WorkerReading)
        for pool in reading.pools:
            held.setdefault((origin[-5:], pool.dp_rank), RecentPool(900)).append(
                replace(pool, worker_id=origin[-5:], received_at_s=t)
            )
        if t >= at_s:
            at_s = t + 1.0
            histories = [
                PoolHistory(last=view.last, at_s=view.at_s, columns=view.columns, polled_at_s=t)
                for each in held.values()
                if (view := each.view()) is not None
            ]
            fleets.append(judge_fleet(histories, t))
            said += [event.text for event in watch.look(fleets[-1], histories)]
    return fleets, watch, said


def test_what_is_said_of_a_recorded_cluster_is_translated(
    cluster: tuple[list[FleetSnapshot], ChainWatch, list[str]],
) -> None:
    """Figures, findings, the chain's evidence and its events, through idle, full and idle again."""
    fleets, watch, events = cluster
    assert events
    said = [*events, *_said_by(list(fleets)), *_said_by(dict(watch.states))]
    assert _unknown(said) == []


def _fleets(cluster: tuple[list[FleetSnapshot], ChainWatch, list[str]]) -> list[FleetSnapshot]:
    """Return fleets at work, idle, of which little is known, full, and empty."""
    both = (("p", Role.PREFILL), ("d", Role.DECODE))
    idle = [sketch_pool(f"{kind}{place}/0", role) for kind, role in both for place in (1, 2)]
    silent: dict[str, Any] = dict.fromkeys(
        (
            "prefill_tokens_per_s",
            "step_time_s",
            "running_count",
            "waiting_count",
            "bytes_per_token",
            "block_size_tokens",
        )
    )
    dark = [
        sketch_pool(f"x{place}/0", role, usable_tokens=10_000.0, used_tokens=4_000.0, **silent)
        for place, role in enumerate((Role.PREFILL, Role.DECODE, Role.UNIFIED))
    ]
    full = [sketch_pool("f/0", Role.UNIFIED, usable_tokens=1_000.0, used_tokens=990.0)]
    taken = cluster[0][:: max(len(cluster[0]) // 4, 1)]
    return [*taken, *(sketch_fleet(pools) for pools in (idle, dark, full, []))]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_every_policy_says_of_a_request_is_translated(
    policy: str, cluster: tuple[list[FleetSnapshot], ChainWatch, list[str]]
) -> None:
    """Choice, refusals, terms and what they rest on, for small and huge requests on known and unknown pools."""
    said: list[str] = [POLICIES[policy].source]
    for fleet in _fleets(cluster):
        for prompt in (100, 20_000, 4_000_000):
            for pick in ("best", "two-choices"):
                request = RequestView(prompt_tokens=prompt, output=known_output(300), tenant="t", model="m")
                bare = replace(request, tenant=None, model=None)
                for each in (request, bare):
                    said += _said_by(decide(each, fleet, policy, settings=DecideSettings(pick=pick), seed=1))
    assert _unknown(said) == []


def _refusals() -> Iterator[tuple[str, Callable[[], object]]]:
    view = {"prompt_tokens": 10, "output": known_output(10)}
    yield "prompt", lambda: RequestView(**{**view, "prompt_tokens": 0})
    yield "hit", lambda: RequestView(**view, prefix_hit_tokens={"d0/0": 11})
    yield "quantile", lambda: OutputQuantiles(((1.5, 10.0),))
    yield "falling", lambda: OutputQuantiles(((0.5, 10.0), (0.9, 5.0)))
    yield "class", lambda: decide(RequestView(**view, slo_class="no such"), sketch_fleet([]), "joint")
    yield "policy", lambda: decide(RequestView(**view), sketch_fleet([]), "no such")
    yield "shorthand", lambda: fleet_from_shorthand("12 workers")
    yield "no-decode", lambda: fleet_from_shorthand("2p0d")
    yield "recipe", lambda: synthesis_of("synthetic:sometimes")
    yield "recipe-word", lambda: synthesis_of("synthetic:gamma,colour=4")
    yield "recipe-number", lambda: synthesis_of("synthetic:gamma,rate=fast")
    yield "recipe-rate", lambda: synthesis_of("synthetic:gamma,rate=-1")
    yield "empty", lambda: read_trace(iter(()), FORMATS)
    yield "no-format", lambda: read_trace(iter(("what is this",)), FORMATS)
    yield "no-file", lambda: list(trace_lines("/no/such/file.jsonl"))
    yield "rules", lambda: parse_rules([{"name": "", "figure": "x", "above": "y", "severity": "z", "roles": 3}])


@pytest.mark.parametrize(("name", "act"), list(_refusals()), ids=[name for name, _ in _refusals()])
def test_what_is_refused_is_refused_in_chinese(name: str, act: Callable[[], object]) -> None:
    """A viewer's wrong input is answered with a sentence of the catalogue."""
    with pytest.raises((ValueError, TraceError, FleetFileError, Exception)) as refused:
        act()
    assert _unknown(str(refused.value).splitlines()) == []


@pytest.mark.parametrize("file", sorted((PAYLOADS / "traces").iterdir()), ids=lambda file: file.name)
def test_what_is_said_of_every_trace_is_translated(file: Path) -> None:
    """Notes, and rows left out with their reason."""
    if file.suffix == ".md":
        return
    said: list[str] = []
    with suppress(TraceError):
        report = read_trace(trace_lines(file), FORMATS).report
        said += [*report.notes, *(skip.reason for skip in report.skips)]
    assert _unknown(said) == []


def test_every_problem_of_a_fleet_file_is_translated(tmp_path: Path) -> None:
    """A fleet file with many kinds of problems is answered in Chinese, line by line."""
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[poll]\ninterval_s = "soon"\ntimeout_s = 0\nworkers = 3\n[store]\npath = "/no/such/folder/x.duckdb"\n'
        '[[workers]]\nurl = "ftp://x"\nname = "a/b"\nrole = "cook"\n[[workers]]\nurl = "http://a:1"\nengine = "sglan"\n'
        '[[workers]]\nurl = "http://a:1"\ntenants = []\n[[links]]\nsource = "nobody"\ntarget = "*"\n[auth]\n'
        'token_env = "NO_SUCH_VARIABLE_X"\n[freshness]\nlate_after_s = 0.1\n'
    )
    with pytest.raises(SettingsError) as refused:
        load_settings(file)
    said = [str(problem) for problem in refused.value.problems]
    assert len(said) > 8
    assert _unknown(said) == []


def test_why_nobody_recognises_a_worker_is_translated() -> None:
    """Every way in which no dialect fits."""
    for status in (200, 302, 401, 404, 500):
        answers = {path: Answer(status=status, content_type="", body=b"", received_at_s=0.0) for path in ("/a", "/b/c")}
        assert _unknown([unrecognised(answers).detail]) == []
    assert _unknown([unrecognised({}).detail]) == []


ENGLISH = re.compile(r"(?:\b[A-Za-z]{2,}\b[ ,;:]+){3,}")
"""Four words of Latin letters in a row: names of products and fields do not stand so."""


def test_tables_in_chinese_hold_no_english_sentence(
    cluster: tuple[list[FleetSnapshot], ChainWatch, list[str]],
) -> None:
    """What the Worker, Sources and What-if pages put into tables is Chinese cell by cell; in English it was not."""
    fleet = max(cluster[0], key=lambda each: sum(pool.composition.used_tokens.value or 0.0 for pool in each.pools))
    decision = decide(RequestView(prompt_tokens=20_000, output=known_output(300)), fleet, "joint")

    def cells(language: str) -> list[str]:
        say = speaker(language)
        found: list[Any] = [say.said(term.formula) for term in decision.terms]
        columns: list[dict[str, Any]] = [what_if_tables.rejection_columns(decision, say)]
        for pool in fleet.pools:
            columns += [
                worker_table.composition(pool, say, language),
                worker_table.rates(pool, say),
                worker_table.raw(pool.reading, say),
                sources.definitions(pool, say, lambda word: word),
            ]
        found += [cell for table in columns for column in table.values() for cell in column]
        return [text for text in found if isinstance(text, str) and ENGLISH.search(text)]

    assert cells("en")
    assert cells("zh") == []
