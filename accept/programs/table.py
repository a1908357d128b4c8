"""The README's table from the results of a run: table.py RESULTS [README]; with README its table is replaced.

A cell says `yes` where the row was green, or why it cannot be."""

import json
import sys

PLACES = ["127.0.0.1", "::1", "two hosts, IPv4", "two hosts, IPv6"]
BEGIN, END = "<!-- programs: begin -->", "<!-- programs: end -->"


def table(results):
    rows, reasons = {}, []
    for result in results:
        if "not" in result:
            if result["not"] not in reasons:
                reasons.append(result["not"])
            said = f"– [{reasons.index(result['not']) + 1}]"
        else:
            said = "no" if result["wrong"] else "yes"
        rows.setdefault(result["row"], {})[result["place"]] = said
    yield "| Program | " + " | ".join(PLACES) + " |"
    yield "|---|" + "---|" * len(PLACES)
    for name, places in rows.items():
        yield f"| `{name}` | " + " | ".join(places.get(place, "") for place in PLACES) + " |"
    yield ""
    for n, reason in enumerate(reasons, 1):
        yield f"[{n}] {reason[0].upper()}{reason[1:]}.  "


def main():
    lines = "\n".join(table(json.load(open(sys.argv[1]))))
    if len(sys.argv) == 2:
        print(lines)
        return
    text = open(sys.argv[2]).read()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    open(sys.argv[2], "w").write(f"{before}{BEGIN}\n{lines}\n{END}{after}")


if __name__ == "__main__":
    main()
