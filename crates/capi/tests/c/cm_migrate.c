/* Moving identifiers between channels: queued events, children, threads that wait, threads that read. */
#include "rule.h"

#include <sys/syscall.h>

static void set_nonblocking(const char *rule, struct rdma_event_channel *channel)
{
	CHECK(rule, fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
}

static void moves(void)
{
	const char *rule = "migrate-later-events";
	struct rdma_event_channel *first = new_channel(rule);
	struct rdma_event_channel *second = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, first, RDMA_PS_TCP);
	struct rdma_cm_event *event;

	CHECK(rule, rdma_migrate_id(id, second) == 0);
	CHECK(rule, id->channel == second);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	expect(rule, second, RDMA_CM_EVENT_ADDR_RESOLVED);
	set_nonblocking(rule, first);
	FAILS(rule, rdma_get_cm_event(first, &event), EAGAIN);
	/* To where it is, and back again. */
	CHECK(rule, rdma_migrate_id(id, second) == 0);
	CHECK(rule, rdma_migrate_id(id, first) == 0);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	expect(rule, first, RDMA_CM_EVENT_ROUTE_RESOLVED);
	destroy(rule, id);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
	ok(rule);
}

/* Three identifiers have a queued event each; two move, and come after what is queued there. */
static void moves_what_is_queued(void)
{
	const char *rule = "migrate-queued-events";
	struct rdma_event_channel *first = new_channel(rule);
	struct rdma_event_channel *second = new_channel(rule);
	struct rdma_cm_id *ids[4];
	struct rdma_cm_event *event;
	int order[3] = { 3, 2, 0 };

	for (int i = 0; i < 4; i++) {
		ids[i] = new_id(rule, i == 3 ? second : first, RDMA_PS_TCP);
		CHECK(rule, rdma_resolve_addr(ids[i], NULL, address(1), 2000) == 0);
		CHECK(rule, readable(ids[i]->channel->fd, LONG));
		usleep(20000);
	}
	CHECK(rule, rdma_migrate_id(ids[2], second) == 0);
	CHECK(rule, rdma_migrate_id(ids[0], second) == 0);
	event = event_of(rule, first, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, event->id == ids[1]);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	set_nonblocking(rule, first);
	FAILS(rule, rdma_get_cm_event(first, &event), EAGAIN);
	for (int i = 0; i < 3; i++) {
		event = event_of(rule, second, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(rule, event->id == ids[order[i]]);
		CHECK(rule, rdma_ack_cm_event(event) == 0);
	}
	for (int i = 0; i < 4; i++)
		destroy(rule, ids[i]);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
	ok(rule);
}

static struct rdma_event_channel *waited_on;
static volatile pid_t waiter;
static struct rdma_cm_event *got;

static void *waits(void *unused)
{
	(void)unused;
	waiter = (pid_t)syscall(SYS_gettid);
	return (void *)(intptr_t)rdma_get_cm_event(waited_on, &got);
}

static void wakes(void)
{
	const char *rule = "migrate-wakes";
	struct rdma_event_channel *first = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, first, RDMA_PS_TCP);
	pthread_t made;
	void *answer;

	waited_on = new_channel(rule);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, readable(first->fd, LONG));
	made = thread(rule, waits, NULL);
	while (!waiter)
		usleep(1000);
	until_asleep(rule, waiter);
	CHECK(rule, rdma_migrate_id(id, waited_on) == 0);
	CHECK(rule, pthread_join(made, &answer) == 0 && answer == NULL);
	CHECK(rule, got->id == id && got->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_ack_cm_event(got) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(waited_on);
	ok(rule);
}

static void frees_the_old_one(void)
{
	const char *rule = "migrate-old-channel-free";

	for (int i = 0; i < 50; i++) {
		struct rdma_event_channel *first = new_channel(rule);
		struct rdma_event_channel *second = new_channel(rule);
		struct rdma_cm_id *id = new_id(rule, first, RDMA_PS_TCP);

		CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
		CHECK(rule, rdma_migrate_id(id, second) == 0);
		rdma_destroy_event_channel(first);
		expect(rule, second, RDMA_CM_EVENT_ADDR_RESOLVED);
		destroy(rule, id);
		rdma_destroy_event_channel(second);
	}
	ok(rule);
}

#define CHILDREN 3

