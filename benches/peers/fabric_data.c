/* libfabric FI_EP_MSG between two processes over loopback: send, write or read, as many outstanding as the window allows, or with window 1
 * one after the other. usage: fabric_data PROVIDER send|write|read BYTES WINDOW MILLISECONDS poll|event (links -lfabric) */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What the processes know of each other. */
struct shared {
    volatile int ready;
    volatile uint64_t addr, key;
};

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_mr *mr;
static int sleeps;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void check(const char *call, long rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", call, fi_strerror((int)-rc));
        _exit(2);
    }
}
#define CHECK(call) check(#call, (long)(call))

static uint32_t next_event(struct fi_eq_cm_entry *entry)
{
    uint32_t kind;
    for (;;) {
        ssize_t n = fi_eq_sread(eq, &kind, entry, sizeof *entry + 256, -1, 0);
        if (n == -FI_EAGAIN)
            continue;
        CHECK(n);
        return kind;
    }
}

static int completions(void)
{
    struct fi_cq_entry done[32];
    ssize_t n = sleeps ? fi_cq_sread(cq, done, 32, NULL, 100) : fi_cq_read(cq, done, 32);
    if (n == -FI_EAGAIN)
        return 0;
    if (n == -FI_EAVAIL)
        _exit(0); /* the other side has gone */
    CHECK(n);
    return (int)n;
}

static struct fid_ep *endpoint(struct fi_info *info)
{
    struct fid_ep *ep;
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &eq->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(ep));
    return ep;
}

static void serve(struct fi_info *info, struct shared *shared, char *memory, size_t len, int window, int receives,
                  struct fi_eq_cm_entry *entry)
{
    struct fid_pep *pep;
    CHECK(fi_passive_ep(fabric, info, &pep, NULL));
    CHECK(fi_pep_bind(pep, &eq->fid, 0));
    CHECK(fi_listen(pep));
    shared->addr = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
    shared->key = fi_mr_key(mr);
    shared->ready = 1;
    while (next_event(entry) != FI_CONNREQ)
        ;
    struct fid_ep *ep = endpoint(entry->info);
    int slot = 0;
    for (int i = 0; receives && i < window; i++, slot = (slot + 1) % window)
        CHECK(fi_recv(ep, memory + slot * len, len, fi_mr_desc(mr), 0, NULL));
    CHECK(fi_accept(ep, NULL, 0));
    while (next_event(entry) != FI_CONNECTED)
        ;
    for (;;)
        for (int n = completions(); receives && n > 0; n--, slot = (slot + 1) % window)
            CHECK(fi_recv(ep, memory + slot * len, len, fi_mr_desc(mr), 0, NULL));
}

int main(int argc, char **argv)
{
    if (argc != 7 || atol(argv[3]) < 1 || atoi(argv[4]) < 1) {
        fprintf(stderr, "usage: fabric_data PROVIDER send|write|read BYTES WINDOW MILLISECONDS poll|event\n");
        return 2;
    }
    char op = argv[2][0];
    size_t len = (size_t)atol(argv[3]);
    int window = atoi(argv[4]), depth = 2 * window;
    double seconds = atof(argv[5]) * 1e-3;
    sleeps = !strcmp(argv[6], "event");
    struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char port[16], buffer[sizeof(struct fi_eq_cm_entry) + 256];
    struct fi_eq_cm_entry *entry = (void *)buffer;
    snprintf(port, sizeof port, "%d", 20000 + getpid() % 20000);
    pid_t child = fork();
    if (!child)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = ~0ull;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    while (child && !shared->ready)
        usleep(1000);
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_cq_attr cq_attr = {.size = 4096, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, child ? 0 : FI_SOURCE, hints, &info));
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    char *memory = mmap(NULL, len * depth, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    uint64_t rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    CHECK(fi_mr_reg(domain, memory, len * depth, rights, 0, 7, 0, &mr, NULL));
    if (!child)
        serve(info, shared, memory, len, depth, op == 's', entry);

    struct fid_ep *ep = endpoint(info);
    CHECK(fi_connect(ep, info->dest_addr, NULL, 0));
    while (next_event(entry) != FI_CONNECTED)
        ;
    static double times[1 << 20];
    double posted[window];
    uint64_t begun = 0, ended = 0;
    double start = now(), t = start;
    while (t - start < seconds || ended < begun) {
        while (begun - ended < (uint64_t)window && t - start < seconds) {
            size_t slot = begun % window;
            void *desc = fi_mr_desc(mr);
            char *from = memory + slot * len;
            uint64_t to = shared->addr + slot * len;
            posted[slot] = now();
            ssize_t rc = op == 's'   ? fi_send(ep, from, len, desc, 0, NULL)
                         : op == 'w' ? fi_write(ep, from, len, desc, 0, to, shared->key, NULL)
                                     : fi_read(ep, from, len, desc, 0, to, shared->key, NULL);
            if (rc == -FI_EAGAIN)
                break;
            CHECK(rc);
            begun++;
        }
        int n = completions();
        t = now();
        for (; n > 0; n--, ended++)
            if (ended < sizeof times / sizeof *times)
                times[ended] = t - posted[ended % window];
    }
    double elapsed = t - start;
    uint64_t timed = ended < sizeof times / sizeof *times ? ended : sizeof times / sizeof *times;
    qsort(times, timed, sizeof *times, by_value);
    printf("%s %s of %zu bytes: %.4f GB/s, %.0f per s, median %.2f us\n", argv[1], argv[2], len, ended * len / elapsed / 1e9,
           ended / elapsed, timed ? times[timed / 2] * 1e6 : 0.0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
