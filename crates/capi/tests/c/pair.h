/* For rules of libibverbs: the device that has the address, and two connected queue pairs on it. Include after rule.h. */
#ifndef PAIR_H
#define PAIR_H

static struct ibv_context *port_context;
static int port_sgid;

/* The GID of the address. */
static inline union ibv_gid base_gid(void)
{
	union ibv_gid gid;

	memset(&gid, 0, sizeof gid);
	if (rule_base.ss_family == AF_INET) {
		gid.raw[10] = gid.raw[11] = 0xff;
		memcpy(gid.raw + 12, &((struct sockaddr_in *)&rule_base)->sin_addr, 4);
	} else {
		memcpy(gid.raw, &((struct sockaddr_in6 *)&rule_base)->sin6_addr, 16);
	}
	return gid;
}

/* Opens the device that has the address. */
static inline struct ibv_context *open_port(const char *rule)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	union ibv_gid wanted = base_gid();

	CHECK(rule, list != NULL);
	for (int i = 0; list[i] && !port_context; i++) {
		struct ibv_context *context = ibv_open_device(list[i]);
		struct ibv_gid_entry entries[256];
		ssize_t count = context ? ibv_query_gid_table(context, entries, 256, 0) : 0;

		for (ssize_t at = 0; at < count; at++) {
			if (entries[at].gid_type == IBV_GID_TYPE_ROCE_V2 && !memcmp(&entries[at].gid, &wanted, 16)) {
				port_context = context;
				port_sgid = entries[at].gid_index;
			}
		}
		if (context && context != port_context)
			ibv_close_device(context);
	}
	ibv_free_device_list(list);
	if (!port_context)
		FAIL(rule, "no device has the address %s", rule_text);
	return port_context;
}

static inline struct ibv_ah_attr to_self(void)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = base_gid(), .sgid_index = port_sgid, .hop_limit = 64 },
	};
}

/* A queue pair that is connected to another one of the same port. */
struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static inline struct end new_end(const char *rule, struct ibv_pd *pd, struct ibv_srq *srq, enum ibv_qp_type type)
{
	struct end end = { .cq = ibv_create_cq(port_context, 16, NULL, NULL, 0) };
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.send_cq = end.cq,
		.recv_cq = end.cq,
		.srq = srq,
		.qp_type = type,
	};

	CHECK(rule, end.cq != NULL);
	end.qp = ibv_create_qp(pd, &init);
	CHECK(rule, end.qp != NULL);
	return end;
}

static inline void ready(const char *rule, struct end *end, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	CHECK(rule, !ibv_modify_qp(end->qp, &attr,
				   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = to_self(),
	};
	CHECK(rule, !ibv_modify_qp(end->qp, &attr,
				   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	CHECK(rule, !ibv_modify_qp(end->qp, &attr,
				   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void connect_ends(const char *rule, struct end *one, struct end *two)
{
	ready(rule, one, two->qp->qp_num);
	ready(rule, two, one->qp->qp_num);
}

/* The next completion; the program's alarm ends one that does not come. */
static inline struct ibv_wc completion(const char *rule, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
		usleep(100);
	CHECK(rule, got == 1);
	return wc;
}

static inline void destroy_end(const char *rule, struct end *end)
{
	CHECK(rule, ibv_destroy_qp(end->qp) == 0);
	CHECK(rule, ibv_destroy_cq(end->cq) == 0);
}

#endif