static void takes_children_along(void)
{
	const char *rule = "migrate-children";
	struct rdma_event_channel *first = new_channel(rule);
	struct rdma_event_channel *second = new_channel(rule);
	struct rdma_event_channel *clients = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, first, RDMA_PS_TCP);
	struct rdma_cm_id *active[CHILDREN], *passive[CHILDREN];

	for (int i = 0; i < CHILDREN; i++) {
		active[i] = new_id(rule, clients, RDMA_PS_TCP);
		resolve(rule, active[i], port_of(listener));
		new_qp(rule, active[i]);
		CHECK(rule, rdma_connect(active[i], NULL) == 0);
	}
	CHECK(rule, readable(first->fd, LONG));
	CHECK(rule, rdma_migrate_id(listener, second) == 0);
	rdma_destroy_event_channel(first);
	for (int i = 0; i < CHILDREN; i++) {
		struct rdma_cm_event *event = event_of(rule, second, RDMA_CM_EVENT_CONNECT_REQUEST);

		passive[i] = event->id;
		CHECK(rule, event->listen_id == listener && passive[i]->channel == second);
		CHECK(rule, rdma_ack_cm_event(event) == 0);
	}
	for (int i = 0; i < CHILDREN; i++) {
		new_qp(rule, passive[i]);
		CHECK(rule, rdma_accept(passive[i], NULL) == 0);
		expect(rule, clients, RDMA_CM_EVENT_ESTABLISHED);
		expect(rule, second, RDMA_CM_EVENT_ESTABLISHED);
	}
	for (int i = 0; i < CHILDREN; i++) {
		destroy(rule, active[i]);
		destroy(rule, passive[i]);
	}
	destroy(rule, listener);
	rdma_destroy_event_channel(second);
	rdma_destroy_event_channel(clients);
	ok(rule);
}

