/* What the programs about memory events share. Include after rule.h and pair.h. */
#ifndef MEMORY_H
#define MEMORY_H

#include <oarlock/memory_events.h>
#include <sys/mman.h>

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

#endif
