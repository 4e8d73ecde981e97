"""The fleet file: read whole or refused with every problem, its line and its fix; no secret in it or in a message."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.errors import SettingsError
from collectors.settings import Settings, load_settings, parse_settings, read_secret
from collectors.settings.documentation import SETTINGS, page
from collectors.settings.places import key_lines
from collectors.settings.units import bandwidth_bytes_per_s, duration_s, size_bytes

ROOT = Path(__file__).resolve().parents[2]


def problems_of(text: str, folder: Path, **keywords: object) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, folder=folder, environment={}, **keywords)  # type: ignore[arg-type]
    return caught.value.problems


def test_no_file_content_is_a_valid_fleet_of_no_workers(tmp_path: Path) -> None:
    """Every default is valid: an empty file is `Settings()` but for the place of the store."""
    read = parse_settings("", folder=tmp_path, environment={})
    assert read.store.path == tmp_path / "kvscope.duckdb"
    assert read.model_copy(update={"store": Settings().store}) == Settings()


def test_every_problem_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    """No problem hides another: unknown keys, wrong values and broken cross rules come in one error, by line."""
    text = """\
[poll]
intervall_s = 1
timeout_s = "5 parsecs"
[freshness]
stale_after_s = 0.5
[[workers]]
url = "http://a:1"
nmae = "x"
[[workers]]
url = "ftp://b"
role = "decoder"
tenants = "a"
[lease]
ttl_s = 0.5
[store]
path = 5
[foo]
x = 1
"""
    found = problems_of(text, tmp_path, name="fleet.toml")
    lines = [int(re.match(r"fleet\.toml:(\d+): ", problem)[1]) for problem in found]  # type: ignore[index]
    assert lines == sorted(lines)
    assert set(lines) == {2, 3, 5, 8, 10, 11, 12, 14, 16, 17}
    by_line = dict(zip(lines, found, strict=True))
    assert "did you mean interval_s?" in by_line[2]
    assert "parsecs" in by_line[3]
    assert "workers[0].nmae" in by_line[8]
    assert "did you mean name?" in by_line[8]
    assert "workers[1].url" in by_line[10]
    assert "unified" in by_line[11]
    assert "poll.interval_s" in by_line[14]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[freshness]\nlate_after_s = 1", "freshness.late_after_s"),
        ("[freshness]\nlate_after_s = 20", "freshness.stale_after_s"),
        ("[lease]\nttl_s = 1", "lease.ttl_s"),
        ("[poll]\nconnect_timeout_s = 9", "poll.connect_timeout_s"),
        ("[view]\nrate_window_s = 1", "view.rate_window_s"),
        ("[view]\nhistory_s = 20", "view.history_s"),
        ("[store]\nretention_10s_s = 60", "store.retention_10s_s"),
        ("[tls]\nclient_key_file = 'x.key'", "tls.client_key_file"),
        ("[tls]\nca_file = 'no.pem'", "tls.ca_file"),
        (f"[tls]\nca_file = '{__file__}'", "tls.ca_file"),
        (f"[tls]\nclient_cert_file = '{__file__}'", "tls.client_cert_file"),
        ("[poll]\ninterval_s = 4", "freshness.late_after_s"),
        ("[prometheus]\nurl = 'http://p:9090'", "freshness.stale_after_s"),
        ("[store]\npath = 'no/such/folder/x.duckdb'", "store.path"),
        ("[server]\naddress = '0.0.0.0'", "server.address"),
        ("[server]\nis_url_test_on = true", "server.is_url_test_on"),
        ("[server]\nurl_test_networks = ['10.0.0.1/8']", "server.url_test_networks[0]"),
        ("[alerts]\nrules = [{dwell_s = 5}]", "alerts.rules[0]"),
        ("[[alerts.rules]]\nname='a'\n[[alerts.rules]]\nname='a'", "alerts.rules[1].name"),
        ("[[links]]\nsource = 'p9'\n[[workers]]\nurl='http://a:1'\nname='p0'", "links[0].source"),
        ("[[workers]]\nurl='http://a:1'\n[[workers]]\nurl='http://a:1/'", "workers[1].url"),
        ("[[workers]]\nurl='http://a:1'\nname='x'\n[[workers]]\nurl='http://b:1'\nname='x'", "workers[1].name"),
        ("[[workers]]\nurl='http://a:1'\ntenants=[]", "workers[0].tenants"),
        ("[[workers]]\nname='a'", "workers[0].url"),
        ("[[workers]]\nurl='http://a:99999'", "workers[0].url"),
        ("[[workers]]\nurl='http://a:1?x=1'", "workers[0].url"),
        ("[[workers]]\nurl='http://a:1'\nname='a/b'", "workers[0].name"),
        ("[[workers]]\nurl='http://a:1'\nbytes_per_token=-1", "workers[0].bytes_per_token"),
        ("[[workers]]\nurl='http://a:1'\nlink_bandwidth_bytes_per_s='50 GB'", "workers[0].link_bandwidth_bytes_per_s"),
        ("[poll]\ninterval_s = nan", "poll.interval_s"),
        ("[poll]\ninterval_s = true", "poll.interval_s"),
        ("poll = 3", "poll"),
        ("[slo.interactive.weights]\nslo_risk = -1", "slo.interactive.weights.slo_risk"),
        ("[slo.interactve]\nttft_budget_s = 1", "slo.interactve"),
    ],
)
def test_each_rule_names_its_key(text: str, place: str, tmp_path: Path) -> None:
    """A broken rule names the key to change, and no other key."""
    found = problems_of(text, tmp_path)
    assert found
    for problem in found:
        assert re.match(rf"fleet\.toml:\d+: {re.escape(place)} ", problem), problem


@pytest.mark.parametrize(
    "text",
    [
        "[auth]\ntoken_env = 'sk-live-0123456789'",
        "[auth]\ntoken_env = 'hf_abcdefABCDEF0123'",
        "[auth]\ntoken = 'S3cretS3cretS3cret'",
        "[auth]\napi_key = 'S3cretS3cretS3cret'",
        "[server]\npassword = 'S3cretS3cretS3cret'",
        "[[workers]]\nurl = 'http://user:S3cretS3cret@host:1'",
        "[alerts]\nwebhook_url = 'http://host:1/?api_key=S3cretS3cret'",
        "[auth]\ntoken_env = '0123456789abcdef0123456789abcdef'",
    ],
)
def test_a_secret_in_the_file_is_refused_and_never_repeated(text: str, tmp_path: Path) -> None:
    """A token-looking value is a problem whose message does not carry the token on."""
    found = problems_of(text, tmp_path)
    assert len(found) == 1
    secret = re.search(r"'(?:http://user:|http://host:1/\?api_key=)?([^'@]+)(?:@host:1)?'$", text)[1]  # type: ignore[index]
    assert secret not in found[0]
    assert "environment variable" in found[0]


def test_a_named_variable_must_be_set_and_its_value_stays_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings hold the variable's name; the value is only read when asked for."""
    text = "[auth]\ntoken_env = 'KVSCOPE_TEST_TOKEN'"
    assert "KVSCOPE_TEST_TOKEN, which is not set" in problems_of(text, tmp_path)[0]
    read = parse_settings(text, folder=tmp_path, environment={"KVSCOPE_TEST_TOKEN": "t0ken"})
    assert "t0ken" not in read.model_dump_json()
    monkeypatch.setenv("KVSCOPE_TEST_TOKEN", "t0ken")
    assert read_secret(read.auth.token_env) == "t0ken"
    assert read_secret(None) is None


