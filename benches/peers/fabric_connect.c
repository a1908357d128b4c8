/* libfabric FI_EP_MSG connect, accept, close over loopback, one at a time. usage: fabric_connect PROVIDER N (links -lfabric) */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_eq *eq;

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

static struct fid_ep *endpoint(struct fi_info *info)
{
    struct fid_ep *ep;
    CHECK(fi_endpoint(domain, info, &ep, NULL));
    CHECK(fi_ep_bind(ep, &eq->fid, 0));
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(ep));
    return ep;
}

static void serve(struct fi_info *info, int n, volatile int *ready, struct fi_eq_cm_entry *entry)
{
    struct fid_pep *pep;
    CHECK(fi_passive_ep(fabric, info, &pep, NULL));
    CHECK(fi_pep_bind(pep, &eq->fid, 0));
    CHECK(fi_listen(pep));
    *ready = 1;
    for (int down = 0; down < n;) {
        uint32_t kind = next_event(entry);
        if (kind == FI_CONNREQ) {
            struct fid_ep *ep = endpoint(entry->info);
            CHECK(fi_accept(ep, NULL, 0));
            fi_freeinfo(entry->info);
        } else if (kind == FI_SHUTDOWN) {
            fi_close(entry->fid);
            down++;
        }
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 3 || atoi(argv[2]) < 1) {
        fprintf(stderr, "usage: fabric_connect PROVIDER N\n");
        return 2;
    }
    int n = atoi(argv[2]);
    volatile int *ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char port[16], buffer[sizeof(struct fi_eq_cm_entry) + 256];
    struct fi_eq_cm_entry *entry = (void *)buffer;
    snprintf(port, sizeof port, "%d", 20000 + getpid() % 20000);
    pid_t child = fork();
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = ~0ull;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(argv[1]);
    while (child && !*ready)
        usleep(1000);
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_cq_attr cq_attr = {.size = 256, .format = FI_CQ_FORMAT_CONTEXT};
    CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", port, child ? 0 : FI_SOURCE, hints, &info));
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    if (child == 0)
        serve(info, n, ready, entry);
    double *took = calloc(n, sizeof *took), begin = now();
    for (int i = 0; i < n; i++) {
        double t = now();
        struct fid_ep *ep = endpoint(info);
        CHECK(fi_connect(ep, info->dest_addr, NULL, 0));
        uint32_t kind;
        while ((kind = next_event(entry)) != FI_CONNECTED)
            if (kind != FI_SHUTDOWN)
                return 4;
        took[i] = now() - t;
        fi_shutdown(ep, 0);
        fi_close(&ep->fid);
    }
    double all = now() - begin;
    qsort(took, n, sizeof *took, by_value);
    printf("libfabric %s connect+accept+close: %.0f per s, p50 %.1f us, p99 %.1f us\n", argv[1], n / all, took[n / 2] * 1e6,
           took[n * 99 / 100] * 1e6);
    fflush(stdout);
    for (int i = 0; i < 30 && waitpid(child, NULL, WNOHANG) != child; i++)
        usleep(100000);
    kill(child, SIGKILL);
    return 0;
}
