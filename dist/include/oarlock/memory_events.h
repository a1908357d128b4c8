/*
 * Memory events: a program that keeps memory registered learns when that memory is unmapped, moved or thrown away.
 *
 * free() of a block that the allocator keeps is none of these: the memory is the program's still, and the keys still work.
 * Small blocks are always kept; glibc keeps large ones, too, after the first (mallopt(3), M_MMAP_THRESHOLD). Where a peer has the
 * key, deregister before free().
 *
 * An extension of the libraries of oarlock, beside the interface of libibverbs. A program is built with -libverbs as ever and
 * with this header, and looks whether the library that it got has the extension: the functions are weak references.
 *
 *     if (!oarlock_has_memory_events())
 *             return register_without_a_cache();
 *
 * In short: one channel for each context, made before the first region; ibv_mr objects that are registered with a cookie; a
 * descriptor to poll and events to read; a counter in memory that says without a system call whether anything happened.
 *
 * The manual pages are oarlock_create_memory_channel(3) and those that it names; `oarlock man NAME | man -l -` shows one.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef OARLOCK_MEMORY_EVENTS_H
#define OARLOCK_MEMORY_EVENTS_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef __PIC__
/* A linker would take the weak references for absent, whatever library the program gets. */
#error "oarlock/memory_events.h: compile with -fPIE or -fPIC, as most compilers do unless they are told otherwise"
#endif

#define OARLOCK_MEMORY_WEAK __attribute__((__weak__))

/* The memory channel of a context. */
struct oarlock_memory_channel {
	struct ibv_context *context;
	/* Readable while an event is unread, for poll(2), select(2) and epoll(7); not for read(2). */
	int fd;
	/* A file of one page, for other processes to map for reading: the counter is its first word. */
	int generation_fd;
	/* Grows with every event that is queued, and with every region that its policy ended: oarlock_memory_generation(). */
	const uint64_t *generation;
};

/* What an invalidation does to a region. */
enum oarlock_memory_policy {
	/* An event is queued; the region stays registered, its keys do not work any more. */
	OARLOCK_MEMORY_REPORT = 0,
	/* The region is watched no more and its cookie is free, without an event; its keys do not work any more. */
	OARLOCK_MEMORY_DEREGISTER = 1,
};

enum oarlock_memory_event_type {
	/* Memory of a region is no longer what was registered. */
	OARLOCK_MEMORY_INVALIDATED = 0,
	/* No event was left, at the generation that this one carries. */
	OARLOCK_MEMORY_LAST = 1,
};

/* What happened to memory: the gravest, where several changes are reported as one. */
enum oarlock_memory_kind {
	/* More happened than could be kept. */
	OARLOCK_MEMORY_UNKNOWN = 0,
	/* Contents thrown away, mapping kept: madvise(2). */
	OARLOCK_MEMORY_DISCARDED = 1,
	/* Unmapped, or replaced by another mapping. */
	OARLOCK_MEMORY_UNMAPPED = 2,
	/* Moved elsewhere by mremap(2). */
	OARLOCK_MEMORY_MOVED = 3,
};

enum oarlock_memory_event_flags {
	/* hint_start and hint_end are exactly the bytes that changed. */
	OARLOCK_MEMORY_HINT = 1,
};

struct oarlock_memory_event {
	/* enum oarlock_memory_event_type */
	uint32_t type;
	/* enum oarlock_memory_kind */
	uint32_t kind;
	/* enum oarlock_memory_event_flags */
	uint64_t flags;
	/* With OARLOCK_MEMORY_HINT the first byte that changed and the one after the last, else 0: the whole region is meant. */
	uint64_t hint_start;
	uint64_t hint_end;
	/* Of OARLOCK_MEMORY_INVALIDATED: the region. */
	uint64_t cookie;
	/* Of OARLOCK_MEMORY_LAST: while the counter shows this value, nothing is unread. */
	uint64_t generation;
};

/* A region that oarlock_dereg_notified_mrs() ended. */
struct oarlock_deregistered {
	uint64_t cookie;
	/* How many events of the region were read. */
	uint64_t events;
	/* Where it was: the object is freed. */
	struct ibv_mr *mr;
};

/* Which memory the kernel lets this process watch. */
enum oarlock_memory_mode {
	/* Private anonymous memory (Linux 5.7). */
	OARLOCK_MEMORY_MODE_ANONYMOUS = 1,
	/* Also shared memory, memory files and huge pages (Linux 5.19). */
	OARLOCK_MEMORY_MODE_SHARED = 2,
	/* Every mapping but shared ones of files that were opened for reading only (Linux 6.7). */
	OARLOCK_MEMORY_MODE_FULL = 3,
};

