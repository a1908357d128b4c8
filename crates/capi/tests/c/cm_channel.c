/* Event channels: what their descriptor does, and how they end. */
#include "rule.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>

static void creates(void)
{
	const char *rule = "channel-create";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *first = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *second = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;

	/* In the order in which they happened. */
	CHECK(rule, rdma_resolve_addr(first, NULL, address(1), 2000) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, event->id == first);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	CHECK(rule, rdma_resolve_addr(second, NULL, address(1), 2000) == 0);
	CHECK(rule, readable(channel->fd, LONG));
	CHECK(rule, rdma_resolve_route(first, 2000) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, event->id == second);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rule, event->id == first);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, first);
	destroy(rule, second);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

#define READERS 4
#define EVENTS 40

static struct rdma_event_channel *shared;
static int fetched[READERS];
static pthread_mutex_t fetching = PTHREAD_MUTEX_INITIALIZER;
static int all_fetched;

static void *reads(void *with)
{
	int *mine = with;

	for (;;) {
		struct rdma_cm_event *event;
		int is_last;

		if (rdma_get_cm_event(shared, &event))
			return (void *)1;
		is_last = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
		if (!is_last) {
			pthread_mutex_lock(&fetching);
			all_fetched++;
			pthread_mutex_unlock(&fetching);
			(*mine)++;
		}
		if (rdma_ack_cm_event(event))
			return (void *)1;
		if (is_last)
			return NULL;
	}
}

static void is_shared(void)
{
	const char *rule = "channel-shared-fetch";
	struct rdma_event_channel *other = new_channel(rule);
	struct rdma_cm_id *listener, *ids[EVENTS], *clients[READERS];
	pthread_t threads[READERS];
	int sum = 0;

	shared = new_channel(rule);
	listener = new_listener(rule, shared, RDMA_PS_TCP);
	for (int i = 0; i < READERS; i++)
		threads[i] = thread(rule, reads, &fetched[i]);
	for (int i = 0; i < EVENTS; i++) {
		ids[i] = new_id(rule, shared, RDMA_PS_TCP);
		CHECK(rule, rdma_resolve_addr(ids[i], NULL, address(1), 2000) == 0);
	}
	for (int i = 0; i < 10000; i++) {
		pthread_mutex_lock(&fetching);
		sum = all_fetched;
		pthread_mutex_unlock(&fetching);
		if (sum >= EVENTS)
			break;
		usleep(1000);
	}
	/* One request for each of the threads ends it. */
	for (int i = 0; i < READERS; i++) {
		clients[i] = new_id(rule, other, RDMA_PS_TCP);
		resolve(rule, clients[i], port_of(listener));
		new_qp(rule, clients[i]);
		CHECK(rule, rdma_connect(clients[i], NULL) == 0);
	}
	sum = 0;
	for (int i = 0; i < READERS; i++) {
		void *answer;

		CHECK(rule, pthread_join(threads[i], &answer) == 0 && answer == NULL);
		sum += fetched[i];
	}
	CHECK(rule, sum == EVENTS);
	for (int i = 0; i < EVENTS; i++)
		destroy(rule, ids[i]);
	for (int i = 0; i < READERS; i++)
		destroy(rule, clients[i]);
	destroy(rule, listener);
	rdma_destroy_event_channel(shared);
	rdma_destroy_event_channel(other);
	ok(rule);
}

