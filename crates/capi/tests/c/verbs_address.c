/* Address handles, and answers to datagrams. */
#include "rule.h"
#include "pair.h"

#define QKEY 0x11111111

static void handle_rules(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah_attr attr = to_self(), wrong = attr;
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK("ah-public", ah && ah->context == context && ah->pd == pd);
	CHECK("ah-public", ibv_dealloc_pd(pd) == EBUSY);
	CHECK("ah-public", ibv_destroy_ah(ah) == 0);
	ok("ah-public");

	wrong.is_global = 0;
	errno = 0;
	CHECK("ah-einval", !ibv_create_ah(pd, &wrong) && errno == EINVAL);
	wrong = attr;
	wrong.port_num = 9;
	errno = 0;
	CHECK("ah-einval", !ibv_create_ah(pd, &wrong) && errno == EINVAL);
	wrong = attr;
	wrong.grh.sgid_index = 255;
	errno = 0;
	CHECK("ah-einval", !ibv_create_ah(pd, &wrong) && errno == ENODATA);
	ok("ah-einval");

	/* What packets over IP do not carry is not refused. */
	attr.sl = 3;
	attr.static_rate = IBV_RATE_10_GBPS;
	attr.src_path_bits = 1;
	attr.dlid = 5;
	attr.grh.flow_label = 0x12345;
	attr.grh.hop_limit = 0;
	ah = ibv_create_ah(pd, &attr);
	CHECK("ah-lenient", ah && ibv_destroy_ah(ah) == 0);
	ok("ah-lenient");
	CHECK("ah-public", ibv_dealloc_pd(pd) == 0);
}

/* A datagram from one queue pair to another, which answers it. */
static void answer_rules(struct ibv_context *context)
{
	static char memory[2][128];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct end ends[2] = { new_end("ah-answer", pd, NULL, IBV_QPT_UD), new_end("ah-answer", pd, NULL, IBV_QPT_UD) };
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah_attr attr = to_self(), back;
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	struct ibv_wc wc;

	CHECK("ah-answer", mr && ah);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		struct ibv_sge sge = { .addr = (uintptr_t)memory[i], .length = sizeof memory[i], .lkey = mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		CHECK("ah-answer", !ibv_modify_qp(ends[i].qp, &state,
						  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
		state.qp_state = IBV_QPS_RTR;
		CHECK("ah-answer", !ibv_modify_qp(ends[i].qp, &state, IBV_QP_STATE));
		state.qp_state = IBV_QPS_RTS;
		CHECK("ah-answer", !ibv_modify_qp(ends[i].qp, &state, IBV_QP_STATE | IBV_QP_SQ_PSN));
		CHECK("ah-answer", !ibv_post_recv(ends[i].qp, &wr, &bad));
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_send_wr wr = {
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.ud = { .ah = ah, .remote_qpn = i ? wc.src_qp : ends[1].qp->qp_num, .remote_qkey = QKEY },
		}, *bad;

		CHECK("ah-answer", !ibv_post_send(ends[i].qp, &wr, &bad));
		wc = completion("ah-answer", ends[i].cq);
		CHECK("ah-answer", wc.status == IBV_WC_SUCCESS);
		wc = completion("ah-answer", ends[!i].cq);
		CHECK("ah-answer", wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 40);
		CHECK("ah-answer", (wc.wc_flags & IBV_WC_GRH) && wc.src_qp == ends[i].qp->qp_num);
		CHECK("ah-answer", ibv_destroy_ah(ah) == 0);

		CHECK("ah-answer", ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)memory[!i], &back) == 0);
		CHECK("ah-answer", back.is_global && back.port_num == 1 && back.grh.sgid_index == port_sgid);
		CHECK("ah-answer", !memcmp(&back.grh.dgid, &attr.grh.dgid, 16));
		ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory[!i], 1);
		CHECK("ah-answer", ah != NULL);
	}
	ok("ah-answer");
	CHECK("ah-answer", ibv_destroy_ah(ah) == 0);
	destroy_end("ah-answer", &ends[0]);
	destroy_end("ah-answer", &ends[1]);
	CHECK("ah-answer", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;

	start(argc, argv);
	context = open_port("ah-public");
	PART(handle_rules(context));
	PART(answer_rules(context));
	CHECK("ah-public", ibv_close_device(context) == 0);
	return 0;
}
