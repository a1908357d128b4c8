"""The table of programs in the README.

    table.py RESULTS                    prints the table of a run's results
    table.py RESULTS README             puts it between the README's markers
    table.py ROWS.toml README --check   the README's table has the rows, the columns and the reasons of these rows, each cell `yes`

A cell says `yes` where the row was green, or why it cannot be."""

import json
import sys

import run

PLACES = [place.name for place in run.PLACES]
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


def all_green(rows):
    """The results that a run without a fault has, in its order."""
    cells, impossible = run.cells(rows)
    green = ({"row": row["name"], "place": place.name, "wrong": []} for row, place in cells)
    return [*green, *impossible]


def split(text):
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after


def main():
    source, *where = sys.argv[1:]
    if not where:
        print("\n".join(table(json.load(open(source)))))
        return
    before, inside, after = split(open(where[0]).read())
    if where[1:] == ["--check"]:
        due = list(table(all_green(run.load(source))))
        found = inside.strip("\n").split("\n")
        for line in due:
            if line not in found:
                print(f"README: no line {line!r}")
        for line in found:
            if line not in due:
                print(f"README: a line of no row, or an old one: {line!r}")
        sys.exit(0 if due == found else 1)
    lines = "\n".join(table(json.load(open(source))))
    open(where[0], "w").write(f"{before}{BEGIN}\n{lines}\n{END}{after}")


if __name__ == "__main__":
    main()
