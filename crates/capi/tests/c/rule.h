/* What the rule programs share: see rules.txt. Each takes the address to use as its first argument. */
#ifndef RULE_H
#define RULE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The address that was given, and no other, is used. */
static struct sockaddr_storage rule_base;
static const char *rule_text = "127.0.0.1";

/* How long a program may take, in seconds. */
#ifndef RULE_LIMIT
#define RULE_LIMIT 60
#endif

/* The part of the program that runs. */
static const char *rule_part = "";

/* Whether the part is one of those, with spaces between, that RULE_SKIP names: for devices that are known to be otherwise. */
static inline int is_skipped(const char *part)
{
	const char *at = getenv("RULE_SKIP");
	size_t len = strcspn(part, "(");

	for (; at && *at; at += strspn(at, " ")) {
		if (strcspn(at, " ") == len && !memcmp(at, part, len))
			return 1;
		at += strcspn(at, " ");
	}
	rule_part = part;
	return 0;
}

#define PART(call)                                                                                                     \
	do {                                                                                                           \
		if (!is_skipped(#call))                                                                                \
			call;                                                                                          \
	} while (0)

/* A rule was shown. */
static inline void ok(const char *rule)
{
	printf("ok %s\n", rule);
	fflush(stdout);
}

/* With RULE_GO_ON the program goes on as well as it can, for a list of all that is otherwise on another device. */
#define FAIL(rule, ...)                                                                                                \
	do {                                                                                                           \
		int at_errno = errno;                                                                                  \
		printf("FAIL %s: %s: %s:%d: ", rule, rule_part, __FILE__, __LINE__);                                   \
		printf(__VA_ARGS__);                                                                                   \
		printf(" (errno %d, %s)\n", at_errno, strerror(at_errno));                                             \
		fflush(stdout);                                                                                        \
		if (!getenv("RULE_GO_ON"))                                                                             \
			exit(1);                                                                                       \
	} while (0)

/* The rule is broken unless the condition holds. */
#define CHECK(rule, condition)                                                                                         \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			FAIL(rule, "%s", #condition);                                                                  \
	} while (0)

/* The call fails with this error number. */
#define FAILS(rule, call, number)                                                                                      \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		long long answer = (long long)(call);                                                                  \
		if (answer != -1 || errno != (number))                                                                 \
			FAIL(rule, "%s answers %lld, not -1 with errno %d", #call, answer, number);                    \
	} while (0)

static inline void start(int argc, char **argv)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&rule_base;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&rule_base;

	setvbuf(stdout, NULL, _IOLBF, 0);
	/* A program that hangs is wrong, and says so by its end. */
	alarm(RULE_LIMIT);
	if (argc > 1)
		rule_text = argv[1];
	if (inet_pton(AF_INET, rule_text, &in->sin_addr) == 1)
		in->sin_family = AF_INET;
	else if (inet_pton(AF_INET6, rule_text, &in6->sin6_addr) == 1)
		in6->sin6_family = AF_INET6;
	else
		FAIL("start", "%s is no address", rule_text);
}

/* The address, with a port. */
static inline struct sockaddr *address(uint16_t port)
{
	static _Thread_local struct sockaddr_storage with_port;

	with_port = rule_base;
	if (with_port.ss_family == AF_INET)
		((struct sockaddr_in *)&with_port)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)&with_port)->sin6_port = htons(port);
	return (struct sockaddr *)&with_port;
}

/* Whether the descriptor is readable within so many milliseconds. */
static inline int readable(int fd, int milliseconds)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, milliseconds) == 1 && (one.revents & POLLIN);
}

/* Long enough for anything that must not happen; nothing is measured by it. */
#define A_WHILE 100
#define LONG 20000

/* The next event, which must be of this kind; it is the caller's to acknowledge. */
static inline struct rdma_cm_event *event_of(const char *rule, struct rdma_event_channel *channel,
					     enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = NULL;

	if (!readable(channel->fd, LONG))
		FAIL(rule, "no event where %s should come", rdma_event_str(kind));
	if (rdma_get_cm_event(channel, &event))
		FAIL(rule, "rdma_get_cm_event, waiting for %s", rdma_event_str(kind));
	if (event->event != kind)
		FAIL(rule, "%s, status %d, where %s should come", rdma_event_str(event->event), event->status,
		     rdma_event_str(kind));
	return event;
}

/* The next event is of this kind; acknowledged. */
static inline void expect(const char *rule, struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	CHECK(rule, rdma_ack_cm_event(event_of(rule, channel, kind)) == 0);
}

static inline struct rdma_event_channel *new_channel(const char *rule)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	CHECK(rule, channel != NULL);
	return channel;
}

static inline struct rdma_cm_id *new_id(const char *rule, struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;

	CHECK(rule, rdma_create_id(channel, &id, NULL, ps) == 0);
	return id;
}

