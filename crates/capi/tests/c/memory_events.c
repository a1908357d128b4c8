/* Memory events of oarlock/memory_events.h: channels, events, the generation. */
#include "rule.h"
#include "pair.h"
#include "memory.h"
#include <sys/resource.h>

static void channel_rules(struct ibv_context *context)
{
	struct oarlock_memory_channel *channel, *second;
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = map_at("memory-channel", NULL);
	struct ibv_mr *mr;
	struct rlimit before, none;

	NO_OBJECT("memory-channel-first",
		  oarlock_reg_mr_notify(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE, 1, OARLOCK_MEMORY_REPORT), EBADF);
	ok("memory-channel-first");

	channel = new_memory_channel("memory-channel", context);
	CHECK("memory-channel", channel->context == context && channel->fd >= 0 && channel->generation_fd >= 0);
	NO_OBJECT("memory-channel-one", oarlock_create_memory_channel(context), EEXIST);
	second = new_memory_channel("memory-channel-one", other);
	CHECK("memory-channel-one", second != channel && oarlock_destroy_memory_channel(second) == 0);
	ok("memory-channel-one");

	CHECK("memory-channel-cloexec", fcntl(channel->fd, F_GETFD) & FD_CLOEXEC);
	CHECK("memory-channel-cloexec", fcntl(channel->generation_fd, F_GETFD) & FD_CLOEXEC);
	ok("memory-channel-cloexec");

	mr = watch("memory-channel-busy", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-channel-busy", oarlock_destroy_memory_channel(channel) == EBUSY && errno == EBUSY);
	CHECK("memory-channel-busy", ibv_dereg_mr(mr) == 0);
	CHECK("memory-channel-busy", oarlock_destroy_memory_channel(channel) == 0);
	ok("memory-channel-busy");
	ok("memory-channel");

	CHECK("memory-null", oarlock_destroy_memory_channel(NULL) == EINVAL);
	CHECK("memory-null", oarlock_settle_memory_events(NULL) == EINVAL);
	FAILS("memory-null", oarlock_read_memory_events(NULL, NULL, 1), EINVAL);
	FAILS("memory-null", oarlock_dereg_notified_mrs(NULL, NULL, 1), EINVAL);
	CHECK("memory-null", oarlock_invalidate_memory(NULL, memory, PAGE, OARLOCK_MEMORY_UNMAPPED) == EINVAL);
	NO_OBJECT("memory-null", oarlock_create_memory_channel(NULL), EINVAL);
	NO_OBJECT("memory-null", oarlock_reg_mr_notify(NULL, memory, PAGE, 0, 1, OARLOCK_MEMORY_REPORT), EINVAL);
	CHECK("memory-null", oarlock_dereg_mr_notified(NULL, NULL) == EINVAL);
	FAILS("memory-null", oarlock_mr_is_valid(NULL), EINVAL);
	FAILS("memory-null", oarlock_validate_mr(NULL), EINVAL);
	CHECK("memory-null", oarlock_query_memory_events(context, NULL) == EINVAL);
	CHECK("memory-null", oarlock_query_memory_events(NULL, NULL) == EINVAL);
	ok("memory-null");

	int next = dup(0);
	CHECK("memory-emfile", next >= 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
	close(next);
	/* Full but for what a part of the channel would need. */
	for (int spare = 0; spare < 3; spare++) {
		none = (struct rlimit){ .rlim_cur = next + spare, .rlim_max = before.rlim_max };
		CHECK("memory-emfile", setrlimit(RLIMIT_NOFILE, &none) == 0);
		NO_OBJECT("memory-emfile", oarlock_create_memory_channel(context), EMFILE);
		CHECK("memory-emfile", setrlimit(RLIMIT_NOFILE, &before) == 0);
		int again = dup(0);
		CHECK("memory-emfile", again == next && close(again) == 0);
	}
	channel = new_memory_channel("memory-emfile", context);
	CHECK("memory-emfile", oarlock_destroy_memory_channel(channel) == 0);
	ok("memory-emfile");

	munmap(memory, LENGTH);
	CHECK("memory-channel", ibv_dealloc_pd(pd) == 0 && ibv_close_device(other) == 0);
}

static void *unmap_it(void *memory)
{
	munmap(memory, LENGTH);
	return NULL;
}

static void event_rules(struct ibv_context *context)
{
	struct oarlock_memory_channel *channel = new_memory_channel("memory-event", context);
	struct oarlock_memory_event event, events[8];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = map_at("memory-event", NULL), *block, *elsewhere;
	struct ibv_mr *mr, *second;
	uint64_t count = 77, generation;
	pthread_t thread;

	/* Nothing happens: nothing to read, and the counter says so. */
	mr = watch("memory-event", pd, memory, 0xfedcba9876543210, OARLOCK_MEMORY_REPORT);
	no_event("memory-event-none", channel);
	CHECK("memory-event-none", !readable(channel->fd, 0));
	ok("memory-event-none");

	generation = oarlock_memory_generation(channel);
	munmap(memory + PAGE, 2 * PAGE);
	CHECK("memory-event-poll", readable(channel->fd, LONG));
	CHECK("memory-generation", oarlock_memory_generation(channel) > generation);
	event = only_event("memory-event", channel);
	CHECK("memory-event", event.cookie == 0xfedcba9876543210 && event.kind == OARLOCK_MEMORY_UNMAPPED);
	CHECK("memory-event-hint", event.flags == OARLOCK_MEMORY_HINT);
	CHECK("memory-event-hint", event.hint_start == (uintptr_t)memory + PAGE);
	CHECK("memory-event-hint", event.hint_end == (uintptr_t)memory + 3 * PAGE);
	CHECK("memory-event-poll", !readable(channel->fd, 0));
	no_event("memory-event", channel);
	ok("memory-event");
	ok("memory-event-hint");
	ok("memory-event-poll");
	ok("memory-generation");

	/* Two changes that do not touch are one event, for the whole; after it was read, the next is one of its own. */
	munmap(memory + 4 * PAGE, PAGE);
	munmap(memory + 8 * PAGE, PAGE);
	event = only_event("memory-event-once", channel);
	CHECK("memory-event-once", event.flags == 0 && event.hint_start == 0 && event.hint_end == 0);
	madvise(memory + 9 * PAGE, PAGE, MADV_DONTNEED);
	event = only_event("memory-event-once", channel);
	CHECK("memory-event-once", event.kind == OARLOCK_MEMORY_DISCARDED);
	ok("memory-event-once");

	/* Three were read; the fourth never is. */
	madvise(memory + 10 * PAGE, PAGE, MADV_DONTNEED);
	CHECK("memory-event-poll", readable(channel->fd, LONG));
	CHECK("memory-dereg-count", oarlock_dereg_mr_notified(mr, &count) == 0 && count == 3);
	ok("memory-dereg-count");
	no_event("memory-dereg-drops", channel);
	CHECK("memory-dereg-drops", !readable(channel->fd, 0));
	munmap(memory, LENGTH);
	no_event("memory-dereg-drops", channel);
	ok("memory-dereg-drops");

	memory = map_at("memory-event-moved", NULL);
	elsewhere = map_at("memory-event-moved", NULL);
	mr = watch("memory-event-moved", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-event-moved", mremap(memory, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
	CHECK("memory-event-moved", only_event("memory-event-moved", channel).kind == OARLOCK_MEMORY_MOVED);
	CHECK("memory-event-moved", oarlock_dereg_mr_notified(mr, &count) == 0 && count == 1);
	munmap(elsewhere, LENGTH);
	ok("memory-event-moved");

	/* Paths that no function of a library could be put into. */
	block = malloc(4 << 20);
	memset(block, 1, 4 << 20);
	mr = oarlock_reg_mr_notify(pd, block, 4 << 20, IBV_ACCESS_LOCAL_WRITE, 2, OARLOCK_MEMORY_REPORT);
	CHECK("memory-event-paths", mr != NULL);
	free(block);
	CHECK("memory-event-paths", only_event("memory-event-paths", channel).cookie == 2);
	CHECK("memory-event-paths", oarlock_dereg_mr_notified(mr, NULL) == 0);
	memory = map_at("memory-event-paths", NULL);
	mr = watch("memory-event-paths", pd, memory, 3, OARLOCK_MEMORY_REPORT);
	CHECK("memory-event-paths", syscall(SYS_munmap, memory, LENGTH) == 0);
	CHECK("memory-event-paths", only_event("memory-event-paths", channel).cookie == 3);
	CHECK("memory-event-paths", oarlock_dereg_mr_notified(mr, NULL) == 0);
	memory = map_at("memory-event-paths", NULL);
	mr = watch("memory-event-paths", pd, memory, 4, OARLOCK_MEMORY_REPORT);
	CHECK("memory-event-paths", pthread_create(&thread, NULL, unmap_it, memory) == 0);
	CHECK("memory-event-paths", pthread_join(thread, NULL) == 0);
	CHECK("memory-event-paths", only_event("memory-event-paths", channel).cookie == 4);
	CHECK("memory-event-paths", oarlock_dereg_mr_notified(mr, NULL) == 0);
	ok("memory-event-paths");

	/* Overlapping regions are told one by one, in order, and as many as there is room for. */
	memory = map_at("memory-event-room", NULL);
	mr = watch("memory-event-room", pd, memory, 10, OARLOCK_MEMORY_REPORT);
	second = watch("memory-event-room", pd, memory, 11, OARLOCK_MEMORY_REPORT);
	munmap(memory, LENGTH);
	CHECK("memory-event-room", oarlock_read_memory_events(channel, events, 1) == 1);
	CHECK("memory-event-room", events[0].type == OARLOCK_MEMORY_INVALIDATED);
	CHECK("memory-event-room", oarlock_read_memory_events(channel, events + 1, 1) == 1);
	CHECK("memory-event-room", events[1].type == OARLOCK_MEMORY_INVALIDATED);
	CHECK("memory-event-room", events[0].cookie + events[1].cookie == 21);
	no_event("memory-event-room", channel);
	FAILS("memory-event-room", oarlock_read_memory_events(channel, events, 0), EINVAL);
	FAILS("memory-event-room", oarlock_read_memory_events(channel, events, -1), EINVAL);
	FAILS("memory-event-room", oarlock_read_memory_events(channel, NULL, 1), EINVAL);
	CHECK("memory-event-room", ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(second) == 0);
	ok("memory-event-room");

	CHECK("memory-event", oarlock_destroy_memory_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void generation_rules(struct ibv_context *context)
{
	struct oarlock_memory_channel *channel = new_memory_channel("memory-generation-page", context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = map_at("memory-generation-page", NULL);
	struct ibv_mr *mr = watch("memory-generation-page", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	int to_child[2], status;

	CHECK("memory-generation-page", pipe(to_child) == 0);
	uint64_t before = oarlock_memory_generation(channel);
	pid_t child = fork();
	if (child == 0) {
		volatile uint64_t *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, channel->generation_fd, 0);
		char byte;

		if (page == MAP_FAILED || read(to_child[0], &byte, 1) != 1)
			_exit(1);
		_exit(*page > before ? 0 : 2);
	}
	munmap(memory, LENGTH);
	CHECK("memory-generation-page", oarlock_settle_memory_events(channel) == 0);
	CHECK("memory-generation-page", write(to_child[1], "", 1) == 1);
	CHECK("memory-generation-page", waitpid(child, &status, 0) == child && status == 0);
	void *writable = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, channel->generation_fd, 0);
	CHECK("memory-generation-page", writable == MAP_FAILED && errno == EPERM);
	ok("memory-generation-page");

	CHECK("memory-generation-page", ibv_dereg_mr(mr) == 0);
	CHECK("memory-generation-page", oarlock_destroy_memory_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
	close(to_child[0]);
	close(to_child[1]);
}

/* What a forked child is answered; its exit status is the line of what is otherwise. */
#define IN_CHILD(condition)                                                                                            \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			_exit(__LINE__ % 250 + 1);                                                                     \
	} while (0)

static void fork_rules(struct ibv_context *context)
{
	struct oarlock_memory_channel *channel = new_memory_channel("memory-fork", context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = map_at("memory-fork", NULL);
	struct ibv_mr *mr = watch("memory-fork", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	int status;

	pid_t child = fork();
	if (child == 0) {
		struct oarlock_memory_event event;
		struct oarlock_deregistered ended;
		struct oarlock_memory_capabilities capabilities;
		uint64_t count;

		/* The child's memory is not watched: nobody waits, and the parent learns nothing. */
		IN_CHILD(munmap(memory, LENGTH) == 0);
		IN_CHILD(oarlock_mr_is_valid(mr) == 0);
		IN_CHILD(oarlock_read_memory_events(channel, &event, 1) == -1 && errno == EPERM);
		IN_CHILD(oarlock_dereg_notified_mrs(channel, &ended, 1) == -1 && errno == EPERM);
		IN_CHILD(oarlock_settle_memory_events(channel) == EPERM);
		IN_CHILD(oarlock_dereg_mr_notified(mr, &count) == EPERM);
		IN_CHILD(oarlock_query_memory_events(context, &capabilities) == EPERM);
		IN_CHILD(!oarlock_reg_mr_notify(pd, &event, 8, 0, 2, OARLOCK_MEMORY_REPORT) && errno == EPERM);
		IN_CHILD(oarlock_destroy_memory_channel(channel) == EPERM);
		IN_CHILD(!oarlock_create_memory_channel(context) && errno == EPERM);
		_exit(0);
	}
	CHECK("memory-fork", waitpid(child, &status, 0) == child);
	if (status)
		FAIL("memory-fork", "the child ended with %#x", status);
	no_event("memory-fork", channel);
	CHECK("memory-fork", oarlock_mr_is_valid(mr) == 1);
	ok("memory-fork");

	/* The child has a device and a channel of its own. */
	child = fork();
	if (child == 0) {
		port_context = NULL;
		struct ibv_context *own = open_port("memory-fork-own");
		struct ibv_pd *own_pd = ibv_alloc_pd(own);
		struct oarlock_memory_channel *own_channel = oarlock_create_memory_channel(own);
		char *of_child = map_at("memory-fork-own", NULL);
		struct oarlock_memory_event events[2];
		struct ibv_mr *own_mr;

		IN_CHILD(own_channel);
		own_mr = oarlock_reg_mr_notify(own_pd, of_child, LENGTH, 0, 5, OARLOCK_MEMORY_REPORT);
		IN_CHILD(own_mr);
		munmap(of_child, LENGTH);
		IN_CHILD(oarlock_read_memory_events(own_channel, events, 2) == 2 && events[0].cookie == 5);
		IN_CHILD(ibv_dereg_mr(own_mr) == 0 && oarlock_destroy_memory_channel(own_channel) == 0);
		_exit(0);
	}
	CHECK("memory-fork-own", waitpid(child, &status, 0) == child);
	if (status)
		FAIL("memory-fork-own", "the child ended with %#x", status);
	ok("memory-fork-own");

	munmap(memory, LENGTH);
	CHECK("memory-fork", only_event("memory-fork", channel).cookie == 1);
	CHECK("memory-fork", ibv_dereg_mr(mr) == 0 && oarlock_destroy_memory_channel(channel) == 0);
	CHECK("memory-fork", ibv_dealloc_pd(pd) == 0);
}

static void sandbox_rules(void)
{
	static const struct {
		const char *rule;
		int system, answer;
	} cases[] = { { "memory-eacces", EPERM, EACCES }, { "memory-eopnotsupp", ENOSYS, EOPNOTSUPP } };
	static const int watches[] = { SYS_userfaultfd };
	int status;

	for (unsigned long at = 0; at < sizeof cases / sizeof *cases; at++) {
		pid_t child = fork();

		if (child == 0) {
			struct oarlock_memory_capabilities capabilities;

			port_context = NULL;
			struct ibv_context *own = open_port(cases[at].rule);
			IN_CHILD(forbid(watches, 1, cases[at].system) == 0);
			errno = 0;
			IN_CHILD(!oarlock_create_memory_channel(own) && errno == cases[at].answer);
			IN_CHILD(oarlock_query_memory_events(own, &capabilities) == cases[at].answer);
			/* Nothing else is lost. */
			struct ibv_pd *pd = ibv_alloc_pd(own);
			struct ibv_mr *mr = ibv_reg_mr(pd, &capabilities, sizeof capabilities, IBV_ACCESS_LOCAL_WRITE);
			IN_CHILD(mr && ibv_dereg_mr(mr) == 0);
			_exit(0);
		}
		CHECK(cases[at].rule, waitpid(child, &status, 0) == child);
		if (status)
			FAIL(cases[at].rule, "the child ended with %#x", status);
		ok(cases[at].rule);
	}
}

static void query_rules(struct ibv_context *context)
{
	struct oarlock_memory_capabilities without, with;
	struct oarlock_memory_channel *channel;
	enum oarlock_memory_kind kind = OARLOCK_MEMORY_UNKNOWN;

	CHECK("memory-query", oarlock_query_memory_events(context, &without) == 0);
	channel = new_memory_channel("memory-query", context);
	CHECK("memory-query", oarlock_query_memory_events(context, &with) == 0);
	CHECK("memory-query", with.mode == without.mode && with.flags == without.flags);
	CHECK("memory-query", with.mode >= OARLOCK_MEMORY_MODE_ANONYMOUS && with.mode <= OARLOCK_MEMORY_MODE_FULL);
	CHECK("memory-query", with.max_regions > 1000);
	CHECK("memory-query", oarlock_destroy_memory_channel(channel) == 0);
	ok("memory-query");

	CHECK("memory-promise", oarlock_memory_promise(OARLOCK_MEMORY_MODE_FULL, OARLOCK_MEMORY_OP_UNMAP,
						       OARLOCK_MEMORY_MAP_FILE_SHARED, &kind) == OARLOCK_MEMORY_REPORTED);
	CHECK("memory-promise", kind == OARLOCK_MEMORY_UNMAPPED);
	CHECK("memory-promise", oarlock_memory_promise(OARLOCK_MEMORY_MODE_SHARED, OARLOCK_MEMORY_OP_UNMAP,
						       OARLOCK_MEMORY_MAP_FILE_SHARED, NULL) == OARLOCK_MEMORY_NOT_WATCHABLE);
	CHECK("memory-promise", oarlock_memory_promise(OARLOCK_MEMORY_MODE_FULL, OARLOCK_MEMORY_OP_SHMDT,
						       OARLOCK_MEMORY_MAP_SYSTEM_V, NULL) == OARLOCK_MEMORY_SILENT);
	FAILS("memory-promise", oarlock_memory_promise(0, OARLOCK_MEMORY_OP_UNMAP, OARLOCK_MEMORY_MAP_HEAP, NULL), EINVAL);
	FAILS("memory-promise", oarlock_memory_promise(OARLOCK_MEMORY_MODE_FULL, 1000, OARLOCK_MEMORY_MAP_HEAP, NULL), EINVAL);
	ok("memory-promise");
}

/* A thread that somebody has cancelled makes every call, and ends where it is cancelled at last. */
static void *cancelled(void *of)
{
	struct ibv_context *context = of;
	struct oarlock_memory_event events[2];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = map_at("memory-cancel", NULL);
	uint64_t count;

	pthread_cancel(pthread_self());
	struct oarlock_memory_channel *channel = new_memory_channel("memory-cancel", context);
	struct ibv_mr *mr = watch("memory-cancel", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	munmap(memory, LENGTH);
	CHECK("memory-cancel", oarlock_settle_memory_events(channel) == 0);
	CHECK("memory-cancel", oarlock_read_memory_events(channel, events, 2) == 2);
	CHECK("memory-cancel", oarlock_dereg_mr_notified(mr, &count) == 0 && count == 1);
	CHECK("memory-cancel", oarlock_destroy_memory_channel(channel) == 0);
	CHECK("memory-cancel", ibv_dealloc_pd(pd) == 0);
	int state;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	ok("memory-cancel");
	pthread_setcancelstate(state, NULL);
	pthread_testcancel();
	return NULL;
}

static void cancel_rules(struct ibv_context *context)
{
	pthread_t thread;
	void *ended;

	CHECK("memory-cancel", pthread_create(&thread, NULL, cancelled, context) == 0);
	CHECK("memory-cancel", pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;

	start(argc, argv);
	/* Another library: there is nothing to show. */
	if (!oarlock_has_memory_events())
		return 0;
	context = open_port("memory-channel");
	PART(channel_rules(context));
	PART(event_rules(context));
	PART(generation_rules(context));
	PART(fork_rules(context));
	PART(sandbox_rules());
	PART(query_rules(context));
	PART(cancel_rules(context));
	CHECK("memory-channel", ibv_close_device(context) == 0);
	return 0;
}
