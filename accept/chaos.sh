#!/usr/bin/env bash
# 2,000 connections from 4 client processes to one server survive 20 random kills of clients and one of the server (SIGKILL, by pid, started
# again): all 2,000 are up again and carry messages, nothing wrong arrives; afterwards the service holds no identifier, port or slot, as many
# descriptors as before, and gives its memory back: MARGIN_KIB more than after a quiet round of the same size are allowed, and KEPT_KIB more than
# at the start (the heap's own pieces). OARLOCK_SEED repeats a run's choices.
. "$(dirname "$0")/lib.sh"
export OARLOCK_SEED=${OARLOCK_SEED:-$((RANDOM * 32768 + RANDOM))} MARGIN_KIB=2048 KEPT_KIB=4608
"$OARLOCK" host --grace 300 >"$work/host.out" 2>"$work/host.err" & host=$!; children+=($host)
within 120 "$OARLOCK" ps >/dev/null 2>&1 || fail "the service does not answer"
python3 - "$work" "$host" >"$work/chaos.out" 2>"$work/chaos.err" <<'P' || fail "seed $OARLOCK_SEED"
import json, os, random, signal, subprocess, sys, time

work, host = sys.argv[1], int(sys.argv[2])
tool, seed, margin = os.environ["OARLOCK"], int(os.environ["OARLOCK_SEED"]), int(os.environ["MARGIN_KIB"])
kept = int(os.environ["KEPT_KIB"])
rng = random.Random(seed)
CLIENTS, EACH, KILLS = 4, 500, 20
TOTAL = CLIENTS * EACH

def figures():
    status = dict(l.split(":", 1) for l in open(f"/proc/{host}/status"))
    return len(os.listdir(f"/proc/{host}/fd")), int(status["VmRSS"].split()[0])

def ps():
    return json.loads(subprocess.run([tool, "ps", "--json"], capture_output=True, check=True, text=True).stdout)

def until(what, limit, test):
    end = time.monotonic() + limit
    while not test():
        if time.monotonic() > end:
            raise SystemExit(f"not within {limit} s: {what}")
        time.sleep(0.1)

class Process:
    started = 0
    def __init__(self, *args):
        Process.started += 1
        self.out, self.err = (open(f"{work}/p{Process.started}.{kind}", "w+") for kind in ("json", "said"))
        self.p = subprocess.Popen([tool, "soak", *args], stdout=self.out, stderr=self.err)
    def said(self, text):
        return text in open(self.err.name).read()
    def kill(self):
        self.p.send_signal(signal.SIGKILL)
        assert self.p.wait() == -signal.SIGKILL, "it ended by itself before it was killed"
    def end(self):
        self.p.terminate()
        status = self.p.wait(timeout=120)
        assert status == 0, f"a process ended with {status}: {open(self.err.name).read()[-500:]}"
        return json.load(open(self.out.name))

def server():
    s = Process("server")
    until("the server listens", 120, lambda: s.said("listening") or s.p.poll() is not None)
    assert s.p.poll() is None, open(s.err.name).read()
    return s
def client():
    return Process("client", "127.0.0.1:7471", "-c", str(EACH))

def all_up():
    ids = ps()["ids"]
    return sum(i["state"] == "CONNECT" and i["remote"] is not None for i in ids) == 2 * TOTAL and len(ids) == 2 * TOTAL + 1
def nothing_left():
    p = ps()
    return p["ids"] == [] and p["host"]["slots"] == [] and p["host"]["ports"] == [] and p["host"]["clients"] == []
def finish(the_server, clients):
    done = [c.end() for c in clients]
    for d in done:
        assert d["ok"] and d["up"] == EACH and d["messages"] > 0 and d["mismatches"] == 0, d
    the_server.end()
    until("nothing is left", 120, nothing_left)
    until(f"{at_start[0]} descriptors, as at the start", 120, lambda: figures()[0] <= at_start[0])
    return sum(d["messages"] for d in done)

at_start = figures()
began = time.monotonic()
s, clients = server(), [client() for _ in range(CLIENTS)]
until("all connections are up", 120, all_up)
set_up = time.monotonic() - began
finish(s, clients)
quiet = figures()

s, clients = server(), [client() for _ in range(CLIENTS)]
until("all connections are up", 120, all_up)
full = figures()
kill_server_after = rng.randrange(KILLS)
for kill in range(KILLS):
    time.sleep(rng.uniform(0.0, 0.8))
    victim = rng.randrange(CLIENTS)
    clients[victim].kill()
    clients[victim] = client()
    if kill == kill_server_after:
        time.sleep(rng.uniform(0.0, 0.5))
        s.kill()
        time.sleep(rng.uniform(0.0, 0.5))
        s = server()
until("all connections are up again", 120, all_up)
recovered = time.monotonic() - began
messages = finish(s, clients)
at_end = figures()
assert os.path.exists(f"/proc/{host}"), "the service is gone"
print(f"seed={seed} connections={TOTAL} client_kills={KILLS} server_kills=1 messages_of_the_last_clients={messages} mismatches=0 "
      f"first_set_up_s={set_up:.1f} all_s={time.monotonic() - began:.1f} "
      f"descriptors={at_start[0]}/{quiet[0]}/{full[0]}/{at_end[0]} rss_kib={at_start[1]}/{quiet[1]}/{full[1]}/{at_end[1]} (start/after a quiet round/full/end)")
assert at_end[1] <= quiet[1] + margin, f"memory is left: {at_end[1] - quiet[1]} KiB more than after a quiet round, {margin} allowed"
assert at_end[1] <= at_start[1] + kept, f"memory is left: {at_end[1] - at_start[1]} KiB more than at the start, {kept} allowed"
P
pass "$(cat "$work/chaos.out")"