enum oarlock_memory_capability_flags {
	/* oarlock_settle_memory_events() leaves no window between a change and what is said of it. */
	OARLOCK_MEMORY_STRICT = 1,
};

struct oarlock_memory_capabilities {
	/* enum oarlock_memory_mode */
	uint32_t mode;
	/* enum oarlock_memory_capability_flags */
	uint32_t flags;
	/* How many regions a channel takes. */
	uint64_t max_regions;
};

/* What is done to memory, for oarlock_memory_promise(). */
enum oarlock_memory_operation {
	OARLOCK_MEMORY_OP_UNMAP = 0,
	OARLOCK_MEMORY_OP_UNMAP_RAW = 1, /* by a system call that no hook in a library sees */
	OARLOCK_MEMORY_OP_MAP_OVER = 2, /* mmap with MAP_FIXED */
	OARLOCK_MEMORY_OP_MOVE = 3, /* mremap */
	OARLOCK_MEMORY_OP_MOVE_KEEP_MAPPING = 4, /* mremap with MREMAP_DONTUNMAP */
	OARLOCK_MEMORY_OP_MOVE_ONTO = 5, /* mremap of something else to its place */
	OARLOCK_MEMORY_OP_SHRINK = 6, /* mremap to a smaller size */
	OARLOCK_MEMORY_OP_GROW_IN_PLACE = 7, /* mremap to a larger size */
	OARLOCK_MEMORY_OP_DUPLICATE = 8, /* mremap with old size 0 */
	OARLOCK_MEMORY_OP_BRK_SHRINK = 9,
	OARLOCK_MEMORY_OP_DONTNEED = 10, /* from here to GUARD_INSTALL: madvise */
	OARLOCK_MEMORY_OP_DONTNEED_LOCKED = 11,
	OARLOCK_MEMORY_OP_PROCESS_DONTNEED = 12, /* process_madvise */
	OARLOCK_MEMORY_OP_FREE = 13,
	OARLOCK_MEMORY_OP_REMOVE = 14,
	OARLOCK_MEMORY_OP_GUARD_INSTALL = 15,
	OARLOCK_MEMORY_OP_PROTECT = 16, /* mprotect to no access */
	OARLOCK_MEMORY_OP_LOCK = 17,
	OARLOCK_MEMORY_OP_PAGEOUT = 18,
	OARLOCK_MEMORY_OP_DONTFORK = 19,
	OARLOCK_MEMORY_OP_TRUNCATE = 20, /* ftruncate of the file */
	OARLOCK_MEMORY_OP_TRUNCATE_ELSEWHERE = 21, /* by another process */
	OARLOCK_MEMORY_OP_PUNCH_HOLE = 22, /* fallocate in the file */
	OARLOCK_MEMORY_OP_PUNCH_HOLE_ELSEWHERE = 23,
	OARLOCK_MEMORY_OP_WRITE_FILE = 24,
	OARLOCK_MEMORY_OP_SHMDT = 25,
	OARLOCK_MEMORY_OP_SHM_REMAP = 26, /* shmat with SHM_REMAP over it */
	OARLOCK_MEMORY_OP_REMAP_FILE_PAGES = 27,
	OARLOCK_MEMORY_OP_FORK = 28, /* and the child exits */
	OARLOCK_MEMORY_OP_FORK_UNMAP = 29, /* and the child unmaps it */
	OARLOCK_MEMORY_OP_SPAWN = 30,
	OARLOCK_MEMORY_OP_UNMAP_SEALED = 31, /* munmap after mseal */
};

/* What it is done to. */
enum oarlock_memory_mapping {
	OARLOCK_MEMORY_MAP_ANONYMOUS = 0,
	OARLOCK_MEMORY_MAP_STACK = 1, /* MAP_GROWSDOWN */
	OARLOCK_MEMORY_MAP_HEAP = 2, /* brk(2) */
	OARLOCK_MEMORY_MAP_SHARED_ANONYMOUS = 3,
	OARLOCK_MEMORY_MAP_MEMFD_SHARED = 4,
	OARLOCK_MEMORY_MAP_MEMFD_PRIVATE = 5,
	OARLOCK_MEMORY_MAP_FILE_SHARED = 6,
	OARLOCK_MEMORY_MAP_FILE_PRIVATE = 7,
	OARLOCK_MEMORY_MAP_HUGETLB = 8,
	OARLOCK_MEMORY_MAP_SYSTEM_V = 9,
};

