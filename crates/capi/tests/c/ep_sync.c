/* Endpoints: rdma_create_ep, rdma_get_request, rdma_destroy_ep, and the inline functions of rdma_verbs.h on them. */
#include "rule.h"
#include <rdma/rdma_verbs.h>
#include <semaphore.h>

static char passive_says[] = "from the passive side";

static struct rdma_addrinfo *info(const char *rule, int passive, uint16_t port, int ps, int qp_type)
{
	struct rdma_addrinfo hints = { .ai_port_space = ps, .ai_qp_type = qp_type }, *res = NULL;
	char service[8];

	snprintf(service, sizeof service, "%u", port);
	hints.ai_flags = RAI_NUMERICHOST | (passive ? RAI_PASSIVE : 0);
	CHECK(rule, rdma_getaddrinfo(rule_text, service, &hints, &res) == 0);
	return res;
}

static struct ibv_qp_init_attr wanted(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 3, .max_recv_wr = 5, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 },
		.sq_sig_all = 1,
	};
}

static struct rdma_cm_id *listening(const char *rule, int ps, int qp_type, struct ibv_pd *pd,
				    struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo *res = info(rule, 1, 0, ps, qp_type);
	struct rdma_cm_id *id = NULL;

	CHECK(rule, rdma_create_ep(&id, res, pd, attr) == 0);
	rdma_freeaddrinfo(res);
	CHECK(rule, id != NULL);
	CHECK(rule, rdma_listen(id, 4) == 0);
	return id;
}

static struct rdma_cm_id *active(const char *rule, uint16_t port, int ps, int qp_type, struct ibv_pd *pd,
				 struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo *res = info(rule, 0, port, ps, qp_type);
	struct rdma_cm_id *id = NULL;

	CHECK(rule, rdma_create_ep(&id, res, pd, attr) == 0);
	rdma_freeaddrinfo(res);
	CHECK(rule, id != NULL);
	return id;
}

