/* What the programs about memory events share. Include after rule.h and pair.h. */
#ifndef MEMORY_H
#define MEMORY_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <oarlock/memory_events.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define PAGE 4096ul
#define LENGTH (16 * PAGE)

/* Memory of the program's own, with something in every page, at that address or anywhere. */
static inline char *map_at(const char *rule, void *where)
{
	int fixed = where ? MAP_FIXED_NOREPLACE : 0;
	char *memory = mmap(where, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);

	CHECK(rule, memory != MAP_FAILED);
	for (unsigned long at = 0; at < LENGTH; at += PAGE)
		memory[at] = 1;
	return memory;
}

static inline struct oarlock_memory_channel *new_memory_channel(const char *rule, struct ibv_context *context)
{
	struct oarlock_memory_channel *channel = oarlock_create_memory_channel(context);

	CHECK(rule, channel != NULL);
	return channel;
}

/* A region of that memory, for every use. */
static inline struct ibv_mr *watch(const char *rule, struct ibv_pd *pd, void *memory, uint64_t cookie,
				   enum oarlock_memory_policy policy)
{
	struct ibv_mr *mr = oarlock_reg_mr_notify(pd, memory, LENGTH,
						  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND,
						  cookie, policy);

	CHECK(rule, mr != NULL);
	return mr;
}

/* The only unread event, and nothing after it. */
static inline struct oarlock_memory_event only_event(const char *rule, struct oarlock_memory_channel *channel)
{
	struct oarlock_memory_event events[4];

	CHECK(rule, oarlock_read_memory_events(channel, events, 4) == 2);
	CHECK(rule, events[0].type == OARLOCK_MEMORY_INVALIDATED);
	CHECK(rule, events[1].type == OARLOCK_MEMORY_LAST);
	return events[0];
}

/* Nothing is unread. */
static inline void no_event(const char *rule, struct oarlock_memory_channel *channel)
{
	struct oarlock_memory_event event;

	CHECK(rule, oarlock_read_memory_events(channel, &event, 1) == 1);
	CHECK(rule, event.type == OARLOCK_MEMORY_LAST);
	CHECK(rule, event.generation == oarlock_memory_generation(channel));
}

/* The call gives no object, with this error number. */
#define NO_OBJECT(rule, call, number)                                                                                  \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		if ((call) != NULL || errno != (number))                                                               \
			FAIL(rule, "%s does not fail with errno %d", #call, (number));                                 \
	} while (0)

/* Each of those system calls fails with that error number from now on, in this thread and what it starts. */
static inline int forbid(const int *calls, int count, int with)
{
	for (int at = 0; at < count; at++) {
		struct sock_filter filter[] = {
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[at], 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | with),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		};
		struct sock_fprog program = { .len = sizeof filter / sizeof *filter, .filter = filter };

		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
			return -1;
	}
	return 0;
}

#endif
