"""The kernel's result of a packet beside every result that the oracle allows."""

import itertools

from programs import Run


def expectations(world, state, program, frame):
    """Every allowed result with its run, one for each combination of free choices. The state keeps the last one's."""
    pending = [[]]
    while pending:
        choices = pending.pop()
        state.discard()
        run = Run(world, state, choices)
        result = run.run(program, frame)
        yield run, result
        for place in range(len(choices), len(run.options)):
            head = choices + [0] * (place - len(choices))
            pending.extend(head + [option] for option in range(1, run.options[place]))


def difference(run, result, frame, case):
    """The first difference between a result and the kernel's; None without one."""
    if case["action"] != result.verdict:
        return f"action: {case['action']}, not {result.verdict} {result.reason or result.outcome}"
    observed = bytes.fromhex(case["bytes"]) if case["bytes"] is not None else b""
    counters = case["counters"]
    if result.verdict == "pass":
        expected = frame
    elif result.verdict == "redirect":
        expected = result.frame(observed)
    else:
        expected = observed
    wanted = {
        "drops": [result.reason] if result.reason else [],
        "outcomes": [result.outcome] if result.outcome else [],
        "events": sorted(run.events),
        "sent": [[result.sent.counter, 1, len(observed)]] if result.sent else [],
        "received": [[run.received.counter, 1, len(frame)]] if run.received else [],
    }
    for name, value in wanted.items():
        got = sorted(counters[name])
        if got != value:
            return f"{name}: {got}, not {value}"
    if expected is None:
        return "bytes: a source port outside of the dynamic range"
    if expected != observed:
        at = next(
            (i for i, (a, b) in enumerate(itertools.zip_longest(expected, observed)) if a != b), len(expected)
        )
        return f"bytes from {at}: {observed[at:at + 16].hex()}, not {expected[at:at + 16].hex()}"
    return None


def check(world, state, case):
    """None if the oracle allows the kernel's result, else all differences. The flow tables follow the kernel."""
    frame = bytes.fromhex(case["frame"])
    differences = []
    for run, result in expectations(world, state, case["program"], frame):
        found = difference(run, result, frame, case)
        if found is None:
            state.keep()
            return None
        differences.append(found)
    state.discard()
    return differences


def flow_differences(world, state, dumped):
    """Entries of the flow tables that differ from the kernel's maps."""
    differences = []
    for table in state.TABLES:
        ours, theirs = state.tables[table], dumped.tables[table]
        for key in ours.keys() | theirs.keys():
            expected, found = ours.get(key, "none"), theirs.get(key, "none")
            if expected != found and not is_same_choice(world, key, expected, found):
                differences.append(f"{table} {key}: {found}, not {expected}")
    return differences


def is_same_choice(world, key, expected, found):
    """Whether two entries of an unconfirmed flow name one backend and differ by the table that it is from: packets show
    no hash, and the backend may be in several tables."""
    if not (isinstance(expected, tuple) and isinstance(found, tuple)) or expected[0] != found[0]:
        return False
    _, _, address, port, protocol = key
    service = world.services.get((address, port, protocol))
    tables = [service.table, *service.past] if service else []
    return found[1] < len(tables) and found[0] in tables[found[1]]
