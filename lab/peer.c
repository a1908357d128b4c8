/* The guest's side of crates/verbs/examples/one_sided.rs, on libibverbs: one-sided operations, atomics and a memory window
 * with a peer that is no kernel. The protocol is in that file.
 *
 * usage: peer [-p PORT] [-g GID_INDEX] [-n LEN] [-w] [SERVER]      without SERVER it is the server
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIE(...) do { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } while (0)
#define CHECK(x) do { if (!(x)) DIE("%s failed", #x); } while (0)

struct end { unsigned qpn, psn, rkey, window, len; unsigned long long addr; union ibv_gid gid; };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr, *scratch_mr;
static uint8_t *memory, *scratch;
static FILE *in, *out;
static int mismatches;

static void expect(int holds, const char *what)
{
	if (!holds) {
		mismatches++;
		printf("mismatch: %s\n", what);
	}
}

static uint8_t pattern(size_t i) { return (uint8_t)(i * 31 + 7); }

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc;
}

static struct ibv_wc post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	wr->send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	return completion();
}

static struct ibv_wc one_sided(enum ibv_wr_opcode opcode, void *local, uint32_t len, uint64_t addr, uint32_t rkey, uint32_t imm)
{
	struct ibv_sge sge = { (uintptr_t)local, len, scratch_mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1, .imm_data = htonl(imm) };
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	return post(&wr);
}

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey, uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge sge = { (uintptr_t)scratch, 8, scratch_mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1 };
	wr.wr.atomic.remote_addr = addr;
	wr.wr.atomic.rkey = rkey;
	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	struct ibv_wc wc = post(&wr);
	expect(wc.status == IBV_WC_SUCCESS, "an atomic operation succeeds");
	uint64_t original;
	memcpy(&original, scratch, 8);
	return original;
}

static void tell(const struct end *own)
{
	fprintf(out, "oarlock-one-sided 1 qpn=%06x psn=%06x gid=", own->qpn, own->psn);
	for (int i = 0; i < 16; i++)
		fprintf(out, "%02x", own->gid.raw[i]);
	fprintf(out, " addr=%016llx rkey=%08x window=%08x len=%u\n", own->addr, own->rkey, own->window, own->len);
	fflush(out);
}

static struct end hear(void)
{
	struct end end;
	char gid[33], line[256];
	CHECK(fgets(line, sizeof line, in));
	if (sscanf(line, "oarlock-one-sided 1 qpn=%x psn=%x gid=%32s addr=%llx rkey=%x window=%x len=%u", &end.qpn, &end.psn, gid,
		   &end.addr, &end.rkey, &end.window, &end.len) != 7)
		DIE("the peer says: %s", line);
	for (int i = 0; i < 16; i++) {
		unsigned byte;
		sscanf(gid + 2 * i, "%2x", &byte);
		end.gid.raw[i] = (uint8_t)byte;
	}
	return end;
}

static void connect_to(const struct end *own, const struct end *peer, int gid_index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = peer->psn,
				    .max_dest_rd_atomic = 4, .min_rnr_timer = 12 };
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = peer->gid;
	attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	attr.ah_attr.port_num = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = own->psn,
				   .max_rd_atomic = 4 };
	CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static unsigned bind_window(size_t len)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!mw)
		DIE("no memory window of type 2");
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info.mr = mr;
	wr.bind_mw.bind_info.addr = (uintptr_t)memory;
	wr.bind_mw.bind_info.length = len;
	wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_wc wc = post(&wr);
	if (wc.status != IBV_WC_SUCCESS)
		DIE("binding the window: %s", ibv_wc_status_str(wc.status));
	return wr.bind_mw.rkey;
}

static void serve(const struct end *own)
{
	size_t data = own->len - 64;
	uint64_t words[2];
	fputs("ready\n", out);
	fflush(out);
	struct ibv_wc wc = completion();
	expect(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM, "the first is a WRITE with immediate");
	expect((wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == 0x0a0b0c0d, "its immediate");
	for (size_t i = 0; i < data; i++)
		/* A quick client has written through the window already. */
		if (!(own->window && i >= 128 && i < 144) && memory[i] != (i < 64 ? (uint8_t)~pattern(i) : pattern(i))) {
			expect(0, "what was written");
			break;
		}
	wc = completion();
	expect(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 4, "the second is a SEND of 4 bytes");
	expect(!memcmp(scratch, "done", 4) || !memcmp(scratch + 64, "done", 4), "what was sent");
	memcpy(words, memory + data, sizeof words);
	expect(words[0] == 0x1122334455667788 && words[1] == 104, "the atomics' words");
	if (own->window) {
		/* Interop: Linux soft RoCE gives the kernel's own bit, 1 << 2, where libibverbs wants IBV_WC_WITH_INV, 1 << 3. */
		expect((wc.wc_flags & (IBV_WC_WITH_INV | 1 << 2)) && wc.invalidated_rkey == own->window, "the invalidated key");
		for (int i = 128; i < 144; i++)
			expect(memory[i] == 0xEE, "what was written through the window");
	}
}

