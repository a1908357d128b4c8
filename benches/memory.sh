#!/usr/bin/env bash
# The registration cache beside that of UCX (package libucx-dev; neither needs hardware): time of a hit, of a miss, lookups a second of one and two
# threads, what a watched munmap costs more than a plain one; and the changes of memory after which each gives a registration that is stale.
# Rounds of both in turn; medians, the best of all rounds, and ratios of the medians of one run: reported, never judged by time.
# usage: bash benches/memory.sh [ROUNDS [SECONDS]]     OARLOCK_RCACHE names the built example `rcache` of crate memwatch
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-0.5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${OARLOCK_RCACHE:-}" ]; then
  cargo build --release --locked -q -p oarlock-memwatch --example rcache
  OARLOCK_RCACHE=${CARGO_TARGET_DIR:-$PWD/target}/release/examples/rcache
fi
if ! cc -O2 -pthread -o "$work/ucx_rcache" benches/peers/ucx_rcache.c -lucs -lucm 2>"$work/cc.err"; then
  if [ -e /usr/include/ucs/memory/rcache.h ]; then cat "$work/cc.err" >&2; exit 1; fi
  echo 'not run: UCX, libucx-dev is not installed' >&2
fi
python3 - "$OARLOCK_RCACHE" "$work/ucx_rcache" "$rounds" "$seconds" <<'PYTHON'
import os, statistics, subprocess, sys

ours, ucx, rounds, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
programs = {'ours': ours}
if os.access(ucx, os.X_OK):
    programs['UCX'] = ucx
figures, answers, failed = {}, {}, False
for number in range(rounds):
    for name, program in programs.items():
        run = subprocess.run([program, seconds], capture_output=True, text=True, timeout=300)
        if run.returncode:
            print('%s: exit status %d: %s' % (name, run.returncode, run.stderr.strip()), file=sys.stderr)
            failed = True
        for line in run.stdout.splitlines():
            what, value = line.split()
            if what.startswith('stale_'):
                answers.setdefault((name, what[6:]), set()).add(value)
            else:
                figures.setdefault((name, what), []).append(float(value))

def median(name, what):
    values = figures.get((name, what))
    return statistics.median(values) if values else None

def best(name, what):
    values = figures.get((name, what))
    return (max if 'rate' in what else min)(values) if values else None

def text(value, form='%.1f'):
    return '-' if value is None else form % value

def over(a, b):
    return a / b if a is not None and b else None

def less(a, b):
    return a - b if a is not None and b is not None else None

print('machine: %d cores, Linux %s, load %.1f; %d rounds of %s s, medians (best)' % (os.cpu_count(), os.uname().release, os.getloadavg()[0], rounds, seconds))
print()
print('| what | ours | UCX | ours / UCX |')
print('|---|---|---|---|')
rows = (
    ('hit, one of 1,024 regions again (ns)', 'hit_same', 'hit_same', 1),
    ('hit, 1,024 regions at random (ns)', 'hit_random', 'hit_random', 1),
    ('the same, strict (ns)', 'strict_hit_random', None, 1),
    ('lookups, one thread (million/s)', 'rate_1', 'rate_1', 1e6),
    ('lookups, two threads together (million/s)', 'rate_2', 'rate_2', 1e6),
    ('strict lookups, one thread (million/s)', 'strict_rate_1', None, 1e6),
    ('strict lookups, two threads together (million/s)', 'strict_rate_2', None, 1e6),
    ('miss: look up, register (nothing), keep (ns)', 'miss', 'miss', 1),
    ('munmap of 64 KiB, plain (ns)', 'unmap_plain', 'unmap_plain', 1),
    ('munmap of 64 KiB that was looked up (ns)', 'unmap_watched', 'unmap_watched', 1),
    ('a bare system call (ns)', 'system_call', 'system_call', 1),
)
for label, own, other, unit in rows:
    a, b = median('ours', own), median('UCX', other) if other else None
    cells = []
    for name, what in (('ours', own), ('UCX', other)):
        values = [f(name, what) if what else None for f in (median, best)]
        cells.append('-' if values[0] is None else '%.1f (%.1f)' % tuple(value / unit for value in values))
    print('| %s | %s | %s |' % (label, ' | '.join(cells), text(over(a, b), '%.2f')))
print()
print('| what follows | ours | UCX |')
print('|---|---|---|')
def pair(label, function, form='%.1f'):
    print('| %s | %s |' % (label, ' | '.join(text(function(name), form) for name in ('ours', 'UCX'))))
for which, of in (('', median), (', best', best)):
    pair('two threads over one' + which, lambda name: over(of(name, 'rate_2'), of(name, 'rate_1')), '%.2f')
    pair('strict lookup over fast, less a bare system call (ns)' + which, lambda name: less(less(of(name, 'strict_hit_random'), of(name, 'hit_random')), of(name, 'system_call')))
    pair('watched munmap less a plain one (ns)' + which, lambda name: less(of(name, 'unmap_watched'), of(name, 'unmap_plain')), '%.0f')
print()
print('| the memory changes | ours, strict | UCX |')
print('|---|---|---|')
cases = (
    ('munmap, mmap at the same address', 'munmap'),
    ('mmap MAP_FIXED over it', 'map_over'),
    ('madvise MADV_DONTNEED', 'dont_need'),
    ('mremap of other memory onto it', 'mremap_onto'),
    ('the same, by syscall(2)', 'raw_mremap_onto'),
    ('munmap by syscall(2), mmap', 'raw_munmap'),
    ('munmap by code that enters the kernel itself, mmap', 'own_munmap'),
    ('process_madvise MADV_DONTNEED', 'process_madvise'),
    ('shmat SHM_REMAP over it', 'attach_over'),
    ('the same, told by the program (hooks::invalidate)', 'attach_over_told'),
    ('the same, asked for (Handle::validate)', 'attach_over_validated'),
    ('guard pages installed (MADV_GUARD_INSTALL)', 'guard'),
    ('the same, told by the program (hooks::invalidate)', 'guard_told'),
    ('the same, asked for (Handle::validate)', 'guard_validated'),
)
words = {
    'right': 'registered anew', 'stale': '**stale**', 'not_run': 'not possible here', 'failed': '**failed**',
    'elsewhere': 'its mremap moves the memory to another address',
}
for label, case in cases:
    cells = []
    for name in ('ours', 'UCX'):
        cells.append(', '.join(sorted(words[answer] for answer in answers.get((name, case), set()))) or '-')
    print('| %s | %s |' % (label, ' | '.join(cells)))
sys.exit(failed)
PYTHON
