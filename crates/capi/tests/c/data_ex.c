/* Extended queue pairs and completion queues: requests put together call by call, completions read field by field. */
#include "data.h"

static struct side side;

static struct ibv_qp *new_ex(enum ibv_qp_type type, struct ibv_cq *cq, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = init_attr(type, cq, 16).cap,
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = side.pd,
		.send_ops_flags = operations,
	};

	return ibv_create_qp_ex(side.context, &attr);
}

#define RC_OPERATIONS                                                                                                  \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |                           \
	 IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                   \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |          \
	 IBV_QP_EX_WITH_BIND_MW)

static void rounds(void)
{
	struct ibv_cq *cq = new_cq(&side, 128, NULL), *recv_cq = new_cq(&side, 128, NULL);
	struct ibv_qp *plain = new_qp_of(&side, IBV_QPT_RC, cq, 4);
	struct ibv_qp *a, *b;
	struct ibv_wc wc;

	CHECK("ex-none", ibv_qp_to_qp_ex(plain) == NULL);
	CHECK("ex-none", ibv_destroy_qp(plain) == 0);
	ok("ex-none");
	NO_OBJECT("ex-operations", new_ex(IBV_QPT_RC, cq, RC_OPERATIONS | IBV_QP_EX_WITH_TSO), EOPNOTSUPP);
	NO_OBJECT("ex-operations", new_ex(IBV_QPT_UD, cq, IBV_QP_EX_WITH_RDMA_READ), EOPNOTSUPP);
	ok("ex-operations");

	struct ibv_qp_init_attr attr = init_attr(IBV_QPT_RC, recv_cq, 16);
	a = new_ex(IBV_QPT_RC, cq, RC_OPERATIONS);
	b = ibv_create_qp(side.pd, &attr);
	CHECK("ex-round", a && b);
	join(&side, a, b);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a);
	CHECK("ex-round", ex != NULL);

	char *mine = side.memory, *theirs = side.memory + 65536;
	uint64_t remote = (uintptr_t)theirs;
	uint32_t rkey = side.mr->rkey, lkey = side.mr->lkey;
	strcpy(mine, "one write");
	*(uint64_t *)(theirs + 64) = 10;
	for (int i = 0; i < 3; i++)
		post_recv_at(&side, b, 100 + i, 131072 + 64 * i, 64);

	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine, 10);
	ex->wr_id = 2;
	ibv_wr_rdma_write_imm(ex, rkey, remote + 16, htonl(77));
	struct ibv_sge two[2] = { sge_at(&side, 0, 4), sge_at(&side, 4, 5) };
	ibv_wr_set_sge_list(ex, 2, two);
	ex->wr_id = 3;
	ibv_wr_send(ex);
	char text[] = "inline";
	ibv_wr_set_inline_data(ex, text, 6);
	memset(text, 'x', 6);
	ex->wr_id = 4;
	ibv_wr_send_imm(ex, htonl(78));
	char parts[] = "ab";
	struct ibv_data_buf list[2] = { { .addr = parts, .length = 1 }, { .addr = parts + 1, .length = 1 } };
	ibv_wr_set_inline_data_list(ex, 2, list);
	ex->wr_id = 5;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
	ibv_wr_rdma_read(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine + 1024, 9);
	ex->wr_id = 6;
	ibv_wr_atomic_fetch_add(ex, rkey, remote + 64, 5);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine + 2048, 8);
	ex->wr_id = 7;
	ibv_wr_atomic_cmp_swp(ex, rkey, remote + 64, 15, 99);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine + 2056, 8);
	CHECK("ex-round", ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK("ex-round", ibv_wr_complete(ex) == 0);
	const enum ibv_wc_opcode opcodes[] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_SEND,
					       IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP };
	for (int i = 0; i < 7; i++) {
		wc = success_of("ex-round", cq);
		CHECK("ex-round", wc.wr_id == (uint64_t)i + 1 && wc.opcode == opcodes[i]);
	}
	wc = success_of("ex-round", recv_cq);
	CHECK("ex-round", wc.wr_id == 100 && wc.imm_data == htonl(77) && wc.byte_len == 9);
	wc = success_of("ex-round", recv_cq);
	CHECK("ex-round", wc.wr_id == 101 && memcmp(side.memory + 131072 + 64, "inline", 6) == 0);
	wc = success_of("ex-round", recv_cq);
	CHECK("ex-round", wc.wr_id == 102 && wc.imm_data == htonl(78) && memcmp(side.memory + 131072 + 128, "ab", 2) == 0);
	CHECK("ex-round", strcmp(theirs, "one write") == 0 && memcmp(theirs + 16, "one write", 9) == 0);
	CHECK("ex-round", memcmp(mine + 1024, "one write", 9) == 0);
	CHECK("ex-round", ((uint64_t *)(mine + 2048))[0] == 10 && ((uint64_t *)(mine + 2048))[1] == 15);
	CHECK("ex-round", *(uint64_t *)(theirs + 64) == 99);
	ok("ex-round");

	/* Given up: nothing is posted. */
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine, 1);
	ibv_wr_abort(ex);
	usleep(A_WHILE * 1000);
	CHECK("ex-abort", ibv_poll_cq(cq, 1, &wc) == 0);
	ok("ex-abort");

	/* One that is wrong: none is posted. */
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine, 1);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, side.memory, 4000);
	ibv_wr_rdma_write(ex, rkey, remote);
	CHECK("ex-all-or-none", ibv_wr_complete(ex) != 0);
	ibv_wr_start(ex);
	for (int i = 0; i < 17; i++) {
		ibv_wr_rdma_write(ex, rkey, remote);
		ibv_wr_set_sge(ex, lkey, (uintptr_t)mine, 1);
	}
	ANSWERS("ex-all-or-none", ibv_wr_complete(ex), ENOMEM);
	usleep(A_WHILE * 1000);
	CHECK("ex-all-or-none", ibv_poll_cq(cq, 1, &wc) == 0);
	ibv_wr_start(ex);
	ex->wr_id = 50;
	ibv_wr_rdma_write(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, (uintptr_t)mine, 1);
	CHECK("ex-all-or-none", ibv_wr_complete(ex) == 0);
	CHECK("ex-all-or-none", success_of("ex-all-or-none", cq).wr_id == 50);
	ok("ex-all-or-none");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK("end", ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
}