def test_an_engine_is_checked_against_the_ones_we_speak(tmp_path: Path) -> None:
    """A near miss of an engine's name is answered with the name."""
    text = "[[workers]]\nurl='http://a:1'\nengine='sglnag'"
    assert "did you mean sglang?" in problems_of(text, tmp_path, engines=("sglang", "vllm"))[0]


def test_a_class_that_states_one_key_keeps_its_own_other_defaults(tmp_path: Path) -> None:
    """Overriding one key of a class never resets the class's other keys to another class's."""
    read = parse_settings("[slo.batch]\nweights = {transfer = 3}", folder=tmp_path, environment={})
    default = Settings().slo.batch
    assert read.slo.batch.weights.transfer == 3
    assert read.slo.batch.weights.kv_pressure == default.weights.kv_pressure
    assert read.slo.batch.ttft_budget_s == default.ttft_budget_s


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    """A fleet file can be read from anywhere with the same meaning."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "hidden_size": 4096,
                "head_dim": 128,
            }
        )
    )
    file = tmp_path / "fleet.toml"
    file.write_text("[store]\npath='x.duckdb'\n[[workers]]\nurl='http://a:1'\nmodel_config_path='config.json'\n")
    read = load_settings(file, environment={})
    assert read.store.path == tmp_path / "x.duckdb"
    assert read.workers[0].model_config_path == tmp_path / "config.json"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"a = = 1", b"[a]\n[a]\n"])
def test_an_unreadable_file_is_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    """No file, no text, no TOML: a SettingsError that names the file, never another exception."""
    file = tmp_path / "fleet.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    assert len(caught.value.problems) == 1
    assert str(file) in caught.value.problems[0]


def test_the_example_is_valid_and_shows_every_key() -> None:
    """examples/fleet.toml loads as it is, and each key of the code stands in it, in its table."""
    file = ROOT / "examples" / "fleet.toml"
    load_settings(file, environment={})
    text = re.sub(r"^# (\[|\w+ =)", r"\1", file.read_text(), flags=re.MULTILINE)
    for setting in SETTINGS:
        if ".weights" in setting.table:
            assert setting.name in text
            continue
        start = text.index(setting.table)
        assert re.search(rf"^{setting.name} = ", text[start:], re.MULTILINE), f"{setting.table} {setting.name}"


def test_the_documentation_is_what_the_code_says() -> None:
    """docs/config.md is the generated page, and every key has a help text."""
    assert (ROOT / "docs" / "config.md").read_text() == page(), "run python -m collectors.settings.documentation"
    assert all(setting.help for setting in SETTINGS)
    assert len({(setting.table, setting.name) for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2.0), ("500 ms", 0.5), ("2h", 7200.0), ("7 d", 604800.0), ("1.5 min", 90.0), ("3", 3.0), ("20 us", 2e-5)],
)
def test_durations_read_as_people_write_them(value: object, expected: float) -> None:
    """A number is seconds; text carries its unit."""
    assert duration_s(value) == pytest.approx(expected)


def test_bits_and_bytes_and_their_prefixes_are_told_apart() -> None:
    """400 Gbit/s is 50 GB/s; Mi is not M."""
    assert bandwidth_bytes_per_s("400 Gbit/s") == bandwidth_bytes_per_s("50 GB/s") == 50e9
    assert bandwidth_bytes_per_s("400 Gbps") == 50e9
    assert size_bytes("8 MiB") == 8 * 1024 * 1024
    assert size_bytes("8 MB") == 8e6
    for wrong in ("50 GB", "x", "5 XB/s", True, None):
        with pytest.raises(ValueError):
            bandwidth_bytes_per_s(wrong)


def test_lines_are_found_through_strings_arrays_and_tables() -> None:
    """Brackets, equals signs and headers inside strings or arrays are not taken for keys."""
    text = 'a = [\n "x = 1", # [b]\n "[c]",\n]\nd = """\n[e]\nf = 1\n"""\n[[g]]\nh.i = 1\n[[g]]\n[g.j]\nk = {l = 1}\n'
    assert key_lines(text) == {
        ("a",): 1,
        ("d",): 5,
        ("g", 0): 9,
        ("g", 0, "h", "i"): 10,
        ("g", 1): 11,
        ("g", 1, "j"): 12,
        ("g", 1, "j", "k"): 13,
    }
    assert tomllib.loads(text)["g"][1]["j"]["k"]["l"] == 1


_scalar = st.one_of(
    st.booleans(), st.integers(-5, 10), st.floats(allow_nan=True), st.text(max_size=8), st.just([]), st.just({})
)
_keys = st.sampled_from(sorted({setting.name for setting in SETTINGS} | {"poll", "slo", "batch", "zzz"}))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(_keys, st.one_of(_scalar, st.dictionaries(_keys, _scalar, max_size=3)), max_size=4))
def test_no_content_raises_anything_but_a_settings_error(tables: dict[str, object]) -> None:
    """Whatever a file holds, it is read or refused with sentences: never a traceback."""

    def toml(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, float):
            return repr(value)
        return json.dumps(value)

    text = "\n".join(f"{key} = {toml(value)}" for key, value in tables.items())
    problems: tuple[str, ...] = ()
    try:
        parse_settings(text, folder=Path("/tmp"), environment={})
    except SettingsError as error:
        problems = error.problems
    assert all(problem.startswith("fleet.toml") for problem in problems)
