"""An oracle for the programs: compares the kernel's results in a file of JSON lines with its own.

Usage: python3 tests/oracle [--wrong-results] FILE

It shares no code with the programs and is written from the RFCs and docs/design. Lines: a world with its flow tables,
then packets with the kernel's results, then the flow tables after them.
"""

import collections
import json
import sys

import compare
import wrong_results
from world import Flows, World

MOST_PRINTED = 20


def main(arguments):
    path = arguments[-1]
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    if "--wrong-results" in arguments:
        return wrong_results.run(lines)
    return run(lines)


def run(lines):
    counts = collections.Counter()
    failures, entries, name = [], 0, ""
    world = state = None
    for number, line in enumerate(lines, 1):
        if "world" in line:
            world, state, name = World(line["world"]), Flows(line["flows"]), line["name"]
        elif "program" in line:
            found = compare.check(world, state, line)
            outcome = "".join(line["counters"]["outcomes"] + line["counters"]["drops"]) or line["action"]
            counts[outcome] += 1
            if found:
                failures.append(f"line {number}, {name}, {line['program']}, {outcome}: {found}")
        else:
            entries += sum(len(table) for table in state.tables.values())
            differences = compare.flow_differences(world, state, Flows(line["flows"]))
            failures += [f"line {number}, {name}: {text}" for text in differences]
    for text in failures[:MOST_PRINTED]:
        print(text)
    listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    print(f"oracle: {counts.total()} packets, {entries} flow entries, {len(failures)} differences: {listed}")
    return 1 if failures or not counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
