/* Threads that wait for events of a channel which another thread destroys. */
#include "rule.h"

#define ROUNDS 200

static struct rdma_event_channel *current;
static int failed;
static pid_t waiter;

static void *waits(void *with)
{
	struct rdma_cm_event *event;

	(void)with;
	__atomic_store_n(&waiter, gettid(), __ATOMIC_RELEASE);
	if (rdma_get_cm_event(current, &event))
		__atomic_add_fetch(&failed, 1, __ATOMIC_ACQ_REL);
	else
		rdma_ack_cm_event(event);
	return NULL;
}

/* An event wakes the thread just when its identifier and the channel go, as at the end of rping: the thread waits for ever, as it
 * does for a kernel whose descriptor was closed. */
int main(int argc, char **argv)
{
	const char *rule = "channel-destroy-waiting";

	start(argc, argv);
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_event_channel *channel = new_channel(rule);
		struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

		current = channel;
		waiter = 0;
		thread(rule, waits, NULL);
		while (!__atomic_load_n(&waiter, __ATOMIC_ACQUIRE))
			sched_yield();
		until_asleep(rule, waiter);
		CHECK(rule, rdma_resolve_addr(id, NULL, address(7000), 1000) == 0);
		usleep(i % 2 ? 0 : i * 2);
		destroy(rule, id);
		rdma_destroy_event_channel(channel);
	}
	usleep(200000);
	CHECK(rule, __atomic_load_n(&failed, __ATOMIC_ACQUIRE) == 0);
	ok(rule);
	_exit(0);
}