static void leaves_children(void)
{
	const char *rule = "migrate-child-stays";
	struct rdma_event_channel *second = new_channel(rule);
	struct rdma_event_channel *third = new_channel(rule);
	struct pair pair;

	CHECK(rule, rdma_ack_cm_event(request_of(rule, &pair, RDMA_PS_TCP, NULL)) == 0);
	CHECK(rule, rdma_migrate_id(pair.listener, second) == 0);
	CHECK(rule, pair.passive->channel == pair.passive_channel);
	new_qp(rule, pair.passive);
	/* Before it is accepted, and after it is established. */
	CHECK(rule, rdma_migrate_id(pair.passive, third) == 0);
	CHECK(rule, rdma_accept(pair.passive, NULL) == 0);
	expect(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect(rule, third, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, rdma_migrate_id(pair.passive, pair.passive_channel) == 0);
	CHECK(rule, rdma_disconnect(pair.active) == 0);
	expect(rule, pair.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	end(rule, &pair);
	rdma_destroy_event_channel(second);
	rdma_destroy_event_channel(third);
	ok(rule);
}

struct move {
	struct rdma_cm_id *id;
	struct rdma_event_channel *to;
	volatile pid_t tid;
	volatile int is_done;
};

static void *migrates(void *with)
{
	struct move *move = with;

	move->tid = (pid_t)syscall(SYS_gettid);
	if (rdma_migrate_id(move->id, move->to))
		return (void *)1;
	move->is_done = 1;
	return NULL;
}

static void waits_for_acknowledgements(void)
{
	const char *rule = "migrate-waits";
	struct rdma_event_channel *first = new_channel(rule);
	struct rdma_event_channel *second = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, first, RDMA_PS_TCP);
	struct move move = { .id = id, .to = second };
	struct rdma_cm_event *event, *later;
	pthread_t made;
	void *answer;

	/* Not without a reason. */
	CHECK(rule, rdma_migrate_id(id, second) == 0);
	CHECK(rule, rdma_migrate_id(id, first) == 0);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	event = event_of(rule, first, RDMA_CM_EVENT_ADDR_RESOLVED);
	made = thread(rule, migrates, &move);
	while (!move.tid)
		usleep(1000);
	until_asleep(rule, move.tid);
	CHECK(rule, !move.is_done);
	/* It has moved already, and an event of the new channel that is acknowledged is not mistaken for the old one. */
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	later = event_of(rule, second, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	CHECK(rule, pthread_join(made, &answer) == 0 && answer == NULL);
	CHECK(rule, rdma_ack_cm_event(later) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
	ok(rule);
}

static void to_none_and_back(void)
{
	const char *rule = "migrate-to-sync";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

	/* An event that is queued is the first that a call waits for. */
	CHECK(rule, rdma_migrate_id(id, NULL) == 0);
	CHECK(rule, id->channel != NULL && id->channel != channel && id->event == NULL);
	FAILS("migrate-einval-sync", rdma_migrate_id(id, NULL), EINVAL);
	ok("migrate-einval-sync");
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	ok(rule);
	rule = "migrate-from-sync";
	CHECK(rule, rdma_migrate_id(id, channel) == 0);
	CHECK("migrate-from-sync-acks", id->event == NULL);
	CHECK(rule, id->channel == channel);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	CHECK(rule, id->event == NULL);
	expect(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
	ok("migrate-from-sync-acks");
}

/* Connections come and go, two threads read a channel each, and the identifiers move to and fro. */
#define ROUNDS 30

static struct rdma_event_channel *between[2];
static volatile int established, disconnected, others, is_over;

static void *reads(void *with)
{
	struct rdma_event_channel *channel = with;

	while (!is_over) {
		struct rdma_cm_event *event;
		int kind;

		if (!readable(channel->fd, 10))
			continue;
		if (rdma_get_cm_event(channel, &event)) {
			if (errno == EAGAIN)
				continue;
			return (void *)1;
		}
		kind = event->event;
		if (rdma_ack_cm_event(event))
			return (void *)1;
		if (kind == RDMA_CM_EVENT_ESTABLISHED)
			__sync_fetch_and_add(&established, 1);
		else if (kind == RDMA_CM_EVENT_DISCONNECTED)
			__sync_fetch_and_add(&disconnected, 1);
		else if (kind != RDMA_CM_EVENT_TIMEWAIT_EXIT)
			__sync_fetch_and_add(&others, 1);
	}
	return NULL;
}

static int comes_to(volatile int *count, int wanted)
{
	for (int i = 0; i < 20000 && *count < wanted; i++)
		usleep(1000);
	return *count == wanted;
}

static void loses_nothing(void)
{
	const char *rule = "migrate-no-loss";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	pthread_t threads[2];

	for (int i = 0; i < 2; i++) {
		between[i] = new_channel(rule);
		set_nonblocking(rule, between[i]);
		threads[i] = thread(rule, reads, between[i]);
	}
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_event_channel *own = new_channel(rule);
		struct rdma_cm_id *id = new_id(rule, own, RDMA_PS_TCP);
		struct rdma_cm_event *event;
		struct rdma_cm_id *child;

		resolve(rule, id, port_of(listener));
		new_qp(rule, id);
		CHECK(rule, rdma_migrate_id(id, between[0]) == 0);
		CHECK(rule, rdma_connect(id, NULL) == 0);
		event = event_of(rule, channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		child = event->id;
		CHECK(rule, rdma_ack_cm_event(event) == 0);
		new_qp(rule, child);
		CHECK(rule, rdma_accept(child, NULL) == 0);
		for (int j = 0; j < 6; j++)
			CHECK(rule, rdma_migrate_id(id, between[(j + 1) % 2]) == 0);
		expect(rule, channel, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(rule, comes_to(&established, i + 1));
		CHECK(rule, rdma_disconnect(child) == 0);
		for (int j = 0; j < 6; j++)
			CHECK(rule, rdma_migrate_id(id, between[(j + 1) % 2]) == 0);
		CHECK(rule, comes_to(&disconnected, i + 1));
		CHECK(rule, rdma_disconnect(id) == 0);
		expect(rule, channel, RDMA_CM_EVENT_DISCONNECTED);
		destroy(rule, id);
		destroy(rule, child);
		rdma_destroy_event_channel(own);
	}
	is_over = 1;
	for (int i = 0; i < 2; i++) {
		void *answer;

		CHECK(rule, pthread_join(threads[i], &answer) == 0 && answer == NULL);
		rdma_destroy_event_channel(between[i]);
	}
	CHECK(rule, established == ROUNDS && disconnected == ROUNDS && others == 0);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(moves());
	PART(moves_what_is_queued());
	PART(wakes());
	PART(frees_the_old_one());
	PART(takes_children_along());
	PART(leaves_children());
	PART(waits_for_acknowledgements());
	PART(to_none_and_back());
	PART(loses_nothing());
	return 0;
}
