"""The one model behind flags, files and documentation."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from pydantic import ValidationError

from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.cases.run import GroupTables
from loadgen.errors import ScenarioError
from loadgen.plan.fields import (
    Choice,
    Collector,
    Count,
    FieldKind,
    Flag,
    ListenAddress,
    MetricsPages,
    Networks,
    Placement,
    Quantity,
    RateSteps,
    Seconds,
    Secret,
    Size,
    TableText,
    TextLine,
    Texts,
    Thresholds,
    option_of,
    redact_url,
)
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import Target
from loadgen.plan.scenario import Scenario, read_toml, toml_lines
from loadgen.sentences import Text
from tests.examples import examples
from tests.fleets import groups_of
from tests.refusals import refused as refusal
from tests.tables import rows_of

FIELDS = [(name, f) for name, case in CASES.items() for f in case.scenario.fields().values()]
IDS = [f"{case}-{field.name}" for case, field in FIELDS]

SCENARIOS = Path(__file__).parents[2] / "scenarios"

PLAIN_FILES = sorted(
    path.stem.removesuffix("-published")
    for path in SCENARIOS.glob("*-published.toml")
    if not path.stem.startswith("specjms")
)
"""Files of cases whose devices are alike; those of a supply chain have tests of their own."""

CONTRACT_FIELDS = (
    "broker devices rate duration warmup drain size qos mqtt workers source_address hosts pdu seed "
    "topics ratio pairs rack_units crash_broker background_rate in_flight pdu_timezone arrivals"
)


def refused(case: str, flags: dict[str, object], file: dict[str, object] | None = None) -> Text:
    with pytest.raises(ScenarioError) as caught:
        resolve(build_scenario(case, file, flags))
    text = caught.value.args[0]
    assert isinstance(text, Text) and text.isprintable() and len(text) < 700
    return text


class TestFields:
    def test_the_fields_that_users_script_against_exist(self) -> None:
        assert set(CONTRACT_FIELDS.split()) <= {field.name for _, field in FIELDS}

    @pytest.mark.parametrize(("case", "spec"), FIELDS, ids=IDS)
    def test_every_field_can_be_documented(self, case: str, spec: FieldKind) -> None:
        assert spec.text.endswith((".", "]"))
        assert spec.allowed
        assert bool(spec.metavar) != isinstance(spec, Flag)
        assert spec.option == "--" + spec.name.replace("_", "-")
        if isinstance(spec, Quantity):
            assert spec.minimum < spec.maximum
        if isinstance(spec, Choice):
            assert spec.choices

    @pytest.mark.parametrize(("case", "spec"), FIELDS, ids=IDS)
    def test_none_is_allowed_exactly_where_its_meaning_is_told(
        self, case: str, spec: FieldKind
    ) -> None:
        assert spec.optional == (spec.default is None) == ("[default: " in spec.text)

    @pytest.mark.parametrize("case", CASES)
    def test_defaults_read_as_themselves(self, case: str) -> None:
        for spec in CASES[case].scenario.fields().values():
            value = spec.default
            as_text = isinstance(spec, Choice) and value is not None
            assert spec.read(value) == (str(value) if as_text else value)

    @pytest.mark.parametrize(
        "spec",
        {
            spec.name: spec
            for _, spec in FIELDS
            if isinstance(spec, Quantity) and not isinstance(spec, Size)
        }.values(),
        ids=lambda spec: spec.name,
    )
    def test_bounds_hold_on_both_sides(self, spec: Quantity) -> None:
        assert spec.read(spec.minimum) == spec.minimum
        if spec.name != "seed":  # beyond what a float can hold; see TestRefusals
            assert spec.read(spec.maximum) == spec.maximum
            with pytest.raises(ValueError, match=str(int(spec.maximum) + 1)):
                spec.read(int(spec.maximum) + 1)
        below = spec.minimum - 1 if isinstance(spec, Count) else math.nextafter(spec.minimum, -1)
        with pytest.raises(ValueError, match=f"^{re.escape(str(below))} "):
            spec.read(below)

    def test_devices_of_zero_are_offered_to_latency_only(self) -> None:
        least = {
            case: spec.minimum
            for case, spec in FIELDS
            if spec.name == "devices" and isinstance(spec, Quantity)
        }
        assert least == {"fanin": 1, "latency": 0, "connburst": 1, "bridge": 1, "request": 1}


class TestBuild:
    def test_flags_win_over_the_file_and_the_file_over_the_case(self) -> None:
        assert build_scenario("fanout", None, {}).ratio == 100
        assert build_scenario("fanout", {"ratio": 7}, {}).ratio == 7
        assert build_scenario("fanout", {"ratio": 7}, {"ratio": "9"}).ratio == 9
        assert build_scenario("fanout", {"ratio": 7}, {"ratio": None}).ratio == 7

    def test_text_and_numbers_mean_the_same(self) -> None:
        from_flags = build_scenario(
            "latency",
            None,
            {"devices": "10k", "duration": "5m", "size": "32-64", "qos": "1", "mqtt": "5"},
        )
        from_file = build_scenario(
            "latency",
            {"devices": 10_000, "duration": 300, "size": [32, 64], "qos": 1, "mqtt": 5},
            {},
        )
        assert from_flags == from_file
        assert from_flags.devices == 10_000 and isinstance(from_flags.devices, int)
        assert from_flags.size == (32, 64) and from_flags.qos == 1 and from_flags.mqtt == "5"

    def test_keys_may_be_written_like_options(self) -> None:
        assert build_scenario("latency", {"background-rate": 5}, {}).background_rate == 5
        assert "given twice" in refused("latency", {"in-flight": 3, "in_flight": 3})

    def test_auto_is_the_absent_value(self) -> None:
        assert (
            build_scenario("fanin", {"workers": 3, "rate": 5}, {"workers": "auto"}).workers is None
        )
        assert build_scenario("fanin", {"rate": 5}, {"rate": "auto"}).rate is None

    def test_flags_of_either_kind(self) -> None:
        assert build_scenario("fanin", {"tls_verify": True}, {}).tls_verify
        url = {"broker": "mqtts://h"}
        assert not build_scenario("fanin", url, {"tls_verify": "off"}).tls_verify

    def test_one_broker_or_several(self) -> None:
        assert build_scenario("fanin", {"broker": "nats"}, {}).broker == ("nats",)
        urls = ("mqtt://h:1", "wss://[::1]:2/mqtt")
        assert build_scenario("fanin", {"broker": list(urls)}, {}).broker == urls

    def test_a_scenario_cannot_be_changed(self) -> None:
        with pytest.raises(ValidationError):
            setattr(build_scenario("fanin", None, {}), "devices", 3)  # noqa: B010

    def test_connects_are_paced_by_the_rate_in_connburst_only(self) -> None:
        def connect_rate(case: str, **fields: object) -> float | None:
            return resolve(build_scenario(case, None, fields)).phases.connect_rate

        assert connect_rate("connburst", rate=5) == 5
        assert connect_rate("fanin", rate=5) is None
        assert connect_rate("fanin", connect_rate=9) == 9


class TestTables:
    def test_a_table_is_one_as_toml_as_json_and_as_it_is(self) -> None:
        wanted = {"order": {"queue": False, "target": "Central"}}
        texts = ('order = {queue = false, target = "Central"}', json.dumps(wanted))
        built = {
            build_scenario("specjms", None, {"messages": given}).messages
            for given in (*texts, wanted)
        }
        assert built == {json.dumps(wanted, sort_keys=True)}

    @pytest.mark.parametrize("text", ["order = {", "[1]", "{", "order"])
    def test_what_is_no_table_is_refused(self, text: str) -> None:
        with refusal("VALUE", option="--messages"):
            build_scenario("specjms", None, {"messages": text})


REFUSALS = read_toml((Path(__file__).parent / "refusals.toml").read_text())["refusals"]
TOO_MUCH: list[tuple[str, dict[str, object], str, str]] = [
    ("fanin", {"tls_ca": "a" * 5000}, "VALUE", "--tls-ca: the text is longer than 4096"),
    ("fanin", {"pdu": "\udcff"}, "VALUE", r"--pdu: '\udcff' contains control"),
    ("fanin", {"pdu": ["x"] * 2000}, "VALUE", "--pdu: 2000 entries are more than 1024"),
    ("fanin", {"seed": 2**63}, "VALUE", "--seed: 9223372036854775808 is too large"),
    ("fanin", {"will": "x" * 65_536}, "VALUE", "--will: "),
]


class TestRefusals:
    @pytest.mark.parametrize(("case", "fields", "code", "start"), [*REFUSALS, *TOO_MUCH], ids=str)  # type: ignore[misc]
    def test_the_error_names_field_and_value(
        self, case: str, fields: dict[str, object], code: str, start: str
    ) -> None:
        text = refused(case, fields)
        assert text.code == code and text.startswith(start)
        assert "secret" not in text

    def test_an_unknown_key_is_compared_with_the_known(self) -> None:
        assert "'rate'" in refused("fanin", {"ratee": 1}).values["hint"]
        assert "devices, rate" in refused("fanin", {}, {"zzz": 1}).values["hint"]

    def test_a_field_of_another_case_is_refused(self) -> None:
        assert "fanout" in refused("fanin", {}, {"ratio": 3}).values["owners"]
        with refusal("UNKNOWN_KEY", key="'ratio'"):
            CASES["fanin"].scenario(ratio=3)

    @pytest.mark.parametrize("case", CASES)
    def test_what_a_case_does_not_understand_is_refused(self, case: str) -> None:
        others = {field.name for _, field in FIELDS} - CASES[case].scenario.fields().keys()
        assert others
        for name in others:
            text = refused(case, {name: 1})
            assert (text.code, text.values["option"]) == ("NOT_OF_CASE", option_of(name))

    def test_a_file_for_another_case(self) -> None:
        assert refused("fanin", {}, {"case": "fanout"}).values == {"case": "fanout"}

    @pytest.mark.parametrize("wrong", ["hunter2", "", 7, "env:", "env:a b", "file:", "env:1"])
    def test_a_secret_in_the_place_of_its_source_is_refused_and_not_repeated(
        self, wrong: object
    ) -> None:
        text = refused("fanin", {"broker": "mqtt://h", "password": wrong})
        assert (text.code, text.values["option"]) == ("VALUE", "--password")
        assert "hunter2" not in text

    def test_a_password_is_not_repeated(self) -> None:
        for url in (
            "http://me:s3cret@h",
            "me:s3cret@h",
            "mqtt://me:s3cr\net@h",
            "ftp://me:s3@cret@h",
        ):
            text = refused("fanin", {"broker": url})
            assert "s3" not in text and "cret" not in text and "me@h" in text


class TestToml:
    @pytest.mark.parametrize("case", CASES)
    def test_defaults_read_back_equal(self, case: str) -> None:
        scenario = build_scenario(case, None, {})
        assert build_scenario(case, read_toml(toml_lines(scenario.plain())), {}) == scenario

    @pytest.mark.parametrize(
        "text", ["a = ", "a = 1\na = 2", "[" * 100_000, "x = " + "[" * 5000, "x = " + "9" * 5000]
    )
    def test_what_is_not_toml_is_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(ScenarioError) as caught:
            read_toml(text)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 200

    def test_an_endless_file_is_refused(self) -> None:
        with refusal("FILE_LONG"):
            read_toml("#" * (1 << 21))

    def test_a_table_is_not_a_value(self) -> None:
        text = refused("fanin", {}, read_toml("[devices]\na = 1"))
        assert text.values["option"] == "--devices"

    def test_passwords_are_left_out(self) -> None:
        scenario = build_scenario("fanin", {"broker": ["mqtt://me:s3cret@h:1", "mqtt://u@i"]}, {})
        assert scenario.plain()["broker"] == ["mqtt://me@h:1", "mqtt://u@i"]
        assert "s3cret" not in toml_lines(scenario.plain())

    @pytest.mark.parametrize(("url", "without"), rows_of("plan.redacted_urls"))
    def test_redaction(self, url: str, without: str) -> None:
        assert redact_url(url) == without


def values_of(spec: FieldKind) -> st.SearchStrategy[Any]:
    """Values that a field takes."""
    if spec.name in BY_NAME:
        return BY_NAME[spec.name]
    if isinstance(spec, Choice):
        return st.sampled_from(spec.choices)
    by_kind: dict[type[FieldKind], st.SearchStrategy[Any]] = {
        Flag: st.booleans(),
        TextLine: TEXTS,
        Secret: st.sampled_from(("prompt", "env:A_1", "file:/a b/ü")),
        Texts: st.lists(TEXTS, max_size=3),
        GroupTables: st.just([{"count": 2, "topic": "a/{device}", "size": "40-50", "rate": 3}]),
        TableText: st.dictionaries(
            st.sampled_from(("order", "1", "SM")), st.integers() | st.lists(st.booleans())
        ),
        Networks: st.sampled_from(("127.0.0.0/16", "10.1.2.3", "fd00::/64,fd01::/64")),
        Thresholds: st.just(("end_to_end.p99<5ms", "lost<0.1%", "sent_rate>=9.9k")),
        ListenAddress: st.sampled_from((":9464", "0.0.0.0:1", "[::1]:65535")),
        Collector: st.sampled_from(("http://127.0.0.1:4318", "https://[::1]/otlp")),
        MetricsPages: st.just(("http://127.0.0.1:9100/metrics", "https://[::1]/m?format=x")),
        Placement: st.just(("publishers=0", "subscribers=1,2")),
        RateSteps: st.sampled_from(("50%", "50%,75%:20s,100%", "0.5%:500ms")),
    }
    if not isinstance(spec, Quantity):
        return by_kind[type(spec)]
    least, most = spec.minimum, min(spec.maximum, 2**53)
    whole = st.integers(math.ceil(least), int(most))
    if isinstance(spec, Size):
        return st.tuples(whole, whole).map(lambda pair: tuple(sorted(pair)))
    is_whole = isinstance(spec, Count) or (isinstance(spec, Seconds) and spec.whole_seconds)
    return whole if is_whole else st.floats(least, most)


TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).filter(
    str.strip
)
BROKERS = st.one_of(
    st.sampled_from([("auto",), ("reflector",)]),
    st.lists(st.sampled_from(["mqtts://h", "wss://u@[::1]:9/x"]), min_size=1).map(tuple),
)


BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "broker": BROKERS,
    "affinity": st.sampled_from(("0", "0,2-5", "7-7")),
    "client_id": TEXTS.map(lambda text: re.sub("[{}]", "", text) + "{group}-{device}"),
    "topic": st.just("{group}/{device}"),
    "front_root": st.sampled_from(("a", "a/b c")),
}


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    # SPECjms2007 has tables of its own, with tests of their own.
    case = draw(st.sampled_from([case for case in CASES if case != "specjms"]))
    kinds = st.sampled_from(list(CASES[case].scenario.fields().values()))
    chosen = draw(st.lists(kinds, max_size=6, unique_by=lambda kind: kind.name))
    fields = {kind.name: draw(values_of(kind)) for kind in chosen}
    try:
        return build_scenario(case, None, fields)
    except ScenarioError:  # they contradict each other
        reject()


@given(scenarios())
@examples(150)
def test_any_scenario_survives_toml_and_plain_fields(scenario: Scenario) -> None:
    assert build_scenario(scenario.case, read_toml(toml_lines(scenario.plain())), {}) == scenario
    assert type(scenario).model_validate(scenario.plain()) == scenario


@given(
    st.sampled_from(list(CASES)),
    st.dictionaries(
        st.one_of(
            st.sampled_from(sorted({field.name for _, field in FIELDS})), st.text(max_size=20)
        ),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=50)),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2)
            ),
            max_leaves=5,
        ),
        max_size=4,
    ),
)
@examples(300)
def test_any_file_gives_a_scenario_or_one_line(case: str, file: dict[str, object]) -> None:
    try:
        scenario = build_scenario(case, file, {})
    except ScenarioError as error:
        assert str(error).isprintable() and len(str(error)) < 1000
    else:
        assert scenario.case == case


class TestFiles:
    def test_every_case_has_a_small_and_a_published_size(self) -> None:
        found = {
            (read_toml(path.read_text())["case"], path.stem.endswith("-published"))
            for path in SCENARIOS.glob("*.toml")
        }
        # Requests and groups are ours: no report has them.
        wanted = {(case, published) for case in CASES for published in (True, False)}
        assert wanted - {("request", True), ("run", True)} <= found

    @pytest.mark.parametrize("stem", PLAIN_FILES)
    @pytest.mark.parametrize("suffix", ["", "-published"])
    def test_files_load_and_plan(self, stem: str, suffix: str) -> None:
        text = (SCENARIOS / f"{stem}{suffix}.toml").read_text(encoding="utf-8")
        file = read_toml(text)
        scheme = "mqtts" if stem.endswith("-sec") else "mqtt"
        brokers: dict[str, object] = {"broker": f"{scheme}://10.10.0.222:16901"} if suffix else {}
        if suffix and file["case"] == "bridge":
            fronts = [f"mqtt://10.10.{net}.222:16901" for net in range(16)]
            brokers = {"broker": fronts, "backend": "mqtt://10.10.16.222:16901"}
        scenario = build_scenario(str(file["case"]), file, brokers)
        assert groups_of(scenario)
        if suffix:
            assert "Source:" in text and "Performance Benchmarks" in text
            host = Host(cores=12, descriptors=200_000, memory_bytes=98 << 30, local_ports=60_000)
            targets = tuple(Target(f"10.10.{net}.222", 16901) for net in range(17))
        else:
            host = Host(cores=2, descriptors=20_000, memory_bytes=8 << 30, local_ports=28_000)
            targets = (Target("127.0.0.1", 1883), *(Target("127.0.0.1", 1884),) * 3)
        plan = fit_plan(resolve(scenario), host, targets, 1)
        assert len(plan.workers) <= host.cores

    def test_published_sizes(self) -> None:
        def load(case: str) -> Scenario:
            text = (SCENARIOS / f"{case}-published.toml").read_text(encoding="utf-8")
            broker = {"broker": "mqtts://h"} if case.endswith("-sec") else {}
            return build_scenario(case.removesuffix("-sec"), read_toml(text), broker)

        fanin, fanout, persistent = load("fanin"), load("fanout"), load("persistent")
        # The published command lines: SSLCipher=AES256, SSLClientMeth=TLSv12.
        for secured in (load("fanin-sec"), load("fanout-sec")):
            assert (secured.tls_version, secured.tls_ciphers) == ("1.2", "AES256")
        assert (load("fanout-sec").ratio, load("fanout-sec").rate) == (10, 330_000)
        assert (fanin.devices, fanin.rate) == (400_000, 400_000)
        assert (fanout.topics, fanout.ratio, fanout.rate) == (10, 100, 162_000)
        assert (persistent.pairs, persistent.rate, persistent.qos) == (10, 460_000, 1)
        latency = load("latency")
        assert (latency.devices, latency.topics, latency.rate) == (150_000, 10, 10_000)
        assert latency.duration == 300
        assert load("connburst").devices == 1_000_000