static void rounds_of_datagrams(void)
{
	struct ibv_cq *cq = new_cq(&side, 32, NULL);
	struct ibv_qp *a = new_ex(IBV_QPT_UD, cq, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	struct ibv_qp *b = new_qp_of(&side, IBV_QPT_UD, cq, 16);
	struct ibv_ah_attr ah_attr = path(&side);
	struct ibv_ah *ah = ibv_create_ah(side.pd, &ah_attr);

	CHECK("ex-ud", a && b && ah);
	join(&side, a, b);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a);
	post_recv_at(&side, b, 9, 65536, 100);
	ibv_wr_start(ex);
	ex->wr_id = 8;
	ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, ah, b->qp_num, QKEY);
	ibv_wr_set_sge(ex, side.mr->lkey, (uintptr_t)side.memory, 20);
	CHECK("ex-ud", ibv_wr_complete(ex) == 0);
	struct ibv_wc wc = success_of("ex-ud", cq);
	CHECK("ex-ud", wc.wr_id == 9 && wc.byte_len == 60 && wc.src_qp == a->qp_num);
	ok("ex-ud");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK("end", ibv_destroy_cq(cq) == 0);
}

static void fields(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 32,
		.cq_context = &side,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
	};
	struct ibv_cq_ex *ex = ibv_create_cq_ex(side.context, &init);
	struct ibv_poll_cq_attr none = { 0 }, unknown = { .comp_mask = 1 };

	CHECK("ex-fields", ex != NULL);
	init.wc_flags = IBV_WC_EX_WITH_CVLAN;
	NO_OBJECT("ex-fields-none", ibv_create_cq_ex(side.context, &init), EOPNOTSUPP);
	init.wc_flags = 1 << 20;
	NO_OBJECT("ex-fields-none", ibv_create_cq_ex(side.context, &init), EOPNOTSUPP);
	ok("ex-fields-none");

	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, 16), *b = new_qp_of(&side, IBV_QPT_RC, cq, 16);
	join(&side, a, b);
	ANSWERS("ex-poll", ibv_start_poll(ex, &unknown), EINVAL);
	ANSWERS("ex-poll", ibv_start_poll(ex, &none), ENOENT);
	struct timespec wall;
	clock_gettime(CLOCK_REALTIME, &wall);
	uint64_t wall_before = wall.tv_sec * 1000000000ull + wall.tv_nsec;
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	CHECK("ex-fields", ibv_query_rt_values_ex(side.context, &values) == 0);
	uint64_t clock_before = values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec;
	for (int i = 0; i < 2; i++) {
		post_recv_at(&side, b, 40 + i, 65536, 64);
		post_send_at(&side, a, 30 + i, 0, 10 + i);
	}
	int sends = 0, receives = 0;
	uint64_t last = clock_before;
	while (sends + receives < 4) {
		int answer = ibv_start_poll(ex, &none);

		if (answer == ENOENT)
			continue;
		CHECK("ex-fields", answer == 0);
		do {
			CHECK("ex-fields", ex->status == IBV_WC_SUCCESS);
			if (ibv_wc_read_opcode(ex) == IBV_WC_RECV) {
				CHECK("ex-fields", ex->wr_id == 40u + receives && ibv_wc_read_qp_num(ex) == b->qp_num);
				CHECK("ex-fields", ibv_wc_read_byte_len(ex) == 10u + receives);
				receives++;
			} else {
				CHECK("ex-fields", ex->wr_id == 30u + sends && ibv_wc_read_qp_num(ex) == a->qp_num);
				sends++;
			}
			CHECK("ex-fields", ibv_wc_read_wc_flags(ex) == 0 && ibv_wc_read_vendor_err(ex) == 0);
			CHECK("ex-fields", ibv_wc_read_sl(ex) == 0);
			CHECK("ex-fields", ibv_wc_read_completion_ts(ex) >= last);
			last = ibv_wc_read_completion_ts(ex);
			/* The wall clock may be set, but not by years. */
			uint64_t at = ibv_wc_read_completion_wallclock_ns(ex);
			CHECK("ex-fields", at + 3600000000000ull > wall_before && at < wall_before + 3600000000000ull);
		} while ((answer = ibv_next_poll(ex)) == 0);
		CHECK("ex-poll", answer == ENOENT);
		ibv_end_poll(ex);
	}
	ok("ex-poll");
	ok("ex-fields");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	side = open_side();
	PART(rounds());
	PART(rounds_of_datagrams());
	PART(fields());
	close_side(&side);
	return 0;
}
