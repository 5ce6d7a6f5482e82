"""The folder deploy/: what its files say of metrics, ports, paths and options is so."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")
pytest.importorskip("httpx", reason="left out: httpx is not installed")

import serving
from prometheus_client.parser import text_string_to_metric_families

from tidefast.commands import serve as command
from tidefast.commands.environment import read_environment

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "tidefast.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
SCRAPING = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that are not in what a service tells."""
OF_A_CLUSTER = "tidefast_partition_up"
"""What only a front tells; `test_serve_cluster.py` sees that it does."""


def expressions() -> Iterator[tuple[str, str, str]]:
    """Where, the query, and what of its result is shown by label."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, set[str]]:
    """By sample that a real service tells, its labels; it was used in such a way that all of them are there."""
    more = ("--max-wait", "0", "--canaries", "bundled:part=held")
    with serving.serving(tmp_path_factory.mktemp("deploy") / "state", *more) as running, running.client() as client:
        body = serving.npy(serving.pictures(20))
        client.post("/v1/streams/a/adapt", content=body, headers={"Content-Type": serving.NPY}).raise_for_status()
        client.post("/v1/streams/a/freeze").raise_for_status()
        assert client.get("/v1/streams/b").status_code == 404
        text = client.get("/metrics").text
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    for labels in samples.values():
        labels.add("partition")  # on a cluster everything has it
    return {**samples, OF_A_CLUSTER: {"partition"}}


@pytest.mark.parametrize(("where", "query", "shown"), [pytest.param(*each, id=each[0]) for each in expressions()])
def test_every_metric_and_label_is_one_that_a_service_tells(where, query, shown, told):
    named = re.findall(r"\b(tidefast_\w+|up)(?:\{([^}]*)\})?", query)
    assert named
    known = set(OF_PROMETHEUS)
    for metric, matchers in named:
        assert metric == "up" or metric in told, metric
        there = told.get(metric, set()) | OF_PROMETHEUS
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= there
        known |= there
    grouped = {label.strip() for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in labels.split(",")}
    assert grouped <= known
    assert set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown)) <= known


@pytest.mark.parametrize(("where", "query", "shown"), [pytest.param(*each, id=each[0]) for each in expressions()])
def test_what_is_compared_on_a_cluster_is_of_one_partition(where, query, shown):
    for labels in re.findall(r"\bon \(([^)]*)\)", query):
        assert "partition" in labels


def test_the_metrics_that_the_page_calls_worth_an_alert_have_one():
    alerted = set(re.findall(r"tidefast_\w+", " ".join(rule["expr"] for rule in RULES["groups"][0]["rules"])))
    page = (ROOT / "docs" / "production.md").read_text()
    (sentence,) = re.findall(r"Worth an alert: (.+?)\n\n", page, re.S)
    assert set(re.findall(r"tidefast_\w+", sentence)) <= alerted


@pytest.mark.skipif(shutil.which("promtool") is None, reason="left out: there is no promtool (package `prometheus`)")
def test_promtool_accepts_the_rules_the_configuration_and_every_query(tmp_path):
    folder = DEPLOY / "prometheus"

    def promtool(*words: str) -> None:
        done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")
    promtool("check", "config", "--syntax-only", "prometheus.yml")  # the token is not here
    panels = [query.replace("$__rate_interval", "5m").replace("$instance", ".*") for _, query, _ in expressions()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(panels)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "queries.yml"))


def test_each_panel_has_its_place_and_its_source():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in BOARD["panels"]})
    provisioned = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    (source,) = provisioned["datasources"]
    used = {target["datasource"]["uid"] for panel in BOARD["panels"] for target in panel["targets"]}
    assert used == {source["uid"]}
    assert all(panel["description"] for panel in BOARD["panels"])


def dockerfile() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_compose_file_fits_the_image_prometheus_and_grafana():
    services = COMPOSE["services"]
    settings = dict(rest.split("=", 1) for word, rest in dockerfile() if word == "ENV")
    exposed = [rest for word, rest in dockerfile() if word == "EXPOSE"]
    assert exposed == [settings["TIDEFAST_SERVE_PORT"]]
    own = services["tidefast"]
    assert (DEPLOY / own["build"]["context"] / own["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert own["ports"] == [f"127.0.0.1:{exposed[0]}:{exposed[0]}"]
    (volume,) = [rest for word, rest in dockerfile() if word == "VOLUME"]
    assert own["volumes"] == [f"state:{volume}"]
    assert settings["TIDEFAST_SERVE_STATE"].startswith(f"{volume}/")
    (job,) = SCRAPING["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"tidefast:{exposed[0]}"]}]
    token = "/run/secrets/token"
    assert job["authorization"]["credentials_file"] == own["environment"]["TIDEFAST_SERVE_TOKEN_FILE"] == token
    assert own["secrets"] == services["prometheus"]["secrets"] == list(COMPOSE["secrets"]) == ["token"]
    assert all((DEPLOY / "prometheus" / rules).is_file() for rules in SCRAPING["rule_files"])
    assert 'up{job="tidefast"}' in RULES["groups"][0]["rules"][0]["expr"]
    assert job["job_name"] == "tidefast"
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/tidefast.yml").read_text())["providers"][0]
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounted == {
        "./grafana/provisioning": "/etc/grafana/provisioning",
        "./grafana/dashboards": provider["options"]["path"],
    }
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/tidefast.json"
    config = services["prometheus"]["command"][0].partition("=")[2]
    assert config == "/etc/prometheus/prometheus.yml"
    for service in services.values():
        for mount in service["volumes"]:
            here = mount.split(":")[0]
            assert (DEPLOY / here).is_dir() if here.startswith(".") else here in COMPOSE["volumes"]
    assert int(own["stop_grace_period"].removesuffix("s")) > made().parse_args([]).drain


def made() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    return parser


def test_the_settings_of_image_and_compose_file_are_options_of_the_service():
    image = dict(rest.split("=", 1) for word, rest in dockerfile() if word == "ENV")
    given = {**image, **COMPOSE["services"]["tidefast"]["environment"]}
    read = read_environment(made(), command.VARIABLES, {name: str(value) for name, value in given.items()})
    assert len(read) == len(given) - 1  # all but PATH
    entry = json.loads(next(rest for word, rest in dockerfile() if word == "ENTRYPOINT"))
    assert entry == ["tidefast", "serve"]


def test_the_image_is_made_of_files_that_are_there_and_not_ignored():
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = [shlex.split(rest)[:-1] for word, rest in dockerfile() if word == "COPY" and "--from" not in rest]
    named = {name for names in copied for name in names}
    assert named == kept
    assert all((ROOT / name).exists() for name in named)
