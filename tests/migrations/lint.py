"""What a revision must not do while workers run: found by squawk in the SQL that it would run."""

import json
import subprocess
import sys
from pathlib import Path

SQUAWK = str(Path(sys.executable).with_name("squawk"))
# Time-outs are fleet's own (migrate.py), and 32 bits are enough where it says `integer`.
ELSEWHERE = {"require-lock-timeout", "require-statement-timeout", "prefer-bigint-over-int", "prefer-robust-stmts"}
CONTRACTS = {"ban-drop-column", "ban-drop-table", "ban-drop-not-null", "renaming-column", "renaming-table"}


def complaints(sql: str, *, contract: bool) -> set[str]:
    """Return the rules that this SQL breaks. Only a contract, which nobody's code needs any more, may take away."""
    command = [SQUAWK, "--reporter", "json", "--pg-version", "15", "--stdin-filepath", "revision.sql"]
    done = subprocess.run(command, input=sql, capture_output=True, text=True, check=False, timeout=60)
    found = {each["rule_name"] for each in json.loads(done.stdout)}
    return found - ELSEWHERE - (CONTRACTS if contract else set())