static void is_polled(void)
{
	const char *rule = "channel-fd-poll";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct epoll_event ready;
	struct timeval now = { 0, 0 };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	fd_set set;

	ready.events = EPOLLIN;
	CHECK(rule, epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &ready) == 0);
	CHECK(rule, !readable(channel->fd, 0));
	CHECK(rule, epoll_wait(epoll, &ready, 1, 0) == 0);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, epoll_wait(epoll, &ready, 1, LONG) == 1 && (ready.events & EPOLLIN));
	/* Level: it stays so while the event is there. */
	CHECK(rule, epoll_wait(epoll, &ready, 1, LONG) == 1 && (ready.events & EPOLLIN));
	CHECK(rule, readable(channel->fd, 0));
	FD_ZERO(&set);
	FD_SET(channel->fd, &set);
	CHECK(rule, select(channel->fd + 1, &set, NULL, NULL, &now) == 1);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, !readable(channel->fd, 0));
	CHECK(rule, epoll_wait(epoll, &ready, 1, 0) == 0);
	close(epoll);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void has_edges(void)
{
	const char *rule = "channel-fd-edge";
	struct rdma_event_channel *channel = new_channel(rule);
	struct epoll_event ready;
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct rdma_cm_id *ids[3];
	struct rdma_cm_event *event;

	CHECK(rule, fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	ready.events = EPOLLIN | EPOLLET;
	CHECK(rule, epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &ready) == 0);
	/* Each event is an edge, whether the one before was taken or not. */
	for (int i = 0; i < 3; i++) {
		ids[i] = new_id(rule, channel, RDMA_PS_TCP);
		CHECK(rule, rdma_resolve_addr(ids[i], NULL, address(1), 2000) == 0);
		CHECK(rule, epoll_wait(epoll, &ready, 1, LONG) == 1);
		CHECK(rule, epoll_wait(epoll, &ready, 1, 0) == 0);
	}
	for (int i = 0; i < 3; i++)
		expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	FAILS(rule, rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(rule, rdma_resolve_route(ids[0], 2000) == 0);
	CHECK(rule, epoll_wait(epoll, &ready, 1, LONG) == 1);
	expect(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	close(epoll);
	for (int i = 0; i < 3; i++)
		destroy(rule, ids[i]);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void does_not_block(void)
{
	const char *rule = "channel-fd-nonblock";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_event *event;

	CHECK(rule, fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	for (int i = 0; i < 3; i++)
		FAILS(rule, rdma_get_cm_event(channel, &event), EAGAIN);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void may_be_spurious(void)
{
	const char *rule = "channel-fd-spurious";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_event_channel *other = new_channel(rule);
	struct rdma_cm_id *gone = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *moved = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;

	CHECK(rule, fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(rule, rdma_resolve_addr(gone, NULL, address(1), 2000) == 0);
	CHECK(rule, readable(channel->fd, LONG));
	destroy(rule, gone);
	FAILS(rule, rdma_get_cm_event(channel, &event), EAGAIN);
	CHECK(rule, rdma_resolve_addr(moved, NULL, address(1), 2000) == 0);
	CHECK(rule, readable(channel->fd, LONG));
	CHECK(rule, rdma_migrate_id(moved, other) == 0);
	FAILS(rule, rdma_get_cm_event(channel, &event), EAGAIN);
	/* It is not readable for ever. */
	CHECK(rule, !readable(channel->fd, 0));
	expect(rule, other, RDMA_CM_EVENT_ADDR_RESOLVED);
	destroy(rule, moved);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	ok(rule);
}

static void is_closed_by_exec(void)
{
	const char *rule = "channel-fd-cloexec";
	struct rdma_event_channel *channel = new_channel(rule);

	CHECK(rule, fcntl(channel->fd, F_GETFD) & FD_CLOEXEC);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void ends(void)
{
	const char *rule = "channel-destroy";
	struct rdma_event_channel *channel = new_channel(rule);
	int fd = channel->fd;

	rdma_destroy_event_channel(channel);
	FAILS(rule, fcntl(fd, F_GETFD), EBADF);
	/* Nothing is kept. */
	for (int i = 0; i < 2000; i++)
		rdma_destroy_event_channel(new_channel(rule));
	ok(rule);
}

static void ends_with_ids(void)
{
	const char *rule = "channel-destroy-ids";
	struct pair pair = connected(rule);
	uint16_t port = port_of(pair.listener);
	struct rdma_event_channel *again;
	struct rdma_cm_id *id;

	rdma_destroy_event_channel(pair.passive_channel);
	expect(rule, pair.active_channel, RDMA_CM_EVENT_DISCONNECTED);
	/* The port is free. */
	again = new_channel(rule);
	id = new_id(rule, again, RDMA_PS_TCP);
	CHECK(rule, rdma_bind_addr(id, address(port)) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(again);
	destroy(rule, pair.active);
	rdma_destroy_event_channel(pair.active_channel);
	ok(rule);
}

static void ends_after_migration(void)
{
	const char *rule = "channel-destroy-after-migrate";
	struct pair pair = connected(rule);
	struct rdma_event_channel *later = new_channel(rule);

	CHECK(rule, rdma_migrate_id(pair.active, later) == 0);
	rdma_destroy_event_channel(pair.active_channel);
	pair.active_channel = later;
	CHECK(rule, rdma_disconnect(pair.passive) == 0);
	expect(rule, later, RDMA_CM_EVENT_DISCONNECTED);
	end(rule, &pair);
	ok(rule);
}

static void needs_a_descriptor(void)
{
	const char *rule = "channel-emfile";
	struct rdma_event_channel *channel;
	struct rlimit old, none;
	int highest = open("/dev/null", O_RDONLY | O_CLOEXEC);

	/* What the library needs besides is open already: channels were made before. */
	CHECK(rule, getrlimit(RLIMIT_NOFILE, &old) == 0);
	none = old;
	none.rlim_cur = (rlim_t)highest;
	close(highest);
	CHECK(rule, setrlimit(RLIMIT_NOFILE, &none) == 0);
	errno = 0;
	channel = rdma_create_event_channel();
	CHECK(rule, channel == NULL && errno == EMFILE);
	CHECK(rule, setrlimit(RLIMIT_NOFILE, &old) == 0);
	channel = new_channel(rule);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(creates());
	PART(is_shared());
	PART(is_polled());
	PART(has_edges());
	PART(does_not_block());
	PART(may_be_spurious());
	PART(is_closed_by_exec());
	PART(ends());
	PART(ends_with_ids());
	PART(ends_after_migration());
	PART(needs_a_descriptor());
	return 0;
}
