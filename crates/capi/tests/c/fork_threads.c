/* Children of a process whose other threads are inside the library, and daemons that have opened something before. */
#include "rule.h"
#include "pair.h"
#include <sys/wait.h>

#define THREADS 3
#define CHILDREN 60

static volatile int is_over;

/* Is in the lists of channels, identifiers, devices and memberships nearly all the time. */
static void *busy(void *with)
{
	(void)with;
	while (!is_over) {
		struct rdma_event_channel *channel = new_channel("fork-beside-threads");
		struct rdma_cm_id *id = new_id("fork-beside-threads", channel, RDMA_PS_UDP);
		struct ibv_device **list = ibv_get_device_list(NULL);

		CHECK("fork-beside-threads", list != NULL);
		ibv_free_device_list(list);
		resolve("fork-beside-threads", id, 7000);
		destroy("fork-beside-threads", id);
		rdma_destroy_event_channel(channel);
	}
	return NULL;
}

/* What every child does with a channel, identifiers and a device of its own. */
static void all_of_it(const char *rule)
{
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *id = new_id(rule, channel, RDMA_PS_TCP), *listener = new_listener(rule, channel, RDMA_PS_TCP);
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(rule, list && list[0]);
	ibv_free_device_list(list);
	resolve(rule, id, port_of(listener));
	destroy(rule, id);
	destroy(rule, listener);
	rdma_destroy_event_channel(channel);
}

static void beside_threads(void)
{
	const char *rule = "fork-beside-threads";
	pthread_t threads[THREADS];
	int status;

	for (int i = 0; i < THREADS; i++)
		threads[i] = thread(rule, busy, NULL);
	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();

		CHECK(rule, pid >= 0);
		if (pid == 0) {
			alarm(30);
			all_of_it(rule);
			_exit(0);
		}
		CHECK(rule, waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	is_over = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(rule, pthread_join(threads[i], NULL) == 0);
	ok(rule);
}

/* One of everything. */
struct everything {
	struct ibv_pd *pd;
	struct ibv_comp_channel *events;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_td *td;
	struct ibv_xrcd *xrcd;
};

static char memory[64];

/* `errno` is that of the last object that was not made. */
static struct everything make(struct ibv_context *context, const struct everything *of)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_init_attr qp = { .send_cq = of ? of->cq : NULL,
				       .recv_cq = of ? of->cq : NULL,
				       .cap = { 1, 1, 1, 1, 0 },
				       .qp_type = IBV_QPT_RC };
	struct ibv_ah_attr ah = to_self();
	struct ibv_td_init_attr td = { 0 };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = -1,
					   .oflags = O_CREAT };
	struct everything all = { .pd = ibv_alloc_pd(context) };
	struct ibv_pd *pd = of ? of->pd : all.pd;

	all.events = ibv_create_comp_channel(context);
	all.cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	if (!of)
		qp.send_cq = qp.recv_cq = all.cq;
	all.srq = ibv_create_srq(pd, &srq);
	all.qp = ibv_create_qp(pd, &qp);
	all.ah = ibv_create_ah(pd, &ah);
	all.mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	all.mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	all.td = ibv_alloc_td(context, &td);
	all.xrcd = ibv_open_xrcd(context, &xrcd);
	return all;
}

/* What every destroying call answers. */
static void unmake(const char *rule, struct everything *all, int answer)
{
	CHECK(rule, ibv_destroy_qp(all->qp) == answer);
	CHECK(rule, ibv_destroy_srq(all->srq) == answer);
	CHECK(rule, ibv_destroy_cq(all->cq) == answer);
	CHECK(rule, ibv_destroy_comp_channel(all->events) == answer);
	CHECK(rule, ibv_destroy_ah(all->ah) == answer);
	CHECK(rule, ibv_dereg_mr(all->mr) == answer);
	CHECK(rule, ibv_dealloc_mw(all->mw) == answer);
	CHECK(rule, ibv_dealloc_td(all->td) == answer);
	CHECK(rule, ibv_close_xrcd(all->xrcd) == answer);
	CHECK(rule, ibv_dealloc_pd(all->pd) == answer);
}

static int has_all(const struct everything *all)
{
	return all->pd && all->events && all->cq && all->srq && all->qp && all->ah && all->mr && all->mw && all->td &&
	       all->xrcd;
}

static int has_any(const struct everything *all)
{
	return all->pd || all->events || all->cq || all->srq || all->qp || all->ah || all->mr || all->mw || all->td ||
	       all->xrcd;
}

/* Nothing of the parent's can be used, nothing made of it, and nothing of it given back. */
static void nothing_of(const char *rule, struct ibv_context *context, struct everything *old)
{
	struct ibv_srq_attr srq = { .max_wr = 1 };
	struct ibv_qp_attr qp = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_port_attr port;
	struct everything made;
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *with;

	errno = 0;
	made = make(context, old);
	CHECK(rule, !has_any(&made) && errno == EPERM);
	CHECK(rule, ibv_query_port(context, 1, &port) == EPERM);
	CHECK(rule, ibv_poll_cq(old->cq, 1, &wc) == -1);
	CHECK(rule, ibv_req_notify_cq(old->cq, 0) == EPERM);
	FAILS(rule, ibv_get_cq_event(old->events, &cq, &with), EPERM);
	CHECK(rule, ibv_modify_qp(old->qp, &qp, IBV_QP_STATE) == EPERM);
	CHECK(rule, ibv_query_qp(old->qp, &qp, IBV_QP_STATE, &init) == EPERM);
	CHECK(rule, ibv_post_recv(old->qp, &wr, &bad) == EPERM && bad == &wr);
	CHECK(rule, ibv_modify_srq(old->srq, &srq, IBV_SRQ_MAX_WR) == EPERM);
	CHECK(rule, ibv_post_srq_recv(old->srq, &wr, &bad) == EPERM && bad == &wr);
	unmake(rule, old, EPERM);
	FAILS(rule, ibv_close_device(context), EPERM);
}

/* A program that opens what it needs and becomes a daemon then: the daemon is another process, to which that does not belong. */
static void daemon_after(const char *rule)
{
	struct rdma_event_channel *channel = new_channel(rule);
	struct rdma_cm_id *listener = new_listener(rule, channel, RDMA_PS_TCP), *id;
	struct ibv_context *context = open_port(rule);
	struct everything old = make(context, NULL), own;
	struct rdma_cm_event *event;

	CHECK(rule, has_all(&old));
	CHECK(rule, daemon(1, 1) == 0);
	alarm(30);
	FAILS(rule, rdma_get_cm_event(channel, &event), EACCES);
	FAILS(rule, rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), EACCES);
	FAILS(rule, rdma_listen(listener, 1), EACCES);
	FAILS(rule, rdma_destroy_id(listener), EACCES);
	nothing_of(rule, context, &old);
	all_of_it(rule);
	context = port_context = NULL;
	context = open_port(rule);
	own = make(context, NULL);
	CHECK(rule, has_all(&own));
	unmake(rule, &own, 0);
	CHECK(rule, ibv_close_device(context) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	as_daemon("fork-daemon-after", daemon_after);
	beside_threads();
	return 0;
}
