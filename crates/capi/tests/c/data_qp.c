/* Queue pairs: creation, transitions, attributes, destruction, forks. */
#include "data.h"
#include <sys/wait.h>

static struct side side;

static void creating(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_device_attr device;
	struct ibv_qp_init_attr attr = init_attr(IBV_QPT_RC, cq, 16), wrong;

	CHECK("qp-einval", ibv_query_device(side.context, &device) == 0);
	wrong = attr;
	wrong.cap.max_send_wr = device.max_qp_wr + 1;
	NO_OBJECT("qp-einval", ibv_create_qp(side.pd, &wrong), EINVAL);
	wrong = attr;
	wrong.cap.max_recv_sge = device.max_sge + 1;
	NO_OBJECT("qp-einval", ibv_create_qp(side.pd, &wrong), EINVAL);
	ok("qp-einval");
	wrong = attr;
	wrong.qp_type = 77;
	errno = 0;
	CHECK("qp-type", ibv_create_qp(side.pd, &wrong) == NULL && (errno == EOPNOTSUPP || errno == EINVAL));
	ok("qp-type");

	attr.qp_context = &side;
	struct ibv_qp *qp = ibv_create_qp(side.pd, &attr);
	CHECK("qp-fields", qp && qp->qp_context == &side && qp->pd == side.pd && qp->context == side.context);
	CHECK("qp-fields", qp->send_cq == cq && qp->recv_cq == cq && qp->srq == NULL && qp->qp_type == IBV_QPT_RC);
	CHECK("qp-fields", qp->state == IBV_QPS_RESET && qp->qp_num > 1 && qp->qp_num < 0xffffff);
	CHECK("qp-fields", attr.cap.max_send_wr >= 16 && attr.cap.max_recv_wr >= 16 && attr.cap.max_send_sge >= 4 &&
				   attr.cap.max_inline_data >= 64);
	ok("qp-fields");
	ANSWERS("qp-parents-busy", ibv_destroy_cq(cq), EBUSY);
	ANSWERS("qp-parents-busy", ibv_dealloc_pd(side.pd), EBUSY);
	CHECK("qp-parents-busy", ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
	ok("qp-parents-busy");
}

static void modifying(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, 16), *b = new_qp_of(&side, IBV_QPT_RC, cq, 16);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS }, now;
	struct ibv_qp_init_attr init;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr recv = { 0 }, *bad_recv;

	ANSWERS("qp-modify-einval", ibv_modify_qp(a, &attr, IBV_QP_STATE), EINVAL);
	CHECK("qp-modify-einval", a->state == IBV_QPS_RESET);
	attr.qp_state = IBV_QPS_INIT;
	ANSWERS("qp-modify-einval", ibv_modify_qp(a, &attr, IBV_QP_STATE), EINVAL);
	attr.port_num = 9;
	ANSWERS("qp-modify-einval",
		ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL);
	attr.port_num = 1;
	attr.pkey_index = 999;
	ANSWERS("qp-modify-einval",
		ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL);
	attr.qp_state = 12;
	ANSWERS("qp-modify-einval", ibv_modify_qp(a, &attr, IBV_QP_STATE), EINVAL);
	ok("qp-modify-einval");

	ANSWERS("qp-post-state", ibv_post_send(a, &wr, &bad), EINVAL);
	CHECK("qp-post-state", bad == &wr);
	ANSWERS("qp-post-state", ibv_post_recv(a, &recv, &bad_recv), EINVAL);
	to_init(a);
	CHECK("qp-post-state", ibv_post_recv(a, &recv, &bad_recv) == 0);
	ANSWERS("qp-post-state", ibv_post_send(a, &wr, &bad), EINVAL);
	ok("qp-post-state");

	to_init(b);
	to_rtr(&side, a, b->qp_num);
	to_rtr(&side, b, a->qp_num);
	to_rts(a);
	to_rts(b);
	CHECK("qp-query", a->state == IBV_QPS_RTS);
	CHECK("qp-query", ibv_query_qp(a, &now, IBV_QP_STATE, &init) == 0);
	CHECK("qp-query", now.qp_state == IBV_QPS_RTS && now.cur_qp_state == IBV_QPS_RTS && now.dest_qp_num == b->qp_num);
	CHECK("qp-query", now.path_mtu == IBV_MTU_1024 && now.timeout == 14 && now.retry_cnt == 7 && now.rnr_retry == 7);
	CHECK("qp-query", now.max_rd_atomic == 4 && now.max_dest_rd_atomic == 4 && now.min_rnr_timer == 1);
	CHECK("qp-query", now.port_num == 1 && now.pkey_index == 0 && now.ah_attr.is_global);
	CHECK("qp-query", memcmp(&now.ah_attr.grh.dgid, &side.gid, 16) == 0);
	CHECK("qp-query", now.ah_attr.grh.sgid_index == side.gid_index);
	CHECK("qp-query", init.send_cq == cq && init.recv_cq == cq && init.qp_type == IBV_QPT_RC && init.cap.max_send_wr >= 16);
	ok("qp-query");

	attr.qp_state = IBV_QPS_ERR;
	CHECK("qp-error", ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0 && a->state == IBV_QPS_ERR);
	struct ibv_wc wc = next_wc(cq);
	CHECK("qp-error", wc.status == IBV_WC_WR_FLUSH_ERR);
	ok("qp-error");
	post_recv_at(&side, b, 1, 0, 8);
	attr.qp_state = IBV_QPS_RESET;
	CHECK("qp-reset", ibv_modify_qp(b, &attr, IBV_QP_STATE) == 0 && b->state == IBV_QPS_RESET);
	CHECK("qp-reset", ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0);
	usleep(A_WHILE * 1000);
	CHECK("qp-reset", ibv_poll_cq(cq, 1, &wc) == 0);
	join(&side, a, b);
	post_recv_at(&side, b, 2, 65536, 8);
	post_send_at(&side, a, 3, 0, 8);
	success_of("qp-reset", cq);
	success_of("qp-reset", cq);
	ok("qp-reset");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

