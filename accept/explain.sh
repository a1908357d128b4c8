#!/usr/bin/env bash
# Every reject reason, SIDR status and event, and every errno that calls give, is explained with meaning, remedy and source, by number and by
# name, as text and as JSON; the rules of a call; what is unknown ends with 1 and the nearest names. Then a real refusal is explained.
. "$(dirname "$0")/lib.sh"
python3 - "$OARLOCK" >"$work/count.out" <<'P' || fail "the tables"
import errno, json, subprocess, sys
tool = sys.argv[1]
def explain(*args):
    p = subprocess.run([tool, "explain", *args], capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr
def entry(kind, code, *more):
    status, out, err = explain(kind, str(code), "--json", *more)
    assert status == 0 and err == "", (kind, code, status, err)
    v = json.loads(out)
    assert v["schema"] == "oarlock.explain/1" and v["ok"] and v["kind"] == kind, v
    for key in ("name", "meaning", "remedy", "source"):
        assert v[key].strip(), (kind, code, key)
    status, text, _ = explain(kind, v["name"])
    assert status == 0 and v["meaning"] in text and v["remedy"] in text and v["source"] in text, (kind, code)
    return v
count = 0
for code in range(1, 36):
    assert entry("reject", code)["code"] == code; count += 1
for code in range(6):
    assert entry("sidr", code)["code"] == code; count += 1
for code in range(20):
    assert entry("event", code)["name"].startswith("RDMA_CM_EVENT_"); count += 1
for name in """EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY ENODEV EINVAL ENOSPC EDEADLK ENOSYS ENODATA EPROTO
               EPROTONOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETUNREACH ECONNRESET EISCONN ETIMEDOUT ECONNREFUSED EHOSTUNREACH
               ECANCELED EEXIST ENFILE EMFILE EOPNOTSUPP EOWNERDEAD""".split():
    v = entry("errno", name)
    assert v["code"] == getattr(errno, name), v
    assert entry("errno", -v["code"])["name"] == name; count += 1
# What the manual pages and the kernel's tables say about calls.
for call, name, part in [
    ("connect", "EINVAL", "ROUTE_RESOLVED"), ("rdma_connect", "EINVAL", "56 bytes"), ("connect", "ECONNREFUSED", "reject"),
    ("bind_addr", "EADDRINUSE", "very address and port"), ("rdma_bind_addr", "EADDRNOTAVAIL", "every address"), ("bind_addr", "EACCES", "1024"),
    ("resolve_addr", "ENODEV", "no RDMA device"), ("rdma_resolve_route", "EINVAL", "ADDR_RESOLVED"), ("listen", "EBUSY", "service ID"),
    ("accept", "EINVAL", "196 bytes"), ("reject", "EINVAL", "28"), ("migrate_id", "ENOENT", "old channel"), ("get_event", "EAGAIN", "no event"),
    ("set_option", "ENOSYS", "option"), ("disconnect", "ENXIO", "device has gone"), ("notify", "EISCONN", "established"),
    ("oarlock_create_memory_channel", "EACCES", "seccomp"), ("oarlock_create_memory_channel", "EMFILE", "64 memory channels"),
    ("oarlock_destroy_memory_channel", "EBUSY", "regions"), ("oarlock_reg_mr_notify", "EBUSY", "another memory channel"),
    ("oarlock_reg_mr_notify", "EBADF", "before the first region"), ("oarlock_dereg_notified_mrs", "EINVAL", "no room"),
    ("oarlock_validate_mr", "EOPNOTSUPP", "6.7"), ("oarlock_read_memory_events", "EOWNERDEAD", "thread ended"),
]:
    rules = entry("errno", name, "--call", call)["rules"]
    assert any(part in r["when"] for r in rules) and all(r["source"] for r in rules), (call, name, rules)
for kind, text, near in [("reject", "36", "vendor-option-not-supported"), ("reject", "stale", "stale-connection"), ("event", "UNREACHABEL", "RDMA_CM_EVENT_UNREACHABLE"),
                         ("errno", "EADRINUSE", "EADDRINUSE"), ("sidr", "7", "unsupported-version")]:
    status, out, err = explain(kind, text)
    assert status == 1 and out == "" and err.startswith("error: ") and near in err and err.count("\n") == 1, (kind, text, err)
    status, out, _ = explain(kind, text, "--json")
    assert status == 1 and not json.loads(out)["ok"] and near in json.loads(out)["nearest"], out
assert explain("rejects", "1")[0] == 2 and explain("reject", "1", "--call", "connect")[0] == 2
print(count)
P
# The number in a real refusal is the one to ask about.
s=0; "$OARLOCK" cmatose -s 127.0.0.1 -c 1 >"$work/refused.out" 2>"$work/refused.err" || s=$?
[ "$s" = 1 ] || fail "cmatose without a server exited with $s"
reason=$(sed -nE 's/^error: .*\(([0-9]+)\).*/\1/p' "$work/refused.err")
"$OARLOCK" explain reject "$reason" >"$work/why.out" || fail "the reason $reason of a refusal is not explained"
expect "$work/why.out" '^meaning: nobody listens'
pass "$(cat "$work/count.out") codes by number and name, rules of calls, nearest names; the reason of a real refusal"
