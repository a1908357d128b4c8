/* UCX's registration cache without a device: what a registration costs is nothing, so that what is left is the cache.
 * Prints `name value`, one a line; `benches/memory.sh` puts them beside ours, which `examples/rcache.rs` of memwatch prints under the same names.
 * Build: cc -O2 -pthread ucx_rcache.c -lucs -lucm. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ucm/api/ucm.h>
#include <ucs/memory/rcache.h>

enum { REGIONS = 1024, LEN = 64 << 10, PAGES = 16, PAGE = 4096, UNMAPS = 5000 };
static const int RW = PROT_READ | PROT_WRITE, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS;
static ucs_rcache_t *cache;
static char *memory[REGIONS];
static long registrations;

static ucs_status_t on_register(void *context, ucs_rcache_t *rcache, void *arg, ucs_rcache_region_t *region, uint16_t flags) {
  (void)context, (void)rcache, (void)arg, (void)region, (void)flags;
  __atomic_add_fetch(&registrations, 1, __ATOMIC_RELAXED);
  return UCS_OK;
}
static void on_deregister(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region) { (void)context, (void)rcache, (void)region; }
static void on_dump(void *context, ucs_rcache_t *rcache, ucs_rcache_region_t *region, char *text, size_t max) {
  (void)context, (void)rcache, (void)region;
  if (max) *text = 0;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}
static char *map_at(void *at, size_t len, int flags) {
  char *start = mmap(at, len, RW, PRIVATE | flags, -1, 0);
  if (start == MAP_FAILED) perror("mmap"), exit(1);
  return start;
}
static void look_up(void *start, size_t len) {
  ucs_rcache_region_t *region;
  if (ucs_rcache_get(cache, start, len, RW, NULL, &region) != UCS_OK) fprintf(stderr, "ucs_rcache_get fails\n"), exit(1);
  ucs_rcache_region_put(cache, region);
}
static uint64_t next(uint64_t *state) {
  *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
  return *state;
}

struct worker {
  pthread_t thread;
  uint64_t seed, lookups;
};
static int started, over;
static void *work(void *argument) {
  struct worker *own = argument;
  uint64_t state = own->seed;
  while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {}
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
    for (int n = 0; n < 64; n++, own->lookups++) look_up(memory[next(&state) % REGIONS] + 64, 1000);
  return NULL;
}
/* Lookups a second of all threads together. */
static double rate(int threads, double seconds) {
  struct worker workers[2] = {{.seed = 88172645463325252ull}, {.seed = 2463534242ull}};
  started = over = 0;
  for (int n = 0; n < threads; n++) pthread_create(&workers[n].thread, NULL, work, &workers[n]);
  double began = now(), total = 0;
  __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
  usleep(seconds * 1e6);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  for (int n = 0; n < threads; n++) pthread_join(workers[n].thread, NULL), total += workers[n].lookups;
  return total / ((now() - began) / 1e9);
}

static int compare(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }
/* The median time of munmap of memory that was looked up before, or not. */
static double unmap(int registered) {
  static double times[UNMAPS];
  for (int n = 0; n < UNMAPS; n++) {
    char *start = map_at(NULL, LEN, MAP_POPULATE);
    if (registered) look_up(start, LEN);
    double began = now();
    munmap(start, LEN);
    times[n] = now() - began;
  }
  qsort(times, UNMAPS, sizeof *times, compare);
  return times[UNMAPS / 2];
}

