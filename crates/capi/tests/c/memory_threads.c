/* Memory events of oarlock/memory_events.h: several threads, several channels, and limits. */
#include "rule.h"
#include "pair.h"
#include "memory.h"
#include <semaphore.h>

static struct ibv_pd *new_pd(const char *rule, struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);

	CHECK(rule, pd != NULL);
	return pd;
}

/* The descriptor that the next call would be given: the same as before if none is lost. */
static int next_descriptor(const char *rule)
{
	int next = dup(0);

	CHECK(rule, next >= 0 && close(next) == 0);
	return next;
}

/* Each event goes to one of the threads that read, and to one only. */
#define READERS 3
#define REGIONS 300

static struct oarlock_memory_channel *shared;
static int events_of[REGIONS], is_over;

static void *read_all(void *unused)
{
	struct oarlock_memory_event events[2];
	int over, got;

	do {
		over = __atomic_load_n(&is_over, __ATOMIC_ACQUIRE);
		do {
			got = oarlock_read_memory_events(shared, events, 2);
			CHECK("memory-readers", got >= 1);
			for (int at = 0; at < got; at++)
				if (events[at].type == OARLOCK_MEMORY_INVALIDATED)
					__atomic_fetch_add(&events_of[events[at].cookie], 1, __ATOMIC_RELAXED);
		} while (events[got - 1].type != OARLOCK_MEMORY_LAST);
		usleep(100);
	} while (!over);
	return unused;
}

static void reader_rules(struct ibv_context *context)
{
	struct ibv_pd *pd = new_pd("memory-readers", context);
	struct oarlock_deregistered list[REGIONS];
	pthread_t readers[READERS];
	char *memory[REGIONS];

	/* Each at a place of its own, or one change would be that of several. */
	for (int at = 0; at < REGIONS; at++)
		memory[at] = map_at("memory-readers", NULL);
	shared = new_memory_channel("memory-readers", context);
	for (int at = 0; at < READERS; at++)
		readers[at] = thread("memory-readers", read_all, NULL);
	for (uint64_t cookie = 0; cookie < REGIONS; cookie++) {
		watch("memory-readers", pd, memory[cookie], cookie, OARLOCK_MEMORY_REPORT);
		munmap(memory[cookie], LENGTH);
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	for (int at = 0; at < READERS; at++)
		CHECK("memory-readers", pthread_join(readers[at], NULL) == 0);
	no_event("memory-readers", shared);
	CHECK("memory-readers", oarlock_dereg_notified_mrs(shared, list, REGIONS) == REGIONS);
	for (int at = 0; at < REGIONS; at++)
		if (events_of[at] != 1 || list[at].events != 1)
			FAIL("memory-readers", "region %d: %d events, counted as %d", at, events_of[at], (int)list[at].events);
	CHECK("memory-readers", oarlock_destroy_memory_channel(shared) == 0 && ibv_dealloc_pd(pd) == 0);
	ok("memory-readers");
}

/* Threads register while the channel of their context comes and goes. */
static struct ibv_context *contested;
static int registered, refused;

static void one_more(int *of)
{
	__atomic_fetch_add(of, 1, __ATOMIC_RELAXED);
}

/* Until it has happened once more. */
static void await_one_more(const int *of)
{
	int before = __atomic_load_n(of, __ATOMIC_RELAXED);

	while (__atomic_load_n(of, __ATOMIC_RELAXED) == before)
		usleep(20);
}

static void *register_again(void *unused)
{
	static uint64_t cookies;
	struct ibv_pd *pd = new_pd("memory-channel-contest", contested);
	uint64_t cookie = __atomic_fetch_add(&cookies, 1, __ATOMIC_RELAXED);
	char *memory = map_at("memory-channel-contest", NULL);
	struct oarlock_memory_capabilities capabilities;

	while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
		errno = 0;
		/* Every other one is wrong whatever the channel is. */
		CHECK("memory-channel-contest", !oarlock_reg_mr_notify(pd, memory, LENGTH, 0, cookie, 2) &&
							(errno == EINVAL || errno == EBADF));
		struct ibv_mr *mr = oarlock_reg_mr_notify(pd, memory, LENGTH, 0, cookie, OARLOCK_MEMORY_REPORT);
		if (!mr) {
			CHECK("memory-channel-contest", errno == EBADF);
			one_more(&refused);
		} else {
			one_more(&registered);
			CHECK("memory-channel-contest", oarlock_mr_is_valid(mr) == 1 && ibv_dereg_mr(mr) == 0);
		}
		CHECK("memory-channel-contest", oarlock_query_memory_events(contested, &capabilities) == 0);
		/* Now and then no thread has a region. */
		usleep(200);
	}
	munmap(memory, LENGTH);
	CHECK("memory-channel-contest", ibv_dealloc_pd(pd) == 0);
	return unused;
}

