/* Plain TCP connect, accept, close over loopback: the floor beside `oarlock cmtime`. usage: tcp_connect N */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 1000;
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof addr;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (n < 1 || bind(listener, (void *)&addr, sizeof addr) || listen(listener, 1024) ||
        getsockname(listener, (void *)&addr, &len)) {
        perror("tcp_connect");
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < n; i++)
            close(accept(listener, NULL, NULL));
        _exit(0);
    }
    double *took = calloc(n, sizeof *took), begin = now();
    for (int i = 0; i < n; i++) {
        double t = now();
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, (void *)&addr, sizeof addr)) {
            perror("connect");
            return 1;
        }
        took[i] = now() - t;
        struct linger reset = {1, 0};
        setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(s);
    }
    double all = now() - begin;
    waitpid(child, NULL, 0);
    qsort(took, n, sizeof *took, by_value);
    printf("tcp connect+accept+close: %.0f per s, p50 %.1f us, p99 %.1f us\n", n / all, took[n / 2] * 1e6,
           took[n * 99 / 100] * 1e6);
    return 0;
}
