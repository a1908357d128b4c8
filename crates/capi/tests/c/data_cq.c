/* Completion queues and channels: waiting, arming, acknowledging, resizing, destroying. */
#include "data.h"
#include <sys/epoll.h>

static struct side side;
static volatile sig_atomic_t struck;

static void on_alarm(int number)
{
	(void)number;
	struck++;
}

/* A handler for SIGUSR1, with or without SA_RESTART. */
static void handle(int flags)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = flags };

	sigaction(SIGUSR1, &action, NULL);
	struck = 0;
}

struct world {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq, *send_cq;
	struct ibv_qp *a, *b;
};

/* Receives of `b` complete on `cq`, which reports on the channel. */
static struct world make(int cqe)
{
	struct world w = { .channel = ibv_create_comp_channel(side.context) };

	CHECK("channel", w.channel != NULL);
	w.cq = new_cq(&side, cqe, w.channel);
	w.send_cq = new_cq(&side, 256, NULL);
	struct ibv_qp_init_attr attr = init_attr(IBV_QPT_RC, w.send_cq, 128);
	w.a = ibv_create_qp(side.pd, &attr);
	attr.recv_cq = w.cq;
	w.b = ibv_create_qp(side.pd, &attr);
	CHECK("qp", w.a && w.b);
	join(&side, w.a, w.b);
	return w;
}

static void send_one(struct world *w, int flags)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = flags | IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;

	CHECK("recv", ibv_post_recv(w->b, &recv, &bad_recv) == 0);
	CHECK("send", ibv_post_send(w->a, &wr, &bad) == 0);
	/* Acknowledged, so it has been received. */
	success_of("send", w->send_cq);
}

static void take_event(const char *rule, struct world *w)
{
	struct ibv_cq *cq = NULL;
	void *context = NULL;

	CHECK(rule, readable(w->channel->fd, LONG));
	CHECK(rule, ibv_get_cq_event(w->channel, &cq, &context) == 0);
	CHECK(rule, cq == w->cq && context == &side);
}

static void drain(struct world *w)
{
	struct ibv_wc wc[8];

	while (ibv_poll_cq(w->cq, 8, wc) > 0)
		;
}

static void finish(struct world *w)
{
	CHECK("end", ibv_destroy_qp(w->a) == 0);
	CHECK("end", ibv_destroy_qp(w->b) == 0);
	CHECK("end", ibv_destroy_cq(w->cq) == 0);
	CHECK("end", ibv_destroy_cq(w->send_cq) == 0);
	CHECK("end", ibv_destroy_comp_channel(w->channel) == 0);
}

