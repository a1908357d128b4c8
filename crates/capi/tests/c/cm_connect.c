/* Connecting, accepting, rejecting: parameters, outcomes, error numbers. */
#include "rule.h"

static int all_zero(const void *bytes, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		if (((const char *)bytes)[i])
			return 0;
	return 1;
}

static enum ibv_qp_state state_of(const char *rule, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(rule, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

static struct ibv_qp_attr attributes(const char *rule, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int mask = IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_RETRY_CNT |
		   IBV_QP_RNR_RETRY;

	CHECK(rule, ibv_query_qp(qp, &attr, mask, &init) == 0);
	return attr;
}

static struct ibv_device_attr limits(const char *rule, struct rdma_cm_id *id)
{
	struct ibv_device_attr attr;

	CHECK(rule, ibv_query_device(id->verbs, &attr) == 0);
	return attr;
}

/* How the peer answers; what it was asked is looked at by `look`. */
static void accepted(const char *rule, struct pair *pair, struct rdma_cm_event *request, struct rdma_conn_param *param)
{
	new_qp(rule, pair->passive);
	CHECK(rule, rdma_accept(pair->passive, param) == 0);
	CHECK(rule, rdma_ack_cm_event(request) == 0);
	expect(rule, pair->active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect(rule, pair->passive_channel, RDMA_CM_EVENT_ESTABLISHED);
}

static void is_established(void)
{
	const char *rule = "connect-established";
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, NULL);
	CHECK("accept-new-id", event->id != event->listen_id && event->listen_id == pair.listener);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	new_qp(rule, pair.passive);
	CHECK("accept-qp-ready", state_of(rule, pair.passive->qp) == IBV_QPS_INIT);
	FAILS("accept-new-id", rdma_accept(pair.listener, &(struct rdma_conn_param){ 0 }), EINVAL);
	CHECK("accept-established", rdma_accept(pair.passive, NULL) == 0);
	CHECK("accept-qp-ready", state_of(rule, pair.passive->qp) == IBV_QPS_RTS);
	ok("accept-qp-ready");
	ok("accept-new-id");
	expect(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, state_of(rule, pair.active->qp) == IBV_QPS_RTS);
	expect("accept-established", pair.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	ok(rule);
	ok("accept-established");
	/* Connected is not a state to connect or to accept in. */
	FAILS("connect-einval-state", rdma_connect(pair.active, NULL), EINVAL);
	FAILS("accept-einval-state", rdma_accept(pair.active, NULL), EINVAL);
	end(rule, &pair);
}

static void needs_a_state(void)
{
	const char *rule = "connect-einval-state";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_conn_param param = { .retry_count = 7 };

	CHECK(rule, rdma_resolve_addr(id, NULL, address(1), 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	new_qp(rule, id);
	FAILS(rule, rdma_connect(id, NULL), EINVAL);
	FAILS(rule, rdma_connect(id, &param), EINVAL);
	FAILS("accept-einval-state", rdma_accept(id, &param), EINVAL);
	ok("accept-einval-state");
	/* Then it can be done as it should be. */
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rule, rdma_connect(id, &param) == 0);
	expect(rule, channel, RDMA_CM_EVENT_REJECTED);
	destroy(rule, id);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

static void is_rejected(void)
{
	const char *rule = "connect-rejected";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	struct pair pair;

	/* Nobody listens. */
	event = NULL;
	resolve(rule, id, 1);
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_REJECTED);
	CHECK(rule, event->status == 8);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	destroy(rule, id);
	rdma_destroy_event_channel(channel);
	/* The peer does not want. */
	event = request_of("reject-peer", &pair, RDMA_PS_TCP, NULL);
	CHECK("reject-peer", rdma_ack_cm_event(event) == 0);
	CHECK("reject-peer", rdma_reject(pair.passive, "no", 2) == 0);
	event = event_of("reject-peer", pair.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK("reject-peer", event->status == 28);
	CHECK("reject-private-data", event->param.conn.private_data_len == 148);
	CHECK("reject-private-data", memcmp(event->param.conn.private_data, "no", 2) == 0);
	CHECK("reject-private-data", all_zero(event->param.conn.private_data, 2, 148));
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	CHECK(rule, state_of(rule, pair.active->qp) == IBV_QPS_ERR);
	CHECK("reject-no-event", !readable(pair.passive_channel->fd, A_WHILE));
	end("reject-no-event", &pair);
	ok(rule);
	ok("reject-peer");
	ok("reject-no-event");
	/* Without private data. */
	event = request_of("reject-private-data", &pair, RDMA_PS_TCP, NULL);
	CHECK("reject-private-data", rdma_ack_cm_event(event) == 0);
	CHECK("reject-private-data", rdma_reject(pair.passive, NULL, 0) == 0);
	event = event_of("reject-private-data", pair.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK("reject-private-data", event->param.conn.private_data_len == 148);
	CHECK("reject-private-data", all_zero(event->param.conn.private_data, 0, 148));
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok("reject-private-data");
}

static void is_refused_as_datagram(void)
{
	const char *rule = "reject-udp";
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_UDP, NULL);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	CHECK(rule, rdma_reject(pair.passive, "no", 2) == 0);
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(rule, event->status == 2);
	CHECK("connect-udp-refused", event->status > 0);
	CHECK("connect-udp-refused", event->param.ud.private_data_len == 136);
	CHECK("connect-udp-refused", memcmp(event->param.ud.private_data, "no", 2) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok(rule);
	ok("connect-udp-refused");
}

static void is_for_datagrams(void)
{
	const char *rule = "connect-udp";
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_UDP, NULL);
	new_qp(rule, pair.passive);
	param.qp_num = pair.passive->qp->qp_num;
	CHECK("accept-udp", rdma_accept(pair.passive, &param) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, event->param.ud.qp_num == param.qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(rule, event->param.ud.ah_attr.is_global == 1);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	CHECK("accept-udp", !readable(pair.passive_channel->fd, A_WHILE));
	end(rule, &pair);
	ok(rule);
	ok("accept-udp");
}

/* A queue pair that is the program's own: here none at all, as the peer is told just its number. */
static void responds(void)
{
	const char *rule = "connect-response";
	struct rdma_conn_param param = { .qp_num = 0x1234, .srq = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_event_channel *other = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, other, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	struct rdma_cm_id *child;

	resolve(rule, id, port_of(listener));
	FAILS("connect-einval-no-qp", rdma_connect(id, NULL), EINVAL);
	ok("connect-einval-no-qp");
	CHECK(rule, rdma_connect(id, &param) == 0);
	event = event_of(rule, channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK("connect-own-qp", event->param.conn.qp_num == 0x1234 && event->param.conn.srq == 1);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	param.qp_num = 0x5678;
	param.srq = 0;
	CHECK(rule, rdma_accept(child, &param) == 0);
	event = event_of(rule, other, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK("connect-own-qp", event->param.conn.qp_num == 0x5678 && event->param.conn.srq == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	CHECK(rule, rdma_establish(id) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, rdma_disconnect(id) == 0);
	expect(rule, channel, RDMA_CM_EVENT_DISCONNECTED);
	destroy(rule, id);
	destroy(rule, child);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	ok(rule);
}

static void tells_its_queue_pair(void)
{
	const char *rule = "connect-own-qp";
	/* What is said of another queue pair does not count. */
	struct rdma_conn_param param = { .qp_num = 0x1234, .srq = 1, .retry_count = 7 };
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &param);
	CHECK(rule, event->param.conn.qp_num == pair.active->qp->qp_num && event->param.conn.srq == 0);
	FAILS(rule, rdma_establish(pair.active), EINVAL);
	accepted(rule, &pair, event, NULL);
	end(rule, &pair);
	ok(rule);
}

static void has_defaults(void)
{
	const char *rule = "connect-param-null";
	struct ibv_device_attr device;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, NULL);
	device = limits(rule, pair.active);
	CHECK(rule, event->param.conn.responder_resources == device.max_qp_init_rd_atom);
	CHECK(rule, event->param.conn.initiator_depth == device.max_qp_rd_atom);
	CHECK(rule, event->param.conn.retry_count == 7 && event->param.conn.rnr_retry_count == 7);
	/* Without private data all that the message carries is zeros. */
	CHECK("connect-private-absent", event->param.conn.private_data_len == 56);
	CHECK("connect-private-absent", all_zero(event->param.conn.private_data, 0, 56));
	accepted("accept-param-null", &pair, event, NULL);
	attr = attributes("accept-param-null", pair.passive->qp);
	CHECK("accept-param-null", attr.max_dest_rd_atomic == device.max_qp_init_rd_atom ||
					   attr.max_dest_rd_atomic == device.max_qp_rd_atom);
	attr = attributes(rule, pair.active->qp);
	CHECK(rule, attr.retry_cnt == 7 && attr.rnr_retry == 7);
	end(rule, &pair);
	ok(rule);
	ok("connect-private-absent");
}

static void asks_for_less(void)
{
	const char *rule = "accept-param-null";
	struct rdma_conn_param param = { .responder_resources = 2, .initiator_depth = 4, .retry_count = 7 };
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &param);
	accepted(rule, &pair, event, NULL);
	attr = attributes(rule, pair.passive->qp);
	CHECK(rule, attr.max_dest_rd_atomic == 4 && attr.max_rd_atomic == 2);
	attr = attributes("connect-responder", pair.active->qp);
	CHECK("connect-responder", attr.max_dest_rd_atomic == 2);
	CHECK("connect-initiator", attr.max_rd_atomic == 4);
	end(rule, &pair);
	ok(rule);
	ok("connect-responder");
	ok("connect-initiator");
}

static void is_open(void)
{
	const char *rule = "connect-open";
	struct rdma_conn_param param = { .responder_resources = 255, .initiator_depth = 255, .retry_count = 7 };
	struct ibv_device_attr device;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &param);
	device = limits(rule, pair.active);
	CHECK(rule, event->param.conn.responder_resources == device.max_qp_init_rd_atom);
	CHECK(rule, event->param.conn.initiator_depth == device.max_qp_rd_atom);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	/* On accept it stands for what was asked. */
	new_qp(rule, pair.passive);
	CHECK("accept-resources", rdma_accept(pair.passive, &param) == 0);
	expect(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect(rule, pair.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	attr = attributes("accept-resources", pair.passive->qp);
	CHECK("accept-resources", attr.max_rd_atomic == device.max_qp_rd_atom ||
					  attr.max_rd_atomic == device.max_qp_init_rd_atom);
	end(rule, &pair);
	ok(rule);
}

static void is_in_the_receivers_view(void)
{
	const char *rule = "connect-swapped";
	struct rdma_conn_param param = {
		.responder_resources = 1, .initiator_depth = 6, .flow_control = 1, .retry_count = 9,
		.rnr_retry_count = 200,
	};
	struct rdma_conn_param given = { .responder_resources = 4, .initiator_depth = 1, .rnr_retry_count = 3 };
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &param);
	CHECK(rule, event->param.conn.responder_resources == 6 && event->param.conn.initiator_depth == 1);
	CHECK("connect-retry", event->param.conn.flow_control == 1);
	CHECK("connect-retry", event->param.conn.retry_count == 7 && event->param.conn.rnr_retry_count == 7);
	accepted("accept-rnr", &pair, event, &given);
	attr = attributes("accept-resources", pair.passive->qp);
	CHECK("accept-resources", attr.max_dest_rd_atomic == 4 && attr.max_rd_atomic == 1);
	attr = attributes("accept-rnr", pair.active->qp);
	CHECK("accept-rnr", attr.rnr_retry == 3);
	CHECK("accept-resources", attr.max_rd_atomic == 4 && attr.max_dest_rd_atomic == 1);
	end(rule, &pair);
	ok(rule);
	ok("connect-retry");
	ok("accept-rnr");
	ok("accept-resources");
}

static void refuses_parameters(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	const char *rule = "connect-einval-resources";
	char data[256];
	struct ibv_device_attr device;
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_event_channel *other = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, other, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	struct rdma_cm_id *child;

	memset(data, 7, sizeof data);
	resolve(rule, id, port_of(listener));
	new_qp(rule, id);
	device = limits(rule, id);
	param.responder_resources = (uint8_t)(device.max_qp_rd_atom + 1);
	FAILS(rule, rdma_connect(id, &param), EINVAL);
	param.responder_resources = 1;
	param.initiator_depth = (uint8_t)(device.max_qp_init_rd_atom + 1);
	FAILS(rule, rdma_connect(id, &param), EINVAL);
	param.initiator_depth = 1;
	ok(rule);
	param.private_data = data;
	param.private_data_len = 57;
	FAILS("connect-einval-private", rdma_connect(id, &param), EINVAL);
	param.private_data_len = 255;
	FAILS("connect-einval-private", rdma_connect(id, &param), EINVAL);
	ok("connect-einval-private");
	/* Nothing was sent, and it can be repeated; 56 bytes are what there is room for. */
	param.private_data_len = 56;
	CHECK("connect-private-data", rdma_connect(id, &param) == 0);
	event = event_of("connect-private-data", channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK("connect-private-data", event->param.conn.private_data_len == 56);
	CHECK("connect-private-data", memcmp(event->param.conn.private_data, data, 56) == 0);
	CHECK("connect-private-data", rdma_ack_cm_event(event) == 0);
	ok("connect-private-data");

	rule = "accept-einval-resources";
	param.private_data_len = 0;
	param.responder_resources = (uint8_t)(device.max_qp_rd_atom + 1);
	FAILS(rule, rdma_accept(child, &param), EINVAL);
	param.responder_resources = 1;
	param.initiator_depth = (uint8_t)(device.max_qp_init_rd_atom + 1);
	FAILS(rule, rdma_accept(child, &param), EINVAL);
	ok(rule);
	rule = "accept-private-data";
	param.initiator_depth = 1;
	param.private_data_len = 196;
	new_qp(rule, child);
	CHECK(rule, rdma_accept(child, &param) == 0);
	event = event_of(rule, other, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, event->param.conn.private_data_len == 196);
	CHECK(rule, memcmp(event->param.conn.private_data, data, 196) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	expect(rule, channel, RDMA_CM_EVENT_ESTABLISHED);
	destroy(rule, id);
	destroy(rule, child);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
}

static void refuses_long_answers(void)
{
	const char *rule = "accept-einval-private";
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	struct pair pair;
	char data[256];

	memset(data, 7, sizeof data);
	event = request_of(rule, &pair, RDMA_PS_TCP, NULL);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	param.private_data = data;
	param.private_data_len = 197;
	FAILS(rule, rdma_accept(pair.passive, &param), EINVAL);
	end(rule, &pair);
	event = request_of(rule, &pair, RDMA_PS_TCP, NULL);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	FAILS(rule, rdma_reject(pair.passive, data, 149), EINVAL);
	CHECK(rule, rdma_reject(pair.passive, data, 148) == 0);
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(rule, memcmp(event->param.conn.private_data, data, 148) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok(rule);
}

static void fills_up(void)
{
	struct rdma_conn_param param = { .private_data = "abc", .private_data_len = 3, .retry_count = 7 };
	const char *rule = "connect-private-padded";
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &param);
	CHECK(rule, event->param.conn.private_data_len == 56);
	CHECK(rule, memcmp(event->param.conn.private_data, "abc", 3) == 0);
	CHECK(rule, all_zero(event->param.conn.private_data, 3, 56));
	accepted("accept-private-data", &pair, event, NULL);
	end(rule, &pair);
	event = request_of(rule, &pair, RDMA_PS_UDP, &param);
	CHECK(rule, event->param.ud.private_data_len == 180);
	CHECK(rule, memcmp(event->param.ud.private_data, "abc", 3) == 0);
	CHECK(rule, all_zero(event->param.ud.private_data, 3, 180));
	new_qp(rule, pair.passive);
	param.private_data = "defg";
	param.private_data_len = 4;
	param.qp_num = pair.passive->qp->qp_num;
	CHECK(rule, rdma_accept(pair.passive, &param) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	event = event_of("accept-private-data", pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK("accept-private-data", event->param.ud.private_data_len == 136);
	CHECK("accept-private-data", memcmp(event->param.ud.private_data, "defg", 4) == 0);
	CHECK("accept-private-data", all_zero(event->param.ud.private_data, 4, 136));
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok(rule);
	ok("accept-private-data");
}

/* The request's own parameters, private data included, go back. */
static void gives_back(void)
{
	struct rdma_conn_param param = {
		.private_data = "echo", .private_data_len = 4, .responder_resources = 2, .initiator_depth = 3,
		.retry_count = 7, .rnr_retry_count = 5,
	};
	const char *rule = "accept-param-in-event";
	struct rdma_cm_event *event;
	struct pair pair;

	event = request_of(rule, &pair, RDMA_PS_TCP, &param);
	new_qp(rule, pair.passive);
	CHECK(rule, rdma_accept(pair.passive, &event->param.conn) == 0);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	event = event_of(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, memcmp(event->param.conn.private_data, "echo", 5) == 0);
	CHECK(rule, event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	CHECK(rule, rdma_ack_cm_event(event) == 0);
	end(rule, &pair);
	ok(rule);
}

/* The other side of a synchronous identifier: accepts, then rejects. */
static void *answers(void *with)
{
	struct rdma_cm_id *listener = with;
	struct rdma_event_channel *channel = listener->channel;
	struct rdma_cm_event *event = event_of("connect-sync", channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *first = event->id, *second;

	CHECK("connect-sync", rdma_ack_cm_event(event) == 0);
	new_qp("connect-sync", first);
	CHECK("connect-sync", rdma_accept(first, NULL) == 0);
	expect("connect-sync", channel, RDMA_CM_EVENT_ESTABLISHED);
	expect("connect-sync", channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK("connect-sync", rdma_disconnect(first) == 0);
	destroy("connect-sync", first);
	event = event_of("connect-sync", channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	second = event->id;
	CHECK("connect-sync", rdma_ack_cm_event(event) == 0);
	CHECK("connect-sync", rdma_reject(second, "no", 2) == 0);
	destroy("connect-sync", second);
	return NULL;
}

static void waits(void)
{
	const char *rule = "connect-sync";
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id(rule, NULL, RDMA_PS_TCP);
	uint16_t port = port_of(listener);
	pthread_t made = thread(rule, answers, listener);

	CHECK(rule, rdma_resolve_addr(id, NULL, address(port), 2000) == 0);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	new_qp(rule, id);
	CHECK(rule, rdma_connect(id, NULL) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, id->event->param.conn.private_data_len == 196);
	CHECK(rule, state_of(rule, id->qp) == IBV_QPS_RTS);
	CHECK(rule, rdma_disconnect(id) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	destroy(rule, id);
	id = new_id(rule, NULL, RDMA_PS_TCP);
	CHECK(rule, rdma_resolve_addr(id, NULL, address(port), 2000) == 0);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	new_qp(rule, id);
	FAILS(rule, rdma_connect(id, NULL), ECONNREFUSED);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_REJECTED);
	CHECK(rule, id->event->status == 28 && memcmp(id->event->param.conn.private_data, "no", 2) == 0);
	destroy(rule, id);
	CHECK(rule, pthread_join(made, NULL) == 0);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
	ok(rule);
}

/* A synchronous listener's side: first a connection, then datagrams. */
static void *asks(void *with)
{
	uint16_t *ports = with;
	struct rdma_event_channel *channel = new_channel("accept-sync");
	struct rdma_cm_id *id = new_id("accept-sync", channel, RDMA_PS_TCP);

	resolve("accept-sync", id, ports[0]);
	new_qp("accept-sync", id);
	CHECK("accept-sync", rdma_connect(id, NULL) == 0);
	expect("accept-sync", channel, RDMA_CM_EVENT_ESTABLISHED);
	expect("accept-sync", channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK("accept-sync", rdma_disconnect(id) == 0);
	destroy("accept-sync", id);
	id = new_id("accept-sync", channel, RDMA_PS_UDP);
	resolve("accept-sync", id, ports[1]);
	new_qp("accept-sync", id);
	CHECK("accept-sync", rdma_connect(id, NULL) == 0);
	expect("accept-sync", channel, RDMA_CM_EVENT_ESTABLISHED);
	destroy("accept-sync", id);
	rdma_destroy_event_channel(channel);
	return NULL;
}

static void accepts_and_waits(void)
{
	const char *rule = "accept-sync";
	struct rdma_cm_id *tcp = new_listener(rule, NULL, RDMA_PS_TCP);
	struct rdma_cm_id *udp = new_listener(rule, NULL, RDMA_PS_UDP);
	uint16_t ports[2] = { port_of(tcp), port_of(udp) };
	pthread_t made = thread(rule, asks, ports);
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id;

	CHECK(rule, rdma_get_request(tcp, &id) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	new_qp(rule, id);
	CHECK(rule, rdma_accept(id, &id->event->param.conn) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rule, rdma_disconnect(id) == 0);
	CHECK(rule, id->event != NULL && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	destroy(rule, id);
	destroy(rule, tcp);
	CHECK(rule, rdma_get_request(udp, &id) == 0);
	new_qp(rule, id);
	param.qp_num = id->qp->qp_num;
	CHECK(rule, rdma_accept(id, &param) == 0);
	CHECK(rule, pthread_join(made, NULL) == 0);
	destroy(rule, id);
	destroy(rule, udp);
	ok(rule);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(is_established());
	PART(needs_a_state());
	PART(is_rejected());
	PART(is_refused_as_datagram());
	PART(is_for_datagrams());
	PART(responds());
	PART(tells_its_queue_pair());
	PART(has_defaults());
	PART(asks_for_less());
	PART(is_open());
	PART(is_in_the_receivers_view());
	PART(refuses_parameters());
	PART(refuses_long_answers());
	PART(fills_up());
	PART(gives_back());
	PART(waits());
	PART(accepts_and_waits());
	return 0;
}