/* A listening identifier at a port of the system's choice. */
static inline struct rdma_cm_id *new_listener(const char *rule, struct rdma_event_channel *channel,
					      enum rdma_port_space ps)
{
	struct rdma_cm_id *id = new_id(rule, channel, ps);

	CHECK(rule, rdma_bind_addr(id, address(0)) == 0);
	CHECK(rule, rdma_listen(id, 8) == 0);
	CHECK(rule, rdma_get_src_port(id) != 0);
	return id;
}

static inline uint16_t port_of(struct rdma_cm_id *id)
{
	return ntohs(rdma_get_src_port(id));
}

/* A queue pair with completion queues of its own. */
static inline void new_qp(const char *rule, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = id->ps == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD,
		.sq_sig_all = 1,
	};

	CHECK(rule, rdma_create_qp(id, NULL, &attr) == 0);
}

/* Resolved as far as the route, on its channel. */
static inline void resolve(const char *rule, struct rdma_cm_id *id, uint16_t port)
{
	CHECK(rule, rdma_resolve_addr(id, NULL, address(port), 2000) == 0);
	expect(rule, id->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rule, rdma_resolve_route(id, 2000) == 0);
	expect(rule, id->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

/* Gone, with its queue pair. */
static inline void destroy(const char *rule, struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rule, rdma_destroy_id(id) == 0);
}

/* A listener, and a connection to it: the sides on a channel each. */
struct pair {
	struct rdma_event_channel *passive_channel, *active_channel;
	struct rdma_cm_id *listener, *passive, *active;
};

/* As far as the request, which is not acknowledged. */
static inline struct rdma_cm_event *request_of(const char *rule, struct pair *pair, enum rdma_port_space ps,
					       struct rdma_conn_param *param)
{
	struct rdma_cm_event *request;

	pair->passive_channel = new_channel(rule);
	pair->active_channel = new_channel(rule);
	pair->listener = new_listener(rule, pair->passive_channel, ps);
	pair->active = new_id(rule, pair->active_channel, ps);
	resolve(rule, pair->active, port_of(pair->listener));
	new_qp(rule, pair->active);
	CHECK(rule, rdma_connect(pair->active, param) == 0);
	request = event_of(rule, pair->passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair->passive = request->id;
	return request;
}

static inline struct pair connected(const char *rule)
{
	struct pair pair;

	CHECK(rule, rdma_ack_cm_event(request_of(rule, &pair, RDMA_PS_TCP, NULL)) == 0);
	new_qp(rule, pair.passive);
	CHECK(rule, rdma_accept(pair.passive, NULL) == 0);
	expect(rule, pair.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect(rule, pair.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	return pair;
}

static inline void end(const char *rule, struct pair *pair)
{
	if (pair->active)
		destroy(rule, pair->active);
	if (pair->passive)
		destroy(rule, pair->passive);
	if (pair->listener)
		destroy(rule, pair->listener);
	if (pair->active_channel)
		rdma_destroy_event_channel(pair->active_channel);
	if (pair->passive_channel)
		rdma_destroy_event_channel(pair->passive_channel);
}

/* Runs in a process of its own, which becomes a daemon (daemon(3)) when it likes, and must come to its end. */
static inline void as_daemon(const char *rule, void (*run)(const char *rule))
{
	int pipes[2];
	char done = 0;
	pid_t pid;

	CHECK(rule, pipe(pipes) == 0);
	pid = fork();
	CHECK(rule, pid >= 0);
	if (pid == 0) {
		run(rule);
		CHECK(rule, write(pipes[1], "y", 1) == 1);
		_exit(0);
	}
	close(pipes[1]);
	CHECK(rule, read(pipes[0], &done, 1) == 1 && done == 'y');
	close(pipes[0]);
	waitpid(pid, NULL, 0);
	ok(rule);
}

/* A thread of the program's. */
static inline pthread_t thread(const char *rule, void *(*run)(void *), void *with)
{
	pthread_t made;

	errno = pthread_create(&made, NULL, run, with);
	CHECK(rule, errno == 0);
	return made;
}

/* Waits until the thread sleeps in the kernel, so that what follows meets it there. */
static inline void until_asleep(const char *rule, pid_t tid)
{
	char path[64], text[512];

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
	for (int i = 0; i < 10000; i++) {
		FILE *file = fopen(path, "r");
		size_t got;
		char *state;

		CHECK(rule, file != NULL);
		got = fread(text, 1, sizeof text - 1, file);
		fclose(file);
		text[got] = 0;
		state = strrchr(text, ')');
		if (state && state[2] == 'S')
			return;
		usleep(1000);
	}
	FAIL(rule, "the thread does not wait");
}

#endif
