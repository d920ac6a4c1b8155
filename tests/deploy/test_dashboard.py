"""The dashboard: Grafana can read it, and every question of it is one that Prometheus understands."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.test_rules import ROOT, promtool

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "fleet.json").read_text(encoding="utf-8"))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*")


def test_prometheus_understands_every_question(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": words} for number, words in enumerate(expressions())]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool(), "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_panels_share_a_name_a_number_or_a_place() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel["title"] for panel in panels()]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)
    assert len(set(titles)) == len(titles), sorted(titles)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels())


def test_every_panel_asks_the_chosen_source_and_has_a_unit() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "queue"}
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert set(re.findall(r"\$(\w+)", " ".join(target["expr"] for target in panel["targets"]))) <= {
            "queue",
            "__rate_interval",
        }
