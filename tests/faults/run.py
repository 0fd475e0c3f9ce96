"""`python -m tests.faults.run`: all faults, two at a time; writes verdicts.json and docs/faults.md.

With ids as arguments only those are run, and their verdicts replaced.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from .catalogue import all_faults
from .judge import Verdict, judge
from .report import DOCUMENT, VERDICTS, document

AT_ONCE = 2


def say(text: str) -> None:
    """One line to the person who runs this."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_one(ident: str) -> Verdict:
    """In a process of its own."""
    logging.getLogger("kvferry_client").setLevel(logging.CRITICAL)
    [case] = [each for each in all_faults() if each.ident == ident]
    return judge(case)


def run(idents: list[str]) -> list[Verdict]:
    """Run faults and tell of each."""
    verdicts = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(AT_ONCE, mp_context=context) as pool:
        for done in as_completed([pool.submit(run_one, ident) for ident in idents]):
            verdict = done.result()
            verdicts.append(verdict)
            state = "ok  " if verdict.passed else "FAIL"
            say(f"{verdict.ident} {state} {verdict.seconds:5.1f} s  {verdict.title}")
            if not verdict.passed:
                say(verdict.problem or "the fault was not proven")
    return sorted(verdicts, key=lambda each: each.ident)


def write(verdicts: list[Verdict], seconds: int) -> None:
    """Put verdicts into the record and draw the page; `seconds` of a whole run, else 0."""
    record = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {"faults": [], "seconds": 0}
    known = {each["ident"]: each for each in record["faults"]}
    known |= {each.ident: each.as_json() for each in verdicts}
    record["faults"] = [known[each.ident] for each in all_faults() if each.ident in known]
    record["seconds"] = seconds or record["seconds"]
    VERDICTS.write_text(json.dumps(record, indent=1) + "\n")
    DOCUMENT.write_text(document(record))


def main() -> int:
    """Return 1 if a fault was not proven or something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="such as F01; all if none is given")
    chosen = parser.parse_args().ids
    began = time.monotonic()
    verdicts = run(chosen or [each.ident for each in all_faults()])
    seconds = round(time.monotonic() - began)
    failed = [each.ident for each in verdicts if not each.passed]
    write(verdicts, 0 if chosen else seconds)
    good = len(verdicts) - len(failed)
    say(f"{good} of {len(verdicts)} faults passed in {seconds} s {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
