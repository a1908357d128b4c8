/* Queue pairs of identifiers: rdma_create_qp and its kin, rdma_init_qp_attr, ECE; devices, ports, names of events. */
#include "rule.h"

static struct ibv_qp_init_attr wanted(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
	};
}

static enum ibv_qp_state state_of(const char *rule, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(rule, ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

static void creation(void)
{
	struct rdma_event_channel *channel = new_channel("qp-twice");
	struct rdma_cm_id *listener = new_listener("qp-twice", channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id("qp-twice", channel, RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = wanted(IBV_QPT_RC);
	struct ibv_qp_init_attr_ex ex = { 0 };
	struct ibv_context *other;
	struct ibv_pd *pd;
	struct ibv_cq *one, *two;

	resolve("qp-twice", id, port_of(listener));
	CHECK("qp-pd", id->pd != NULL);
	ok("qp-pd");

	other = ibv_open_device(id->verbs->device);
	pd = ibv_alloc_pd(other);
	CHECK("qp-foreign-pd", other && other != id->verbs && pd);
	FAILS("qp-foreign-pd", rdma_create_qp(id, pd, &attr), EINVAL);
	CHECK("qp-foreign-pd", !id->qp && !id->send_cq && !id->recv_cq);
	CHECK("qp-foreign-pd", ibv_dealloc_pd(pd) == 0 && ibv_close_device(other) == 0);
	ok("qp-foreign-pd");

	one = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	two = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
	CHECK("qp-other-cq", one && two);
	id->recv_cq = one;
	attr.recv_cq = two;
	FAILS("qp-other-cq", rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK("qp-other-cq", id->recv_cq == one && !id->qp);
	id->recv_cq = NULL;
	ok("qp-other-cq");

	/* What cannot be made leaves nothing behind. */
	attr = wanted(IBV_QPT_RC);
	attr.cap.max_send_sge = 100000;
	FAILS("qp-nothing-left", rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK("qp-nothing-left", !id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
	attr = wanted(IBV_QPT_UD);
	CHECK("qp-nothing-left", rdma_create_qp(id, NULL, &attr) == -1);
	CHECK("qp-nothing-left", !id->qp && !id->send_cq && !id->recv_cq);
	ok("qp-nothing-left");

	attr = wanted(IBV_QPT_RC);
	CHECK("qp-twice", rdma_create_qp(id, NULL, &attr) == 0);
	attr = wanted(IBV_QPT_RC);
	FAILS("qp-twice", rdma_create_qp(id, NULL, &attr), EINVAL);
	ok("qp-twice");
	CHECK("qp-init", state_of("qp-init", id->qp) == IBV_QPS_INIT);
	ok("qp-init");

	rdma_destroy_qp(id);
	CHECK("qp-destroy", !id->qp && !id->recv_cq && !id->recv_cq_channel && !id->send_cq && !id->send_cq_channel);
	memcpy(&ex, &attr, sizeof attr);
	ex.send_cq = one;
	ex.recv_cq = two;
	CHECK("qp-ex", rdma_create_qp_ex(id, &ex) == 0);
	CHECK("qp-ex", id->qp->pd == id->pd && (ex.comp_mask & IBV_QP_INIT_ATTR_PD) && ex.pd == id->pd);
	CHECK("qp-ex", id->qp->send_cq == one && id->qp->recv_cq == two && !id->send_cq && !id->recv_cq);
	CHECK("qp-ex", ibv_destroy_cq(one) == EBUSY);
	rdma_destroy_qp(id);
	CHECK("qp-ex", ibv_destroy_cq(one) == 0 && ibv_destroy_cq(two) == 0);
	ok("qp-ex");
	ok("qp-destroy");
	destroy("qp-twice", id);
	destroy("qp-twice", listener);
	rdma_destroy_event_channel(channel);
}

static void ud_states(void)
{
	struct rdma_event_channel *channel = new_channel("qp-ud-rts");
	struct rdma_cm_id *listener = new_listener("qp-ud-rts", channel, RDMA_PS_UDP);
	struct rdma_cm_id *id = new_id("qp-ud-rts", channel, RDMA_PS_UDP);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	resolve("qp-ud-rts", id, port_of(listener));
	new_qp("qp-ud-rts", id);
	CHECK("qp-ud-rts", state_of("qp-ud-rts", id->qp) == IBV_QPS_RTS);
	CHECK("qp-ud-rts", ibv_query_qp(id->qp, &attr, IBV_QP_QKEY, &init) == 0 && attr.qkey == RDMA_UDP_QKEY);
	ok("qp-ud-rts");
	destroy("qp-ud-rts", id);
	destroy("qp-ud-rts", listener);
	rdma_destroy_event_channel(channel);
}

/* The attributes that move a queue pair of the program's own, and the calls that complete its connection. */
static void recipes(void)
{
	struct pair pair = { .passive_channel = new_channel("qp-recipe"), .active_channel = new_channel("qp-recipe") };
	struct rdma_conn_param param = { .responder_resources = 3, .initiator_depth = 2, .retry_count = 6,
					 .rnr_retry_count = 5 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct rdma_cm_id *id[2];
	int mask = 0;

	pair.listener = new_listener("qp-recipe", pair.passive_channel, RDMA_PS_TCP);
	pair.active = new_id("qp-recipe", pair.active_channel, RDMA_PS_TCP);
	resolve("qp-recipe", pair.active, port_of(pair.listener));
	CHECK("qp-recipe-init", rdma_init_qp_attr(pair.active, &attr, &mask) == 0);
	CHECK("qp-recipe-init", mask == (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
	CHECK("qp-recipe-init", attr.qp_state == IBV_QPS_INIT && attr.port_num == 1 && attr.qp_access_flags == 0);
	ok("qp-recipe-init");
	attr.qp_state = IBV_QPS_RTR;
	FAILS("qp-recipe-early", rdma_init_qp_attr(pair.active, &attr, &mask), EINVAL);
	attr.qp_state = 7;
	FAILS("qp-recipe-early", rdma_init_qp_attr(pair.active, &attr, &mask), EINVAL);
	ok("qp-recipe-early");

	/* A program without a queue pair in its identifier says the number itself. */
	cq = ibv_create_cq(pair.active->verbs, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = wanted(IBV_QPT_RC);
	init.send_cq = init.recv_cq = cq;
	qp[0] = ibv_create_qp(pair.active->pd, &init);
	CHECK("qp-own", cq && qp[0]);
	param.qp_num = qp[0]->qp_num;
	CHECK("qp-own", rdma_connect(pair.active, &param) == 0);
	event = event_of("qp-own", pair.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.passive = event->id;
	CHECK("qp-own", event->param.conn.qp_num == qp[0]->qp_num);
	CHECK("qp-own", rdma_ack_cm_event(event) == 0);
	init = wanted(IBV_QPT_RC);
	init.send_cq = init.recv_cq = cq;
	qp[1] = ibv_create_qp(pair.passive->pd, &init);
	CHECK("qp-own", qp[1] != NULL);
	id[0] = pair.active;
	id[1] = pair.passive;
	for (int side = 1; side >= 0; side--) {
		const enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };

		if (side == 0)
			expect("qp-own", pair.active_channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
		for (int i = 0; i < 3; i++) {
			memset(&attr, 0xFF, sizeof attr);
			attr.qp_state = states[i];
			CHECK("qp-own", rdma_init_qp_attr(id[side], &attr, &mask) == 0);
			if (i == 0)
				CHECK("qp-recipe-access", attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE);
			if (i == 1) {
				CHECK("qp-recipe-rtr", attr.dest_qp_num == qp[!side]->qp_num && attr.ah_attr.is_global);
				CHECK("qp-recipe-rtr", mask & IBV_QP_MIN_RNR_TIMER);
				if (side == 0)
					CHECK("qp-recipe-rtr", attr.max_dest_rd_atomic == 1);
			}
			if (i == 2 && side == 0)
				CHECK("qp-recipe-rts", attr.retry_cnt == 6 && attr.max_rd_atomic == 2 &&
							       attr.rnr_retry == 4);
			if (i == 2 && side == 1)
				CHECK("qp-recipe-rts", attr.retry_cnt == 6 && attr.rnr_retry == 5);
			CHECK("qp-own", ibv_modify_qp(qp[side], &attr, mask) == 0);
		}
		if (side == 1) {
			/* This side issues one and answers two. */
			param = (struct rdma_conn_param){ .responder_resources = 2, .initiator_depth = 1,
							  .rnr_retry_count = 4, .qp_num = qp[1]->qp_num };
			CHECK("qp-own", rdma_accept(pair.passive, &param) == 0);
		}
	}
	CHECK("qp-establish", rdma_establish(pair.active) == 0);
	expect("qp-establish", pair.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	ok("qp-recipe-access");
	ok("qp-recipe-rtr");
	ok("qp-recipe-rts");
	ok("qp-own");
	ok("qp-establish");

	CHECK("qp-own", ibv_destroy_qp(qp[0]) == 0 && ibv_destroy_qp(qp[1]) == 0);
	end("qp-own", &pair);
}

static void establish_einval(void)
{
	struct pair pair = connected("qp-establish-einval");

	FAILS("qp-establish-einval", rdma_establish(pair.active), EINVAL);
	end("qp-establish-einval", &pair);
	ok("qp-establish-einval");
}

static void ece(void)
{
	struct pair pair = { .passive_channel = new_channel("qp-ece"), .active_channel = new_channel("qp-ece") };
	struct ibv_ece mine = { .vendor_id = 0x123456, .options = 0xABCD }, got = { .comp_mask = 5 }, bad = { 0 };
	struct rdma_conn_param param = { .qp_num = 0x77 };
	struct rdma_cm_event *event;

	pair.listener = new_listener("qp-ece", pair.passive_channel, RDMA_PS_TCP);
	pair.active = new_id("qp-ece", pair.active_channel, RDMA_PS_TCP);
	resolve("qp-ece", pair.active, port_of(pair.listener));
	FAILS("qp-ece-einval", rdma_set_local_ece(NULL, &mine), EINVAL);
	FAILS("qp-ece-einval", rdma_set_local_ece(pair.active, NULL), EINVAL);
	FAILS("qp-ece-einval", rdma_set_local_ece(pair.active, &bad), EINVAL);
	bad = mine;
	bad.comp_mask = 1;
	FAILS("qp-ece-einval", rdma_set_local_ece(pair.active, &bad), EINVAL);
	FAILS("qp-ece-einval", rdma_get_remote_ece(pair.active, NULL), EINVAL);
	CHECK("qp-ece", rdma_get_remote_ece(pair.active, &got) == 0);
	CHECK("qp-ece", got.vendor_id == 0 && got.options == 0 && got.comp_mask == 0);
	CHECK("qp-ece", rdma_set_local_ece(pair.active, &mine) == 0);
	CHECK("qp-ece", rdma_connect(pair.active, &param) == 0);
	event = event_of("qp-ece", pair.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair.passive = event->id;
	CHECK("qp-ece", rdma_ack_cm_event(event) == 0);
	CHECK("qp-ece", rdma_get_remote_ece(pair.passive, &got) == 0);
	CHECK("qp-ece", got.vendor_id == 0x123456 && got.options == 0xABCD);
	new_qp("qp-ece-einval", pair.passive);
	FAILS("qp-ece-einval", rdma_get_remote_ece(pair.passive, &got), EINVAL);
	FAILS("qp-ece-einval", rdma_set_local_ece(pair.passive, &mine), EINVAL);
	end("qp-ece", &pair);
	ok("qp-ece-einval");
	ok("qp-ece");
}

static void devices(void)
{
	struct rdma_event_channel *channel = new_channel("dev-get");
	struct rdma_cm_id *listener = new_listener("dev-get", channel, RDMA_PS_TCP);
	struct rdma_cm_id *id = new_id("dev-get", channel, RDMA_PS_TCP);
	struct ibv_context **list, **again;
	int count = -1, listed, found = 0;
	struct ibv_device **names = ibv_get_device_list(&listed);

	list = rdma_get_devices(&count);
	CHECK("dev-get", list && count > 0 && count == listed && list[count] == NULL);
	for (int i = 0; i < count; i++)
		CHECK("dev-get", list[i] && list[i]->device && ibv_get_device_name(list[i]->device)[0]);
	ok("dev-get");
	again = rdma_get_devices(NULL);
	CHECK("dev-same", again != NULL && again != list && !memcmp(again, list, (count + 1) * sizeof *list));
	rdma_free_devices(again);
	resolve("dev-same", id, port_of(listener));
	for (int i = 0; i < count; i++)
		found += list[i] == id->verbs;
	CHECK("dev-same", found == 1);
	rdma_free_devices(list);
	struct ibv_device_attr attr;
	CHECK("dev-same", ibv_query_device(id->verbs, &attr) == 0);
	ok("dev-same");
	ibv_free_device_list(names);

	CHECK("id-ports", ntohs(rdma_get_src_port(listener)) == ntohs(rdma_get_dst_port(id)) && rdma_get_dst_port(listener) == 0);
	CHECK("id-ports", rdma_get_src_port(id) != 0);
	ok("id-ports");
	destroy("dev-get", id);
	destroy("dev-get", listener);
	rdma_destroy_event_channel(channel);
}

static void event_names(void)
{
	const char *names[] = {
		"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
		"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL",
		"MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
	};

	for (int i = 0; i < 16; i++) {
		const char *name = rdma_event_str(i);

		CHECK("event-str", !strncmp(name, "RDMA_CM_EVENT_", 14) && !strcmp(name + 14, names[i]));
	}
	CHECK("event-str", !strcmp(rdma_event_str(18), "UNKNOWN EVENT"));
	CHECK("event-str", !strcmp(rdma_event_str(-1), "UNKNOWN EVENT"));
	ok("event-str");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(event_names());
	PART(creation());
	PART(ud_states());
	PART(recipes());
	PART(establish_einval());
	PART(ece());
	PART(devices());
	return 0;
}