/* What becomes of a region. */
enum oarlock_memory_promised {
	/* There is an event. */
	OARLOCK_MEMORY_REPORTED = 0,
	/* The memory changes and no event comes: who does this to registered memory has to deregister it. */
	OARLOCK_MEMORY_SILENT = 1,
	/* The memory is what it was; no event. */
	OARLOCK_MEMORY_UNCHANGED = 2,
	/* The kernel refuses it; no event. */
	OARLOCK_MEMORY_REFUSED = 3,
	/* The kernel refuses it, and there is an event all the same. */
	OARLOCK_MEMORY_SPURIOUS = 4,
	/* Such memory cannot be registered in this mode. */
	OARLOCK_MEMORY_NOT_WATCHABLE = 5,
	/* There is no such operation on such memory. */
	OARLOCK_MEMORY_NOT_APPLICABLE = 6,
};

/* Makes the channel of the context; null and errno if there is none to be had. */
OARLOCK_MEMORY_WEAK struct oarlock_memory_channel *oarlock_create_memory_channel(struct ibv_context *context);

/* Ends it: 0, or EBUSY while regions of it exist, or another error number. No thread may be in a call that is given it. */
OARLOCK_MEMORY_WEAK int oarlock_destroy_memory_channel(struct oarlock_memory_channel *channel);

/* Registers memory as ibv_reg_mr() does, and watches it. The context of pd has a channel already. */
OARLOCK_MEMORY_WEAK struct ibv_mr *oarlock_reg_mr_notify(struct ibv_pd *pd, void *addr, size_t length, unsigned int access,
							 uint64_t cookie, enum oarlock_memory_policy policy);

/* Deregisters a region of oarlock_reg_mr_notify(), and says how many events of it were read: 0, or an error number. */
OARLOCK_MEMORY_WEAK int oarlock_dereg_mr_notified(struct ibv_mr *mr, uint64_t *events);

/* Deregisters up to max regions that were invalidated, whether that was read or not, and tells which: their number, or -1. */
OARLOCK_MEMORY_WEAK int oarlock_dereg_notified_mrs(struct oarlock_memory_channel *channel,
						   struct oarlock_deregistered *list, int max);

/* Takes up to max events and never waits for one: their number, or -1. When none is left the last one says so, if it has room. */
OARLOCK_MEMORY_WEAK int oarlock_read_memory_events(struct oarlock_memory_channel *channel,
						   struct oarlock_memory_event *events, int max);

/* Returns when every change of a call that has returned already is known here: 0, or an error number. */
OARLOCK_MEMORY_WEAK int oarlock_settle_memory_events(struct oarlock_memory_channel *channel);

/* Whether the memory of the region is still what was registered, as far as is known: 1, 0, or -1 if it is not watched. */
OARLOCK_MEMORY_WEAK int oarlock_mr_is_valid(struct ibv_mr *mr);

/*
 * Asks the kernel whether the memory of the region is still there, for what no event can show: 1, or 0 if it is not, which then
 * has an event, too; -1 if it cannot be told.
 */
OARLOCK_MEMORY_WEAK int oarlock_validate_mr(struct ibv_mr *mr);

/* Invalidates all regions in a range, by who is about to do there what no event can show: 0, or an error number. */
OARLOCK_MEMORY_WEAK int oarlock_invalidate_memory(struct oarlock_memory_channel *channel, void *addr, size_t length,
						  enum oarlock_memory_kind kind);

/* What the channel of the context can see, or one would that was made now: 0, or an error number. */
OARLOCK_MEMORY_WEAK int oarlock_query_memory_events(struct ibv_context *context,
						    struct oarlock_memory_capabilities *capabilities);

/*
 * What becomes of a region, in one mode: enum oarlock_memory_promised, or -1 for a number that is none. Of REPORTED and
 * SPURIOUS, kind, unless it is null, gets the kind of the event.
 */
OARLOCK_MEMORY_WEAK int oarlock_memory_promise(enum oarlock_memory_mode mode, enum oarlock_memory_operation operation,
					       enum oarlock_memory_mapping mapping, enum oarlock_memory_kind *kind);

/* Whether the library in this process has the extension. */
static inline int oarlock_has_memory_events(void)
{
	return oarlock_create_memory_channel != NULL;
}

/* The counter of a channel. What was known when it grew is seen by whoever sees it. */
static inline uint64_t oarlock_memory_generation(const struct oarlock_memory_channel *channel)
{
	return __atomic_load_n(channel->generation, __ATOMIC_ACQUIRE);
}

#ifdef __cplusplus
}
#endif

#endif
