/* Identifiers: made, and destroyed in every state. */
#include "rule.h"

static void is_made(void)
{
	const char *rule = "id-create";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id;
	int mine;

	CHECK("id-context", rdma_create_id(channel, &id, &mine, RDMA_PS_TCP) == 0);
	CHECK("id-context", id->context == &mine);
	CHECK(rule, id->channel == channel && id->verbs == NULL && id->qp == NULL && id->event == NULL);
	CHECK("id-port-space-tcp", id->ps == RDMA_PS_TCP && id->qp_type == IBV_QPT_RC);
	destroy(rule, id);
	id = new_id(rule, channel, RDMA_PS_UDP);
	CHECK("id-port-space-udp", id->ps == RDMA_PS_UDP && id->qp_type == IBV_QPT_UD);
	destroy(rule, id);
	id = new_id(rule, channel, RDMA_PS_IPOIB);
	CHECK("id-port-space-udp", id->ps == RDMA_PS_IPOIB && id->qp_type == IBV_QPT_UD);
	destroy(rule, id);
	/* Nothing is kept. */
	for (int i = 0; i < 3000; i++)
		destroy(rule, new_id(rule, channel, RDMA_PS_TCP));
	ok(rule);
	ok("id-context");
	ok("id-port-space-tcp");
	ok("id-port-space-udp");
	FAILS("id-einval", rdma_create_id(channel, &id, NULL, (enum rdma_port_space)0x0107), EINVAL);
	ok("id-einval");
	rdma_destroy_event_channel(channel);
}

static void does_not_wait(void)
{
	const char *rule = "id-channel";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);

	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, id->event == NULL);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void waits(void)
{
	const char *rule = "id-sync";
	struct rdma_cm_id *id = new_id(rule, NULL, RDMA_PS_TCP);

	CHECK(rule, id->channel != NULL);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, id->verbs != NULL);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rule, id->route.num_paths == 1);
	/* A call that fails at once leaves the event. */
	FAILS(rule, rdma_resolve_route(id, 2000), EINVAL);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	ok(rule);
	/* Its own event does not hold it up. */
	CHECK("id-destroy-sync", rdma_destroy_id(id) == 0);
	ok("id-destroy-sync");
}

static void takes_a_type(void)
{
	const char *rule = "id-port-space-ib";
	struct rdma_addrinfo info = {
		.ai_flags = RAI_PASSIVE, .ai_family = rule_base.ss_family, .ai_qp_type = IBV_QPT_UD,
		.ai_port_space = RDMA_PS_IB,
	};
	struct rdma_cm_id *id;

	info.ai_src_addr = address(0);
	info.ai_src_len =
		rule_base.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	CHECK(rule, rdma_create_ep(&id, &info, NULL, NULL) == 0);
	CHECK(rule, id->ps == RDMA_PS_IB && id->qp_type == IBV_QPT_UD);
	rdma_destroy_ep(id);
	info.ai_qp_type = IBV_QPT_RC;
	info.ai_src_addr = address(0);
	CHECK(rule, rdma_create_ep(&id, &info, NULL, NULL) == 0);
	CHECK(rule, id->ps == RDMA_PS_IB && id->qp_type == IBV_QPT_RC);
	rdma_destroy_ep(id);
	ok(rule);
}

static void has_ports(void)
{
	const char *rule = "id-port-spaces-apart";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *tcp = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *udp = new_id(rule, channel, RDMA_PS_UDP);
	struct rdma_cm_id *second = new_id(rule, channel, RDMA_PS_TCP);

	CHECK(rule, rdma_bind_addr(udp, address(port_of(tcp))) == 0);
	CHECK(rule, rdma_get_src_port(udp) == rdma_get_src_port(tcp));
	errno = 0;
	CHECK(rule, rdma_bind_addr(second, address(port_of(tcp))) == -1);
	CHECK(rule, errno == EADDRINUSE || errno == EADDRNOTAVAIL);
	destroy(rule, udp);
	destroy(rule, second);
	destroy(rule, tcp);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void is_destroyed(void)
{
	const char *rule = "id-destroy";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_listener(rule, channel, RDMA_PS_TCP);
	uint16_t port = port_of(id);
	struct rdma_cm_event *event;

	destroy(rule, id);
	id = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, rdma_bind_addr(id, address(port)) == 0);
	destroy(rule, id);
	/* With a resolution under way, and with an event that nobody took. */
	id = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	destroy(rule, id);
	id = new_id(rule, channel, RDMA_PS_TCP);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	CHECK(rule, readable(channel->fd, LONG));
	destroy(rule, id);
	CHECK(rule, fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	FAILS(rule, rdma_get_cm_event(channel, &event), EAGAIN);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void is_destroyed_while_connected(void)
{
	const char *rule = "id-destroy-connected";
	struct pair pair = connected(rule);

	destroy(rule, pair.active);
	pair.active = NULL;
	expect(rule, pair.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	end(rule, &pair);
	ok(rule);
}

static void is_destroyed_while_asked(void)
{
	const char *rule = "id-destroy-requested";
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, NULL);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, pair.passive);
	pair.passive = NULL;
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(rule, event->status == 28);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	/* A request that nobody took goes with the listener. */
	pair.passive_channel = new_channel(rule);
	pair.active_channel = new_channel(rule);
	pair.listener = new_listener(rule, pair.passive_channel, RDMA_PS_TCP);
	pair.active = new_id(rule, pair.active_channel, RDMA_PS_TCP);
	resolve(rule, pair.active, port_of(pair.listener));
	new_qp(rule, pair.active);
	CHECK(rule, rdma_connect(pair.active, NULL) == 0);
	CHECK(rule, readable(pair.passive_channel->fd, LONG));
	destroy(rule, pair.listener);
	pair.listener = NULL;
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(rule, event->status == 28);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok(rule);
}

/* The identifier does not take its queue pair along. */
static void leaves_the_queue_pair(void)
{
	const char *rule = "id-destroy-qp-first";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	resolve(rule, id, 1);
	cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	CHECK(rule, cq != NULL);
	init = (struct ibv_qp_init_attr){
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	CHECK(rule, rdma_create_qp(id, id->pd, &init) == 0);
	qp = id->qp;
	CHECK(rule, rdma_destroy_id(id) == 0);
	CHECK(rule, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(rule, attr.qp_state == IBV_QPS_INIT);
	CHECK(rule, ibv_destroy_qp(qp) == 0);
	CHECK(rule, ibv_destroy_cq(cq) == 0);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(is_made());
	PART(does_not_wait());
	PART(waits());
	PART(takes_a_type());
	PART(has_ports());
	PART(is_destroyed());
	PART(is_destroyed_while_connected());
	PART(is_destroyed_while_asked());
	PART(leaves_the_queue_pair());
	return 0;
}
