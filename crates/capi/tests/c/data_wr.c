/* Work requests: lists, what is refused and where, operations and what completions say. */
#include "data.h"

static struct side side;

/* A list of a thousand, in one call. */
static void lists(void)
{
	enum { N = 1000 };
	static struct ibv_send_wr wr[N], *bad;
	static struct ibv_recv_wr recv[N], *bad_recv;
	struct ibv_cq *cq = new_cq(&side, 4 * N, NULL);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, N), *b = new_qp_of(&side, IBV_QPT_RC, cq, N);
	struct ibv_sge from[N], to[N];
	int sent = 0, received = 0;

	join(&side, a, b);
	for (int i = 0; i < N; i++) {
		from[i] = sge_at(&side, 4 * i, 4);
		to[i] = sge_at(&side, 65536 + 4 * i, 4);
		memcpy(side.memory + 4 * i, &i, 4);
		recv[i] = (struct ibv_recv_wr){ .wr_id = N + i, .next = i + 1 < N ? &recv[i + 1] : NULL,
						.sg_list = &to[i], .num_sge = 1 };
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i + 1 < N ? &wr[i + 1] : NULL, .sg_list = &from[i],
					      .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	}
	CHECK("wr-list", ibv_post_recv(b, recv, &bad_recv) == 0);
	CHECK("wr-list", ibv_post_send(a, wr, &bad) == 0);
	while (sent < N || received < N) {
		struct ibv_wc wc = success_of("wr-list", cq);

		if (wc.opcode == IBV_WC_RECV)
			CHECK("wr-list", wc.wr_id == (uint64_t)N + received++ && wc.qp_num == b->qp_num && wc.byte_len == 4);
		else
			CHECK("wr-list", wc.wr_id == (uint64_t)sent++ && wc.opcode == IBV_WC_SEND && wc.qp_num == a->qp_num);
	}
	CHECK("wr-list", memcmp(side.memory, side.memory + 65536, 4 * N) == 0);
	ok("wr-list");

	/* The last but one is wrong: those before are posted, it and the last are not. */
	wr[N - 2].num_sge = 5;
	CHECK("wr-bad", ibv_post_recv(b, recv, &bad_recv) == 0);
	ANSWERS("wr-bad", ibv_post_send(a, wr, &bad), EINVAL);
	CHECK("wr-bad", bad == &wr[N - 2]);
	for (int i = 0; i < 2 * (N - 2); i++)
		success_of("wr-bad", cq);
	struct ibv_wc wc;
	CHECK("wr-bad", ibv_poll_cq(cq, 1, &wc) == 0);
	wr[N - 2].num_sge = 1;
	wr[3].opcode = 99;
	ANSWERS("wr-bad", ibv_post_send(a, wr, &bad), EINVAL);
	CHECK("wr-bad", bad == &wr[3]);
	wr[3].opcode = IBV_WR_SEND;
	recv[5].num_sge = 5;
	ANSWERS("wr-bad", ibv_post_recv(b, &recv[4], &bad_recv), EINVAL);
	CHECK("wr-bad", bad_recv == &recv[5]);
	ok("wr-bad");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

/* One more than the queue holds. */
static void full(void)
{
	enum { N = 20 };
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, N), *b = new_qp_of(&side, IBV_QPT_RC, cq, N);
	struct ibv_send_wr wr[N + 2], *bad;
	struct ibv_recv_wr recv[N + 2], *bad_recv;

	join(&side, a, b);
	for (int i = 0; i < N + 2; i++) {
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = &wr[i + 1], .opcode = IBV_WR_SEND,
					      .send_flags = IBV_SEND_SIGNALED };
		recv[i] = (struct ibv_recv_wr){ .wr_id = i, .next = &recv[i + 1] };
	}
	wr[N + 1].next = NULL;
	recv[N + 1].next = NULL;
	ANSWERS("wr-full", ibv_post_send(a, wr, &bad), ENOMEM);
	CHECK("wr-full", bad == &wr[N]);
	ANSWERS("wr-full", ibv_post_recv(b, recv, &bad_recv), ENOMEM);
	CHECK("wr-full", bad_recv == &recv[N]);
	for (int i = 0; i < 2 * N; i++)
		success_of("wr-full", cq);
	/* Their places are free again. */
	wr[0].next = NULL;
	recv[0].next = NULL;
	CHECK("wr-full", ibv_post_recv(b, recv, &bad_recv) == 0 && ibv_post_send(a, wr, &bad) == 0);
	success_of("wr-full", cq);
	success_of("wr-full", cq);
	ok("wr-full");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

static struct ibv_wc do_one(const char *rule, struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	CHECK(rule, ibv_post_send(qp, wr, &bad) == 0);
	return success_of(rule, cq);
}