static void creating(void)
{
	struct ibv_device_attr device;

	CHECK("cq-einval", ibv_query_device(side.context, &device) == 0);
	NO_OBJECT("cq-einval", ibv_create_cq(side.context, 0, NULL, NULL, 0), EINVAL);
	NO_OBJECT("cq-einval", ibv_create_cq(side.context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
	NO_OBJECT("cq-einval", ibv_create_cq(side.context, 8, NULL, NULL, side.context->num_comp_vectors), EINVAL);
	ok("cq-einval");

	struct world w = make(64);
	CHECK("cq-busy", w.cq->cqe >= 64);
	ANSWERS("cq-busy", ibv_destroy_cq(w.cq), EBUSY);
	ANSWERS("cq-busy", ibv_destroy_comp_channel(w.channel), EBUSY);
	send_one(&w, 0);
	success_of("cq-busy", w.cq);
	ok("cq-busy");
	finish(&w);
}

static void arming(void)
{
	struct world w = make(64);

	send_one(&w, 0);
	CHECK("cq-arm-late", ibv_req_notify_cq(w.cq, 0) == 0);
	CHECK("cq-arm-late", !readable(w.channel->fd, A_WHILE));
	send_one(&w, 0);
	take_event("cq-arm-late", &w);
	ok("cq-arm-late");

	send_one(&w, 0);
	CHECK("cq-arm-once", !readable(w.channel->fd, A_WHILE));
	ok("cq-arm-once");
	drain(&w);

	CHECK("cq-solicited", ibv_req_notify_cq(w.cq, 1) == 0);
	send_one(&w, 0);
	CHECK("cq-solicited", !readable(w.channel->fd, A_WHILE));
	send_one(&w, IBV_SEND_SOLICITED);
	take_event("cq-solicited", &w);
	ok("cq-solicited");
	drain(&w);
	ibv_ack_cq_events(w.cq, 2);

	struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE,
					       .moderate = { .cq_count = 3, .cq_period = 60000 } };
	int answer = ibv_modify_cq(w.cq, &moderate);
	CHECK("cq-moderate", answer == 0 || answer == EOPNOTSUPP);
	if (answer == 0) {
		moderate.attr_mask = IBV_CQ_ATTR_RESERVED;
		CHECK("cq-moderate", ibv_modify_cq(w.cq, &moderate) != 0);
	}
	ok("cq-moderate");
	finish(&w);
}

static void *strike(void *thread)
{
	for (int i = 0; i < 50 && !struck; i++) {
		usleep(20000);
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	}
	return NULL;
}

static void *strike_and_send(void *world)
{
	static pthread_t waiter;

	waiter = *(pthread_t *)((void **)world)[0];
	strike(&waiter);
	send_one(((void **)world)[1], 0);
	return NULL;
}

static void waiting(void)
{
	struct world w = make(64);
	pthread_t self = pthread_self(), thread;
	struct ibv_cq *cq;
	void *context;

	CHECK("cq-wait-nonblock", fcntl(w.channel->fd, F_SETFL, fcntl(w.channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	FAILS("cq-wait-nonblock", ibv_get_cq_event(w.channel, &cq, &context), EAGAIN);
	CHECK("cq-wait-nonblock", ibv_req_notify_cq(w.cq, 0) == 0);
	send_one(&w, 0);
	take_event("cq-wait-nonblock", &w);
	FAILS("cq-wait-nonblock", ibv_get_cq_event(w.channel, &cq, &context), EAGAIN);
	CHECK("cq-wait-nonblock", fcntl(w.channel->fd, F_SETFL, fcntl(w.channel->fd, F_GETFL) & ~O_NONBLOCK) == 0);
	ok("cq-wait-nonblock");

	handle(0);
	CHECK("cq-wait-eintr", pthread_create(&thread, NULL, strike, &self) == 0);
	FAILS("cq-wait-eintr", ibv_get_cq_event(w.channel, &cq, &context), EINTR);
	pthread_join(thread, NULL);
	ok("cq-wait-eintr");

	handle(SA_RESTART);
	CHECK("cq-wait-restart", ibv_req_notify_cq(w.cq, 0) == 0);
	void *both[] = { &self, &w };
	CHECK("cq-wait-restart", pthread_create(&thread, NULL, strike_and_send, both) == 0);
	CHECK("cq-wait-restart", ibv_get_cq_event(w.channel, &cq, &context) == 0 && cq == w.cq);
	pthread_join(thread, NULL);
	CHECK("cq-wait-restart", struck > 0);
	ok("cq-wait-restart");
	ibv_ack_cq_events(w.cq, 2);
	finish(&w);
}

/* A channel of three queues: one edge for each event. */
static void edges(void)
{
	struct world w = make(64);
	int ep = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };

	CHECK("cq-edge", epoll_ctl(ep, EPOLL_CTL_ADD, w.channel->fd, &event) == 0);
	for (int i = 0; i < 3; i++) {
		CHECK("cq-edge", ibv_req_notify_cq(w.cq, 0) == 0);
		send_one(&w, 0);
		CHECK("cq-edge", epoll_wait(ep, &event, 1, LONG) == 1);
		CHECK("cq-edge", epoll_wait(ep, &event, 1, A_WHILE) == 0);
		if (i == 1)
			continue;
		take_event("cq-edge", &w);
		drain(&w);
	}
	/* The second one is still there: by level. */
	take_event("cq-edge", &w);
	CHECK("cq-edge", !readable(w.channel->fd, 0));
	ok("cq-edge");
	close(ep);
	ibv_ack_cq_events(w.cq, 3);
	finish(&w);
}

static void *acknowledge(void *cq)
{
	usleep(100000);
	struck = 1;
	ibv_ack_cq_events(cq, 2);
	return NULL;
}

static void acknowledging(void)
{
	struct world w = make(64);
	pthread_t thread;

	for (int i = 0; i < 2; i++) {
		CHECK("cq-ack", ibv_req_notify_cq(w.cq, 0) == 0);
		send_one(&w, 0);
		take_event("cq-ack", &w);
	}
	CHECK("cq-ack", ibv_destroy_qp(w.a) == 0 && ibv_destroy_qp(w.b) == 0);
	struck = 0;
	CHECK("cq-ack", pthread_create(&thread, NULL, acknowledge, w.cq) == 0);
	CHECK("cq-ack", ibv_destroy_cq(w.cq) == 0);
	CHECK("cq-ack", struck == 1);
	pthread_join(thread, NULL);
	ok("cq-ack");

	/* Queued events go with their queue. */
	CHECK("cq-events-go", ibv_destroy_cq(w.send_cq) == 0);
	CHECK("cq-events-go", ibv_destroy_comp_channel(w.channel) == 0);
	w = make(64);
	CHECK("cq-events-go", ibv_req_notify_cq(w.cq, 0) == 0);
	send_one(&w, 0);
	CHECK("cq-events-go", readable(w.channel->fd, LONG));
	CHECK("cq-events-go", ibv_destroy_qp(w.a) == 0 && ibv_destroy_qp(w.b) == 0);
	CHECK("cq-events-go", ibv_destroy_cq(w.cq) == 0);
	CHECK("cq-events-go", !readable(w.channel->fd, A_WHILE));
	CHECK("cq-events-go", ibv_destroy_cq(w.send_cq) == 0);
	CHECK("cq-events-go", ibv_destroy_comp_channel(w.channel) == 0);
	ok("cq-events-go");
}

static void resizing(void)
{
	struct world w = make(8);
	struct ibv_wc wc[16];

	for (int i = 0; i < 6; i++)
		send_one(&w, 0);
	CHECK("cq-resize", ibv_resize_cq(w.cq, 100) == 0 && w.cq->cqe >= 100);
	for (int i = 0; i < 6; i++)
		send_one(&w, 0);
	CHECK("cq-resize", ibv_poll_cq(w.cq, 16, wc) == 12);
	ok("cq-resize");
	for (int i = 0; i < 6; i++)
		send_one(&w, 0);
	ANSWERS("cq-resize-einval", ibv_resize_cq(w.cq, 0), EINVAL);
	ANSWERS("cq-resize-einval", ibv_resize_cq(w.cq, 2), EINVAL);
	CHECK("cq-resize-einval", ibv_poll_cq(w.cq, 16, wc) == 6);
	ok("cq-resize-einval");
	finish(&w);
}

/* One completion more than there is room for. */
static void overrunning(void)
{
	struct world w = make(4);
	struct ibv_async_event event;
	struct ibv_wc wc;
	int fatal = 0, cq_err = 0;

	for (int i = 0; i < 4; i++)
		send_one(&w, 0);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK("cq-overrun", ibv_post_recv(w.b, &recv, &bad_recv) == 0);
	CHECK("cq-overrun", ibv_post_send(w.a, &wr, &bad) == 0);
	while (!fatal || !cq_err) {
		CHECK("cq-overrun", ibv_get_async_event(side.context, &event) == 0);
		if (event.event_type == IBV_EVENT_CQ_ERR) {
			CHECK("cq-overrun", event.element.cq == w.cq);
			cq_err = 1;
		} else if (event.event_type == IBV_EVENT_QP_FATAL) {
			CHECK("cq-overrun", event.element.qp == w.b);
			fatal = 1;
		}
		ibv_ack_async_event(&event);
	}
	for (int i = 0; i < 4; i++)
		CHECK("cq-overrun", ibv_poll_cq(w.cq, 1, &wc) == 1);
	CHECK("cq-overrun", ibv_poll_cq(w.cq, 1, &wc) < 0);
	ok("cq-overrun");
	finish(&w);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	side = open_side();
	PART(creating());
	PART(arming());
	PART(waiting());
	PART(edges());
	PART(acknowledging());
	PART(resizing());
	PART(overrunning());
	close_side(&side);
	return 0;
}
