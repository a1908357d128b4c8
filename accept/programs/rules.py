"""Runs the C programs that show the rules of the C library's behaviour, and compares what they show with the list.

    rules.py SOURCES PROGRAMS MAN      the folder of sources and rules.txt, that of the compiled programs, that of the manual pages
    rules.py SOURCES --said FOLDER     what the programs said on another device: NAME.out of each

Green when every program ends with 0, shows each of its rules with a line `ok RULE`, and shows no other; and when every rule that a manual
page cites has its line in rules.txt. The judge itself is tried on transcripts with a fault.

On another device green when every rule is shown there but those whose sentence begins with `(here)`: they are about what that device has not.
"""

import concurrent.futures
import glob
import os
import re
import sys
import time

import hosts


def listed(path):
    """rules.txt: RULE, program and sentence, with tabs between."""
    rules = {}
    for line in open(path).read().split("\n"):
        if line and not line.startswith("#"):
            rule, program, sentence = line.split("\t")
            assert rule not in rules and sentence, f"twice or without a sentence: {rule}"
            rules[rule] = program
    return rules


def cited(folder):
    pages = (open(page).read() for page in glob.glob(f"{folder}/*.3"))
    return {rule for page in pages for rule in re.findall(r'^\.\\" = (\S+)', page, re.MULTILINE)}


def judge(rules, cited_rules, shown):
    """`shown`: for each program its exit status and its lines."""
    for program in sorted(set(rules.values()) - shown.keys()):
        yield f"{program}: is in the list, and there is no such program"
    for program, (status, lines) in sorted(shown.items()):
        if status != 0:
            yield f"{program}: exit status {status}"
        yield from (f"{program}: {line}" for line in lines if line.startswith("FAIL "))
        told = {line[3:] for line in lines if line.startswith("ok ")}
        due = {rule for rule, of in rules.items() if of == program}
        if not due:
            yield f"{program}: has no rule in the list"
        yield from (f"{program}: does not show {rule}" for rule in sorted(due - told))
        yield from (f"{program}: shows {rule}, which is not in the list as its" for rule in sorted(told - due))
    yield from (f"a manual page cites {rule}, which is not in the list" for rule in sorted(cited_rules - rules.keys()))


def otherwise(path):
    """kernel.txt: rules, and parts of programs, with the reason."""
    lines = (line.split("\t") for line in open(path).read().split("\n") if line and not line.startswith("#"))
    return {what: reason for what, reason in lines}


def elsewhere(sources, folder):
    """Compares what was said on another device."""
    rules, differs = listed(f"{sources}/rules.txt"), otherwise(f"{sources}/kernel.txt")
    here = {line.split("\t")[0] for line in open(f"{sources}/rules.txt") if "\t(here) " in line}
    shown, failed = set(), {}
    for program in sorted(set(rules.values())):
        path = f"{folder}/{program}.out"
        for line in open(path, errors="replace").read().split("\n") if os.path.exists(path) else []:
            if line.startswith("ok "):
                shown.add(line[3:])
            elif line.startswith("FAIL "):
                failed.setdefault(line[5:].split(":")[0], f"{program}: {line}")
    shown -= failed.keys()
    listed_rules = {what for what in differs if ":" not in what}
    wrong = [failed.get(rule, f"{of}: does not show {rule}") for rule, of in rules.items() if rule not in shown | here | listed_rules]
    wrong += [f"kernel.txt: {rule} is no rule, or one that is only here" for rule in sorted(listed_rules - (rules.keys() - here))]
    wrong += [f"kernel.txt: {rule} is shown there" for rule in sorted(listed_rules & shown) if not differs[rule].startswith("older kernels: ")]
    print("\n".join(wrong))
    print(f"rules={len(rules)} shown={len(shown)} here={len(here)} otherwise={len(listed_rules)} wrong={len(wrong)}")
    sys.exit(1 if wrong or not shown else 0)


def run(program, address):
    host = hosts.Host()
    process = None
    try:
        host.root("ip", "route", "add", "239.0.0.0/8", "dev", "lo")
        process = host.start([hosts.OARLOCK, "run", "--", program, address])
        ended = process.wait(time.monotonic() + 90)
        process.end()
        lines = [*process.lines, *([] if ended else ["FAIL: still running after 90 s"])]
        return process.status, lines, process.error
    finally:
        if process:
            process.end()
        host.close()


def main():
    sources, programs, man = sys.argv[1:]
    if programs == "--said":
        elsewhere(sources, man)
    rules, cites = listed(f"{sources}/rules.txt"), cited(man)
    names = sorted(os.path.basename(path)[:-2] for path in glob.glob(f"{sources}/*.c"))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = dict(zip(names, pool.map(lambda name: run(f"{programs}/{name}", "127.0.0.1"), names)))
    shown = {name: (status, lines) for name, (status, lines, _) in results.items()}
    wrong = list(judge(rules, cites, shown))
    for line in wrong:
        print(line)
    for name, (status, lines, error) in results.items():
        if status != 0:
            print(f"--- {name}", *lines[-4:], *error[-6:], sep="\n    ")

    # The judge sees what is planted: a rule that is not shown, one that is not listed, a failure, a program that is gone.
    rule, program = next(iter(rules.items()))
    status, lines = 0, [f"ok {r}" for r, p in rules.items() if p == program]
    for fault, planted in (
        ("not shown", (rules, set(), {program: (status, [line for line in lines if line != f"ok {rule}"])})),
        ("not listed", ({r: p for r, p in rules.items() if r != rule}, set(), {program: (status, lines)})),
        ("not listed, and cited", ({r: p for r, p in rules.items() if r != rule}, {rule}, {program: (status, lines[1:])})),
        ("a failure", (rules, set(), {program: (1, [*lines, f"FAIL {rule}: planted"])})),
        ("a program that is gone", (rules, set(), {})),
    ):
        of_this = {r: p for r, p in planted[0].items() if p == program}
        assert list(judge(of_this, *planted[1:])), f"not seen: {fault}"
    assert not list(judge({r: p for r, p in rules.items() if p == program}, {rule}, {program: (status, lines)}))

    print(f"rules={len(rules)} cited={len(cites)} programs={len(names)} wrong={len(wrong)}")
    sys.exit(1 if wrong or not rules or not names else 0)


if __name__ == "__main__":
    main()