static void operations(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL), *recv_cq = new_cq(&side, 64, NULL);
	struct ibv_qp_init_attr attr = init_attr(IBV_QPT_RC, cq, 16);
	attr.recv_cq = recv_cq;
	struct ibv_qp *a = ibv_create_qp(side.pd, &attr), *b = ibv_create_qp(side.pd, &attr);
	char *mine = side.memory, *theirs = side.memory + 65536;
	struct ibv_sge sge = sge_at(&side, 0, 5000);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_wc wc;

	CHECK("qp", a && b);
	join(&side, a, b);
	for (int i = 0; i < 5000; i++)
		mine[i] = (char)(i * 7);
	wr.wr.rdma.remote_addr = (uintptr_t)theirs;
	wr.wr.rdma.rkey = side.mr->rkey;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wc = do_one("wr-write", a, cq, &wr);
	CHECK("wr-write", wc.opcode == IBV_WC_RDMA_WRITE && memcmp(mine, theirs, 5000) == 0);
	ok("wr-write");

	memset(mine, 0, 5000);
	wr.opcode = IBV_WR_RDMA_READ;
	wc = do_one("wr-read", a, cq, &wr);
	CHECK("wr-read", wc.opcode == IBV_WC_RDMA_READ && memcmp(mine, theirs, 5000) == 0);
	ok("wr-read");

	/* Immediate data is four bytes in network order, whatever they mean. */
	post_recv_at(&side, b, 7, 131072, 8192);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.imm_data = htonl(0x01020304);
	do_one("wr-imm", a, cq, &wr);
	wc = success_of("wr-imm", recv_cq);
	CHECK("wr-imm", wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 7 && wc.byte_len == 5000);
	CHECK("wr-imm", (wc.wc_flags & IBV_WC_WITH_IMM) && wc.imm_data == htonl(0x01020304));
	post_recv_at(&side, b, 8, 131072, 8192);
	wr.opcode = IBV_WR_SEND_WITH_IMM;
	wr.imm_data = htonl(0xfffefdfc);
	do_one("wr-imm", a, cq, &wr);
	wc = success_of("wr-imm", recv_cq);
	CHECK("wr-imm", wc.opcode == IBV_WC_RECV && wc.imm_data == htonl(0xfffefdfc));
	CHECK("wr-imm", memcmp(mine, side.memory + 131072, 5000) == 0);
	ok("wr-imm");

	uint64_t before = 40, *word = (uint64_t *)theirs, *result = (uint64_t *)mine;
	*word = before;
	sge = sge_at(&side, 0, 8);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = (uintptr_t)theirs;
	wr.wr.atomic.rkey = side.mr->rkey;
	wr.wr.atomic.compare_add = 2;
	wc = do_one("wr-atomic", a, cq, &wr);
	CHECK("wr-atomic", wc.opcode == IBV_WC_FETCH_ADD && *result == 40 && *word == 42);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 41;
	wr.wr.atomic.swap = 1;
	wc = do_one("wr-atomic", a, cq, &wr);
	CHECK("wr-atomic", wc.opcode == IBV_WC_COMP_SWAP && *result == 42 && *word == 42);
	wr.wr.atomic.compare_add = 42;
	do_one("wr-atomic", a, cq, &wr);
	CHECK("wr-atomic", *result == 42 && *word == 1);
	ok("wr-atomic");

	/* Scattered and gathered. */
	struct ibv_sge from[3] = { sge_at(&side, 0, 3), sge_at(&side, 100, 1), sge_at(&side, 200, 4) };
	struct ibv_sge to[2] = { sge_at(&side, 131072, 5), sge_at(&side, 132072, 100) };
	struct ibv_recv_wr recv = { .sg_list = to, .num_sge = 2 }, *bad_recv;
	memcpy(mine, "abc", 3);
	mine[100] = 'd';
	memcpy(mine + 200, "efgh", 4);
	wr = (struct ibv_send_wr){ .sg_list = from, .num_sge = 3, .opcode = IBV_WR_SEND };
	CHECK("wr-sge", ibv_post_recv(b, &recv, &bad_recv) == 0);
	do_one("wr-sge", a, cq, &wr);
	CHECK("wr-sge", success_of("wr-sge", recv_cq).byte_len == 8);
	CHECK("wr-sge", memcmp(side.memory + 131072, "abcde", 5) == 0 && memcmp(side.memory + 132072, "fgh", 3) == 0);
	ok("wr-sge");

	/* Inline data need no registration, and are copied before the call returns. */
	char one[] = "inl", two[] = "ine";
	struct ibv_sge bare[2] = { { .addr = (uintptr_t)one, .length = 3 }, { .addr = (uintptr_t)two, .length = 3 } };
	struct ibv_send_wr *bad;
	wr = (struct ibv_send_wr){ .sg_list = bare, .num_sge = 2, .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };
	CHECK("wr-inline", ibv_post_send(a, &wr, &bad) == 0);
	memset(one, 'x', 3);
	memset(two, 'x', 3);
	post_recv_at(&side, b, 9, 131072, 64);
	success_of("wr-inline", cq);
	CHECK("wr-inline", success_of("wr-inline", recv_cq).byte_len == 6);
	CHECK("wr-inline", memcmp(side.memory + 131072, "inline", 6) == 0);
	ok("wr-inline");
	bare[0] = (struct ibv_sge){ .addr = (uintptr_t)side.memory, .length = 4000 };
	ANSWERS("wr-inline-long", ibv_post_send(a, &wr, &bad), EINVAL);
	CHECK("wr-inline-long", bad == &wr);
	ok("wr-inline-long");

	/* Flags that mean nothing with the request do no harm. */
	sge = sge_at(&side, 0, 8);
	wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				   .send_flags = IBV_SEND_SOLICITED | IBV_SEND_FENCE };
	wr.wr.rdma.remote_addr = (uintptr_t)theirs;
	wr.wr.rdma.rkey = side.mr->rkey;
	do_one("wr-flags", a, cq, &wr);
	ok("wr-flags");

	/* A window of type 2: bound, used, taken away by the peer's message. */
	struct ibv_mw *mw = ibv_alloc_mw(side.pd, IBV_MW_TYPE_2);
	CHECK("wr-window", mw != NULL);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_BIND_MW };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = side.mr, .addr = (uintptr_t)theirs, .length = 64,
							  .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	wc = do_one("wr-window", b, cq, &wr);
	CHECK("wr-window", wc.opcode == IBV_WC_BIND_MW);
	mw->rkey = wr.bind_mw.rkey;
	memcpy(mine, "windowed", 8);
	wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)theirs;
	wr.wr.rdma.rkey = mw->rkey;
	do_one("wr-window", a, cq, &wr);
	CHECK("wr-window", memcmp(theirs, "windowed", 8) == 0);
	post_recv_at(&side, b, 10, 131072, 64);
	wr = (struct ibv_send_wr){ .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = mw->rkey };
	do_one("wr-window", a, cq, &wr);
	wc = success_of("wr-window", recv_cq);
	CHECK("wr-window", (wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == mw->rkey);
	ok("wr-window");

	/* The peer refuses: the reason is in the status, and what follows is flushed, in order. */
	wr = (struct ibv_send_wr){ .wr_id = 20, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)theirs;
	wr.wr.rdma.rkey = mw->rkey;
	post_recv_at(&side, a, 30, 131072, 64);
	post_recv_at(&side, a, 31, 131072, 64);
	CHECK("wr-flush", ibv_post_send(a, &wr, &bad) == 0);
	wc = next_wc(cq);
	CHECK("wr-flush", wc.wr_id == 20 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == a->qp_num);
	wr.wr_id = 21;
	CHECK("wr-flush", ibv_post_send(a, &wr, &bad) == 0);
	wc = next_wc(cq);
	CHECK("wr-flush", wc.wr_id == 21 && wc.status == IBV_WC_WR_FLUSH_ERR);
	for (uint64_t i = 30; i < 32; i++) {
		wc = next_wc(recv_cq);
		CHECK("wr-flush", wc.wr_id == i && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	ok("wr-flush");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK("end", ibv_dealloc_mw(mw) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(recv_cq) == 0);
}

static void datagrams(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_UD, cq, 16), *b = new_qp_of(&side, IBV_QPT_UD, cq, 16);
	struct ibv_ah_attr ah_attr = path(&side);
	struct ibv_ah *ah = ibv_create_ah(side.pd, &ah_attr);
	struct ibv_sge sge = sge_at(&side, 0, 100);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = htonl(5), .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE }, *bad;
	struct ibv_wc wc, received = { 0 };

	CHECK("wr-ud", ah != NULL);
	join(&side, a, b);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	memset(side.memory, 'u', 100);
	post_recv_at(&side, b, 2, 65536, 200);
	CHECK("wr-ud", ibv_post_send(a, &wr, &bad) == 0);
	for (int i = 0; i < 2; i++) {
		wc = success_of("wr-ud", cq);
		if (wc.opcode == IBV_WC_RECV)
			received = wc;
	}
	CHECK("wr-ud", received.wr_id == 2 && received.byte_len == 140 && received.src_qp == a->qp_num);
	CHECK("wr-ud", received.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && received.imm_data == htonl(5));
	CHECK("wr-ud", memcmp(side.memory + 65536 + 40, side.memory, 100) == 0);
	ok("wr-ud");

	/* The answer goes back where the datagram came from. */
	struct ibv_ah *back = ibv_create_ah_from_wc(side.pd, &received, (struct ibv_grh *)(side.memory + 65536), 1);
	CHECK("wr-ud-back", back != NULL);
	wr.wr.ud.ah = back;
	wr.wr.ud.remote_qpn = received.src_qp;
	post_recv_at(&side, a, 3, 131072, 200);
	CHECK("wr-ud-back", ibv_post_send(b, &wr, &bad) == 0);
	success_of("wr-ud-back", cq);
	success_of("wr-ud-back", cq);
	ok("wr-ud-back");

	wr.opcode = IBV_WR_RDMA_WRITE;
	ANSWERS("wr-ud-einval", ibv_post_send(a, &wr, &bad), EINVAL);
	wr.opcode = IBV_WR_SEND;
	sge.length = 65536;
	ANSWERS("wr-ud-einval", ibv_post_send(a, &wr, &bad), EINVAL);
	ok("wr-ud-einval");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK("end", ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(back) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	side = open_side();
	PART(lists());
	PART(full());
	PART(operations());
	PART(datagrams());
	close_side(&side);
	return 0;
}