/* An event about a queue pair is its own until it is acknowledged. */
static void *acknowledge(void *event)
{
	usleep(100000);
	*(volatile int *)(((struct ibv_async_event *)event) + 1) = 1;
	ibv_ack_async_event(event);
	return NULL;
}

static void events(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, 16), *b = new_qp_of(&side, IBV_QPT_RC, cq, 16);
	struct {
		struct ibv_async_event event;
		volatile int acknowledged;
	} one = { .acknowledged = 0 };
	pthread_t thread;

	/* The peer's first message in RTR. */
	to_init(a);
	to_init(b);
	to_rtr(&side, a, b->qp_num);
	to_rtr(&side, b, a->qp_num);
	to_rts(a);
	post_recv_at(&side, b, 2, 65536, 8);
	post_send_at(&side, a, 3, 0, 8);
	success_of("async-ack-qp", cq);
	success_of("async-ack-qp", cq);
	CHECK("async-ack-qp", readable(side.context->async_fd, LONG));
	CHECK("async-ack-qp", ibv_get_async_event(side.context, &one.event) == 0);
	CHECK("async-ack-qp", one.event.event_type == IBV_EVENT_COMM_EST && one.event.element.qp == b);
	CHECK("async-ack-qp", pthread_create(&thread, NULL, acknowledge, &one.event) == 0);
	CHECK("async-ack-qp", ibv_destroy_qp(b) == 0 && one.acknowledged);
	pthread_join(thread, NULL);
	ok("async-ack-qp");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_cq(cq) == 0);
}

static void groups(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_qp *ud = new_qp_of(&side, IBV_QPT_UD, cq, 16), *rc = new_qp_of(&side, IBV_QPT_RC, cq, 16);
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, 239, 1, 2, 3 } };

	if (rule_base.ss_family == AF_INET6)
		group = (union ibv_gid){ .raw = { 0xff, 0x12, [15] = 9 } };
	to_init(ud);
	CHECK("qp-group", ibv_attach_mcast(ud, &group, 0) == 0);
	CHECK("qp-group", ibv_attach_mcast(ud, &group, 0) == 0);
	ANSWERS("qp-group", ibv_destroy_qp(ud), EBUSY);
	CHECK("qp-group", ibv_detach_mcast(ud, &group, 0) == 0);
	ANSWERS("qp-group", ibv_detach_mcast(ud, &group, 0), EINVAL);
	ok("qp-group");
	ANSWERS("qp-group-einval", ibv_attach_mcast(ud, &side.gid, 0), EINVAL);
	ANSWERS("qp-group-einval", ibv_attach_mcast(rc, &group, 0), EINVAL);
	ok("qp-group-einval");
	CHECK("end", ibv_destroy_qp(ud) == 0 && ibv_destroy_qp(rc) == 0 && ibv_destroy_cq(cq) == 0);
}