static void ask(const struct end *server)
{
	char line[64];
	size_t data = server->len - 64;
	CHECK(fgets(line, sizeof line, in) && !strcmp(line, "ready\n"));
	for (size_t i = 0; i < data; i++)
		scratch[i] = pattern(i);
	expect(one_sided(IBV_WR_RDMA_WRITE, scratch, (uint32_t)data, server->addr, server->rkey, 0).status == IBV_WC_SUCCESS, "WRITE");
	for (size_t i = 0; i < 64; i++)
		scratch[i] = (uint8_t)~pattern(i);
	expect(one_sided(IBV_WR_RDMA_WRITE_WITH_IMM, scratch, 64, server->addr, server->rkey, 0x0a0b0c0d).status == IBV_WC_SUCCESS,
	       "WRITE with immediate");
	memset(scratch, 0, data);
	expect(one_sided(IBV_WR_RDMA_READ, scratch, (uint32_t)data, server->addr, server->rkey, 0).status == IBV_WC_SUCCESS, "READ");
	for (size_t i = 0; i < data; i++)
		if (scratch[i] != (i < 64 ? (uint8_t)~pattern(i) : pattern(i))) {
			expect(0, "what was read");
			break;
		}
	uint64_t word0 = server->addr + data, word1 = word0 + 8;
	expect(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, word0, server->rkey, 7, 0x1122334455667788) == 7, "the first swap");
	expect(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, word0, server->rkey, 7, 1) == 0x1122334455667788, "the second swap");
	expect(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, word1, server->rkey, 5, 0) == 100, "the first addition");
	expect(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, word1, server->rkey, ~0ULL, 0) == 105, "the second addition");
	if (server->window) {
		memset(scratch, 0xEE, 16);
		expect(one_sided(IBV_WR_RDMA_WRITE, scratch, 16, server->addr + 128, server->window, 0).status == IBV_WC_SUCCESS,
		       "WRITE through the window");
	}
	memcpy(scratch, "done", 4);
	struct ibv_sge sge = { (uintptr_t)scratch, 4, scratch_mr->lkey };
	struct ibv_send_wr wr = { .opcode = server->window ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	if (server->window)
		wr.invalidate_rkey = server->window;
	expect(post(&wr).status == IBV_WC_SUCCESS, "SEND");
	if (server->window)
		expect(one_sided(IBV_WR_RDMA_WRITE, scratch, 16, server->addr + 128, server->window, 0).status == IBV_WC_REM_ACCESS_ERR,
		       "the window is closed");
}

static void meet(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = host ? AF_UNSPEC : AF_INET6, .ai_flags = host ? 0 : AI_PASSIVE }, *info;
	CHECK(getaddrinfo(host, port, &hints, &info) == 0);
	int fd = socket(info->ai_family, SOCK_STREAM, 0), on = 1;
	CHECK(fd >= 0);
	if (host) {
		for (int i = 0; connect(fd, info->ai_addr, info->ai_addrlen); i++) {
			CHECK(i < 50);
			usleep(100000);
		}
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		CHECK(bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, 1) == 0);
		fd = accept(fd, NULL, NULL);
		CHECK(fd >= 0);
	}
	CHECK((in = fdopen(fd, "r")) && (out = fdopen(dup(fd), "w")));
}

int main(int argc, char **argv)
{
	const char *port = "18516";
	int gid_index = 1, wants_window = 0, option;
	struct end own = { .len = 1048640 }, peer;
	while ((option = getopt(argc, argv, "p:g:n:w")) != -1) {
		if (option == 'p')
			port = optarg;
		else if (option == 'g')
			gid_index = atoi(optarg);
		else if (option == 'n')
			own.len = (unsigned)atoi(optarg);
		else if (option == 'w')
			wants_window = 1;
		else
			return 2;
	}
	const char *host = optind < argc ? argv[optind] : NULL;
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	context = ibv_open_device(devices[0]);
	CHECK(context && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	memory = aligned_alloc(4096, (own.len + 4095) & ~4095u);
	scratch = aligned_alloc(4096, (own.len + 4095) & ~4095u);
	CHECK(memory && scratch);
	memset(memory, 0, own.len);
	mr = ibv_reg_mr(pd, memory, own.len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
	scratch_mr = ibv_reg_mr(pd, scratch, own.len, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && scratch_mr);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
	CHECK((qp = ibv_create_qp(pd, &init)));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	own.qpn = qp->qp_num;
	own.psn = (unsigned)getpid() * 7919 & 0xffffff;
	CHECK(ibv_query_gid(context, 1, gid_index, &own.gid) == 0);
	meet(host, port);
	if (host) {
		tell(&own);
		peer = hear();
		connect_to(&own, &peer, gid_index);
		ask(&peer);
		fputs("bye\n", out);
		fflush(out);
	} else {
		peer = hear();
		connect_to(&own, &peer, gid_index);
		for (int i = 0; i < 4; i++) {
			struct ibv_sge sge = { (uintptr_t)(scratch + 64 * i), 64, scratch_mr->lkey };
			struct ibv_recv_wr wr = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1 }, *bad;
			CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
		}
		uint64_t words[2] = { 7, 100 };
		memcpy(memory + own.len - 64, words, sizeof words);
		own.addr = (uintptr_t)memory;
		own.rkey = mr->rkey;
		if (wants_window)
			own.window = bind_window(own.len);
		tell(&own);
		serve(&own);
	}
	char bye[8];
	if (!host) {
		CHECK(fgets(bye, sizeof bye, in));
		fputs("bye\n", out);
		fflush(out);
	} else
		CHECK(fgets(bye, sizeof bye, in));
	unsigned window = host ? peer.window : own.window;
	printf("one-sided: writes=%d reads=1 atomics=4 window=%s mismatches=%d\n", window ? 3 : 2, window ? "yes" : "no", mismatches);
	return mismatches != 0;
}
