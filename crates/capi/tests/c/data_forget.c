/* What drivers of network cards do and programs rely on: see each part. */
#include "data.h"

/* Two flushed receives each wait in one queue. */
static void flushed(struct side *side, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	join(side, a, b);
	for (uint64_t i = 0; i < 2; i++) {
		post_recv_at(side, a, 10 + i, 0, 64);
		post_recv_at(side, b, 20 + i, 0, 64);
	}
	CHECK("error", ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0);
	CHECK("error", ibv_modify_qp(b, &attr, IBV_QP_STATE) == 0);
}

static void only_of_b(const char *rule, struct ibv_cq *cq)
{
	struct ibv_wc wc;

	for (uint64_t i = 0; i < 2; i++) {
		wc = next_wc(cq);
		CHECK(rule, wc.wr_id == 20 + i && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	CHECK(rule, ibv_poll_cq(cq, 1, &wc) == 0);
}

/* A queue pair that is reset, or destroyed, leaves no completion of its earlier life; those of others stay. */
static void forgets(struct side *side)
{
	struct ibv_cq *cq = new_cq(side, 32, NULL);
	struct ibv_qp *a = new_qp_of(side, IBV_QPT_RC, cq, 4), *b = new_qp_of(side, IBV_QPT_RC, cq, 4);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	flushed(side, a, b);
	CHECK("reset-forgets", ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0);
	only_of_b("reset-forgets", cq);
	/* And what comes afterwards is there. */
	CHECK("reset-forgets", ibv_modify_qp(b, &attr, IBV_QP_STATE) == 0);
	flushed(side, a, b);
	for (int i = 0; i < 2; i++)
		CHECK("reset-forgets", next_wc(cq).wr_id == 10u + i);
	ok("reset-forgets");

	only_of_b("destroy-forgets", cq);
	CHECK("destroy-forgets", ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0);
	CHECK("destroy-forgets", ibv_modify_qp(b, &attr, IBV_QP_STATE) == 0);
	flushed(side, a, b);
	CHECK("destroy-forgets", ibv_destroy_qp(a) == 0);
	only_of_b("destroy-forgets", cq);
	ok("destroy-forgets");
	CHECK("destroy-forgets", ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

/* A datagram's completion says in `sl` which header stands before the data. */
static void datagram(struct side *side)
{
	struct ibv_cq *cq = new_cq(side, 8, NULL);
	struct ibv_qp *qp = new_qp_of(side, IBV_QPT_UD, cq, 4);
	struct ibv_ah_attr attr = path(side);
	struct ibv_ah *ah = ibv_create_ah(side->pd, &attr);
	struct ibv_sge sge = sge_at(side, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int is_ipv4 = rule_base.ss_family == AF_INET;
	struct ibv_wc wc;

	CHECK("datagram-sl", ah != NULL);
	to_init(qp);
	to_rtr(side, qp, 0);
	to_rts(qp);
	post_recv_at(side, qp, 2, 4096, 4096);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	memcpy(side->memory, "datagram", 8);
	CHECK("datagram-sl", ibv_post_send(qp, &wr, &bad) == 0);
	wc = success_of("datagram-sl", cq);
	CHECK("datagram-sl", wc.wr_id == 2 && wc.wc_flags & IBV_WC_GRH);
	CHECK("datagram-sl", wc.sl == (is_ipv4 ? 10 : 9));
	CHECK("datagram-sl", memcmp(side->memory + 4096 + 40, "datagram", 8) == 0);
	/* The version of the header that it names, where that header stands. */
	CHECK("datagram-sl", side->memory[4096 + (is_ipv4 ? 20 : 0)] >> 4 == (is_ipv4 ? 4 : 6));
	ok("datagram-sl");
	CHECK("datagram-sl", ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

static struct ibv_wc bound(struct side *side, struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mw *mw, int access,
			   size_t length)
{
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = side->mr,
			       .addr = (uintptr_t)side->memory,
			       .length = length,
			       .mw_access_flags = access },
	};

	CHECK("window-local-write", ibv_bind_mw(qp, mw, &bind) == 0);
	return next_wc(cq);
}

/* Local rights, and those that only permit, say nothing of a window; others are refused as ever. */
static void windows(struct side *side)
{
	struct ibv_cq *cq = new_cq(side, 32, NULL);
	struct ibv_qp *a = new_qp_of(side, IBV_QPT_RC, cq, 8), *b = new_qp_of(side, IBV_QPT_RC, cq, 8);
	struct ibv_mw *one = ibv_alloc_mw(side->pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(side->pd, IBV_MW_TYPE_2);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	struct ibv_sge sge = sge_at(side, 4096, 8);
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;

	CHECK("window-local-write", one && two);
	join(side, a, b);
	CHECK("window-local-write", bound(side, a, cq, one, access, 64).status == IBV_WC_SUCCESS);
	wr.bind_mw.mw = two;
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = side->mr, .addr = (uintptr_t)side->memory, .length = 64, .mw_access_flags = access
	};
	CHECK("window-local-write", ibv_post_send(a, &wr, &bad) == 0);
	success_of("window-local-write", cq);
	/* Through both the peer writes. */
	for (int i = 0; i < 2; i++) {
		struct ibv_send_wr write = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)side->memory + 8 * i,
				     .rkey = i ? wr.bind_mw.rkey : one->rkey },
		};

		memcpy(side->memory + 4096, i ? "by two.." : "by one..", 8);
		CHECK("window-local-write", ibv_post_send(b, &write, &bad) == 0);
		success_of("window-local-write", cq);
	}
	CHECK("window-local-write", memcmp(side->memory, "by one..by two..", 16) == 0);
	/* A right that no window has: the request fails, and with it the queue pair. */
	CHECK("window-local-write",
	      bound(side, a, cq, one, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_REMOTE_WRITE, 64).status == IBV_WC_MW_BIND_ERR);
	ok("window-local-write");
	CHECK("window-local-write", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK("window-local-write", ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
}

int main(int argc, char **argv)
{
	struct side side;

	start(argc, argv);
	side = open_side();
	PART(forgets(&side));
	PART(datagram(&side));
	PART(windows(&side));
	close_side(&side);
	return 0;
}