static enum ibv_qp_state state_of(const char *rule, struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(rule, ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

/* What an active endpoint is made of. */
static void made(void)
{
	struct rdma_cm_id *listener = listening("ep-passive", 0, 0, NULL, NULL), *id, *other;
	struct ibv_qp_init_attr attr = wanted();
	struct ibv_pd *pd;

	CHECK("ep-passive", listener->qp == NULL && port_of(listener) != 0);
	ok("ep-passive");

	attr.qp_type = IBV_QPT_UD;
	id = active("ep-active", port_of(listener), 0, 0, NULL, &attr);
	CHECK("ep-active", id->verbs && id->pd && id->qp && id->port_num == 1);
	CHECK("ep-active", id->route.num_paths >= 1 && id->route.path_rec);
	CHECK("ep-active", rdma_get_dst_port(id) == rdma_get_src_port(listener));
	CHECK("ep-active", rdma_get_src_port(id) != 0);
	ok("ep-active");
	CHECK("ep-qp-type", attr.qp_type == IBV_QPT_RC && id->qp->qp_type == IBV_QPT_RC && id->qp_type == IBV_QPT_RC);
	ok("ep-qp-type");
	CHECK("ep-qp-init", state_of("ep-qp-init", id) == IBV_QPS_INIT);
	ok("ep-qp-init");

	CHECK("ep-auto-cq", id->send_cq && id->recv_cq && id->send_cq != id->recv_cq);
	CHECK("ep-auto-cq", id->send_cq_channel && id->recv_cq_channel && id->send_cq_channel != id->recv_cq_channel);
	CHECK("ep-auto-cq", id->send_cq->channel == id->send_cq_channel && id->recv_cq->channel == id->recv_cq_channel);
	CHECK("ep-auto-cq", id->send_cq->cqe >= 3 && id->recv_cq->cqe >= 5);
	CHECK("ep-auto-cq", attr.send_cq == id->send_cq && attr.recv_cq == id->recv_cq);
	CHECK("ep-auto-cq", id->qp->send_cq == id->send_cq && id->qp->recv_cq == id->recv_cq);
	ok("ep-auto-cq");
	CHECK("ep-cq-context", id->send_cq->cq_context == id && id->recv_cq->cq_context == id);
	ok("ep-cq-context");
	CHECK("ep-caps", attr.cap.max_send_wr >= 3 && attr.cap.max_recv_wr >= 5 && attr.cap.max_inline_data >= 16);
	ok("ep-caps");

	other = active("ep-pd", port_of(listener), 0, 0, NULL, NULL);
	CHECK("ep-no-attr", other->qp == NULL && other->send_cq == NULL && other->recv_cq == NULL);
	ok("ep-no-attr");
	CHECK("ep-pd", other->pd == id->pd && id->qp->pd == id->pd && other->verbs == id->verbs);
	ok("ep-pd");

	pd = ibv_alloc_pd(id->verbs);
	CHECK("ep-own-pd", pd != NULL);
	rdma_destroy_ep(other);
	attr = wanted();
	other = active("ep-own-pd", port_of(listener), 0, 0, pd, &attr);
	CHECK("ep-own-pd", other->pd == pd && other->qp->pd == pd);
	rdma_destroy_ep(other);
	CHECK("ep-own-pd", ibv_dealloc_pd(pd) == 0);
	ok("ep-own-pd");
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

static void refused(void)
{
	struct rdma_cm_id *listener = listening("ep-refused", 0, 0, NULL, NULL), *id;
	struct ibv_qp_init_attr attr = wanted();
	uint16_t port = port_of(listener);

	rdma_destroy_ep(listener);
	id = active("ep-refused", port, 0, 0, NULL, &attr);
	FAILS("ep-refused", rdma_connect(id, NULL), ECONNREFUSED);
	CHECK("ep-refused", id->event && id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 8);
	rdma_destroy_ep(id);
	ok("ep-refused");
}

struct served {
	struct rdma_cm_id *listener;
	char memory[64];
	/* The active side is done. */
	sem_t done;
};

/* The passive side of a conversation. */
static void *serve(void *with)
{
	struct served *served = with;
	struct rdma_cm_id *id = NULL;
	struct rdma_conn_param param = { .private_data = passive_says, .private_data_len = sizeof passive_says,
					 .responder_resources = 2, .initiator_depth = 2, .rnr_retry_count = 7 };
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK("ep-get-request", rdma_get_request(served->listener, &id) == 0);
	CHECK("ep-get-request", id && id != served->listener && id->channel != served->listener->channel);
	CHECK("ep-get-request", id->qp && id->verbs && (!served->listener->pd || id->pd == served->listener->pd));
	CHECK("ep-get-request", id->send_cq->cq_context == id && id->recv_cq->cq_context == id);
	CHECK("ep-request-event", id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK("ep-request-event", id->event->id == id && id->event->listen_id == served->listener);
	CHECK("ep-request-event", !strcmp(id->event->param.conn.private_data, "from the active side"));
	CHECK("ep-request-event", id->event->param.conn.responder_resources == 3);
	CHECK("ep-request-event", id->event->param.conn.initiator_depth == 4);

	mr = rdma_reg_write(id, served->memory, sizeof served->memory);
	CHECK("ep-inline", mr != NULL);
	CHECK("ep-inline", rdma_post_recv(id, (void *)7, served->memory, sizeof served->memory, mr) == 0);
	CHECK("ep-accept", rdma_accept(id, &param) == 0);
	CHECK("ep-accept", id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK("ep-inline", rdma_get_recv_comp(id, &wc) == 1);
	CHECK("ep-inline", wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 7 && wc.byte_len == 6);
	CHECK("ep-inline", !strcmp(served->memory, "hello"));
	/* Where it may write, and read. */
	memset(served->memory, '.', 32);
	struct { uint64_t addr; uint32_t rkey; } where = { (uintptr_t)served->memory, mr->rkey };
	CHECK("ep-inline", rdma_post_send(id, NULL, &where, sizeof where, NULL, IBV_SEND_INLINE) == 0);
	CHECK("ep-inline", rdma_get_send_comp(id, &wc) == 1);
	CHECK("ep-inline", wc.status == IBV_WC_SUCCESS);
	sem_wait(&served->done);

	CHECK("ep-disconnected", rdma_disconnect(id) == 0);
	CHECK("ep-disconnected", id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK("ep-inline", rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void conversation(void)
{
	struct ibv_qp_init_attr attr = wanted(), kept = attr;
	struct served served = { .listener = listening("ep-get-request", 0, 0, NULL, &attr) };
	struct rdma_conn_param param = { .private_data = "from the active side", .private_data_len = 21,
					 .responder_resources = 4, .initiator_depth = 3, .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct { uint64_t addr; uint32_t rkey; } where;
	struct rdma_cm_id *id;
	struct ibv_mr *mr, *where_mr;
	struct ibv_wc wc;
	char memory[64] = "hello";
	pthread_t passive;

	kept.qp_type = attr.qp_type;
	CHECK("ep-attr-kept", !memcmp(&kept, &attr, sizeof attr));
	/* They were copied: what becomes of them is nothing to the listener. */
	memset(&attr, 0xFF, sizeof attr);
	sem_init(&served.done, 0, 0);
	passive = thread("ep-get-request", serve, &served);
	attr = wanted();
	id = active("ep-connect", port_of(served.listener), 0, 0, NULL, &attr);
	mr = rdma_reg_msgs(id, memory, sizeof memory);
	where_mr = rdma_reg_msgs(id, &where, sizeof where);
	CHECK("ep-inline", mr && where_mr);
	CHECK("ep-inline", rdma_post_recv(id, NULL, &where, sizeof where, where_mr) == 0);
	CHECK("ep-connect", rdma_connect(id, &param) == 0);
	CHECK("ep-connect", id->event && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK("ep-connect", !strcmp(id->event->param.conn.private_data, passive_says));
	CHECK("ep-connect", state_of("ep-connect", id) == IBV_QPS_RTS);
	CHECK("ep-inline", rdma_post_send(id, (void *)9, memory, 6, mr, 0) == 0);
	CHECK("ep-inline", rdma_get_send_comp(id, &wc) == 1);
	CHECK("ep-inline", wc.status == IBV_WC_SUCCESS && wc.wr_id == 9);
	CHECK("ep-inline", rdma_get_recv_comp(id, &wc) == 1);
	CHECK("ep-inline", wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof where);
	strcpy(memory, "written");
	CHECK("ep-inline", rdma_post_write(id, NULL, memory, 8, mr, 0, where.addr + 8, where.rkey) == 0);
	CHECK("ep-inline", rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK("ep-inline", !strcmp(served.memory + 8, "written"));
	/* The other side's region may not be read. */
	CHECK("ep-inline", rdma_post_read(id, NULL, memory, 8, mr, 0, where.addr, where.rkey) == 0);
	CHECK("ep-inline", rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_REM_ACCESS_ERR);

	sem_post(&served.done);
	CHECK("ep-disconnected", rdma_disconnect(id) == 0);
	CHECK("ep-disconnected", id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	pthread_join(passive, NULL);
	CHECK("ep-inline", rdma_dereg_mr(mr) == 0 && rdma_dereg_mr(where_mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(served.listener);
	ok("ep-attr-kept");
	ok("ep-get-request");
	ok("ep-request-event");
	ok("ep-accept");
	ok("ep-connect");
	ok("ep-inline");
	ok("ep-disconnected");
}

/* The program's completion queues stay the program's. */
static void own_cqs(void)
{
	struct rdma_cm_id *listener = listening("ep-own-cq", 0, 0, NULL, NULL), *id;
	struct ibv_qp_init_attr attr = wanted();
	struct ibv_cq *cq;

	id = active("ep-own-cq", port_of(listener), 0, 0, NULL, NULL);
	cq = ibv_create_cq(id->verbs, 10, NULL, NULL, 0);
	CHECK("ep-own-cq", cq != NULL);
	attr.send_cq = attr.recv_cq = cq;
	attr.qp_type = IBV_QPT_RC;
	CHECK("ep-own-cq", rdma_create_qp(id, NULL, &attr) == 0);
	CHECK("ep-own-cq", id->qp->send_cq == cq && id->qp->recv_cq == cq);
	CHECK("ep-own-cq", !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
	rdma_destroy_ep(id);
	CHECK("ep-own-cq", ibv_destroy_cq(cq) == 0);
	ok("ep-own-cq");

	/* One of them given, the other made. */
	id = active("ep-half-cq", port_of(listener), 0, 0, NULL, NULL);
	cq = ibv_create_cq(id->verbs, 10, NULL, NULL, 0);
	attr = wanted();
	attr.send_cq = cq;
	attr.qp_type = IBV_QPT_RC;
	CHECK("ep-half-cq", rdma_create_qp(id, NULL, &attr) == 0);
	CHECK("ep-half-cq", !id->send_cq && id->recv_cq && id->recv_cq->cq_context == id);
	rdma_destroy_qp(id);
	CHECK("ep-half-cq", !id->qp && !id->recv_cq && !id->recv_cq_channel);
	CHECK("ep-half-cq", ibv_destroy_cq(cq) == 0);
	rdma_destroy_ep(id);
	ok("ep-half-cq");
	rdma_destroy_ep(listener);
}

/* A shared receive queue in the identifier is that of its queue pair. */
static void shared_queue(void)
{
	struct rdma_cm_id *listener = listening("ep-srq", 0, 0, NULL, NULL), *id;
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 7, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = wanted();

	id = active("ep-srq", port_of(listener), 0, 0, NULL, NULL);
	CHECK("ep-srq", rdma_create_srq(id, NULL, &srq) == 0);
	CHECK("ep-srq", id->srq && id->srq->pd == id->pd && srq.attr.max_wr >= 7 && !id->recv_cq);
	attr.qp_type = IBV_QPT_RC;
	CHECK("ep-srq", rdma_create_qp(id, NULL, &attr) == 0);
	CHECK("ep-srq", id->qp->srq == id->srq && attr.srq == id->srq);
	CHECK("ep-srq", ibv_destroy_srq(id->srq) == EBUSY);
	rdma_destroy_qp(id);
	CHECK("ep-srq", id->srq && !id->qp && !id->recv_cq);
	rdma_destroy_srq(id);
	CHECK("ep-srq", !id->srq);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	ok("ep-srq");
}

static void *serve_datagrams(void *with)
{
	struct served *served = with;
	struct rdma_cm_id *id = NULL;
	struct rdma_conn_param param = { .private_data = passive_says, .private_data_len = sizeof passive_says };
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char memory[40 + 16];

	CHECK("ep-ud", rdma_get_request(served->listener, &id) == 0);
	CHECK("ep-ud", id->qp && state_of("ep-ud", id) == IBV_QPS_RTS);
	mr = rdma_reg_msgs(id, memory, sizeof memory);
	CHECK("ep-ud", mr && rdma_post_recv(id, NULL, memory, sizeof memory, mr) == 0);
	param.qp_num = id->qp->qp_num;
	/* Nothing follows on this side, so that the call does not wait. */
	CHECK("ep-ud-accept", rdma_accept(id, &param) == 0);
	CHECK("ep-ud-accept", id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK("ep-ud", rdma_get_recv_comp(id, &wc) == 1);
	CHECK("ep-ud", wc.status == IBV_WC_SUCCESS && wc.byte_len == 40 + 6 && (wc.wc_flags & IBV_WC_GRH));
	CHECK("ep-ud", !strcmp(memory + 40, "hello"));
	CHECK("ep-ud", rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void datagrams(void)
{
	struct ibv_qp_init_attr attr = wanted();
	struct served served = { .listener = listening("ep-ud", RDMA_PS_UDP, 0, NULL, &attr) };
	struct rdma_conn_param param = { .private_data = "from the active side", .private_data_len = 21 };
	struct rdma_cm_id *id;
	struct ibv_ah *ah;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	char memory[16] = "hello";
	pthread_t passive = thread("ep-ud", serve_datagrams, &served);

	attr = wanted();
	id = active("ep-ud", port_of(served.listener), 0, IBV_QPT_UD, NULL, &attr);
	CHECK("ep-ud", id->ps == RDMA_PS_UDP && id->qp->qp_type == IBV_QPT_UD);
	CHECK("ep-ud", state_of("ep-ud", id) == IBV_QPS_RTS);
	CHECK("ep-ud", rdma_connect(id, &param) == 0);
	CHECK("ep-ud", id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK("ep-ud", id->event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK("ep-ud", !strcmp(id->event->param.ud.private_data, passive_says));
	ah = ibv_create_ah(id->pd, &id->event->param.ud.ah_attr);
	mr = rdma_reg_msgs(id, memory, sizeof memory);
	CHECK("ep-ud", ah && mr);
	CHECK("ep-ud", rdma_post_ud_send(id, NULL, memory, 6, mr, 0, ah, id->event->param.ud.qp_num) == 0);
	CHECK("ep-ud", rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	pthread_join(passive, NULL);
	CHECK("ep-ud", ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(mr) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(served.listener);
	ok("ep-ud-accept");
	ok("ep-ud");
}

/* Only a synchronous listener has requests to wait for; anything else in its channel is told by its status. */
static void requests(void)
{
	struct rdma_event_channel *channel = new_channel("ep-request-einval");
	struct rdma_cm_id *id = new_listener("ep-request-einval", channel, RDMA_PS_TCP), *child = NULL;

	FAILS("ep-request-einval", rdma_get_request(id, &child), EINVAL);
	destroy("ep-request-einval", id);
	rdma_destroy_event_channel(channel);
	ok("ep-request-einval");
}

/* Unblocks, and goes on: O_NONBLOCK of the channel is the program's to set. */
static void nonblocking(void)
{
	struct ibv_qp_init_attr attr = wanted();
	struct rdma_cm_id *listener = listening("ep-request-nonblock", 0, 0, NULL, &attr), *child = NULL;
	int flags = fcntl(listener->channel->fd, F_GETFL);

	CHECK("ep-request-nonblock", fcntl(listener->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	FAILS("ep-request-nonblock", rdma_get_request(listener, &child), EAGAIN);
	rdma_destroy_ep(listener);
	ok("ep-request-nonblock");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	PART(refused());
	PART(conversation());
	PART(own_cqs());
	PART(shared_queue());
	PART(datagrams());
	PART(requests());
	PART(nonblocking());
	PART(made());
	return 0;
}
