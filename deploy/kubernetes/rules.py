"""Write base/prometheus-rule.yaml out of deploy/prometheus/rules.yml: `python deploy/kubernetes/rules.py`."""

import sys
from pathlib import Path
from textwrap import indent

HERE = Path(__file__).resolve().parent
RULES = HERE.parent / "prometheus" / "rules.yml"
TARGET = HERE / "base" / "prometheus-rule.yaml"
HEAD = """\
# Written by deploy/kubernetes/rules.py out of deploy/prometheus/rules.yml: change that one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fleet
spec:
"""


def rule(rules: str) -> str:
    """Return the resource that holds these rules: the text of a rule file, as it is, is its spec."""
    return HEAD + indent(rules, "  ")


if __name__ == "__main__":
    TARGET.write_text(rule(RULES.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stderr.write(f"wrote {TARGET}\n")
