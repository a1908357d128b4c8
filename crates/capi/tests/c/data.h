/* What the programs of the data path share: a device, memory, and pairs of queue pairs in one process. */
#ifndef DATA_H
#define DATA_H

#include "rule.h"
#include <sched.h>

/* An opened device, its address and memory that peers may reach. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	union ibv_gid gid;
	int gid_index;
	char *memory;
};

#define MEMORY (1 << 20)

/* The call answers this positive error number. */
#define ANSWERS(rule, call, number)                                                                                    \
	do {                                                                                                           \
		int answer = (call);                                                                                   \
		if (answer != (number))                                                                                \
			FAIL(rule, "%s answers %d, not %d", #call, answer, (number));                                  \
	} while (0)

/* The call gives no object, with this error number. */
#define NO_OBJECT(rule, call, number)                                                                                  \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		if ((call) != NULL || errno != (number))                                                               \
			FAIL(rule, "%s does not fail with errno %d", #call, (number));                                 \
	} while (0)

/* The index of the address in the device's table, or -1. */
static inline int index_of(struct ibv_context *context, union ibv_gid *found)
{
	struct ibv_port_attr port;
	unsigned char wanted[16] = { [10] = 0xff, [11] = 0xff };

	if (rule_base.ss_family == AF_INET)
		memcpy(wanted + 12, &((struct sockaddr_in *)&rule_base)->sin_addr, 4);
	else
		memcpy(wanted, &((struct sockaddr_in6 *)&rule_base)->sin6_addr, 16);
	if (ibv_query_port(context, 1, &port))
		return -1;
	for (int i = 0; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;

		if (ibv_query_gid_ex(context, 1, i, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
		    memcmp(entry.gid.raw, wanted, 16) == 0) {
			*found = entry.gid;
			return i;
		}
	}
	return -1;
}

/* Opens the device that has the address. */
static inline struct side open_side(void)
{
	struct side side = { .gid_index = -1 };
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK("open", list != NULL);
	for (int i = 0; list[i] && side.gid_index < 0; i++) {
		side.context = ibv_open_device(list[i]);
		CHECK("open", side.context != NULL);
		side.gid_index = index_of(side.context, &side.gid);
		if (side.gid_index < 0)
			ibv_close_device(side.context);
	}
	ibv_free_device_list(list);
	if (side.gid_index < 0)
		FAIL("open", "no device has the address %s", rule_text);
	side.pd = ibv_alloc_pd(side.context);
	side.memory = aligned_alloc(4096, MEMORY);
	CHECK("open", side.pd && side.memory);
	memset(side.memory, 0, MEMORY);
	side.mr = ibv_reg_mr(side.pd, side.memory, MEMORY,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
	CHECK("open", side.mr != NULL);
	return side;
}

static inline void close_side(struct side *side)
{
	CHECK("close", ibv_dereg_mr(side->mr) == 0);
	CHECK("close", ibv_dealloc_pd(side->pd) == 0);
	CHECK("close", ibv_close_device(side->context) == 0);
	free(side->memory);
}

static inline struct ibv_cq *new_cq(struct side *side, int cqe, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(side->context, cqe, side, channel, 0);

	CHECK("cq", cq != NULL);
	return cq;
}

static inline struct ibv_qp_init_attr init_attr(enum ibv_qp_type type, struct ibv_cq *cq, int depth)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = depth,
			 .max_recv_wr = depth,
			 .max_send_sge = 4,
			 .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.qp_type = type,
	};
}

static inline struct ibv_qp *new_qp_of(struct side *side, enum ibv_qp_type type, struct ibv_cq *cq, int depth)
{
	struct ibv_qp_init_attr attr = init_attr(type, cq, depth);
	struct ibv_qp *qp = ibv_create_qp(side->pd, &attr);

	CHECK("qp", qp != NULL);
	return qp;
}

#define QKEY 0x11111111
#define PSN 0xfffff0

/* The address vector to this same device. */
static inline struct ibv_ah_attr path(struct side *side)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = side->gid, .sgid_index = side->gid_index, .hop_limit = 64 },
	};
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX;

	attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
	/* UC has neither READs nor atomics. */
	attr.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE;
	if (qp->qp_type != IBV_QPT_UC)
		attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	CHECK("to-init", ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void to_rtr(struct side *side, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = PSN,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = path(side),
	};
	int mask = IBV_QP_STATE;

	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK("to-rtr", ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = PSN,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	else if (qp->qp_type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	CHECK("to-rts", ibv_modify_qp(qp, &attr, mask) == 0);
}

/* Both ready to send, each to the other. */
static inline void join(struct side *side, struct ibv_qp *a, struct ibv_qp *b)
{
	to_init(a);
	to_init(b);
	to_rtr(side, a, b->qp_num);
	to_rtr(side, b, a->qp_num);
	to_rts(a);
	to_rts(b);
}

static inline struct ibv_sge sge_at(struct side *side, int offset, int length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)side->memory + offset, .length = length, .lkey = side->mr->lkey };
}

static inline void post_recv_at(struct side *side, struct ibv_qp *qp, uint64_t wr_id, int offset, int length)
{
	struct ibv_sge sge = sge_at(side, offset, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK("post-recv", ibv_post_recv(qp, &wr, &bad) == 0);
}

/* A signalled SEND. */
static inline void post_send_at(struct side *side, struct ibv_qp *qp, uint64_t wr_id, int offset, int length)
{
	struct ibv_sge sge = sge_at(side, offset, length);
	struct ibv_send_wr wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED
	}, *bad;

	CHECK("post-send", ibv_post_send(qp, &wr, &bad) == 0);
}

/* The next completion, whatever its status; the alarm ends what never comes. */
static inline struct ibv_wc next_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		sched_yield();
	CHECK("poll", n == 1);
	return wc;
}

static inline struct ibv_wc success_of(const char *rule, struct ibv_cq *cq)
{
	struct ibv_wc wc = next_wc(cq);

	if (wc.status != IBV_WC_SUCCESS)
		FAIL(rule, "request %llu ends with %s (vendor %#x)", (unsigned long long)wc.wr_id,
		     ibv_wc_status_str(wc.status), wc.vendor_err);
	return wc;
}

#endif
