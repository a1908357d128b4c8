/* Several threads on one channel. */
#include "rule.h"

#define THREADS 4
#define ROUNDS 25

static struct rdma_event_channel *shared;
static uint16_t port, nobody;
static volatile int is_over;

/* What a thread waits for of its identifier, told by whoever gets the event. */
struct wait {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int kind, status;
};

static void *gets(void *unused)
{
	(void)unused;
	while (!is_over) {
		struct rdma_cm_event *event;
		struct wait *wait;

		if (!readable(shared->fd, 10) || rdma_get_cm_event(shared, &event))
			continue;
		if (event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT) {
			rdma_ack_cm_event(event);
			continue;
		}
		wait = event->id->context;
		pthread_mutex_lock(&wait->lock);
		wait->kind = event->event;
		wait->status = event->status;
		pthread_cond_signal(&wait->changed);
		pthread_mutex_unlock(&wait->lock);
		rdma_ack_cm_event(event);
	}
	return NULL;
}

static void comes(const char *rule, struct wait *wait, int kind)
{
	pthread_mutex_lock(&wait->lock);
	while (wait->kind < 0)
		pthread_cond_wait(&wait->changed, &wait->lock);
	if (wait->kind != kind)
		FAIL(rule, "%s, status %d, where %s should come", rdma_event_str(wait->kind), wait->status,
		     rdma_event_str(kind));
	wait->kind = -1;
	pthread_mutex_unlock(&wait->lock);
}

static struct rdma_cm_id *resolved(const char *rule, struct wait *wait, uint16_t to)
{
	struct rdma_cm_id *id;

	CHECK(rule, rdma_create_id(shared, &id, wait, RDMA_PS_TCP) == 0);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(to), 2000) == 0);
	comes(rule, wait, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	comes(rule, wait, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static void *connects(void *unused)
{
	const char *rule = "thread-calls";
	struct wait wait = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, -1, 0 };

	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *id = resolved(rule, &wait, port);

		new_qp(rule, id);
		CHECK(rule, rdma_connect(id, NULL) == 0);
		comes(rule, &wait, RDMA_CM_EVENT_ESTABLISHED);
		if (i % 2) {
			CHECK(rule, rdma_disconnect(id) == 0);
			comes(rule, &wait, RDMA_CM_EVENT_DISCONNECTED);
		}
		destroy(rule, id);
	}
	return NULL;
}

/* The queue pair goes while another thread gets REJECTED, which is where the library stops it. */
static void *is_refused(void *unused)
{
	const char *rule = "thread-destroy-qp";
	struct wait wait = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, -1, 0 };

	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *id = resolved(rule, &wait, nobody);

		new_qp(rule, id);
		CHECK(rule, rdma_connect(id, NULL) == 0);
		if (i % 3)
			usleep((useconds_t)(i % 7) * 50);
		rdma_destroy_qp(id);
		CHECK(rule, id->qp == NULL);
		comes(rule, &wait, RDMA_CM_EVENT_REJECTED);
		destroy(rule, id);
	}
	return NULL;
}

/* Takes every request, and answers every end. */
static void *serves(void *with)
{
	struct rdma_event_channel *channel = with;

	while (!is_over) {
		struct rdma_cm_event *event;
		struct rdma_cm_id *id;
		int kind;

		if (!readable(channel->fd, 10) || rdma_get_cm_event(channel, &event))
			continue;
		id = event->id;
		kind = event->event;
		rdma_ack_cm_event(event);
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			new_qp("thread-calls", id);
			/* The peer may have left already. */
			rdma_accept(id, NULL);
		} else if (kind == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
			destroy("thread-calls", id);
		} else if (kind == RDMA_CM_EVENT_REJECTED || kind == RDMA_CM_EVENT_UNREACHABLE) {
			destroy("thread-calls", id);
		}
	}
	return NULL;
}

static void together(const char *rule, void *(*run)(void *))
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		threads[i] = thread(rule, run, NULL);
	for (int i = 0; i < THREADS; i++)
		CHECK(rule, pthread_join(threads[i], NULL) == 0);
	ok(rule);
}

int main(int argc, char **argv)
{
	const char *rule = "thread-calls";
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *silent;
	pthread_t readers[2], server;

	start(argc, argv);
	shared = new_channel(rule);
	channel = new_channel(rule);
	listener = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, rdma_bind_addr(listener, address(0)) == 0);
	CHECK(rule, rdma_listen(listener, 64) == 0);
	port = port_of(listener);
	silent = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, rdma_bind_addr(silent, address(0)) == 0);
	nobody = port_of(silent);
	CHECK(rule, fcntl(shared->fd, F_SETFL, fcntl(shared->fd, F_GETFL) | O_NONBLOCK) == 0);
	for (int i = 0; i < 2; i++)
		readers[i] = thread(rule, gets, NULL);
	server = thread(rule, serves, channel);
	PART(together("thread-calls", connects));
	PART(together("thread-destroy-qp", is_refused));
	is_over = 1;
	for (int i = 0; i < 2; i++)
		CHECK(rule, pthread_join(readers[i], NULL) == 0);
	CHECK(rule, pthread_join(server, NULL) == 0);
	destroy(rule, listener);
	destroy(rule, silent);
	rdma_destroy_event_channel(shared);
	/* Those that the server still has go with their channel. */
	rdma_destroy_event_channel(channel);
	return 0;
}
