# Shared by the scripts of this folder; each is run as `bash accept/NAME.sh`, as an ordinary user.
# OARLOCK names the program; without it the release build of this tree is taken, or made.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${OARLOCK:-}" ]; then
  OARLOCK=${CARGO_TARGET_DIR:-$here/target}/release/oarlock
  [ -x "$OARLOCK" ] || (cd "$here" && cargo build --release --locked -q)
fi
export OARLOCK

# Every script works in network namespaces of its own, so that the real port 4791 is free and nothing outside is touched.
if [ -z "${OARLOCK_ACCEPT_INSIDE:-}" ] && [ -z "${OARLOCK_ACCEPT_HERE:-}" ]; then
  if unshare -Urn true 2>/dev/null; then
    export OARLOCK_ACCEPT_INSIDE=1
    exec unshare -Urn bash "$0" "$@"
  fi
  echo "not run: no unprivileged network namespaces on this machine" >&2
  case ",${OARLOCK_REQUIRE:-}," in *,netns,*) exit 1 ;; *) exit 0 ;; esac
fi
if [ -n "${OARLOCK_ACCEPT_INSIDE:-}" ]; then ip link set lo up; fi

work=$(mktemp -d)
export OARLOCK_LOG_FILE="$work/service.log" # of a service that a program starts
children=()
cleanup() {
  for pid in "${children[@]:-}"; do [ -n "$pid" ] && kill "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

fail() {
  echo "FAIL $(basename "$0" .sh): $*" >&2
  for f in "$work"/*.out "$work"/*.err "$work"/*.log; do [ -s "$f" ] && { echo "--- $(basename "$f")"; tail -n 15 "$f"; } >&2; done
  exit 1
}
pass() { echo "pass $(basename "$0" .sh): $*"; }

# expect FILE REGEX: some whole line of FILE matches.
expect() { grep -Eq -- "$2" "$1" || fail "no line of $(basename "$1") matches: $2"; }

# within SECONDS COMMAND...: the command succeeds at some time within the limit.
within() {
  local left=$(($1 * 20)); shift
  until "$@"; do left=$((left - 1)); [ "$left" -gt 0 ] || return 1; sleep 0.05; done
}

# need NAME COMMAND: the outside judge is installed, else `not run` (a failure where OARLOCK_REQUIRE names it).
need() {
  command -v "$2" >/dev/null && return 0
  echo "not run: $2 is not installed" >&2
  case ",${OARLOCK_REQUIRE:-}," in *,"$1",*) exit 1 ;; *) exit 0 ;; esac
}
# memory_test NAME: the path of a built test of crate memwatch; OARLOCK_MEMORY_TESTS is a folder that has them.
memory_test() {
  if [ -n "${OARLOCK_MEMORY_TESTS:-}" ]; then
    echo "$OARLOCK_MEMORY_TESTS/$1"
  else
    (cd "$here" && cargo test --release --locked -q -p oarlock-memwatch --test "$1" --no-run --message-format=json 2>/dev/null) |
      python3 -c 'import json,sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])'
  fi
}
gone() { ! kill -0 "$1" 2>/dev/null; }
# ended PID: waits for a child; its exit status is then in $s.
ended() { s=0; wait "$1" || s=$?; }
# cmatose_pair ADDRESS [PREFIX...]: a server, started behind PREFIX, and its client connect, exchange, migrate and end well, every message checked
# on both sides.
cmatose_pair() {
  local addr=$1 args='-c 100 -C 10 -S 4096 -m' server side; shift
  rm -f "$work"/server.* "$work"/client.* # what an earlier server said must not pass for this one's
  "$@" "$OARLOCK" cmatose $args >"$work/server.out" 2>"$work/server.err" & server=$!; children+=($server)
  within 120 grep -qs 'listening' "$work/server.out" || fail "$addr: the server does not listen"
  "$OARLOCK" cmatose -s "$addr" $args >"$work/client.out" 2>"$work/client.err" || fail "$addr: client exited with $?"
  ended "$server"; [ "$s" = 0 ] || fail "$addr: server exited with $s"
  for side in server client; do
    expect "$work/$side.out" '^migrating to new event channel$'
    expect "$work/$side.out" '^test complete$'
    expect "$work/$side.out" '^return status 0$'
    expect "$work/$side.out" '^messages checked: 1000 of 1000, mismatches: 0$'
  done
}
# nothing_left: no service runs any more, or the one that runs holds no identifier, port or slot.
nothing_left() {
  local s=0
  "$OARLOCK" ps --json >"$work/ps.json" 2>"$work/ps.err" || s=$?
  [ "$s" = 1 ] && return 0
  python3 - "$work/ps.json" <<'P'
import json, sys
p = json.load(open(sys.argv[1]))
sys.exit(0 if p["ids"] == [] and p["host"]["slots"] == [] and p["host"]["ports"] == [] else 1)
P
}
