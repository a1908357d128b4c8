/* Shared receive queues, plain and of XRC. */
#include "data.h"

static struct side side;

static struct ibv_srq *new_srq(uint32_t max_wr)
{
	struct ibv_srq_init_attr attr = { .srq_context = &side, .attr = { .max_wr = max_wr, .max_sge = 2 } };

	return ibv_create_srq(side.pd, &attr);
}

static void post(const char *rule, struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = sge_at(&side, 65536 + 64 * (int)(wr_id % 100), 64);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(rule, ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void plain(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_srq *srq = new_srq(8);
	struct ibv_srq_attr attr;
	struct ibv_async_event event;
	struct ibv_device_attr device;

	CHECK("srq-einval", ibv_query_device(side.context, &device) == 0);
	NO_OBJECT("srq-einval", new_srq(device.max_srq_wr + 1), EINVAL);
	CHECK("srq-einval", srq != NULL);
	ok("srq-einval");

	struct ibv_qp_init_attr init = init_attr(IBV_QPT_RC, cq, 16);
	struct ibv_qp *a = ibv_create_qp(side.pd, &init);
	init.srq = srq;
	struct ibv_qp *b = ibv_create_qp(side.pd, &init), *c = ibv_create_qp(side.pd, &init);
	struct ibv_qp *d = new_qp_of(&side, IBV_QPT_RC, cq, 16);
	CHECK("srq-shared", a && b && c);
	join(&side, a, b);
	join(&side, d, c);
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	CHECK("srq-shared", ibv_post_recv(b, &recv, &bad_recv) != 0 && bad_recv == &recv);
	for (uint64_t i = 0; i < 8; i++)
		post("srq-shared", srq, i);
	struct ibv_recv_wr more = { .wr_id = 8 };
	ANSWERS("srq-shared", ibv_post_srq_recv(srq, &more, &bad_recv), ENOMEM);
	CHECK("srq-shared", bad_recv == &more);
	int of_b = 0, of_c = 0;
	for (int i = 0; i < 6; i++) {
		post_send_at(&side, i % 2 ? a : d, 100, 0, 8);
		for (int k = 0; k < 2; k++) {
			struct ibv_wc wc = success_of("srq-shared", cq);

			if (wc.opcode != IBV_WC_RECV)
				continue;
			CHECK("srq-shared", wc.wr_id == (uint64_t)i);
			of_b += wc.qp_num == b->qp_num;
			of_c += wc.qp_num == c->qp_num;
		}
	}
	CHECK("srq-shared", of_b == 3 && of_c == 3);
	ok("srq-shared");

	/* Two are left. */
	attr.srq_limit = 2;
	CHECK("srq-limit", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK("srq-limit", ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 2 && attr.max_wr >= 8);
	post_send_at(&side, a, 100, 0, 8);
	success_of("srq-limit", cq);
	success_of("srq-limit", cq);
	do {
		CHECK("srq-limit", readable(side.context->async_fd, LONG));
		CHECK("srq-limit", ibv_get_async_event(side.context, &event) == 0);
		if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED)
			ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK("srq-limit", event.element.srq == srq && srq->srq_context == &side);
	ibv_ack_async_event(&event);
	CHECK("srq-limit", ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
	ok("srq-limit");

	attr.max_wr = 32;
	int answer = ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR);
	CHECK("srq-resize", answer == 0 || (answer == EINVAL && !(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE)));
	if (answer == 0) {
		CHECK("srq-resize", ibv_query_srq(srq, &attr) == 0 && attr.max_wr >= 32);
		for (uint64_t i = 0; i < 20; i++)
			post("srq-resize", srq, 200 + i);
	}
	ok("srq-resize");

	ANSWERS("srq-busy", ibv_destroy_srq(srq), EBUSY);
	CHECK("srq-busy", ibv_destroy_qp(b) == 0 && ibv_destroy_qp(c) == 0);
	CHECK("srq-busy", ibv_destroy_srq(srq) == 0);
	ok("srq-busy");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(d) == 0 && ibv_destroy_cq(cq) == 0);
}

static void xrc(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL), *srq_cq = new_cq(&side, 64, NULL);
	struct ibv_xrcd_init_attr open = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					   .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(side.context, &open);

	CHECK("srq-xrc", xrcd != NULL);
	struct ibv_srq_init_attr_ex srq_init = {
		.attr = { .max_wr = 8, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC,
		.xrcd = xrcd,
		.cq = srq_cq,
		.pd = side.pd,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(side.context, &srq_init);
	uint32_t number = 0;
	CHECK("srq-xrc", srq != NULL && ibv_get_srq_num(srq, &number) == 0);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target = ibv_create_qp_ex(side.context, &init);
	init = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = side.pd,
					     .send_cq = cq,
					     .cap = { .max_send_wr = 8, .max_send_sge = 1 } };
	struct ibv_qp *initiator = ibv_create_qp_ex(side.context, &init);
	CHECK("srq-xrc", target && initiator);
	join(&side, initiator, target);
	post("srq-xrc", srq, 5);
	struct ibv_sge sge = sge_at(&side, 0, 16);
	struct ibv_send_wr wr = { .wr_id = 4, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.qp_type.xrc.remote_srqn = number;
	memcpy(side.memory, "to a shared one.", 16);
	CHECK("srq-xrc", ibv_post_send(initiator, &wr, &bad) == 0);
	CHECK("srq-xrc", success_of("srq-xrc", cq).wr_id == 4);
	struct ibv_wc wc = success_of("srq-xrc", srq_cq);
	CHECK("srq-xrc", wc.wr_id == 5 && wc.byte_len == 16 && wc.qp_num == target->qp_num);
	CHECK("srq-xrc", memcmp(side.memory + 65536 + 64 * 5, side.memory, 16) == 0);
	ok("srq-xrc");

	struct ibv_qp_open_attr open_attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = target->qp_num, .xrcd = xrcd, .qp_context = &side, .qp_type = IBV_QPT_XRC_RECV
	};
	struct ibv_qp *again = ibv_open_qp(side.context, &open_attr);
	CHECK("srq-xrc-open", again && again->qp_num == target->qp_num && again->qp_context == &side);
	CHECK("srq-xrc-open", ibv_destroy_qp(target) == 0);
	post("srq-xrc-open", srq, 6);
	CHECK("srq-xrc-open", ibv_post_send(initiator, &wr, &bad) == 0);
	success_of("srq-xrc-open", cq);
	CHECK("srq-xrc-open", success_of("srq-xrc-open", srq_cq).wr_id == 6);
	open_attr.qp_num ^= 1;
	CHECK("srq-xrc-open", ibv_open_qp(side.context, &open_attr) == NULL);
	ok("srq-xrc-open");

	ANSWERS("srq-xrc-busy", ibv_close_xrcd(xrcd), EBUSY);
	ANSWERS("srq-xrc-busy", ibv_destroy_cq(srq_cq), EBUSY);
	CHECK("srq-xrc-busy", ibv_destroy_qp(again) == 0 && ibv_destroy_qp(initiator) == 0);
	CHECK("srq-xrc-busy", ibv_destroy_srq(srq) == 0 && ibv_close_xrcd(xrcd) == 0);
	ok("srq-xrc-busy");
	CHECK("end", ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(srq_cq) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	side = open_side();
	PART(plain());
	PART(xrc());
	close_side(&side);
	return 0;
}