/* The changes after which the cached registration is no longer that of the memory at this address. */
static void libc_munmap(char *at) { munmap(at, PAGES * PAGE), map_at(at, PAGES * PAGE, MAP_FIXED_NOREPLACE); }
static void map_over(char *at) { map_at(at, PAGES * PAGE, MAP_FIXED); }
static void dont_need(char *at) { madvise(at, PAGES * PAGE, MADV_DONTNEED); }
/* The function that UCX 1.13.1 puts in the place of mremap has no fifth argument: the memory goes somewhere else, which is an answer of its own. */
static void remap_onto(char *at) {
  char *other = map_at(NULL, PAGES * PAGE, MAP_POPULATE);
  if (mremap(other, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) _exit(4);
}
static void raw_remap_onto(char *at) {
  char *other = map_at(NULL, PAGES * PAGE, MAP_POPULATE);
  if (syscall(SYS_mremap, other, (long)PAGES * PAGE, (long)PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != (long)at) perror("mremap"), exit(1);
}
static void raw_munmap(char *at) { syscall(SYS_munmap, at, (long)PAGES * PAGE), map_at(at, PAGES * PAGE, MAP_FIXED_NOREPLACE); }
static void own_munmap(char *at) {
  long result = SYS_munmap;
  __asm__ volatile("syscall" : "+a"(result) : "D"(at), "S"((long)PAGES * PAGE) : "rcx", "r11", "memory");
  if (result) fprintf(stderr, "munmap: %ld\n", result), exit(1);
  map_at(at, PAGES * PAGE, MAP_FIXED_NOREPLACE);
}
static void process_dont_need(char *at) {
  int own = syscall(SYS_pidfd_open, getpid(), 0);
  struct iovec part = {at, PAGES * PAGE};
  if (syscall(SYS_process_madvise, own, &part, 1, MADV_DONTNEED, 0) < 0) perror("process_madvise"), exit(2);
  close(own);
}
static void guard(char *at) {
  if (madvise(at, PAGES * PAGE, 102 /* MADV_GUARD_INSTALL, Linux 6.13 */)) exit(2);
}
static void attach_over(char *at) {
  int id = shmget(IPC_PRIVATE, PAGES * PAGE, IPC_CREAT | 0600);
  void *attached = shmat(id, at, SHM_REMAP);
  shmctl(id, IPC_RMID, NULL);
  if (attached != at) exit(2);
}
static const struct { const char *name; void (*change)(char *); } cases[] = {
  {"munmap", libc_munmap}, {"map_over", map_over}, {"dont_need", dont_need}, {"mremap_onto", remap_onto},
  {"raw_mremap_onto", raw_remap_onto}, {"raw_munmap", raw_munmap},
  {"own_munmap", own_munmap}, {"process_madvise", process_dont_need}, {"guard", guard}, {"attach_over", attach_over},
};

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 0.5;
  ucs_rcache_ops_t operations = {on_register, on_deregister, on_dump};
  ucs_rcache_params_t parameters = {
    .region_struct_size = sizeof(ucs_rcache_region_t), .alignment = 64, .max_alignment = PAGE, .ucm_events = UCM_EVENT_VM_UNMAPPED,
    .ucm_event_priority = 1000, .ops = &operations, .max_regions = -1ul, .max_size = -1ul, .max_unreleased = -1ul,
  };
  setvbuf(stdout, NULL, _IOLBF, 0);
  double plain = unmap(0); /* before anything patches munmap */
  printf("unmap_plain %.1f\n", plain);
  if (ucs_rcache_create(&parameters, "bench", NULL, &cache) != UCS_OK) return fprintf(stderr, "no cache\n"), 1;
  for (int n = 0; n < REGIONS; n++) {
    /* A hole between any two, so that nothing merges. */
    memory[n] = mmap(NULL, LEN + PAGE, PROT_NONE, PRIVATE, -1, 0);
    map_at(memory[n], LEN, MAP_FIXED);
    memset(memory[n], 1, LEN);
  }
  double began = now();
  for (int n = 0; n < REGIONS; n++) look_up(memory[n], LEN);
  double took = now() - began;
  if (registrations != REGIONS) return fprintf(stderr, "%ld registrations\n", registrations), 1;
  printf("miss %.1f\n", took / REGIONS);
  int count = seconds * 2e6;
  began = now();
  for (int n = 0; n < count; n++) look_up(memory[3] + 64, 1000);
  printf("hit_same %.1f\n", (now() - began) / count);
  uint64_t state = 88172645463325252ull;
  began = now();
  for (int n = 0; n < count; n++) look_up(memory[next(&state) % REGIONS] + 64, 1000);
  printf("hit_random %.1f\n", (now() - began) / count);
  if (registrations != REGIONS) return fprintf(stderr, "a hit was a miss\n"), 1;
  printf("rate_1 %.0f\n", rate(1, seconds));
  printf("rate_2 %.0f\n", rate(2, seconds));
  began = now();
  for (int n = 0; n < count; n++) syscall(SYS_getppid);
  printf("system_call %.1f\n", (now() - began) / count);
  printf("unmap_watched %.1f\n", unmap(1));
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    /* In a child, since what a case does may end it; what it exits with is the answer: 0 stale, 3 right, 2 not possible here, 4 it went elsewhere. */
    pid_t child = fork();
    if (child == 0) {
      char *at = map_at(NULL, PAGES * PAGE, MAP_POPULATE);
      look_up(at, PAGES * PAGE);
      long before = registrations;
      cases[n].change(at);
      look_up(at, PAGES * PAGE);
      _exit(registrations == before ? 0 : 3);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return perror("fork"), 1;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    static const char *const answers[] = {"stale", "failed", "not_run", "right", "elsewhere"};
    printf("stale_%s %s\n", cases[n].name, answers[code >= 0 && code < 5 ? code : 1]);
  }
  return 0;
}
