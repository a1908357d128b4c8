/* Asynchronous events: waiting for them, and what destroying their object waits for. */
#include "rule.h"
#include "pair.h"
#include <sys/epoll.h>

static struct ibv_context *context;

static void nothing(int signal)
{
	(void)signal;
}

static void nonblocking(int on)
{
	int flags = fcntl(context->async_fd, F_GETFL);

	CHECK("async-nonblock", !fcntl(context->async_fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

static void waiting_rules(void)
{
	struct ibv_async_event event;
	struct sigaction action = { .sa_handler = nothing };

	CHECK("async-nonblock", !readable(context->async_fd, 0));
	nonblocking(1);
	FAILS("async-nonblock", ibv_get_async_event(context, &event), EAGAIN);
	nonblocking(0);
	ok("async-nonblock");

	/* A handler that does not restart calls ends the wait. */
	struct itimerspec soon = { .it_value.tv_nsec = 1000000, .it_interval.tv_nsec = 20000000 }, never = { 0 };
	struct sigevent by_signal = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	timer_t timer;
	CHECK("async-eintr", !sigaction(SIGUSR1, &action, NULL) && !timer_create(CLOCK_MONOTONIC, &by_signal, &timer));
	CHECK("async-eintr", !timer_settime(timer, 0, &soon, NULL));
	FAILS("async-eintr", ibv_get_async_event(context, &event), EINTR);
	CHECK("async-eintr", !timer_settime(timer, 0, &never, NULL) && !timer_delete(timer));
	ok("async-eintr");
}

static void *wait_for_ever(void *started)
{
	struct ibv_async_event event;

	*(volatile int *)started = 1;
	ibv_get_async_event(context, &event);
	return NULL;
}

static void cancel_rules(void)
{
	pthread_t thread;
	volatile int started = 0;
	void *answer;

	CHECK("async-cancel", !pthread_create(&thread, NULL, wait_for_ever, (void *)&started));
	while (!started)
		usleep(1000);
	usleep(20000);
	CHECK("async-cancel", !pthread_cancel(thread) && !pthread_join(thread, &answer) && answer == PTHREAD_CANCELED);
	ok("async-cancel");
}

/* The next event but IBV_EVENT_COMM_EST, which the receiver's first message is; 0 if none comes before the time is over. */
static int next_event(const char *rule, struct ibv_async_event *event, int milliseconds)
{
	while (readable(context->async_fd, milliseconds)) {
		CHECK(rule, ibv_get_async_event(context, event) == 0);
		if (event->event_type != IBV_EVENT_COMM_EST)
			return 1;
		ibv_ack_async_event(event);
	}
	return 0;
}

static struct ibv_pd *pd;
static struct ibv_srq *srq;
static volatile int destroyed;

static void *destroy_queue(void *unused)
{
	(void)unused;
	CHECK("async-ack", ibv_destroy_srq(srq) == 0);
	destroyed = 1;
	return NULL;
}

/* Posts so many buffers, so that there are two, and has one of them taken: fewer than the limit are left. */
static void reach_limit(struct end *sender, struct end *receiver, int buffers)
{
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	struct ibv_recv_wr buffer = { 0 }, *bad_buffer;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	for (int i = 0; i < buffers; i++)
		CHECK("async-event", !ibv_post_srq_recv(srq, &buffer, &bad_buffer));
	CHECK("async-event", !ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	CHECK("async-event", !ibv_post_send(sender->qp, &send, &bad));
	CHECK("async-event", completion("async-event", sender->cq).status == IBV_WC_SUCCESS);
	CHECK("async-event", completion("async-event", receiver->cq).status == IBV_WC_SUCCESS);
}

static void event_rules(void)
{
	struct ibv_srq_init_attr init = { .srq_context = &init, .attr = { .max_wr = 8, .max_sge = 1 } };
	struct epoll_event watched = { .events = EPOLLIN | EPOLLET };
	struct ibv_async_event event;
	int epoll = epoll_create1(0);
	pthread_t thread;

	pd = ibv_alloc_pd(context);
	srq = ibv_create_srq(pd, &init);
	CHECK("async-event", pd && srq);
	struct end one = new_end("async-event", pd, NULL, IBV_QPT_RC), two = new_end("async-event", pd, srq, IBV_QPT_RC);
	connect_ends("async-event", &one, &two);

	CHECK("async-event", !epoll_ctl(epoll, EPOLL_CTL_ADD, context->async_fd, &watched));
	reach_limit(&one, &two, 2);
	CHECK("async-event", epoll_wait(epoll, &watched, 1, LONG) == 1);
	CHECK("async-event", next_event("async-event", &event, LONG));
	CHECK("async-event", event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	CHECK("async-event", event.element.srq->srq_context == &init);
	ibv_ack_async_event(&event);
	CHECK("async-event", !next_event("async-event", &event, A_WHILE));
	ok("async-event");

	/* Each event is an edge. */
	epoll_wait(epoll, &watched, 1, 0);
	reach_limit(&one, &two, 1);
	CHECK("async-edge", epoll_wait(epoll, &watched, 1, LONG) == 1);
	CHECK("async-edge", next_event("async-edge", &event, LONG) && event.element.srq == srq);
	ok("async-edge");

	destroy_end("async-ack", &one);
	destroy_end("async-ack", &two);
	CHECK("async-ack", !pthread_create(&thread, NULL, destroy_queue, NULL));
	usleep(A_WHILE * 1000);
	CHECK("async-ack", !destroyed);
	ibv_ack_async_event(&event);
	CHECK("async-ack", !pthread_join(thread, NULL) && destroyed);
	ok("async-ack");

	/* An event that was not taken goes with its object. */
	srq = ibv_create_srq(pd, &init);
	one = new_end("async-gone", pd, NULL, IBV_QPT_RC), two = new_end("async-gone", pd, srq, IBV_QPT_RC);
	connect_ends("async-gone", &one, &two);
	reach_limit(&one, &two, 2);
	CHECK("async-gone", readable(context->async_fd, LONG));
	destroy_end("async-gone", &one);
	destroy_end("async-gone", &two);
	CHECK("async-gone", ibv_destroy_srq(srq) == 0);
	nonblocking(1);
	FAILS("async-gone", ibv_get_async_event(context, &event), EAGAIN);
	ok("async-gone");
	CHECK("async-gone", ibv_dealloc_pd(pd) == 0);
	close(epoll);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	context = open_port("async-event");
	PART(waiting_rules());
	PART(cancel_rules());
	PART(event_rules());
	CHECK("async-event", ibv_close_device(context) == 0);
	return 0;
}