static void contest_rules(struct ibv_context *context)
{
	int next = next_descriptor("memory-channel-contest");
	pthread_t threads[2];

	contested = context;
	is_over = 0;
	for (int at = 0; at < 2; at++)
		threads[at] = thread("memory-channel-contest", register_again, NULL);
	for (int round = 0; round < 50; round++) {
		struct oarlock_memory_channel *channel = new_memory_channel("memory-channel-contest", context);
		int ended;

		await_one_more(&registered);
		no_event("memory-channel-contest", channel);
		while ((ended = oarlock_destroy_memory_channel(channel)) == EBUSY)
			usleep(20);
		CHECK("memory-channel-contest", ended == 0);
		await_one_more(&refused);
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	for (int at = 0; at < 2; at++)
		CHECK("memory-channel-contest", pthread_join(threads[at], NULL) == 0);
	CHECK("memory-channel-contest", next_descriptor("memory-channel-contest") == next);
	ok("memory-channel-contest");
}

/* A child that is forked while other threads are in calls is answered at once. */
static void *churn(void *of)
{
	struct ibv_pd *pd = new_pd("memory-fork-threads", of);

	while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
		char *memory = map_at("memory-fork-threads", NULL);
		struct ibv_mr *mr = watch("memory-fork-threads", pd, memory, (uintptr_t)pd, OARLOCK_MEMORY_REPORT);
		struct oarlock_memory_event event;

		munmap(memory, LENGTH);
		CHECK("memory-fork-threads", oarlock_read_memory_events(shared, &event, 1) == 1);
		CHECK("memory-fork-threads", ibv_dereg_mr(mr) == 0);
	}
	CHECK("memory-fork-threads", ibv_dealloc_pd(pd) == 0);
	return NULL;
}

