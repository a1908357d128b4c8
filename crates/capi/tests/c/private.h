/* A network of the program's own: for rules about the host service and about interfaces that go away. */
#ifndef PRIVATE_H
#define PRIVATE_H

#include "rule.h"

#include <dirent.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

static inline void put(const char *rule, const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHECK(rule, fd >= 0);
	CHECK(rule, write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static inline void set_loopback(const char *rule, short flags)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = flags };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	CHECK(rule, ioctl(fd, SIOCSIFFLAGS, &request) == 0);
	close(fd);
}

/* A network namespace in which nothing but the loopback interface is, and that is up. Before any other call. */
static inline void own_network(const char *rule)
{
	char map[64];

	snprintf(map, sizeof map, "0 %d 1", (int)geteuid());
	CHECK(rule, unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0);
	put(rule, "/proc/self/uid_map", map);
	set_loopback(rule, IFF_UP);
}

/* Kills every other process of the network namespace: the host service. */
static inline void kill_service(const char *rule)
{
	char own[64], other[64], path[320];
	ssize_t own_len = readlink("/proc/self/ns/net", own, sizeof own);
	int killed = 0;
	struct dirent *entry;
	DIR *all = opendir("/proc");

	CHECK(rule, own_len > 0 && all != NULL);
	while ((entry = readdir(all)) != NULL) {
		pid_t pid = (pid_t)atoi(entry->d_name);
		ssize_t len;

		if (pid <= 0 || pid == getpid())
			continue;
		snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
		len = readlink(path, other, sizeof other);
		if (len == own_len && memcmp(own, other, (size_t)len) == 0)
			killed += kill(pid, SIGKILL) == 0;
	}
	closedir(all);
	CHECK(rule, killed > 0);
}

#endif
