"""Write docs/faults.md and the recovery times of docs/guarantees.md: `python -m tests.catalogue`.

Ends with 1 while a fault is neither tested nor explained, or a mark names none.
"""

import sys

from tests.catalogue.collect import defences
from tests.catalogue.page import GUARANTEES, PAGE, gaps, page, results, with_recovery_times
from tests.catalogue.recovery import recoveries


def main() -> int:
    found, measured = defences(), list(recoveries())
    PAGE.write_text(page(found, results(), measured), encoding="utf-8")
    told = GUARANTEES.read_text(encoding="utf-8")
    GUARANTEES.write_text(with_recovery_times(told, measured), encoding="utf-8")
    tests = {each.test for each in found}
    print(f"{PAGE.name}: {len(found)} lines of {len(tests)} tests")
    complaints = list(gaps(found))
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