/* A child that touches what it has copies of, and ends. */
static int touch(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc;
	struct ibv_cq *about;
	void *context;

	if (ibv_post_send(qp, &wr, &bad) != EPERM || bad != &wr)
		return 1;
	if (ibv_poll_cq(cq, 1, &wc) >= 0)
		return 2;
	if (ibv_get_cq_event(channel, &about, &context) != -1 || errno != EPERM)
		return 3;
	if (ibv_destroy_qp(qp) != EPERM || ibv_destroy_cq(cq) != EPERM)
		return 4;
	return 0;
}

static void forks(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(side.context);
	struct ibv_cq *cq = new_cq(&side, 64, channel);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, 16), *b = new_qp_of(&side, IBV_QPT_RC, cq, 16);
	int status;

	join(&side, a, b);
	fflush(stdout);
	pid_t child = fork();
	CHECK("fork-queues", child >= 0);
	if (child == 0) {
		alarm(30);
		exit(touch(a, cq, channel));
	}
	CHECK("fork-queues", waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		FAIL("fork-queues", "status %#x of the child", status);
	post_recv_at(&side, b, 2, 65536, 8);
	post_send_at(&side, a, 3, 0, 8);
	success_of("fork-queues", cq);
	success_of("fork-queues", cq);
	ok("fork-queues");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK("end", ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

/* Thread cancellation of a waiter. */
static void *wait_for_event(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void cancelling(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(side.context);
	pthread_t thread;
	void *end;

	CHECK("thread-cancel-wait", channel && pthread_create(&thread, NULL, wait_for_event, channel) == 0);
	usleep(A_WHILE * 1000);
	CHECK("thread-cancel-wait", pthread_cancel(thread) == 0 && pthread_join(thread, &end) == 0);
	CHECK("thread-cancel-wait", end == PTHREAD_CANCELED);
	CHECK("thread-cancel-wait", ibv_destroy_comp_channel(channel) == 0);
	ok("thread-cancel-wait");
}

/* A thread that posts and polls: where the cancellation finds it. */
struct worker {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	int in_call;
	int noted;
};

static void note_place(void *of)
{
	struct worker *worker = of;

	worker->noted = 1;
}

static void *work(void *of)
{
	struct worker *worker = of;

	pthread_cleanup_push(note_place, worker);
	for (;;) {
		struct ibv_sge sge = { (uintptr_t)side.memory, 20000, side.mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE,
					  .send_flags = IBV_SEND_SIGNALED,
					  .wr.rdma = { (uintptr_t)side.memory + 65536, side.mr->rkey } };
		struct ibv_send_wr *bad;
		struct ibv_wc wc;
		int n;

		worker->in_call = 1;
		if (ibv_post_send(worker->qp, &wr, &bad))
			break;
		while ((n = ibv_poll_cq(worker->cq, 1, &wc)) == 0)
			;
		worker->in_call = 0;
		if (n < 0 || wc.status != IBV_WC_SUCCESS)
			break;
		pthread_testcancel();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancelling_work(void)
{
	struct ibv_cq *cq = new_cq(&side, 64, NULL);
	struct ibv_qp *a = new_qp_of(&side, IBV_QPT_RC, cq, 16), *b = new_qp_of(&side, IBV_QPT_RC, cq, 16);

	join(&side, a, b);
	for (int i = 0; i < 50; i++) {
		struct worker worker = { .qp = a, .cq = cq };
		pthread_t thread;
		void *end;

		CHECK("thread-cancel-data", pthread_create(&thread, NULL, work, &worker) == 0);
		usleep(500 + 37 * i);
		CHECK("thread-cancel-data", pthread_cancel(thread) == 0 && pthread_join(thread, &end) == 0);
		CHECK("thread-cancel-data", end == PTHREAD_CANCELED && worker.noted && !worker.in_call);
	}
	ok("thread-cancel-data");
	CHECK("end", ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	side = open_side();
	PART(creating());
	PART(modifying());
	PART(events());
	PART(groups());
	PART(forks());
	PART(cancelling());
	PART(cancelling_work());
	close_side(&side);
	return 0;
}