static void fork_rules(struct ibv_context *context)
{
	struct ibv_pd *pd = new_pd("memory-fork-threads", context);
	char *memory = map_at("memory-fork-threads", NULL);
	struct ibv_mr *mr;
	pthread_t threads[2];
	int status;

	shared = new_memory_channel("memory-fork-threads", context);
	mr = watch("memory-fork-threads", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	is_over = 0;
	for (int at = 0; at < 2; at++)
		threads[at] = thread("memory-fork-threads", churn, context);
	for (int round = 0; round < 30; round++) {
		pid_t child = fork();

		CHECK("memory-fork-threads", child >= 0);
		if (child == 0) {
			struct oarlock_memory_event event;
			struct oarlock_deregistered ended;
			int wrong;

			alarm(RULE_LIMIT / 2);
			wrong = oarlock_mr_is_valid(mr) != 0;
			wrong |= oarlock_read_memory_events(shared, &event, 1) != -1 || errno != EPERM;
			wrong |= oarlock_dereg_notified_mrs(shared, &ended, 1) != -1 || errno != EPERM;
			wrong |= oarlock_validate_mr(mr) != -1 || errno != EPERM;
			wrong |= oarlock_invalidate_memory(shared, memory, PAGE, OARLOCK_MEMORY_UNMAPPED) != EPERM;
			wrong |= oarlock_reg_mr_notify(pd, memory, PAGE, 0, 2, OARLOCK_MEMORY_REPORT) != NULL || errno != EPERM;
			wrong |= ibv_dereg_mr(mr) != EPERM || oarlock_destroy_memory_channel(shared) != EPERM;
			_exit(wrong);
		}
		CHECK("memory-fork-threads", waitpid(child, &status, 0) == child);
		if (status)
			FAIL("memory-fork-threads", "child %d ended with %#x", round, status);
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	for (int at = 0; at < 2; at++)
		CHECK("memory-fork-threads", pthread_join(threads[at], NULL) == 0);
	CHECK("memory-fork-threads", oarlock_mr_is_valid(mr) == 1 && ibv_dereg_mr(mr) == 0);
	CHECK("memory-fork-threads", oarlock_destroy_memory_channel(shared) == 0 && ibv_dealloc_pd(pd) == 0);
	munmap(memory, LENGTH);
	ok("memory-fork-threads");
}

/* Two contexts: each has a channel, and what is of the one is not of the other. */
static void context_rules(struct ibv_context *context)
{
	struct ibv_context *other = ibv_open_device(context->device);
	struct oarlock_memory_channel *channel = new_memory_channel("memory-contexts", context), *of_other;
	struct ibv_pd *pd = new_pd("memory-contexts", context), *other_pd = new_pd("memory-contexts", other);
	char *memory = map_at("memory-contexts", NULL), *big;
	struct ibv_mr *mr, *second;

	NO_OBJECT("memory-contexts", oarlock_reg_mr_notify(other_pd, memory, LENGTH, 0, 1, OARLOCK_MEMORY_REPORT), EBADF);
	of_other = new_memory_channel("memory-contexts", other);
	mr = watch("memory-contexts", other_pd, memory, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-contexts", oarlock_destroy_memory_channel(of_other) == EBUSY);
	munmap(memory, LENGTH);
	no_event("memory-contexts", channel);
	CHECK("memory-contexts", only_event("memory-contexts", of_other).cookie == 1 && ibv_dereg_mr(mr) == 0);
	ok("memory-contexts");

	/* The kernel lets one channel watch a page. */
	memory = map_at("memory-contexts-ebusy", NULL);
	mr = watch("memory-contexts-ebusy", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	NO_OBJECT("memory-contexts-ebusy",
		  oarlock_reg_mr_notify(other_pd, memory, LENGTH, 0, 1, OARLOCK_MEMORY_REPORT), EBUSY);
	second = ibv_reg_mr(other_pd, memory, LENGTH, 0);
	CHECK("memory-contexts-ebusy", second != NULL && ibv_dereg_mr(second) == 0);
	CHECK("memory-contexts-ebusy", oarlock_mr_is_valid(mr) == 1 && ibv_dereg_mr(mr) == 0);
	mr = watch("memory-contexts-ebusy", other_pd, memory, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-contexts-ebusy", ibv_dereg_mr(mr) == 0);
	munmap(memory, LENGTH);
	ok("memory-contexts-ebusy");

	/* Also what the channel has let go, if it is large: it is watched until it is unmapped, or the channel is destroyed. */
	big = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = oarlock_reg_mr_notify(pd, big, 4 << 20, 0, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-contexts-large", big != MAP_FAILED && mr != NULL && ibv_dereg_mr(mr) == 0);
	NO_OBJECT("memory-contexts-large",
		  oarlock_reg_mr_notify(other_pd, big, 4 << 20, 0, 1, OARLOCK_MEMORY_REPORT), EBUSY);
	CHECK("memory-contexts-large", oarlock_destroy_memory_channel(channel) == 0);
	mr = oarlock_reg_mr_notify(other_pd, big, 4 << 20, 0, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-contexts-large", mr != NULL);
	ok("memory-contexts-large");

	/* The context is closed before its channel. */
	CHECK("memory-context-closed", ibv_close_device(other) == 0);
	munmap(big, 4 << 20);
	CHECK("memory-context-closed", only_event("memory-context-closed", of_other).cookie == 1);
	CHECK("memory-context-closed", oarlock_destroy_memory_channel(of_other) == EBUSY);
	CHECK("memory-context-closed", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other_pd) == 0);
	CHECK("memory-context-closed", oarlock_destroy_memory_channel(of_other) == 0);
	ok("memory-context-closed");
	CHECK("memory-contexts", ibv_dealloc_pd(pd) == 0);
}

/* A process has so many channels, and not one more; one that goes makes room. */
#define CHANNELS 64

static void limit_rules(struct ibv_context *context)
{
	int next = next_descriptor("memory-channel-limit");
	struct ibv_context *contexts[CHANNELS + 1];
	struct oarlock_memory_channel *channels[CHANNELS];

	for (int at = 0; at <= CHANNELS; at++) {
		contexts[at] = ibv_open_device(context->device);
		CHECK("memory-channel-limit", contexts[at] != NULL);
	}
	for (int round = 0; round < 2; round++) {
		for (int at = 0; at < CHANNELS; at++)
			channels[at] = new_memory_channel("memory-channel-limit", contexts[at]);
		NO_OBJECT("memory-channel-limit", oarlock_create_memory_channel(contexts[CHANNELS]), EMFILE);
		CHECK("memory-channel-limit", oarlock_destroy_memory_channel(channels[5]) == 0);
		channels[5] = new_memory_channel("memory-channel-limit", contexts[CHANNELS]);
		for (int at = 0; at < CHANNELS; at++)
			CHECK("memory-channel-limit", oarlock_destroy_memory_channel(channels[at]) == 0);
	}
	for (int at = 0; at <= CHANNELS; at++)
		CHECK("memory-channel-limit", ibv_close_device(contexts[at]) == 0);
	CHECK("memory-channel-limit", next_descriptor("memory-channel-limit") == next);
	ok("memory-channel-limit");
}

static void no_thread_rules(void)
{
	static const int starts[] = { SYS_clone, SYS_clone3 };
	int status;
	pid_t child = fork();

	if (child == 0) {
		port_context = NULL;
		struct ibv_context *own = open_port("memory-eagain");
		int next = next_descriptor("memory-eagain");

		if (forbid(starts, 2, EAGAIN))
			_exit(1);
		errno = 0;
		if (oarlock_create_memory_channel(own) || errno != EAGAIN)
			_exit(2);
		_exit(next_descriptor("memory-eagain") == next ? 0 : 3);
	}
	CHECK("memory-eagain", waitpid(child, &status, 0) == child);
	if (status)
		FAIL("memory-eagain", "the child ended with %#x", status);
	ok("memory-eagain");
}

/* Every region ends in one of the threads that end what was invalidated. */
static int ended_in_all;

static void *end_all(void *unused)
{
	struct oarlock_deregistered list[7];
	int over, got;

	do {
		over = __atomic_load_n(&is_over, __ATOMIC_ACQUIRE);
		got = oarlock_dereg_notified_mrs(shared, list, 7);
		CHECK("memory-dereg-all-threads", got >= 0);
		__atomic_fetch_add(&ended_in_all, got, __ATOMIC_RELAXED);
	} while (!over || got);
	return unused;
}

static void end_rules(struct ibv_context *context)
{
	struct ibv_pd *pd = new_pd("memory-dereg-all-threads", context);
	pthread_t threads[2];

	shared = new_memory_channel("memory-dereg-all-threads", context);
	is_over = 0;
	for (int at = 0; at < 2; at++)
		threads[at] = thread("memory-dereg-all-threads", end_all, NULL);
	for (uint64_t cookie = 0; cookie < REGIONS; cookie++) {
		char *memory = map_at("memory-dereg-all-threads", NULL);

		watch("memory-dereg-all-threads", pd, memory, cookie, cookie & 1 ? OARLOCK_MEMORY_REPORT : OARLOCK_MEMORY_DEREGISTER);
		munmap(memory, LENGTH);
	}
	__atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
	for (int at = 0; at < 2; at++)
		CHECK("memory-dereg-all-threads", pthread_join(threads[at], NULL) == 0);
	CHECK("memory-dereg-all-threads", ended_in_all == REGIONS);
	CHECK("memory-dereg-all-threads", oarlock_destroy_memory_channel(shared) == 0 && ibv_dealloc_pd(pd) == 0);
	ok("memory-dereg-all-threads");
}

/* A thread ends inside a call, behind the back of the C library: the channel is lost, and says so. */
static sem_t in_calls;

static void end_here(int unused)
{
	(void)unused;
	syscall(SYS_exit, 0);
}

static void *call_again(void *memory)
{
	sem_post(&in_calls);
	/* A call that takes the channel's lock, and no memory. */
	while (oarlock_invalidate_memory(shared, memory, PAGE, OARLOCK_MEMORY_UNMAPPED) == 0)
		;
	return memory;
}

static void death_rules(struct ibv_context *context)
{
	struct ibv_pd *pd = new_pd("memory-eownerdead", context);
	char *memory = map_at("memory-eownerdead", NULL), *elsewhere = map_at("memory-eownerdead", NULL);
	struct sigaction die = { .sa_handler = end_here };
	struct oarlock_memory_event event;
	struct oarlock_deregistered ended;
	struct ibv_mr *mr;
	uint64_t count = 77;
	int answer = 0;

	CHECK("memory-eownerdead", sigaction(SIGUSR1, &die, NULL) == 0 && sem_init(&in_calls, 0, 0) == 0);
	shared = new_memory_channel("memory-eownerdead", context);
	mr = watch("memory-eownerdead", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	/* Most of the time it is in a call; the program's alarm ends what never meets one. */
	while (answer == 0) {
		pthread_t caller = thread("memory-eownerdead", call_again, elsewhere);

		while (sem_wait(&in_calls))
			;
		usleep(100);
		CHECK("memory-eownerdead", pthread_kill(caller, SIGUSR1) == 0 && pthread_join(caller, NULL) == 0);
		answer = oarlock_invalidate_memory(shared, elsewhere, PAGE, OARLOCK_MEMORY_UNMAPPED);
	}
	CHECK("memory-eownerdead", answer == EOWNERDEAD && oarlock_mr_is_valid(mr) == 0);
	CHECK("memory-eownerdead", oarlock_settle_memory_events(shared) == EOWNERDEAD);
	FAILS("memory-eownerdead", oarlock_read_memory_events(shared, &event, 1), EOWNERDEAD);
	FAILS("memory-eownerdead", oarlock_dereg_notified_mrs(shared, &ended, 1), EOWNERDEAD);
	NO_OBJECT("memory-eownerdead", oarlock_reg_mr_notify(pd, memory, LENGTH, 0, 2, OARLOCK_MEMORY_REPORT), EOWNERDEAD);
	/* Nobody waits for what is lost, and another takes its place. */
	munmap(elsewhere, LENGTH);
	CHECK("memory-eownerdead", oarlock_dereg_mr_notified(mr, &count) == 0 && count == 0);
	CHECK("memory-eownerdead", oarlock_destroy_memory_channel(shared) == 0);
	shared = new_memory_channel("memory-eownerdead", context);
	mr = watch("memory-eownerdead", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	munmap(memory, LENGTH);
	CHECK("memory-eownerdead", only_event("memory-eownerdead", shared).cookie == 1 && ibv_dereg_mr(mr) == 0);
	CHECK("memory-eownerdead", oarlock_destroy_memory_channel(shared) == 0 && ibv_dealloc_pd(pd) == 0);
	sem_destroy(&in_calls);
	ok("memory-eownerdead");
}

int main(int argc, char **argv)
{
	struct ibv_context *context;

	start(argc, argv);
	/* Another library: there is nothing to show. */
	if (!oarlock_has_memory_events())
		return 0;
	context = open_port("memory-readers");
	PART(reader_rules(context));
	PART(contest_rules(context));
	PART(fork_rules(context));
	PART(context_rules(context));
	PART(limit_rules(context));
	PART(no_thread_rules());
	PART(end_rules(context));
	PART(death_rules(context));
	CHECK("memory-readers", ibv_close_device(context) == 0);
	return 0;
}
