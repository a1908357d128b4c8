/* Events: how they are waited for, what stands in them, how they are given back. */
#include "rule.h"

#include <sys/syscall.h>

static void is_got(void)
{
	const char *rule = "event-get";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *ids[5];

	for (int i = 0; i < 5; i++) {
		ids[i] = new_id(rule, channel, RDMA_PS_TCP);
		CHECK(rule, rdma_resolve_addr(ids[i], NULL, address(1), 2000) == 0);
		usleep(20000);
	}
	for (int i = 0; i < 5; i++) {
		struct rdma_cm_event *event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);

		CHECK(rule, event->id == ids[i]);
		CHECK(rule, rdma_ack_cm_event(event) == 0);
	}
	for (int i = 0; i < 5; i++)
		destroy(rule, ids[i]);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void refuses(void)
{
	struct rdma_event_channel *channel = new_channel("event-nonblock");
	struct rdma_cm_event *event;

	CHECK("event-nonblock", fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	FAILS("event-nonblock", rdma_get_cm_event(channel, &event), EAGAIN);
	ok("event-nonblock");
	FAILS("event-einval", rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS("event-einval", rdma_ack_cm_event(NULL), EINVAL);
	ok("event-einval");
	rdma_destroy_event_channel(channel);
}

static struct rdma_event_channel *waited_on;
static volatile pid_t waiter;
static volatile sig_atomic_t signals;
static int answer, answer_errno;
static struct rdma_cm_event *got;

static void counts(int number)
{
	(void)number;
	signals++;
}

static void *waits(void *unused)
{
	(void)unused;
	waiter = (pid_t)syscall(SYS_gettid);
	answer = rdma_get_cm_event(waited_on, &got);
	answer_errno = errno;
	return NULL;
}

static pthread_t waiting(const char *rule, int flags)
{
	struct sigaction action = { .sa_handler = counts, .sa_flags = flags };
	pthread_t made;

	CHECK(rule, sigaction(SIGUSR1, &action, NULL) == 0);
	signals = 0;
	waiter = 0;
	made = thread(rule, waits, NULL);
	while (!waiter)
		usleep(1000);
	until_asleep(rule, waiter);
	CHECK(rule, pthread_kill(made, SIGUSR1) == 0);
	return made;
}

static void is_interrupted(void)
{
	const char *rule = "event-eintr";
	pthread_t made;

	waited_on = new_channel(rule);
	made = waiting(rule, 0);
	CHECK(rule, pthread_join(made, NULL) == 0);
	CHECK(rule, signals == 1);
	CHECK(rule, answer == -1 && answer_errno == EINTR);
	rdma_destroy_event_channel(waited_on);
	ok(rule);
}

static void goes_on(void)
{
	const char *rule = "event-sa-restart";
	struct rdma_cm_id *id;
	pthread_t made;

	waited_on = new_channel(rule);
	made = waiting(rule, SA_RESTART);
	while (!signals)
		usleep(1000);
	until_asleep(rule, waiter);
	id = new_id(rule, waited_on, RDMA_PS_TCP);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, pthread_join(made, NULL) == 0);
	CHECK(rule, answer == 0 && got->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_ack_cm_event(got) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(waited_on);
	ok(rule);
}

/* A thread that waits may be cancelled. */
static void is_cancelled(void)
{
	const char *rule = "event-cancel";
	void *end_of_it;
	pthread_t made;

	waited_on = new_channel(rule);
	made = waiting(rule, SA_RESTART);
	until_asleep(rule, waiter);
	CHECK(rule, pthread_cancel(made) == 0);
	CHECK(rule, pthread_join(made, &end_of_it) == 0);
	CHECK(rule, end_of_it == PTHREAD_CANCELED);
	rdma_destroy_event_channel(waited_on);
	ok(rule);
}

static volatile int is_destroyed;
static volatile pid_t destroyer;

static void *destroys(void *id)
{
	destroyer = (pid_t)syscall(SYS_gettid);
	if (rdma_destroy_id(id))
		return (void *)1;
	is_destroyed = 1;
	return NULL;
}

static void *acknowledges(void *event)
{
	return (void *)(intptr_t)rdma_ack_cm_event(event);
}

/* Only the acknowledgement of the last event lets the identifier go. */
static void is_waited_for(void)
{
	const char *rule = "event-ack-destroy";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *first, *second;
	pthread_t made, other;
	void *end_of_it;

	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	first = event_of(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	second = event_of(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	made = thread(rule, destroys, id);
	while (!destroyer)
		usleep(1000);
	until_asleep(rule, destroyer);
	CHECK(rule, rdma_ack_cm_event(first) == 0);
	usleep(A_WHILE * 1000);
	CHECK(rule, !is_destroyed);
	/* What the event says is good until then. */
	CHECK(rule, second->id == id && second->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	other = thread("event-ack-other-thread", acknowledges, second);
	CHECK("event-ack-other-thread", pthread_join(other, &end_of_it) == 0 && end_of_it == NULL);
	CHECK(rule, pthread_join(made, &end_of_it) == 0 && end_of_it == NULL);
	CHECK(rule, is_destroyed);
	rdma_destroy_event_channel(channel);
	ok(rule);
	ok("event-ack-other-thread");
	ok("id-destroy-waits");
}

/* Each event counts once: many are got and acknowledged in another order, and the end waits for nothing. */
static void counts_once(void)
{
	const char *rule = "event-ack-once";
	struct pair pair = connected(rule);
	struct rdma_cm_event *events[2];

	CHECK(rule, rdma_disconnect(pair.active) == 0);
	events[0] = event_of(rule, pair.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rule, rdma_disconnect(pair.passive) == 0);
	events[1] = event_of(rule, pair.active_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rule, rdma_ack_cm_event(events[1]) == 0);
	CHECK(rule, rdma_ack_cm_event(events[0]) == 0);
	end(rule, &pair);
	ok(rule);
}

static int all_zero(const void *bytes, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		if (((const char *)bytes)[i])
			return 0;
	return 1;
}

/* A connection from one end to the other, and everything that its events say. */
static void tells(void)
{
	struct rdma_conn_param asked = {
		.private_data = "question", .private_data_len = 8, .responder_resources = 3, .initiator_depth = 5,
		.flow_control = 1, .retry_count = 6, .rnr_retry_count = 4,
	};
	struct rdma_conn_param given = {
		.private_data = "answer", .private_data_len = 6, .responder_resources = 5, .initiator_depth = 3,
		.flow_control = 1, .rnr_retry_count = 2,
	};
	struct rdma_cm_event *event;
	struct rdma_conn_param *conn;
	const char *rule = "event-conn-request";
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &asked);
	CHECK("event-id", event->id != pair.listener && event->id->verbs != NULL && event->id->port_num == 1);
	CHECK("event-listen-id", event->listen_id == pair.listener);
	CHECK("event-child-channel", event->id->channel == pair.passive_channel);
	ok("event-child-channel");
	conn = &event->param.conn;
	CHECK("event-status", event->status == 0);
	CHECK(rule, conn->private_data_len == 56 && memcmp(conn->private_data, "question", 8) == 0);
	CHECK(rule, all_zero(conn->private_data, 8, 56));
	CHECK(rule, conn->responder_resources == 5 && conn->initiator_depth == 3);
	CHECK(rule, conn->flow_control == 1 && conn->retry_count == 6 && conn->rnr_retry_count == 4);
	CHECK(rule, conn->qp_num == pair.active->qp->qp_num && conn->srq == 0);
	ok(rule);
	new_qp(rule, pair.passive);
	CHECK(rule, rdma_accept(pair.passive, &given) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);

	rule = "event-conn-established";
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	conn = &event->param.conn;
	CHECK("event-id", event->id == pair.active);
	CHECK("event-listen-id", event->listen_id == NULL);
	CHECK("event-status", event->status == 0);
	CHECK(rule, conn->private_data_len == 196 && memcmp(conn->private_data, "answer", 6) == 0);
	CHECK(rule, all_zero(conn->private_data, 6, 196));
	CHECK(rule, conn->responder_resources == 3 && conn->initiator_depth == 5);
	CHECK(rule, conn->flow_control == 1 && conn->rnr_retry_count == 2);
	CHECK(rule, conn->qp_num == pair.passive->qp->qp_num);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	ok(rule);

	rule = "event-disconnected";
	expect(rule, pair.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, rdma_disconnect(pair.active) == 0);
	event = event_of("event-conn-absent", pair.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK("event-conn-absent",
	      event->param.conn.private_data_len == 0 && event->param.conn.private_data == NULL);
	CHECK(rule, event->id == pair.passive && event->status == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	ok("event-conn-absent");
	/* Its own call has stopped the queue pair; the peer's is stopped by the peer's call, which is also the answer. */
	CHECK(rule, rdma_disconnect(pair.passive) == 0);
	expect(rule, pair.active_channel, RDMA_CM_EVENT_DISCONNECTED);
	{
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;

		CHECK(rule, ibv_query_qp(pair.active->qp, &attr, IBV_QP_STATE, &init) == 0);
		CHECK(rule, attr.qp_state == IBV_QPS_ERR);
		CHECK(rule, ibv_query_qp(pair.passive->qp, &attr, IBV_QP_STATE, &init) == 0);
		CHECK(rule, attr.qp_state == IBV_QPS_ERR);
	}
	ok(rule);
	expect("event-timewait", pair.active_channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	ok("event-timewait");
	end(rule, &pair);
	ok("event-id");
	ok("event-listen-id");
}

/* The three kinds of status. */
static void has_status(void)
{
	const char *rule = "event-status";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *datagram = new_id(rule, channel, RDMA_PS_UDP);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	uint16_t nobody = port_of(listener);
	struct rdma_cm_event *event;

	/* A port at which nobody listens any more. */
	destroy(rule, listener);
	resolve(rule, id, nobody);
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_REJECTED);
	CHECK(rule, event->status == 8);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	resolve(rule, datagram, nobody);
	new_qp(rule, datagram);
	CHECK(rule, rdma_connect(datagram, NULL) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(rule, event->status == 1);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	destroy(rule, datagram);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void is_resolved(void)
{
	const char *rule = "event-resolved";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

	CHECK(rule, id->verbs == NULL && id->port_num == 0);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, id->verbs != NULL && id->pd != NULL && id->port_num == 1);
	CHECK(rule, rdma_get_local_addr(id)->sa_family == rule_base.ss_family);
	CHECK(rule, rdma_get_peer_addr(id)->sa_family == rule_base.ss_family);
	CHECK(rule, id->route.num_paths == 0);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rule, id->route.num_paths == 1 && id->route.path_rec != NULL);
	CHECK(rule, memcmp(&id->route.path_rec->dgid, &id->route.addr.addr.ibaddr.dgid, 16) == 0);
	CHECK(rule, memcmp(&id->route.path_rec->sgid, &id->route.addr.addr.ibaddr.sgid, 16) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

/* Nobody has an address of the networks for documentation, and there may be no route to it. */
static void is_not_resolved(void)
{
	const char *rule = "event-resolve-error";
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(1) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(1) };
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct sockaddr *nowhere = rule_base.ss_family == AF_INET ? (struct sockaddr *)&in : (struct sockaddr *)&in6;

	inet_pton(AF_INET, "192.0.2.1", &in.sin_addr);
	inet_pton(AF_INET6, "2001:db8::1", &in6.sin6_addr);
	if (rdma_resolve_addr(id, address(0), nowhere, 500) == 0) {
		struct rdma_cm_event *event = event_of(rule, channel, RDMA_CM_EVENT_ADDR_ERROR);

		CHECK(rule, event->status < 0);
		CHECK(rule, rdma_ack_cm_event(event) == 0);
	}
	/* It can be tried again. */
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void tells_of_datagrams(void)
{
	const char *rule = "event-ud";
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 3 };
	struct rdma_cm_event *event;
	struct rdma_ud_param *ud;
	struct ibv_ah *handle;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_UDP, &param);
	CHECK(rule, event->param.ud.private_data_len == 180);
	CHECK(rule, memcmp(event->param.ud.private_data, "who", 3) == 0);
	new_qp(rule, pair.passive);
	param.private_data = "me";
	param.private_data_len = 2;
	param.qp_num = pair.passive->qp->qp_num;
	CHECK(rule, rdma_accept(pair.passive, &param) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	ud = &event->param.ud;
	CHECK(rule, ud->private_data_len == 136 && memcmp(ud->private_data, "me", 2) == 0);
	CHECK(rule, ud->qp_num == pair.passive->qp->qp_num);
	CHECK(rule, ud->qkey == RDMA_UDP_QKEY);
	CHECK(rule, ud->ah_attr.is_global == 1 && ud->ah_attr.port_num == pair.active->port_num);
	handle = ibv_create_ah(pair.active->pd, &ud->ah_attr);
	CHECK(rule, handle != NULL);
	CHECK(rule, ibv_destroy_ah(handle) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(is_got());
	PART(refuses());
	PART(is_interrupted());
	PART(goes_on());
	PART(is_cancelled());
	PART(is_waited_for());
	PART(counts_once());
	PART(tells());
	PART(has_status());
	PART(is_resolved());
	PART(is_not_resolved());
	PART(tells_of_datagrams());
	return 0;
}
